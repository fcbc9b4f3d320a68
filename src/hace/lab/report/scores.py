"""Means and differences of methods in one condition, with 95% intervals over seeds and test samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from hace.errors import DataError, HaceError
from hace.hierarchy import Hierarchy
from hace.lab.report import conformal
from hace.lab.report.metric import Metric, in_two_bytes
from hace.lab.report.runs import Condition, methods_table, metric_values
from hace.lab.runs.run import Run
from hace.metrics import intervals
from hace.metrics.intervals import Interval

Rows = tuple[list[np.ndarray], list[np.ndarray] | None]  # numerators and denominators of several runs


class Score(NamedTuple):
    """A mean over seeds, its interval if the runs kept their predictions, and the number of seeds."""

    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 0


class Difference(NamedTuple):
    """First minus second, paired over seeds and samples, and the number of these seeds."""

    interval: Interval
    seeds: int


class PredictionStore:
    """The predictions of the runs in one condition, each read once. Only runs over the same samples can be compared.

    Attributes:
        truth: (S,) of the samples: the same in all runs; None before one is read.
        groups: (S,) of the samples: intervals are over groups where there are any.
        units: How many samples, or groups of them.
        problems: What could not be read.
    """

    def __init__(self, names: str | Path | None = None) -> None:
        self.names = names
        self.problems: list[str] = []
        self.truth: np.ndarray | None = None
        self.groups: np.ndarray | None = None
        self.units = 0
        self._trees: dict[str, Hierarchy] = {}
        self._read: dict[str, dict[str, np.ndarray] | None] = {}  # by run

    def predictions(self, run: Run, *, paths: bool = False) -> dict[str, np.ndarray] | None:
        """What intervals and confusions need of a run, and with `paths` the confidence in every ancestor of an answer too; None
        if it is missing, damaged or over other samples.
        """
        if run.id not in self._read:
            self._read[run.id] = None
            try:
                self._read[run.id] = self._load(run, paths)
            except (HaceError, KeyError) as error:
                self.problems.append(f"{run.folder.name} has no intervals: {error}")
        return self._read[run.id]

    def forget(self) -> None:
        """Free the memory; what is asked for again is read again."""
        self._read.clear()

    def hierarchy(self, run: Run) -> Hierarchy:
        """The hierarchy of a run's result; runs over the same one share it."""
        fingerprint = run.about["data"]["hierarchy"]
        if fingerprint not in self._trees:
            tree = run.hierarchy  # checked, whether or not it gets names
            self._trees[fingerprint] = tree if self.names is None else run.named_hierarchy(self.names)
        return self._trees[fingerprint]

    def _load(self, run: Run, paths: bool) -> dict[str, np.ndarray]:
        """What is needed of the predictions of a run, checked to be of the same samples as the others."""
        arrays = run.predictions()
        samples = {name: arrays[name] for name in ("answer", "top5", "level_correct", "distance")}
        if paths:
            samples |= {name: arrays[name] for name in ("path_confidence", "group") if name in arrays}
        truth = arrays["truth"] if self.truth is None else self.truth
        h = self.hierarchy(run)
        if h.is_tree:
            arrays["met"] = conformal.levels_met(h, arrays["truth"], arrays["answer"])
            samples["met"] = arrays["met"]
        samples |= conformal.confidence_columns(arrays, h)
        if not np.array_equal(truth, arrays["truth"]):
            raise DataError("it has other samples than the other runs.")
        self.truth = truth
        self.groups = arrays.get("group", self.groups)
        self.units = len(truth) if self.groups is None else len(np.unique(self.groups))
        samples["distance"] = in_two_bytes(samples["distance"])
        samples["level_correct"] = np.asfortranarray(samples["level_correct"])  # a level is read at once
        return {**samples, "truth": truth}


