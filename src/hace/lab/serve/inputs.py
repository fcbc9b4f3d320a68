"""Inputs of a model: images from files, folders, lists or memory, and features, in batches.

Memory holds names and one batch, so a folder may have any number of images. An image that cannot be read is an entry of its
batch, not an error: the caller decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from hace.data.batches import Attempts
from hace.data.camera_traps import Box, numbered, read_detections
from hace.data.coco import is_coco, read_annotations
from hace.data.feature_files import feature_groups, feature_parts
from hace.data.loading import IMAGE_COLUMNS, group_column, image_files
from hace.data.own_lists import text_rows
from hace.errors import ConfigError, DataError, FormatError, nearest
from hace.files.arrays import Parquet
from hace.files.documents import read_json, read_rows
from hace.files.reading import as_rgb, optional, read_image
from hace.lab.features.store import MANIFEST, FeatureStore
from hace.lab.runs.run import RUN

_LISTS = (".csv", ".tsv")
_LONGEST_PATH = 1000  # letters: what is longer is a text
LONGEST = 1000  # ratio of an image's sides
FEATURES = (".npy", ".npz", ".safetensors", ".parquet")


EMPTY = "no animal was detected"


class Broken(NamedTuple):
    """An image that cannot be read, or, with the reason EMPTY, shows nothing to answer about."""

    place: int  # among all samples that were given
    name: str
    reason: str


class Crop(NamedTuple):
    """A part of an image file; ``relative``: the box is in shares of its sides, otherwise in pixels."""

    path: Path
    box: Box
    relative: bool = True

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class ImageList:
    """Images, not opened yet."""

    names: Sequence[str]  # for the output
    images: Sequence[Any]  # a path, a crop, a PIL image or a uint8 array (H, W, 3) each
    empty: Sequence[str] = ()  # names of images in which a detector found nothing
    groups: Sequence[str] | None = None  # of each image

    def __len__(self) -> int:
        return len(self.names)

    def batches(
        self, transform: Callable[[Any], Tensor], batch_size: int, workers: int = 0
    ) -> Iterator[tuple[list[str], Tensor | None, list[Broken]]]:
        """For each batch the names of its images, the images (B, 3, H, W) or None if all are broken, and what is broken."""
        loader = torch_data.DataLoader(
            Attempts(partial(_opened, self.images, transform)),
            batch_size=batch_size,
            sampler=range(len(self)),
            num_workers=workers,
            collate_fn=list,
            generator=torch.Generator(),  # its default would draw from the one of the whole process
        )
        start = 0
        for opened in loader:
            names = []
            whole = []
            broken = []
            for at, image in enumerate(opened, start):
                if isinstance(image, Tensor):
                    names.append(self.names[at])
                    whole.append(image)
                else:
                    broken.append(Broken(at, self.names[at], str(image).removeprefix(f"{self.images[at]}: ")))
            yield names, torch.stack(whole) if whole else None, broken
            start += len(opened)


@dataclass(frozen=True)
class FeatureRows:
    """Features, in memory or mapped."""

    parts: Sequence[tuple[Sequence[str], np.ndarray]]  # names and features (M, d), one part after the other
    about: dict[str, Any] | None = None  # of `hace features`: the model and the preprocessing behind them
    groups: Sequence[str] | None = None  # of each row

    def __len__(self) -> int:
        return sum(len(x) for _, x in self.parts)

    def batches(self, batch_size: int) -> Iterator[tuple[list[str], np.ndarray]]:
        """For each batch the names of its samples, and their features."""
        for names, x in self.parts:
            for start in range(0, len(x), batch_size):
                rows = slice(start, start + batch_size)
                yield list(names[rows]), np.asarray(x[rows])


@dataclass(frozen=True)
class TextList(ImageList):
    """Texts; `images` holds them, and `names` what they are called in the output."""

    def batches(
        self, transform: Callable[[Any], Any], batch_size: int, workers: int = 0
    ) -> Iterator[tuple[list[str], Any, list[Broken]]]:
        """For each batch the names of its texts, the texts, and nothing that is broken."""
        for start in range(0, len(self), batch_size):
            rows = slice(start, start + batch_size)
            yield list(self.names[rows]), [transform(text) for text in self.images[rows]], []


def as_texts(given: Any, column: str | None = None) -> TextList | FeatureRows:
    """What a caller gives a model of texts: texts, a .csv or .tsv table with a column of them, or features."""
    if isinstance(given, (TextList, FeatureRows)):
        return given
    items = given
    if isinstance(given, (str, Path)):
        items = [given]
    elif getattr(given, "ndim", 0) == 1:  # an array or a column
        items = given.tolist()
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, (str, Path)) for item in items):
        inputs = as_inputs(given)
        if isinstance(inputs, FeatureRows):
            return inputs
        raise ConfigError(f"Give texts, a CSV table of them, or features (M, d). Got {type(given).__name__}.")
    texts: list[str] = []
    for item in map(str, items):
        path = Path(item) if len(item) < _LONGEST_PATH else None
        listed = path is not None and _is_list(path, (column or "text",))
        if (
            path is not None
            and not listed
            and (path.suffix.lower() in FEATURES or (path / MANIFEST).is_file())
        ):
            inputs = read_inputs(path)
            assert isinstance(inputs, FeatureRows)
            return inputs
        if path is not None and listed:
            texts += [row[column or "text"].strip() for _, row in text_rows(path, column or "text")]
        else:
            texts.append(item)
    return TextList(texts, texts)


def read_inputs(
    path: str | Path, boxes: Mapping[str, Any] | None = None, groups: str | None = None
) -> ImageList | FeatureRows:
    """The samples at a path: an image or a folder of images, a list (.csv, .tsv, .parquet) with a column "path", a .json
    of MegaDetector or COCO, whose ``boxes`` say how to crop, a file of features, or a folder of `hace features`; ``groups`` is
    the column that names them.
    """
    path = Path(path)
    if (path / MANIFEST).is_file():
        return _stored(path)
    if path.is_dir():
        images = [path / image for image in image_files(path)]
        if not images:
            raise DataError(f"{path} holds no image, at any depth. Images have names such as a.jpg or b.png.")
        return ImageList([str(image) for image in images], images)
    if not path.is_file():
        raise FormatError(
            f"{path} does not exist. Give an image, a folder, a CSV list with a column path, or features."
        )
    if _is_list(path, IMAGE_COLUMNS):
        return _list(path, groups)
    if path.suffix.lower() == ".json":
        return _detected(path, **(boxes or {}))
    if path.suffix.lower() in FEATURES:
        parts = feature_parts(path, groups).items()
        rows = [_named(x, f"{split}/" if split else "") for split, x in parts]
        grouped = None if groups is None else feature_groups(path, groups, list(dict(parts)))
        return FeatureRows(rows, None, grouped)
    return ImageList([str(path)], [path])


def _is_list(path: Path, columns: Sequence[str]) -> bool:
    """Whether a file lists samples, one per row: a table of text, or a .parquet with one of these columns."""
    if path.suffix.lower() != ".parquet":
        return path.suffix.lower() in _LISTS
    if not path.is_file():
        return False
    table = Parquet(path)
    return not table.holds_lists and any(
        name.casefold() in map(str.casefold, columns) for name in table.names
    )


def as_inputs(
    given: Any, boxes: Mapping[str, Any] | None = None, groups: str | None = None
) -> ImageList | FeatureRows:
    """What a caller gives: a path, an image, several of either, or an array of features; ``groups`` of one list or file."""
    if groups is not None:
        return _in_groups(given, groups)
    if isinstance(given, (ImageList, FeatureRows)):
        return given
    if isinstance(given, (str, Path)):
        return read_inputs(given, boxes)
    if isinstance(given, Tensor) and given.is_floating_point():
        given = given.detach().cpu().float().numpy()
    if isinstance(given, np.ndarray) and np.issubdtype(given.dtype, np.floating):
        return FeatureRows([_named(given[None] if given.ndim == 1 else given)])
    items: Any = [given] if _is_image(given) else given
    if not isinstance(items, (Sequence, np.ndarray)) or not all(
        _is_image(item) or isinstance(item, (str, Path)) for item in items
    ):
        raise ConfigError(
            "Give a path, an image (PIL, or a uint8 array (H, W, 3)), several of them, or features: floating-point (M, d). "
            f"Got {type(given).__name__}."
        )
    if len(items) == 1 and isinstance(items[0], (str, Path)):
        return read_inputs(items[0], boxes)
    return _several(items, boxes)


def _in_groups(given: Any, groups: str) -> ImageList | FeatureRows:
    """One list or feature file, with the groups of its samples."""
    path = given[0] if isinstance(given, list) and len(given) == 1 else given
    inputs = read_inputs(path, groups=groups) if isinstance(path, (str, Path)) else None
    if inputs is None or inputs.groups is None:
        raise ConfigError(
            f"--groups {groups} must come with one list (.csv, .tsv) or feature file that has it as a column."
        )
    return inputs


def _several(items: Sequence[Any] | np.ndarray, boxes: Mapping[str, Any] | None) -> ImageList:
    """The images among several paths and images, in their order."""
    parts: list[ImageList] = []
    for i, item in enumerate(items):
        inputs = ImageList([f"{i:06d}"], [item])
        if isinstance(item, (str, Path)):
            if (Path(item) / RUN).is_file():
                raise ConfigError(f"INPUT must be images. Got the run {item}: ask one run at a time.")
            # One that does not exist is listed among the broken ones.
            inputs = read_inputs(item, boxes) if Path(item).exists() else ImageList([str(item)], [Path(item)])
        if isinstance(inputs, FeatureRows):
            rule = "INPUT must be one path, or several of images"
            raise ConfigError(f"{rule}. Got the features {item} among others.")
        parts.append(inputs)
    joined = ([x for part in parts for x in getattr(part, key)] for key in ("names", "images", "empty"))
    return ImageList(*joined)


def _detected(path: Path, confidence: float = 0.2, padding: float = 0.1, all: bool = False) -> ImageList:
    """Crops of the images that MegaDetector looked at, or of COCO's boxes; a second box of an image is named image#2."""
    document = read_json(path)
    if is_coco(document):
        used = read_annotations(path, padding=padding, crowd=True)
        crops = [Crop(used.folder / box.path, box.box) for box in used.boxes]
        return ImageList(numbered(box.path for box in used.boxes), crops)
    detections = read_detections(path, confidence, padding)
    crops = [(file, box) for file, boxes in detections.items() for box in boxes[: None if all else 1]]
    empty = [file for file, boxes in detections.items() if not boxes]
    names = numbered(file for file, _ in crops)
    return ImageList(names, [Crop(path.parent / file, box) for file, box in crops], empty)


