"""The result of an evaluation: all metrics by name, with the curves and tables behind them, as text and as JSON.

Everything follows from a few numbers per sample, under any weights of the samples: point estimates use equal weights, a
bootstrap draws them at random; one computation serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from hace.decisions import GuaranteedThreshold
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.metrics.curves import (
    HierarchicalRiskCoverage,
    LadderColumns,
    OperatingCurve,
    Reliability,
    RiskCoverage,
    bin_of,
    curve_of,
    ladder_curve,
    ladder_curves,
    operating_area,
    reliability,
    risk_coverage,
    risk_curves,
)
from hace.metrics.measures import level_titles, node_of_level
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.mistakes import ClassTable, Confusion, class_table, summarise_mistakes

if TYPE_CHECKING:
    from hace.metrics.comparison import Comparison

PAIRS_SHOWN = 10
TRUSTED = 0.02  # a difference between stated confidence and accuracy that needs no word
CALIBRATED = "calibrated: "  # before the headings of metrics of calibrated scores
CARRIED_UP = "accuracy by level, answer carried up"
MetricKey = tuple[str, str]  # heading, name
LEAVES = "leaves"  # the heading of the metrics that follow from the ranking of the classes alone
CALIBRATION_ERRORS = {  # headings by the way bins are made
    "width": "calibration error (ECE) by level",
    "mass": "calibration error (ECE, bins of equal mass) by level",
}
_RANKS_ONLY = (LEAVES, CARRIED_UP, "ancestors and information")  # headings that no temperature changes


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """One row per sample; H = 0 levels and L = 0 rungs from the root to the best leaf on a DAG."""

    names: tuple[tuple[str, str, float], ...]  # (M,) heading, name and value of 0 / 0 of each ratio
    numerator: np.ndarray  # (S, M)
    denominator: np.ndarray  # (S, M)
    truth: IntArray
    answers: IntArray  # the best leaves
    confidence: np.ndarray  # of the answers; nan where only the metrics of the leaves were computed
    distance: IntArray
    level_confidence: np.ndarray  # (S, H) of the best node of each level
    level_correct: np.ndarray  # (S, H)
    specific: np.ndarray  # (S, T) information of the answer at each threshold, over log2 n
    true: np.ndarray  # (S, T) whether that answer is the truth or above it
    answered: np.ndarray  # (S, T) whether that answer is below the root
    ladders: LadderColumns  # (S, L)
    decided: dict[str, tuple[IntArray, np.ndarray]]  # nodes and probabilities of each further rule

    def __len__(self) -> int:
        return len(self.truth)

    @classmethod
    def joined(cls, parts: Sequence[SampleStatistics]) -> SampleStatistics:
        """Several chunks, one below the other."""
        return parts[0] if len(parts) == 1 else cls._mapped(parts, np.concatenate)

    def chosen(self, rows: np.ndarray) -> SampleStatistics:
        """Some of the samples: a mask, or row numbers."""
        return self._mapped([self], lambda columns: columns[0][rows])

    @classmethod
    def _mapped(cls, parts: Sequence[SampleStatistics], do: Callable[[list], np.ndarray]) -> SampleStatistics:
        """Statistics with each column made of the same column of some parts."""

        def made(columns: list) -> Any:
            first = columns[0]
            if isinstance(first, np.ndarray):
                return do(columns)
            if isinstance(first, dict):
                return {key: made([column[key] for column in columns]) for key in first}
            found = (made(list(each)) for each in zip(*columns, strict=True))
            return LadderColumns(*found) if isinstance(first, LadderColumns) else tuple(found)

        names = [f.name for f in fields(cls) if f.name != "names"]
        return cls(names=parts[0].names, **{n: made([getattr(part, n) for part in parts]) for n in names})

    @property
    def only_leaves(self) -> bool:
        """Whether only the metrics under "leaves" were computed: nothing is known of probabilities."""
        return all(heading == LEAVES for heading, _, _ in self.names)

    def keys(self, titles: Sequence[str]) -> list[MetricKey]:
        """Heading and name of every value of :meth:`values`, in its order; ``titles`` name the levels."""
        ratios = [(heading, name) for heading, name, _ in self.names]
        if self.only_leaves:
            return ratios
        calibration = [(heading, title) for heading in CALIBRATION_ERRORS.values() for title in titles]
        areas = ["AURC", "AURC of the distance", "area under the operating curve"]
        areas += ["hAURC"] if self.ladders.reached.shape[1] else []
        return ratios + calibration + [("selection", name) for name in areas]

    def values(self, weights: np.ndarray | None = None, bins: int = 15) -> np.ndarray:
        """(R, V) all metrics under R weightings (R, S) of the samples; equal weights by default."""
        w = np.ones((1, len(self))) if weights is None else np.asarray(weights, dtype=np.float64)
        total = w.sum(axis=1, keepdims=True)
        empty = np.array([value for _, _, value in self.names])
        with np.errstate(invalid="ignore", divide="ignore"):
            denominator = w @ self.denominator
            ratios = np.where(denominator == 0, empty, (w @ self.numerator) / denominator)
            ratios = np.where(total == 0, np.nan, ratios)
            if self.only_leaves:
                return ratios
            found = [
                ratios,
                *(self._calibration(w, bins, binning) / total for binning in CALIBRATION_ERRORS),
                self._risk_area(w, self.answers != self.truth),
                self._risk_area(w, self.distance),
                operating_area(w @ self.specific / total, w @ self.true / total)[:, None],
                self._ladder_area(w),
            ]
        return np.concatenate(found, axis=1)

    def _calibration(self, w: np.ndarray, bins: int, binning: str) -> np.ndarray:
        """(R, H) sums over bins of |right answers - confidences|."""
        out = np.empty((len(w), self.level_confidence.shape[1]))
        for k in range(out.shape[1]):
            confidence = self.level_confidence[:, k].astype(np.float64)
            gap = self.level_correct[:, k] - confidence
            if binning == "width":
                place = bin_of(confidence, bins)
                shape = (len(self), bins + 1)
                by_bin = sparse.csr_array((gap, (np.arange(len(self)), place)), shape=shape)
                sums = (by_bin.T @ w.T).T
            else:
                sums = _sums_by_mass(confidence, gap, w, bins)
            out[:, k] = np.abs(sums).sum(axis=1)
        return out

    def _ladder_area(self, w: np.ndarray) -> np.ndarray:
        """(R, 1) areas under hierarchical risk-coverage curves; (R, 0) on a DAG."""
        if not self.ladders.reached.shape[1]:
            return np.empty((len(w), 0))
        if not len(self):
            return np.full((len(w), 1), np.nan)
        _, x, y = ladder_curves(self.ladders, w)
        return (np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2).sum(axis=1, keepdims=True)

    def _risk_area(self, w: np.ndarray, risk: np.ndarray) -> np.ndarray:
        """(R, 1) areas under risk-coverage curves; equal confidences enter together."""
        if not len(self):
            return np.full((len(w), 1), np.nan)
        _, coverage, mean = risk_curves(self.confidence, risk, w)
        return (np.diff(coverage, axis=1, prepend=0.0) * mean).sum(axis=1, keepdims=True)


def _sums_by_mass(confidence: np.ndarray, gap: np.ndarray, w: np.ndarray, bins: int) -> np.ndarray:
    """(R, M) sums of gaps in the bins that split the weight of the samples evenly; equal confidences together."""
    order = np.argsort(confidence, kind="stable")
    first = np.searchsorted(confidence[order], confidence[order])  # the first that is equal
    sorted_w = w[:, order]
    before = (np.cumsum(sorted_w, axis=1) - sorted_w)[:, first]
    with np.errstate(invalid="ignore"):
        place = np.minimum(before * bins // w.sum(axis=1, keepdims=True), bins - 1)
    rows = np.arange(len(w))[:, None] * bins
    flat = np.nan_to_num(rows + place).astype(np.int64).ravel()
    sums = np.bincount(flat, weights=(sorted_w * gap[order]).ravel(), minlength=len(w) * bins)
    return sums.reshape(len(w), bins)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All metrics of a model on a set of samples.

    Attributes:
        hierarchy: the hierarchy.
        samples: the numbers per sample that everything follows from.
        bins: number of bins of the calibration.
        thresholds: thresholds of the operating curve.
        distance: the distance of severity and HD@k.
        name: what the model is called.
        calibrated: the same of scores divided by a temperature, if there is one.
        temperature: by which the scores of ``calibrated`` were divided.
        promise: a promise that was evaluated.
        remark: why these samples do not test the promise, if so.
        level: the level whose classes are listed; by default the deepest.
        subset: the number of classes that scores were restricted to, and of samples whose truth is outside them.
        only_subset: whether these samples are left out.
        comparison: with a second model.
        about: what else is known of the scores, such as their run.
        source: where the scores come from.
    """

    hierarchy: Hierarchy
    samples: SampleStatistics
    bins: int
    thresholds: tuple[float, ...]
    distance: str
    name: str = "scores"
    calibrated: Evaluation | None = None
    temperature: float | None = None
    promise: GuaranteedThreshold | None = None
    remark: str | None = None
    level: int | None = None
    subset: tuple[int, int] | None = None
    only_subset: bool = False
    comparison: Comparison | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def over(self, hierarchy: Hierarchy) -> Evaluation:
        """The same over a hierarchy that differs in names alone."""
        calibrated = None if self.calibrated is None else self.calibrated.over(hierarchy)
        return replace(self, hierarchy=hierarchy, calibrated=calibrated)

    def of_samples(self, rows: np.ndarray) -> Evaluation:
        """The metrics of some of the samples alone: a mask of them, or their numbers."""
        calibrated = None if self.calibrated is None else self.calibrated.of_samples(rows)
        return replace(self, samples=self.samples.chosen(rows), calibrated=calibrated)

    def compared_with(
        self, second: Evaluation, *, replicates: int = 1000, seed: int = 0, progress: Any = None
    ) -> Evaluation:
        """This evaluation with a second model's beside it; arguments as of :func:`hace.metrics.compare`."""
        from hace.metrics.comparison import Comparison, compare

        found = compare(self, second, replicates=replicates, seed=seed, progress=progress)
        return replace(self, comparison=Comparison(second, found, replicates, seed))

    def write(self, folder: str | Path, *, raw_cells: bool = False) -> Path:
        """Write a page that opens from disk, report.json, tables and pictures into a folder: all of them, or none.

        Where only the metrics of the leaves were computed, there is neither page nor picture.

        Args:
            folder: where to; files of the same names are replaced.
            raw_cells: whether text in tables is written unchanged, formulas included.

        Returns:
            The page.
        """
        from hace import write_evaluation  # the page's layer is above this one

        return write_evaluation(self, folder, raw_cells=raw_cells)

    @cached_property
    def level_titles(self) -> tuple[str, ...]:
        """Names of the levels; empty on a DAG."""
        return level_titles(self.hierarchy) if self.hierarchy.is_tree else ()

    @cached_property
    def values(self) -> dict[MetricKey, float]:
        """Every metric by heading and name."""
        keys = self.samples.keys(self.level_titles)
        return dict(zip(keys, self.samples.values(bins=self.bins)[0].tolist(), strict=True))

    @cached_property
    def all_values(self) -> dict[MetricKey, float]:
        """:attr:`values`, and those that a temperature changes once more, under headings that begin with "calibrated: "."""
        return self.values | {(CALIBRATED + g, n): v for (g, n), v in self._confident_values.items()}

    @property
    def _confident_values(self) -> dict[MetricKey, float]:
        found = {} if self.calibrated is None else self.calibrated.values
        return {key: value for key, value in found.items() if key[0] not in _RANKS_ONLY}

    @property
    def mistakes(self) -> int:
        """The number of samples whose most probable leaf is not the truth."""
        return int((self.samples.answers != self.samples.truth).sum())

    @cached_property
    def confusion(self) -> Confusion:
        """Where mistakes go."""
        return summarise_mistakes(self.hierarchy, self.samples.answers, self.samples.truth)

    @cached_property
    def risk_coverage(self) -> RiskCoverage:
        """Share of mistakes against coverage."""
        return risk_coverage(self.samples.confidence, self.samples.answers != self.samples.truth)

    @cached_property
    def hierarchical_risk_coverage(self) -> HierarchicalRiskCoverage:
        """Share of false answers against coverage, as answers climb from the best leaf; empty on a DAG."""
        ladders = self.samples.ladders
        return ladder_curve(ladders if ladders.reached.shape[1] else LadderColumns(*(c[:0] for c in ladders)))

    @cached_property
    def operating_curve(self) -> OperatingCurve:
        """Precision against specificity of the threshold rule."""
        s = self.samples
        sums = [column.sum(axis=0, dtype=np.float64) for column in (s.specific, s.true, s.answered)]
        return curve_of(self.thresholds, sums, len(s))

    @cached_property
    def reliability(self) -> dict[str, Reliability]:
        """The reliability diagram of each level, by its name."""
        s = self.samples
        return {
            title: reliability(s.level_confidence[:, k], s.level_correct[:, k], self.bins)
            for k, title in enumerate(self.level_titles)
        }

    def class_table(self, level: int | str) -> ClassTable:
        """Accuracy of every node of a level."""
        batch = MetricBatch(self.hierarchy, self.samples.truth, answers=self.samples.answers)
        return class_table(batch, self.hierarchy.level_index(level))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON; nan and infinities become None."""
        h = self.hierarchy
        metrics: dict[str, dict[str, float | None]] = {}
        for (heading, name), value in self.all_values.items():
            metrics.setdefault(heading, {})[name] = _plain(value)
        calibrated = {} if self.calibrated is None else {"calibrated": self.calibrated._curves()}
        return {
            "hierarchy": {
                "kind": h.kind,
                "nodes": h.num_nodes,
                "leaves": h.num_leaves,
                "fingerprint": h.fingerprint,
            },
            "samples": len(self.samples),
            "mistakes": self.mistakes,
            "distance": self.distance,
            "metrics": metrics,
            "mistakes_by_lca_level": self.confusion.by_level.tolist(),
            **({} if self.samples.only_leaves else self._curves()),
            **calibrated,
            **self._asked(),
        }

    def _asked(self) -> dict[str, Any]:
        """What the options of :func:`hace.evaluate` add."""
        found: dict[str, Any] = {}
        if self.promise is not None:
            found["promise"] = {
                **self.promise.to_dict(),
                "promise": self.promise.promise,
                "assumptions": list(self.promise.assumptions),
                "measured": self.promise_measured(),
                "remark": self.remark,
            }
        if self.subset is not None:
            found["outside_subset"] = self.subset[1]
        if self.comparison is not None:
            found["comparison"] = self.comparison.to_dict()
        return found

    def promise_measured(self) -> dict[str, float]:
        """How the promise turned out on these samples."""
        assert self.promise is not None
        values, title = (self.calibrated or self).values, promise_title(self.promise)
        false, answered = 1 - values[title, "true (right or above)"], values[title, "answered below the root"]
        return {
            "false": false,
            "answered": answered,
            "true_of_answers": 1 - false / answered if answered else np.nan,
            "specificity": values[title, "specificity"],
        }

    def _curves(self) -> dict[str, Any]:
        """The curves behind the metrics of confidence, as plain values."""
        curve, risk = self.operating_curve, self.risk_coverage
        thinned = (
            np.unique(np.linspace(0, len(risk.coverage) - 1, 501).astype(int)) if len(risk.coverage) else []
        )
        return {
            "operating_curve": {
                "threshold": curve.thresholds.tolist(),
                "specificity": [_plain(x) for x in curve.specificity],
                "precision": [_plain(x) for x in curve.precision],
            },
            "risk_coverage": {
                "coverage": [_plain(x) for x in risk.coverage[thinned]],
                "risk": [_plain(x) for x in risk.risk[thinned]],
            },
            "reliability": {
                title: {
                    "count": [int(c) for c in r.counts],
                    "confidence": [_plain(c) for c in r.confidence],
                    "accuracy": [_plain(a) for a in r.accuracy],
                }
                for title, r in self.reliability.items()
            },
        }

    def to_text(self) -> str:
        """All of it for the terminal, as `hace evaluate` prints it."""
        models = [self] if self.comparison is None else [self, self.comparison.second]
        lines = [line for model in models for line in summary_lines(model, model.name)]
        about = [", ".join(f"{key} {value}" for key, value in self.about.items())] if self.about else []
        lines += ["", *about, self._table()]
        if self.promise is not None:
            lines += ["", *self._promise_lines()]
        if self.subset is not None:
            classes, outside = self.subset
            left_out = " and are left out" * self.only_subset
            lines += [
                "",
                f"subset of {classes} classes; {outside:,} samples have their truth outside it{left_out}",
            ]
        return "\n".join(
            [*lines, *([] if self.comparison is None else ["", self.comparison.to_text(self.name)])]
        )

    def _promise_lines(self) -> list[str]:
        assert self.promise is not None
        found = self.promise_measured()
        return [
            promise_text(self.promise),
            f"  here: {found['false']:.2%} of samples got a false answer, {found['answered']:.2%} one below the root, of which "
            f"{found['true_of_answers']:.2%} are true; specificity {found['specificity']:.4f}",
            *([] if self.remark is None else [f"  {self.remark}"]),
        ]

    def _table(self) -> str:
        """Every metric, and where mistakes go."""
        h = self.hierarchy
        lines = [
            f"{len(self.samples):,} samples, {self.mistakes:,} mistakes, {h!r}, distance {self.distance}"
        ]
        if not h.is_tree and not self.samples.only_leaves:
            lines.append("metrics by level are omitted: on a DAG a node has no single ancestor at a level")
        if self.temperature is not None:
            lines.append(f"calibrated: scores divided by the temperature {self.temperature:.4g}")
        heading = ""
        width = max(len(name) for _, name in self.all_values)
        for (group, name), value in self.all_values.items():
            if group != heading:
                heading = group
                lines += ["", heading]
            lines.append(f"  {name:<{width}}  {'-' if np.isnan(value) else f'{value:.4f}':>8}")
        return "\n".join([*lines, "", *self._mistakes_text()])

    def _mistakes_text(self) -> list[str]:
        """Where mistakes go, in words."""
        c = self.confusion
        if not c.mistakes:
            return ["no mistakes"]
        lines = ["where mistakes meet the truth (level of the lowest common ancestor)"]
        names = ("root", *self.level_titles) if self.level_titles else None
        for level, count in enumerate(c.by_level.tolist()):
            if count:
                title = names[level] if names else f"depth {level}"
                lines.append(f"  {title:<24}  {count:>8,}  {count / c.mistakes:7.1%}")
        lines += ["", "most frequent mistakes"]
        table = c.pair_columns(PAIRS_SHOWN)
        for truth, answer, count, lca in zip(
            table["truth_name"], table["answer_name"], table["count"], table["lca"], strict=True
        ):
            meet = "the root" if lca is None else _title(self.hierarchy, lca)
            lines.append(f"  {count:>5} x  {truth} taken for {answer or 'no answer'} (meet at {meet})")
        return lines


def _title(hierarchy: Hierarchy, node: str) -> str:
    """A node as shown to the user: its name, and its id if that differs."""
    name = hierarchy.name(node)
    return name if name == node else f"{name} [{node}]"


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def promise_title(promise: GuaranteedThreshold) -> str:
    """The heading of a promise in an evaluation."""
    return f"promise, {promise.accuracy:g} of {promise.of}"


def promise_text(promise: GuaranteedThreshold) -> str:
    """A promise and what it assumes, for a person."""
    return "\n".join([f"promise: {promise.promise}", *(f"  assumed: {text}" for text in promise.assumptions)])


# ---------------------------------------------------------------------- the three sentences that a table begins with


def summary_lines(evaluation: Evaluation, name: str = "") -> tuple[str, ...]:
    """The three sentences that a table of metrics begins with; two, without confidence, where it was not computed.

    Example:
        >>> from hace import Hierarchy, evaluate
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "pug"), ("cat", "tabby")], leaves=["husky", "pug", "tabby"])
        >>> scores = np.array([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
        >>> for line in summary_lines(evaluate(scores, [0, 1, 2], h), "mine"):
        ...     print(line)
        mine: right class in 66.7% of 3 samples [20.8, 93.9], right node at level 1 in 100.0%.
        Mistakes: 1; 100% stay within the right node at level 1. Most frequent: pug taken for husky (1).
        Confidence: 86.6% stated on average, 19.9 points too high.
    """
    if not len(evaluation.samples):
        return f"{name or 'scores'}: no samples.", "Mistakes: none.", "Confidence: unknown."
    found = _accuracy(evaluation, name or "scores"), _mistakes(evaluation)
    return found if evaluation.samples.only_leaves else (*found, _confidence(evaluation))


def wilson(right: float, samples: float) -> tuple[float, float]:
    """The 95% interval of a share, after Wilson.

    Example:
        >>> low, high = wilson(50, 100)
        >>> round(low, 3), round(high, 3)
        (0.404, 0.596)
    """
    z = 1.959964
    share, room = right / samples, z * z / samples
    half = z * np.sqrt(share * (1 - share) / samples + room / (4 * samples))
    middle = share + room / 2
    return float((middle - half) / (1 + room)), float((middle + half) / (1 + room))


def _accuracy(e: Evaluation, name: str) -> str:
    samples = len(e.samples)
    right = samples - e.mistakes
    low, high = wilson(right, samples)
    share = 100 * right / samples
    text = f"{name}: right class in {share:.1f}% of {samples:,} samples [{100 * low:.1f}, {100 * high:.1f}]"
    if len(e.level_titles) > 1:
        text += f", right {node_of_level(e.level_titles[-2])} in {100 * _within(e):.1f}%"
    classes = e.hierarchy.num_leaves
    if (
        samples >= 3 * classes and right * classes < samples
    ):  # chance alone would have been right three times or more
        text += ". That is below chance: are the columns in label order, and do labels count from 0"
        return f"{text}?"
    return f"{text}."


def _within(e: Evaluation) -> float:
    """The share of samples whose answer is below the right node of the level above the classes."""
    carried = e.hierarchy.level_nodes(len(e.level_titles) - 1)
    return float((carried[e.samples.answers] == carried[e.samples.truth]).mean())


def _mistakes(e: Evaluation) -> str:
    if not e.mistakes:
        return "Mistakes: none."
    text = f"Mistakes: {e.mistakes:,}"
    if len(e.level_titles) > 1:
        stay = (_within(e) * len(e.samples) - (len(e.samples) - e.mistakes)) / e.mistakes
        text += f"; {100 * stay:.0f}% stay within the right {node_of_level(e.level_titles[-2])}"
    table = e.confusion.pair_columns(1)
    truth, answer, count = (table[key][0] for key in ("truth_name", "answer_name", "count"))
    return f"{text}. Most frequent: {truth} taken for {answer or 'nothing'} ({count:,})."


def _confidence(e: Evaluation) -> str:
    stated = float(np.mean(e.samples.confidence))
    text = f"Confidence: {100 * stated:.1f}% stated on average, {_off(e)}"
    return f"{text}." if e.calibrated is None else f"{text}; once calibrated, {_off(e.calibrated)}."


def _off(e: Evaluation) -> str:
    gap = float(np.mean(e.samples.confidence)) - (1 - e.mistakes / len(e.samples))
    if abs(gap) < TRUSTED:
        return f"within {100 * TRUSTED:.0f} points of its accuracy"
    return f"{100 * abs(gap):.1f} points too {'high' if gap > 0 else 'low'}"
