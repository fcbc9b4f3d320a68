"""What a report takes from a study, computed once: comparisons, chosen runs, means over seeds, intervals and differences.

Methods compete in a comparison, and one run represents a method at a seed, which repeats the whole procedure. The paper's
protocol takes each seed's best run on the test set, as the paper does. In the fair one the rate is already chosen on held-out
samples; it takes the dilution that was best there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from hace.data import DATASETS
from hace.errors import ConfigError, DataError, HaceError, nearest
from hace.hierarchy import Hierarchy
from hace.lab.models import ARCHITECTURES
from hace.lab.report import conformal
from hace.lab.report.conformal import DERIVED, SIBLINGS, SURE_DETAIL
from hace.lab.runs.run import Run
from hace.lab.runs.samples import has_siblings
from hace.lab.study.configurations import ConfigurationKey
from hace.lab.study.presets import DINOV2, METHODS
from hace.lab.study.records import NO_RESULT, Record, best_record
from hace.metrics import intervals, measures
from hace.metrics.intervals import Compared, Interval, compared_together
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.sample_statistics import MetricKey

BY_LEVEL = "accuracy by level, answer carried up"
BEST_NODE_BY_LEVEL = "accuracy by level, best node of the level"
ECE_BY_LEVEL = "calibration error (ECE) by level"
TOP1: MetricKey = ("leaves", "top-1")
TOP5: MetricKey = ("leaves", "top-5")
ANCESTORS = "ancestors and information"  # heading of what follows from the ancestors of answer and truth
DEFAULT_PAIR = ("hace", "sce")
_MOST_PAIRS = 1 << 20  # of classes, looked up
_Columns = tuple[np.ndarray, np.ndarray | None]  # numerator and denominator of a metric
_Rows = tuple[list[np.ndarray], list[np.ndarray] | None]  # the same of several runs
PROTOCOLS = {"fair": "fair protocol", "paper": "paper's protocol", "single": "as given"}


@dataclass(frozen=True)
class Metric:
    """How a metric is shown."""

    key: MetricKey  # its heading and name in results
    title: str  # short, for a column
    percent: bool = True  # a share, shown in percent
    higher: bool = True  # is better

    def text(self, value: float, sign: bool = False) -> str:
        """A value as tables show it."""
        scale, digits = (100, 2) if self.percent else (1, 3)
        shown = round(scale * value, digits) + 0.0  # never -0.00
        return f"{shown:{'+' if sign else ''}.{digits}f}"


HEADLINES = (
    Metric(TOP1, "top-1"),
    Metric(TOP5, "top-5"),
    *(Metric(("leaves", m), m, percent=False, higher=False) for m in ("severity", "HD@1", "HD@5", "HD@20")),
    Metric((ANCESTORS, "hF1 (micro)"), "hF1"),
    Metric((ANCESTORS, "iF1 (macro)"), "iF1"),
    Metric(("levels together", "full-path accuracy"), "full path"),
    Metric(("selection", "AURC"), "AURC", higher=False),
)


class Comparison(NamedTuple):
    """Where methods compete: a protocol, a dataset, a model and what is known of the training labels."""

    protocol: str
    dataset: str
    model: str
    labels: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """Dataset and model; features that do not say where they come from have no model."""
        names = (self.dataset,) if self.model == "features" else (self.dataset, self.model)
        return tuple(map(shown, names))

    @property
    def title(self) -> str:
        """For headings; only the paper's protocol needs a word."""
        protocol = PROTOCOLS[self.protocol] if self.protocol == "paper" else ""
        return ", ".join(filter(None, (*self.place, protocol, self.labels)))

    @property
    def slug(self) -> str:
        """For file names."""
        parts = filter(None, (self.dataset, self.model, self.protocol, self.labels))
        return "-".join(re.sub(r"[^\w.]", "_", part) for part in parts)


