"""All metrics of a model in one pass: chunks of scores in, a few numbers per sample kept, an :class:`Evaluation` out.

Everything follows from these numbers, under any weights of the samples: point estimates use equal weights, a bootstrap draws
them at random; one computation serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from hace.checks import MOST_BINS, check_choice, check_count, is_number, require
from hace.decisions import Decisions, GuaranteedThreshold
from hace.decisions.bounds import group_places
from hace.decisions.rules import RULES, check_rule
from hace.decisions.scores import (
    Scores,
    as_nodes,
    as_tensor,
    inside_subset,
    level_numbers,
    row_blocks,
    subset_mask,
)
from hace.decisions.threshold_rules import level_thresholds
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above
from hace.hierarchy.names import score_columns
from hace.losses.kernels import best_columns
from hace.metrics import curves, measures
from hace.metrics.answers import (
    ClassTable,
    Confusion,
    class_scores,
    class_table,
    label_scores,
    slice_lines,
    slices_of,
    summarise_mistakes,
)
from hace.metrics.curves import HierarchicalRiskCoverage, OperatingCurve, Reliability, RiskCoverage
from hace.metrics.intervals import interval
from hace.metrics.measures import Measure, mean_of, node_of_level
from hace.metrics.metric_batch import MetricBatch

if TYPE_CHECKING:
    from hace.metrics.comparison import Comparison

RANKS = (1, 5, 20)
CHEAPEST = {"least cost": {"rule": "cost"}, "least cost, any rank": {"rule": "cost", "candidates": "nodes"}}
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
    ladders: curves.Ladders  # (S, L)
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
            return tuple(made(list(each)) for each in zip(*columns, strict=True))

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
        areas += ["hAURC"] if self.ladders[0].shape[1] else []
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
                curves.operating_area(w @ self.specific / total, w @ self.true / total)[:, None],
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
                place = curves.bin_of(confidence, bins)
                shape = (len(self), bins + 1)
                by_bin = sparse.csr_array((gap, (np.arange(len(self)), place)), shape=shape)
                sums = (by_bin.T @ w.T).T
            else:
                sums = _sums_by_mass(confidence, gap, w, bins)
            out[:, k] = np.abs(sums).sum(axis=1)
        return out

    def _ladder_area(self, w: np.ndarray) -> np.ndarray:
        """(R, 1) areas under hierarchical risk-coverage curves; (R, 0) on a DAG."""
        if not self.ladders[0].shape[1]:
            return np.empty((len(w), 0))
        if not len(self):
            return np.full((len(w), 1), np.nan)
        _, x, y = curves.ladder_curves(self.ladders, w)
        return (np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2).sum(axis=1, keepdims=True)

    def _risk_area(self, w: np.ndarray, risk: np.ndarray) -> np.ndarray:
        """(R, 1) areas under risk-coverage curves; equal confidences enter together."""
        if not len(self):
            return np.full((len(w), 1), np.nan)
        _, coverage, mean = curves.risk_curves(self.confidence, risk, w)
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
        guarantee: a guarantee that was evaluated.
        remark: why these samples do not test the guarantee, if so.
        level: the level whose classes are listed; by default the deepest.
        subset: the number of classes that scores were restricted to, and of samples whose truth is outside them.
        only_subset: whether these samples are left out.
        comparison: with a second model.
        about: what else is known of the scores, such as their run.
        source: where the scores come from.
        groups: (S,) the name of each sample's group, where samples come in groups: intervals are then over groups.
    """

    hierarchy: Hierarchy
    samples: SampleStatistics
    bins: int
    thresholds: tuple[float, ...]
    distance: str
    name: str = "scores"
    calibrated: Evaluation | None = None
    temperature: float | None = None
    guarantee: GuaranteedThreshold | None = None
    remark: str | None = None
    level: int | None = None
    subset: tuple[int, int] | None = None
    only_subset: bool = False
    comparison: Comparison | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    groups: np.ndarray | None = None

    def over(self, hierarchy: Hierarchy) -> Evaluation:
        """The same over a hierarchy that differs in names alone."""
        calibrated = None if self.calibrated is None else self.calibrated.over(hierarchy)
        return replace(self, hierarchy=hierarchy, calibrated=calibrated)

    def of_samples(self, rows: np.ndarray) -> Evaluation:
        """The metrics of some of the samples alone: a mask of them, or their numbers."""
        calibrated = None if self.calibrated is None else self.calibrated.of_samples(rows)
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, samples=self.samples.chosen(rows), calibrated=calibrated, groups=groups)

    def compared_with(
        self, second: Evaluation, *, replicates: int = 1000, seed: int = 0, progress: Any = None
    ) -> Evaluation:
        """This evaluation with a second model's beside it; arguments as of :func:`hace.metrics.compare`."""
        from hace.metrics.comparison import Comparison, compare

        found = compare(self, second, replicates=replicates, seed=seed, progress=progress)
        return replace(self, comparison=Comparison(second, found, replicates, seed))

    @cached_property
    def level_titles(self) -> tuple[str, ...]:
        """Names of the levels; empty on a DAG."""
        return measures.level_titles(self.hierarchy) if self.hierarchy.is_tree else ()

    @cached_property
    def values(self) -> dict[MetricKey, float]:
        """Every metric by heading and name."""
        values = self.samples.values(bins=self.bins)[0].tolist()
        return dict(zip(self.samples.keys(self.level_titles), values, strict=True))

    @cached_property
    def all_values(self) -> dict[MetricKey, float]:
        """:attr:`values`, and those that a temperature changes once more, under headings that begin with "calibrated: "."""
        warm = {} if self.calibrated is None else self.calibrated.values
        return self.values | {(CALIBRATED + g, n): v for (g, n), v in warm.items() if g not in _RANKS_ONLY}

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
        return curves.risk_coverage(self.samples.confidence, self.samples.answers != self.samples.truth)

    @cached_property
    def hierarchical_risk_coverage(self) -> HierarchicalRiskCoverage:
        """Share of false answers against coverage, as answers climb from the best leaf; empty on a DAG."""
        return curves.ladder_curve(self.samples.ladders)

    @cached_property
    def operating_curve(self) -> OperatingCurve:
        """Precision against specificity of the threshold rule."""
        s = self.samples
        sums = [column.sum(axis=0, dtype=np.float64) for column in (s.specific, s.true, s.answered)]
        return curves.curve_of(self.thresholds, sums, len(s))

    @cached_property
    def reliability(self) -> dict[str, Reliability]:
        """The reliability diagram of each level, by its name."""
        s = self.samples
        columns = zip(self.level_titles, s.level_confidence.T, s.level_correct.T, strict=True)
        return {title: curves.reliability(p, right, self.bins) for title, p, right in columns}

    @cached_property
    def class_scores(self) -> dict[str, float]:
        """Balanced accuracy and macro-F1 of the best class, over labels that occur and over nodes."""
        return class_scores(self.hierarchy, self.samples.answers, self.samples.truth)

    @cached_property
    def slices(self) -> dict[str, dict[str, float]]:
        """How good the best class is on parts of the samples: rare classes, the others, and each group."""
        h, answers, truth = self.hierarchy, self.samples.answers, self.samples.truth
        return slices_of(truth, self.groups, lambda part: label_scores(h, answers[part], truth[part]))

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
        about = {"kind": h.kind, "nodes": h.num_nodes, "leaves": h.num_leaves, "fingerprint": h.fingerprint}
        found: dict[str, Any] = {
            "hierarchy": about,
            "samples": len(self.samples),
            "mistakes": self.mistakes,
            "distance": self.distance,
            "metrics": metrics,
            "mistakes_by_lca_level": self.confusion.by_level.tolist(),
            "classes": {name: _plain(value) for name, value in self.class_scores.items()},
            "slices": self.slices,
            **({} if self.samples.only_leaves else self._curves()),
            **({} if self.calibrated is None else {"calibrated": self.calibrated._curves()}),
        }
        if self.guarantee is not None:
            found["guarantee"] = {
                **self.guarantee.to_dict(),
                "guarantee": self.guarantee.guarantee,
                "assumptions": list(self.guarantee.assumptions),
                "measured": self.guarantee_measured(),
                "remark": self.remark,
            }
        if self.subset is not None:
            found["outside_subset"] = self.subset[1]
        if self.comparison is not None:
            found["comparison"] = self.comparison.to_dict()
        return found

    def guarantee_measured(self) -> dict[str, float]:
        """How the guarantee turned out on these samples."""
        assert self.guarantee is not None
        values, title = (self.calibrated or self).values, guarantee_title(self.guarantee)
        false, answered = 1 - values[title, "true (right or above)"], values[title, "answered below the root"]
        return {
            "false": false,
            "answered": answered,
            "true_of_answers": 1 - false / answered if answered else np.nan,
            "specificity": values[title, "specificity"],
        }

    def guarantee_outcome(self) -> str:
        """Whether the guarantee was kept on these samples, in a sentence; what they do not test is said instead."""
        assert self.guarantee is not None
        if self.remark is not None:
            return self.remark
        found, guaranteed = self.guarantee_measured(), 1 - (self.guarantee.accuracy or 0)
        all_samples = self.guarantee.of == "samples"
        count = len(self.samples) * (1 if all_samples else found["answered"])
        if not count:
            return "Nothing was answered here, so nothing was false."
        if self.guarantee.groups == "new" and self.groups is not None:
            what, limit, (false, low, high) = self._false_in_groups(guaranteed)
        else:
            false, limit = found["false"] if all_samples else 1 - found["true_of_answers"], guaranteed
            what, (low, high) = f"{false:.1%} of {self.guarantee.of} are false", wilson(false * count, count)
        missed = "not kept" if low > limit else "missed, by what chance explains,"
        kept = "kept" if false <= limit else missed
        return f"The guarantee was {kept} here: {what}, 95% interval {low:.1%} to {high:.1%}; guaranteed: at most {limit:.1%}."

    def _false_in_groups(self, guaranteed: float) -> tuple[str, float, tuple[float, float, float]]:
        """How a guarantee about new groups turned out, in words, its limit, and the share with its interval."""
        assert self.guarantee is not None
        measured, title = (self.calibrated or self).samples, guarantee_title(self.guarantee)
        column = {name[:2]: measured.numerator[:, i] for i, name in enumerate(measured.names)}
        about_answers = self.guarantee.of == "answers"
        place = np.unique(np.asarray(self.groups), return_inverse=True)[1]
        counted = np.bincount(
            place, weights=column[title, "answered below the root"] if about_answers else None
        )
        false = np.bincount(place, weights=1 - column[title, "true (right or above)"])
        shares = (
            false[counted > 0] / counted[counted > 0]
        )  # a group without answers has no share of false ones
        groups = f"{len(shares):,} groups{' that get answers' if about_answers else ''}"
        if self.guarantee.group_share is None:
            over = interval(shares[None])
            what = f"on average over {groups} {over.value:.1%} of {self.guarantee.of} are false"
            return what, guaranteed, (over.value, max(over.low, 0.0), min(over.high, 1.0))
        broken = float((shares > guaranteed + 1e-9).mean())
        ends = wilson(broken * len(shares), len(shares))
        what = f"{broken:.1%} of {groups} break it"
        return what, 1 - self.guarantee.group_share, (broken, *ends)

    def _curves(self) -> dict[str, Any]:
        """The curves behind the metrics of confidence, as plain values."""
        curve, risk = self.operating_curve, self.risk_coverage
        points = len(risk.coverage)
        thinned = np.unique(np.linspace(0, points - 1, 501).astype(int)) if points else []
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
        for model in models:
            said = ", ".join(f"{name} {value:.4f}" for name, value in model.class_scores.items())
            lines += ["", f"{model.name}, over classes: {said}", *slice_lines(model.slices)]
        if self.guarantee is not None:
            found = self.guarantee_measured()
            lines += [
                "",
                guarantee_text(self.guarantee),
                f"  here: {found['false']:.2%} of samples got a false answer, {found['answered']:.2%} one below the root, of "
                f"which {found['true_of_answers']:.2%} are true; specificity {found['specificity']:.4f}",
                f"  {self.guarantee_outcome()}",
            ]
        if self.subset is not None:
            classes, outside = self.subset
            words = "outside it and are left out" if self.only_subset else "outside it"
            lines += ["", f"subset of {classes} classes; {outside:,} samples have their truth {words}"]
        if self.comparison is not None:
            lines += ["", self.comparison.to_text(self.name)]
        return "\n".join(lines)

    def _table(self) -> str:
        """Every metric, and where mistakes go."""
        h = self.hierarchy
        counts = f"{len(self.samples):,} samples, {self.mistakes:,} mistakes"
        lines = [f"{counts}, {h!r}, distance {self.distance}"]
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
        columns = (table[key] for key in ("truth_name", "answer_name", "count", "lca"))
        for truth, answer, count, lca in zip(*columns, strict=True):
            name = "the root" if lca is None else self.hierarchy.name(lca)
            meet = name if lca is None or name == lca else f"{name} [{lca}]"
            lines.append(f"  {count:>5} x  {truth} taken for {answer or 'no answer'} (meet at {meet})")
        return lines


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def guarantee_title(guarantee: GuaranteedThreshold) -> str:
    """The heading of a guarantee in an evaluation."""
    return f"guarantee, {guarantee.accuracy:g} of {guarantee.of}"


