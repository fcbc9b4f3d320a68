"""A split of a dataset: a label for every sample, and its image or its features; and how samples are dealt to splits."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from scipy import sparse

from hace.checks import require
from hace.errors import ConfigError, DataError, amount
from hace.files.hashes import file_hashes
from hace.files.reading import optional, read_image
from hace.hierarchy import Hierarchy
from hace.linear.features import RowsOnDisk

if TYPE_CHECKING:
    from PIL.Image import Image
    from typing_extensions import Self

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_HELD_OUT = 0x7E57  # what a seed is used for


@dataclass(frozen=True, eq=False, repr=False)
class Split(ABC):
    """What every split has: labels, which may be nodes at any level, and a name for each sample.

    Attributes:
        hierarchy: The classes.
        nodes: int64 (M,), for each sample the index of its label in `hierarchy.nodes`.
        names: A stable name for each sample, such as its path below the dataset's folder.
        groups: (M,) the site, donor or recording of each sample, as text; None where samples do not come in groups.
        soft: (M, N) shares of several opinions over `hierarchy.nodes`, which training sees in place of `nodes`; None for none.
    """

    hierarchy: Hierarchy
    nodes: np.ndarray
    names: Sequence[str]
    groups: np.ndarray | None = field(default=None, kw_only=True)
    soft: np.ndarray | None = field(default=None, kw_only=True)
    _columns: ClassVar = ("nodes", "names", "groups", "soft")  # fields with an entry for each sample, or None

    def __post_init__(self) -> None:
        nodes = np.asarray(self.nodes)
        if nodes.ndim != 1 or not np.issubdtype(nodes.dtype, np.integer):
            raise DataError(
                f"nodes must be a one-dimensional array of integers. Got {nodes.dtype} {nodes.shape}."
            )
        object.__setattr__(self, "nodes", nodes.astype(np.int64))
        if len(nodes) and not (nodes.min() >= 0 and nodes.max() < self.hierarchy.num_nodes):
            first = np.flatnonzero((nodes < 0) | (nodes >= self.hierarchy.num_nodes))[0]
            raise DataError(
                f"nodes must be from 0 to {self.hierarchy.num_nodes - 1}, the nodes of the hierarchy. "
                f"Sample {first} has {nodes[first]}."
            )
        for what in self._columns:
            values = getattr(self, what)
            if values is not None and len(values) != len(nodes):
                raise DataError(
                    f"{what} must have one entry for each of {len(nodes)} samples. Got {len(values)}."
                )
        if self.groups is not None:
            object.__setattr__(self, "groups", np.asarray(self.groups).astype(str))
        if self.soft is not None and np.shape(self.soft)[1:] != (self.hierarchy.num_nodes,):
            raise DataError(
                f"soft must be (M, {self.hierarchy.num_nodes}), a share for each node. Got {np.shape(self.soft)}."
            )

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {amount(len(self), 'sample')} of {amount(self.hierarchy.num_leaves, 'class')}>"

    @property
    def labels(self) -> np.ndarray:
        """int64 (M,): the samples' leaf labels; an error if some are labelled with inner nodes, which `nodes` has."""
        labels = self.hierarchy.labels[self.nodes]
        inner = np.flatnonzero(labels < 0)
        if len(inner):
            first = inner[0]
            raise DataError(
                f"Every label must be a leaf. {len(inner):,} of {len(self):,} are not; the first is {self.names[first]!r} with "
                f"{self.hierarchy.nodes[self.nodes[first]]!r}. Train on nodes (labels='nodes'), or drop them with "
                "select(leaf_only())."
            )
        return labels

    @property
    def target_kind(self) -> Literal["leaves", "nodes"]:
        """What training targets are: "nodes" where some sample, or some opinion, is labelled above the leaves."""
        inner = self.hierarchy.labels < 0
        coarse = inner[self.nodes].any() if self.soft is None else (self.soft[:, inner] > 0).any()
        return "nodes" if coarse else "leaves"

    def targets(self, labels: str) -> np.ndarray:
        """Training targets for a loss on `labels`, "leaves" or "nodes": int64 (M,), or float32 shares of several opinions.

        An error where a sample has no leaf.
        """
        if self.soft is not None:
            return self.soft if labels == "nodes" else self.soft[:, self.hierarchy.leaf_nodes]
        return self.labels if labels == "leaves" else self.nodes

    def leaf_only(self) -> np.ndarray:
        """int64: the positions of samples whose label is a leaf."""
        return np.flatnonzero(self.hierarchy.labels[self.nodes] >= 0)

    def select(self, indices: np.ndarray | Sequence[int]) -> Self:
        """The samples at these positions, in this order."""
        indices = np.asarray(indices, dtype=np.int64)
        return replace(self, **{name: _taken(getattr(self, name), indices) for name in self._columns})

    @classmethod
    def joined(cls, splits: Sequence[Self]) -> Self:
        """Several splits of one dataset, one after another."""
        columns = {name: _joined([getattr(split, name) for split in splits]) for name in cls._columns}
        return replace(splits[0], **columns)

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """For each sample the bytes that represent its content in a fingerprint."""