@dataclass(frozen=True, eq=False)
class Choice:
    """The runs that represent a method in a comparison, one per seed."""

    comparison: Comparison
    method: str
    records: tuple[Record, ...]
    candidates: tuple[int, ...] = ()  # how many candidates each of them was chosen from

    @property
    def budget(self) -> str:
        """How many candidates each seed had: "8", or "8 to 10" where seeds differ; "" where nothing is chosen."""
        return budget_of([self])

    @cached_property
    def finished(self) -> tuple[Record, ...]:
        """The runs with a result."""
        return tuple(r for r in self.records if r.status == "finished")

    @property
    def state(self) -> str:
        """Shown instead of a number, or after it: "", "diverged", "1 of 3 diverged" ..."""
        count = Counter(r.status for r in self.records)
        missing = [(count[s], s) for s in NO_RESULT if count[s]]
        if not self.finished:
            return missing[0][1] if missing else "not run"
        return ", ".join(f"{n} of {len(self.records)} {s}" for n, s in missing)

    @property
    def settings(self) -> str:
        """The chosen settings: "d 0.5, rate 8 to 16"."""
        method = METHODS.get(self.method)
        diluted = method is None or method.diluted or bool(method.tuned)
        configs = [r.run.config for r in self.finished if r.run is not None]
        # By cells, or else by a search.
        given = {d for r in self.finished if (d := r.key.dilution) is not None}
        options = [c.loss.options for c in configs]
        dilutions = sorted(given or {o["dilution"] for o in options if "dilution" in o})
        rates, decays = sorted({r.lr for r in self.finished}), sorted({c.weight_decay for c in configs})
        parts = {"d": diluted and dilutions, "rate": rates, "decay": len(decays) > 1 and decays}
        return ", ".join(f"{name} {_range(values)}" for name, values in parts.items() if values)

    def values(self, key: MetricKey) -> list[float]:
        """The metric of every finished seed that has it."""
        return [v for r in self.finished if (v := r.metric(*key)) is not None]


def chosen_runs(records: Iterable[Record], by: MetricKey = TOP1) -> dict[Comparison, dict[str, Choice]]:
    """For each comparison and method, the run of each seed that tables show."""
    found: dict[Comparison, dict[str, dict[int, list[Record]]]] = {}
    validation: dict[ConfigurationKey, float] = {}
    for record in records:
        key = replace(record.key, pairing=None)
        if record.stage != "search":
            methods = found.setdefault(comparison_of(key), {})
            methods.setdefault(key.method, {}).setdefault(key.seed, []).append(record)
        elif record.top1 is not None:
            validation[key] = max(validation.get(key, 0.0), record.top1)

    def merit(record: Record) -> float | None:
        in_paper = record.key.protocol == "paper"
        return record.metric(*by) if in_paper else validation.get(replace(record.key, pairing=None))

    order = {method: i for i, method in enumerate(METHODS)}
    chosen: dict[Comparison, dict[str, Choice]] = {}
    first_seen = {pair: i for i, pair in reversed([*enumerate((p.dataset, p.model) for p in found)])}
    in_order = sorted(found, key=lambda p: (first_seen[p.dataset, p.model], p.protocol))  # fair beside paper
    for comparison in in_order:
        methods, chosen[comparison] = found[comparison], {}
        for method in sorted(methods, key=lambda m: (order.get(m, len(order)), m)):
            by_seed = [methods[method][seed] for seed in sorted(methods[method])]
            best = tuple(best_record(records, merit) for records in by_seed)
            tried = tuple(sum(r.candidates for r in records) for records in by_seed)
            chosen[comparison][method] = Choice(comparison, method, best, tried)
    return chosen


def comparison_of(key: ConfigurationKey) -> Comparison:
    """The comparison of a cell."""
    return Comparison(key.protocol, key.dataset, key.model, key.labels)


def level_names(hierarchy: Hierarchy | None) -> tuple[str, ...]:
    """The names of levels in results; a DAG has none."""
    return measures.level_titles(hierarchy) if hierarchy is not None and hierarchy.is_tree else ()


def method_title(key: str) -> str:
    """The title of a method."""
    return METHODS[key].title if key in METHODS else key


def control_of(method: str) -> str:
    """What a method is a control of; "" if it may be used."""
    return METHODS[method].control if method in METHODS else ""


def may_be_used(method: str) -> bool:
    """Whether a verdict may recommend a method: controls and methods that drop labels are there to compare with."""
    return method not in METHODS or not (METHODS[method].control or METHODS[method].drops)


def shown(key: str) -> str:
    """The title of a dataset or model."""
    if key in ARCHITECTURES:
        return ARCHITECTURES[key].title
    if key in DATASETS and DATASETS[key].official:
        return DATASETS[key].title
    return "DINOv2-Large" if key == DINOV2 else key


def budget_of(choices: Iterable[Choice]) -> str:
    """How many candidates the seeds of several choices had, from the fewest to the most."""
    counts = sorted(n for c in choices if c.comparison.protocol != "single" for n in c.candidates)
    return _range(counts) if counts else ""


