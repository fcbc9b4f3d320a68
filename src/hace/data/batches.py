"""Batches of small images from memory: cropped, flipped and normalised a whole batch at a time.

The images stay uint8 on their device; nothing is decoded, copied between processes or handled one by one. (seed, epoch)
alone decide a pass: a run that resumes at epoch 7 sees what it would have seen without the break.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn.functional import pad as padded

from hace.data.samples import Samples, Split
from hace.errors import ConfigError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TARGET_KINDS = ("leaves", "nodes")


class MemoryBatches:
    """Batches of images in memory.

    Args:
        samples: A split with pixels.
        batch_size: Images per batch; the last batch of an epoch may have fewer.
        shuffle: Whether every epoch has its own order.
        pad: Pixels of zeros around the image before a random crop to its own size; 0 for no crop.
        flip: Whether to mirror each image with probability 1/2.
        mean: Mean of each channel, on the scale from 0 to 1, to normalise with.
        std: Standard deviation of each channel, on the same scale.
        labels: "leaves": targets are leaf labels; "nodes": node indices, for labels at any level.
        seed: Seed of order, crops and flips.
        device: Where to keep the pixels and make batches; by default where the pixels are.
        drop_last: Whether to drop a last batch that is not full. Never for a test.
        part: (rank, world): this process's share of every batch, see `share_of`.

    Example:
        >>> from hace.data import synthetic_images
        >>> train = synthetic_images(classes=10)["train"]
        >>> batches = MemoryBatches(train, 128, shuffle=True, pad=4, flip=True)
        >>> x, y = next(batches.epoch(0))
        >>> x.shape, x.dtype, y.shape, len(batches)
        (torch.Size([128, 3, 32, 32]), torch.float32, torch.Size([128]), 4)
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
        drop_last: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        if samples.pixels is None:
            raise ConfigError(
                "samples must have pixels in memory. Got paths. Use LoaderBatches for images on disk."
            )
        if pad < 0:
            raise ConfigError(f"pad must be 0 or more. Got {pad}.")
        pixels = samples.pixels.to(device)
        self.order = EpochOrder(len(samples), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.targets = targets_of(samples, labels).to(pixels.device)
        self.pad, self.flip, self.part = pad, flip, part
        self._windows = _windows(padded(pixels, (pad,) * 4) if pad else pixels, pixels.shape[-2:])
        # (p / 255 - mean) / std, as one multiplication and one addition
        scale, shift = normalisation(mean, std)
        self._scale, self._shift = scale.to(pixels.device), shift.to(pixels.device)

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of one pass: images float32 (B, 3, H, W) and targets int64 (B,).

        Args:
            number: The epoch.
            start: The batch to begin with, to resume in the middle of a pass.
        """
        for i, (batch, rng) in enumerate(self.order.epoch(number)):
            places = rng.integers(0, 2 * self.pad + 1, (2, len(batch)))
            mirrored = rng.random(len(batch)) < (0.5 if self.flip else 0.0)
            if i < start:
                continue
            mine = share_of(len(batch), *self.part)
            batch = batch[mine]
            images = self._cut(batch, places[:, mine], mirrored[mine])
            yield self._normalised(images), self.targets[torch.from_numpy(batch).to(self.targets.device)]

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

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mul_(self._scale).add_(self._shift)


class EpochOrder:
    """Which samples are in which batch, decided by seed and epoch alone.

    Args:
        count: The number of samples.
        batch_size: Samples per batch.
        shuffle: Whether every epoch has its own order.
        seed: Seed of the orders.
        drop_last: Whether to drop a last batch that is not full.

    Example:
        >>> order = EpochOrder(5, 2)
        >>> [batch.tolist() for batch, _ in order.epoch(0)]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self, count: int, batch_size: int, *, shuffle: bool = False, seed: int = 0, drop_last: bool = False
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1. Got {batch_size}.")
        if seed < 0:
            raise ConfigError(f"seed must be 0 or more. Got {seed}.")
        if drop_last and count < batch_size:
            raise ConfigError(
                f"drop_last needs at least one full batch. Got {count} samples and batch_size {batch_size}."
            )
        self.count, self.batch_size, self.shuffle, self.seed = count, batch_size, shuffle, seed
        self.drop_last = drop_last

    def __len__(self) -> int:
        return self.count // self.batch_size if self.drop_last else -(-self.count // self.batch_size)

    def epoch(self, number: int) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
        """For each batch the positions of its samples, and the generator for their crops and flips."""
        rng = np.random.default_rng([self.seed, number])
        order = rng.permutation(self.count) if self.shuffle else np.arange(self.count)
        for i in range(len(self)):
            yield order[i * self.batch_size : (i + 1) * self.batch_size], rng


def share_of(size: int, rank: int, world: int) -> slice:
    """One process's samples of a batch: near-equal shares, the first processes taking the remainder.

    A process left without any gets the batch's first sample, since it must take part in the step; that sample does not count.

    Args:
        size: Samples in the batch.
        rank: This process.
        world: The number of processes.

    Example:
        >>> [share_of(7, rank, 3) for rank in range(3)]
        [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
        >>> share_of(1, 1, 2)
        slice(0, 1, None)
    """
    each, more = divmod(size, world)
    start = rank * each + min(rank, more)
    stop = start + each + (rank < more)
    return slice(start, stop) if stop > start else slice(0, 1)


def targets_of(split: Split, labels: str) -> torch.Tensor:
    """int64 (M,): leaf labels, or node indices.

    Args:
        split: The samples.
        labels: "leaves" or "nodes".

    Raises:
        DataError: Leaf labels are asked for and some samples have none.
    """
    if labels not in TARGET_KINDS:
        raise ConfigError(f"labels must be one of {', '.join(TARGET_KINDS)}. Got {labels!r}.")
    return torch.from_numpy(np.array(split.labels if labels == "leaves" else split.nodes))


def normalisation(mean: Sequence[float], std: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and shift (3, 1, 1) that take pixels from 0 to 255 to (p / 255 - mean) / std."""
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigError(f"mean and std must be three numbers each, std above 0. Got {mean} and {std}.")
    m, s = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (mean, std))
    return (1 / (255 * s)).float(), (-m / s).float()


def channel_stats(pixels: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images (M, 3, H, W), on the scale from 0 to 1.

    Example:
        >>> channel_stats(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4))
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
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
