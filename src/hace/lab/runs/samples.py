"""The samples of a run: loaded, split for training and selection, with the tree it trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from hace.data import Dataset, load_dataset
from hace.data.dataset import without_broken
from hace.data.split import Features, Split
from hace.data.splitting import part_of_each, part_of_groups, places_of_each
from hace.errors import ConfigError, DataError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import leaf_counts
from hace.lab.features.store import FeatureStore
from hace.lab.runs.config import DataConfig, LabelsConfig, RunConfig, TrainConfig

_COARSE, _WRONG, _OTHER = 0xC0A, 0xBAD, 0x07E  # what a seed is used for
_SHARE = "Give a share to hold out, such as 0.1."
_S = TypeVar("_S", bound=Split)


@dataclass(frozen=True, eq=False)
class Task(Generic[_S]):
    """What one run sees."""

    hierarchy: Hierarchy  # of the results
    tree: Hierarchy  # of the loss: the same, the shuffled control, or one made from the training samples
    train: _S
    evaluated: _S  # the samples of the result
    val: _S | None  # held out
    left_out: int  # samples that would be held out, but are labelled above the leaves
    labels: Literal["leaves", "nodes"]  # of targets: "nodes" where some training labels are above the leaves
    val_known: np.ndarray | None = None  # nodes that held-out samples would be labelled with in training

    def targets(self, split: Split) -> np.ndarray:
        """int64 targets of a split, for a loss on `tree` with `labels`."""
        return split.nodes if self.labels == "nodes" else split.labels

    @property
    def unseen(self) -> list[str]:
        """The leaves without a training sample."""
        missing = ~np.isin(self.hierarchy.leaf_nodes, self.train.nodes)
        return [self.hierarchy.leaves[i] for i in np.flatnonzero(missing)]


def data_of(config: DataConfig) -> Dataset[Any]:
    """The data of a configuration; features are read raw and normalised later."""
    options: dict[str, Any] = {"hierarchy": config.hierarchy, "root_node": config.root_node, **config.options}
    if config.name == "features" and config.root is not None:
        if not Path(config.root).exists():
            raise DataError(
                f"{config.root} does not exist: give a file of features, or a folder that `hace features` wrote."
            )
        if Path(config.root).is_dir():
            if config.options or any(value is not None for value in options.values()):
                raise ConfigError(
                    f"{config.root} is a folder of features, which has its own hierarchy: omit hierarchy, root_node and "
                    "options."
                )
            return FeatureStore(config.root).dataset("none")
        options.setdefault("allow_empty", True)  # the run reports unseen classes
    found = load_dataset(config.name, config.root, **options)
    return without_broken(found) if config.skip_broken else found


def make_task(data: Dataset[_S], config: RunConfig) -> Task[_S]:
    """Split, take away what `config.data.labels` does not know, and choose the tree of the loss.

    Training samples are those of "train" and, where the dataset has one, of its "val" split, unless
    `config.validation` is "split": then these are held out. A share holds out part of the training samples, stratified by
    label and chosen by the seed. Held-out samples have their true labels, whatever is known of the others (`val_known` is
    what is known of them), and only those known to a leaf are held out.
    """
    what, train, val, val_known, left_out = config.data.labels, data["train"], None, None, 0
    size, own = len(train), data["val"] if "val" in data.splits else None
    if config.validation == "split" and own is None:
        raise DataError(
            f"validation='split' needs data with a val split. Got {', '.join(data.splits)}. {_SHARE}"
        )
    true = train.nodes if own is None else np.concatenate([train.nodes, own.nodes])
    known = known_labels(true, data.hierarchy, what, config.seed, first=size)
    if config.validation == "split":
        assert own is not None  # refused above
        val_known, val = known[size:][own.leaf_only()], own.select(own.leaf_only())
        known, left_out = known[:size], len(own) - len(val)
        if not len(val):
            raise DataError(
                f"validation='split' needs samples of the val split that are known to a leaf. Got none. {_SHARE}"
            )
    elif own is not None:
        train = train.joined([train, own])
    if isinstance(config.validation, float) and config.validation:
        pool = train
        kept, held = held_out(2 * true + (known == true), config.validation, config.seed, train.groups)
        # A coarse label cannot tell whether the best class is right: such samples train instead, unless that cuts a group.
        fine = data.hierarchy.labels[true[held]] >= 0
        left_out = int((~fine).sum())
        more = held[~fine] if train.groups is None else held[:0]
        kept, held = np.sort(np.concatenate([kept, more])), held[fine]
        if not len(held):
            raise DataError(
                f"validation={config.validation} of {len(pool)} training samples holds out none that is known to a leaf: every "
                "class has too few. Give a larger share."
            )
        train, val, val_known, known = pool.select(kept), pool.select(held), known[held], known[kept]
    train = replace(train, nodes=known)
    if isinstance(config, TrainConfig) and config.per_class is not None:
        train = train.select(_few_of_each(known, config.per_class, config.seed))
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
    labels = "nodes" if coarse else "leaves"
    return Task(data.hierarchy, tree, train, evaluated, val, left_out, labels, val_known)


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


def _few_of_each(nodes: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """The positions of so many samples of each label, chosen by the seed, in order."""
    fewest = np.unique(nodes, return_counts=True)[1].min()
    if fewest < per_class:
        raise ConfigError(f"per_class is {per_class}, and a class has only {fewest} training samples.")
    return np.flatnonzero(places_of_each(nodes, [seed, 0xFE3]) < per_class)


def held_out(
    nodes: np.ndarray, share: float, seed: int, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Positions to keep and to hold out: of every label its share, rounded, but never its last sample; groups stay whole."""
    if groups is not None:
        return part_of_groups(nodes, groups, share, [seed, 0x5EED])
    return part_of_each(nodes, share, [seed, 0x5EED])


