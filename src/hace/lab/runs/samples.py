"""The samples of a run: loaded, split for training and selection, with the tree it trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from hace.data import Dataset, load_dataset
from hace.data.consensus import read_votes, shares_of, vote_nodes
from hace.data.dataset import without_broken
from hace.data.split import Features, Split, part_of_each, part_of_groups, places_of_each
from hace.errors import ConfigError, DataError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import leaf_counts
from hace.lab.features.store import FeatureStore
from hace.lab.runs.config import (
    DataConfig,
    LabelsConfig,
    LossConfig,
    RunConfig,
    TrainConfig,
    Validation,
)
from hace.losses.advice import recommended_loss

# What a seed is used for.
_COARSE = 0xC0A
_WRONG = 0xBAD
_OTHER = 0x07E
_SHARE = "Give a share to hold out, such as 0.1."
_S = TypeVar("_S", bound=Split)
_C = TypeVar("_C", bound=RunConfig)


@dataclass(frozen=True, eq=False)
class Task(Generic[_S]):
    """What one run sees."""

    hierarchy: Hierarchy  # of the results
    tree: Hierarchy  # of the loss: the same, the shuffled control, or one made from the training samples
    train: _S
    evaluated: _S  # the samples of the result
    val: _S | None  # held out
    # Of targets: "nodes" where some training labels or opinions are above the leaves.
    labels: Literal["leaves", "nodes"]
    val_known: np.ndarray | None = None  # nodes that held-out samples would be labelled with in training
    passed_over: int = 0  # samples that would be held out, but are labelled above the leaves

    def targets(self, split: Split) -> np.ndarray:
        """Targets of a split, for a loss on `tree` with `labels`."""
        return split.targets(self.labels)

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
            store = FeatureStore(config.root).dataset("none")
            return store if config.votes is None else with_votes(store, config.votes)
        options.setdefault("allow_empty", True)  # the run reports unseen classes
    data = load_dataset(config.name, config.root, **options)
    data = without_broken(data) if config.skip_broken else data
    return data if config.votes is None else with_votes(data, config.votes)


def with_votes(data: Dataset[_S], path: str | Path) -> Dataset[_S]:
    """The data, whose training samples have the opinions of a table in place of their labels; see `hace consensus`.

    Samples without an opinion keep their label. Held-out and test samples keep theirs anyway.
    """
    votes = read_votes(path)
    names = {name for split in data.splits.values() for name in split.names}
    if unknown := [name for name in votes if name not in names]:
        raise DataError(
            f"{path}: samples must be in the data. {len(unknown):,} of {len(votes):,} are not; the first is "
            f"{unknown[0]!r}.{nearest(unknown[0], list(names))}"
        )
    nodes = dict(zip(votes, vote_nodes(votes, data.hierarchy), strict=True))
    if nodes.keys().isdisjoint(data["train"].names):
        raise DataError(f"{path}: must have opinions about training samples. Got none.")
    splits = dict(data.splits)
    for name in splits.keys() & {"train", "val"}:  # both train where nothing is held out
        split = splits[name]
        own = [nodes.get(sample, split.nodes[i : i + 1]) for i, sample in enumerate(split.names)]
        splits[name] = replace(split, soft=shares_of(own, data.hierarchy))
    return replace(data, splits=splits)


@dataclass(frozen=True, eq=False)
class _Parts(Generic[_S]):
    """Samples to train on, labelled as a training sees them, and those held out, with their true labels."""

    train: _S
    val: _S | None = None
    val_known: np.ndarray | None = None
    passed_over: int = 0


def make_task(data: Dataset[_S], config: RunConfig) -> Task[_S]:
    """Split, take away what `config.data.labels` does not know, and choose the tree of the loss.

    `config.validation` says what is held out: "split" the data's own validation split; a share part of the training samples,
    stratified by label and chosen by the seed, while the data's own validation split is left alone; 0 nothing, and training is
    on the samples of both splits. Held-out samples have their true labels, whatever is known of the others, and only those
    known to a leaf are held out.
    """
    if config.validation == "split":
        parts = _own_split_held_out(data, config)
    elif config.validation:
        parts = _share_held_out(data, config, config.validation)
    else:
        parts = _nothing_held_out(data, config)
    train = parts.train
    if isinstance(config, TrainConfig) and config.per_class is not None:
        train = train.select(_few_of_each(train.nodes, config.per_class, config.seed))
    labels = train.target_kind
    if config.data.labels.drop:
        train = train.select(train.leaf_only())
        if not len(train):
            raise DataError(
                "labels.drop=true leaves no sample to train on: none is known to a leaf. Use the coarse labels."
            )
    val = None if parts.val is None else replace(parts.val, soft=None)  # judged by labels
    evaluated = data["test"] if config.evaluate == "test" else val
    assert evaluated is not None  # the configuration checks that
    return Task(
        hierarchy=data.hierarchy,
        tree=_tree(config.data, data.hierarchy, train, labels),
        train=train,
        evaluated=evaluated,
        val=val,
        labels=labels,
        val_known=parts.val_known,
        passed_over=parts.passed_over,
    )


def _nothing_held_out(data: Dataset[_S], config: RunConfig) -> _Parts[_S]:
    """The samples of "train" and, where the data have it, of "val"."""
    train = data["train"]
    if "val" in data.splits:
        train = train.joined([train, data["val"]])
    return _Parts(replace(train, nodes=_labels_of_all(data, config)))


def _labels_of_all(data: Dataset[_S], config: RunConfig) -> np.ndarray:
    """The labels that a training sees of the samples of "train" and then of "val", whichever of them it trains on.

    So a search has the labels of the final run, which trains on all.
    """
    own = [data[split].nodes for split in ("train", "val") if split in data.splits]
    true = np.concatenate(own)
    return known_labels(true, data.hierarchy, config.data.labels, config.seed, first=len(own[0]))


def _own_split_held_out(data: Dataset[_S], config: RunConfig) -> _Parts[_S]:
    """The samples of "train", and those of "val" that are known to a leaf."""
    if "val" not in data.splits:
        raise DataError(
            f"validation='split' needs data with a val split. Got {', '.join(data.splits)}. {_SHARE}"
        )
    train = data["train"]
    own = data["val"]
    size = len(train)
    fine = own.leaf_only()
    if not len(fine):
        raise DataError(
            f"validation='split' needs samples of the val split that are known to a leaf. Got none. {_SHARE}"
        )
    known = _labels_of_all(data, config)
    return _Parts(
        train=replace(train, nodes=known[:size]),
        val=own.select(fine),
        val_known=known[size:][fine],
        passed_over=len(own) - len(fine),
    )


def _share_held_out(data: Dataset[_S], config: RunConfig, share: float) -> _Parts[_S]:
    """Two parts of "train"; "val" is left alone."""
    pool = data["train"]
    true = pool.nodes
    known = _labels_of_all(data, config)[: len(true)]
    # Stratified by label, and by whether a training knows it.
    stay, held = held_out(2 * true + (known == true), share, config.seed, pool.groups)
    is_fine = data.hierarchy.labels[true[held]] >= 0
    if pool.groups is None:
        # A coarse label cannot tell whether the best class is right: such samples train instead.
        stay = np.sort(np.concatenate([stay, held[~is_fine]]))
    fine = held[is_fine]
    if not len(fine):
        raise DataError(
            f"validation={share} of {len(pool)} training samples holds out none that is known to a leaf: every "
            "class has too few. Give a larger share."
        )
    return _Parts(
        train=replace(pool.select(stay), nodes=known[stay]),
        val=pool.select(fine),
        val_known=known[fine],
        passed_over=int((~is_fine).sum()),
    )


def with_own_split(data: Dataset[Any], config: _C) -> _C:
    """The configuration, with the data's own validation split held out where there is one and nothing else is held out."""
    if config.validation or "val" not in data.splits:
        return config
    return replace(config, validation="split")


