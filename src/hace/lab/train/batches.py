"""The batches of a training: images as the model sees them, in training and in tests."""

from __future__ import annotations

import numpy as np

from hace.data import DATASETS, Samples
from hace.data.batches import LoaderBatches, MemoryBatches, Preprocessing, make_batches
from hace.data.dataset import places_of_each
from hace.errors import ConfigError
from hace.lab.runs.devices import choose_workers
from hace.lab.runs.samples import Task
from hace.lab.runs.train_config import TrainConfig
from hace.lab.train.distributed import Team

Batches = MemoryBatches | LoaderBatches


def preprocessing(config: TrainConfig, task: Task[Samples]) -> Preprocessing:
    """How a training sees its images: at their own size where they are in memory, else at the data set's or model's."""
    own = None if task.train.pixels is None else task.train.pixels.shape[-1]
    return Preprocessing.of(task.train, config.image_size or own or DATASETS[config.data.name].size)


def training_batches(
    config: TrainConfig, samples: Samples, view: Preprocessing, labels: str, team: Team
) -> Batches:
    """Shuffled, and augmented if the configuration says so; of every batch this process's share."""
    return make_batches(
        samples,
        config.batch_size,
        view,
        shuffle=True,
        augment=config.augment == "standard",
        labels=labels,
        seed=config.seed,
        workers=choose_workers(config.workers, team.device),
        device=team.device,
        part=(team.rank, team.world),
    )


def ordered_batches(
    config: TrainConfig, samples: Samples, view: Preprocessing, labels: str, team: Team
) -> Batches:
    """Every sample once, in order; of every batch this process's share."""
    workers, part = choose_workers(config.workers, team.device), (team.rank, team.world)
    return make_batches(
        samples, config.batch_size, view, labels=labels, workers=workers, device=team.device, part=part
    )


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
