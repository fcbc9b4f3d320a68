"""The samples of a run: loaded, split for training and selection, with the tree it trains on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from hace.data import Dataset, load_dataset
from hace.data.dataset import Features, Split, part_of_each
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.lab.features.store import FeatureStore
from hace.lab.runs.config import DataConfig, RunConfig
from hace.lab.runs.labels import known_labels
from hace.lab.runs.run import DataPrint

_S = TypeVar("_S", bound=Split)


@dataclass(frozen=True, eq=False)
class Source(Generic[_S]):
    """A data set, loaded.

    Attributes:
        dataset: The splits, as the data set has them.
        about: Of features that `hace features` wrote: the model and the preprocessing behind them.
    """

    dataset: Dataset[_S]
    about: Mapping[str, Any] | None = None

    def data_print(self) -> DataPrint:
        """What a run remembers of it."""
        data = self.dataset
        return DataPrint(data.name, data.fingerprint, data.hierarchy.fingerprint, self.about, data.model)


@dataclass(frozen=True, eq=False)
class Task(Generic[_S]):
    """What one run sees.

    Attributes:
        hierarchy: The tree of the results.
        tree: The tree of the loss: the same, the shuffled control, or one made from the training samples.
        train: Training samples.
        evaluated: The samples of the result.
        val: Held-out samples, if any.
        labels: What targets are: "leaves", or "nodes" where some training samples are labelled above the leaves.
    """

    hierarchy: Hierarchy
    tree: Hierarchy
    train: _S
    evaluated: _S
    val: _S | None
    labels: Literal["leaves", "nodes"]

    def targets(self, split: Split) -> np.ndarray:
        """int64 targets of a split, for a loss on `tree` with `labels`."""
        return split.nodes if self.labels == "nodes" else split.labels

    @property
    def unseen(self) -> list[str]:
        """The leaves without a training sample."""
        seen = np.zeros(self.hierarchy.num_nodes, dtype=bool)
        seen[self.train.nodes] = True
        return [
            leaf
            for leaf, node in zip(self.hierarchy.leaves, self.hierarchy.leaf_nodes, strict=True)
            if not seen[node]
        ]


def load_source(config: DataConfig) -> Source[Any]:
    """The data of a configuration; features are read raw and normalised later."""
    options: dict[str, Any] = dict(config.options)
    if config.name == "features" and config.root is not None and not Path(config.root).exists():
        raise DataError(
            f"{config.root} does not exist: give a file of features, or a folder that `hace features` wrote."
        )
    if config.name == "features" and config.root is not None and Path(config.root).is_dir():
        if config.hierarchy is not None or config.root_node is not None or options:
            raise ConfigError(
                f"{config.root} is a folder of features, which has its own hierarchy: omit hierarchy, root_node and "
                "options."
            )
        store = FeatureStore(config.root)
        return Source(store.dataset("none"), store.about)
    if config.name == "features":
        options.setdefault("allow_empty", True)  # the run reports unseen classes
    hierarchy = config.hierarchy
    return Source(
        load_dataset(config.name, config.root, hierarchy=hierarchy, root_node=config.root_node, **options)
    )


def make_task(source: Source[_S], config: RunConfig) -> Task[_S]:
    """Split, take away what `config.data.labels` does not know, and choose the tree of the loss.

    Training samples are those of "train" and, where the data set has one, of its "val" split, unless
    `config.validation` is "split": then these are held out. A share holds out part of the training samples, stratified by
    label and chosen by the seed. Held-out samples have their true labels, whatever is known of the others, and only those
    known to a leaf are held out.

    Raises:
        DataError: There is no such split, nothing is left to train on, or labels above the leaves meet another
            tree.
    """
    data, what = source.dataset, config.data.labels
    train, val = data["train"], None
    size, own = len(train), data["val"] if "val" in data.splits else None
    if config.validation == "split" and own is None:
        raise DataError(
            f"validation='split' needs data with a val split. Got {', '.join(data.splits)}. Give a share to hold out, such "
            "as 0.1."
        )
    true = train.nodes if own is None else np.concatenate([train.nodes, own.nodes])
    known = known_labels(true, data.hierarchy, what, config.seed, first=size)
    if config.validation == "split":
        assert own is not None  # refused above
        known, val = known[:size], own.select(own.leaf_only())
        if not len(val):
            raise DataError(
                "validation='split' needs samples of the val split that are known to a leaf. Got none. Give a share to hold "
                "out, such as 0.1."
            )
    elif own is not None:
        train = train.joined([train, own])
    if isinstance(config.validation, float) and config.validation:
        pool = train
        kept, held = held_out(2 * true + (known == true), config.validation, config.seed)
        # A coarse label cannot tell whether the best class is right: such samples train instead.
        fine = data.hierarchy.labels[true[held]] >= 0
        kept, held = np.sort(np.concatenate([kept, held[~fine]])), held[fine]
        if not len(held):
            raise DataError(
                f"validation={config.validation} of {len(pool)} training samples holds out none that is known to a leaf: every "
                "class has too few. Give a larger share."
            )
        train, val, known = pool.select(kept), pool.select(held), known[kept]
    train = replace(train, nodes=known)
    evaluated = data["test"] if config.evaluate == "test" else val
    assert evaluated is not None  # the configuration checks that
    coarse = bool((data.hierarchy.labels[known] < 0).any())
    if what.drop:
        train = train.select(train.leaf_only())
        if not len(train):
            raise DataError(
                "labels.drop=true leaves no sample to train on: none is known to a leaf. Use the coarse labels."
            )
    tree = _tree(config.data, data.hierarchy, train, coarse)
    return Task(data.hierarchy, tree, train, evaluated, val, "nodes" if coarse else "leaves")


def _tree(config: DataConfig, given: Hierarchy, train: Split, coarse: bool) -> Hierarchy:
    """The tree of the loss."""
    if config.shuffle is None and config.induce is None:
        return given
    if coarse:
        name = "shuffle" if config.induce is None else "induce"
        raise DataError(
            f"data.{name} makes another tree over the leaves, and some training samples are labelled above them."
        )
    if config.shuffle is not None:
        return given.shuffled(config.shuffle)
    if not isinstance(train, Features):
        raise DataError("data.induce makes a tree from features, and these samples are images.")
    tree = Hierarchy.from_features(train.x, train.labels, given.leaves, levels=config.induce or 1)
    return tree.with_root() if given.rooted else tree.without_root()


def held_out(nodes: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions to keep and to hold out: of every label its share, rounded, but never its last sample.

    Args:
        nodes: (M,) labels.
        share: Of each label's samples.
        seed: Chooses which.

    Example:
        >>> kept, held = held_out(np.array([0] * 10 + [1] * 5 + [2]), 0.2, seed=0)
        >>> len(kept), np.bincount(np.array([0] * 10 + [1] * 5 + [2])[held]).tolist()
        (13, [2, 1])
    """
    return part_of_each(nodes, share, [seed, 0x5EED])
