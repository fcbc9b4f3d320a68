"""Streaming metrics of confidence: calibration, proper scores, and what a threshold buys. Needs torchmetrics."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hace.checks import MOST_BINS, check_count
from hace.decisions import GuaranteedThreshold
from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import check_distance
from hace.metrics import measures
from hace.metrics.calibration import Reliability, check_binning, level_diagrams, reliability
from hace.metrics.curves import (
    THRESHOLDS,
    OperatingColumns,
    OperatingCurve,
    RiskCoverage,
    curve_of,
    operating_columns,
    risk_coverage,
)
from hace.metrics.hierarchical_risk import (
    HierarchicalRiskCoverage,
    LadderColumns,
    ladder_columns,
    ladder_curve,
)
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.streaming_base import HierarchicalMetric, MetricOptions, RatioMetric, level_key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BrierScore(RatioMetric):
    """:func:`hace.metrics.brier_score`, streaming: a dict by level, or one level's value.

    Args:
        hierarchy: a tree or forest.
        level: a depth or a level's name, to have its value alone, as a scalar; ``log_dict`` of Lightning needs that.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, level: int | str | None = None, **forms: Unpack[MetricOptions]
    ) -> None:
        measure = measures.brier_measure(hierarchy)
        super().__init__(hierarchy, measure, keys=measure.names, value=level_key(hierarchy, level), **forms)


class LogLikelihood(RatioMetric):
    """:func:`hace.metrics.log_likelihood`, streaming: a dict by level, or one level's value.

    Args:
        hierarchy: a tree or forest.
        level: a depth or a level's name, to have its value alone, as a scalar; ``log_dict`` of Lightning needs that.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(
        self, hierarchy: Hierarchy, level: int | str | None = None, **forms: Unpack[MetricOptions]
    ) -> None:
        measure = measures.log_likelihood_measure(hierarchy)
        super().__init__(hierarchy, measure, keys=measure.names, value=level_key(hierarchy, level), **forms)


class GuaranteedAnswers(RatioMetric):
    """:func:`hace.metrics.promised_answers`, streaming: specificity, false, answered, true_answers.

    Args:
        hierarchy: the hierarchy of the calibration.
        promise: what :func:`hace.guaranteed_threshold` found on calibration samples.
        value: one of the four names, to have that alone, as a scalar; ``log_dict`` of Lightning needs that.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        promise: GuaranteedThreshold,
        value: str | None = None,
        **forms: Unpack[MetricOptions],
    ) -> None:
        measure = measures.promise_measure(hierarchy, promise)
        tag = zlib.crc32(str(promise).encode())  # the same in every process, unlike hash()
        super().__init__(hierarchy, measure, tag, keys=measure.names, value=value, **forms)


