"""Streaming metrics with torchmetrics' contract: update / compute / reset, MetricCollection, sync under DDP.

They add up the columns of :mod:`hace.metrics.measures`, so that any split into batches and any number of processes gives
the value of the plain function on all samples. Every class takes ``update(preds, target)`` with the same forms as the
functions. Needs torchmetrics: ``pip install "hace[metrics]"``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    from torchmetrics import Metric
except ImportError as error:  # pragma: no cover - the test hides torchmetrics in another process
    raise ImportError(
        'Streaming metrics need torchmetrics. Install it with: pip install "hace[metrics]". '
        "The functions of hace.metrics work without it."
    ) from error

from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.metrics import measures
from hace.metrics.calibration import Reliability, reliability
from hace.metrics.confusion import ClassTable, Confusion, class_counts, level_choices, summarise_mistakes
from hace.metrics.curves import (
    THRESHOLDS,
    OperatingCurve,
    RiskCoverage,
    curve_of,
    operating_columns,
    risk_coverage,
)
from hace.metrics.measures import Measure
from hace.metrics.metric_batch import MetricBatch, as_metric_batch


class HierarchicalMetric(Metric):
    """The base: checks a batch and hands it on.

    Args:
        hierarchy: the hierarchy.
        labels, kind, outputs: see :func:`hace.metrics.metric_batch.as_metric_batch`.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        hierarchy: Hierarchy,
        *options: object,
        labels: str = "leaves",
        kind: str = "logits",
        outputs: str = "auto",
    ) -> None:
        super().__init__()
        self.hierarchy = hierarchy
        self.forms = {"labels": labels, "kind": kind, "outputs": outputs}
        # A MetricCollection lets metrics share their states when the first batch left the same numbers under the same
        # names. Equal numbers may be chance, so the names say what is counted.
        told = (type(self).__name__, hierarchy.fingerprint[:8], labels, kind, outputs, *options)
        self._tag = re.sub(r"\W+", "_", "_".join(map(str, told)))

    def update(self, preds: Any, target: Any) -> None:
        """Add a batch."""
        self._add(as_metric_batch(preds, target, self.hierarchy, **self.forms))

    def _add(self, batch: MetricBatch) -> None:
        raise NotImplementedError

    def _sums(self, name: str, *shape: int) -> None:
        """Declare a state that adds up, over batches and processes."""
        self.add_state(f"{name}_{self._tag}", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _rows(self, name: str) -> None:
        """Declare a state that keeps a number a sample, for what is no ratio of sums."""
        self.add_state(f"{name}_{self._tag}", [], dist_reduce_fx="cat")

    def _state(self, name: str) -> Any:
        return getattr(self, f"{name}_{self._tag}")

    def _plus(self, name: str, values: Any) -> None:
        state = self._state(name)
        added = torch.as_tensor(np.asarray(values, dtype=np.float64)).to(state.device)
        setattr(self, f"{name}_{self._tag}", state + added)

    def _append(self, name: str, values: np.ndarray) -> None:
        self._state(name).append(torch.as_tensor(values, dtype=torch.float64, device=self.device))

    def _array(self, name: str) -> np.ndarray:
        state = self._state(name)
        if isinstance(state, Tensor):  # sums; or rows that a sync has put together
            return state.cpu().numpy()
        return torch.cat(state).cpu().numpy() if state else np.empty(0)


class RatioMetric(HierarchicalMetric):
    """A measure, added up. ``compute`` gives a scalar, or a dict of scalars where the measure has several."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        measure: Measure,
        *options: object,
        keys: Sequence[str] | None = None,
        **forms: Any,
    ) -> None:
        super().__init__(hierarchy, *options, **forms)
        self.measure = measure
        self.keys_of_values = None if keys is None else tuple(keys)
        self._sums("numerator", len(measure.names))
        self._sums("denominator", len(measure.names))
        self._sums("samples")

    def _add(self, batch: MetricBatch) -> None:
        numerator, denominator = self.measure.columns(batch)
        self._plus("numerator", numerator.sum(axis=0))
        self._plus("denominator", denominator.sum(axis=0))
        self._plus("samples", len(batch))

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The value so far."""
        values = self.measure.divide(
            self._array("numerator"), self._array("denominator"), int(self._array("samples"))
        )
        tensors = torch.as_tensor(values, device=self.device)
        if self.keys_of_values is None:
            return tensors[0]
        return dict(zip(self.keys_of_values, tensors, strict=True))


class TopKAccuracy(RatioMetric):
    """:func:`hace.metrics.top_k_accuracy`, streaming."""

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, k: int = 1, **forms: Any) -> None:
        super().__init__(hierarchy, measures.top_k_measure(hierarchy, k), k, **forms)


class HierarchicalDistance(RatioMetric):
    """:func:`hace.metrics.hierarchical_distance_at`, HD@k, streaming."""

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, k: int = 1, distance: str = "lca_height", **forms: Any) -> None:
        super().__init__(hierarchy, measures.distance_measure(hierarchy, k, distance), k, distance, **forms)


