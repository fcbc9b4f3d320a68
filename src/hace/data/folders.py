"""Your own images, in a folder for each class: read, and compared with what folders usually mean."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from hace.data.dataset import Dataset
from hace.data.loading import (
    HierarchyLike,
    check_classes,
    check_files_disjoint,
    chosen_hierarchy,
    image_files,
    nodes_of,
)
from hace.data.small_copies import small_copies
from hace.data.split import Samples, ordered_splits, split_name, with_test
from hace.errors import DataError, DataWarning, HaceError, listed
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import composed, known_names, unknown_name_hint

SPLIT_FOLDERS = ("train", "val", "valid", "validation", "test")
_EXPECTED = (
    "Expected a folder for each class with its images, such as husky/1.jpg, directly or below train/ and test/ (and val/, "
    "if there is one)."
)
_BETWEEN_WORDS = re.compile(r"[\s_.-]+")
_SHORTEST_WORD = 4  # letters of words that may be misspelled: "Ara" and "Ada" are two genera


def load_folders(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    allow_empty: bool = False,
    test: float = 0.0,
    pixels: int | None = None,
) -> Dataset[Samples]:
    """Images in folders named after what they show, directly below `root` or below its train/, val/ and test/.

    An image's folder is the id or unique name of a node at any level. Without a hierarchy, folders inside folders are the
    hierarchy. `test` is a share of each class to hold out where there is no folder test/; the same images every time.
    `pixels` is the side of square copies to train on, which are made once, cached in `root` and kept in memory.
    """
    if not root.is_dir():
        raise DataError(f"{root}: the folder does not exist. {_EXPECTED}")
    parts = _split_folders(root)
    h = chosen_hierarchy(hierarchy, root_node, lambda: _own_hierarchy(next(iter(parts.values()))))
    images = {split: _class_images(folder) for split, folder in parts.items()}
    splits = {}
    for split, folder in parts.items():
        if not allow_empty:
            _check_filled(folder, images[split])
        labels = [_label(PurePosixPath(image).parent, h) for image in images[split]]
        _check_known(folder, images[split], labels, h)
        splits[split] = Samples(
            hierarchy=h,
            nodes=nodes_of(labels, h, str(folder)),
            names=[image if folder == root else f"{split}/{image}" for image in images[split]],
            paths=[folder / image for image in images[split]],
        )
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    check_files_disjoint(str(root), splits)
    _point_out_unread_folders(root, parts)
    if hierarchy is None:
        _point_out_moved_classes(parts, images, h)
        _point_out_misspelled_groups(root, images)
    if pixels is not None:
        splits = small_copies(splits, pixels, root)
    return Dataset(root.resolve().name, h, with_test(splits, test, str(root)))


def _split_folders(root: Path) -> dict[str, Path]:
    """The folders of the splits by name; the folder itself where it has none."""
    folders: dict[str, Path] = {}
    for name in SPLIT_FOLDERS:
        folder = root / name
        if not folder.is_dir():
            continue
        split = split_name(name)
        known = folders.setdefault(split, folder)
        if not folder.samefile(known):  # Windows and macOS ignore case
            raise DataError(f"{root}: the split {split!r} must be one folder. Got {known.name} and {name}.")
    return {split: folders[split] for split in ordered_splits(folders)} or {"train": root}


def _own_hierarchy(folder: Path) -> Hierarchy:
    try:
        return read_hierarchy(folder, "folder")
    except HaceError:  # a name twice, such as a class with its group's: then paths are ids
        return read_hierarchy(folder, "folder", ids="path")


def _class_images(folder: Path) -> list[str]:
    """The images of a split, each in the folder of a class."""
    images = image_files(folder)
    if not images:
        raise DataError(f"{folder}: must hold images. Got none. {_EXPECTED}")
    loose = next((image for image in images if "/" not in image), None)
    if loose is not None:
        raise DataError(f"{folder / loose}: every image must be in the folder of a class. {_EXPECTED}")
    return images


def _label(folder: PurePosixPath, h: Hierarchy) -> str:
    """The node of an image's folder: by its path, else by its name."""
    whole = composed(str(folder))
    return whole if whole in known_names(h) else composed(folder.name)


def _check_known(folder: Path, images: list[str], labels: list[str], h: Hierarchy) -> None:
    """Refuse folders that are not a class, by name; lists are refused by row."""
    known = known_names(h)
    wrong = [i for i, label in enumerate(labels) if label not in known]
    if wrong:
        first = wrong[0]
        raise DataError(
            f"{(folder / images[first]).parent}: the folder must be a class of the hierarchy, by id or unique name."
            f"{unknown_name_hint(h, labels[first])} {len(wrong):,} of {len(images):,} images are in such folders."
        )


def _check_filled(folder: Path, images: list[str]) -> None:
    """Refuse class folders without images, at the ends of the tree."""
    filled = {str(parent) for parent in _folders_of(images)}
    inside = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_dir())
    visible = [path.as_posix() for path in inside if not any(part[0] == "." for part in path.parts)]
    empty = [name for name in visible if name not in filled]
    if empty:
        raise DataError(
            f"{folder}: every class folder must have images. {len(empty)} have none; the first is {empty[0]!r}. Fill or remove "
            "them, or allow it with -o allow_empty=true (allow_empty=True)."
        )