class LevelCalibration(HierarchicalMetric):
    """Expected calibration error of every level, streaming: a dict by level, or one level's value.

    ``diagrams()`` gives the data to plot.

    Args:
        hierarchy: a tree or forest.
        bins: number of bins.
        binning: ``"width"`` or ``"mass"``; see :func:`hace.metrics.reliability`. Bins of equal mass take two numbers per sample
            and level.
        level: a depth or a level's name, to have its value alone, as a scalar; ``log_dict`` of Lightning needs that.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = False

    def __init__(
        self,
        hierarchy: Hierarchy,
        bins: int = 15,
        binning: str = "width",
        level: int | str | None = None,
        **forms: Unpack[MetricOptions],
    ) -> None:
        check_count("bins", bins, MOST_BINS)
        check_binning(binning)
        super().__init__(hierarchy, bins, binning, **forms)
        self.bins, self.binning = bins, binning
        self.key = level_key(hierarchy, level)
        self.titles = measures.level_titles(hierarchy)
        if binning == "width":
            self._sums("bin_sums", len(self.titles), 3, bins + 1)
        else:
            self._rows("confidence")
            self._rows("correct")

    def _add(self, batch: MetricBatch) -> None:
        if self.binning == "mass":
            self._append("confidence", batch.levels.probabilities.double().cpu().numpy())
            self._append("correct", batch.correct_at_levels)
            return
        each = level_diagrams(batch, self.bins)
        self._plus("bin_sums", [(r.counts, r.confidence_sums, r.correct_sums) for r in each])

    def diagrams(self) -> list[Reliability]:
        """The reliability diagram of each level."""
        if self.binning == "width":
            return [Reliability(*sums) for sums in self._array("bin_sums")]
        seen = [self._array(name).reshape(-1, len(self.titles)) for name in ("confidence", "correct")]
        pairs = zip(seen[0].T, seen[1].T, strict=True)
        return [reliability(p, right, self.bins, "mass") for p, right in pairs]

    def compute(self) -> Tensor | dict[str, Tensor]:
        """ECE by level."""
        values = [torch.tensor(r.ece, dtype=torch.float64, device=self.device) for r in self.diagrams()]
        found = dict(zip(self.titles, values, strict=True))
        return found if self.key is None else found[self.key]


class OperatingArea(HierarchicalMetric):
    """Area under the operating curve, streaming. ``curve()`` gives the data to plot.

    Args:
        hierarchy: the hierarchy.
        thresholds: probabilities.
        constrained: True to walk down from the root; False to take the most informative of all nodes that pass.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        thresholds: Sequence[float] = THRESHOLDS,
        constrained: bool = True,
        **forms: Unpack[MetricOptions],
    ) -> None:
        super().__init__(hierarchy, hash(tuple(thresholds)), constrained, **forms)
        self.thresholds, self.constrained = tuple(thresholds), constrained
        for name in OperatingColumns._fields:
            self._sums(name, len(self.thresholds))
        self._sums("samples")

    def _add(self, batch: MetricBatch) -> None:
        columns = operating_columns(batch, self.thresholds, self.constrained)
        for name, column in columns._asdict().items():
            self._plus(name, column.sum(axis=0))
        self._plus("samples", len(batch))

    def curve(self) -> OperatingCurve:
        """The curve itself."""
        sums = [self._array(name) for name in OperatingColumns._fields]
        return curve_of(self.thresholds, sums, int(self._array("samples")))

    def compute(self) -> Tensor:
        """Its area."""
        return torch.tensor(self.curve().area, dtype=torch.float64, device=self.device)


class RiskCoverageArea(HierarchicalMetric):
    """AURC, streaming. Keeps two numbers per sample.

    Args:
        hierarchy: the hierarchy.
        distance: the risk of an answer: a named distance, or None for 0/1 mistakes.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, distance: str | None = None, **forms: Unpack[MetricOptions]
    ) -> None:
        if distance is not None:
            check_distance(distance)
        super().__init__(hierarchy, distance, **forms)
        self.distance = distance
        self._rows("confidence")
        self._rows("risk")

    def _add(self, batch: MetricBatch) -> None:
        wrong = batch.answers != batch.truth
        self._append("confidence", batch.confidence)
        self._append("risk", wrong if self.distance is None else batch.distance(self.distance))

    def curve(self) -> RiskCoverage:
        """The curve itself."""
        return risk_coverage(self._array("confidence"), self._array("risk"))

    def compute(self) -> Tensor:
        """Its area."""
        return torch.tensor(self.curve().area, dtype=torch.float64, device=self.device)


class HierarchicalRiskArea(HierarchicalMetric):
    """hAURC of :func:`hace.metrics.hierarchical_risk_coverage`, streaming. Keeps three numbers per sample and level.

    Args:
        hierarchy: a tree or forest.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[MetricOptions]) -> None:
        level_numbers(hierarchy)
        super().__init__(hierarchy, **forms)
        for name in LadderColumns._fields:
            self._rows(name)

    def _add(self, batch: MetricBatch) -> None:
        for name, column in ladder_columns(batch)._asdict().items():
            self._append(name, column)

    def curve(self) -> HierarchicalRiskCoverage:
        """The curve itself."""
        rungs = self.hierarchy.max_depth + 1
        reached, specific, false = (self._array(n).reshape(-1, rungs) for n in LadderColumns._fields)
        return ladder_curve(LadderColumns(reached, specific, false.astype(bool)))

    def compute(self) -> Tensor:
        """Its area."""
        return torch.tensor(self.curve().area, dtype=torch.float64, device=self.device)
