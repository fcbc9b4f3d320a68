"""Scores from files, read a chunk at a time: .npy, .npz, .csv, .parquet. Nothing is ever unpickled."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from hace.errors import ConfigError, DataError, FormatError, listed, shorten
from hace.files.arrays import Arrays, Parquet, native
from hace.files.documents import csv_rows, is_numeric, ragged
from hace.files.reading import open_regular, text_lines
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names, score_columns, unknown_name_hint

CHUNK = 1 << 22  # numbers of a chunk
_CHANGED = "must stay as it is while it is read. It has changed: run the same command again."

Width = Literal["leaves", "nodes"]


@dataclass
class ScoreFile:
    """A table of scores that is read a chunk at a time.

    Attributes:
        path: The file.
        rows: The number of samples.
        outputs: ``"leaves"`` or ``"nodes"``.
    """

    path: Path
    rows: int
    outputs: Width
    _chunks: Callable[[], Iterator[np.ndarray]]

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
    """Open a file of scores."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        if ignore_columns:
            raise ConfigError(
                f"{path}: --ignore-column is for .csv and .parquet: columns of arrays have no names."
            )
        return _open_array(path, hierarchy, key, outputs)
    if suffix not in (".csv", ".parquet"):
        raise FormatError(
            f"{path}: scores must be .npy, .npz, .csv or .parquet. Got {suffix or 'no suffix'}."
        )
    if key is not None:
        raise ConfigError(f"{path}: --key is for .npz: name an array of an .npz, or leave --key out.")
    return (_open_csv if suffix == ".csv" else _open_parquet)(path, hierarchy, outputs, ignore_columns)


def pick_array(path: Path, key: str | None, usual: Sequence[str], option: str) -> np.ndarray:
    """The array of an .npy, or one of an .npz: `key`, which was given with `option`, or the one with a usual name."""
    arrays = Arrays(path)
    if arrays.single:
        if key is not None:
            raise ConfigError(
                f"{path}: {option} is for .npz: an .npy has one array without a name. Leave {option} out."
            )
        return arrays[""]
    names = [key] if key is not None else ([name for name in arrays if name in usual] or list(arrays))
    if len(names) != 1 or names[0] not in arrays:
        raise ConfigError(f"{path}: which array? It holds {listed(arrays, 30)}. Name one with {option}.")
    return arrays[names[0]]


