"""The batches of a training: images as the model sees them, in training and in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.data import DATASETS, Samples
from hace.data.batches import IMAGENET_MEAN, IMAGENET_STD, MemoryBatches, channel_stats
from hace.data.loader import LoaderBatches, image_transform
from hace.data.parts import places_of_each
from hace.errors import ConfigError
from hace.files.reading import optional
from hace.lab.runs.devices import choose_workers
from hace.lab.runs.samples import Task
from hace.lab.runs.train_config import TrainConfig
from hace.lab.train.distributed import Team

Batches = MemoryBatches | LoaderBatches


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
    mean: tuple[float, ...]
    std: tuple[float, ...]
    in_memory: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "size": self.size,
            "resize": self.resize,
            "mean": list(self.mean),
            "std": list(self.std),
            "in_memory": self.in_memory,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Preprocessing:
        """What :meth:`to_dict` gave."""
        return cls(**{**document, "mean": tuple(document["mean"]), "std": tuple(document["std"])})

    def transform(self) -> Any:
        """From a PIL image of any size to the tensor that the model sees in tests."""
        t = optional("torchvision.transforms", "Transforming images")
        steps = [
            t.Resize(self.resize),
            t.CenterCrop(self.size),
            t.ToTensor(),
            t.Normalize(self.mean, self.std),
        ]
        return t.Compose(steps)


def preprocessing(config: TrainConfig, task: Task[Samples]) -> Preprocessing:
    """Images in memory at their own size are normalised by their own statistics, others by ImageNet's."""
    pixels = task.train.pixels
    own = None if pixels is None else pixels.shape[-1]
    size = config.image_size or own or DATASETS[config.data.name].size or 224
    if pixels is not None and tuple(pixels.shape[-2:]) == (size, size):
        mean, std = channel_stats(pixels)
        return Preprocessing(size, size, mean, std, True)
    return Preprocessing(size, round(size * 8 / 7), IMAGENET_MEAN, IMAGENET_STD, False)


def training_batches(
    config: TrainConfig, samples: Samples, view: Preprocessing, labels: str, team: Team
) -> Batches:
    """Shuffled, and augmented if the configuration says so; of every batch this process's share."""
    augment = config.augment == "standard"
    order: dict[str, Any] = {
        "shuffle": True,
        "labels": labels,
        "seed": config.seed,
        "part": (team.rank, team.world),
        "device": team.device,
    }
    if view.in_memory:
        pad = view.size // 8 if augment else 0
        normalised: dict[str, Any] = {"mean": view.mean, "std": view.std}
        return MemoryBatches(samples, config.batch_size, pad=pad, flip=augment, **normalised, **order)
    transform = image_transform(view.size, augment=True) if augment else view.transform()
    workers = choose_workers(config.workers, team.device)
    return LoaderBatches(samples, config.batch_size, transform, workers=workers, **order)


def ordered_batches(
    config: TrainConfig, samples: Samples, view: Preprocessing, labels: str, team: Team
) -> Batches:
    """Every sample once, in order; of every batch this process's share."""
    order: dict[str, Any] = {"labels": labels, "part": (team.rank, team.world), "device": team.device}
    if view.in_memory:
        return MemoryBatches(samples, config.batch_size, mean=view.mean, std=view.std, **order)
    workers = choose_workers(config.workers, team.device)
    return LoaderBatches(samples, config.batch_size, view.transform(), workers=workers, **order)


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """The sizes of an epoch's batches, over all processes.

    Example:
        >>> batch_sizes(10, 4)
        [4, 4, 2]
    """
    return [min(batch_size, count - start) for start in range(0, count, batch_size)]


def few_of_each(task_nodes: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """The positions of so many samples of each label, chosen by the seed, in order.

    Raises:
        ConfigError: Some label has fewer.

    Example:
        >>> few_of_each(np.array([4, 4, 4, 7, 7]), 2, seed=0).tolist()
        [1, 2, 3, 4]
    """
    fewest = np.unique(task_nodes, return_counts=True)[1].min()
    if fewest < per_class:
        raise ConfigError(f"per_class is {per_class}, and a class has only {fewest} training samples.")
    return np.flatnonzero(places_of_each(task_nodes, [seed, 0xFE3]) < per_class)
