"""Your own images, in a folder for each class or in a CSV list, and your own texts, in a table; labels are at any level."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from hace.data.dataset import Dataset
from hace.data.loading import (
    LABEL_OPTION,
    HierarchyLike,
    check_classes,
    check_disjoint,
    check_exist,
    chosen_hierarchy,
    group_column,
    image_files,
    nodes_of,
)
from hace.data.small_copies import small_copies
from hace.data.split import Samples, Split
from hace.data.splitting import ordered_splits, split_name, with_test
from hace.errors import DataError, FormatError, HaceError, listed, nearest
from hace.files.documents import read_rows
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import composed, known_names, label_nodes, unknown_name_hint

SPLIT_FOLDERS = ("train", "val", "valid", "validation", "test")
_FOLDERS = (
    "Expected a folder for each class with its images, such as husky/1.jpg, directly or below train/ and test/ (and val/, "
    "if there is one)."
)
COLUMNS = ("path", "label", "split")
MAX_DIGITS = 18
_COLUMNS = "Expected a header line with the columns path, label and, if there are several splits, split."


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
        raise DataError(f"{root}: the folder does not exist. {_FOLDERS}")
    parts = _parts(root)
    h = chosen_hierarchy(hierarchy, root_node, lambda: _own(next(iter(parts.values()))))
    splits = {}
    for split, folder in parts.items():
        images = image_files(folder)
        if not images:
            raise DataError(f"{folder}: must hold images. Got none. {_FOLDERS}")
        if loose := [image for image in images if "/" not in image]:
            raise DataError(f"{folder / loose[0]}: every image must be in the folder of a class. {_FOLDERS}")
        if not allow_empty:
            _check_filled(folder, images)
        labels = [_label(PurePosixPath(image).parent, h) for image in images]
        _check_known(folder, images, labels, h)
        names = [image if folder == root else f"{split}/{image}" for image in images]
        nodes, paths = nodes_of(labels, h, str(folder)), [folder / image for image in images]
        splits[split] = Samples(h, nodes, names, paths=paths)
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    _check_links(str(root), splits)
    if pixels is not None:
        splits = small_copies(splits, pixels, root)
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


def _check_links(name: str, splits: dict[str, Samples]) -> None:
    """Refuse a file that is in two splits, links followed."""
    files = {split: [str(path.resolve()) for path in s.paths or ()] for split, s in splits.items()}
    check_disjoint(name, files)


def _own(folder: Path) -> Hierarchy:
    try:
        return read_hierarchy(folder, "folder")
    except HaceError:  # a name twice, such as a class with its group's: then paths are ids
        return read_hierarchy(folder, "folder", ids="path")


def _label(folder: PurePosixPath, h: Hierarchy) -> str:
    """The node of an image's folder: by its path, else by its name."""
    whole = composed(str(folder))
    return whole if whole in known_names(h) else composed(folder.name)


def _check_known(folder: Path, images: list[str], labels: list[str], h: Hierarchy) -> None:
    """Refuse folders that are not a class, by name; lists are refused by row."""
    known = known_names(h)
    wrong = [i for i, label in enumerate(labels) if label not in known]
    if wrong:
        raise DataError(
            f"{(folder / images[wrong[0]]).parent}: the folder must be a class of the hierarchy, by id or unique name."
            f"{unknown_name_hint(h, labels[wrong[0]])} {len(wrong):,} of {len(images):,} images are in such folders."
        )


def _check_filled(folder: Path, images: list[str]) -> None:
    """Refuse class folders without images, at the ends of the tree."""
    filled = {str(parent) for image in images for parent in PurePosixPath(image).parents}
    inside = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_dir())
    shown = [path.as_posix() for path in inside if not any(part[0] == "." for part in path.parts)]
    if empty := [name for name in shown if name not in filled]:
        raise DataError(
            f"{folder}: every class folder must have images. {len(empty)} have none; the first is {empty[0]!r}. Fill or remove "
            "them, or allow it with -o allow_empty=true (allow_empty=True)."
        )


def load_manifest(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    label_kind: str = "auto",
    allow_empty: bool = False,
    test: float = 0.0,
    groups: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
) -> Dataset[Samples]:
    """Images from a .csv (or, with tabs, .tsv) list with the columns path, label and split; other columns are ignored.

    Paths are relative to the file, or absolute. `label_kind` "id": labels are ids or unique names of nodes of any level;
    "index": they count the leaves from 0; "auto": the former, unless all are integers and some are not ids. `test` is as in
    `load_folders`. Spreadsheets may have written the list with semicolons, or in another `encoding` such as latin-1. `groups`
    is the column that names each sample's group, such as its site; splits never cut one.
    """
    h = chosen_hierarchy(hierarchy, root_node)
    rows = _rows(root, groups, encoding, delimiter)
    nodes = _nodes([row[1] for row in rows], h, label_kind, str(root), [row[4] for row in rows])
    folder = root.parent
    there = check_exist(folder, [row[0] for row in rows])
    splits = {}
    for split in ordered_splits(row[2] for row in rows):
        chosen = [i for i, row in enumerate(rows) if row[2] == split]
        names = [rows[i][0] for i in chosen]
        grouped = None if groups is None else np.array([rows[i][3] for i in chosen])
        paths = [folder / there[i] for i in chosen]
        splits[split] = Samples(h, nodes[chosen], names, paths=paths, groups=grouped)
    _check_links(str(root), splits)
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    return Dataset(root.stem, h, with_test(splits, test, str(root)))


