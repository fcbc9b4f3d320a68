"""Streaming metrics with torchmetrics' contract: update / compute / reset, MetricCollection, sync under DDP.

They add up the columns of :mod:`hace.metrics.measures`, so any split into batches and any number of processes gives the value
of the plain function on all samples. Every class takes ``update(preds, target)`` in the same forms as the functions. Needs
torchmetrics: ``pip install "hace[metrics]"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import check_distance
from hace.hierarchy.index import level_choices
from hace.metrics import measures
from hace.metrics.bounds import MOST_BINS, check_count
from hace.metrics.calibration import Reliability, level_diagrams
from hace.metrics.confusion import ClassTable, Confusion, class_counts, summarise_mistakes
from hace.metrics.curves import (
    THRESHOLDS,
    OperatingColumns,
    OperatingCurve,
    RiskCoverage,
    curve_of,
    operating_columns,
    risk_coverage,
)
from hace.metrics.metric_batch import MetricBatch, ScoreForms
from hace.metrics.streaming_base import HierarchicalMetric, RatioMetric

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PRF = ("precision", "recall", "f1")


class TopKAccuracy(RatioMetric):
    """:func:`hace.metrics.top_k_accuracy`, streaming.

    Args:
        hierarchy: the hierarchy.
        k: how many leaves count.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, k: int = 1, **forms: Unpack[ScoreForms]) -> None:
        super().__init__(hierarchy, measures.top_k_measure(hierarchy, k), k, **forms)


class HierarchicalDistance(RatioMetric):
    """:func:`hace.metrics.hierarchical_distance_at`, HD@k, streaming.

    Args:
        hierarchy: the hierarchy.
        k: how many leaves count.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, k: int = 1, distance: str = "lca_height", **forms: Unpack[ScoreForms]
    ) -> None:
        super().__init__(hierarchy, measures.distance_measure(hierarchy, k, distance), k, distance, **forms)


class MistakeSeverity(RatioMetric):
    """:func:`hace.metrics.mistake_severity`, streaming; ``mistakes`` is the number of mistakes.

    Args:
        hierarchy: the hierarchy.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, distance: str = "lca_height", **forms: Unpack[ScoreForms]
    ) -> None:
        super().__init__(hierarchy, measures.severity_measure(hierarchy, distance), distance, **forms)

    @property
    def mistakes(self) -> int:
        """The number of mistakes seen by this process."""
        return int(self._array("denominator").sum())


class LevelAccuracy(RatioMetric):
    """:func:`hace.metrics.level_accuracy`, streaming: a dict by level.

    Args:
        hierarchy: a tree or forest.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> None:
        measure = measures.level_accuracy_measure(hierarchy)
        super().__init__(hierarchy, measure, keys=measure.names, **forms)


class HierarchicalPRF(RatioMetric):
    """:func:`hace.metrics.hierarchical_prf`, streaming: precision, recall, f1.

    Args:
        hierarchy: the hierarchy.
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, average: str = "micro", **forms: Unpack[ScoreForms]) -> None:
        measure = measures.hierarchical_prf_measure(hierarchy, average)
        super().__init__(hierarchy, measure, average, keys=_PRF, **forms)


class InformationPRF(RatioMetric):
    """:func:`hace.metrics.information_prf`, streaming: precision, recall, f1.

    Args:
        hierarchy: the hierarchy.
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, average: str = "macro", **forms: Unpack[ScoreForms]) -> None:
        keys = ("precision", "recall", "f1")
        super().__init__(
            hierarchy, measures.information_prf_measure(hierarchy, average), average, keys=keys, **forms
        )


class FullPathAccuracy(RatioMetric):
    """:func:`hace.metrics.full_path_accuracy`, streaming.

    Args:
        hierarchy: a tree or forest.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> None:
        super().__init__(hierarchy, measures.full_path_measure(hierarchy), **forms)


