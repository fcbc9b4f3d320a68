"""Batches of images from disk: decoded and transformed one by one, by worker processes.

As with batches from memory, a pass is decided by (seed, epoch) alone: every image has random numbers of its own, so the
number of workers changes nothing but the speed.
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
from hace.files.optional import optional


class LoaderBatches:
    """Batches of images on disk (or in memory, at another size than their own).

    Args:
        samples: A split.
        batch_size: Images of a batch.
        transform: From a PIL image to a tensor; see `image_transform`.
        shuffle, labels, seed, drop_last, part: As of `MemoryBatches`.
        workers: Processes that prepare batches; 0 does it in this one.
        device: Where batches go.
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
            raise ConfigError(f"workers must be 0 or more, got {workers}.")
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
            generator=torch.Generator().manual_seed(seed),  # its default is the one of the whole process
        )

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of one pass, from one in the middle on: images float32 (B, 3, H, W) and targets int64 (B,).

        Raises:
            DataError: If an image cannot be read, with its path.
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
        size: The side of what comes out.
        augment: True: a random part, of 8 to 100 % of the area, mirrored every other time; False: the shorter side to
            8/7 of `size`, and the middle of that.
        mean, std: Of the channels, on the scale from 0 to 1, to normalise with.
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
    """Batches in the way that suits the images: from memory where they are there at their size, by workers otherwise.

    Args:
        samples: A split.
        batch_size: Images of a batch.
        train: Whether to shuffle and augment: from memory by a crop of the image with 1/8 of its side around it and a flip,
            otherwise as `image_transform` does.
        size: The side of the images that come out.
        mean, std, labels, seed, workers, device, drop_last: As of `MemoryBatches` and `LoaderBatches`.
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
    """Batches of (epoch, position): workers live through several epochs, so each position says to which it belongs."""

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
            return error  # raised by the process that asked, without the traceback of the worker
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