def known_labels(
    nodes: np.ndarray, hierarchy: Hierarchy, config: LabelsConfig, seed: int, first: int | None = None
) -> np.ndarray:
    """The labels that a training sees; samples before `first` are the first to keep theirs."""
    known = nodes.copy()
    leaves = np.flatnonzero(hierarchy.labels[nodes] >= 0)
    if config.wrong:
        chosen = leaves[part_of_each(nodes[leaves], config.wrong, [seed, _WRONG])[1]]
        alike = config.within == "parent"
        group = coarse_nodes(hierarchy, "parent") if alike else np.zeros(hierarchy.num_nodes, dtype=np.int64)
        known[chosen] = _others(nodes[chosen], hierarchy, group, seed)
    coarse = leaves[:0]
    if config.fine is not None:
        later = np.zeros(len(leaves), dtype=bool) if first is None else leaves >= first
        place = places_of_each(nodes[leaves], [seed, _COARSE], later)
        coarse = leaves[place >= config.fine]
    elif config.coarse:
        coarse = leaves[part_of_each(nodes[leaves], config.coarse, [seed, _COARSE])[1]]
    known[coarse] = coarse_nodes(hierarchy, config.to)[known[coarse]]
    return known


def has_siblings(hierarchy: Hierarchy) -> np.ndarray:
    """(N,) whether a class shares its parent with another one; where it does not, its parent's label names it too."""
    return leaf_counts(hierarchy)[coarse_nodes(hierarchy, "parent")] > 1


def coarse_nodes(hierarchy: Hierarchy, to: int | str) -> np.ndarray:
    """(N,) for each node its ancestor as of :attr:`LabelsConfig.to`; the node itself where it has none below the root.

    On a DAG, the first parent in node order counts.
    """
    up = np.arange(hierarchy.num_nodes)
    # Edges are sorted by child, then parent: backwards, the first parent comes last. The root says nothing.
    for parent, child in hierarchy.edges[::-1].tolist():
        if hierarchy.depths[parent] > 0:
            up[child] = parent
    if to == "parent":
        return up
    names, last = list(hierarchy.level_names or ()), hierarchy.max_depth - 1
    levels = {"top": 1, **{name: i for i, name in enumerate(names, 1)}}
    levels = {str(i): i for i in range(1, last + 1)} | levels
    if str(to) not in levels:
        known = ["parent", "top", *names[:-1]]
        raise ConfigError(
            f"What coarse labels are known to (labels.to, --coarse-to) must be one of {', '.join(known)}"
            f"{f', or a level from 1 to {last}' if last else ''}. Got {to!r}.{nearest(str(to), known)}"
        )
    found = np.arange(hierarchy.num_nodes)
    for _ in range(hierarchy.max_depth):
        found = np.where(hierarchy.depths[found] > levels[str(to)], up[found], found)
    return found


def _others(nodes: np.ndarray, hierarchy: Hierarchy, group: np.ndarray, seed: int) -> np.ndarray:
    """For each leaf another one of its group, by chance; a leaf alone in its group stays."""
    leaves = hierarchy.leaf_nodes[np.argsort(group[hierarchy.leaf_nodes], kind="stable")]
    _, first, size = np.unique(group[leaves], return_index=True, return_counts=True)
    owner = np.repeat(np.arange(len(first)), size)
    place = np.zeros(hierarchy.num_nodes, dtype=np.int64)
    place[leaves] = np.arange(len(leaves))
    mine = owner[place[nodes]]
    step = np.random.default_rng([seed, _OTHER]).integers(1, np.maximum(size[mine], 2))
    return leaves[first[mine] + (place[nodes] - first[mine] + step) % size[mine]]
