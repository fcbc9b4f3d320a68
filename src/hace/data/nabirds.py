"""NABirds as published: the folder nabirds with images and lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hace.data.dataset import Dataset, check_classes, check_disjoint
from hace.data.listings import (
    HierarchyLike,
    check_exist,
    chosen_hierarchy,
    find_folder,
    nodes_of,
    read_table,
    same_images,
)
from hace.data.samples import Samples
from hace.errors import DataError, FormatError
from hace.formats import nabirds_hierarchy

_PLACES = (".", "nabirds")
_REMEDY = (
    "NABirds cannot be fetched for you: its owners ask for your agreement at https://dl.allaboutbirds.org/nabirds. Unpack "
    "their archive and give the folder nabirds/ with images/ (0817/....jpg and so on), images.txt, image_class_labels.txt, "
    "train_test_split.txt, bounding_boxes.txt, classes.txt and hierarchy.txt."
)


def load_nabirds(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    download: bool = False,
    *,
    crop: bool = False,
) -> Dataset[Samples]:
    """NABirds: 23,929 training and 24,633 test images of 555 classes, in the official split.

    Args:
        root: The folder nabirds, or the one that holds it.
        hierarchy: A hierarchy in place of the data set's own; its nodes are found by the numbers of the classes.
        root_node: Whether to have the root; by default yes, as in the paper.
        download: Not possible; the message says what to do.
        crop: Crop each image to its bounding box.

    Raises:
        DataError: It is missing or incomplete.
        FormatError: A file is damaged.
    """
    try:
        folder = find_folder(root, _PLACES, "images.txt", _REMEDY)
    except DataError:
        if download:
            raise DataError(f"{root}: must hold NABirds. {_REMEDY}") from None
        raise
    h = chosen_hierarchy(hierarchy, root_node, lambda: nabirds_hierarchy(folder), default=True)
    files = read_table(folder / "images.txt", "file")
    labels = _beside(folder, "image_class_labels.txt", "class", files)
    split_of = _beside(folder, "train_test_split.txt", "split (1 train, 0 test)", files)
    boxes = _boxes(folder, files) if crop else None
    strange = [(image, value) for image, value in split_of.items() if value not in ("0", "1")]
    if strange:
        raise FormatError(
            f"{folder / 'train_test_split.txt'}: a split must be 1 (train) or 0 (test). Got {strange[0][1]!r} for the image "
            f"{strange[0][0]}."
        )
    images = list(files)
    nodes = nodes_of([labels[image] for image in images], h, str(folder / "image_class_labels.txt"))
    in_train = np.array([split_of[image] == "1" for image in images])
    splits = {}
    for split, mask in (("train", in_train), ("test", ~in_train)):
        chosen = np.flatnonzero(mask)
        names = [f"images/{files[images[i]]}" for i in chosen]
        paths = [folder / name for name in names]
        cut = None if boxes is None else boxes[chosen]
        splits[split] = Samples(h, nodes[chosen], names, paths=paths, boxes=cut)
    check_disjoint(str(folder), splits)
    check_exist(folder, [f"images/{name}" for name in files.values()])
    if hierarchy is None:
        check_classes(str(folder), h, splits.values())
    return Dataset("nabirds", h, splits)


def _beside(folder: Path, file: str, what: str, images: dict[str, str]) -> dict[str, str]:
    """A table of the data set; it must list the same images as images.txt."""
    table = read_table(folder / file, what)
    same_images(folder / "images.txt", images, folder / file, table)
    return table


def _boxes(folder: Path, images: dict[str, str]) -> np.ndarray:
    """(M, 4) x, y, width, height in the order of images.txt."""
    table = _beside(folder, "bounding_boxes.txt", "box", images)
    try:
        boxes = np.array([[int(part) for part in table[image].split()] for image in images])
        if boxes.shape == (len(images), 4):
            return boxes
    except ValueError:
        pass
    raise FormatError(f"{folder / 'bounding_boxes.txt'}: every line must be an image and four integers.")
