"""Scores from files, read a chunk at a time, labels, lists of classes, and answers of other tools. Nothing is unpickled."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from hace.errors import ConfigError, DataError, FormatError, listed, shorten
from hace.files.arrays import INDEX_COLUMN, Arrays, Parquet, native
from hace.files.documents import csv_rows, is_numeric, ragged, read_json, read_rows, write_rows
from hace.files.reading import is_file, open_regular, read_text, text_lines
from hace.files.writing import atomic_path
from hace.formats.taxonomies import UUID
from hace.hierarchy import Hierarchy
from hace.hierarchy.matching import Match
from hace.hierarchy.names import known_names, score_columns, unknown_name_hint

CHUNK = 1 << 22  # numbers of a chunk
_CHANGED = "must stay as it is while it is read. It has changed: run the same command again."

Width = Literal["leaves", "nodes"]


@dataclass
class ScoreFile:
    """A table of scores, over "leaves" or "nodes", that is read a chunk at a time."""

    path: Path
    rows: int
    outputs: Width
    # Chunks (b, n) in label order or (b, N) in node order.
    chunks: Callable[[], Iterator[np.ndarray]]
    # Where a row is: its line in a text file, or its number from 0.
    place: Callable[[int], str] = "row {}".format
    # The names of the samples, where a column has them.
    samples: Callable[[], list[str]] | None = None


def open_scores(
    path: str | Path,
    hierarchy: Hierarchy,
    *,
    key: str | None = None,
    outputs: str = "auto",
    ignore_columns: Sequence[str] = (),
    absent: float = float("-inf"),
) -> ScoreFile:
    """Open a file of scores; a node without a column has the score `absent`: no mass of its own."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        if ignore_columns:
            raise ConfigError(f"{path}: --ignore-column is for .csv and .parquet: arrays have no names.")
        return _open_array(path, hierarchy, key, outputs)
    if suffix not in (".csv", ".parquet"):
        raise FormatError(f"{path}: scores must be .npy, .npz, .csv or .parquet. Got {suffix or 'nothing'}.")
    if key is not None:
        raise ConfigError(f"{path}: --key is for .npz: name an array of an .npz, or leave --key out.")
    open_table = _open_csv if suffix == ".csv" else _open_parquet
    return open_table(path, hierarchy, outputs, ignore_columns, absent)


def pick_array(path: Path, key: str | None, usual: Sequence[str], option: str) -> np.ndarray:
    """The array of an .npy, or one of an .npz: `key`, which was given with `option`, or the one with a usual name."""
    arrays = Arrays(path)
    if arrays.single:
        if key is not None:
            raise ConfigError(f"{path}: {option} is for .npz: an .npy has one array. Leave {option} out.")
        return arrays[""]
    names = [key] if key is not None else ([name for name in arrays if name in usual] or list(arrays))
    if len(names) != 1 or names[0] not in arrays:
        raise ConfigError(f"{path}: which array? It holds {listed(arrays, 30)}. Name one with {option}.")
    return arrays[names[0]]


def _open_array(path: Path, h: Hierarchy, key: str | None, outputs: str) -> ScoreFile:
    """The scores of an .npy or .npz."""
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
    shape = (rows.stop - rows.start, array.shape[1])
    start = array.offset + rows.start * array.strides[0]
    try:
        return np.memmap(file, array.dtype, "c", start, shape).view(np.ndarray)
    except ValueError as error:
        raise FormatError(f"{path}: {_CHANGED}") from error


