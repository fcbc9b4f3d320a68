"""A dataset: a hierarchy and its splits, known by a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import numpy as np

from hace.data.split import Samples, Split, in_two_splits
from hace.errors import ConfigError, DataError, HaceError, amount, nearest
from hace.hierarchy import Hierarchy

_S = TypeVar("_S", bound=Split)
_NO_TEST = (
    " Give some samples to a split 'test': folders train/ and test/, or a column or array split. For images, -o test=0.2 "
    "(load_dataset(..., test=0.2)) holds out a fifth of each class; for features of images, give it to `hace features`."
)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Generic[_S]):
    """A dataset: `Dataset[Samples]` of images, or `Dataset[Features]` of frozen features.

    Attributes:
        name: What results call it.
        hierarchy: The classes; every split refers to this one.
        splits: By name: "train" and "test", some have "val".
        model: The name of the model behind frozen features, where the data say it.
        source: Of features that `hace features` wrote: the model and the preprocessing behind them.
        broken: Why images were left out, one by one, where :func:`without_broken` did so.
    """

    name: str
    hierarchy: Hierarchy
    splits: Mapping[str, _S]
    model: str | None = None
    source: Mapping[str, Any] | None = None
    broken: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.splits:
            raise DataError(f"{self.name}: must have at least one split.")
        for name, split in self.splits.items():
            if split.hierarchy.fingerprint != self.hierarchy.fingerprint:
                raise DataError(f"{self.name}: the split {name!r} must have the hierarchy of the dataset.")
            if not len(split):
                raise DataError(f"{self.name}: the split {name!r} must have samples. Got none.")
        self._check_groups()

    def _check_groups(self) -> None:
        """Refuse groups in two splits, or in some splits only."""
        grouped = {name: split.groups for name, split in self.splits.items() if split.groups is not None}
        if grouped and len(grouped) < len(self.splits):
            without = next(name for name in self.splits if name not in grouped)
            raise DataError(
                f"{self.name}: every split must name its groups, or none. Got none in {without!r}."
            )
        shared = in_two_splits({name: np.unique(groups).tolist() for name, groups in grouped.items()})
        if shared:
            group, first, second = shared[0]
            raise DataError(
                f"{self.name}: every group must be in one split. Got {len(shared):,} in two; the first is {group!r}, in "
                f"{first!r} and {second!r}. New data come from new groups, so this test would flatter. Split by group, or "
                "leave the groups out."
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {len(split):,}" for name, split in self.splits.items())
        return f"<Dataset {self.name}: {amount(self.hierarchy.num_leaves, 'class')}, samples: {parts}>"

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
        """sha256 in hex over the hierarchy, and over names, labels and content of every sample, wherever the files are.

        Photos are hashed by their content. A file that was hashed before and has the same size and times since is not read
        again, see :mod:`hace.files.hashes`.
        """
        digest = hashlib.sha256(self.hierarchy.fingerprint.encode())
        for name in sorted(self.splits):
            split = self.splits[name]
            digest.update(f"\0{name}\0{len(split)}\0".encode())
            digest.update(np.ascontiguousarray(split.nodes, dtype="<i8").tobytes())
            for sample, content in zip(split.names, split.content(), strict=True):
                digest.update(f"{sample}\0{len(content)}\0".encode())
                digest.update(content)
            if split.groups is not None:
                digest.update("\0".join(["groups", *split.groups]).encode())
            if split.soft is not None:
                digest.update(b"soft" + np.ascontiguousarray(split.soft, dtype="<f4").tobytes())
        return digest.hexdigest()

    def summary(self) -> str:
        """A summary of splits, classes and labels, one line each."""
        h = self.hierarchy
        lines = [f"{self.name}: {h.num_leaves:,} classes, {h.num_nodes:,} nodes, {h.kind}"]
        for name, split in self.splits.items():
            counts = np.bincount(split.nodes, minlength=h.num_nodes)
            per_class = counts[h.leaf_nodes]
            above = len(split) - int(per_class.sum())
            line = f"{name}: {len(split):,} samples, {per_class.min():,} to {per_class.max():,} per class"
            if above:
                line += f", {above:,} labelled above the leaves"
            if split.groups is not None:
                line += f", in {len(np.unique(split.groups)):,} groups"
            lines.append(line)
        return "\n".join(lines)


def duplicates(splits: Mapping[str, Samples]) -> list[tuple[str, str]]:
    """Images of one split that are also in another, byte by byte: pairs "split: name"."""
    pairs: list[tuple[str, str]] = []
    first: dict[bytes, tuple[str, str]] = {}
    for split, samples in splits.items():
        for name, digest in zip(samples.names, samples.digests(whole=True), strict=True):
            other, twin = first.setdefault(digest.tobytes(), (split, name))
            if other != split:
                pairs.append((f"{other}: {twin}", f"{split}: {name}"))
    return pairs


def without_broken(data: Dataset[Samples], known: Container[bytes] = ()) -> Dataset[Samples]:
    """The dataset without images that cannot be read, which `broken` lists; those whose digest is `known` are not opened."""
    splits: dict[str, Samples] = {}
    broken: list[str] = []
    with ThreadPoolExecutor() as pool:  # decoders release the interpreter's lock
        for name, samples in data.splits.items():
            unknown = _unknown(samples, known)
            problems = dict(zip(unknown, pool.map(partial(_problem, samples), unknown), strict=True))
            readable = [i for i in range(len(samples)) if problems.get(i) is None]
            broken += [problem for problem in problems.values() if problem is not None]
            if not readable:
                raise DataError(
                    f"{data.name}: images must be readable. None of {len(samples):,} is. {broken[-1]}"
                )
            splits[name] = samples if len(readable) == len(samples) else samples.select(readable)
    return replace(data, splits=splits, broken=tuple(broken)) if broken else data


def _unknown(samples: Samples, known: Container[bytes]) -> list[int]:
    """The positions of images whose digest is not known."""
    everything = list(range(len(samples)))
    if not known:
        return everything
    try:
        digests = samples.digests()
    except HaceError:  # a file cannot be reached: opening each tells which
        return everything
    return [i for i in everything if digests[i].tobytes() not in known]


def _problem(samples: Samples, index: int) -> str | None:
    """Why an image cannot be read; None if it can."""
    try:
        samples.image(index)
    except DataError as error:
        return str(error)
    return None


def broken_text(data: Dataset[Any]) -> str:
    """What is said of the images that were left out: all of them, one per line."""
    total = len(data.broken) + sum(len(split) for split in data.splits.values())
    headline = f"{len(data.broken):,} of {amount(total, 'image')} cannot be read and are left out:"
    return "\n  ".join([headline, *data.broken])
