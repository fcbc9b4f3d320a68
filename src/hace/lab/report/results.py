"""What a report takes from a study, computed once: chosen runs, means over seeds with 95% intervals, and differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from hace.errors import ConfigError, DataError, HaceError, nearest
from hace.hierarchy import Hierarchy
from hace.lab.report.comparisons import (
    BEST_NODE_BY_LEVEL,
    BY_LEVEL,
    TOP1,
    TOP5,
    Choice,
    Comparison,
    chosen_runs,
    comparison_of,
    level_names,
)
from hace.lab.report.sure_answers import DERIVED, SIBLINGS, confidence_columns
from hace.lab.runs.run import Run
from hace.lab.runs.samples import has_siblings
from hace.lab.study.cells import Record
from hace.metrics import measures
from hace.metrics.evaluation import MetricKey
from hace.metrics.intervals import (
    Compared,
    Interval,
    compared_together,
    headline_columns,
    interval,
    paired_interval,
    seed_interval,
)
from hace.metrics.metric_batch import MetricBatch

_MOST_PAIRS = 1 << 20  # of classes, looked up
DEFAULT_PAIR = ("hace", "sce")
ANCESTORS = "ancestors and information"  # heading of what follows from the ancestors of answer and truth


class Score(NamedTuple):
    """A mean over seeds, its interval if the runs kept their predictions, and the number of seeds."""

    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 0


class Store:
    """The predictions of the runs in one comparison, each read once. Only runs over the same samples can be compared."""

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
        distance = whole if np.array_equal(whole, distance) else distance
        return {**kept, "truth": self._truth, "distance": distance}

    def drop(self) -> None:
        """Forget what was read."""
        self._read.clear()


class MethodScores:
    """Scores and differences of the chosen runs in one comparison, by method. Every answer is computed once."""

    def __init__(self, choices: Mapping[str, Choice], store: Store | None = None) -> None:
        self.choices = choices
        self.store = store or Store()
        self._scores: dict[tuple[str, MetricKey], Score] = {}
        self._gaps: dict[tuple[str, str, MetricKey, int], tuple[Interval, int] | None] = {}
        self._pairs: dict[
            str, tuple[np.ndarray, np.ndarray]
        ] = {}  # what all pairs of classes give, by metric
        self._columns: dict[Any, tuple[np.ndarray, np.ndarray | None] | None] = {}  # the last few

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
        place = (method, key, tuple(seeds))
        if place not in self._columns:
            while len(self._columns) > 1:  # one method is the reference of many differences
                del self._columns[next(iter(self._columns))]
            self._columns[place] = self._stacked(method, key, seeds)
        return self._columns[place]

    def _stacked(
        self, method: str, key: MetricKey, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
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
        if heading == DERIVED and name == SIBLINGS and h is not None:
            kept = has_siblings(h)[run["truth"]]
            return (run["answer"] == run["truth"]) & kept, kept
        if heading == DERIVED:
            return (run[name], None) if name in run else None
        if heading == ANCESTORS and h is not None:
            return self._ancestor_columns(run["truth"], run["answer"], name)
        if h is None or not h.is_tree or heading not in (BY_LEVEL, BEST_NODE_BY_LEVEL):
            return None
        level = level_names(h).index(name)
        if heading == BEST_NODE_BY_LEVEL:
            return run["level_correct"][:, level], None
        carried = h.level_nodes(level + 1)
        return carried[run["answer"]] == carried[run["truth"]], None

    def _ancestor_columns(
        self, truth: np.ndarray, answer: np.ndarray, name: str
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The columns of a metric of ancestors; of few classes, all pairs are computed once and looked up."""
        h = self.hierarchy
        if h is None:
            return None
        n, first, second = h.num_leaves, h.labels[truth], h.labels[answer]
        if n * n > _MOST_PAIRS or min(first.min(initial=0), second.min(initial=0)) < 0:
            return _ancestor_columns(h, name, truth, answer)
        if name not in self._pairs:
            pairs = np.divmod(np.arange(n * n), n)
            self._pairs[name] = _ancestor_columns(h, name, *(h.leaf_nodes[labels] for labels in pairs))
        at = first.astype(np.int64) * n + second
        return self._pairs[name][0][at], self._pairs[name][1][at]

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
        seeds = [record.key.seed for record in choice.finished]
        found = self.columns(method, key, seeds) if values or key[0] == DERIVED else None
        if found is None or not found[0].size:
            return Score(float(np.mean(values)), seeds=len(values)) if values else Score(None)
        ends = interval(*found)
        value = float(np.mean(values)) if values else ends.value  # the runs' own results have their precision
        return Score(value, ends.low, ends.high, len(choice.finished))

    def difference(
        self, first: str, second: str, key: MetricKey, other: MethodScores | None = None
    ) -> tuple[Interval, int] | None:
        """first - second, paired over the seeds and samples that both have; and the number of these seeds.

        `other` is the comparison of the second, with the same test samples; by default this one.
        """
        there = other or self
        place = (first, second, key, id(there))
        if place not in self._gaps:
            self._gaps[place] = self._difference(first, second, key, there)
        return self._gaps[place]

    def _difference(
        self, first: str, second: str, key: MetricKey, there: MethodScores
    ) -> tuple[Interval, int] | None:
        if first not in self.choices or second not in there.choices:
            return None
        ours, theirs = self._by_seed(first, key), there._by_seed(second, key)
        seeds = [seed for seed in ours if seed in theirs]
        if not seeds:
            return None
        a, b = self.columns(first, key, seeds), there.columns(second, key, seeds)
        if a is not None and b is not None and a[0].size:
            below = None if a[1] is None or b[1] is None else (a[1], b[1])
            return paired_interval(a[0], b[0], below), len(seeds)
        gaps = [ours[s] - theirs[s] for s in seeds]
        return None if np.isnan(gaps).any() else (seed_interval(gaps), len(seeds))

    def _by_seed(self, method: str, key: MetricKey) -> dict[int, float]:
        """The metric of each finished seed; nan where only its columns are known."""
        finished = self.choices[method].finished
        if key[0] == DERIVED:
            return {r.key.seed: np.nan for r in finished}
        found = {r.key.seed: r.metric(*key) for r in finished}
        return {seed: value for seed, value in found.items() if value is not None}


