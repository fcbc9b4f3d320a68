"""FGVC-Aircraft 2013b as published: fgvc-aircraft-2013b/data with images and lists."""

from __future__ import annotations

from pathlib import Path

from hace.data.dataset import Dataset, check_classes, check_disjoint
from hace.data.listings import (
    HierarchyLike,
    check_exist,
    chosen_hierarchy,
    find_folder,
    nodes_of,
    read_lines,
    read_table,
    same_images,
)
from hace.data.samples import Samples
from hace.errors import DataError
from hace.files.archives import Archive, fetch, unpack
from hace.formats import fgvc_hierarchy

AIRCRAFT_ARCHIVE = Archive(
    "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
    "md5:d4acdd33327262359767eeaa97a4f732",
)
BANNER = 20  # rows of pixels with the photographer's credit, at the bottom of every image
_PLACES = (".", "data", "fgvc-aircraft-2013b/data")
_REMEDY = (
    "Give the folder that holds fgvc-aircraft-2013b/data/ with variants.txt, images_variant_train.txt and so on, and "
    f"images/, from {AIRCRAFT_ARCHIVE.url}; or fetch it: `hace data aircraft --root R --download` (download=True, 2.6 GB)."
)


def load_aircraft(
    root: Path, hierarchy: HierarchyLike = None, root_node: bool | None = None, download: bool = False
) -> Dataset[Samples]:
    """FGVC-Aircraft: 6,667 training images (the official train and val) and 3,333 test images of 100 variants.

    The line of credits at the bottom of every image is cut off. Images are opened when they are used.

    Args:
        root: The folder that holds fgvc-aircraft-2013b, or that folder, or its folder data.
        hierarchy: A hierarchy in place of the data set's own; its nodes are found by the names of the variants.
        root_node: Whether to have a root; by default yes, as in the paper.
        download: Fetch and unpack it first if it is missing.

    Raises:
        DataError: It is missing or incomplete.
        FormatError: A file is damaged.
        HierarchyError: The labels of the three levels contradict each other.
    """
    if download and not any((root / place / "variants.txt").is_file() for place in _PLACES):
        unpack(fetch(AIRCRAFT_ARCHIVE, root), root)
    folder = find_folder(root, _PLACES, "variants.txt", _REMEDY)
    h = chosen_hierarchy(hierarchy, root_node, lambda: fgvc_hierarchy(folder), default=True)
    variants = {line for _, line in read_lines(folder / "variants.txt")}
    splits = {}
    for split, parts in (("train", ("train", "val")), ("test", ("test",))):
        labels: dict[str, str] = {}
        for part in parts:
            table = _part(folder, part, variants)
            again = [image for image in table if image in labels]
            if again:
                raise DataError(
                    f"{folder}: every image must be in one list. Got {again[0]!r} in images_variant_{part}.txt and "
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
    table = read_table(path, "variant")
    unknown = [(image, variant) for image, variant in table.items() if variant not in variants]
    if unknown:
        image, variant = unknown[0]
        raise DataError(
            f"{path}: every variant must be in variants.txt. Got {variant!r} for the image {image}."
        )
    listed = folder / f"images_{part}.txt"
    if listed.is_file():
        same_images(path, table, listed, (line for _, line in read_lines(listed)))
    return table
