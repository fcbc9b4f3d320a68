"""Your own texts: a table with a column of titles, intents or notes, and labels at any level."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hace.data.dataset import (
    LABEL_OPTION,
    Dataset,
    HierarchyLike,
    Split,
    chosen_hierarchy,
    ordered_splits,
    split_name,
)
from hace.errors import DataError, FormatError, listed, nearest
from hace.files.documents import csv_rows, ragged
from hace.files.reading import read_text
from hace.hierarchy.names import label_nodes


@dataclass(frozen=True, eq=False)
class Texts(Split):
    """Texts with labels.

    Attributes:
        texts: The texts.
    """

    texts: Sequence[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._same_length("texts", self.texts)

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

    @classmethod
    def _together(cls, splits: Sequence[Texts]) -> dict[str, Any]:
        return {"texts": [text for split in splits for text in split.texts]}

    def _at(self, indices: np.ndarray) -> dict[str, Any]:
        return super()._at(indices) | {"texts": [self.texts[i] for i in indices]}


def load_texts(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    column: str = "text",
    label: str = "label",
    split: str = "split",
) -> Dataset[Texts]:
    """Texts from a .csv (or, with tabs, .tsv) table; other columns are ignored.

    `column` holds the texts, `label` ids or unique names of nodes of any level, `split` train, val or test; without such a
    column all are for training.
    """
    h = chosen_hierarchy(hierarchy, root_node)
    texts, labels, parts = text_columns(root, column, label, split)
    texts, labels = texts or [], labels or []  # text_columns refuses a table without them
    nodes = label_nodes(np.array(labels, dtype=str), h, "id", str(root), LABEL_OPTION)
    of = np.array([split_name(part) for part in parts] if parts else ["train"] * len(texts))
    splits = {}
    for name in ordered_splits(of.tolist()):
        rows = np.flatnonzero(of == name)
        splits[name] = Texts(h, nodes[rows], [f"row {i + 1}" for i in rows], [texts[i] for i in rows])
    return Dataset(root.stem, h, splits, source={"column": column})


def text_columns(path: Path, *columns: str) -> list[list[str] | None]:
    """Columns of a table by name: the first two must be there (the first, if it is alone), others may be missing."""
    table = csv_rows(read_text(path), str(path), "\t" if path.suffix.lower() == ".tsv" else ",")
    header = [name.strip() for name in next(table, (0, []))[1]]
    for column in columns[:2]:
        if column not in header:
            have = listed(header, 30) or "an empty file"
            raise FormatError(f"{path}: must have a column {column!r}. Got {have}.{nearest(column, header)}")
    rows = []
    for line, cells in table:
        if len(cells) != len(header):
            raise ragged(str(path), line, len(cells), len(header))
        rows.append(cells)
    if not rows:
        raise DataError(f"{path}: must have rows below its header. Got none.")
    places = [header.index(column) if column in header else None for column in columns]
    return [None if place is None else [row[place].strip() for row in rows] for place in places]