def _ancestor_columns(
    h: Hierarchy, name: str, truth: np.ndarray, answer: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(S,) numerator and denominator of hierarchical or information precision, recall or F1 of answers."""
    builders = {"h": measures.hierarchical_prf_measure, "i": measures.information_prf_measure}
    measure = builders[name[0]](h, "micro" if "micro" in name else "macro")
    above, below = measure.columns(MetricBatch(h, truth.astype(np.int64), answers=answer.astype(np.int64)))
    place = measure.names.index(name)
    return above[:, place], below[:, place]


class Gap(NamedTuple):
    """The difference between two methods in a comparison."""

    comparison: Comparison
    interval: Interval
    seeds: int


class Wins(NamedTuple):
    """Differences over several comparisons, summed up."""

    won: int
    of: int
    mean: float
    median: float


class Results:
    """A study's records, with what tables and figures take from them.

    Args:
        records: All records.
        compare: The two methods whose difference is shown: first minus second.
        names: A file with one line "id name" per node, where the runs have only ids.

    Raises:
        DataError: No run has finished.
        FormatError: `names` cannot be read.
        HierarchyError: `names` has other nodes.
        ConfigError: A compared method is not in the study.
    """

    def __init__(
        self,
        records: Iterable[Record],
        compare: Sequence[str] | None = None,
        names: str | Path | None = None,
    ) -> None:
        self.records = list(records)
        if not any(r.status == "finished" for r in self.records):
            raise DataError(_nothing(self.records))
        self.choices = chosen_runs(self.records)
        stores = {comparison: Store(names) for comparison in self.choices}
        if names is not None:
            _check_names(self.records, names)
        paper = [comparison for comparison in self.choices if comparison.protocol == "paper"]
        self.arrays = {
            comparison: MethodScores(choices, stores[comparison])
            for comparison, choices in self.choices.items()
        }
        by_top5 = chosen_runs(self.records, TOP5)
        self.best_top5 = {
            comparison: MethodScores(by_top5[comparison], stores[comparison]) for comparison in paper
        }
        self.matched = {
            comparison: MethodScores(_matched(self.records, comparison), stores[comparison])
            for comparison in paper
        }
        self.methods = list(dict.fromkeys(m for choices in self.choices.values() for m in choices))
        self.first, self.second = _pair(self.methods, compare)

    @property
    def problems(self) -> list[str]:
        """Finished runs that could not be read in full."""
        return [problem for arrays in self.arrays.values() for problem in arrays.store.problems]

    @cached_property
    def _searched(self) -> dict[Comparison, dict[str, dict[int, list[float]]]]:
        """The held-out accuracies of all candidates, by comparison, method and seed; a candidate that diverged counts as 0."""
        found: dict[Comparison, dict[str, dict[int, list[float]]]] = {}
        for record in self.records:
            if record.stage == "search":
                by_seed = found.setdefault(comparison_of(record.key), {}).setdefault(record.key.method, {})
                by_seed.setdefault(record.key.seed, []).append(record.top1 or 0.0)
        return found

    def held_out(self, comparison: Comparison) -> dict[str, float]:
        """Methods with a result by their accuracy on held-out samples, the best first: mean over seeds of the best candidate.

        This is what a choice between methods may look at; the test samples are not.
        """
        done = [m for m, choice in self.choices[comparison].items() if choice.finished]
        searched = self._searched.get(comparison, {})
        found = {m: mean(map(max, by.values())) for m, by in searched.items() if m in done}
        order = {m: i for i, m in enumerate(self.choices[comparison])}
        return dict(sorted(found.items(), key=lambda item: (-item[1], order[item[0]])))

    def comparisons(self, protocol: str) -> list[Comparison]:
        """The comparisons of a protocol."""
        return [comparison for comparison in self.choices if comparison.protocol == protocol]

    def gap(self, comparison: Comparison, first: str, second: str, key: MetricKey = TOP1) -> Gap | None:
        """The difference between two methods in a comparison; None if it lacks one."""
        difference = self.arrays[comparison].difference(first, second, key)
        return None if difference is None else Gap(comparison, *difference)

    def gaps(self, first: str, second: str, protocol: str, key: MetricKey = TOP1) -> list[Gap]:
        """The difference between two methods in each comparison that has both."""
        found = (self.gap(comparison, first, second, key) for comparison in self.comparisons(protocol))
        return [gap for gap in found if gap is not None]

    def compared(
        self, protocol: str, key: MetricKey = TOP1, reference: str | None = None
    ) -> dict[tuple[Comparison, str], Compared]:
        """Every method minus the reference in every comparison of a protocol: one family, corrected together.

        The reference is by default the second of the compared pair.
        """
        against = reference or self.second
        gaps = {
            (gap.comparison, method): gap.interval
            for method in self.methods
            if method != against
            for gap in self.gaps(method, against, protocol, key)
        }
        return compared_together(gaps)


def tally(values: Sequence[float], higher: bool = True) -> Wins | None:
    """Wins, mean and median of differences.

    Example:
        >>> tally([2.0, -1.0, 0.5])
        Wins(won=2, of=3, mean=0.5, median=0.5)
    """
    if not values:
        return None
    won = sum(v > 0 if higher else v < 0 for v in values)
    return Wins(won, len(values), mean(values), median(values))


def _matched(records: Iterable[Record], comparison: Comparison) -> dict[str, Choice]:
    """Runs at fixed rates, by :func:`matched_key`; a run shared by several pairs is in each of them."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        key = record.key
        if record.stage == "final" and key.pairing and comparison_of(key) == comparison:
            found.setdefault(matched_key(key.method, key.dilution, key.pairing), {})[key.seed] = record
    return {
        name: Choice(comparison, name, tuple(by[seed] for seed in sorted(by))) for name, by in found.items()
    }


def matched_key(method: str, dilution: float | None, pairing: str) -> str:
    """The name of a run within a pair: "hace 0.2 adjusted"."""
    return f"{method} {'any' if dilution is None else f'{dilution:g}'} {pairing}"


def _pair(methods: Sequence[str], compare: Sequence[str] | None) -> tuple[str, str]:
    if compare is not None:
        if len(compare) != 2 or compare[0] == compare[1]:
            raise ConfigError(f"compare must name two methods, as in hace,sce. Got {','.join(compare)!r}.")
        for name in compare:
            if name not in methods:
                has = ", ".join(methods)
                raise ConfigError(
                    f"compare: the study has no results of {name!r}. It has {has}.{nearest(name, methods)}"
                )
        return compare[0], compare[1]
    second = DEFAULT_PAIR[1] if DEFAULT_PAIR[1] in methods else methods[0]
    others = [m for m in methods if m != second] or [second]
    return (DEFAULT_PAIR[0] if DEFAULT_PAIR[0] in others else others[0]), second


def _check_names(records: Iterable[Record], names: str | Path) -> None:
    """Refuse names that do not fit the hierarchies."""
    finished = [r.run for r in records if r.status == "finished" and r.run is not None]
    for run in {run.about["data"]["hierarchy"]: run for run in finished}.values():
        run.named_hierarchy(names)


def _nothing(records: Sequence[Record]) -> str:
    if not records:
        return "There is nothing to report: the study has no runs. Start it with `hace study`."
    errors = [r.error for r in records if r.status == "failed"]
    diverged = sum(r.status == "diverged" for r in records)
    parts = [f"{len(errors)} failed"] if errors else []
    parts += [f"{diverged} diverged"] if diverged else []
    said = f" ({', '.join(parts)})" if parts else ""
    first = f" The first error: {errors[0]}" if errors else " Let the study run first."
    return f"There is nothing to report: none of {len(records)} runs has finished{said}.{first}"
