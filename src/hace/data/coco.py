"""COCO annotations: one sample per box, cropped from its image; the boxes of an image are a group, which no split cuts.

    load_dataset("coco", "annotations/instances_train.json", images="train2017", test=0.2)

Categories and their supercategories are the hierarchy where none is given. A supercategory that is itself a category may label
boxes too, as a coarse label.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.checks import require
from hace.data.camera_traps import Box, numbered
from hace.data.dataset import Dataset
from hace.data.loading import (
    HierarchyLike,
    check_classes,
    check_exist,
    chosen_hierarchy,
    inside_folder,
    nodes_of,
)
from hace.data.split import Samples, ordered_splits, split_name, with_test
from hace.errors import DataError, DataWarning, FormatError, listed
from hace.files.documents import read_json
from hace.files.reading import read_image
from hace.hierarchy import Hierarchy

_PARTS = ("images", "annotations", "categories")
_NOWHERE = ("", "none")  # supercategories that mean none
_SLACK = 1.0  # pixels by which boxes may leave the image without a word: they are rounded


class BoxedImage(NamedTuple):
    """A box of an image."""

    path: str  # below the folder of images
    box: Box  # shares of the image's sides
    category: str


@dataclass
class Annotations:
    """The boxes of a file that are used.

    Attributes:
        boxes: one by one, in the order of the file.
        parents: the supercategory of each category, None for none.
        folder: where the images are.
        left_out: why annotations are left out, and how many.
        clipped: how many boxes reach beyond their image.
    """

    boxes: list[BoxedImage] = field(default_factory=list)
    parents: dict[str, str | None] = field(default_factory=dict)
    folder: Path = Path()
    left_out: Counter[str] = field(default_factory=Counter)
    clipped: int = 0


def is_coco(document: Any) -> bool:
    """Whether a JSON document is COCO annotations of boxes."""
    return isinstance(document, dict) and all(isinstance(document.get(part), list) for part in _PARTS)


def load_coco(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    images: str | None = None,
    padding: float = 0.1,
    crowd: bool = False,
    allow_empty: bool = False,
    test: float = 0.0,
) -> Dataset[Samples]:
    """Boxes of a file of COCO annotations, or of a folder with one in each of train/, val/ (or valid/) and test/.

    `images` is the folder of the images, by default that of the annotations, images/ or the one COCO names after them. Boxes
    are cropped with `padding`, a share of their sides. They are clipped to their image; those outside it, without area, or of
    a `crowd` (unless it is true) are left out, and counted in a warning.
    """
    require("padding", padding, "0 or more", padding >= 0)
    files = _split_files(root)
    annotated = {split: read_annotations(path, images, padding, crowd) for split, path in files.items()}
    h = chosen_hierarchy(hierarchy, root_node, lambda: _own_hierarchy(annotated.values(), root))
    splits = {}
    for split, path in files.items():
        own = annotated[split]
        _warn_of(own, path)
        if not own.boxes:
            raise DataError(f"{path}: must have boxes that can be used. Got none.")
        prefix = f"{path.parent.name}/" if root.is_dir() else ""
        splits[split] = _samples(own, h, path, prefix)
    if hierarchy is not None and not allow_empty:
        check_classes(str(root), h, splits.values())
    return Dataset(root.resolve().stem, h, with_test(splits, test, str(root)))


def _split_files(root: Path) -> dict[str, Path]:
    """The annotations of each split: of a file, "train"."""
    if not root.is_dir():
        return {"train": root}
    files: dict[str, Path] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        split = split_name(folder.name)
        own = sorted(folder.glob("*.json"))
        if split not in ("train", "val", "test") or not own:
            continue
        if len(own) > 1 or split in files:
            raise DataError(f"{root}: each split must have one file of annotations. Got several for {split}.")
        files[split] = own[0]
    if not files:
        raise DataError(
            f"{root}: must be a file of annotations, or have one in train/, val/ or test/. Got neither."
        )
    return {split: files[split] for split in ordered_splits(files)}


def _folder(path: Path, images: str | None, pictures: Iterable[Mapping[str, Any]]) -> Path:
    """The folder of the images: the one given, else the first of the usual ones that has the first image.

    Usual are that of the annotations, images/ in it or beside it, and, as COCO has them, one beside it whose name ends that of
    the file: annotations/instances_val2017.json and val2017/.
    """
    if images is not None:
        return Path(images)
    own = path.parent
    above = path.resolve().parent.parent
    name = next((row["file_name"] for row in pictures if isinstance(row.get("file_name"), str)), None)
    beside = (above / path.stem.rpartition("_")[2], above / "images", above)
    if name is None:
        return own
    name = inside_folder(name, own, str(path))
    return next((folder for folder in (own, own / "images", *beside) if (folder / name).is_file()), own)


def read_annotations(
    path: Path, images: str | None = None, padding: float = 0.0, crowd: bool = False
) -> Annotations:
    """The boxes of a file."""
    document = read_json(path)
    if not is_coco(document):
        raise FormatError(
            f"{path} must be COCO annotations: an object with the lists {', '.join(_PARTS)}. Got "
            f"{listed(document, 10) if isinstance(document, dict) else type(document).__name__}."
        )
    categories = _by_id(document["categories"], "category", path)
    pictures = _by_id(document["images"], "image", path)
    folder = _folder(path, images, pictures.values())
    used = Annotations(parents=_parents(categories, path), folder=folder)
    sizes: dict[Any, tuple[float, float]] = {}
    for place, row in enumerate(document["annotations"]):
        what = f"{path}: annotation {place}"
        if not isinstance(row, dict):
            raise FormatError(f"{what} must be an object. Got a {type(row).__name__}.")
        image = _referred(pictures, row.get("image_id"), f"{what}: image_id", "an image")
        category = _referred(categories, row.get("category_id"), f"{what}: category_id", "a category")
        if row.get("iscrowd") and not crowd:
            used.left_out["of crowds"] += 1
            continue
        if row.get("bbox") is None or row["bbox"] == []:
            used.left_out["without a box"] += 1
            continue
        box = _numbers(row["bbox"], f"{what}: bbox")
        key = row["image_id"]
        if key not in sizes:
            image["file_name"] = _file_name(image, folder, path)
            sizes[key] = _size(image, folder, path)
        fitted = _fitted(box, sizes[key], padding, used)
        if fitted is not None:
            used.boxes.append(BoxedImage(image["file_name"], fitted, category["name"]))
    return used


def _by_id(rows: Sequence[Any], what: str, path: Path) -> dict[Any, dict[str, Any]]:
    """Objects by their ids, which must be there once."""
    table: dict[Any, dict[str, Any]] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or not _is_id(row.get("id")):
            raise FormatError(f"{path}: {what} {place} must be an object with an id, a number or text.")
        if row["id"] in table:
            raise FormatError(f"{path}: ids must be unique. Got two of the {what} {row['id']!r}.")
        table[row["id"]] = dict(row)
    return table


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _referred(table: Mapping[Any, dict[str, Any]], id: Any, what: str, kind: str) -> dict[str, Any]:
    if not _is_id(id) or id not in table:
        raise FormatError(f"{what} must be {kind} of the file. Got {id!r}.")
    return table[id]


def _parents(categories: Mapping[Any, Mapping[str, Any]], path: Path) -> dict[str, str | None]:
    """The supercategory of each category."""
    parents: dict[str, str | None] = {}
    for id, row in categories.items():
        name = row.get("name")
        above = row.get("supercategory")
        if not isinstance(name, str) or not name.strip() or not isinstance(above, str | None):
            raise FormatError(f"{path}: category {id!r} must have a name, and text as its supercategory.")
        own = None if above is None or above.strip() in (*_NOWHERE, name) else above
        if parents.setdefault(name, own) != own:
            raise FormatError(
                f"{path}: a category must have one supercategory. Got {name!r} twice, below {parents[name]!r} and {own!r}."
            )
    return parents


def _own_hierarchy(files: Iterable[Annotations], root: Path) -> Hierarchy:
    """Categories below their supercategories, of all splits."""
    parents: dict[str, str | None] = {}
    for file in files:
        for name, above in file.parents.items():
            if parents.setdefault(name, above) != above:
                raise FormatError(
                    f"{root}: splits must agree on categories. Got {name!r} below {parents[name]!r} and {above!r}."
                )
    edges = [(above, name) for name, above in parents.items() if above is not None]
    return Hierarchy.from_edges(edges, nodes=list(parents), rooted=False)


def _file_name(image: Mapping[str, Any], folder: Path, path: Path) -> str:
    name = image.get("file_name")
    if not isinstance(name, str):
        raise FormatError(f"{path}: image {image['id']!r} must have a file_name. Got {name!r}.")
    return inside_folder(name, folder, str(path))


def _size(image: Mapping[str, Any], folder: Path, path: Path) -> tuple[float, float]:
    """Width and height of an image: as the file says, or as it is."""
    if image.get("width") is None or image.get("height") is None:
        picture = read_image(folder / image["file_name"])
        return float(picture.width), float(picture.height)
    size = _numbers([image["width"], image["height"]], f"{path}: image {image['id']!r}: width and height", 2)
    if min(size) <= 0:
        raise FormatError(f"{path}: image {image['id']!r} must have a width and height above 0. Got {size}.")
    return size[0], size[1]


def _numbers(value: Any, what: str, count: int = 4) -> tuple[float, ...]:
    """Finite numbers."""
    is_list = isinstance(value, list) and len(value) == count
    if not is_list or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
        raise FormatError(f"{what} must be {count} numbers. Got {str(value)[:100]}.")
    try:
        numbers = tuple(map(float, value))
    except OverflowError:
        numbers = (math.inf,)
    if not all(map(math.isfinite, numbers)):
        raise FormatError(f"{what} must be finite. Got {str(value)[:100]}.")
    return numbers


def _fitted(
    box: tuple[float, ...], size: tuple[float, float], padding: float, used: Annotations
) -> Box | None:
    """A box within its image, padded, as shares of the sides; None, counted, where nothing of it is inside."""
    x, y, w, h = box
    width, height = size
    if w <= 0 or h <= 0:
        used.left_out["without area"] += 1
        return None
    if x >= width or y >= height or x + w <= 0 or y + h <= 0:
        used.left_out["outside their image"] += 1
        return None
    beyond = max(-x, -y, x + w - width, y + h - height)
    used.clipped += beyond > _SLACK
    left = max(0.0, x - padding * w)
    top = max(0.0, y - padding * h)
    right = min(width, x + w + padding * w)
    bottom = min(height, y + h + padding * h)
    return left / width, top / height, (right - left) / width, (bottom - top) / height


def _warn_of(used: Annotations, path: Path) -> None:
    """Warn of boxes that are not used as they are."""
    parts = [f"{count:,} {why} are left out" for why, count in used.left_out.most_common()]
    if used.clipped:
        parts.append(f"{used.clipped:,} reach beyond their image and are clipped")
    if parts:
        total = len(used.boxes) + sum(used.left_out.values())
        warnings.warn(f"{path}: of {total:,} annotations, {', '.join(parts)}.", DataWarning, stacklevel=4)


def _samples(used: Annotations, h: Hierarchy, path: Path, prefix: str = "") -> Samples:
    """The samples of a split; ``prefix`` tells files of one name in two splits apart."""
    paths = [box.path for box in used.boxes]
    listed_once = list(dict.fromkeys(paths))
    try:
        there = check_exist(used.folder, listed_once)
    except DataError as error:
        raise DataError(f"{error} Or say where the images are: -o images=FOLDER (images=).") from error
    file_of = dict(zip(listed_once, there, strict=True))
    return Samples(
        hierarchy=h,
        nodes=nodes_of([box.category for box in used.boxes], h, str(path)),
        names=[prefix + name for name in numbered(paths)],
        paths=[used.folder / file_of[image] for image in paths],
        boxes=np.array([box.box for box in used.boxes]),
        relative=True,
        groups=np.array([prefix + image for image in paths]),
    )
