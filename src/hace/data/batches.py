"""Batches of images: small ones from memory, a whole batch at a time; others from disk, one by one, by worker processes.

In memory the images stay uint8 on their device; nothing is decoded, copied between processes or handled one by one. Either
way (seed, epoch) alone decide a pass: a run that resumes at epoch 7 sees what it would have seen without the break, and the
number of workers changes only the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad as padded
from torch.utils import data as torch_data

from hace.checks import check_choice, require
from hace.data.split import Samples, Split
from hace.errors import ConfigError, DataError, HaceError
from hace.files.reading import as_rgb, optional

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
TARGET_KINDS = ("leaves", "nodes")


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a model's input; a run keeps it in run.json, for predictions.

    Attributes:
        size: The side of what the model sees.
        resize: The shorter side of the image before its middle is cut out.
        mean, std: Of the channels, on the scale from 0 to 1.
        in_memory: Whether training had its images in memory, at their size.
    """

    size: int
    resize: int
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    in_memory: bool = False

    @classmethod
    def of(cls, samples: Samples, size: int | None = None) -> Preprocessing:
        """Images in memory at their own size are normalised by their own statistics, others by ImageNet's.

        ``size``: the side of what the model sees; by default the images' own, or 224.
        """
        pixels = samples.pixels
        size = size or (224 if pixels is None else pixels.shape[-1])
        if pixels is not None and tuple(pixels.shape[-2:]) == (size, size):
            return cls(size, size, *channel_stats(pixels), True)
        return cls(size, round(size * 8 / 7))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Preprocessing:
        """What :meth:`to_dict` gave."""
        return cls(**{**document, "mean": tuple(document["mean"]), "std": tuple(document["std"])})

    def transform(self, augment: bool = False) -> Callable[[Any], torch.Tensor]:
        """From a PIL image of any size to the tensor that the model sees: its centre, or, with ``augment``, a random crop
        of 8 to 100% of the area, mirrored with probability 1/2.
        """
        t = optional("torchvision.transforms", "Transforming images")
        cropped = [t.RandomResizedCrop(self.size), t.RandomHorizontalFlip()]
        steps = cropped if augment else [t.Resize(self.resize), t.CenterCrop(self.size)]
        return t.Compose([as_rgb, *steps, t.ToTensor(), t.Normalize(self.mean, self.std)])


