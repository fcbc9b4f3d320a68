"""Scores, labels and lists of classes from files: .npy, .npz, .csv, .parquet, .txt. Nothing is ever unpickled."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hace.errors import ConfigError, DataError, FormatError
from hace.hierarchy import Hierarchy
from hace.hierarchy.columns import score_columns
from hace.hierarchy.names import column_places

CHUNK = 1 << 22  # numbers of a chunk


@dataclass
class ScoreFile:
    """A table of scores that is read a chunk at a time.

    Attributes:
        path: the file.
        rows: the number of samples.
        outputs: ``"leaves"`` or ``"nodes"``.
    """

    path: Path
    rows: int
    outputs: str
    _chunks: Any

    def chunks(self) -> Iterator[np.ndarray]:
        """Chunks (b, n) in label order or (b, N) in node order."""
        return self._chunks()


def open_scores(
    path: str | Path,
    hierarchy: Hierarchy,
    *,
    key: str | None = None,
    outputs: str = "auto",
    ignore_columns: Sequence[str] = (),
) -> ScoreFile:
    """Open a file of scores.

    Args:
        path: .npy (read through memory mapping), .npz, .csv (with or without a header) or .parquet.
        hierarchy: what the columns must fit. Named columns are matched by id, then by display name where that is unique;
            columns without names stand in label order (leaves) or node order (nodes).
        key: the array to take from an .npz.
        outputs: ``"auto"`` or what the columns are.
        ignore_columns: names of columns that are no scores.

    Raises:
        FormatError: a file that cannot be read.
        DataError: columns that do not fit.
    """
    path = _existing(path)
    if path.suffix in (".npy", ".npz"):
        array = _numpy(path, key, ("scores", "logits", "probs"))
        width = _width(path, array.shape, hierarchy, outputs)
        if not np.issubdtype(array.dtype, np.floating):
            raise DataError(f"{path}: scores must be floating-point numbers. Got {array.dtype} instead.")
        return ScoreFile(path, len(array), width, lambda: _slices(array))
    if path.suffix == ".csv":
        return _open_csv(path, hierarchy, outputs, ignore_columns)
    if path.suffix == ".parquet":
        return _open_parquet(path, hierarchy, outputs, ignore_columns)
    raise FormatError(
        f"{path}: scores are read from .npy, .npz, .csv or .parquet. Got {path.suffix or 'no suffix'}."
    )


def _width(path: Path, shape: tuple[int, ...], h: Hierarchy, outputs: str) -> Literal["leaves", "nodes"]:
    try:
        return score_columns(shape, h, outputs)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _slices(array: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, CHUNK // max(array.shape[1], 1))
    for start in range(0, len(array), step):
        yield np.array(array[start : start + step])  # a copy: of a mapped file, only this much is in memory


def _open_csv(path: Path, h: Hierarchy, outputs: str, ignored: Sequence[str]) -> ScoreFile:
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = next(csv.reader(file), None)
        if first is None:
            raise FormatError(
                f"{path}: the file is empty. Write a header of class ids, then a row of scores a sample."
            )
        rows = sum(1 for line in file if line.strip())
    named = {c.strip() for c in first} >= set(h.leaves) or not all(map(_is_number, first))
    if named:
        places, over = column_places([c.strip() for c in first], h, outputs, ignored, str(path))
    else:
        places, over = None, _width(path, (rows, len(first)), h, outputs)
    rows += not named
    step = max(1, CHUNK // len(first))

    def chunks() -> Iterator[np.ndarray]:
        with path.open(encoding="utf-8-sig") as file:
            if named:
                file.readline()
            for start in range(0, rows, step):
                try:
                    block = np.loadtxt(
                        file,
                        delimiter=",",
                        ndmin=2,
                        max_rows=min(step, rows - start),
                        usecols=places,
                        comments=None,
                        quotechar='"',
                    )
                except (ValueError, IndexError) as error:
                    raise FormatError(
                        f"{path}: after data row {start}: {_words(error)}. Every cell must be a number."
                    ) from error
                yield block

    return ScoreFile(path, rows, over, chunks)


def _open_parquet(path: Path, h: Hierarchy, outputs: str, ignored: Sequence[str]) -> ScoreFile:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError(
            f'{path}: parquet needs pyarrow. Install it with: pip install "hace[data]".'
        ) from error
    try:
        table = ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        raise FormatError(f"{path}: not a parquet file: {error}") from error
    names = table.schema_arrow.names
    places, over = column_places(names, h, outputs, ignored, str(path))
    wanted = [names[i] for i in places]
    step = max(1, CHUNK // max(len(names), 1))

    def chunks() -> Iterator[np.ndarray]:
        for batch in table.iter_batches(batch_size=step, columns=wanted):
            columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in wanted]
            yield np.stack(columns, axis=1).astype(np.float64)

    return ScoreFile(path, table.metadata.num_rows, over, chunks)


def read_values(path: str | Path, key: str | None = None, column: str | None = None) -> np.ndarray:
    """(S,) labels as a file holds them: integers, or text.

    Args:
        path: .npy, .npz, .csv or .txt (one a line).
        key: the array to take from an .npz.
        column: the column of a .csv with several; "label" or "labels" by default.
    """
    path = _existing(path)
    if path.suffix in (".npy", ".npz"):
        array = _numpy(path, key, ("labels", "label", "y", "targets"))
        if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind == "U"):
            raise DataError(
                f"{path}: labels must be one-dimensional, integers or text. Got {array.dtype} of shape {array.shape}."
            )
        return np.array(array)
    if path.suffix not in (".csv", ".txt"):
        raise FormatError(
            f"{path}: labels are read from .npy, .npz, .csv or .txt. Got {path.suffix or 'no suffix'}."
        )
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".txt":
        return _integers_if_all(np.array([line.strip() for line in text.splitlines() if line.strip()]))
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    if not rows:
        raise FormatError(f"{path}: the file is empty. Write a label a line.")
    place = _label_column(rows[0], column, path)
    header = column is not None or len(rows[0]) > 1 or rows[0][place].casefold() in ("label", "labels")
    short = [i for i, row in enumerate(rows) if len(row) <= place]
    if short:
        raise FormatError(
            f"{path}: row {short[0] + 1} has {len(rows[short[0]])} cells, fewer than the header."
        )
    return _integers_if_all(np.array([row[place] for row in rows[header:]]))


def read_list(text: str) -> list[str]:
    """Names of classes: the lines of a file, or the words between commas."""
    path = Path(text)
    if path.is_file():
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    return [word.strip() for word in text.split(",") if word.strip()]


def _label_column(first: list[str], column: str | None, path: Path) -> int:
    if column is not None:
        if column not in first:
            raise ConfigError(f"{path}: there is no column {column!r}. The columns: {', '.join(first)}.")
        return first.index(column)
    if len(first) == 1:
        return 0
    likely = [i for i, name in enumerate(first) if name.casefold() in ("label", "labels")]
    if len(likely) != 1:
        raise ConfigError(
            f"{path}: which column holds the labels? Say --label-column NAME. The columns: {', '.join(first)}."
        )
    return likely[0]


def _integers_if_all(values: np.ndarray) -> np.ndarray:
    """Text as integers where every value is one, written as an integer is written."""
    digits = [
        v.isascii() and v.removeprefix("-").isdigit() and (v == "0" or v[0] != "0") for v in values.tolist()
    ]
    return values.astype(np.int64) if len(values) and all(digits) else values


def _numpy(path: Path, key: str | None, usual: Sequence[str]) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            names = [key] if key else ([n for n in loaded.files if n in usual] or loaded.files)
            if len(names) != 1 or names[0] not in loaded.files:
                raise ConfigError(
                    f"{path}: which array? It holds {', '.join(loaded.files)}. Name one with --key or --label-key."
                )
            return loaded[names[0]]
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, (ConfigError, DataError, FormatError)):
            raise
        raise FormatError(
            f"{path}: not a readable {path.suffix} file of plain numbers or text: {_words(error)}. "
            "Save it with numpy.save or numpy.savez; arrays of Python objects are not loaded."
        ) from error


def _words(error: Exception) -> str:
    """What another library says, without its full stop."""
    return str(error).rstrip(". ")


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"{path}: there is no such file.")
    return path


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