@dataclass(frozen=True, eq=False, repr=False)
class Samples(Split):
    """Images with labels, in memory or on disk.

    Attributes:
        pixels: uint8 (M, 3, H, W), for images in memory.
        paths: Their files, for images on disk.
        boxes: (M, 4) x, y, width, height: the part of each image to use; None for all of it.
        relative: Whether boxes are shares of the image's sides instead of pixels.
        trim_bottom: Rows of pixels to cut off at the bottom, such as the line of credits in FGVC-Aircraft.

    Example:
        >>> h = Hierarchy.from_edges([("dog", "husky"), ("dog", "beagle")])
        >>> pixels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> samples = Samples(h, np.array([h.index("husky"), h.index("beagle")]), ["a", "b"], pixels)
        >>> len(samples), samples.labels.tolist(), samples.image(0).size
        (2, [1, 0], (32, 32))
    """

    pixels: torch.Tensor | None = None
    paths: Sequence[Path] | None = None
    boxes: np.ndarray | None = None
    trim_bottom: int = 0
    relative: bool = False
    _columns: ClassVar = (*Split._columns, "pixels", "paths", "boxes")

    def __post_init__(self) -> None:
        if (self.pixels is None) == (self.paths is None):
            raise DataError("Samples must have either pixels or paths.")
        if self.pixels is not None:
            shape = tuple(self.pixels.shape)
            if self.pixels.dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3:
                raise DataError(f"pixels must be uint8 (M, 3, H, W). Got {self.pixels.dtype} {shape}.")
        if self.boxes is not None and np.shape(self.boxes)[1:] != (4,):
            raise DataError(f"boxes must be (M, 4): x, y, width, height. Got {np.shape(self.boxes)}.")
        super().__post_init__()

    def image(self, index: int, oddities: list[str] | None = None) -> Image:
        """One image as a PIL image in RGB, upright, cropped by `trim_bottom` and `boxes`.

        Args:
            index: Its position.
            oddities: A list to add what is unusual about the file to.

        Raises:
            DataError: The file is missing, truncated or not an image; names its path.
        """
        if self.pixels is not None:
            array = self.pixels[index].permute(1, 2, 0).cpu().numpy()
            image = optional("PIL.Image", "Making images").fromarray(array)
        else:
            assert self.paths is not None
            image = read_image(self.paths[index], oddities)
        if self.trim_bottom:
            image = image.crop((0, 0, image.width, max(1, image.height - self.trim_bottom)))
        if self.boxes is not None:
            box = self.boxes[index] * ((*image.size, *image.size) if self.relative else 1)
            image = image.crop(_inside(box, image.width, image.height, self.names[index]))
        return image

    item = image  # what a model sees of a sample

    def content(self) -> Iterator[bytes]:
        """Pixels and crop; of images on disk the sha256 of both."""
        if self.paths is not None:
            return (digest.tobytes() for digest in self.digests())
        return (self._pixel_bytes(i) + self._crop(i) for i in range(len(self)))

    def digests(self, whole: bool = False) -> np.ndarray:
        """uint8 (M, 32): sha256 of each image's bytes and, unless it is to be the `whole` image, of the part that is used."""
        crops = [b"" if whole else self._crop(i) for i in range(len(self))]
        if self.paths is not None:
            hashes = file_hashes(self.paths, crops)
        else:
            hashes = [hashlib.sha256(self._pixel_bytes(i) + crop).digest() for i, crop in enumerate(crops)]
        return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)

    def _pixel_bytes(self, index: int) -> bytes:
        """An image in memory, before any crop."""
        assert self.pixels is not None
        return self.pixels[index].cpu().contiguous().numpy().tobytes()

    def _crop(self, index: int) -> bytes:
        """What says which part of an image is used."""
        box = b"" if self.boxes is None else np.asarray(self.boxes[index], "<f8").tobytes()
        return f" {self.trim_bottom} {'relative ' if self.relative else ''}".encode() + box

    @classmethod
    def joined(cls, splits: Sequence[Any]) -> Self:
        """Several splits of one dataset, one after another."""
        kinds = {(s.pixels is None, s.boxes is None, s.trim_bottom, s.relative) for s in splits}
        if len(kinds) > 1:
            raise DataError("Splits to join must be cropped alike, and all in memory or all on disk.")
        return super().joined(splits)