def _range(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if values[0] == values[-1] else f"{values[0]:g} to {values[-1]:g}"


def unseen_classes(records: Iterable[Record]) -> str:
    """Which classes had no training sample in some runs: "2 classes have no training sample: lynx, owl"; "" if none."""
    trained = [record.result.get("train") or {} for record in records]
    names = sorted({name for train in trained for name in train.get("unseen_classes", ())})
    words = "1 class has" if len(names) == 1 else f"{len(names):,} classes have"
    more = " ..." if len(names) > 4 else ""
    return f"{words} no training sample: {', '.join(names[:4])}{more}" if names else ""


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
        self.truth: np.ndarray | None = None  # of the samples: the same in all runs
        self.groups: np.ndarray | None = None  # of the samples: intervals are over groups where there are any
        self.units = 0  # samples, or groups of them
        self._trees: dict[str, Hierarchy] = {}
        self.read: dict[str, dict[str, np.ndarray] | None] = {}  # by run

    def predictions(self, run: Run) -> dict[str, np.ndarray] | None:
        """What intervals and confusions need of a run; None if it is missing, damaged or over other samples."""
        if run.id not in self.read:
            self.read[run.id] = None
            try:
                self.read[run.id] = self._load(run)
            except (HaceError, KeyError) as error:
                self.problems.append(f"{run.folder.name} has no intervals: {error}")
        return self.read[run.id]

    def hierarchy(self, run: Run) -> Hierarchy:
        """The hierarchy of a run's result; runs over the same one share it."""
        known = run.about["data"]["hierarchy"]
        if known not in self._trees:
            tree = run.hierarchy  # checked, whether or not it gets names
            self._trees[known] = tree if self.names is None else run.named_hierarchy(self.names)
        return self._trees[known]

    def _load(self, run: Run) -> dict[str, np.ndarray]:
        arrays = run.predictions()
        kept = {name: arrays[name] for name in ("answer", "top5", "level_correct", "distance")}
        truth = arrays["truth"] if self.truth is None else self.truth
        if (h := self.hierarchy(run)).is_tree:
            kept["met"] = arrays["met"] = conformal.levels_met(h, arrays["truth"], arrays["answer"])
        kept |= conformal.confidence_columns(arrays, h)
        if not np.array_equal(truth, arrays["truth"]):
            raise DataError("its samples are not those of the other runs.")
        self.truth, self.groups = truth, arrays.get("group", self.groups)
        self.units = len(truth) if self.groups is None else len(np.unique(self.groups))
        kept["distance"] = _small(kept["distance"])
        kept["level_correct"] = np.asfortranarray(kept["level_correct"])  # a level is read at once
        return {**kept, "truth": truth}


def _small(values: np.ndarray) -> np.ndarray:
    """The same, in two bytes where these are enough, so that a thousand runs stay in memory at once."""
    whole = values.astype(np.int16)
    return whole if np.array_equal(whole, values) else np.ascontiguousarray(values)


class MethodScores:
    """Scores and differences of the chosen runs in one comparison, by method. Every answer is computed once."""

    def __init__(self, choices: Mapping[str, Choice], store: Store | None = None) -> None:
        self.choices = choices
        self.store = store or Store()
        self.score, self.difference = cache(self._score), cache(self._difference)
        self._pairs: dict[str, _Columns] = {}  # what all pairs of classes give, by metric
        self._columns: dict[Any, _Rows | None] = {}  # the last few

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

    def columns(self, method: str, key: MetricKey, seeds: Sequence[int]) -> _Rows | None:
        """K rows (S,) of numerator and denominator of a metric; None if the runs kept too little."""
        place = (method, key, tuple(seeds))
        if place not in self._columns:
            self._columns = dict([*self._columns.items()][-1:])  # one method is the reference of many
            read = self.predictions(method)
            parts = [self._run_columns(read[seed], *key) if seed in read else None for seed in seeds]
            known = [part for part in parts if part is not None]
            self._columns[place] = None
            if known and len(known) == len(parts):
                above = [n for n, _ in known]
                if key == SURE_DETAIL:
                    above = [*conformal.detail_draws(np.stack(above), self.store.groups)]
                self._columns[place] = above, [d for _, d in known if d is not None] or None
        self._columns[place] = self._columns.pop(place)  # the last
        return self._columns[place]

    def _run_columns(self, run: Mapping[str, np.ndarray], heading: str, name: str) -> _Columns | None:
        """(S,) numerator and denominator of a metric of one run; None if it kept too little."""
        h = self.hierarchy
        if heading == "leaves":
            return intervals.headline_columns(run).get(name)
        if heading == DERIVED and name == SIBLINGS and h is not None:
            kept = has_siblings(h)[run["truth"]]
            return (run["answer"] == run["truth"]) & kept, kept
        if heading == DERIVED:
            return (run[name], None) if name in run else None
        if heading == ANCESTORS and h is not None:
            return self._ancestor_columns(h, run["truth"], run["answer"], name)
        if h is None or not h.is_tree or heading not in (BY_LEVEL, BEST_NODE_BY_LEVEL):
            return None
        level = level_names(h).index(name)
        return (run["level_correct"][:, level] if heading == BEST_NODE_BY_LEVEL else run["met"] > level), None

    def _ancestor_columns(self, h: Hierarchy, truth: np.ndarray, answer: np.ndarray, name: str) -> _Columns:
        """The columns of a metric of ancestors; of few classes, all pairs are computed once and looked up."""
        n, first, second = h.num_leaves, h.labels.take(truth), h.labels.take(answer)
        if n * n > _MOST_PAIRS or min(first.min(initial=0), second.min(initial=0)) < 0:
            return _ancestor_columns(h, name, truth, answer)
        if name not in self._pairs:
            pairs = np.divmod(np.arange(n * n), n)
            above, below = _ancestor_columns(h, name, *(h.leaf_nodes[labels] for labels in pairs))
            self._pairs[name] = _small(above), None if below is None or (below == 1).all() else _small(below)
        above, below = self._pairs[name]
        at = first.astype(np.int64) * n + second
        return above.take(at), None if below is None else below.take(at)

    def _score(self, method: str, key: MetricKey) -> Score:
        """The mean of a metric over a method's seeds, with its interval if predictions were kept."""
        choice = self.choices.get(method)
        if choice is None:
            return Score(None)
        values = choice.values(key)
        seeds = [record.key.seed for record in choice.finished]
        found = self.columns(method, key, seeds) if values or key[0] == DERIVED else None
        if found is None or not found[0][0].size:
            return Score(float(np.mean(values)), seeds=len(values)) if values else Score(None)
        ends = self._interval(key, found)
        value = float(np.mean(values)) if values else ends.value  # the runs' own results have their precision
        return Score(value, ends.low, ends.high, len(choice.finished))

    def means(self, key: MetricKey) -> dict[str, float]:
        """The mean of a metric over seeds, of every method that has it."""
        return {m: value for m in self.choices if (value := self.score(m, key).value) is not None}

    def _difference(
        self, first: str, second: str, key: MetricKey, other: MethodScores | None = None
    ) -> tuple[Interval, int] | None:
        """first - second, paired over the seeds and samples that both have; and the number of these seeds.

        `other` is the comparison of the second, with the same test samples; by default this one.
        """
        there = other or self
        if first not in self.choices or second not in there.choices:
            return None
        ours, theirs = self._by_seed(first, key), there._by_seed(second, key)
        seeds = [seed for seed in ours if seed in theirs]
        if not seeds:
            return None
        a, b = self.columns(first, key, seeds), there.columns(second, key, seeds)
        if a is not None and b is not None and a[0][0].size:
            return self._interval(key, a, b), len(seeds)
        gaps = [ours[s] - theirs[s] for s in seeds]
        return None if np.isnan(gaps).any() else (intervals.interval(np.array(gaps)[:, None]), len(seeds))

    def _interval(self, key: MetricKey, first: _Rows, second: _Rows | None = None) -> Interval:
        """The interval of a metric, or of a difference."""
        groups = self.store.groups
        if key == SURE_DETAIL:
            values = np.stack(first[0]) - (0.0 if second is None else np.stack(second[0]))
            return intervals.resampled_interval(values, self.store.units)
        if second is None:
            return intervals.interval(*first, groups=groups)
        below = None if first[1] is None or second[1] is None else (first[1], second[1])
        return intervals.paired_interval(first[0], second[0], below, groups=groups)

    def _by_seed(self, method: str, key: MetricKey) -> dict[int, float]:
        """The metric of each finished seed; nan where only its columns are known."""
        finished = self.choices[method].finished
        if key[0] == DERIVED:
            return {r.key.seed: np.nan for r in finished}
        found = {r.key.seed: r.metric(*key) for r in finished}
        return {seed: value for seed, value in found.items() if value is not None}


def _ancestor_columns(h: Hierarchy, name: str, truth: np.ndarray, answer: np.ndarray) -> _Columns:
    """(S,) numerator and denominator of hierarchical or information precision, recall or F1 of answers."""
    builders = {"h": measures.hierarchical_prf_measure, "i": measures.information_prf_measure}
    measure = builders[name[0]](h, "micro" if "micro" in name else "macro")
    above, below = measure.columns(MetricBatch(h, truth.astype(np.int64), answers=answer.astype(np.int64)))
    place = measure.names.index(name)
    return above[:, place], below[:, place]


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
        finished = [r.run for r in self.records if r.status == "finished" and r.run is not None]
        for run in {run.about["data"]["hierarchy"]: run for run in finished}.values():
            if names is not None:  # refuses those that do not fit
                run.named_hierarchy(names)
        paper = [comparison for comparison in self.choices if comparison.protocol == "paper"]
        self.arrays = {c: MethodScores(choices, stores[c]) for c, choices in self.choices.items()}
        by_top5 = chosen_runs(self.records, TOP5)
        self.best_top5 = {c: MethodScores(by_top5[c], stores[c]) for c in paper}
        self.matched = {c: MethodScores(_matched(self.records, c), stores[c]) for c in paper}
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
        """Methods by their best candidates' mean accuracy on held-out samples, which alone may choose; the best first."""
        done = [m for m, choice in self.choices[comparison].items() if choice.finished]
        searched = self._searched.get(comparison, {})
        found = {m: mean(map(max, by.values())) for m, by in searched.items() if m in done}
        order = {m: i for i, m in enumerate(self.choices[comparison])}
        return dict(sorted(found.items(), key=lambda item: (-item[1], order[item[0]])))

    def comparisons(self, protocol: str) -> list[Comparison]:
        """The comparisons of a protocol."""
        return [comparison for comparison in self.choices if comparison.protocol == protocol]

    def gaps(self, first: str, second: str, protocol: str) -> dict[Comparison, Interval]:
        """The difference between two methods in top-1 accuracy in each comparison that has both."""
        found = {c: self.arrays[c].difference(first, second, TOP1) for c in self.comparisons(protocol)}
        return {comparison: gap[0] for comparison, gap in found.items() if gap is not None}

    def compared(self, protocol: str) -> dict[tuple[Comparison, str], Compared]:
        """Every method minus the reference in every comparison of a protocol: one family, corrected together."""
        gaps = {m: self.gaps(m, self.second, protocol) for m in self.methods if m != self.second}
        return compared_together({(c, m): gap for m, found in gaps.items() for c, gap in found.items()})


def tally(values: Sequence[float]) -> Wins | None:
    """Wins, mean and median of differences; None without any."""
    return Wins(sum(v > 0 for v in values), len(values), mean(values), median(values)) if values else None


def _matched(records: Iterable[Record], comparison: Comparison) -> dict[str, Choice]:
    """Runs at fixed rates, by :func:`matched_key`; a run shared by several pairs is in each of them."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        key = record.key
        if record.stage == "final" and key.pairing and comparison_of(key) == comparison:
            found.setdefault(matched_key(key.method, key.dilution, key.pairing), {})[key.seed] = record
    return {n: Choice(comparison, n, tuple(by[seed] for seed in sorted(by))) for n, by in found.items()}


def matched_key(method: str, dilution: float | None, pairing: str) -> str:
    """The name of a run within a pair: "hace 0.2 adjusted"."""
    return f"{method} {'any' if dilution is None else f'{dilution:g}'} {pairing}"


def _pair(methods: Sequence[str], compare: Sequence[str] | None) -> tuple[str, str]:
    if compare is not None:
        if len(compare) != 2 or compare[0] == compare[1]:
            raise ConfigError(f"compare must name two methods, as in hace,sce. Got {','.join(compare)!r}.")
        for name in (name for name in compare if name not in methods):
            has = f"It has {', '.join(methods)}.{nearest(name, methods)}"
            raise ConfigError(f"compare: the study has no results of {name!r}. {has}")
        return compare[0], compare[1]
    second = DEFAULT_PAIR[1] if DEFAULT_PAIR[1] in methods else methods[0]
    others = [m for m in methods if m != second] or [second]
    return (DEFAULT_PAIR[0] if DEFAULT_PAIR[0] in others else others[0]), second


def _nothing(records: Sequence[Record]) -> str:
    if not records:
        return "There is nothing to report: the study has no runs. Start it with `hace study`."
    errors = [r.error for r in records if r.status == "failed"]
    counts = {"failed": len(errors), "diverged": sum(r.status == "diverged" for r in records)}
    parts = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    said = f" ({parts})" if parts else ""
    first = f" The first error: {errors[0]}" if errors else " Let the study run first."
    return f"There is nothing to report: none of {len(records)} runs has finished{said}.{first}"
