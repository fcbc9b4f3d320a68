"""What the readers of datasets share: the hierarchy to use, labels, lists of images, and checks of what was read."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hace.data.split import Samples, Split, in_two_splits
from hace.errors import ConfigError, DataError, GroupWarning, listed, nearest
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import composed, label_nodes

HierarchyLike = Hierarchy | str | os.PathLike[str] | None
LABEL_OPTION = "-o label_kind={}"  # how to say what labels are, for messages
IMAGE_COLUMNS = ("path", "image", "image_path", "file", "filename", "file_name", "photo", "img")
IMAGE_SUFFIXES = frozenset(".bmp .gif .heic .heif .hif .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())
GROUP_WORDS = frozenset(
    "batch burst camera donor individual location patient record recording sequence site subject".split()
)


def chosen_hierarchy(
    given: HierarchyLike,
    root_node: bool | None,
    own: Callable[[], Hierarchy] | None = None,
    default: bool | None = None,
) -> Hierarchy:
    """The hierarchy to use: the one given, or the dataset's own; with or without a root, as asked or by default."""
    root = root_node
    if given is not None:
        hierarchy = given if isinstance(given, Hierarchy) else read_hierarchy(given)
    elif own is not None:
        hierarchy = own()
        root = default if root is None else root
    else:
        raise ConfigError("This dataset brings no hierarchy. Give one with --hierarchy (hierarchy=).")
    if root is None:
        return hierarchy
    return hierarchy.with_root() if root else hierarchy.without_root()


def nodes_of(labels: Sequence[str], hierarchy: Hierarchy, source: str) -> np.ndarray:
    """Labels given by id or unique name, as node indices; messages call them `source`."""
    return label_nodes(np.array(labels, dtype=str), hierarchy, "id", source)


OWN_PATHS = "Paths in a list are whole, or start in that folder."  # what to look at where images are missing


def check_exist(folder: Path, images: Sequence[str], remedy: str = "Unpack the dataset again.") -> list[str]:
    """The images of a list below a folder, by the names they have there; refused if some are missing. Opens no image.

    A name on disk may write an accented letter with two characters, as Macs do, and the list with one.
    """
    folders = {os.path.dirname(image) for image in images}
    names = {inside: {composed(name): name for name in _names_in(folder / inside)} for inside in folders}
    there: list[str] = []
    missing: list[str] = []
    for image in images:
        inside, name = os.path.split(image)
        name_there = names[inside].get(composed(name))
        if name_there is None:
            missing.append(image)
        elif name_there == name:
            there.append(image)
        else:
            there.append(os.path.join(inside, name_there))
    if missing:
        raise DataError(
            f"{folder}: every listed image must exist. {len(missing):,} of {len(images):,} are missing; the first is "
            f"{missing[0]}. {remedy}"
        )
    return there


def inside_folder(image: str, folder: Path, source: str) -> str:
    """The path of an image below a folder, normalised; refused where it leads out of the folder."""
    shown = repr(image[:200])
    path = os.path.normpath(image.replace("\\", "/"))
    if os.path.isabs(path):
        path = os.path.relpath(path, os.path.abspath(folder))
    path = path.replace(os.sep, "/")
    if not image.strip() or "\0" in image or path == "." or path.split("/")[0] == "..":
        raise DataError(f"{source}: every image must be inside {folder}. Got {shown}.")
    return path


def image_files(folder: Path) -> list[str]:
    """The images below a folder at any depth, as sorted relative paths, without hidden files and folders."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: the folder cannot be read: {error.strerror}.") from error

    images: list[str] = []
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "."]
        inside = os.path.relpath(place, folder).replace(os.sep, "/")
        for name in files:
            is_image = os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
            if is_image and name[0] != ".":
                images.append(name if inside == "." else f"{inside}/{name}")
    return sorted(images)


def _names_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read: {error.strerror}.") from error


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
    if shared := in_two_splits(splits):
        sample, first, second = shared[0]
        raise DataError(
            f"{name}: every image must be in one split. {len(shared):,} are in two; the first is {sample!r}, in {first!r} and "
            f"{second!r}. A test on training images says nothing."
        )


def check_files_disjoint(name: str, splits: Mapping[str, Samples]) -> None:
    """Refuse a file that is in two splits or twice in one, links followed; messages call the dataset `name`."""
    files = {split: list(map(os.path.realpath, samples.paths or ())) for split, samples in splits.items()}
    check_disjoint(name, files)


def group_column(names: Iterable[str], chosen: str | None, source: str) -> str | None:
    """The column that names groups: the one chosen; a warning where none was and one looks like it."""
    columns = {name.lower(): name for name in names}
    if chosen is not None:
        if chosen.lower() not in columns:
            raise DataError(
                f"{source}: groups must be a column. Got {chosen!r}; there are {listed(columns.values(), 30)}."
                f"{nearest(chosen, list(columns.values()))}"
            )
        return columns[chosen.lower()]
    singular = {
        name: lower.removesuffix("_id").removesuffix("id").removesuffix("s")
        for lower, name in columns.items()
    }
    candidates = [name for name, word in singular.items() if word in GROUP_WORDS]
    if candidates:
        warnings.warn(
            f"{source} has a column {candidates[0]!r} that is not used. If its samples resemble each other, say so: --groups "
            f"{candidates[0]} (groups={candidates[0]!r}). Splits then keep them together, and guarantees are about new ones.",
            GroupWarning,
            stacklevel=4,
        )
    return None