def _folders_of(images: Iterable[str]) -> set[PurePosixPath]:
    """The folders that images are in, and those around them."""
    inside = {PurePosixPath(image).parent for image in images}
    return inside | {parent for folder in inside for parent in folder.parents}


# --- what is accepted, and perhaps not meant


def _warn(message: str) -> None:
    warnings.warn(message, DataWarning, stacklevel=5)  # where the dataset is asked for


def _point_out_unread_folders(root: Path, parts: Mapping[str, Path]) -> None:
    """Folders with images beside those of the splits."""
    if root in parts.values():
        return
    beside = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "."]
    read = set(parts.values())
    unread = [path.name for path in beside if path not in read and image_files(path)]
    if unread:
        what = "holds images and is not read" if len(unread) == 1 else "hold images and are not read"
        _warn(f"{root}: {listed(unread)} {what}. Only {', '.join(path.name for path in parts.values())} are.")


def _point_out_moved_classes(
    parts: Mapping[str, Path], images: Mapping[str, list[str]], h: Hierarchy
) -> None:
    """Classes that lie in other groups of a split than of the first one, which is the hierarchy."""
    first, *others = parts
    home = {_label(folder, h): folder for folder in _folders_of(images[first])}
    for split in others:
        folders = sorted({PurePosixPath(image).parent for image in images[split]})
        pairs = [(home[label], folder) for folder in folders if (label := _label(folder, h)) in home]
        moved = [(here, there) for here, there in pairs if here != there]
        if not moved:
            continue
        here, there = moved[0]
        lie = "lies" if len(moved) == 1 else "lie"
        hints = dict.fromkeys(hint for pair in moved for hint in _spelling_hints(*pair))
        _warn(
            f"{parts[first].parent}: {len(moved):,} of {h.num_leaves:,} classes {lie} in other groups of {split} than of "
            f"{first}: {parts[first].name}/{here} and {parts[split].name}/{there}. The groups of {first} are used. "
            f"{''.join(hints)}Give all splits the same folders, or the taxonomy: --hierarchy FILE (hierarchy=)."
        )


def _spelling_hints(here: PurePosixPath, there: PurePosixPath) -> Iterator[str]:
    """Groups of two paths to one class that differ by one letter."""
    for one, other in zip(here.parts[:-1], there.parts[:-1], strict=False):
        if _look_alike(one, other):
            yield f"{other!r} and {one!r} differ by one letter. "


def _point_out_misspelled_groups(root: Path, images: Mapping[str, list[str]]) -> None:
    """Folders side by side whose names differ by one letter, at least one of which is a group."""
    for split, names in images.items():
        folders = _folders_of(names) - {PurePosixPath()}
        groups = {folder.parent for folder in folders}
        pairs = [pair for pair in _pairs_alike(folders) if not groups.isdisjoint(pair)]
        if pairs:
            one, other = pairs[0]
            more = f", and {len(pairs) - 1:,} more pairs" if len(pairs) > 1 else ""
            place = root if len(images) == 1 else root / split
            _warn(
                f"{place}: the folders {one.name!r} and {other.name!r} differ by one letter{more}. If they are one group, "
                "move all into one folder."
            )


def _pairs_alike(folders: Iterable[PurePosixPath]) -> list[tuple[PurePosixPath, PurePosixPath]]:
    """Pairs of folders side by side whose names look alike.

    Only names that have a spelling in common are compared, so that a thousand folders take no million comparisons.
    """
    by_spelling: dict[tuple[PurePosixPath, str], list[PurePosixPath]] = defaultdict(list)
    for folder in sorted(folders):
        name = " ".join(_words(folder.name))
        for spelling in {name, *(name[:i] + name[i + 1 :] for i in range(len(name)))}:
            by_spelling[folder.parent, spelling].append(folder)
    pairs = {
        (one, other)
        for together in by_spelling.values()
        for place, one in enumerate(together)
        for other in together[place + 1 :]
    }
    return sorted(pair for pair in pairs if _look_alike(pair[0].name, pair[1].name))


def _words(name: str) -> list[str]:
    return _BETWEEN_WORDS.split(name.casefold())


def _look_alike(one: str, other: str) -> bool:
    """Whether two names are different spellings of one: a letter more, less or other in one of their words, or another case."""
    if one == other:
        return False
    words = _words(one)
    others = _words(other)
    differing = [pair for pair in zip(words, others, strict=False) if pair[0] != pair[1]]
    if len(words) != len(others) or len(differing) > 1:
        return False
    if not differing:
        return True
    a, b = sorted(differing[0], key=len)
    if len(b) < _SHORTEST_WORD or not (a.isalpha() and b.isalpha()):
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    return b[start + 1 :] == (a[start:] if len(a) < len(b) else a[start + 1 :])