def _width(path: Path, shape: tuple[int, ...], h: Hierarchy, outputs: str) -> Width:
    try:
        return score_columns(shape, h, outputs)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _open_csv(path: Path, h: Hierarchy, outputs: str, ignored: Sequence[str], absent: float) -> ScoreFile:
    """The scores of a table, named by its header or in label order."""
    lines = _csv_rows(path)
    _, first = next(lines, (0, []))
    if not first:
        raise FormatError(
            f"{path}: the file is empty. Write a header of class ids, then one row of scores per sample."
        )
    rows = 1 + sum(1 for _ in lines)
    header = [cell.strip().replace("\n", " ") for cell in first]
    named = set(header) >= set(h.leaves) or not all(map(is_numeric, first))
    naming = _sample_column(header, h) if named else None
    if named:
        places, over = _column_places(header, h, outputs, ignored, str(path))
    else:
        places = list(range(len(first)))
        over = _width(path, (rows, len(first)), h, outputs)

    def chunks() -> Iterator[np.ndarray]:
        lines = islice(_csv_rows(path), int(named), None)
        step = max(1, (CHUNK >> 3) // len(first))  # cells take more memory than numbers
        while block := list(islice(lines, step)):
            wrong = next(((line, len(cells)) for line, cells in block if len(cells) != len(first)), None)
            if wrong:
                raise ragged(str(path), *wrong, len(first))
            try:
                picked = [[cells[i] if i >= 0 else absent for i in places] for _, cells in block]
                yield np.array(picked, dtype=np.float64)
            except (ValueError, OverflowError) as error:
                words = shorten(str(error).rstrip(". "), 200)
                raise FormatError(
                    f"{path}, from line {block[0][0]} on: every cell must be a number. Got an error: {words}."
                ) from error

    def place(row: int) -> str:
        return f"line {next(islice(_csv_rows(path), row + int(named), None))[0]}"

    def samples() -> list[str]:
        assert naming is not None
        return [cells[naming].strip() for _, cells in islice(_csv_rows(path), int(named), None)]

    return ScoreFile(path, rows - named, over, chunks, place, None if naming is None else samples)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    return csv_rows((f"{line}\n" for line in text_lines(path)), str(path))


def _column_places(
    columns: Sequence[str], h: Hierarchy, outputs: str, ignored: Sequence[str], source: str
) -> tuple[list[int], Width]:
    """For each leaf in label order, or each node in node order, the column that holds it.

    With inner nodes among them, or with outputs="nodes", columns may be any nodes: one without a column, -1 here, has no mass
    of its own.
    """
    column_of = _columns_of_nodes(columns, h, ignored, source)
    orders: dict[Width, list[int]] = {"leaves": h.leaf_nodes.tolist(), "nodes": list(range(h.num_nodes))}
    for width, nodes in orders.items():
        if outputs in ("auto", width) and column_of.keys() == set(nodes):
            return [column_of[v] for v in nodes], width
    inner = [h.nodes[v] for v in column_of if h.labels[v] < 0]
    if outputs == "nodes" or (outputs == "auto" and inner):
        return [column_of.get(v, -1) for v in range(h.num_nodes)], "nodes"
    missing = [h.nodes[v] for v in orders["leaves"] if v not in column_of]
    inside = f"inner nodes among the columns: {listed(inner)}"
    what = f"Leaves without a column: {listed(missing)}" if missing else f"Got {inside}"
    raise DataError(
        f"{source}: scores must have a column for each of the {h.num_leaves} leaves. {what}. If classes without a "
        "column have no mass, say --outputs nodes."
    )


def _columns_of_nodes(
    columns: Sequence[str], h: Hierarchy, ignored: Sequence[str], source: str
) -> dict[int, int]:
    """The column of each node that has one; other columns must be ignored, or name the samples."""
    stray = [c for c in ignored if c not in columns]
    if stray:
        raise ConfigError(f"{source}: there is no column {stray[0]!r} to ignore. Columns: {listed(columns)}.")
    known = known_names(h)
    naming = _sample_column(columns, h)
    columns_of_scores = [(i, c) for i, c in enumerate(columns) if c not in ignored and i != naming]
    unknown = [c for _, c in columns_of_scores if c not in known]
    index = [c for c in unknown if INDEX_COLUMN.fullmatch(c)]
    if index:
        raise DataError(
            f"{source}: every column must be a class of the hierarchy. Got {listed(index)}, the index of a DataFrame. Save it "
            f"with index=False, or leave the column out: --ignore-column '{index[0]}'."
        )
    if unknown:
        raise DataError(
            f"{source}: every column must be a class of the hierarchy. Got {listed(unknown)}."
            f"{unknown_name_hint(h, unknown[0])} Leave out other columns with --ignore-column NAME."
        )
    repeated = [v for v, k in Counter(known[c] for _, c in columns_of_scores).items() if k > 1]
    if repeated:
        raise DataError(f"{source}: each class must have one column. Got two for {h.nodes[repeated[0]]!r}.")
    return {known[c]: i for i, c in columns_of_scores}


def _sample_column(columns: Sequence[str], h: Hierarchy) -> int | None:
    """The column that names the samples: it has a usual name and is no class."""
    known = known_names(h)
    usual = (i for i, c in enumerate(columns) if c.casefold() in SAMPLES and c not in known)
    return next(usual, None)


def label_order(scores: ScoreFile, labels: str | Path) -> np.ndarray | None:
    """(S,) which label belongs to each row of scores, by the names of samples; None where one of the files has no names.

    Raises:
        DataError: A sample of one file is not in the other, or is there twice.
    """
    path = Path(labels)
    if scores.samples is None or path.suffix.lower() not in (".csv", ".tsv"):
        return None
    of_labels = read_table(path).samples
    if of_labels is None:
        return None
    place = {sample: i for i, sample in enumerate(of_labels)}
    if len(place) < len(of_labels):
        repeated = [sample for sample, times in Counter(of_labels).items() if times > 1]
        raise DataError(f"{path}: every sample must have one label. Got several for {listed(repeated)}.")
    named = scores.samples()
    missing = [sample for sample in named if sample not in place]
    if missing or len(set(named)) < len(named):
        problem = f"none for {listed(missing)}" if missing else "several rows of scores for some"
        raise DataError(f"{path}: every sample of {scores.path} must have a label. Got {problem}.")
    return np.array([place[sample] for sample in named], dtype=np.int64)


def _open_parquet(path: Path, h: Hierarchy, outputs: str, ignored: Sequence[str], absent: float) -> ScoreFile:
    """Scores in columns named after classes or nodes, in any order; ``absent`` stands where a node has no column."""
    table = Parquet(path)
    places, over = _column_places(table.names, h, outputs, ignored, str(path))
    wanted = [table.names[i] for i in places if i >= 0]
    step = max(1, CHUNK // max(len(table.names), 1))

    def chunks() -> Iterator[np.ndarray]:
        for batch in table.batches(wanted, step):
            columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in wanted]
            bad = [name for name, x in zip(wanted, columns, strict=True) if x.dtype.kind not in "fiub"]
            if bad:
                raise DataError(
                    f"{path}: scores must be numbers. Got another type in the columns {listed(bad, 5)}."
                )
            block_scores = np.stack(columns, axis=1).astype(np.float64)
            whole = np.full((len(block_scores), len(places)), absent)
            whole[:, [i for i, place in enumerate(places) if place >= 0]] = block_scores
            yield whole

    naming = _sample_column(table.names, h)

    def samples() -> list[str]:
        assert naming is not None
        name = table.names[naming]
        return [
            str(cell) for batch in table.batches([name], CHUNK) for cell in batch.column(name).to_pylist()
        ]

    return ScoreFile(path, table.rows, over, chunks, samples=None if naming is None else samples)


def read_values(
    path: str | Path, key: str | None = None, column: str | None = None
) -> tuple[np.ndarray, list[int] | None]:
    """(S,) labels as a file holds them, integers or text, and their lines; None for the lines of an array."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz", ".csv", ".txt"):
        raise FormatError(f"{path}: labels must be .npy, .npz, .csv or .txt. Got {suffix or 'no suffix'}.")
    if column is not None and suffix != ".csv":
        raise ConfigError(f"{path}: --label-column is for .csv. Leave it out.")
    if key is not None and suffix in (".csv", ".txt"):
        raise ConfigError(f"{path}: --label-key is for .npz. Leave it out.")
    if suffix in (".csv", ".txt"):
        numbered = _column(path, column) if suffix == ".csv" else _lines(path)
        return _integers_if_all([word for _, word in numbered]), [line for line, _ in numbered]
    array = pick_array(path, key, ("labels", "label", "y", "targets"), "--label-key")
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: labels must be one-dimensional, integers or text. Got {array.dtype} of shape {array.shape}."
        )
    values = native(np.array(array))
    if values.dtype.kind == "U":
        return np.char.strip(values), None  # as lines and cells are
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"{path}: labels must be below 2**63. Got {values.max()}.")
    return (values.astype(np.int64) if values.dtype == np.uint64 else values), None


def read_list(text: str) -> list[str]:
    """Names of classes: the lines of a file, or the words between commas."""
    if is_file(text):
        return [word for _, word in _lines(Path(text))]
    return [word.strip() for word in text.split(",") if word.strip()]


def read_matches(path: Path) -> dict[str, str | None]:
    """Corrected matches, from a table with the columns name and id; "-" leaves a class out, an empty id is not corrected."""
    header, rows = read_rows(path)
    if not {"name", "id"} <= set(header):
        raise FormatError(f"{path}: must have the columns name and id. Got {listed(header, 9) or 'nothing'}.")
    ids = {row["name"]: row["id"].strip() for _, row in rows}
    return {name: None if id == "-" else id for name, id in ids.items() if id}


def write_matches(path: Path, matches: Sequence[Match], corrected: Mapping[str, str | None]) -> None:
    """A table of matches to correct: name, id, how it was found, and candidates."""
    rows = [("name", "id", "how", "candidates")]
    rows += [(name, id or "-", "corrected", "") for name, id in corrected.items()]
    open_first = sorted(matches, key=lambda m: m.id is not None)
    rows += [(m.name, m.id or "", m.how, "; ".join(m.candidates)) for m in open_first]
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, rows, raw=True)  # ids and names must come back as they are


def _lines(path: Path) -> list[tuple[int, str]]:
    lines = enumerate(read_text(path).splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _column(path: Path, column: str | None) -> list[tuple[int, str]]:
    """The labels of a table with their lines."""
    rows = [(line, [cell.strip() for cell in row]) for line, row in csv_rows(read_text(path), str(path))]
    if not rows:
        raise FormatError(f"{path}: the file is empty. Write one label per line.")
    first = rows[0][1]
    wanted = {"label", "labels"} if column is None else {column}
    places = [i for i, name in enumerate(first) if (name.casefold() if column is None else name) in wanted]
    header = column is not None or len(first) > 1 or bool(places)
    if header and len(places) != 1:
        problem = "which column holds the labels? Say --label-column NAME"
        problem = problem if column is None else f"there is no column {column!r}"
        raise ConfigError(f"{path}: {problem}. The columns: {listed(first, 30)}.")
    for line, row in rows:
        if len(row) != len(first):
            raise ragged(str(path), line, len(row), len(first))
    return [(line, row[places[0] if places else 0]) for line, row in rows[header:]]


def _integers_if_all(words: Sequence[str]) -> np.ndarray:
    """Words as integers if every one is a canonical integer in range; otherwise text, as ids."""
    digits = (
        w.isascii() and w.removeprefix("-").isdigit() and len(w) <= 18 and (w == "0" or w[0] != "0")
        for w in words
    )
    return np.array([int(w) for w in words]) if words and all(digits) else np.array(words, dtype=str)


SAMPLES = "sample sample_id file filename file_name filepath path image image_id image_path uid".split()
_CLASSES = "label labels class classification prediction answer species scientific_name taxon name".split()
_SCORES = "score probability prob confidence".split()
Ranking = list[tuple[str, float]]  # classes and scores of one sample


class Table(NamedTuple):
    """Columns by name in lower case, and the names of the samples where there are any."""

    path: Path
    columns: dict[str, list[str]]
    samples: list[str] | None = None

    def column(self, wanted: str | None, usual: Sequence[str], option: str) -> list[str]:
        """A column by name, or the one with a usual name."""
        names = [name for name in usual if name in self.columns] if wanted is None else [wanted.casefold()]
        names = list(self.columns) if len(self.columns) == 1 and wanted is None else names
        if not names or names[0] not in self.columns:
            columns = listed(self.columns, 30)
            raise ConfigError(f"{self.path}: which column? Say {option} NAME. The columns: {columns}.")
        return self.columns[names[0]]


def read_table(path: Path) -> Table:
    """A table with a header (.csv, .tsv), final answers (.json), or one label per line or entry."""
    if path.suffix.lower() == ".json":
        names, rankings = _predictions(path, "prediction")
        return Table(path, {"prediction": [ranking[0][0] if ranking else "" for ranking in rankings]}, names)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    if path.suffix.lower() not in (".csv", ".tsv") or delimiter not in read_text(path).partition("\n")[0]:
        return Table(path, {"label": [str(value) for value in read_values(path)[0].tolist()]})
    header, rows = read_rows(path)
    columns = {name.casefold(): [row[name].strip() for _, row in rows] for name in header}
    if len(columns) < len(header):
        raise FormatError(f"{path}: the header must name each column once. Got {listed(header, 9)}.")
    key = next((name for name in SAMPLES if name in columns), None)
    return Table(path, columns, None if key is None else columns[key])


def read_answers(
    answers: str | Path,
    labels: str | Path,
    *,
    answer_column: str | None = None,
    label_column: str | None = None,
    groups: str | None = None,
) -> tuple[list[str], list[str], list[str] | None]:
    """Answers, truths and groups of the same samples: by row in one file, joined by sample names where two files have them."""
    given = read_table(Path(answers))
    truth = read_table(Path(labels))
    words = given.column(answer_column, _CLASSES, "--answer-column")
    true = truth.column(label_column, _CLASSES, "--label-column")
    group = None if groups is None else truth.column(groups, (), "--groups")
    one_file = Path(answers) == Path(labels)
    if not one_file and given.samples is not None and truth.samples is not None:
        answer = dict(zip(given.samples, words, strict=True))
        missing = [sample for sample in truth.samples if sample not in answer]
        if missing or len(answer) < len(words):
            problem = f"none for {listed(missing, 5)}" if missing else "two for some"
            raise DataError(f"{answers}: every sample of {labels} must have an answer. Got {problem}.")
        words = [answer[sample] for sample in truth.samples]
    if len(words) != len(true):
        raise DataError(f"There must be one answer per label. Got {len(words):,} and {len(true):,}.")
    return words, true, group


def _predictions(path: Path, key: str) -> tuple[list[str], list[Ranking]]:
    """Names of SpeciesNet's samples with their final "prediction" or the list of "classifications"."""
    content = read_json(path)
    rows = content.get("predictions") if isinstance(content, dict) else None
    names = []
    rankings = []
    for row in rows if isinstance(rows, list) else [None]:
        name, held = (row.get("filepath"), row.get(key)) if isinstance(row, dict) else (None, None)
        if not held or isinstance(held, str):
            held = {"classes": [held] if held else [], "scores": [1] if held else []}
        lists: list[Any] = [held.get(k) if isinstance(held, dict) else None for k in ("classes", "scores")]
        if not isinstance(name, str) or not all(isinstance(each, list) for each in lists):
            raise FormatError(
                f"{path}: must hold predictions as SpeciesNet writes them. Got another structure."
            )
        classes, scores = lists
        if len(classes) != len(scores):
            raise FormatError(f"{path}: a prediction must have as many scores as classes. {name} does not.")
        names.append(name)
        rankings.append([(_taxon(str(c)), _number(s, path)) for c, s in zip(classes, scores, strict=True)])
    return names, rankings


def _taxon(text: str) -> str:
    """The uuid of a SpeciesNet label, "" for blank and the like; other text as it is."""
    uuid, *ranks = text.split(";") if UUID.match(text) else (text, text)
    return uuid if any(ranks[:5]) else ""


def _number(value: Any, path: Path) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number <= 1 + 1e-6:
        raise DataError(f"{path}: scores of a list must be probabilities from 0 to 1. Got {value!r}.")
    return number


def open_top_k(path: str | Path, h: Hierarchy, rest: str, ignored: Sequence[str] = ()) -> ScoreFile:
    """Lists of (class, score) as probabilities of nodes.

    A CSV has a row for each pair, with columns such as sample, class and score; SpeciesNet's JSON its lists. What the listed
    scores leave of 1 is spread evenly over the other leaves, never above the smallest listed score (`rest` "spread"; rows are
    then divided by their sum), or stays at the root as unknown mass ("unknown").
    """
    path = Path(path)
    if rest not in ("spread", "unknown") or (rest == "unknown" and not h.rooted):
        raise ConfigError(
            f"rest must be 'spread', or 'unknown', which needs a root (--root-node). Got {rest!r}."
        )
    if path.suffix.lower() == ".json":
        samples, rankings = _predictions(path, "classifications")
    else:
        samples, rankings = _long_table(read_table(path))
    known = known_names(h)
    skip = {"", *ignored}
    unknown = [name for ranking in rankings for name, _ in ranking if name not in known and name not in skip]
    if unknown:
        raise DataError(
            f"{path}: every class of a list must be a node of the hierarchy. Got {listed(dict.fromkeys(unknown))}."
            f"{unknown_name_hint(h, unknown[0])} Leave out others with --ignore-column NAME."
        )

    def chunks() -> Iterator[np.ndarray]:
        rows = iter(rankings)
        while block := list(islice(rows, max(1, CHUNK // h.num_nodes))):
            made = np.zeros((len(block), h.num_nodes))
            for row, ranking in zip(made, block, strict=True):
                for name, score in ranking:
                    if name not in skip:
                        row[known[name]] += score
                left = max(0.0, 1.0 - float(row.sum()))
                free = h.leaf_nodes[row[h.leaf_nodes] == 0]
                if rest == "unknown":
                    row[0] += left
                elif len(free):
                    row[free] = min(left / len(free), float(row[row > 0].min(initial=1.0)))
                row /= row.sum() or 1.0
            yield made

    return ScoreFile(path, len(rankings), "nodes", chunks, samples=lambda: samples)


def _long_table(table: Table) -> tuple[list[str], list[Ranking]]:
    """The samples of a table with a row for each pair, and their lists."""
    if table.samples is None:
        raise FormatError(f"{table.path}: a column such as sample or file must name the sample of each row.")
    names = table.column(None, _CLASSES, "a column")
    scores = table.column(None, _SCORES, "a column")
    rankings: dict[str, Ranking] = {}
    for sample, name, score in zip(table.samples, names, scores, strict=True):
        rankings.setdefault(sample, []).append((name, _number(score, table.path)))
    return list(rankings), list(rankings.values())