def guarantee_text(guarantee: GuaranteedThreshold, unit: str = "samples") -> str:
    """A guarantee and what it assumes, for a person; ``unit``: what gets one answer."""
    lines = [f"guarantee: {guarantee.guarantee}", *(f"  assumed: {text}" for text in guarantee.assumptions)]
    return "\n".join(lines).replace("samples", unit)


def summary_lines(evaluation: Evaluation, name: str = "") -> tuple[str, ...]:
    """The three sentences that a table of metrics begins with; two, without confidence, where it was not computed."""
    if not len(evaluation.samples):
        return f"{name or 'scores'}: no samples.", "Mistakes: none.", "Confidence: unknown."
    found = _accuracy(evaluation, name or "scores"), _mistakes(evaluation)
    return found if evaluation.samples.only_leaves else (*found, _confidence(evaluation))


def wilson(right: float, samples: float) -> tuple[float, float]:
    """The 95% interval of a share, after Wilson."""
    z = 1.959964
    share, room = right / samples, z * z / samples
    half = z * np.sqrt(share * (1 - share) / samples + room / (4 * samples))
    middle = share + room / 2
    return float((middle - half) / (1 + room)), float((middle + half) / (1 + room))


def _accuracy(e: Evaluation, name: str) -> str:
    samples = len(e.samples)
    right = samples - e.mistakes
    low, high = wilson(right, samples)
    share, unit = 100 * right / samples, "samples"
    if e.groups is not None and (number := len(np.unique(e.groups))) > 1:
        found = interval((e.samples.answers == e.samples.truth)[None], groups=e.groups)
        (low, high), unit = (max(found.low, 0.0), min(found.high, 1.0)), f"samples in {number:,} groups"
    text = f"{name}: right class in {share:.1f}% of {samples:,} {unit} [{100 * low:.1f}, {100 * high:.1f}]"
    if len(e.level_titles) > 1:
        text += f", right {node_of_level(e.level_titles[-2])} in {100 * _within(e):.1f}%"
    classes = e.hierarchy.num_leaves
    # By chance alone three or more would have been right.
    if samples >= 3 * classes and right * classes < samples:
        return f"{text}. That is below chance: are the columns in label order, and do labels count from 0?"
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