def _nodes(labels: list[str], h: Hierarchy, kind: str, source: str, lines: list[int]) -> np.ndarray:
    """Labels as node indices. A list has no types: numbers are ids where the hierarchy has them all, else positions."""
    numbers = all(label.isascii() and label.isdigit() and len(label) <= MAX_DIGITS for label in labels)
    by_position = kind == "index" or (kind == "auto" and not known_names(h).keys() >= set(labels))
    if numbers and by_position:
        numbers_given = np.array([int(label) for label in labels])
        return label_nodes(numbers_given, h, "index", source, LABEL_OPTION, lines)
    kind = "id" if kind == "auto" else kind
    return label_nodes(np.array(labels, dtype=str), h, kind, source, LABEL_OPTION, lines)


def _rows(
    path: Path, groups: str | None, encoding: str | None, delimiter: str | None
) -> list[tuple[str, str, str, str, int]]:
    """(path, label, split, group, line) of every line."""
    header, table = read_rows(path, encoding, delimiter)
    known = {name.lower(): name for name in header}
    for column in COLUMNS[:2]:
        if column not in known:
            raise FormatError(
                f"{path}: must have a column {column!r}. Got {listed(known, 30) or 'an empty file'}. {_COLUMNS}"
                f"{nearest(column, known)}"
            )
    grouped = group_column(header, groups, str(path))
    rows = []
    for line, cells in table:
        image, label, split = (cells[known[c]].strip() if c in known else "train" for c in COLUMNS)
        group = "-" if grouped is None else cells[grouped].strip()
        if not (image and label and split) or "\0" in image:
            raise FormatError(f"{path}, line {line}: path, label and split must not be empty.")
        if not group:
            raise FormatError(
                f"{path}, line {line}: {grouped} must name the group of the sample. Got nothing."
            )
        rows.append((os.path.normpath(image).replace(os.sep, "/"), label, split_name(split), group, line))
    if not rows:
        raise DataError(f"{path}: must list images. Got none.")
    return rows


@dataclass(frozen=True, eq=False)
class Texts(Split):
    """Texts with labels."""

    texts: Sequence[str]
    _columns: ClassVar = ("nodes", "names", "groups", "texts")

    def item(self, index: int) -> str:
        """What an encoder sees of a sample."""
        return self.texts[index]

    def content(self) -> Iterator[bytes]:
        """The texts."""
        return (text.encode(errors="surrogatepass") for text in self.texts)

    def digests(self) -> np.ndarray:
        """uint8 (M, 32): the digests of all texts."""
        found = b"".join(hashlib.sha256(content).digest() for content in self.content())
        return np.frombuffer(found, np.uint8).reshape(-1, 32)


def load_texts(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    column: str = "text",
    label: str = "label",
    split: str = "split",
) -> Dataset[Texts]:
    """Texts from a .csv or .tsv table; other columns are ignored.

    `column` holds the texts, `label` ids or unique names of nodes of any level, `split` train, val or test; without such a
    column all are for training.
    """
    h, rows = chosen_hierarchy(hierarchy, root_node), text_rows(root, column, label)
    words, lines = np.array([row[label].strip() for _, row in rows], dtype=str), [line for line, _ in rows]
    nodes = label_nodes(words, h, "id", str(root), lines=lines)
    of, splits = np.array([split_name(row.get(split, "train")) for _, row in rows]), {}
    for name in ordered_splits(of.tolist()):
        here = np.flatnonzero(of == name)
        texts = [rows[i][1][column].strip() for i in here.tolist()]
        splits[name] = Texts(h, nodes[here], [f"row {i + 1}" for i in here], texts)
    return Dataset(root.stem, h, splits, source={"column": column})


def text_rows(path: Path, *columns: str) -> Sequence[tuple[int, Mapping[str, str]]]:
    """The rows of a table that has these columns, each with its line."""
    header, rows = read_rows(path)
    for column in (column for column in columns if column not in header):
        have = listed(header, 30) or "an empty file"
        raise FormatError(f"{path}: must have a column {column!r}. Got {have}.{nearest(column, header)}")
    if not rows:
        raise DataError(f"{path}: must have rows below its header. Got none.")
    return rows
