"""Your own texts: a table with a column of titles, intents or notes, and labels at any level."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from hace.data.dataset import Dataset, HierarchyLike, Split, chosen_hierarchy, ordered_splits, split_name
from hace.errors import DataError, FormatError, listed, nearest
from hace.files.documents import read_rows
from hace.hierarchy.names import label_nodes


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
        texts = [rows[i][1][column].strip() for i in here]
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
