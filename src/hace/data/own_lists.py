"""Your own images, in a CSV list, and your own texts, in a table; labels are at any level."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from hace.data.dataset import Dataset
from hace.data.loading import (
    LABEL_OPTION,
    OWN_PATHS,
    HierarchyLike,
    check_classes,
    check_exist,
    check_files_disjoint,
    chosen_hierarchy,
    group_column,
)
from hace.data.split import Samples, Split, ordered_splits, split_name, with_test
from hace.errors import DataError, FormatError, listed, nearest
from hace.files.documents import read_rows
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names, label_nodes

COLUMNS = ("path", "label", "split")
MAX_DIGITS = 18
_COLUMNS = "Expected a header line with the columns path, label and, if there are several splits, split."


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
    there = check_exist(folder, [row[0] for row in rows], OWN_PATHS)
    splits = {}
    for split in ordered_splits(row[2] for row in rows):
        chosen = [i for i, row in enumerate(rows) if row[2] == split]
        names = [rows[i][0] for i in chosen]
        grouped = None if groups is None else np.array([rows[i][3] for i in chosen])
        paths = [folder / there[i] for i in chosen]
        splits[split] = Samples(h, nodes[chosen], names, paths=paths, groups=grouped)
    check_files_disjoint(str(root), splits)
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


@dataclass(frozen=True, eq=False, repr=False)
class Texts(Split):
    """Texts with labels."""

    texts: Sequence[str]
    _columns: ClassVar = (*Split._columns, "texts")

    def item(self, index: int) -> str:
        """What an encoder sees of a sample."""
        return self.texts[index]

    def content(self) -> Iterator[bytes]:
        """The texts."""
        return (text.encode(errors="surrogatepass") for text in self.texts)

    def digests(self) -> np.ndarray:
        """uint8 (M, 32): the digests of all texts."""
        hashes = b"".join(hashlib.sha256(content).digest() for content in self.content())
        return np.frombuffer(hashes, np.uint8).reshape(-1, 32)


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
    h = chosen_hierarchy(hierarchy, root_node)
    rows = text_rows(root, column, label)
    labels = np.array([row[label].strip() for _, row in rows], dtype=str)
    nodes = label_nodes(labels, h, "id", str(root), lines=[line for line, _ in rows])
    split_of = np.array([split_name(row.get(split, "train")) for _, row in rows])
    splits = {}
    for name in ordered_splits(split_of.tolist()):
        here = np.flatnonzero(split_of == name)
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
