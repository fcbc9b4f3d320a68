"""Your own images in a folder for each class, like torchvision's ImageFolder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from hace.data.dataset import Dataset, check_classes, check_disjoint, ordered_splits, split_name, with_test
from hace.data.listings import HierarchyLike, chosen_hierarchy, image_files, nodes_of
from hace.data.samples import Samples
from hace.errors import DataError, HaceError
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names, unknown_name_hint

SPLIT_FOLDERS = ("train", "val", "valid", "validation", "test")
_LAYOUT = (
    "Expected a folder for each class with its images, such as husky/1.jpg, directly or below train/ and test/ (and val/, "
    "if there is one)."
)


def load_folders(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    allow_empty: bool = False,
    test: float = 0.0,
) -> Dataset[Samples]:
    """Images in folders named after what they show.

    Args:
        root: Folders of classes; or train/ and test/, with or without val/ (or valid/, validation/), that hold them.
            Without them all images are the split "train".
        hierarchy: The classes. An image's folder is the id or unique name of a node at any level. Without it, folders
            inside folders are the hierarchy; if a name occurs twice, ids are their paths.
        root_node: Whether to have a root; by default as the hierarchy has it.
        allow_empty: Whether classes may have no images.
        test: A share of each class to hold out as the split "test", where there is no folder test/. The same images every
            time.

    Raises:
        DataError: Folders are missing, empty or not a class of the hierarchy, or an image is in two splits.
    """
    if not root.is_dir():
        raise DataError(f"{root}: the folder does not exist. {_LAYOUT}")
    parts = _parts(root)
    h = chosen_hierarchy(hierarchy, root_node, lambda: _own(next(iter(parts.values()))))
    splits = {}
    for split, folder in parts.items():
        images = image_files(folder)
        if not images:
            raise DataError(f"{folder}: must hold images. Got none. {_LAYOUT}")
        loose = [image for image in images if "/" not in image]
        if loose:
            raise DataError(f"{folder / loose[0]}: every image must be in the folder of a class. {_LAYOUT}")
        if not allow_empty:
            _check_filled(folder, images)
        labels = [_label(PurePosixPath(image).parent, h) for image in images]
        _check_known(folder, images, labels, h)
        names = [image if folder == root else f"{split}/{image}" for image in images]
        splits[split] = Samples(
            h, nodes_of(labels, h, str(folder)), names, paths=[folder / image for image in images]
        )
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    check_links(str(root), splits)
    return Dataset(root.resolve().name, h, with_test(splits, test, str(root)))


def _parts(root: Path) -> dict[str, Path]:
    """The folders of the splits by name; the folder itself where it has none."""
    found: dict[str, Path] = {}
    for name in SPLIT_FOLDERS:
        if (root / name).is_dir():
            split = split_name(name)
            if split in found and not (root / name).samefile(found[split]):  # Windows and macOS ignore case
                raise DataError(
                    f"{root}: the split {split!r} must be one folder. Got {found[split].name} and {name}."
                )
            found.setdefault(split, root / name)
    return {split: found[split] for split in ordered_splits(found)} or {"train": root}


def check_links(name: str, splits: dict[str, Samples]) -> None:
    """Refuse a file that is in two splits, links followed."""
    resolved = {}
    for split, samples in splits.items():
        files = [str(path.resolve()) for path in samples.paths or ()]
        resolved[split] = Samples(samples.hierarchy, samples.nodes, files, paths=samples.paths)
    check_disjoint(name, resolved)


def _own(folder: Path) -> Hierarchy:
    try:
        return read_hierarchy(folder, "folder")
    except HaceError:  # a name twice, such as a class with its group's: then paths are ids
        return read_hierarchy(folder, "folder", ids="path")


def _label(folder: PurePosixPath, h: Hierarchy) -> str:
    """The node of an image's folder: by its path, else by its name."""
    return str(folder) if str(folder) in known_names(h) else folder.name


def _check_known(folder: Path, images: list[str], labels: list[str], h: Hierarchy) -> None:
    """Refuse folders that are not a class, by name; lists are refused by row."""
    known = known_names(h)
    wrong = [(image, label) for image, label in zip(images, labels, strict=True) if label not in known]
    if wrong:
        image, label = wrong[0]
        raise DataError(
            f"{(folder / image).parent}: the folder must be a class of the hierarchy, by id or unique name."
            f"{unknown_name_hint(h, label)} {len(wrong):,} of {len(images):,} images are in such folders."
        )


def _check_filled(folder: Path, images: list[str]) -> None:
    """Refuse class folders without images, at the ends of the tree."""
    filled = {str(parent) for image in images for parent in PurePosixPath(image).parents}
    empty = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_dir() and not any(part[0] == "." for part in path.relative_to(folder).parts)
    )
    empty = [name for name in empty if name not in filled]
    if empty:
        raise DataError(
            f"{folder}: every class folder must have images. {len(empty)} have none; the first is {empty[0]!r}. Fill or remove "
            "them, or allow it with -o allow_empty=true (allow_empty=True)."
        )
