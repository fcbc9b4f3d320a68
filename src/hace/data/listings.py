"""What readers of data sets share: find folders, read lists, and compare them with the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from hace.errors import ConfigError, DataError, FormatError
from hace.files.reading import read_text
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import label_nodes

IMAGE_SUFFIXES = frozenset(".bmp .gif .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())

LABEL_OPTION = "-o label_kind={}"  # how to say what labels are, for messages

HierarchyLike = Hierarchy | str | os.PathLike[str] | None


def chosen_hierarchy(
    given: HierarchyLike,
    root_node: bool | None,
    own: Callable[[], Hierarchy] | None = None,
    default: bool | None = None,
) -> Hierarchy:
    """The hierarchy to use."""
    if given is None and own is None:
        raise ConfigError("This data set brings no hierarchy. Give one with --hierarchy (hierarchy=).")
    if given is None:
        assert own is not None
        hierarchy, root = own(), default if root_node is None else root_node
    else:
        hierarchy = given if isinstance(given, Hierarchy) else read_hierarchy(given)
        root = root_node
    return hierarchy if root is None else hierarchy.with_root() if root else hierarchy.without_root()


def find_folder(root: Path, places: Iterable[str], needed: str, remedy: str) -> Path:
    """The first of some places below a folder that holds a needed file; without one, an error with the remedy."""
    for place in places:
        if (root / place / needed).is_file():
            return root / place
    if not root.exists():
        raise DataError(f"{root}: the folder does not exist. {remedy}")
    if not root.is_dir():
        raise DataError(f"{root}: must be a folder. Got a file. {remedy}")
    raise DataError(f"{root}: must hold {needed}. {remedy}")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of every non-blank line of a text file that has any."""
    text = read_text(path)
    if not text.strip():
        raise FormatError(f"{path}: must not be empty. Is the data set complete?")
    lines = enumerate(text.replace("\r\n", "\n").split("\n"), 1)
    return ((number, line.strip()) for number, line in lines if line.strip())


def read_table(path: Path, what: str) -> dict[str, str]:
    """Lines "image value" as a mapping, each image once; `what` is what messages call the values."""
    table: dict[str, str] = {}
    for number, line in read_lines(path):
        image, _, value = line.partition(" ")
        if not value.strip():
            raise FormatError(f"{path}, line {number}: must be an image and its {what}. Got {line!r}.")
        if image in table:
            raise FormatError(f"{path}, line {number}: every image must occur once. Got {image!r} again.")
        table[image] = value.strip()
    return table


def same_images(first: Path, ours: Iterable[str], second: Path, theirs: Iterable[str]) -> None:
    """Refuse two files that do not list the same images."""
    a, b = dict.fromkeys(ours), dict.fromkeys(theirs)
    for here, there, left, right in ((first, second, a, b), (second, first, b, a)):
        missing = [image for image in left if image not in right]
        if missing:
            raise DataError(
                f"{here} has {len(left):,} images and {there.name} {len(right):,}: {len(missing):,} are in {here.name} only; "
                f"the first is {missing[0]!r}. One of the files is cut off or from another version."
            )


def check_exist(folder: Path, images: Sequence[str]) -> None:
    """Refuse a list of images below a folder if some are missing. Lists folders and opens no image."""
    there: dict[str, set[str]] = {}
    missing: list[str] = []
    for image in images:
        place, name = os.path.split(image)
        if place not in there:
            there[place] = _names_in(folder / place)
        if name not in there[place]:
            missing.append(image)
    if missing:
        raise DataError(
            f"{folder}: every listed image must exist. {len(missing):,} of {len(images):,} are missing; the first is "
            f"{missing[0]}. Unpack the data set again."
        )


def image_files(folder: Path) -> list[str]:
    """The images below a folder at any depth, as sorted relative paths, without hidden files and folders."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: the folder cannot be read: {error.strerror}.") from error

    found: list[str] = []
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "."]
        inside = os.path.relpath(place, folder).replace(os.sep, "/")
        for name in files:
            if name[0] != "." and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
                found.append(name if inside == "." else f"{inside}/{name}")
    return sorted(found)


def nodes_of(labels: Sequence[str], hierarchy: Hierarchy, source: str) -> np.ndarray:
    """Labels given by id or unique name, as node indices; messages call them `source`."""
    return label_nodes(np.array(labels, dtype=str), hierarchy, "id", source)


def _names_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read: {error.strerror}.") from error
