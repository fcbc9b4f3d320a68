"""How samples are dealt to splits: their names, shares of each class by chance, and groups that stay whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from scipy import sparse

from hace.checks import require
from hace.data.split import Samples
from hace.errors import ConfigError, DataError

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_HELD_OUT = 0x7E57  # what a seed is used for


def split_name(name: str) -> str:
    """The name of a split as hace writes it: "val" for a validation split, whatever the data call it."""
    return SPLIT_NAMES.get(name.strip().lower(), name.strip())


def ordered_splits(names: Iterable[str]) -> list[str]:
    """The names of splits, each once, "train" first."""
    return sorted(set(names), key=lambda name: (name != "train", name))


def in_two_splits(splits: Mapping[str, Iterable[str]]) -> list[tuple[str, str, str]]:
    """Names that are in two splits, with both."""
    home: dict[str, str] = {}
    shared = []
    for split, names in splits.items():
        for name in names:
            first = home.setdefault(name, split)
            if first != split:
                shared.append((name, first, split))
    return shared


def with_test(splits: Mapping[str, Samples], share: float, name: str) -> dict[str, Samples]:
    """The splits with a share of each class's training samples as "test"; the same samples every time.

    Samples labelled above the leaves stay in "train": nobody can tell whether a class is right for them. The share is of each
    class, rounded, but never its last sample; 0 holds out nothing. Groups stay whole. Messages call the dataset `name`.
    """
    if not share:
        return dict(splits)
    is_share = isinstance(share, int | float) and 0 < share < 1
    require("test", share, "a share from 0 to less than 1, such as 0.2", is_share)
    if "test" in splits:
        raise ConfigError(
            f"test must be left out where the data have a test split. Got test={share:g} for {name}."
        )
    if "train" not in splits:
        raise ConfigError(
            f"test={share:g} must come with a split 'train' to take samples from. Got {', '.join(splits)} in {name}."
        )
    train = splits["train"]
    fine = train.leaf_only()
    if train.groups is None:
        held_out = fine[part_of_each(train.nodes[fine], share, [_HELD_OUT])[1]]
        remaining = np.setdiff1d(np.arange(len(train)), held_out)
    else:  # what is labelled above the leaves is in neither, where its group is held out
        remaining, held_out = part_of_groups(train.nodes, train.groups, share, [_HELD_OUT])
        held_out = np.intersect1d(held_out, fine)
    if not len(held_out):
        raise DataError(
            f"{name}: test={share:g} holds out no sample: every class has too few. Give a larger share."
        )
    return {**splits, "train": train.select(remaining), "test": train.select(held_out)}


def places_of_each(labels: np.ndarray, seed: list[int], later: np.ndarray | None = None) -> np.ndarray:
    """(M,) the place of each sample among those of its label, from 0, by chance: the one rule behind every split.

    Samples that are marked as `later` come after the others of their label.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    if later is not None:
        order = order[np.argsort(later[order], kind="stable")]
    order = order[np.argsort(labels[order], kind="stable")]  # label by label, at random within each
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    places = np.empty(len(labels), dtype=np.int64)
    places[order] = np.arange(len(labels)) - np.repeat(first, counts)
    return places


def part_of_each(labels: np.ndarray, share: float, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions outside and inside a part: of every label its share, rounded, but never its last sample."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rounded = np.floor(share * counts + 0.5).astype(np.int64)
    quota = np.minimum(rounded, counts - 1)
    inside = places_of_each(labels, seed) < quota[inverse]
    return np.flatnonzero(~inside), np.flatnonzero(inside)


def part_of_groups(
    labels: np.ndarray, groups: np.ndarray, share: float, seed: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions outside and inside a part of whole groups: of every label about its share, but never its last group.

    Groups come in a random order, and one is taken if that brings the labels' shares nearer to the share wanted: the sum of
    squared differences over labels falls.
    """
    names, group = np.unique(groups, return_inverse=True)
    _, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    samples = sparse.csr_array((np.ones(len(labels)), (group, label)), shape=(len(names), len(counts)))
    samples.sum_duplicates()
    groups_left = np.bincount(samples.indices, minlength=len(counts))  # of each label, outside
    missing = np.full(len(counts), share)
    taken = np.zeros(len(names), dtype=bool)
    for candidate in np.random.default_rng(seed).permutation(len(names)):
        row = slice(samples.indptr[candidate], samples.indptr[candidate + 1])
        own = samples.indices[row]
        part = samples.data[row] / counts[own]
        is_never_last = (groups_left[own] > 1).all()
        is_nearer = ((missing[own] - part) ** 2).sum() < (missing[own] ** 2).sum()
        if is_never_last and is_nearer:
            taken[candidate] = True
            groups_left[own] -= 1
            missing[own] -= part
    return np.flatnonzero(~taken[group]), np.flatnonzero(taken[group])
