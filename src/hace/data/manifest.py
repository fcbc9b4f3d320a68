"""Your own images from a CSV list: path, label at any level, split."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hace.data.dataset import Dataset, check_classes, ordered_splits, split_name, with_test
from hace.data.folders import check_links
from hace.data.listings import LABEL_OPTION, HierarchyLike, check_exist, chosen_hierarchy
from hace.data.samples import Samples
from hace.errors import DataError, FormatError, listed, nearest
from hace.files.documents import csv_rows, ragged
from hace.files.reading import read_text
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names, label_nodes

COLUMNS = ("path", "label", "split")
MAX_DIGITS = 18
_LAYOUT = "Expected a header line with the columns path, label and, if there are several splits, split."


def load_manifest(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    label_kind: str = "auto",
    allow_empty: bool = False,
    test: float = 0.0,
) -> Dataset[Samples]:
    """Images from a list.

    Args:
        root: A .csv (or, with tabs, .tsv) file with the columns path (relative to the file, or absolute), label and split;
            other columns are ignored. Without split all is "train"; "valid" and "validation" are "val".
        hierarchy: The classes.
        root_node: Whether to have a root; by default as the hierarchy has it.
        label_kind: "id": labels are ids or unique names of nodes of any level; "index": labels count the leaves from 0;
            "auto": the former, unless all are integers and some are not ids.
        allow_empty: Whether classes may have no images.
        test: A share of each class to hold out as the split "test", where the list has none. The same images every time.

    Raises:
        FormatError: The file is missing or not such a list.
        DataError: Labels are not in the hierarchy, images are missing or listed twice, or classes have none.
        ConfigError: There is no hierarchy.
    """
    h = chosen_hierarchy(hierarchy, root_node)
    rows = _rows(root)
    nodes = _nodes([label for _, label, _ in rows], h, label_kind, str(root))
    folder = root.parent
    check_exist(folder, [path for path, _, _ in rows])
    splits = {}
    for split in ordered_splits(split for _, _, split in rows):
        chosen = [i for i, row in enumerate(rows) if row[2] == split]
        names = [rows[i][0] for i in chosen]
        splits[split] = Samples(h, nodes[chosen], names, paths=[folder / name for name in names])
    check_links(str(root), splits)
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    return Dataset(root.stem, h, with_test(splits, test, str(root)))


def _nodes(labels: list[str], h: Hierarchy, kind: str, source: str) -> np.ndarray:
    """Labels as node indices. A list has no types: numbers are ids where the hierarchy has them all, else positions."""
    numbers = all(label.isascii() and label.isdigit() and len(label) <= MAX_DIGITS for label in labels)
    by_position = kind == "index" or (kind == "auto" and not known_names(h).keys() >= set(labels))
    if numbers and by_position:
        return label_nodes(np.array([int(label) for label in labels]), h, "index", source, LABEL_OPTION)
    return label_nodes(np.array(labels, dtype=str), h, "id" if kind == "auto" else kind, source, LABEL_OPTION)


def _rows(path: Path) -> list[tuple[str, str, str]]:
    """(path, label, split) of every line."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    table = csv_rows(read_text(path), str(path), delimiter)
    _, first = next(table, (0, []))
    header = [name.strip().lower() for name in first]
    for column in COLUMNS[:2]:
        if column not in header:
            raise FormatError(
                f"{path}: must have a column {column!r}. Got {listed(header, 30) or 'an empty file'}. {_LAYOUT}"
                f"{nearest(column, header)}"
            )
    places = [header.index(column) if column in header else -1 for column in COLUMNS]
    rows = []
    for line, cells in table:
        if len(cells) != len(header):
            raise ragged(str(path), line, len(cells), len(header))
        image, label, split = (cells[place].strip() if place >= 0 else "train" for place in places)
        if not (image and label and split) or "\0" in image:
            raise FormatError(f"{path}, line {line}: path, label and split must not be empty.")
        rows.append((os.path.normpath(image).replace(os.sep, "/"), label, split_name(split)))
    if not rows:
        raise DataError(f"{path}: must list images. Got none.")
    return rows