@dataclass
class Evaluator:
    """Takes scores chunk by chunk; :meth:`evaluation` gives all metrics of what it has seen.

    Attributes:
        hierarchy: the hierarchy. On a DAG, metrics by level are omitted.
        kind: what the scores are; see :class:`hace.metrics.ScoreForms`.
        outputs: what their columns are; see :class:`hace.metrics.ScoreForms`.
        labels: what the truths are; see :class:`hace.metrics.ScoreForms`.
        subset: ids of leaves, or of inner nodes for all below, to restrict scores to. A truth outside the subset stays in
            and counts as a mistake.
        prior: weights of nodes, which apply to all below: how much likelier here than in training.
        distance: the distance of severity, HD@k and least cost: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        rules: further decisions to evaluate, by title: the options of :func:`hace.predict`, ``rule`` included.
        bins: number of bins of the calibration.
        thresholds: thresholds of the operating curve.
        metrics: ``"all"``; or ``"leaves"``: top-k, severity and HD@k alone, which need no probabilities and so are much faster.
        temperature: fitted on other samples (:func:`hace.fit_temperature`): the metrics of confidence of scores divided by it
            are given beside the raw ones.
        guarantee: a calibrated threshold (:func:`hace.guaranteed_threshold`) whose answers are evaluated, on the scores divided
            by the temperature if there is one.
    """

    hierarchy: Hierarchy
    kind: str = "logits"
    outputs: str = "auto"
    labels: str = "leaves"
    subset: Sequence[Any] | None = None
    prior: Mapping[str, float] | None = None
    distance: str = "lca_height"
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bins: int = 15
    thresholds: Sequence[float] = curves.THRESHOLDS
    metrics: str = "all"
    temperature: float | None = None
    guarantee: GuaranteedThreshold | None = None

    def __post_init__(self) -> None:
        h = self.hierarchy
        check_choice("metrics", self.metrics, ("all", LEAVES))
        check_count("bins", self.bins, MOST_BINS)
        for given in self.rules.values():
            check_rule(given.get("rule"), (name for name in given if name != "rule"))
        self._keep = None if self.subset is None else subset_mask(h, self.subset)
        choices = h.num_leaves if self._keep is None else int(self._keep[h.leaf_nodes].sum())
        self._measures = standard_measures(h, self.distance, choices)
        costs = {title: {**cost, "distance": self.distance} for title, cost in CHEAPEST.items()}
        self._rules = {**costs, **self.rules}
        if self.metrics == LEAVES:
            self._only_leaves()
        self._calibrated: Evaluator | None = None
        if self.temperature is not None:
            fits = is_number(self.temperature) and self.temperature > 0
            require("temperature", self.temperature, "a number above 0", fits)
            if self.kind == "node_log_probs":
                raise ConfigError(
                    "temperature needs logits or probabilities: log q* does not divide. Pass scores of kind='logits'."
                )
            self._calibrated = replace(self, temperature=None)
            self.guarantee = None  # it is about the calibrated scores
        self._parts: list[SampleStatistics] = []
        self._seen = 0

    def _only_leaves(self) -> None:
        for name in ("temperature", "guarantee", "rules"):
            if value := getattr(self, name):
                got = ", ".join(value) if name == "rules" else value
                raise ConfigError(
                    f"{name} must be left out with metrics='leaves'. Got {got}. Use metrics='all'."
                )
        self._measures = [(group, measure) for group, measure in self._measures if group == LEAVES]
        self._rules = {}

    def add(self, scores: Any, target: Any) -> None:
        """Add a chunk of scores and truths."""
        if len(scores) != len(target):
            raise DataError(
                f"scores and target must have one row per sample. Got {len(scores)} and {len(target)} rows."
            )
        self._take(Scores(scores, self.hierarchy, self.kind, self.outputs), target)

    def _take(self, scores: Scores, target: Any) -> None:
        h = self.hierarchy
        labels, top = self._ranked(scores)
        scores = scores.checked(self._seen, top)
        truth = as_nodes(target, h, "target", of=self.labels).numpy()
        self._seen += len(truth)
        width = max(RANKS) if labels is not None and self.metrics == LEAVES else h.num_nodes
        for rows in row_blocks(len(truth), width):
            known = None if labels is None else labels[rows]
            self._parts.append(self._statistics(scores[rows], truth[rows], known))
        if self._calibrated is not None and self.temperature is not None:
            self._calibrated._take(scores.cooled(self.temperature), target)

    def _ranked(self, scores: Scores) -> tuple[Tensor | None, Tensor | None]:
        """(B, k) the best leaves and (B,) the greatest scores, in one pass where nothing is to be done to the scores first."""
        as_they_are = scores.kind in ("logits", "log_probs") and self._keep is None and self.prior is None
        if not as_they_are or scores.outputs != "leaves":
            return None, None
        z = as_tensor(scores.data, "scores")
        return best_columns(z, min(max(RANKS), self.hierarchy.num_leaves)) or (None, None)

    def _statistics(
        self, scores: Scores, truth: np.ndarray, labels: Tensor | None = None
    ) -> SampleStatistics:
        h = self.hierarchy
        scores = scores.restricted(self._keep).weighted(self.prior)
        batch = MetricBatch(h, truth, scores=scores, labels=labels)
        batch.ranking(min(max(RANKS), h.num_leaves))  # the longest first: it serves the shorter ones
        named: list[tuple[str, str, float]] = []
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        for group, measure in self._measures:
            columns.append(measure.columns(batch))
            named += [(group, name, measure.empty) for name in measure.names]
        answers = {}
        for title, decided in self._decided(batch):
            answers[title] = decided.nodes.cpu().numpy(), decided.probabilities.double().cpu().numpy()
            measure = answer_measure(h, self.distance)
            columns.append(measure.columns(MetricBatch(h, batch.truth, answers=answers[title][0])))
            named += [(title, name, measure.empty) for name in measure.names]
        return SampleStatistics(
            names=tuple(named),
            numerator=np.concatenate([c[0] for c in columns], axis=1),
            denominator=np.concatenate([c[1] for c in columns], axis=1),
            truth=batch.truth,
            answers=batch.answers,
            distance=batch.distance(self.distance),
            decided=answers,
            **self._of_confidence(batch),
        )

    def _of_confidence(self, batch: MetricBatch) -> dict[str, Any]:
        """The columns that need probabilities; empty ones with ``metrics="leaves"``, and those of levels on a DAG."""
        none = np.empty((len(batch), 0))
        found: dict[str, Any] = dict.fromkeys(("level_confidence", "specific", "true", "answered"), none)
        found |= {"level_correct": none.astype(bool), "ladders": (none, none, none)}
        found["confidence"] = np.full(len(batch), np.nan)
        if self.metrics == LEAVES:
            return found
        specific, true, answered = curves.operating_columns(batch, self.thresholds)
        found |= {"specific": specific.astype(np.float32), "true": true.astype(np.float32)}
        found |= {"confidence": batch.confidence, "answered": answered}
        if self.hierarchy.is_tree:
            found["level_confidence"] = batch.levels.probabilities.float().cpu().numpy()
            found |= {"level_correct": batch.correct_at_levels, "ladders": curves.ladder_columns(batch)}
        return found

    def _decided(self, batch: MetricBatch) -> Iterator[tuple[str, Decisions]]:
        """The answers of every further rule, and those that keep the guarantee, by title."""
        for title, options in self._rules.items():
            given = dict(options)
            yield title, RULES[given.pop("rule")][0](batch.log_q, self.hierarchy, **given)
        if self.guarantee is not None:
            answers = self.guarantee.predict(batch.log_q, self.hierarchy, kind="node_log_probs")
            yield guarantee_title(self.guarantee), answers

    def evaluation(self, **about: Any) -> Evaluation:
        """The metrics of all chunks so far.

        Args:
            **about: further attributes of :class:`Evaluation`.
        """
        h = self.hierarchy
        if not self._parts:
            nothing = Scores(torch.zeros(0, h.num_nodes), h, "logits", "nodes")
            self._parts.append(self._statistics(nothing, np.zeros(0, dtype=np.int64)))
        self._parts = [SampleStatistics.joined(self._parts)]
        warm = None if self._calibrated is None else self._calibrated.evaluation()
        return Evaluation(
            h,
            self._parts[0],
            bins=self.bins,
            thresholds=tuple(self.thresholds),
            distance=self.distance,
            calibrated=warm,
            temperature=self.temperature,
            guarantee=self.guarantee if warm is None else warm.guarantee,
            **about,
        )