class MistakeSeverity(RatioMetric):
    """:func:`hace.metrics.mistake_severity`, streaming; ``mistakes`` tells over how many."""

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, distance: str = "lca_height", **forms: Any) -> None:
        super().__init__(hierarchy, measures.severity_measure(hierarchy, distance), distance, **forms)

    @property
    def mistakes(self) -> int:
        """The number of mistakes seen by this process."""
        return int(self._array("denominator").sum())


class LevelAccuracy(RatioMetric):
    """:func:`hace.metrics.level_accuracy`, streaming: a dict by level."""

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, **forms: Any) -> None:
        measure = measures.level_accuracy_measure(hierarchy)
        super().__init__(hierarchy, measure, keys=measure.names, **forms)


class HierarchicalPRF(RatioMetric):
    """:func:`hace.metrics.hierarchical_prf`, streaming: precision, recall, f1."""

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, average: str = "micro", **forms: Any) -> None:
        keys = ("precision", "recall", "f1")
        super().__init__(
            hierarchy, measures.hierarchical_prf_measure(hierarchy, average), average, keys=keys, **forms
        )


class InformationPRF(RatioMetric):
    """:func:`hace.metrics.information_prf`, streaming: precision, recall, f1."""

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, average: str = "macro", **forms: Any) -> None:
        keys = ("precision", "recall", "f1")
        super().__init__(
            hierarchy, measures.information_prf_measure(hierarchy, average), average, keys=keys, **forms
        )


class FullPathAccuracy(RatioMetric):
    """:func:`hace.metrics.full_path_accuracy`, streaming."""

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, **forms: Any) -> None:
        super().__init__(hierarchy, measures.full_path_measure(hierarchy), **forms)


class TreeInconsistency(RatioMetric):
    """:func:`hace.metrics.tree_inconsistency`, streaming."""

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, **forms: Any) -> None:
        super().__init__(hierarchy, measures.inconsistency_measure(hierarchy), **forms)


class LevelCalibration(HierarchicalMetric):
    """Expected calibration error of every level, streaming: a dict by level. ``diagrams()`` gives what to draw."""

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, bins: int = 15, **forms: Any) -> None:
        super().__init__(hierarchy, bins, **forms)
        reliability([], [], bins)  # refuses what is no number of bins
        self.bins = bins
        self.titles = measures.level_titles(hierarchy)
        self._sums("bin_sums", len(self.titles), 3, bins + 1)

    def _add(self, batch: MetricBatch) -> None:
        confidence = batch.levels.probabilities.double().cpu().numpy()
        each = [
            reliability(confidence[:, k], batch.correct_at_levels[:, k], self.bins)
            for k in range(len(self.titles))
        ]
        self._plus("bin_sums", [(r.counts, r.confidence_sums, r.correct_sums) for r in each])

    def diagrams(self) -> list[Reliability]:
        """The reliability diagram of each level."""
        return [Reliability(*sums) for sums in self._array("bin_sums")]

    def compute(self) -> dict[str, Tensor]:
        """ECE by level."""
        values = [torch.tensor(r.ece, dtype=torch.float64, device=self.device) for r in self.diagrams()]
        return dict(zip(self.titles, values, strict=True))


class ClassAccuracy(HierarchicalMetric):
    """:func:`hace.metrics.class_accuracy` at a level, streaming. ``table()`` names the classes."""

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, level: int | str, **forms: Any) -> None:
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
    """Area under the operating curve, streaming. ``curve()`` gives what to draw."""

    higher_is_better = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        thresholds: Sequence[float] = THRESHOLDS,
        constrained: bool = True,
        **forms: Any,
    ) -> None:
        super().__init__(hierarchy, hash(tuple(thresholds)), constrained, **forms)
        self.thresholds, self.constrained = tuple(thresholds), constrained
        self._sums("specific", len(self.thresholds))
        self._sums("true", len(self.thresholds))
        self._sums("samples")

    def _add(self, batch: MetricBatch) -> None:
        specific, true = operating_columns(batch, self.thresholds, self.constrained)
        self._plus("specific", specific.sum(axis=0))
        self._plus("true", true.sum(axis=0))
        self._plus("samples", len(batch))

    def curve(self) -> OperatingCurve:
        """The curve itself."""
        return curve_of(
            self.thresholds, self._array("specific"), self._array("true"), int(self._array("samples"))
        )

    def compute(self) -> Tensor:
        """Its area."""
        return torch.tensor(self.curve().area, dtype=torch.float64, device=self.device)


class RiskCoverageArea(HierarchicalMetric):
    """AURC, streaming: risk is the named ``distance``, or a mistake (0/1) with None. Keeps two numbers a sample."""

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, distance: str | None = None, **forms: Any) -> None:
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
    """:func:`hace.metrics.confusion`, streaming: ``summary()`` says where mistakes go. Keeps two integers a sample."""

    def __init__(self, hierarchy: Hierarchy, **forms: Any) -> None:
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