def make_batches(
    samples: Samples,
    batch_size: int,
    view: Preprocessing,
    *,
    shuffle: bool = False,
    augment: bool = False,
    labels: str = "leaves",
    seed: int = 0,
    workers: int = 0,
    device: torch.device | str | None = None,
    part: tuple[int, int] = (0, 1),
) -> MemoryBatches | LoaderBatches:
    """Batches from memory if the images are there at the right size, else by workers.

    `augment` varies images: from memory by a flip and a crop of the image padded by 1/8 of its side, otherwise as
    `Preprocessing.transform` does. `part` is (rank, world): this process's share of every batch, see `share_of`.
    """
    order: Any = {"shuffle": shuffle, "labels": labels, "seed": seed, "device": device, "part": part}
    if view.in_memory:
        order |= {"pad": view.size // 8 if augment else 0, "flip": augment}
        return MemoryBatches(samples, batch_size, mean=view.mean, std=view.std, **order)
    return LoaderBatches(samples, batch_size, view.transform(augment), workers=workers, **order)


class MemoryBatches:
    """Batches of images in memory, moved to `device`; arguments are as in `make_batches`, and:

    Args:
        pad: Pixels of zeros around the image before a random crop to its own size; 0 for no crop.
        flip: Whether to mirror each image with probability 1/2.
        mean, std: Of each channel, on the scale from 0 to 1, to normalise with.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        shuffle: bool = False,
        pad: int = 0,
        flip: bool = False,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        labels: str = "leaves",
        seed: int = 0,
        device: torch.device | str | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        if samples.pixels is None:
            raise ConfigError("samples must have pixels in memory. Got paths: use LoaderBatches.")
        require("pad", pad, "0 or more", pad >= 0)
        pixels = samples.pixels.to(device)
        self.order = EpochOrder(len(samples), batch_size, shuffle=shuffle, seed=seed)
        self.targets = targets_of(samples, labels).to(pixels.device)
        self.pad = pad
        self.flip = flip
        self.part = part
        self._windows = _windows(padded(pixels, (pad,) * 4) if pad else pixels, pixels.shape[-2:])
        # (p / 255 - mean) / std, as one multiplication and one addition
        scale, shift = normalisation(mean, std)
        self._scale = scale.to(pixels.device)
        self._shift = shift.to(pixels.device)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of one pass: images float32 (B, 3, H, W) and targets (B,) or soft (B, labels)."""
        for i, (batch, rng) in enumerate(self.order.epoch(number)):
            places = rng.integers(0, 2 * self.pad + 1, (2, len(batch)))
            mirrored = rng.random(len(batch)) < (0.5 if self.flip else 0.0)
            if i < start:
                continue
            mine = share_of(len(batch), *self.part)
            batch = batch[mine]
            cut = self._cut(batch, places[:, mine], mirrored[mine])
            images = cut.float().mul_(self._scale).add_(self._shift)
            yield images, self.targets[torch.from_numpy(batch).to(self.targets.device)]

    def _cut(self, batch: np.ndarray, places: np.ndarray, mirrored: np.ndarray) -> torch.Tensor:
        """uint8 (B, 3, H, W): each image cropped at its offset, some mirrored."""
        windows = self._windows
        if isinstance(windows, np.ndarray):
            cut = windows[batch, :, places[0], places[1]]
            if self.flip:
                cut[mirrored] = cut[mirrored][..., ::-1]
            return torch.from_numpy(cut)
        at = torch.from_numpy(np.stack([batch, *places])).to(windows.device)
        images = windows[at[0], :, at[1], at[2]]
        if self.flip:
            flags = torch.from_numpy(mirrored).to(windows.device)
            images = torch.where(flags[:, None, None, None], images.flip(3), images)
        return images


class LoaderBatches:
    """Batches of images on disk, or in memory at another size, through `transform`; the rest is as in `make_batches`.

    Every image has its own generator, so that the number of workers does not matter.
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
        part: tuple[int, int] = (0, 1),
    ) -> None:
        require("workers", workers, "0 or more", workers >= 0)
        order = EpochOrder(len(samples), batch_size, shuffle=shuffle, seed=seed)
        self._batches = _Batches(order, part)
        self._device = torch.device("cpu" if device is None else device)
        self._loader = torch_data.DataLoader(
            Attempts(partial(_varied, samples, targets_of(samples, labels), transform, seed)),
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
        """The batches of one pass: images float32 (B, 3, H, W) and targets (B,) or soft (B, labels)."""
        self._batches.number = number
        self._batches.start = start
        for batch in self._loader:
            if isinstance(batch, DataError):
                raise batch
            images, targets = (part.to(self._device, non_blocking=True) for part in batch)
            yield images, targets


class EpochOrder:
    """Which of `count` samples are in which batch, decided by seed and epoch alone."""

    def __init__(self, count: int, batch_size: int, *, shuffle: bool = False, seed: int = 0) -> None:
        require("batch_size", batch_size, "at least 1", batch_size >= 1)
        require("seed", seed, "0 or more", seed >= 0)
        self.count = count
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def epoch(self, number: int) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
        """For each batch the positions of its samples, and the generator for their crops and flips."""
        rng = np.random.default_rng([self.seed, number])
        order = rng.permutation(self.count) if self.shuffle else np.arange(self.count)
        for i in range(len(self)):
            yield order[i * self.batch_size : (i + 1) * self.batch_size], rng


def share_of(size: int, rank: int, world: int) -> slice:
    """One process's samples of a batch: near-equal shares, the first processes taking the remainder.

    A process left without any gets the batch's first sample, since it must take part in the step; that sample does not count.
    """
    each, more = divmod(size, world)
    start = rank * each + min(rank, more)
    stop = start + each + (rank < more)
    return slice(start, stop) if stop > start else slice(0, 1)


def targets_of(split: Split, labels: str) -> torch.Tensor:
    """The targets of a split as a tensor; see :meth:`hace.data.split.Split.targets`."""
    check_choice("labels", labels, TARGET_KINDS)
    return torch.from_numpy(np.array(split.targets(labels)))


def normalisation(mean: Sequence[float], std: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and shift (3, 1, 1) that take pixels from 0 to 255 to (p / 255 - mean) / std."""
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigError(f"mean and std must be three numbers each, std above 0. Got {mean} and {std}.")
    m = torch.tensor(mean, dtype=torch.float64).view(3, 1, 1)
    s = torch.tensor(std, dtype=torch.float64).view(3, 1, 1)
    return (1 / (255 * s)).float(), (-m / s).float()


def channel_stats(pixels: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images (M, 3, H, W), on the scale from 0 to 1."""
    values = torch.arange(256, dtype=torch.float64) / 255
    mean: list[float] = []
    std: list[float] = []
    for channel in range(pixels.shape[1]):
        counts = torch.bincount(pixels[:, channel].flatten(), minlength=256).double().cpu()
        share = counts / counts.sum()
        mean.append(float((share * values).sum()))
        std.append(float((share * (values - mean[-1]) ** 2).sum().sqrt()))
    return tuple(mean), tuple(std)


def _windows(pixels: torch.Tensor, size: tuple[int, int] | torch.Size) -> np.ndarray | torch.Tensor:
    """A view (M, 3, places down, places across, H, W) of all crops; indexing it copies the chosen ones.

    On the CPU it is numpy's, whose indexing copies whole rows of pixels where torch's goes pixel by pixel.
    """
    height, width = size
    if pixels.device.type == "cpu":
        return np.lib.stride_tricks.sliding_window_view(pixels.numpy(), (height, width), (2, 3))  # pyright: ignore[reportCallIssue, reportArgumentType]
    return pixels.unfold(2, height, 1).unfold(3, width, 1)


class _Batches(torch_data.Sampler[list[tuple[int, int]]]):
    """Batches of (epoch, position): workers outlive an epoch, so each position carries its own."""

    def __init__(self, order: EpochOrder, part: tuple[int, int]) -> None:
        self.order = order
        self.part = part
        self.number = self.start = 0

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        number = self.number
        batches = (batch[share_of(len(batch), *self.part)] for batch, _ in self.order.epoch(number))
        return ([(number, i) for i in batch.tolist()] for batch in islice(batches, self.start, None))


class Attempts(torch_data.Dataset[Any]):
    """What a function makes of each key. An error is a value here, so that it crosses from a worker without its traceback."""

    def __init__(self, make: Callable[[Any], Any], caught: type[HaceError] = DataError) -> None:
        self.make = make
        self.caught = caught

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.make(key)
        except self.caught as error:
            return error


def _varied(
    samples: Samples, targets: torch.Tensor, transform: Callable[[Any], Any], seed: int, key: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The transformed image of (epoch, position), and its target."""
    image = samples.image(key[1])
    drawn = np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(drawn))
        return transform(image), targets[key[1]]


def _collate(items: list[Any]) -> Any:
    broken = next((item for item in items if isinstance(item, DataError)), None)
    if broken is not None:
        return broken
    images, targets = zip(*items, strict=True)
    return torch.stack(images), torch.stack(targets)
