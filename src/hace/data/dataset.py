"""A dataset: a hierarchy and its splits, each with a label for every sample and its image or its features."""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from scipy import sparse

from hace.checks import check_number
from hace.errors import ConfigError, DataError, GroupWarning, listed, nearest
from hace.files.reading import optional, read_bytes, read_image
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import composed, label_nodes
from hace.linear.features import RowsOnDisk

if TYPE_CHECKING:
    from PIL.Image import Image
    from typing_extensions import Self

_S = TypeVar("_S", bound="Split")
HierarchyLike = Hierarchy | str | os.PathLike[str] | None
LABEL_OPTION = "-o label_kind={}"  # how to say what labels are, for messages
IMAGE_SUFFIXES = frozenset(".bmp .gif .heic .heif .hif .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())
GROUP_WORDS = frozenset(
    "batch burst camera donor individual location patient record recording sequence site subject".split()
)
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
class Split(ABC):
    """What every split has: labels, which may be nodes at any level, and a name for each sample.

    Attributes:
        hierarchy: The classes.
        nodes: int64 (M,), for each sample the index of its label in `hierarchy.nodes`.
        names: A stable name for each sample, such as its path below the dataset's folder.
        groups: (M,) the site, donor or recording of each sample, as text; None where samples do not come in groups.
    """

    hierarchy: Hierarchy
    nodes: np.ndarray
    names: Sequence[str]
    groups: np.ndarray | None = field(default=None, kw_only=True)
    _columns: ClassVar = ("nodes", "names", "groups")  # fields with an entry for each sample, or None

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

    def __len__(self) -> int:
        return len(self.nodes)

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
        columns = {name: _joined([getattr(s, name) for s in splits]) for name in cls._columns}
        return replace(splits[0], **columns)

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """For each sample the bytes that represent its content in a fingerprint."""


@dataclass(frozen=True, eq=False)
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
    _columns: ClassVar = ("nodes", "names", "groups", "pixels", "paths", "boxes")

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
        """The pixels; for images on disk their sizes, since reading every image takes minutes."""
        for i in range(len(self)):
            yield self.raw(i) + self._crop(i)

    def digest(self, index: int, whole: bool = False) -> bytes:
        """sha256 of an image's bytes and, unless it is to be the `whole` image, of the part of it that is used."""
        content = self.raw(index)  # of a file that is missing: the error of its size
        content = content if self.paths is None else read_bytes(self.paths[index])
        return hashlib.sha256(content + (b"" if whole else self._crop(index))).digest()

    def digests(self, whole: bool = False) -> np.ndarray:
        """uint8 (M, 32): the digests of all images."""
        with ThreadPoolExecutor() as pool:  # reading and hashing release the interpreter's lock
            found = pool.map(lambda i: self.digest(i, whole), range(len(self)))
            return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 32)

    def _crop(self, index: int) -> bytes:
        crop = b"" if self.boxes is None else np.asarray(self.boxes[index], "<f8").tobytes()
        return f" {self.trim_bottom} {'relative ' if self.relative else ''}".encode() + crop

    def raw(self, index: int) -> bytes:
        """An image's pixels before any crop; on disk the size of its file."""
        if self.pixels is not None:
            return self.pixels[index].cpu().contiguous().numpy().tobytes()
        assert self.paths is not None
        try:
            return str(os.stat(self.paths[index]).st_size).encode()
        except OSError as error:
            raise DataError(f"{self.paths[index]}: cannot be reached: {error.strerror}.") from error

    @classmethod
    def joined(cls, splits: Sequence[Any]) -> Self:
        """Several splits of one dataset, one after another."""
        if len({(s.pixels is None, s.boxes is None, s.trim_bottom, s.relative) for s in splits}) > 1:
            raise DataError("Splits to join must be cropped alike, and all in memory or all on disk.")
        return super().joined(splits)


@dataclass(frozen=True, eq=False)
class Features(Split):
    """Frozen features with labels.

    Attributes:
        x: float32 or float16 (M, d); a memory map if the file allows it, so that rows are read when they are used. What
            would exceed HACE_MAX_MEMORY as float32 stays on disk: `numpy.asarray(x[rows])` reads some rows.
    """

    x: Any  # np.ndarray or RowsOnDisk
    _columns: ClassVar = ("nodes", "names", "groups", "x")

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