def _is_image(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 3 and value.shape[-1] == 3
    return hasattr(value, "convert") and hasattr(value, "getbands")


def _list(path: Path, groups: str | None = None) -> ImageList:
    """The images of a list, and the column of their groups; other columns do not matter."""
    header, rows = read_rows(path)
    known = {name.casefold(): name for name in header}
    images = next((known[name] for name in IMAGE_COLUMNS if name in known), None)
    if images is None:
        raise FormatError(
            f"{path} must have a header with the column 'path'. Its first line has {', '.join(known) or 'nothing'}."
            f"{nearest('path', known)}"
        )
    column = None if groups is None else group_column(header, groups, str(path))
    names = [row[images].strip() for _, row in rows]
    if "" in names:
        raise FormatError(f"{path}, line {rows[names.index('')][0]}: there is no path.")
    if not names:
        raise DataError(f"{path}: the list has no images.")
    grouped = None if column is None else [row[column].strip() for _, row in rows]
    return ImageList(names, [path.parent / name for name in names], groups=grouped)


def _stored(folder: Path) -> FeatureRows:
    store = FeatureStore(folder)
    parts = []
    for split in store.counts:
        start = 0
        names = store.names(split)
        for x in store.shards(split):
            parts.append((names[start : start + len(x)], x))
            start += len(x)
    return FeatureRows(parts, store.about)


def _named(x: np.ndarray, prefix: str = "") -> tuple[list[str], np.ndarray]:
    """Features (M, d) with a name each, or an error."""
    if x.ndim != 2 or not x.shape[1] or not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"Features must be floating-point numbers (M, d). Got {x.dtype} {x.shape}.")
    return [f"{prefix}{i:06d}" for i in range(len(x))], x


def _opened(images: Sequence[Any], transform: Callable[[Any], Tensor], index: int) -> Tensor:
    """A transformed image by position."""
    image = images[index]
    if isinstance(image, Crop):
        x, y, w, h = image.box
        scaled = image.relative
        image = read_image(image.path)
        wide, high = image.size if scaled else (1, 1)
        image = image.crop((round(x * wide), round(y * high), round((x + w) * wide), round((y + h) * high)))
    elif isinstance(image, Path):
        image = read_image(image)
    elif isinstance(image, np.ndarray):
        image = optional("PIL.Image", "Making images").fromarray(image)
    width, height = image.size
    if max(image.size) > LONGEST * min(image.size):  # resized to the model's height it would not fit
        size = f"{width} x {height} pixels"
        raise DataError(f"{images[index]}: the image has {size}, too narrow for its length.")
    return transform(as_rgb(image))