def evaluate(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    name: str = "scores",
    threshold: float | Sequence[float] | None = None,
    level: int | str | None = None,
    price: float | None = None,
    only_subset: bool = False,
    groups: Any = None,
    compare: Any = None,
    replicates: int = 1000,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> Evaluation:
    """All metrics of a model: everything that `hace evaluate` does.

    ``print(found.to_text())`` shows them, ``hace.write_evaluation(found, "results")`` writes a page with tables and pictures.

    Args:
        scores: (S, n) or (S, N), or an iterable of chunks of them.
        target: (S,) truths.
        hierarchy: the hierarchy. On a DAG, metrics by level are omitted.
        name: what to call the model.
        threshold: evaluate the deepest node above a probability, too; one, or one per level.
        level: evaluate the best node of a level, too, by depth or name, and list its classes.
        price: evaluate the answer of least cost at any rank, too, where a vague answer costs this share of its distance.
        only_subset: whether to skip samples whose truth is outside ``subset``.
        groups: (S,) the group of each sample, such as its site: intervals are then over groups, not samples.
        compare: scores of a second model on the same samples, in the same forms; or its evaluation.
        replicates: number of bootstrap draws of the comparison.
        seed: seed of these draws.
        progress: called with the number of samples scored since the last call.
        **options: kind, outputs, labels, subset, prior, distance, rules, bins, thresholds, metrics, temperature and guarantee,
            as of :class:`hace.metrics.Evaluator`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> evaluation = evaluate(np.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), [0, 1], h)
        >>> evaluation.values["leaves", "top-1"], evaluation.values["leaves", "severity"]
        (0.5, 1.0)
    """
    truth = as_nodes(target, hierarchy, "target", of=options.get("labels", "leaves"))
    rules = _asked_rules(hierarchy, threshold, level, price, options.get("distance", "lca_height"))
    rules |= options.get("rules") or {}
    inside = _inside(hierarchy, options.get("subset"), truth.numpy(), only_subset)
    evaluator = Evaluator(hierarchy, **{**options, "labels": "nodes", "rules": rules})
    start = 0
    for chunk in _chunks(scores, hierarchy, evaluator):
        evaluator.add(chunk, truth[start : start + len(chunk)])
        start += len(chunk)
        if progress is not None:
            progress(len(chunk))
    if start != len(truth):
        raise DataError(f"scores and target must have one row per sample. Got {start} and {len(truth)} rows.")
    names, place = (None, None) if groups is None else group_places(groups, len(truth))
    grouped = None if names is None else names[place]
    depth = None if level is None else hierarchy.level_index(level)
    found = evaluator.evaluation(name=name, level=depth, groups=grouped)
    if inside is not None:
        classes = int(subset_mask(hierarchy, options["subset"] or ())[hierarchy.leaf_nodes].sum())
        found = replace(found, subset=(classes, int((~inside).sum())), only_subset=only_subset)
        found = found.of_samples(inside) if only_subset else found
    if compare is None:
        return found
    if not isinstance(compare, Evaluation):
        same: Any = {"threshold": threshold, "level": level, "price": price, "only_subset": only_subset}
        same["groups"] = groups
        compare = evaluate(compare, target, hierarchy, name="second", **same, **options)  # type: ignore[arg-type]
    return found.compared_with(compare, replicates=replicates, seed=seed)


def _chunks(scores: Any, h: Hierarchy, evaluator: Evaluator) -> Iterable[Any]:
    """Scores in pieces that bound the memory of work on them."""
    if not hasattr(scores, "shape"):
        return scores
    over = "nodes" if evaluator.kind == "node_log_probs" else evaluator.outputs
    score_columns(tuple(scores.shape), h, over)
    return (scores[rows] for rows in row_blocks(len(scores), h.num_nodes))


def _asked_rules(
    h: Hierarchy, threshold: Any, level: Any, price: Any, distance: str
) -> dict[str, dict[str, Any]]:
    """The decisions that arguments of :func:`evaluate` ask for, by title."""
    rules: dict[str, dict[str, Any]] = {}
    if price is not None:
        require("price", price, "a number from 0 to 1", is_number(price) and 0 <= price <= 1)
        cost = {"rule": "cost", "candidates": "nodes", "price": price, "distance": distance}
        rules[f"least cost, any rank, price {price:g}"] = cost
    if threshold is not None:
        level_thresholds(threshold, h)  # refuses what is not a probability
        words = [threshold] if isinstance(threshold, (int, float)) else threshold
        title = f"threshold {','.join(f'{t:g}' for t in words)}"
        rules[title] = {"rule": "threshold", "threshold": threshold}
    if level is not None:
        level_numbers(h)
        rules[f"best node of level {level}"] = {"rule": "level", "level": h.level_index(level)}
    return rules


def _inside(h: Hierarchy, subset: Sequence[Any] | None, truth: np.ndarray, only: bool) -> np.ndarray | None:
    """(S,) whether each truth is a class of the subset, or an inner node with no class outside it; None without a subset."""
    if subset is None:
        if only:
            raise ConfigError("only_subset must come with a subset. Got none.")
        return None
    inside = inside_subset(h, subset, truth)
    if only and not inside.any():
        raise ConfigError(
            "only_subset must come with a subset that some samples belong to. No truth is inside it."
        )
    return inside


def standard_measures(h: Hierarchy, distance: str, choices: int) -> list[tuple[str, Measure]]:
    """The measures of the best leaf and the levels, each with its heading."""
    ranks = [k for k in RANKS if k <= choices]
    found = [(LEAVES, measures.top_k_measure(h, k)) for k in ranks if k != 20]
    found.append((LEAVES, measures.severity_measure(h, distance)))
    found += [(LEAVES, measures.distance_measure(h, k, distance)) for k in ranks]
    if h.is_tree:
        found.append((CARRIED_UP, measures.level_accuracy_measure(h)))
        found.append(("accuracy by level, best node of the level", measures.level_choice_measure(h)))
    for make in (measures.hierarchical_prf_measure, measures.information_prf_measure):
        found += [("ancestors and information", make(h, average)) for average in measures.AVERAGES]
    if h.is_tree:
        found += [
            ("levels together", measures.full_path_measure(h)),
            ("levels together", measures.inconsistency_measure(h)),
            ("Brier score by level", measures.brier_measure(h)),
            ("log-likelihood by level", measures.log_likelihood_measure(h)),
        ]
    return found


def answer_measure(h: Hierarchy, distance: str) -> Measure:
    """The measures of any rule's answers, which may be inner nodes or none."""

    def columns(batch: MetricBatch) -> tuple[np.ndarray, np.ndarray]:
        answers, truth = batch.answers, batch.truth
        below = np.append(h.depths, 0)[answers] > 0  # -1 is the virtual root
        right, specific = is_above(h, answers, truth), batch.relations.specificity[answers]
        each = [answers == truth, right, below, specific, batch.distance(distance)]
        means = mean_of(np.stack(each, axis=1))
        f1 = measures.hierarchical_prf_measure(h, "micro").columns(batch)
        return np.concatenate([means[0], f1[0]], axis=1), np.concatenate([means[1], f1[1]], axis=1)

    means = ("exactly right", "true (right or above)", "answered below the root", "specificity", "distance")
    return Measure((*means, "hPrecision", "hRecall", "hF1"), columns, empty=1.0)