def with_advised_loss(data: Dataset[Any], config: _C) -> _C:
    """The configuration, with the loss that is advised for its training labels."""
    advice = recommended_loss(coarse=_learns_coarse_labels(data, config.data.labels))
    return replace(config, loss=LossConfig(advice.loss, dict(advice.params)))


def _learns_coarse_labels(data: Dataset[Any], labels: LabelsConfig) -> bool:
    """Whether some training labels are above the leaves, or are made so."""
    if labels.drop:
        return False
    made = labels.coarse > 0 or labels.fine is not None
    return made or bool((data.hierarchy.labels[data["train"].nodes] < 0).any())


def advised_loss_note(loss: LossConfig) -> str:
    """Which loss was chosen for the labels; "" for the one that most labels get."""
    if loss == LossConfig():
        return ""
    return f"some training labels are coarse: the loss is {loss.text}; --loss takes another"


def own_split_note(data: Dataset[Any], validation: Validation) -> str:
    """What becomes of the data's own validation split; "" where there is none."""
    if "val" not in data.splits:
        return ""
    own = f"the val split, {len(data['val']):,} samples,"
    if validation == "split":
        return f"{own} is held out; --validation 0 trains on it too"
    if not validation:
        return f"{own} is trained on too; --validation split holds it out"
    return (
        f"{100 * validation:g}% of the {len(data['train']):,} training samples are held out; {own} is neither trained on nor "
        "held out; --validation split holds it out instead"
    )


