"""Means over seeds with 95 % intervals, and differences between methods, from the predictions of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hace.errors import HaceError
from hace.hierarchy import Hierarchy
from hace.lab.report.arenas import BEST_NODE_BY_LEVEL, BY_LEVEL, Choice, level_names
from hace.lab.report.sure_answers import DERIVED, confidence_columns
from hace.lab.runs.run import Run
from hace.metrics.intervals import DrawnSums, Interval, Resampled, drawn_sums, headline_columns, ratio
from hace.metrics.sample_statistics import MetricKey


class Score(NamedTuple):
    """A mean over seeds, its interval if the runs kept their predictions, and the number of seeds."""

    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 0


class Store:
    """The predictions of the runs in one arena, each read once. Only runs over the same samples can be compared.

    Args:
        names: A file with the names of nodes, where the runs have only ids.
    """

    def __init__(self, names: str | Path | None = None) -> None:
        self.names = names
        self.problems: list[str] = []
        self._truth: np.ndarray | None = None
        self._trees: dict[str, Hierarchy] = {}
        self._read: dict[str, dict[str, np.ndarray] | None] = {}

    def predictions(self, run: Run) -> dict[str, np.ndarray] | None:
        """What intervals and confusions need of a run; None if it is missing, damaged or over other samples."""
        if run.id not in self._read:
            self._read[run.id] = self._load(run)
        return self._read[run.id]

    def hierarchy(self, run: Run) -> Hierarchy:
        """The hierarchy of a run's result; runs over the same one share it."""
        known = run.about["data"]["hierarchy"]
        if known not in self._trees:
            tree = run.hierarchy  # checked, whether or not it gets names
            self._trees[known] = tree if self.names is None else run.named_hierarchy(self.names)
        return self._trees[known]

    def _load(self, run: Run) -> dict[str, np.ndarray] | None:
        try:
            arrays = run.predictions()
            kept = {name: arrays[name] for name in ("answer", "top5", "level_correct")}
            truth, distance = arrays["truth"], arrays["distance"]
            kept |= confidence_columns(arrays, self.hierarchy(run))
        except (HaceError, KeyError) as error:
            self.problems.append(f"{run.folder.name} has no intervals: {error}")
            return None
        if self._truth is None:
            self._truth = truth
        if not np.array_equal(self._truth, truth):
            self.problems.append(
                f"{run.folder.name} has no intervals: its samples are not those of the other runs."
            )
            return None
        whole = distance.astype(np.int16)  # small, so that a thousand runs stay in memory at once
        return {
            **kept,
            "truth": self._truth,
            "distance": whole if np.array_equal(whole, distance) else distance,
        }

    def drop(self) -> None:
        """Forget what was read."""
        self._read.clear()


