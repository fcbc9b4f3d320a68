"""A data set: a hierarchy and its splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from hace.data.parts import part_of_each
from hace.data.samples import Samples, Split
from hace.errors import ConfigError, DataError, listed, nearest
from hace.files.reading import read_bytes
from hace.hierarchy import Hierarchy

_S = TypeVar("_S", bound=Split)
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_NO_TEST = (
    " Give some samples to a split 'test': folders train/ and test/, or a column or array split. For images, -o test=0.2 "
    "(load_dataset(..., test=0.2)) holds out a fifth of each class; for features of images, give it to `hace features`."
)
_HELD_OUT = 0x7E57


@dataclass(frozen=True, eq=False)
class Dataset(Generic[_S]):
    """A data set: `Dataset[Samples]` of images, or `Dataset[Features]` of frozen features.

    Attributes:
        name: What results call it.
        hierarchy: The classes; every split refers to this one.
        splits: By name: "train" and "test", some have "val".
        model: The name of the model behind frozen features, where the data say it.
    """

    name: str
    hierarchy: Hierarchy
    splits: Mapping[str, _S]
    model: str | None = None

    def __post_init__(self) -> None:
        if not self.splits:
            raise DataError(f"{self.name}: must have at least one split.")
        for name, split in self.splits.items():
            if split.hierarchy.fingerprint != self.hierarchy.fingerprint:
                raise DataError(f"{self.name}: the split {name!r} must have the hierarchy of the data set.")
            if not len(split):
                raise DataError(f"{self.name}: the split {name!r} must have samples. Got none.")

    def __getitem__(self, split: str) -> _S:
        if split not in self.splits:
            known = ", ".join(self.splits)
            raise ConfigError(
                f"{self.name} has no split {split!r}. It has {known}.{nearest(split, self.splits)}"
                f"{_NO_TEST if split == 'test' else ''}"
            )
        return self.splits[split]

    @cached_property
    def fingerprint(self) -> str:
        """sha256 in hex over the hierarchy, and over names, labels and content of every sample.

        The content is the pixels or features themselves; for images on disk it is the size of the file. The place of the
        files does not matter.
        """
        digest = hashlib.sha256(self.hierarchy.fingerprint.encode())
        for name in sorted(self.splits):
            split = self.splits[name]
            digest.update(f"\0{name}\0{len(split)}\0".encode())
            digest.update(np.ascontiguousarray(split.nodes, dtype="<i8").tobytes())
            for sample, content in zip(split.names, split.content(), strict=True):
                digest.update(f"{sample}\0{len(content)}\0".encode())
                digest.update(content)
        return digest.hexdigest()

    def summary(self) -> str:
        """A summary of splits, classes and labels, one line each."""
        h = self.hierarchy
        lines = [f"{self.name}: {h.num_leaves:,} classes, {h.num_nodes:,} nodes, {h.kind}"]
        for name, split in self.splits.items():
            counts = np.bincount(split.nodes, minlength=h.num_nodes)
            per_leaf = counts[h.leaf_nodes]
            line = f"{name}: {len(split):,} samples, {per_leaf.min():,} to {per_leaf.max():,} per class"
            inner = len(split) - int(per_leaf.sum())
            lines.append(line + (f", {inner:,} labelled above the leaves" if inner else ""))
        return "\n".join(lines)


def split_name(name: str) -> str:
    """The name of a split as hace writes it: "val" for a validation split, whatever the data call it.

    Example:
        >>> [split_name(name) for name in ("Train", "validation", "valid", "test", "fold1")]
        ['train', 'val', 'val', 'test', 'fold1']
    """
    return SPLIT_NAMES.get(name.strip().lower(), name.strip())


def ordered_splits(names: Iterable[str]) -> list[str]:
    """The names of splits, each once, "train" first."""
    return sorted(set(names), key=lambda name: (name != "train", name))


def with_test(splits: Mapping[str, Samples], share: float, name: str) -> dict[str, Samples]:
    """The splits with a share of each class's training samples as "test"; the same samples every time.

    Samples labelled above the leaves stay in "train": nobody can tell whether a class is right for them.

    Args:
        splits: By name, with "train" and without "test".
        share: To hold out, of each class, rounded, but never its last sample; 0 holds out nothing.
        name: What messages call the data set.

    Raises:
        ConfigError: The share is not one, there is a test split already, or no training split.
        DataError: Every class has too few samples.
    """
    if not share:
        return dict(splits)
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(f"test must be a share from 0 to less than 1, such as 0.2. Got {share!r}.")
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
    held = fine[part_of_each(train.nodes[fine], share, [_HELD_OUT])[1]]
    kept = np.setdiff1d(np.arange(len(train)), held)
    if not len(held):
        raise DataError(
            f"{name}: test={share:g} holds out no sample: every class has too few. Give a larger share."
        )
    return {**splits, "train": train.select(kept), "test": train.select(held)}


def check_classes(name: str, hierarchy: Hierarchy, splits: Iterable[Split]) -> None:
    """Refuse a data set in which a class has no sample at all.

    Args:
        name: What messages call the data set.
        hierarchy: The classes.
        splits: All splits.

    Raises:
        DataError: Names the classes.
    """
    seen = np.zeros(hierarchy.num_nodes, dtype=bool)
    for split in splits:
        seen[split.nodes] = True
    empty = [hierarchy.leaves[i] for i in np.flatnonzero(~seen[hierarchy.leaf_nodes])]
    if empty:
        raise DataError(
            f"{name}: every class must have samples. {len(empty)} of {hierarchy.num_leaves} have none: "
            f"{listed(empty)}. Add samples, take a smaller hierarchy (Hierarchy.subset), or allow it "
            "with -o allow_empty=true (allow_empty=True)."
        )


def check_disjoint(name: str, splits: Mapping[str, Split]) -> None:
    """Refuse a data set in which a sample occurs twice, in two splits or in one.

    Args:
        name: What messages call the data set.
        splits: All splits by name.

    Raises:
        DataError: Names the first one and their number.
    """
    home: dict[str, str] = {}
    twice: list[tuple[str, str, str]] = []
    for split, samples in splits.items():
        for sample in samples.names:
            other = home.setdefault(sample, split)
            if other != split:
                twice.append((sample, other, split))
        if len(set(samples.names)) != len(samples):
            raise DataError(
                f"{name}: every sample must occur once. Got {_repeated(samples)!r} twice in the split {split!r}."
            )
    if twice:
        sample, first, second = twice[0]
        raise DataError(
            f"{name}: every image must be in one split. {len(twice):,} are in two; the first is {sample!r}, in {first!r} and "
            f"{second!r}. A test on training images says nothing."
        )


def duplicates(splits: Mapping[str, Samples]) -> list[tuple[str, str]]:
    """Images of one split that are also in another, byte by byte: pairs "split: name".

    Images on disk are compared by size first, and read only if sizes agree.
    """
    groups: dict[bytes, list[tuple[str, Samples, int]]] = {}
    for split, samples in splits.items():
        for i in range(len(samples)):
            groups.setdefault(hashlib.sha256(samples.raw(i)).digest(), []).append((split, samples, i))
    found: list[tuple[str, str]] = []
    for group in groups.values():
        if len({split for split, _, _ in group}) < 2:
            continue
        first: dict[bytes, tuple[str, str]] = {}
        for split, samples, i in group:
            content = b"" if samples.paths is None else read_bytes(samples.paths[i])
            other, name = first.setdefault(hashlib.sha256(content).digest(), (split, samples.names[i]))
            if other != split:
                found.append((f"{other}: {name}", f"{split}: {samples.names[i]}"))
    return found


def _repeated(split: Split) -> str:
    seen: set[str] = set()
    return next(name for name in split.names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