def _tree(config: DataConfig, given: Hierarchy, train: Split, labels: str) -> Hierarchy:
    """The tree of the loss."""
    if config.shuffle is None and config.induce is None:
        return given
    if train.soft is not None:
        raise DataError("data.votes are shares of the nodes of the data's own tree: omit shuffle and induce.")
    if labels == "nodes":
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
        if config.within == "parent":
            group = coarse_nodes(hierarchy, "parent")
        else:
            group = np.zeros(hierarchy.num_nodes, dtype=np.int64)
        known[chosen] = _others(nodes[chosen], hierarchy, group, seed)
    coarse = leaves[:0]
    if config.fine is not None:
        later = np.zeros(len(leaves), dtype=bool) if first is None else leaves >= first
        places = places_of_each(nodes[leaves], [seed, _COARSE], later)
        coarse = leaves[places >= config.fine]
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
    highest = _level_of(hierarchy, to)
    nodes = np.arange(hierarchy.num_nodes)
    for _ in range(hierarchy.max_depth):
        nodes = np.where(hierarchy.depths[nodes] > highest, up[nodes], nodes)
    return nodes


def _level_of(hierarchy: Hierarchy, to: int | str) -> int:
    """The number of a level that is given as "top", by its number or by its name. The lowest cannot be meant."""
    names = list(hierarchy.level_names or ())
    last = hierarchy.max_depth - 1
    levels = {str(level): level for level in range(1, last + 1)}
    levels |= {"top": 1, **{name: level for level, name in enumerate(names, 1)}}
    if str(to) not in levels:
        known = ["parent", "top", *names[:-1]]
        numbers = f", or a level from 1 to {last}" if last else ""
        raise ConfigError(
            f"What coarse labels are known to (labels.to, --coarse-to) must be one of {', '.join(known)}{numbers}. Got {to!r}."
            f"{nearest(str(to), known)}"
        )
    return levels[str(to)]


def _others(nodes: np.ndarray, hierarchy: Hierarchy, group: np.ndarray, seed: int) -> np.ndarray:
    """For each leaf another one of its group, by chance; a leaf alone in its group stays."""
    leaves = hierarchy.leaf_nodes[np.argsort(group[hierarchy.leaf_nodes], kind="stable")]  # group by group
    _, first, size = np.unique(group[leaves], return_index=True, return_counts=True)
    group_at = np.repeat(np.arange(len(first)), size)
    place = np.zeros(hierarchy.num_nodes, dtype=np.int64)
    place[leaves] = np.arange(len(leaves))
    own = group_at[place[nodes]]
    step = np.random.default_rng([seed, _OTHER]).integers(1, np.maximum(size[own], 2))
    within = (place[nodes] - first[own] + step) % size[own]
    return leaves[first[own] + within]