class ArenaScores:
    """Scores and differences of the chosen runs in one arena. Every answer is computed once.

    Attributes:
        choices: By method.
        store: Where predictions come from.
    """

    def __init__(self, choices: Mapping[str, Choice], store: Store | None = None) -> None:
        self.choices = choices
        self.store = store or Store()
        self._scores: dict[tuple[str, MetricKey], Score] = {}
        self._sums: dict[bytes, DrawnSums] = {}  # by what is summed: many metrics share a column
        self._draws: dict[tuple[str, MetricKey, tuple[int, ...]], Resampled | None] = {}
        self._gaps: dict[tuple[str, str, MetricKey, int], tuple[Interval, int] | None] = {}

    @cached_property
    def hierarchy(self) -> Hierarchy | None:
        """The hierarchy of the results."""
        for choice in self.choices.values():
            for record in choice.finished:
                try:
                    return self.store.hierarchy(record.run) if record.run else None
                except HaceError as error:
                    self.store.problems.append(str(error))
        return None

    def predictions(self, method: str) -> dict[int, dict[str, np.ndarray]]:
        """What a method's runs kept of each sample, by seed."""
        finished = self.choices[method].finished if method in self.choices else ()
        read = {r.key.seed: self.store.predictions(r.run) for r in finished if r.run is not None}
        return {seed: arrays for seed, arrays in read.items() if arrays is not None}

    def columns(
        self, method: str, key: MetricKey, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
        """(K, S) numerator and denominator of a metric; None if the runs kept too little."""
        read = self.predictions(method)
        if not seeds or any(seed not in read for seed in seeds):
            return None
        parts = [self._run_columns(read[seed], *key) for seed in seeds]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        below = [d for _, d in known if d is not None]
        return np.stack([n for n, _ in known]), np.stack(below) if below else None

    def _run_columns(
        self, run: Mapping[str, np.ndarray], heading: str, name: str
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
        """(S,) numerator and denominator of a metric of one run; None if it kept too little."""
        h = self.hierarchy
        if heading == "leaves":
            return headline_columns(run).get(name)
        if heading == DERIVED:
            return (run[name], None) if name in run else None
        if h is None or not h.is_tree or heading not in (BY_LEVEL, BEST_NODE_BY_LEVEL):
            return None
        level = level_names(h).index(name)
        if heading == BEST_NODE_BY_LEVEL:
            return run["level_correct"][:, level], None
        carried = h.level_nodes(level + 1)
        return carried[run["answer"]] == carried[run["truth"]], None

    def score(self, method: str, key: MetricKey) -> Score:
        """The mean of a metric over a method's seeds, with its interval if predictions were kept."""
        if (method, key) not in self._scores:
            self._scores[method, key] = self._score(method, key)
        return self._scores[method, key]

    def _score(self, method: str, key: MetricKey) -> Score:
        choice = self.choices.get(method)
        if choice is None:
            return Score(None)
        values = choice.values(key)
        drawn = None if not (values or key[0] == DERIVED) else self._drawn(method, key, _seeds(choice))
        if drawn is None:
            return Score(float(np.mean(values)), seeds=len(values)) if values else Score(None)
        ends = drawn.interval()
        # The mean of the runs' own results has their precision.
        return Score(
            float(np.mean(values)) if values else ends.value, ends.low, ends.high, len(choice.finished)
        )

    def _drawn(self, method: str, key: MetricKey, seeds: Sequence[int]) -> Resampled | None:
        """A metric and its draws over some seeds; None if the runs kept too little."""
        place = (method, key, tuple(seeds))
        if place not in self._draws:
            found = self.columns(method, key, seeds)
            if found is None or not found[0].size:
                self._draws[place] = None
            else:
                above, below = found
                self._draws[place] = ratio(
                    self._summed(above), None if below is None else self._summed(below)
                )
        return self._draws[place]

    def _summed(self, column: np.ndarray) -> DrawnSums:
        """The sums of a column under the draws, once for all metrics that have it or its complement."""
        content = _content(column)
        if content not in self._sums:
            known = self._sums.get(_content(~column)) if column.dtype == bool else None
            self._sums[content] = drawn_sums(column) if known is None else known.complement()
        return self._sums[content]

    def difference(
        self, first: str, second: str, key: MetricKey, other: ArenaScores | None = None
    ) -> tuple[Interval, int] | None:
        """first - second, paired over the seeds and samples that both have; and the number of these seeds.

        Args:
            first: A method.
            second: Another one.
            key: The metric.
            other: The arena of the second, with the same test samples; by default this one.
        """
        there = other or self
        place = (first, second, key, id(there))
        if place not in self._gaps:
            self._gaps[place] = self._difference(first, second, key, there)
        return self._gaps[place]

    def _difference(
        self, first: str, second: str, key: MetricKey, there: ArenaScores
    ) -> tuple[Interval, int] | None:
        if first not in self.choices or second not in there.choices:
            return None
        ours, theirs = self._by_seed(first, key), there._by_seed(second, key)
        seeds = [seed for seed in ours if seed in theirs]
        if not seeds:
            return None
        a, b = self._drawn(first, key, seeds), there._drawn(second, key, seeds)
        if a is not None and b is not None:
            return a.minus(b), len(seeds)
        gaps = [ours[s] - theirs[s] for s in seeds]
        if np.isnan(gaps).any():
            return None
        return Interval(float(np.mean(gaps)), np.nan, np.nan), len(seeds)

    def _by_seed(self, method: str, key: MetricKey) -> dict[int, float]:
        """The metric of each finished seed; nan where only its columns are known."""
        finished = self.choices[method].finished
        if key[0] == DERIVED:
            return {r.key.seed: np.nan for r in finished}
        found = {r.key.seed: r.metric(*key) for r in finished}
        return {seed: value for seed, value in found.items() if value is not None}


def _content(column: np.ndarray) -> bytes:
    small = np.packbits(column) if column.dtype == bool else column
    return hashlib.sha256(f"{column.shape} {column.dtype}".encode() + small.tobytes()).digest()


def _seeds(choice: Choice) -> list[int]:
    return [record.key.seed for record in choice.finished]
