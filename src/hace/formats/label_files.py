"""Labels and lists of classes from files: .npy, .npz, .csv, .txt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hace.errors import ConfigError, DataError, FormatError, listed
from hace.files.arrays import native
from hace.files.documents import csv_rows, ragged
from hace.files.reading import is_file, read_text
from hace.formats.score_files import pick_array

_LABELS = ("label", "labels")


def read_values(path: str | Path, key: str | None = None, column: str | None = None) -> np.ndarray:
    """(S,) labels as a file holds them: integers, or text."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz", ".csv", ".txt"):
        raise FormatError(f"{path}: labels must be .npy, .npz, .csv or .txt. Got {suffix or 'no suffix'}.")
    if column is not None and suffix != ".csv":
        raise ConfigError(f"{path}: --label-column is for .csv. Leave it out.")
    if key is not None and suffix in (".csv", ".txt"):
        raise ConfigError(f"{path}: --label-key is for .npz. Leave it out.")
    if suffix == ".csv":
        return _integers_if_all(_column(path, column))
    if suffix == ".txt":
        return _integers_if_all(_lines(path))
    array = pick_array(path, key, ("labels", "label", "y", "targets"), "--label-key")
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: labels must be one-dimensional, integers or text. Got {array.dtype} of shape {array.shape}."
        )
    values = native(np.array(array))
    if values.dtype.kind == "U":
        return np.char.strip(values)  # as lines and cells are
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"{path}: labels must be below 2**63. Got {values.max()}.")
    return values.astype(np.int64) if values.dtype == np.uint64 else values


def read_list(text: str) -> list[str]:
    """Names of classes: the lines of a file, or the words between commas."""
    if is_file(text):
        return _lines(Path(text))
    return [word.strip() for word in text.split(",") if word.strip()]


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def _column(path: Path, column: str | None) -> list[str]:
    rows = [(line, [cell.strip() for cell in row]) for line, row in csv_rows(read_text(path), str(path))]
    if not rows:
        raise FormatError(f"{path}: the file is empty. Write one label per line.")
    first = rows[0][1]
    place = _label_column(first, column, path)
    header = column is not None or len(first) > 1 or first[place].casefold() in _LABELS
    for line, row in rows:
        if len(row) != len(first):
            raise ragged(str(path), line, len(row), len(first))
    return [row[place] for _, row in rows[header:]]


def _label_column(first: list[str], column: str | None, path: Path) -> int:
    if column is not None:
        if column not in first:
            raise ConfigError(f"{path}: there is no column {column!r}. The columns: {listed(first, 30)}.")
        return first.index(column)
    if len(first) == 1:
        return 0
    likely = [i for i, name in enumerate(first) if name.casefold() in _LABELS]
    if len(likely) != 1:
        raise ConfigError(
            f"{path}: which column holds the labels? Say --label-column NAME. The columns: {listed(first, 30)}."
        )
    return likely[0]


def _integers_if_all(words: Sequence[str]) -> np.ndarray:
    """Words as integers if every one is a canonical integer in range; otherwise text, as ids."""
    digits = (
        w.isascii() and w.removeprefix("-").isdigit() and len(w) <= 18 and (w == "0" or w[0] != "0")
        for w in words
    )
    return np.array([int(w) for w in words]) if words and all(digits) else np.array(words, dtype=str)
