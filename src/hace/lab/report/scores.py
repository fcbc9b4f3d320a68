"""Means over seeds with 95 % intervals, and differences between methods, from the predictions of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hace.errors import HaceError
from hace.hierarchy import Hierarchy
from hace.lab.report.arenas import BEST_NODE_BY_LEVEL, BY_LEVEL, Choice, level_names
from hace.lab.runs.run import Run
from hace.metrics.intervals import Interval, headline_columns, interval, paired_interval
from hace.metrics.sample_statistics import MetricKey


class Score(NamedTuple):
    """A mean over seeds, its interval if the runs kept their predictions, and the number of seeds."""

    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 0


class Store:
    """The predictions of the runs in one arena, each read once. Only runs over the same samples can be compared."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._truth: np.ndarray | None = None
        self._read: dict[str, dict[str, np.ndarray] | None] = {}

    def predictions(self, run: Run) -> dict[str, np.ndarray] | None:
        """What intervals and confusions need of a run; None if it is missing, damaged or over other samples."""
        if run.id not in self._read:
            self._read[run.id] = self._load(run)
        return self._read[run.id]

    def _load(self, run: Run) -> dict[str, np.ndarray] | None:
        try:
            arrays = run.predictions()
            kept = {name: arrays[name] for name in ("answer", "top5", "level_correct")}
            truth, distance = arrays["truth"], arrays["distance"]
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
        self._gaps: dict[tuple[str, str, MetricKey, int], tuple[Interval, int] | None] = {}

    @cached_property
    def hierarchy(self) -> Hierarchy | None:
        """The hierarchy of the results."""
        for choice in self.choices.values():
            for record in choice.finished:
                try:
                    return record.run.hierarchy if record.run else None
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
        values = choice.values(key) if choice else []
        if choice is None or not values:
            return Score(None)
        found = self.columns(method, key, [r.key.seed for r in choice.finished])
        mean = float(np.mean(values))
        if found is None or not found[0].size:
            return Score(mean, seeds=len(values))
        drawn = interval(*found)
        return Score(mean, drawn.low, drawn.high, len(values))

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
        ours = {r.key.seed: r.metric(*key) for r in self.choices[first].finished}
        theirs = {r.key.seed: r.metric(*key) for r in there.choices[second].finished}
        seeds = [s for s in ours if ours[s] is not None and theirs.get(s) is not None]
        if not seeds:
            return None
        a, b = self.columns(first, key, seeds), there.columns(second, key, seeds)
        if a is None or b is None or not a[0].size:
            gap = float(np.mean([ours[s] - theirs[s] for s in seeds]))  # type: ignore[operator]
            return Interval(gap, np.nan, np.nan), len(seeds)
        below = None if a[1] is None or b[1] is None else (a[1], b[1])
        return paired_interval(a[0], b[0], below), len(seeds)
