"""FGVC-Aircraft 2013b and NABirds as published, folders of images with lists as text files; and CIFAR-100, in either form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hace.data.dataset import Dataset
from hace.data.loading import (
    HierarchyLike,
    check_classes,
    check_disjoint,
    check_exist,
    chosen_hierarchy,
    nodes_of,
)
from hace.data.split import Samples
from hace.errors import DataError, FormatError
from hace.files.archives import Archive, fetch, read_members, unpack
from hace.files.pickles import read_cifar_pickle
from hace.files.reading import read_bytes, read_text
from hace.formats import cifar100_hierarchy, fgvc_hierarchy, nabirds_hierarchy

AIRCRAFT_ARCHIVE = Archive(
    "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
    "md5:d4acdd33327262359767eeaa97a4f732",
)
BANNER = 20  # rows of pixels with the photographer's credit, at the bottom of every image
_AIRCRAFT_PLACES = (".", "data", "fgvc-aircraft-2013b/data")
_AIRCRAFT_REMEDY = (
    "Give the folder that holds fgvc-aircraft-2013b/data/ with variants.txt, images_variant_train.txt and so on, and "
    f"images/, from {AIRCRAFT_ARCHIVE.url}; or fetch it: `hace data aircraft --data-root R --download` (download=True, 2.6 GB)."
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
    check_disjoint(str(folder), {split: samples.names for split, samples in splits.items()})
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
    # `download` has no other answer.
    folder = _find_folder(root, _NABIRDS_PLACES, "images.txt", _NABIRDS_REMEDY)
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
    check_disjoint(str(folder), {split: samples.names for split, samples in splits.items()})
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
    a = dict.fromkeys(ours)
    b = dict.fromkeys(theirs)
    for here, there, left, right in ((first, second, a, b), (second, first, b, a)):
        missing = [image for image in left if image not in right]
        if missing:
            raise DataError(
                f"{here} has {len(left):,} images and {there.name} {len(right):,}: {len(missing):,} are in {here.name} only; "
                f"the first is {missing[0]!r}. One of the files is cut off or from another version."
            )


CIFAR100_ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"
)
COUNTS = {"train": 50_000, "test": 10_000}
PIXELS = 3 * 32 * 32
MAX_FILE = 1 << 28  # bytes; the largest has 155 million
# Where each version keeps its splits and the names of its classes.
VERSIONS = {
    "python": {"train": "train", "test": "test", "names": "meta"},
    "binary": {"train": "train.bin", "test": "test.bin", "names": "fine_label_names.txt"},
}
_CIFAR_REMEDY = (
    "Give the folder that holds cifar-100-python/ (files train, test, meta) or cifar-100-binary/ (train.bin, test.bin), or "
    f"the archive itself, from {CIFAR100_ARCHIVE.url}; or fetch it: `hace data cifar100 --data-root R --download` "
    "(download=True)."
)


class Records(NamedTuple):
    """A split as the files hold it: uint8 (M, 3072), and labels (M,)."""

    pixels: np.ndarray
    fine: np.ndarray
    coarse: np.ndarray


def load_cifar100(
    root: Path, hierarchy: HierarchyLike = None, root_node: bool | None = None, download: bool = False
) -> Dataset[Samples]:
    """CIFAR-100 in memory: 50,000 training and 10,000 test images of 32 x 32 pixels.

    A hierarchy in place of its own finds its nodes by the names of the classes; by default there is no root, as in the paper.
    """
    if download and _cifar_files(root) is None:
        unpack(fetch(CIFAR100_ARCHIVE, root), root)
    place = _cifar_files(root)
    if place is None:
        raise DataError(
            f"{root}: it {'holds no CIFAR-100' if root.exists() else 'does not exist'}. {_CIFAR_REMEDY}"
        )
    version, files = place
    own = cifar100_hierarchy()
    h = chosen_hierarchy(hierarchy, root_node, lambda: own, default=False)
    class_nodes = nodes_of(own.leaves, h, "the classes of CIFAR-100")
    splits = {}
    for split, count in COUNTS.items():
        name = VERSIONS[version][split]
        read = _read_pickle if version == "python" else _read_binary
        records = read(files[name], f"{root}: {name}")
        _check_records(records, count, f"{root}: {name}")
        pixels = torch.from_numpy(records.pixels.reshape(-1, 3, 32, 32).copy())
        names = [f"{split}/{i:05d}" for i in range(count)]
        splits[split] = Samples(h, class_nodes[records.fine], names, pixels)
    _check_names(version, files, root)
    return Dataset("cifar100", h, splits)


def _cifar_files(root: Path) -> tuple[str, Mapping[str, bytes]] | None:
    """The version that is there, and the contents of its files."""
    for version, parts in VERSIONS.items():
        for folder in (root, root / f"cifar-100-{version}"):
            if all((folder / parts[split]).is_file() for split in COUNTS):
                names = [name for name in parts.values() if (folder / name).is_file()]
                return version, {name: read_bytes(folder / name, MAX_FILE) for name in names}
    archives = [root] if root.is_file() else [root / f"cifar-100-{v}.tar.gz" for v in VERSIONS]
    for archive in archives:
        if archive.is_file():
            wanted = {name for parts in VERSIONS.values() for name in parts.values()}
            files = read_members(archive, wanted, MAX_FILE)
            for version, parts in VERSIONS.items():
                if all(parts[split] in files for split in COUNTS):
                    return version, files
            raise DataError(f"{archive}: must hold the files train and test. {_CIFAR_REMEDY}")
    return None


def _read_pickle(data: bytes, source: str) -> Records:
    """Pixels and labels of a file of the Python version."""
    content = read_cifar_pickle(data, source)
    pixels = content.get("data")
    if not isinstance(pixels, np.ndarray):
        raise FormatError(f"{source}: must have an array 'data'. Is this a file of CIFAR-100?")
    labels = []
    for key in ("fine_labels", "coarse_labels"):
        values = content.get(key)
        if not isinstance(values, list) or not all(type(v) is int for v in values):
            raise FormatError(f"{source}: {key!r} must be a list of integers. Is this a file of CIFAR-100?")
        labels.append(np.asarray(values))
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or any(len(v) != len(pixels) for v in labels):
        shapes = f"{pixels.shape} pixels, {len(labels[0])} fine and {len(labels[1])} coarse labels"
        raise DataError(f"{source}: must have M x {PIXELS} pixels and M labels of each kind. Got {shapes}.")
    return Records(pixels, *labels)


def _read_binary(data: bytes, source: str) -> Records:
    """Records of one byte coarse label, one byte fine label, 3,072 bytes of pixels."""
    if not data or len(data) % (PIXELS + 2):
        raise FormatError(
            f"{source}: must be whole records of {PIXELS + 2} bytes. Got {len(data):,} bytes. It is cut off: fetch it again."
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, PIXELS + 2)
    return Records(rows[:, 2:], rows[:, 1].astype(np.int64), rows[:, 0].astype(np.int64))


def _check_records(records: Records, count: int, source: str) -> None:
    """Compare with CIFAR-100 as published: the count, equally many of each class, and the superclasses."""
    if len(records.fine) != count:
        raise DataError(f"{source}: must have {count:,} images. Got {len(records.fine):,}. Fetch it again.")
    own = cifar100_hierarchy()
    n = own.num_leaves
    groups = sorted(own.tops)  # the official numbers follow the alphabet
    for what, labels, limit in (("fine", records.fine, n), ("coarse", records.coarse, len(groups))):
        if labels.min() < 0 or labels.max() >= limit:
            raise DataError(
                f"{source}: {what} labels must be from 0 to {limit - 1}. Got {labels.min()} to {labels.max()}."
            )
    counts = np.bincount(records.fine, minlength=n)
    if counts.min() != counts.max():
        few = int(counts.argmin())
        words = f"{counts[few] or 'no'} images"
        raise DataError(
            f"{source}: every class must have {count // n} images. {own.leaves[few]!r} has {words}. Fetch it again."
        )
    above = np.array([groups.index(own.parents(leaf)[0]) for leaf in own.leaves])
    wrong = np.flatnonzero(above[records.fine] != records.coarse)
    if len(wrong):
        i = wrong[0]
        raise DataError(
            f"{source}: superclasses must be those of the classes. {len(wrong):,} are not; the first is image {i}: "
            f"{own.leaves[records.fine[i]]!r} in {groups[records.coarse[i]]!r}."
        )


def _check_names(version: str, files: Mapping[str, bytes], root: Path) -> None:
    """If the files name their classes, the names must be the known ones."""
    data = files.get(VERSIONS[version]["names"])
    if data is None:
        return
    if version == "python":
        names = read_cifar_pickle(data, f"{root}: meta").get("fine_label_names")
    else:
        names = data.decode("ascii", "replace").split()
    if names != list(cifar100_hierarchy().leaves):
        raise DataError(f"{root}: the classes must be named as in CIFAR-100, in its order. Fetch it again.")
