"""Batches of images from disk: decoded and transformed one by one, by worker processes.

As with batches from memory, (seed, epoch) alone decide a pass: every image has its own generator, so the number of workers
changes only the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from hace.data.batches import IMAGENET_MEAN, IMAGENET_STD, EpochOrder, MemoryBatches, share_of, targets_of
from hace.data.samples import Samples
from hace.errors import ConfigError, DataError
from hace.files.reading import optional


class LoaderBatches:
    """Batches of images on disk, or in memory at another size.

    Args:
        samples: A split.
        batch_size: Images per batch; the last batch of an epoch may have fewer.
        transform: From a PIL image to a tensor; see `image_transform`.
        shuffle: Whether every epoch has its own order.
        labels: "leaves": targets are leaf labels; "nodes": node indices, for labels at any level.
        seed: Seed of order and transforms.
        workers: Processes that prepare batches; 0 prepares them in this one.
        device: Where batches go.
        drop_last: Whether to drop a last batch that is not full. Never for a test.
        part: (rank, world): this process's share of every batch, see `share_of`.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        transform: Callable[[Any], torch.Tensor],
        *,
        shuffle: bool = False,
        labels: str = "leaves",
        seed: int = 0,
        workers: int = 0,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        if workers < 0:
            raise ConfigError(f"workers must be 0 or more. Got {workers}.")
        order = EpochOrder(len(samples), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self._batches = _Batches(order, part)
        self._device = torch.device("cpu" if device is None else device)
        self._loader = torch_data.DataLoader(
            _Images(samples, targets_of(samples, labels), transform, seed),
            batch_sampler=self._batches,
            num_workers=workers,
            collate_fn=_collate,
            persistent_workers=workers > 0,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator().manual_seed(seed),  # the default is the global generator
        )

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of one pass: images float32 (B, 3, H, W) and targets int64 (B,).

        Args:
            number: The epoch.
            start: The batch to begin with, to resume in the middle of a pass.

        Raises:
            DataError: An image cannot be read; names its path.
        """
        self._batches.number, self._batches.start = number, start
        for batch in self._loader:
            if isinstance(batch, DataError):
                raise batch
            images, targets = (part.to(self._device, non_blocking=True) for part in batch)
            yield images, targets


def image_transform(
    size: int,
    *,
    augment: bool,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> Callable[[Any], torch.Tensor]:
    """The usual transforms of images of many sizes.

    Args:
        size: The side of the result.
        augment: True: a random crop of 8 to 100 % of the area, mirrored with probability 1/2; False: resize the shorter side
            to 8/7 of `size` and take the centre.
        mean: Mean of each channel, on the scale from 0 to 1, to normalise with.
        std: Standard deviation of each channel, on the same scale.
    """
    t = optional("torchvision.transforms", "Transforming images")
    if augment:
        steps = [t.RandomResizedCrop(size), t.RandomHorizontalFlip()]
    else:
        steps = [t.Resize(round(size * 8 / 7)), t.CenterCrop(size)]
    return t.Compose([*steps, t.ToTensor(), t.Normalize(mean, std)])


def make_batches(
    samples: Samples,
    batch_size: int,
    *,
    train: bool,
    size: int,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    labels: str = "leaves",
    seed: int = 0,
    workers: int = 0,
    device: torch.device | str | None = None,
    drop_last: bool = False,
) -> MemoryBatches | LoaderBatches:
    """Batches from memory if the images are there at the right size, else by workers.

    Args:
        samples: A split.
        batch_size: Images per batch.
        train: Whether to shuffle and augment: from memory by a flip and a crop of the image padded by 1/8 of its side,
            otherwise as `image_transform` does.
        size: The side of the result.
        mean: Mean of each channel, on the scale from 0 to 1, to normalise with.
        std: Standard deviation of each channel, on the same scale.
        labels: "leaves": targets are leaf labels; "nodes": node indices, for labels at any level.
        seed: Seed of order and augmentation.
        workers: Processes that prepare batches of images on disk; 0 prepares them in this one.
        device: Where batches go.
        drop_last: Whether to drop a last batch that is not full. Never for a test.
    """
    order: dict[str, Any] = {"shuffle": train, "labels": labels, "seed": seed, "drop_last": drop_last}
    if samples.pixels is not None and samples.pixels.shape[-2:] == (size, size):
        pad = size // 8 if train else 0
        return MemoryBatches(
            samples, batch_size, pad=pad, flip=train, mean=mean, std=std, device=device, **order
        )
    transform = image_transform(size, augment=train, mean=mean, std=std)
    return LoaderBatches(samples, batch_size, transform, workers=workers, device=device, **order)


class _Batches(torch_data.Sampler[list[tuple[int, int]]]):
    """Batches of (epoch, position): workers outlive an epoch, so each position carries its own."""

    def __init__(self, order: EpochOrder, part: tuple[int, int]) -> None:
        self.order, self.part = order, part
        self.number = self.start = 0

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        number = self.number
        batches = (batch[share_of(len(batch), *self.part)] for batch, _ in self.order.epoch(number))
        return ([(number, i) for i in batch.tolist()] for batch in islice(batches, self.start, None))


class _Images(torch_data.Dataset[Any]):
    """Transformed images by (epoch, position)."""

    def __init__(
        self, samples: Samples, targets: torch.Tensor, transform: Callable[[Any], torch.Tensor], seed: int
    ) -> None:
        self.samples, self.targets, self.transform, self.seed = samples, targets, transform, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor] | DataError:
        epoch, index = key
        try:
            image = self.samples.image(index)
        except DataError as error:
            return error  # raised by the main process, without the worker's traceback
        seed = np.random.SeedSequence([self.seed, epoch, index]).generate_state(1, np.uint64)[0]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seed))
            return self.transform(image), self.targets[index]


def _collate(items: list[Any]) -> Any:
    broken = next((item for item in items if isinstance(item, DataError)), None)
    if broken is not None:
        return broken
    images, targets = zip(*items, strict=True)
    return torch.stack(images), torch.stack(targets)