class MethodScores:
    """Scores and differences of the chosen runs in one condition. Every answer is computed once.

    Args:
        runs: One row per method and seed, of :func:`hace.lab.report.runs.chosen_runs`.
        store: Their predictions, which several of these can share.
        compared: The methods whose answers the page draws under guarantees.
    """

    def __init__(
        self, runs: pd.DataFrame, store: PredictionStore | None = None, compared: Sequence[str] = ()
    ) -> None:
        self.runs = runs
        self.compared = compared
        self.condition: Condition = runs["condition"].iloc[0]
        self.methods = methods_table(runs)
        self.store = store or PredictionStore()
        self._finished = dict(list(runs[runs["status"] == "finished"].groupby("method", sort=False)))
        self.score = cache(self._score)
        self.difference = cache(self._difference)
        self._values = cache(self._read_values)
        # One method is the reference of many: the last two are its rows and those of another.
        self._rows = lru_cache(maxsize=2)(self._read_rows)

    def finished(self, method: str) -> pd.DataFrame:
        """The finished runs of a method."""
        return self._finished.get(method, self.runs.iloc[:0])

    @cached_property
    def done(self) -> list[str]:
        """The methods with a finished run."""
        return [method for method in self.methods.index if method in self._finished]

    @cached_property
    def hierarchy(self) -> Hierarchy | None:
        """The hierarchy of the results."""
        for run in self.runs.loc[self.runs["status"] == "finished", "run"]:
            try:
                return self.store.hierarchy(run)
            except HaceError as error:
                self.store.problems.append(str(error))
        return None

    def predictions(self, method: str) -> dict[int, dict[str, np.ndarray]]:
        """What a method's runs kept of each sample, by seed."""
        finished = self.finished(method)
        paths = method in self.compared
        read = {
            seed: self.store.predictions(run, paths=paths)
            for seed, run in zip(finished["seed"], finished["run"], strict=True)
        }
        return {seed: samples for seed, samples in read.items() if samples is not None}

    def known(self, metrics: Sequence[Metric]) -> list[Metric]:
        """The metrics that some method has."""
        finished = self.runs[self.runs["status"] == "finished"]
        return [metric for metric in metrics if metric_values(finished, metric.key).notna().any()]

    def means(self, metric: Metric) -> dict[str, float]:
        """The mean of a metric over seeds, of every method that has it."""
        scores = {method: self.score(method, metric).value for method in self.methods.index}
        return {method: value for method, value in scores.items() if value is not None}

    def _read_rows(self, method: str, metric: Metric, seeds: tuple[int, ...]) -> Rows | None:
        """K rows (S,) of numerators and denominators; None if the runs kept too little."""
        if metric.columns is None or self.hierarchy is None or not seeds:
            return None
        read = self.predictions(method)
        if not all(seed in read for seed in seeds):
            return None
        columns = [metric.columns(read[seed], self.hierarchy) for seed in seeds]
        known = [column for column in columns if column is not None]
        if len(known) < len(columns) or not known[0][0].size:
            return None
        above = [n for n, _ in known]
        below = [d for _, d in known if d is not None]
        if metric.resampled:
            above = [*conformal.detail_draws(np.stack(above), self.store.groups)]
        return above, below or None

    def _read_values(self, method: str, metric: Metric) -> pd.Series:
        """The metric of each finished run by seed, as its own result has it; NaN where that follows from samples alone."""
        finished = self.finished(method)
        values = metric_values(finished, metric.key).set_axis(finished["seed"])
        return values.dropna() if metric.column() in finished else values

    def _score(self, method: str, metric: Metric) -> Score:
        """The mean of a metric over a method's seeds, with its interval if predictions were kept."""
        values = self._values(method, metric)
        seeds = len(self.finished(method))
        known = values.dropna()
        rows = self._rows(method, metric, tuple(values.index)) if len(values) else None
        if rows is None:
            return Score(float(known.mean()), seeds=len(known)) if len(known) else Score(None)
        ends = self._interval(metric, rows)
        # The runs' own results have their precision.
        value = float(known.mean()) if len(known) else ends.value
        return Score(value, ends.low, ends.high, seeds)

    def _difference(
        self, first: str, second: str, metric: Metric, other: MethodScores | None = None
    ) -> Difference | None:
        """First minus second, over the seeds and samples that both have; None where they have none.

        `other` is where the second was trained, with the same test samples; by default here.
        """
        there = other or self
        ours = self._values(first, metric)
        theirs = there._values(second, metric)
        seeds = tuple(seed for seed in ours.index if seed in theirs.index)
        if not seeds:
            return None
        a = self._rows(first, metric, seeds)
        b = there._rows(second, metric, seeds)
        if a is not None and b is not None:
            return Difference(self._interval(metric, a, b), len(seeds))
        gaps = (ours - theirs).loc[list(seeds)]
        return (
            None
            if gaps.isna().any()
            else Difference(intervals.interval(gaps.to_numpy()[:, None]), len(seeds))
        )

    def _interval(self, metric: Metric, first: Rows, second: Rows | None = None) -> Interval:
        """The interval of a metric, or of a difference."""
        groups = self.store.groups
        if metric.resampled:
            values = np.stack(first[0]) - (0.0 if second is None else np.stack(second[0]))
            return intervals.resampled_interval(values, self.store.units)
        if second is None:
            return intervals.interval(*first, groups=groups)
        below = None if first[1] is None or second[1] is None else (first[1], second[1])
        return intervals.paired_interval(first[0], second[0], below, groups=groups)