def _open_array(path: Path, h: Hierarchy, key: str | None, outputs: str) -> ScoreFile:
    array = pick_array(path, key, ("scores", "logits", "probs"), "--key")
    over = _width(path, array.shape, h, outputs)
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"{path}: scores must be floating-point numbers. Got {array.dtype}.")
    read = _mark(os.stat(path))

    def chunks() -> Iterator[np.ndarray]:
        step = max(1, CHUNK // max(array.shape[1], 1))
        with open_regular(path) as file:
            if _mark(os.fstat(file.fileno())) != read:
                raise FormatError(f"{path}: {_CHANGED}")
            for start in range(0, len(array), step):
                yield native(_own_rows(array, path, file, slice(start, min(start + step, len(array)))))

    return ScoreFile(path, len(array), over, chunks)


def _mark(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _own_rows(array: np.ndarray, path: Path, file: BinaryIO, rows: slice) -> np.ndarray:
    """Rows that torch takes without a copy, since they may be written to: those of a mapped file are mapped anew, to be read
    once; others are copied, as are those within an .npz, which may begin at any byte. Either way no more than these rows are in
    memory.
    """
    if not isinstance(array, np.memmap) or not (array.flags.c_contiguous and array.flags.aligned):
        return np.array(array[rows])
    shape, start = (rows.stop - rows.start, array.shape[1]), array.offset + rows.start * array.strides[0]
    try:
        return np.memmap(file, array.dtype, "c", start, shape).view(np.ndarray)
    except ValueError as error:
        raise FormatError(f"{path}: {_CHANGED}") from error


def _width(path: Path, shape: tuple[int, ...], h: Hierarchy, outputs: str) -> Width:
    try:
        return score_columns(shape, h, outputs)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _open_csv(path: Path, h: Hierarchy, outputs: str, ignored: Sequence[str]) -> ScoreFile:
    lines = _csv_rows(path)
    _, first = next(lines, (0, []))
    if not first:
        raise FormatError(
            f"{path}: the file is empty. Write a header of class ids, then one row of scores per sample."
        )
    rows = 1 + sum(1 for _ in lines)
    header = [cell.strip().replace("\n", " ") for cell in first]
    named = set(header) >= set(h.leaves) or not all(map(is_numeric, first))
    if named:
        places, over = _column_places(header, h, outputs, ignored, str(path))
    else:
        places, over = list(range(len(first))), _width(path, (rows, len(first)), h, outputs)

    def chunks() -> Iterator[np.ndarray]:
        lines = islice(_csv_rows(path), int(named), None)
        step, done = max(1, (CHUNK >> 3) // len(first)), 0  # cells take more memory than numbers
        while block := list(islice(lines, step)):
            wrong = next(((line, len(cells)) for line, cells in block if len(cells) != len(first)), None)
            if wrong:
                raise ragged(str(path), *wrong, len(first))
            try:
                yield np.array([[cells[i] for i in places] for _, cells in block], dtype=np.float64)
            except (ValueError, OverflowError) as error:
                words = shorten(str(error).rstrip(". "), 200)
                raise FormatError(
                    f"{path}: after data row {done}: every cell must be a number. Got an error: {words}."
                ) from error
            done += len(block)

    return ScoreFile(path, rows - named, over, chunks)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    return csv_rows((f"{line}\n" for line in text_lines(path)), str(path))


def _column_places(
    columns: Sequence[str], h: Hierarchy, outputs: str, ignored: Sequence[str], source: str
) -> tuple[list[int], Width]:
    """For each leaf in label order, or each node in node order, the column that holds it."""
    stray = [c for c in ignored if c not in columns]
    if stray:
        raise ConfigError(f"{source}: there is no column {stray[0]!r} to ignore. Columns: {listed(columns)}.")
    known = known_names(h)
    kept = [(i, c) for i, c in enumerate(columns) if c not in ignored]
    unknown = [c for _, c in kept if c not in known]
    if unknown:
        raise DataError(
            f"{source}: every column must be a class of the hierarchy. Got {listed(unknown)}."
            f"{unknown_name_hint(h, unknown[0])} Leave out other columns with --ignore-column NAME."
        )
    repeated = [v for v, k in Counter(known[c] for _, c in kept).items() if k > 1]
    if repeated:
        raise DataError(f"{source}: each class must have one column. Got two for {h.nodes[repeated[0]]!r}.")
    place = {known[c]: i for i, c in kept}
    wanted: dict[Width, list[int]] = {"leaves": h.leaf_nodes.tolist(), "nodes": list(range(h.num_nodes))}
    for over, nodes in wanted.items():
        if outputs in ("auto", over) and set(place) == set(nodes):
            return [place[v] for v in nodes], over
    over = "leaves" if outputs != "nodes" and all(h.labels[v] >= 0 for v in place) else "nodes"
    missing = [h.nodes[v] for v in wanted[over] if v not in place]
    extra = [h.nodes[v] for v in place if v not in wanted[over]]
    what = (
        f"without a column: {listed(missing)}"
        if missing
        else f"inner nodes among the columns: {listed(extra)}"
    )
    raise DataError(
        f"{source}: scores must have a column for each of the {h.num_leaves} leaves, or for each of the {h.num_nodes} nodes. "
        f"{over.capitalize()} {what}."
    )


def _open_parquet(path: Path, h: Hierarchy, outputs: str, ignored: Sequence[str]) -> ScoreFile:
    table = Parquet(path)
    places, over = _column_places(table.names, h, outputs, ignored, str(path))
    wanted = [table.names[i] for i in places]
    step = max(1, CHUNK // max(len(table.names), 1))

    def chunks() -> Iterator[np.ndarray]:
        for batch in table.batches(wanted, step):
            columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in wanted]
            bad = [
                name for name, column in zip(wanted, columns, strict=True) if column.dtype.kind not in "fiub"
            ]
            if bad:
                raise DataError(
                    f"{path}: scores must be numbers. Got another type in the columns {listed(bad, 5)}."
                )
            yield np.stack(columns, axis=1).astype(np.float64)

    return ScoreFile(path, table.rows, over, chunks)