class TreeInconsistency(RatioMetric):
    """:func:`hace.metrics.tree_inconsistency`, streaming.

    Args:
        hierarchy: a tree or forest.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> None:
        super().__init__(hierarchy, measures.inconsistency_measure(hierarchy), **forms)


class LevelCalibration(HierarchicalMetric):
    """Expected calibration error of every level, streaming: a dict by level. ``diagrams()`` gives the data to plot.

    Args:
        hierarchy: a tree or forest.
        bins: number of bins.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, bins: int = 15, **forms: Unpack[ScoreForms]) -> None:
        check_count("bins", bins, MOST_BINS)
        super().__init__(hierarchy, bins, **forms)
        self.bins = bins
        self.titles = measures.level_titles(hierarchy)
        self._sums("bin_sums", len(self.titles), 3, bins + 1)

    def _add(self, batch: MetricBatch) -> None:
        each = level_diagrams(batch, self.bins)
        self._plus("bin_sums", [(r.counts, r.confidence_sums, r.correct_sums) for r in each])

    def diagrams(self) -> list[Reliability]:
        """The reliability diagram of each level."""
        return [Reliability(*sums) for sums in self._array("bin_sums")]

    def compute(self) -> dict[str, Tensor]:
        """ECE by level."""
        values = [torch.tensor(r.ece, dtype=torch.float64, device=self.device) for r in self.diagrams()]
        return dict(zip(self.titles, values, strict=True))


class ClassAccuracy(HierarchicalMetric):
    """:func:`hace.metrics.class_accuracy` at a level, streaming. ``table()`` names the classes.

    Args:
        hierarchy: a tree or forest.
        level: a depth or a level's name.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, level: int | str, **forms: Unpack[ScoreForms]) -> None:
        super().__init__(hierarchy, level, **forms)
        level_numbers(hierarchy)
        self.level = hierarchy.level_index(level)
        self._sums("counts", hierarchy.num_nodes)
        self._sums("correct", hierarchy.num_nodes)

    def _add(self, batch: MetricBatch) -> None:
        counts, correct = class_counts(batch, self.level)
        self._plus("counts", counts)
        self._plus("correct", correct)

    def table(self) -> ClassTable:
        """Classes, counts and accuracies."""
        nodes = level_choices(self.hierarchy, self.level)
        counts, correct = (self._array(name)[nodes].astype(np.int64) for name in ("counts", "correct"))
        return ClassTable(self.hierarchy, self.level, nodes, counts, correct)

    def compute(self) -> Tensor:
        """(C,) accuracy of each node of the level, nan where it has no samples."""
        return torch.as_tensor(self.table().accuracy, device=self.device)


class OperatingArea(HierarchicalMetric):
    """Area under the operating curve, streaming. ``curve()`` gives the data to plot.

    Args:
        hierarchy: the hierarchy.
        thresholds: probabilities.
        constrained: True to walk down from the root; False to take the most informative of all nodes that pass.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        thresholds: Sequence[float] = THRESHOLDS,
        constrained: bool = True,
        **forms: Unpack[ScoreForms],
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
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, distance: str | None = None, **forms: Unpack[ScoreForms]
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


class Mistakes(HierarchicalMetric):
    """:func:`hace.metrics.confusion`, streaming: ``summary()`` says where mistakes go. Keeps two integers per sample.

    Args:
        hierarchy: the hierarchy.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> None:
        super().__init__(hierarchy, **forms)
        self._rows("answers")
        self._rows("truth")

    def _add(self, batch: MetricBatch) -> None:
        self._append("answers", batch.answers)
        self._append("truth", batch.truth)

    def summary(self) -> Confusion:
        """Pairs, and the levels where they meet."""
        pairs = (self._array(name).astype(np.int64) for name in ("answers", "truth"))
        return summarise_mistakes(self.hierarchy, *pairs)

    def compute(self) -> Tensor:
        """(H + 1,) mistakes by the depth of the lowest common ancestor of truth and answer."""
        return torch.as_tensor(self.summary().by_level, device=self.device)
