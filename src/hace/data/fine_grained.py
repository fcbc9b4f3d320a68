"""FGVC-Aircraft 2013b and NABirds as published: folders of images, with lists as text files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hace.data.dataset import (
    Dataset,
    HierarchyLike,
    Samples,
    check_classes,
    check_disjoint,
    check_exist,
    chosen_hierarchy,
    nodes_of,
)
from hace.errors import DataError, FormatError
from hace.files.archives import Archive, fetch, unpack
from hace.files.reading import read_text
from hace.formats import fgvc_hierarchy, nabirds_hierarchy

AIRCRAFT_ARCHIVE = Archive(
    "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
    "md5:d4acdd33327262359767eeaa97a4f732",
)
BANNER = 20  # rows of pixels with the photographer's credit, at the bottom of every image
_AIRCRAFT_PLACES = (".", "data", "fgvc-aircraft-2013b/data")
_AIRCRAFT_REMEDY = (
    "Give the folder that holds fgvc-aircraft-2013b/data/ with variants.txt, images_variant_train.txt and so on, and "
    f"images/, from {AIRCRAFT_ARCHIVE.url}; or fetch it: `hace data aircraft --root R --download` (download=True, 2.6 GB)."
)
_NABIRDS_PLACES = (".", "nabirds")
_NABIRDS_REMEDY = (
    "NABirds cannot be fetched for you: its owners ask for your agreement at https://dl.allaboutbirds.org/nabirds. Unpack "
    "their archive and give the folder nabirds/ with images/ (0817/....jpg and so on), images.txt, image_class_labels.txt, "
    "train_test_split.txt, bounding_boxes.txt, classes.txt and hierarchy.txt."
)


def load_aircraft(
    root: Path, hierarchy: HierarchyLike = None, root_node: bool | None = None, download: bool = False
) -> Dataset[Samples]:
    """FGVC-Aircraft: 6,667 training images (the official train and val) and 3,333 test images of 100 variants.

    `root` is the folder that holds fgvc-aircraft-2013b, or that folder, or its folder data. The line of credits at the bottom
    of every image is cut off. By default there is a root, as in the paper.
    """
    if download and not any((root / place / "variants.txt").is_file() for place in _AIRCRAFT_PLACES):
        unpack(fetch(AIRCRAFT_ARCHIVE, root), root)
    folder = _find_folder(root, _AIRCRAFT_PLACES, "variants.txt", _AIRCRAFT_REMEDY)
    h = chosen_hierarchy(hierarchy, root_node, lambda: fgvc_hierarchy(folder), default=True)
    variants = {line for _, line in _read_lines(folder / "variants.txt")}
    splits = {}
    for split, parts in (("train", ("train", "val")), ("test", ("test",))):
        labels: dict[str, str] = {}
        for part in parts:
            table = _part(folder, part, variants)
            if again := table.keys() & labels.keys():
                raise DataError(
                    f"{folder}: every image must be in one list. Got {min(again)!r} in images_variant_{part}.txt and "
                    "in an earlier one."
                )
            labels |= table
        nodes = nodes_of(list(labels.values()), h, str(folder))
        paths = [folder / "images" / f"{image}.jpg" for image in labels]
        names = [f"images/{image}.jpg" for image in labels]
        splits[split] = Samples(h, nodes, names, paths=paths, trim_bottom=BANNER)
    check_disjoint(str(folder), splits)
    check_exist(folder, [name for samples in splits.values() for name in samples.names])
    if hierarchy is None:
        check_classes(str(folder), h, splits.values())
    return Dataset("aircraft", h, splits)


def _part(folder: Path, part: str, variants: set[str]) -> dict[str, str]:
    """Image to variant; images_{part}.txt, if present, must list the same images."""
    path = folder / f"images_variant_{part}.txt"
    table = _read_table(path, "variant")
    for image, variant in table.items():
        if variant not in variants:
            raise DataError(f"{path}: every variant must be in variants.txt. Got {variant!r} for {image}.")
    listed = folder / f"images_{part}.txt"
    if listed.is_file():
        _same_images(path, table, listed, (line for _, line in _read_lines(listed)))
    return table


def load_nabirds(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    download: bool = False,
    *,
    crop: bool = False,
) -> Dataset[Samples]:
    """NABirds: 23,929 training and 24,633 test images of 555 classes, in the official split.

    `root` is the folder nabirds, or the one that holds it. A hierarchy in place of its own finds its nodes by the numbers of
    the classes; `crop` crops each image to its bounding box. By default there is the root, as in the paper.
    """
    folder = _find_folder(
        root, _NABIRDS_PLACES, "images.txt", _NABIRDS_REMEDY
    )  # `download` has no other answer
    h = chosen_hierarchy(hierarchy, root_node, lambda: nabirds_hierarchy(folder), default=True)
    files = _read_table(folder / "images.txt", "file")
    labels = _beside(folder, "image_class_labels.txt", "class", files)
    split_of = _beside(folder, "train_test_split.txt", "split (1 train, 0 test)", files)
    boxes = _boxes(folder, files) if crop else None
    for image, value in split_of.items():
        if value not in ("0", "1"):
            raise FormatError(
                f"{folder / 'train_test_split.txt'}: a split must be 1 (train) or 0 (test). Got {value!r} for image {image}."
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
    """A table of the dataset; it must list the same images as images.txt."""
    table = _read_table(folder / file, what)
    _same_images(folder / "images.txt", images, folder / file, table)
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


def _find_folder(root: Path, places: Iterable[str], needed: str, remedy: str) -> Path:
    """The first of some places below a folder that holds a needed file; without one, an error with the remedy."""
    for place in places:
        if (root / place / needed).is_file():
            return root / place
    there = f"must hold {needed}" if root.is_dir() else "must be a folder. Got a file"
    raise DataError(f"{root}: {there if root.exists() else 'the folder does not exist'}. {remedy}")


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of every non-blank line of a text file that has any."""
    text = read_text(path)
    if not text.strip():
        raise FormatError(f"{path}: must not be empty. Is the dataset complete?")
    lines = enumerate(text.replace("\r\n", "\n").split("\n"), 1)
    return ((number, line.strip()) for number, line in lines if line.strip())


def _read_table(path: Path, what: str) -> dict[str, str]:
    """Lines "image value" as a mapping, each image once; `what` is what messages call the values."""
    table: dict[str, str] = {}
    for number, line in _read_lines(path):
        image, _, value = line.partition(" ")
        if not value.strip():
            raise FormatError(f"{path}, line {number}: must be an image and its {what}. Got {line!r}.")
        if image in table:
            raise FormatError(f"{path}, line {number}: every image must occur once. Got {image!r} again.")
        table[image] = value.strip()
    return table


def _same_images(first: Path, ours: Iterable[str], second: Path, theirs: Iterable[str]) -> None:
    """Refuse two files that do not list the same images."""
    a, b = dict.fromkeys(ours), dict.fromkeys(theirs)
    for here, there, left, right in ((first, second, a, b), (second, first, b, a)):
        missing = [image for image in left if image not in right]
        if missing:
            raise DataError(
                f"{here} has {len(left):,} images and {there.name} {len(right):,}: {len(missing):,} are in {here.name} only; "
                f"the first is {missing[0]!r}. One of the files is cut off or from another version."
            )