@dataclass(frozen=True, eq=False)
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
        given = {name: split.groups for name, split in self.splits.items() if split.groups is not None}
        if given and len(given) < len(self.splits):
            without = next(name for name in self.splits if name not in given)
            raise DataError(
                f"{self.name}: every split must name its groups, or none. Got none in {without!r}."
            )
        twice = _in_two({name: np.unique(groups).tolist() for name, groups in given.items()})
        if twice:
            group, home, split = twice[0]
            raise DataError(
                f"{self.name}: every group must be in one split. Got {len(twice):,} in two; the first is {group!r}, in "
                f"{home!r} and {split!r}. New data come from new groups, so this test would flatter. Split by group, or "
                "leave the groups out."
            )

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
        """sha256 in hex over the hierarchy, and over names, labels and content of every sample, wherever the files are."""
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
            line += f", {inner:,} labelled above the leaves" if inner else ""
            line += "" if split.groups is None else f", in {len(np.unique(split.groups)):,} groups"
            lines.append(line)
        return "\n".join(lines)


def _taken(column: Any, indices: np.ndarray) -> Any:
    if column is None or isinstance(column, Sequence):
        return column and [column[i] for i in indices]
    return column[torch.from_numpy(indices) if isinstance(column, torch.Tensor) else indices]


def _joined(columns: Sequence[Any]) -> Any:
    if columns[0] is None or isinstance(columns[0], Sequence):
        return columns[0] and [item for column in columns for item in column]
    if any(isinstance(column, RowsOnDisk) for column in columns):
        return RowsOnDisk.joined(columns)
    return torch.cat(tuple(columns)) if isinstance(columns[0], torch.Tensor) else np.concatenate(columns)


def split_name(name: str) -> str:
    """The name of a split as hace writes it: "val" for a validation split, whatever the data call it."""
    return SPLIT_NAMES.get(name.strip().lower(), name.strip())


def ordered_splits(names: Iterable[str]) -> list[str]:
    """The names of splits, each once, "train" first."""
    return sorted(set(names), key=lambda name: (name != "train", name))


def with_test(splits: Mapping[str, Samples], share: float, name: str) -> dict[str, Samples]:
    """The splits with a share of each class's training samples as "test"; the same samples every time.

    Samples labelled above the leaves stay in "train": nobody can tell whether a class is right for them. The share is of each
    class, rounded, but never its last sample; 0 holds out nothing. Groups stay whole. Messages call the dataset `name`.
    """
    if not share:
        return dict(splits)
    fits = isinstance(share, int | float) and 0 < share < 1
    check_number("test", share, "a share from 0 to less than 1, such as 0.2", fits)
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
        held = fine[part_of_each(train.nodes[fine], share, [_HELD_OUT])[1]]
        kept = np.setdiff1d(np.arange(len(train)), held)
    else:  # what is labelled above the leaves is in neither, where its group is held out
        kept, held = part_of_groups(train.nodes, train.groups, share, [_HELD_OUT])
        held = np.intersect1d(held, fine)
    if not len(held):
        raise DataError(
            f"{name}: test={share:g} holds out no sample: every class has too few. Give a larger share."
        )
    return {**splits, "train": train.select(kept), "test": train.select(held)}


def check_classes(name: str, hierarchy: Hierarchy, splits: Iterable[Split]) -> None:
    """Refuse a dataset in which a class has no sample at all; messages call it `name`."""
    seen = np.concatenate([split.nodes for split in splits])
    empty = [hierarchy.leaves[i] for i in np.flatnonzero(~np.isin(hierarchy.leaf_nodes, seen))]
    if empty:
        raise DataError(
            f"{name}: every class must have samples. {len(empty)} of {hierarchy.num_leaves} have none: "
            f"{listed(empty)}. Add samples, take a smaller hierarchy (Hierarchy.subset), or allow it "
            "with -o allow_empty=true (allow_empty=True)."
        )


