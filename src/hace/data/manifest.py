"""Your own images from a CSV list: path, label at any level, split."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from hace.data.dataset import Dataset, check_classes
from hace.data.files import HierarchyLike, check_exist, chosen_hierarchy, nodes_of, read_lines
from hace.data.folders import check_links
from hace.data.samples import Samples
from hace.errors import DataError, FormatError, nearest

COLUMNS = ("path", "label", "split")
LAYOUT = "Expected a header line with the columns path, label and, if there are several splits, split."


def load_manifest(
    root: Path, hierarchy: HierarchyLike = None, root_node: bool | None = None, *, allow_empty: bool = False
) -> Dataset[Samples]:
    """Images by a list.

    Args:
        root: A .csv (or, with tabs, .tsv) file with the columns path (relative to the file, or absolute), label (the id or
            unique name of a node of any level) and split; other columns do not matter. Without split all is "train".
        hierarchy: The classes.
        root_node: Whether to have a root; by default as the hierarchy has it.
        allow_empty: Whether classes may be without any image.

    Raises:
        FormatError: If the file is missing or no such list.
        DataError: If labels are not in the hierarchy, images are missing, stand twice, or classes have none.
        ConfigError: If there is no hierarchy.
    """
    h = chosen_hierarchy(hierarchy, root_node)
    rows = _rows(root)
    nodes = nodes_of([label for _, label, _ in rows], h, str(root))
    folder = root.parent
    check_exist(folder, [path for path, _, _ in rows])
    splits = {}
    for split in sorted({split for _, _, split in rows}, key=lambda s: (s != "train", s)):
        chosen = [i for i, row in enumerate(rows) if row[2] == split]
        names = [rows[i][0] for i in chosen]
        splits[split] = Samples(h, nodes[chosen], names, paths=[folder / name for name in names])
    check_links(str(root), splits)
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    return Dataset(root.stem, h, splits)


def _rows(path: Path) -> list[tuple[str, str, str]]:
    """(path, label, split) of every line."""
    lines = [line for _, line in read_lines(path)]
    table = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    try:
        header = [name.strip().lower() for name in next(table)]
        for column in COLUMNS[:2]:
            if column not in header:
                raise FormatError(f"{path}: there is no column {column!r}. {LAYOUT}{nearest(column, header)}")
        places = [header.index(column) if column in header else -1 for column in COLUMNS]
        rows = []
        for row in table:
            if len(row) != len(header):
                raise FormatError(
                    f"{path}, entry {table.line_num}: expected {len(header)} columns, got {len(row)}: {row}."
                )
            image, label, split = (row[place].strip() if place >= 0 else "train" for place in places)
            if not (image and label and split):
                raise FormatError(f"{path}, entry {table.line_num}: path, label and split must not be empty.")
            rows.append((os.path.normpath(image).replace(os.sep, "/"), label, split))
    except csv.Error as error:
        raise FormatError(f"{path}: not a table of comma-separated values: {error}.") from error
    if not rows:
        raise DataError(f"{path}: the list has no images.")
    return rows