@dataclass(frozen=True, eq=False, repr=False)
class Features(Split):
    """Frozen features with labels.

    Attributes:
        x: float32 or float16 (M, d); a memory map if the file allows it, so that rows are read when they are used. What
            would exceed HACE_MAX_MEMORY as float32 stays on disk: `numpy.asarray(x[rows])` reads some rows.
    """

    x: Any  # np.ndarray or RowsOnDisk
    _columns: ClassVar = (*Split._columns, "x")

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.x.dtype not in (np.float32, np.float16):
            raise DataError(f"x must be float32 or float16 (M, d). Got {self.x.dtype} {self.x.shape}.")
        super().__post_init__()

    @property
    def num_features(self) -> int:
        """The length d of a feature vector."""
        return self.x.shape[1]

    def content(self) -> Iterator[bytes]:
        """The rows of x, read in chunks."""
        step = max(1, (1 << 22) // self.num_features)
        chunks = (np.asarray(self.x[first : first + step]) for first in range(0, len(self), step))
        return (row.tobytes() for chunk in chunks for row in chunk)


def _taken(column: Any, indices: np.ndarray) -> Any:
    """The entries of a column at some positions."""
    if column is None:
        return None
    if isinstance(column, Sequence):
        return [column[i] for i in indices]
    return column[torch.from_numpy(indices) if isinstance(column, torch.Tensor) else indices]


def _joined(columns: Sequence[Any]) -> Any:
    """Columns of one kind, one after another."""
    if columns[0] is None:
        return None
    if isinstance(columns[0], Sequence):
        return [item for column in columns for item in column]
    if any(isinstance(column, RowsOnDisk) for column in columns):
        return RowsOnDisk.joined(columns)
    if isinstance(columns[0], torch.Tensor):
        return torch.cat(tuple(columns))
    return np.concatenate(columns)


def _inside(box: np.ndarray, width: int, height: int, name: str) -> tuple[int, int, int, int]:
    """A box x, y, w, h as left, top, right, bottom within an image of this width and height."""
    x, y, w, h = (float(value) for value in box)
    left = max(0, round(x))
    top = max(0, round(y))
    right = min(width, round(x + w))
    bottom = min(height, round(y + h))
    if right <= left or bottom <= top:
        raise DataError(
            f"{name}: the box must overlap the image of {width} x {height}. Got {x:g}, {y:g}, {w:g}, {h:g}."
        )
    return left, top, right, bottom


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