def check_disjoint(name: str, splits: Mapping[str, Sequence[str]]) -> None:
    """Refuse a dataset in which a sample's name is there twice, in two splits or in one; messages call it `name`."""
    for split, names in splits.items():
        sample, count = Counter(names).most_common(1)[0]
        if count > 1:
            raise DataError(
                f"{name}: every sample must occur once. Got {sample!r} twice in the split {split!r}."
            )
    if twice := _in_two(splits):
        sample, first, second = twice[0]
        raise DataError(
            f"{name}: every image must be in one split. {len(twice):,} are in two; the first is {sample!r}, in {first!r} and "
            f"{second!r}. A test on training images says nothing."
        )


def _in_two(splits: Mapping[str, Iterable[str]]) -> list[tuple[str, str, str]]:
    """Names that are in two splits, with both."""
    home: dict[str, str] = {}
    pairs = ((name, split) for split, names in splits.items() for name in names)
    return [(name, home[name], split) for name, split in pairs if home.setdefault(name, split) != split]


def duplicates(splits: Mapping[str, Samples]) -> list[tuple[str, str]]:
    """Images of one split that are also in another, byte by byte: pairs "split: name"."""
    found: list[tuple[str, str]] = []
    first: dict[bytes, tuple[str, str]] = {}
    for split, samples in splits.items():
        for name, digest in zip(samples.names, samples.digests(whole=True), strict=True):
            other, twin = first.setdefault(digest.tobytes(), (split, name))
            if other != split:
                found.append((f"{other}: {twin}", f"{split}: {name}"))
    return found


def without_broken(data: Dataset[Samples], known: Container[bytes] = ()) -> Dataset[Samples]:
    """The dataset without images that cannot be read, which `broken` lists; those whose digest is `known` are not opened."""

    def problem(at: tuple[Samples, int]) -> str | None:
        samples, i = at
        try:
            if not known or samples.digest(i) not in known:
                samples.image(i)
        except DataError as error:
            return str(error)
        return None

    kept, broken = {}, []
    with ThreadPoolExecutor() as pool:  # decoders release the interpreter's lock
        for name, samples in data.splits.items():
            fine = []
            for i, found in enumerate(pool.map(problem, [(samples, i) for i in range(len(samples))])):
                broken += [found] if found else []
                fine += [] if found else [i]
            kept[name] = samples if len(fine) == len(samples) else samples.select(fine)
    return replace(data, splits=kept, broken=tuple(broken)) if broken else data


def broken_text(data: Dataset[Any]) -> str:
    """What is said of the images that were left out: all of them, one per line."""
    total = len(data.broken) + sum(len(split) for split in data.splits.values())
    told = f"{len(data.broken):,} of {total:,} images cannot be read and are left out:"
    return "\n  ".join([told, *data.broken])


def places_of_each(labels: np.ndarray, seed: list[int], later: np.ndarray | None = None) -> np.ndarray:
    """(M,) the place of each sample among those of its label, from 0, by chance: the one rule behind every split."""
    order = np.random.default_rng(seed).permutation(len(labels))
    if later is not None:
        order = order[np.argsort(later[order], kind="stable")]
    order = order[np.argsort(labels[order], kind="stable")]  # label by label, at random within each
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - np.repeat(first, counts)
    return place


