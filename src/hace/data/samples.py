"""One split of a data set: a label for each sample, with its image or its features."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hace.errors import DataError
from hace.files.reading import optional, read_image
from hace.hierarchy import Hierarchy

if TYPE_CHECKING:
    from PIL.Image import Image
    from typing_extensions import Self


@dataclass(frozen=True, eq=False)
class Split(ABC):
    """What every split has: labels, which may be nodes at any level, and a name for each sample.

    Attributes:
        hierarchy: The classes.
        nodes: int64 (M,), for each sample the index of its label in `hierarchy.nodes`.
        names: A stable name for each sample, such as its path below the data set's folder.
    """

    hierarchy: Hierarchy
    nodes: np.ndarray
    names: Sequence[str]

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
        self._same_length("names", self.names)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def labels(self) -> np.ndarray:
        """int64 (M,): the samples' leaf labels.

        Raises:
            DataError: Some samples are labelled with inner nodes, which have no leaf label. `nodes` has them all.
        """
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
        return replace(self, **self._at(indices))

    @classmethod
    def joined(cls, splits: Sequence[Self]) -> Self:
        """Several splits of one data set, one after another."""
        together = {
            "nodes": np.concatenate([split.nodes for split in splits]),
            "names": [name for split in splits for name in split.names],
        }
        return replace(splits[0], **together, **cls._together(splits))

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """For each sample the bytes that represent its content in a fingerprint."""

    @classmethod
    @abstractmethod
    def _together(cls, splits: Sequence[Any]) -> dict[str, Any]:
        """The fields of a subclass, joined."""

    def _at(self, indices: np.ndarray) -> dict[str, Any]:
        return {"nodes": self.nodes[indices], "names": [self.names[i] for i in indices]}

    def _same_length(self, what: str, values: Any) -> None:
        if len(values) != len(self.nodes):
            raise DataError(
                f"{what} must have one entry for each of {len(self.nodes)} samples. Got {len(values)}."
            )


@dataclass(frozen=True, eq=False)
class Samples(Split):
    """Images with labels, in memory or on disk.

    Attributes:
        pixels: uint8 (M, 3, H, W), for images in memory.
        paths: Their files, for images on disk.
        boxes: (M, 4) x, y, width, height: the part of each image to use; None for all of it.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.pixels is None) == (self.paths is None):
            raise DataError("Samples must have either pixels or paths.")
        if self.pixels is not None:
            shape = tuple(self.pixels.shape)
            if self.pixels.dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3:
                raise DataError(f"pixels must be uint8 (M, 3, H, W). Got {self.pixels.dtype} {shape}.")
            self._same_length("pixels", self.pixels)
        if self.paths is not None:
            self._same_length("paths", self.paths)
        if self.boxes is not None:
            if np.shape(self.boxes)[1:] != (4,):
                raise DataError(f"boxes must be (M, 4): x, y, width, height. Got {np.shape(self.boxes)}.")
            self._same_length("boxes", self.boxes)

    def image(self, index: int) -> Image:
        """One image as a PIL image in RGB, cropped by `trim_bottom` and `boxes`.

        Raises:
            DataError: The file is missing, truncated or not an image; names its path.
        """
        if self.pixels is not None:
            array = self.pixels[index].permute(1, 2, 0).cpu().numpy()
            image = optional("PIL.Image", "Making images").fromarray(array)
        else:
            assert self.paths is not None
            image = read_image(self.paths[index])
        if self.trim_bottom:
            image = image.crop((0, 0, image.width, max(1, image.height - self.trim_bottom)))
        if self.boxes is not None:
            image = image.crop(inside(self.boxes[index], image.width, image.height, self.names[index]))
        return image

    def content(self) -> Iterator[bytes]:
        """The pixels; for images on disk their sizes, since reading every image takes minutes."""
        for i in range(len(self)):
            crop = b"" if self.boxes is None else np.asarray(self.boxes[i], "<f8").tobytes()
            yield self.raw(i) + f" {self.trim_bottom} ".encode() + crop

    def raw(self, index: int) -> bytes:
        """An image's pixels before any crop; on disk the size of its file."""
        if self.pixels is not None:
            return self.pixels[index].cpu().contiguous().numpy().tobytes()
        assert self.paths is not None
        return str(file_size(self.paths[index])).encode()

    @classmethod
    def _together(cls, splits: Sequence[Samples]) -> dict[str, Any]:
        if len({(s.pixels is None, s.boxes is None, s.trim_bottom) for s in splits}) > 1:
            raise DataError("Splits to join must be cropped alike, and all in memory or all on disk.")
        pixels = [s.pixels for s in splits if s.pixels is not None]
        paths = [path for s in splits if s.paths is not None for path in s.paths]
        boxes = [s.boxes for s in splits if s.boxes is not None]
        return {
            "pixels": torch.cat(pixels) if pixels else None,
            "paths": None if pixels else paths,
            "boxes": np.concatenate(boxes) if boxes else None,
        }

    def _at(self, indices: np.ndarray) -> dict[str, Any]:
        return super()._at(indices) | {
            "pixels": None if self.pixels is None else self.pixels[torch.from_numpy(indices)],
            "paths": None if self.paths is None else [self.paths[i] for i in indices],
            "boxes": None if self.boxes is None else self.boxes[indices],
        }


@dataclass(frozen=True, eq=False)
class Features(Split):
    """Frozen features with labels.

    Attributes:
        x: float32 or float16 (M, d); a memory map if the file allows it, so that rows are read when they are used.
    """

    x: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.x.ndim != 2 or self.x.dtype not in (np.float32, np.float16):
            raise DataError(f"x must be float32 or float16 (M, d). Got {self.x.dtype} {self.x.shape}.")
        self._same_length("x", self.x)

    @property
    def num_features(self) -> int:
        """The length d of a feature vector."""
        return self.x.shape[1]

    def content(self) -> Iterator[bytes]:
        """The rows of x."""
        return (row.tobytes() for row in self.x)

    @classmethod
    def _together(cls, splits: Sequence[Features]) -> dict[str, Any]:
        return {"x": np.concatenate([s.x for s in splits])}

    def _at(self, indices: np.ndarray) -> dict[str, Any]:
        return super()._at(indices) | {"x": self.x[indices]}


def inside(box: np.ndarray, width: int, height: int, name: str) -> tuple[int, int, int, int]:
    """A box x, y, w, h as left, top, right, bottom within an image.

    Args:
        box: x, y, width, height.
        width: Of the image.
        height: Of the image.
        name: What messages call the image.

    Example:
        >>> inside(np.array([-2, 1, 10, 4]), 6, 8, "a.jpg")
        (0, 1, 6, 5)
    """
    x, y, w, h = (float(v) for v in box)
    left, top = max(0, round(x)), max(0, round(y))
    right, bottom = min(width, round(x + w)), min(height, round(y + h))
    if right <= left or bottom <= top:
        raise DataError(
            f"{name}: the box must overlap the image of {width} x {height}. Got {x:g}, {y:g}, {w:g}, {h:g}."
        )
    return left, top, right, bottom


def file_size(path: Path) -> int:
    """The size of a file in bytes.

    Raises:
        DataError: It cannot be reached.
    """
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be reached: {error.strerror}.") from error
