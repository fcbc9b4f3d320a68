"""Answers of other tools: one node per sample, or lists of (class, score), from CSV and SpeciesNet's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.errors import ConfigError, DataError, FormatError, listed
from hace.files.documents import read_json, read_rows
from hace.files.reading import read_text
from hace.formats.score_files import CHUNK, ScoreFile, read_values
from hace.formats.taxonomies import UUID
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names, unknown_name_hint

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
    """Answers, truths and groups of the same samples: joined by sample names where both files have them, else by row."""
    given, truth = read_table(Path(answers)), read_table(Path(labels))
    words = given.column(answer_column, _CLASSES, "--answer-column")
    true = truth.column(label_column, _CLASSES, "--label-column")
    group = None if groups is None else truth.column(groups, (), "--groups")
    if given.samples is not None and truth.samples is not None:
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
    names, rankings = [], []
    for row in rows if isinstance(rows, list) else [None]:
        name, held = (row.get("filepath"), row.get(key)) if isinstance(row, dict) else (None, None)
        if not held or isinstance(held, str):
            held = {"classes": [held] if held else [], "scores": [1] if held else []}
        lists: list[Any] = [held.get(k) if isinstance(held, dict) else None for k in ("classes", "scores")]
        if not isinstance(name, str) or not all(isinstance(each, list) for each in lists):
            raise FormatError(f"{path}: must hold predictions as SpeciesNet writes them. Got others.")
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
        raise ConfigError(f"rest must be 'spread', or 'unknown', which needs a root (--root). Got {rest!r}.")
    json = path.suffix.lower() == ".json"
    rankings = _predictions(path, "classifications")[1] if json else _long_table(read_table(path))
    known, skip = known_names(h), {"", *ignored}
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
                left, free = max(0.0, 1.0 - float(row.sum())), h.leaf_nodes[row[h.leaf_nodes] == 0]
                if rest == "unknown":
                    row[0] += left
                elif len(free):
                    row[free] = min(left / len(free), float(row[row > 0].min(initial=1.0)))
                row /= row.sum() or 1.0
            yield made

    return ScoreFile(path, len(rankings), "nodes", chunks)


def _long_table(table: Table) -> list[Ranking]:
    if table.samples is None:
        raise FormatError(f"{table.path}: a column such as sample or file must name the sample of each row.")
    names, scores = (table.column(None, usual, "a column") for usual in (_CLASSES, _SCORES))
    found: dict[str, Ranking] = {}
    for sample, name, score in zip(table.samples, names, scores, strict=True):
        found.setdefault(sample, []).append((name, _number(score, table.path)))
    return list(found.values())
