"""What an evaluation says: every metric of a model on a set of samples, the curves behind them, and words for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.decisions import GuaranteedThreshold
from hace.decisions.trust import RightShare, right_share, why_broken
from hace.errors import BROKEN, amount
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
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
from hace.metrics.guarantee_outcome import guarantee_outcome
from hace.metrics.intervals import interval, share_interval
from hace.metrics.measures import CARRIED_UP, LEAVES, node_of_level
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.sample_statistics import MetricKey, SampleStatistics

if TYPE_CHECKING:
    from hace.metrics.comparison import Comparison

PAIRS_SHOWN = 10
TRUSTED = 0.02  # a difference between stated confidence and accuracy that needs no word
CALIBRATED = "calibrated: "  # before the headings of metrics of calibrated scores
_RANKS_ONLY = (LEAVES, CARRIED_UP, "ancestors and information")  # headings that no temperature changes


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
        names: (S,) the name of each sample, such as its file, where they are known.
        held_out: how often the best class is right on the samples that the guarantee rests on, where that is known.
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
    names: np.ndarray | None = None
    held_out: RightShare | None = None

    def over(self, hierarchy: Hierarchy) -> Evaluation:
        """The same over a hierarchy that differs in names alone."""
        calibrated = None if self.calibrated is None else self.calibrated.over(hierarchy)
        return replace(self, hierarchy=hierarchy, calibrated=calibrated)

    def of_samples(self, rows: np.ndarray) -> Evaluation:
        """The metrics of some of the samples alone: a mask of them, or their numbers."""
        calibrated = None if self.calibrated is None else self.calibrated.of_samples(rows)
        groups = None if self.groups is None else self.groups[rows]
        names = None if self.names is None else self.names[rows]
        chosen = self.samples.chosen(rows)
        return replace(self, samples=chosen, calibrated=calibrated, groups=groups, names=names)

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
        h = self.hierarchy
        answers = self.samples.answers
        truth = self.samples.truth
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
            metrics.setdefault(heading, {})[name] = _finite_or_none(value)
        about = {"kind": h.kind, "nodes": h.num_nodes, "leaves": h.num_leaves, "fingerprint": h.fingerprint}
        document: dict[str, Any] = {
            "hierarchy": about,
            "samples": len(self.samples),
            "mistakes": self.mistakes,
            "distance": self.distance,
            "metrics": metrics,
            "mistakes_by_lca_level": self.confusion.by_level.tolist(),
            "classes": {name: _finite_or_none(value) for name, value in self.class_scores.items()},
            "slices": self.slices,
            **({} if self.samples.only_leaves else self._curves()),
            **({} if self.calibrated is None else {"calibrated": self.calibrated._curves()}),
        }
        if self.guarantee is not None:
            document["guarantee"] = {
                **self.guarantee.to_dict(),
                "guarantee": self.guarantee.guarantee,
                "assumptions": list(self.guarantee.assumptions),
                "measured": self.guarantee_measured(),
                "remark": self.remark,
                "broken": self.guarantee_broken or None,
            }
        if self.subset is not None:
            document["outside_subset"] = self.subset[1]
        if self.comparison is not None:
            document["comparison"] = self.comparison.to_dict()
        return document

    def guarantee_measured(self) -> dict[str, float]:
        """How the guarantee turned out on these samples."""
        assert self.guarantee is not None
        values = (self.calibrated or self).values
        title = guarantee_title(self.guarantee)
        false = 1 - values[title, "true (right or above)"]
        answered = values[title, "answered below the root"]
        return {
            "false": false,
            "answered": answered,
            "true_of_answers": 1 - false / answered if answered else np.nan,
            "specificity": values[title, "specificity"],
        }

    @cached_property
    def guarantee_broken(self) -> str:
        """Why the guarantee must not be trusted on samples like these; "" where nothing speaks against it."""
        if self.guarantee is None or self.remark is not None or self.subset is not None:
            return ""
        right = is_above(self.hierarchy, self.samples.truth, self.samples.answers)
        return why_broken(self.held_out, right_share(right, self.groups), "these samples")

    def guarantee_outcome(self) -> str:
        """Whether the guarantee was kept on these samples, in a sentence; what they do not test is said instead."""
        assert self.guarantee is not None
        if self.remark is not None:
            return self.remark
        samples = (self.calibrated or self).samples
        nodes, _ = samples.decided[guarantee_title(self.guarantee)]
        return guarantee_outcome(self.guarantee, self.hierarchy, nodes, samples.truth, self.groups)

    def _curves(self) -> dict[str, Any]:
        """The curves behind the metrics of confidence, as plain values."""
        curve = self.operating_curve
        risk = self.risk_coverage
        points = len(risk.coverage)
        thinned = np.unique(np.linspace(0, points - 1, 501).astype(int)) if points else []
        return {
            "operating_curve": {
                "threshold": curve.thresholds.tolist(),
                "specificity": [_finite_or_none(x) for x in curve.specificity],
                "precision": [_finite_or_none(x) for x in curve.precision],
            },
            "risk_coverage": {
                "coverage": [_finite_or_none(x) for x in risk.coverage[thinned]],
                "risk": [_finite_or_none(x) for x in risk.risk[thinned]],
            },
            "reliability": {
                title: {
                    "count": [int(c) for c in r.counts],
                    "confidence": [_finite_or_none(c) for c in r.confidence],
                    "accuracy": [_finite_or_none(a) for a in r.accuracy],
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
            scores = ", ".join(f"{name} {value:.4f}" for name, value in model.class_scores.items())
            lines += ["", f"{model.name}, over classes: {scores}", *slice_lines(model.slices)]
        if self.guarantee is not None:
            measured = self.guarantee_measured()
            lines += [
                "",
                guarantee_text(self.guarantee),
                f"  here: {measured['false']:.2%} of samples got a false answer, {measured['answered']:.2%} one below the "
                f"root, of which {measured['true_of_answers']:.2%} are true; specificity {measured['specificity']:.4f}",
                f"  {self.guarantee_outcome()}",
            ]
            lines += [f"  {BROKEN}: {self.guarantee_broken}"] if self.guarantee_broken else []
        if self.subset is not None:
            classes, outside = self.subset
            words = "outside it and are left out" if self.only_subset else "outside it"
            lines += ["", f"subset of {classes} classes; {outside:,} samples have their truth {words}"]
        if self.comparison is not None:
            lines += ["", self.comparison.to_text(self)]
        return "\n".join(lines)

    def _table(self) -> str:
        """Every metric, and where mistakes go."""
        h = self.hierarchy
        counts = f"{amount(len(self.samples), 'sample')}, {amount(self.mistakes, 'mistake')}"
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


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def guarantee_title(guarantee: GuaranteedThreshold) -> str:
    """The heading of a guarantee in an evaluation."""
    if guarantee.distance is not None:
        return f"guarantee, {guarantee.distance} at most {guarantee.at_most:g}"
    return f"guarantee, {guarantee.accuracy:g} of {guarantee.of}"


def guarantee_text(guarantee: GuaranteedThreshold, unit: str = "samples") -> str:
    """A guarantee and what it assumes, for a person; ``unit``: what gets one answer."""
    assumed = [f"  assumed: {text}" for text in guarantee.assumed(unit)]
    return "\n".join([f"guarantee: {guarantee.sentence(unit)}", *assumed])


def summary_lines(evaluation: Evaluation, name: str = "") -> tuple[str, ...]:
    """The three sentences that a table of metrics begins with; two, without confidence, where it was not computed."""
    if not len(evaluation.samples):
        return f"{name or 'scores'}: no samples.", "Mistakes: none.", "Confidence: unknown."
    sentences = _accuracy(evaluation, name or "scores"), _mistakes(evaluation)
    return sentences if evaluation.samples.only_leaves else (*sentences, _confidence(evaluation))


def _accuracy(e: Evaluation, name: str) -> str:
    """The sentence about right answers, with a warning where they are no better than chance."""
    samples = len(e.samples)
    right = samples - e.mistakes
    low, high = share_interval(right, samples)
    share = 100 * right / samples
    unit = "samples"
    if e.groups is not None and (number := len(np.unique(e.groups))) > 1:
        accuracy = interval((e.samples.answers == e.samples.truth)[None], groups=e.groups)
        low = max(accuracy.low, 0.0)
        high = min(accuracy.high, 1.0)
        unit = f"samples in {number:,} groups"
    text = f"{name}: right class in {share:.1f}% of {samples:,} {unit} [{100 * low:.1f}, {100 * high:.1f}]"
    if len(e.level_titles) > 1:
        text += f", right {node_of_level(e.level_titles[-2])} in {100 * _within(e):.1f}%"
    if _is_chance(e, low):
        return (
            f"{text}. That is no better than chance: are the columns in label order, do labels count from 0, and are rows and "
            "labels of the same samples?"
        )
    return f"{text}."


def _is_chance(e: Evaluation, low: float) -> bool:
    """Whether an accuracy, of which `low` is the lower bound, may be one by chance: of classes drawn evenly, or of these
    answers beside these truths in any other order.

    Where most samples are of one class, any order is right mostly, which says nothing.
    """
    evenly = 1 / e.hierarchy.num_leaves
    if len(e.samples) * evenly >= 3 and low <= evenly < 1:
        return True
    nodes = e.hierarchy.num_nodes
    answers = np.bincount(e.samples.answers, minlength=nodes)
    truth = np.bincount(e.samples.truth, minlength=nodes)
    shuffled = float(answers @ truth) / max(len(e.samples), 1) ** 2
    return len(e.samples) * shuffled >= 3 and low <= shuffled < 0.5


def _within(e: Evaluation) -> float:
    """The share of samples whose answer is below the right node of the level above the classes."""
    carried = e.hierarchy.level_nodes(len(e.level_titles) - 1)
    return float((carried[e.samples.answers] == carried[e.samples.truth]).mean())


def _mistakes(e: Evaluation) -> str:
    """The sentence about mistakes."""
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
