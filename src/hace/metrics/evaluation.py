"""The result of an evaluation: all metrics by name, with the curves and tables behind them, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hace.hierarchy import Hierarchy
from hace.metrics.calibration_error import Reliability, reliability
from hace.metrics.curves import (
    HierarchicalRiskCoverage,
    LadderColumns,
    OperatingCurve,
    RiskCoverage,
    curve_of,
    ladder_curve,
    risk_coverage,
)
from hace.metrics.measures import level_titles
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.mistakes import ClassTable, Confusion, class_table, summarise_mistakes
from hace.metrics.sample_statistics import LEAVES, MetricKey, SampleStatistics

PAIRS_SHOWN = 10
CALIBRATED = "calibrated: "  # before the headings of metrics of calibrated scores
CARRIED_UP = "accuracy by level, answer carried up"
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
        calibrated: the same of scores divided by a temperature, if there is one.
        temperature: by which the scores of ``calibrated`` were divided.
    """

    hierarchy: Hierarchy
    samples: SampleStatistics
    bins: int
    thresholds: tuple[float, ...]
    distance: str
    calibrated: Evaluation | None = None
    temperature: float | None = None

    def with_calibrated(self, calibrated: Evaluation, temperature: float | None) -> Evaluation:
        """This evaluation with that of calibrated scores beside it."""
        return replace(self, calibrated=calibrated, temperature=temperature)

    def over(self, hierarchy: Hierarchy) -> Evaluation:
        """The same over a hierarchy that differs in names alone.

        Args:
            hierarchy: its nodes have the same ids, in the same order.
        """
        calibrated = None if self.calibrated is None else self.calibrated.over(hierarchy)
        return replace(self, hierarchy=hierarchy, calibrated=calibrated)

    def of_samples(self, rows: np.ndarray) -> Evaluation:
        """The metrics of some of the samples alone.

        Args:
            rows: a mask of the samples, or their numbers.
        """
        calibrated = None if self.calibrated is None else self.calibrated.of_samples(rows)
        return replace(self, samples=self.samples.chosen(rows), calibrated=calibrated)

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
        """The table for the terminal."""
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