def part_of_each(labels: np.ndarray, share: float, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions outside and inside a part: of every label its share, rounded, but never its last sample."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.minimum(np.floor(share * counts + 0.5).astype(np.int64), counts - 1)
    inside = places_of_each(labels, seed) < quota[inverse]
    return np.flatnonzero(~inside), np.flatnonzero(inside)


def part_of_groups(
    labels: np.ndarray, groups: np.ndarray, share: float, seed: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions outside and inside a part of whole groups: of every label about its share, but never its last group.

    Groups come in a random order, and one is taken if that brings the labels' shares nearer to the share wanted: the sum of
    squared differences over labels falls.
    """
    names, place = np.unique(groups, return_inverse=True)
    _, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    table = sparse.csr_array((np.ones(len(labels)), (place, label)), shape=(len(names), len(counts)))
    table.sum_duplicates()
    left = np.bincount(table.indices, minlength=len(counts))  # groups of each label that are outside
    missing = np.full(len(counts), share)
    taken = np.zeros(len(names), dtype=bool)
    for group in np.random.default_rng(seed).permutation(len(names)):
        own = table.indices[table.indptr[group] : table.indptr[group + 1]]
        part = table.data[table.indptr[group] : table.indptr[group + 1]] / counts[own]
        if (left[own] > 1).all() and ((missing[own] - part) ** 2).sum() < (missing[own] ** 2).sum():
            taken[group] = True
            left[own] -= 1
            missing[own] -= part
    return np.flatnonzero(~taken[place]), np.flatnonzero(taken[place])


def group_column(names: Iterable[str], chosen: str | None, source: str) -> str | None:
    """The column that names groups: the one chosen; a warning where none was and one looks like it."""
    known = {name.lower(): name for name in names}
    if chosen is not None:
        if chosen.lower() not in known:
            raise DataError(
                f"{source}: groups must be a column. Got {chosen!r}; there are {listed(known.values(), 30)}."
                f"{nearest(chosen, list(known.values()))}"
            )
        return known[chosen.lower()]
    words = [name.removesuffix("_id").removesuffix("id").removesuffix("s") for name in known]
    alike = [name for word, name in zip(words, known.values(), strict=True) if word in GROUP_WORDS]
    if alike:
        warnings.warn(
            f"{source} has a column {alike[0]!r} that is not used. If its samples resemble each other, say so: --groups "
            f"{alike[0]} (groups={alike[0]!r}). Splits then keep them together, and guarantees are about new ones.",
            GroupWarning,
            stacklevel=4,
        )
    return None


def _inside(box: np.ndarray, width: int, height: int, name: str) -> tuple[int, int, int, int]:
    """A box x, y, w, h as left, top, right, bottom within an image of this width and height."""
    x, y, w, h = (float(v) for v in box)
    left, top = max(0, round(x)), max(0, round(y))
    right, bottom = min(width, round(x + w)), min(height, round(y + h))
    if right <= left or bottom <= top:
        raise DataError(
            f"{name}: the box must overlap the image of {width} x {height}. Got {x:g}, {y:g}, {w:g}, {h:g}."
        )
    return left, top, right, bottom


def chosen_hierarchy(
    given: HierarchyLike,
    root_node: bool | None,
    own: Callable[[], Hierarchy] | None = None,
    default: bool | None = None,
) -> Hierarchy:
    """The hierarchy to use."""
    root = root_node
    if given is not None:
        hierarchy = given if isinstance(given, Hierarchy) else read_hierarchy(given)
    elif own is not None:
        hierarchy, root = own(), default if root is None else root
    else:
        raise ConfigError("This dataset brings no hierarchy. Give one with --hierarchy (hierarchy=).")
    return hierarchy if root is None else hierarchy.with_root() if root else hierarchy.without_root()


def nodes_of(labels: Sequence[str], hierarchy: Hierarchy, source: str) -> np.ndarray:
    """Labels given by id or unique name, as node indices; messages call them `source`."""
    return label_nodes(np.array(labels, dtype=str), hierarchy, "id", source)


def check_exist(folder: Path, images: Sequence[str]) -> list[str]:
    """The images of a list below a folder, by the names they have there; refused if some are missing. Opens no image.

    A name on disk may write an accented letter with two characters, as Macs do, and the list with one.
    """
    places = {os.path.dirname(image) for image in images}
    there = {place: {composed(name): name for name in _names_in(folder / place)} for place in places}
    found, missing = [], []
    for image in images:
        place, name = os.path.split(image)
        known = there[place].get(composed(name))
        missing += [image] if known is None else []
        found.append(image if known in (None, name) else os.path.join(place, known))
    if missing:
        raise DataError(
            f"{folder}: every listed image must exist. {len(missing):,} of {len(images):,} are missing; the first is "
            f"{missing[0]}. Unpack the dataset again."
        )
    return found


def image_files(folder: Path) -> list[str]:
    """The images below a folder at any depth, as sorted relative paths, without hidden files and folders."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: the folder cannot be read: {error.strerror}.") from error

    found: list[str] = []
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "."]
        inside = os.path.relpath(place, folder).replace(os.sep, "/")
        for name in files:
            if name[0] != "." and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
                found.append(name if inside == "." else f"{inside}/{name}")
    return sorted(found)


def _names_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read: {error.strerror}.") from error
