"""Answers of other tools: one node per sample, or lists of (class, score), from CSV and SpeciesNet's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.errors import ConfigError, DataError, FormatError, listed
from hace.files.documents import csv_rows, ragged, read_json
from hace.files.reading import read_text
from hace.formats.score_files import CHUNK, ScoreFile, read_values
from hace.formats.taxonomies import UUID
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names, unknown_name_hint

SAMPLES = "sample sample_id file filename file_name filepath path image image_id image_path uid".split()
_CLASSES = "class label labels classification prediction answer species scientific_name taxon name".split()
_SCORES = "score probability prob confidence".split()


class Table(NamedTuple):
    """A CSV table: its columns by name in lower case, and the names of its samples where it has them."""

    columns: dict[str, list[str]]
    samples: list[str] | None

    def column(self, wanted: str | None, usual: Sequence[str], path: Path, option: str) -> list[str]:
        """A column by name, or the one with a usual name."""
        names = [name for name in usual if name in self.columns] if wanted is None else [wanted.casefold()]
        if len(self.columns) == 1 and wanted is None:
            names = list(self.columns)
        if not names or names[0] not in self.columns:
            raise ConfigError(
                f"{path}: which column? Say {option} NAME. The columns: {listed(self.columns, 30)}."
            )
        return self.columns[names[0]]


def read_table(path: Path) -> Table:
    """A .csv or .tsv table with a header."""
    rows = csv_rows(read_text(path), str(path), "\t" if path.suffix.lower() == ".tsv" else ",")
    header = [cell.strip().casefold() for cell in next(rows, (0, []))[1]]
    if not header or len(set(header)) < len(header):
        raise FormatError(
            f"{path}: must have a header that names each column once. Got {listed(header, 9) or 'nothing'}."
        )
    held = []
    for line, cells in rows:
        if len(cells) != len(header):
            raise ragged(str(path), line, len(cells), len(header))
        held.append([cell.strip() for cell in cells])
    columns = {name: [cells[i] for cells in held] for i, name in enumerate(header)}
    key = next((name for name in SAMPLES if name in columns), None)
    return Table(columns, None if key is None or len(header) == 1 else columns[key])


def read_answers(
    answers: str | Path,
    labels: str | Path,
    *,
    answer_column: str | None = None,
    label_column: str | None = None,
    groups: str | None = None,
) -> tuple[list[str], list[str], list[str] | None]:
    """Answers, truths and groups of the same samples: joined by sample names where both files have them, else by row."""
    given, truth = (_table_of(Path(path)) for path in (answers, labels))
    words = given.column(answer_column, _CLASSES, Path(answers), "--answer-column")
    true = truth.column(label_column, ("label", "labels", *_CLASSES), Path(labels), "--label-column")
    group = None if groups is None else truth.column(groups, (), Path(labels), "--groups")
    if given.samples is not None and truth.samples is not None:
        place = {sample: i for i, sample in enumerate(given.samples)}
        if len(place) < len(given.samples):
            raise DataError(f"{answers}: every sample must have one answer. Got two for some.")
        missing = [sample for sample in truth.samples if sample not in place]
        if missing:
            raise DataError(
                f"{answers}: every sample of {labels} must have an answer. Got none for {listed(missing, 5)}."
            )
        words = [words[place[sample]] for sample in truth.samples]
    elif len(words) != len(true):
        raise DataError(
            f"{answers} has {len(words):,} answers and {labels} {len(true):,} labels. There must be one each."
        )
    return words, true, group


def _table_of(path: Path) -> Table:
    suffix = path.suffix.lower()
    if suffix == ".json":
        names, lists = _predictions(path)
        return Table({"prediction": [classes[0] if classes else "" for classes, _ in lists]}, names)
    if suffix in (".csv", ".tsv"):
        text = read_text(path)
        if "," in text.partition("\n")[0] or "\t" in text.partition("\n")[0]:
            return read_table(path)
    return Table({"label": [str(value) for value in read_values(path).tolist()]}, None)


def _predictions(path: Path, top: bool = True) -> tuple[list[str], list[tuple[list[str], list[float]]]]:
    """Names and answers of SpeciesNet's predictions: the final one, or with `top` False the classifier's list with scores."""
    content = read_json(path)
    rows = content.get("predictions") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("filepath"), str) for row in rows
    ):
        raise FormatError(f"{path}: must hold predictions with a filepath each, as SpeciesNet writes them.")
    found: list[tuple[list[str], list[float]]] = []
    for row in rows:
        held = row.get("classifications") if not top else None
        held = (
            held
            if isinstance(held, dict)
            else {"classes": [row["prediction"]] if row.get("prediction") else [], "scores": [1.0]}
        )
        classes, scores = held.get("classes"), held.get("scores")
        if (
            not isinstance(classes, list)
            or not isinstance(scores, list)
            or (not top and len(classes) != len(scores))
        ):
            raise FormatError(
                f"{path}: classes and scores must be lists of one length. Got others for {row['filepath']!r}."
            )
        found.append(
            (
                [_taxon(str(name)) for name in classes],
                [_number(score, path) for score in scores[: len(classes)]],
            )
        )
    return [row["filepath"] for row in rows], found


def _taxon(text: str) -> str:
    """The uuid of a SpeciesNet label, "" for blank and the like; other text as it is."""
    if not UUID.match(text):
        return text
    uuid, *ranks = text.split(";")
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
    if rest not in ("spread", "unknown"):
        raise ConfigError(f"rest must be 'spread' or 'unknown'. Got {rest!r}.")
    if rest == "unknown" and not h.rooted:
        raise ConfigError("Unknown mass needs a root to stay at. Add one: --root.")
    lists = _predictions(path, top=False)[1] if path.suffix.lower() == ".json" else _long_table(path)
    known, skip = known_names(h), {"", *ignored}
    unknown = [name for names, _ in lists for name in names if name not in known and name not in skip]
    if unknown:
        raise DataError(
            f"{path}: every class of a list must be a node of the hierarchy. Got {listed(dict.fromkeys(unknown))}."
            f"{unknown_name_hint(h, unknown[0])} Leave out others with --ignore-column NAME."
        )

    def chunks() -> Iterator[np.ndarray]:
        rows = iter(lists)
        while block := list(islice(rows, max(1, CHUNK // h.num_nodes))):
            made = np.zeros((len(block), h.num_nodes))
            for row, (names, scores) in zip(made, block, strict=True):
                for name, score in zip(names, scores, strict=True):
                    if name not in skip:
                        row[known[name]] += score
                _spread(row, h, rest)
            yield made

    return ScoreFile(path, len(lists), "nodes", chunks)


def _spread(row: np.ndarray, h: Hierarchy, rest: str) -> None:
    left = max(0.0, 1.0 - float(row.sum()))
    if rest == "unknown":
        row[0] += left
    else:
        free = h.leaf_nodes[row[h.leaf_nodes] == 0]
        smallest = float(row[row > 0].min(initial=1.0))
        if len(free):
            row[free] = min(left / len(free), smallest)
    row /= row.sum() or 1.0


def _long_table(path: Path) -> list[tuple[list[str], list[float]]]:
    table = read_table(path)
    if table.samples is None:
        raise FormatError(
            f"{path}: must name the sample of each row, in a column such as sample or file. Got none."
        )
    names = table.column(None, _CLASSES, path, "a column class;")
    scores = table.column(None, _SCORES, path, "a column score;")
    found: dict[str, tuple[list[str], list[float]]] = {}
    for sample, name, score in zip(table.samples, names, scores, strict=True):
        classes, numbers = found.setdefault(sample, ([], []))
        classes.append(name)
        numbers.append(_number(score, path))
    return list(found.values())
