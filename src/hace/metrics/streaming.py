"""Streaming metrics with torchmetrics' contract: update / compute / reset, MetricCollection, sync under DDP.

They add up the columns of :mod:`hace.metrics.measures`, so any split into batches and any number of processes gives the value
of the plain function on all samples. Every class takes ``update(preds, target)`` in the same forms as the functions. Needs
torchmetrics: ``pip install "hace[metrics]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.hierarchy.index import level_choices
from hace.metrics import measures
from hace.metrics.confusion import ClassTable, Confusion, class_counts, summarise_mistakes
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.streaming_base import HierarchicalMetric, MetricOptions, RatioMetric, level_key

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PRF = ("precision", "recall", "f1")


class TopKAccuracy(RatioMetric):
    """:func:`hace.metrics.top_k_accuracy`, streaming.

    Args:
        hierarchy: the hierarchy.
        k: how many leaves count.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, k: int = 1, **forms: Unpack[MetricOptions]) -> None:
        super().__init__(hierarchy, measures.top_k_measure(hierarchy, k), k, **forms)


class HierarchicalDistance(RatioMetric):
    """:func:`hace.metrics.hierarchical_distance_at`, HD@k, streaming.

    Args:
        hierarchy: the hierarchy.
        k: how many leaves count.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, k: int = 1, distance: str = "lca_height", **forms: Unpack[MetricOptions]
    ) -> None:
        super().__init__(hierarchy, measures.distance_measure(hierarchy, k, distance), k, distance, **forms)


class MistakeSeverity(RatioMetric):
    """:func:`hace.metrics.mistake_severity`, streaming; ``mistakes`` is the number of mistakes.

    Args:
        hierarchy: the hierarchy.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, distance: str = "lca_height", **forms: Unpack[MetricOptions]
    ) -> None:
        super().__init__(hierarchy, measures.severity_measure(hierarchy, distance), distance, **forms)

    @property
    def mistakes(self) -> int:
        """The number of mistakes seen by this process."""
        return int(self._array("denominator").sum())


class LevelAccuracy(RatioMetric):
    """:func:`hace.metrics.level_accuracy`, streaming: a dict by level, or one level's value.

    Args:
        hierarchy: a tree or forest.
        level: a depth or a level's name, to have its value alone, as a scalar; ``log_dict`` of Lightning needs that.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(
        self, hierarchy: Hierarchy, level: int | str | None = None, **forms: Unpack[MetricOptions]
    ) -> None:
        measure = measures.level_accuracy_measure(hierarchy)
        super().__init__(hierarchy, measure, keys=measure.names, value=level_key(hierarchy, level), **forms)


class HierarchicalPRF(RatioMetric):
    """:func:`hace.metrics.hierarchical_prf`, streaming: precision, recall, f1.

    Args:
        hierarchy: the hierarchy.
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples.
        value: ``"precision"``, ``"recall"`` or ``"f1"``, to have that alone, as a scalar; ``log_dict`` of Lightning needs that.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        average: str = "micro",
        value: str | None = None,
        **forms: Unpack[MetricOptions],
    ) -> None:
        measure = measures.hierarchical_prf_measure(hierarchy, average)
        super().__init__(hierarchy, measure, average, keys=_PRF, value=value, **forms)


class InformationPRF(RatioMetric):
    """:func:`hace.metrics.information_prf`, streaming: precision, recall, f1.

    Args:
        hierarchy: the hierarchy.
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples.
        value: ``"precision"``, ``"recall"`` or ``"f1"``, to have that alone, as a scalar; ``log_dict`` of Lightning needs that.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        average: str = "macro",
        value: str | None = None,
        **forms: Unpack[MetricOptions],
    ) -> None:
        keys = ("precision", "recall", "f1")
        super().__init__(
            hierarchy,
            measures.information_prf_measure(hierarchy, average),
            average,
            keys=keys,
            value=value,
            **forms,
        )


class FullPathAccuracy(RatioMetric):
    """:func:`hace.metrics.full_path_accuracy`, streaming.

    Args:
        hierarchy: a tree or forest.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[MetricOptions]) -> None:
        super().__init__(hierarchy, measures.full_path_measure(hierarchy), **forms)


class TreeInconsistency(RatioMetric):
    """:func:`hace.metrics.tree_inconsistency`, streaming.

    Args:
        hierarchy: a tree or forest.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[MetricOptions]) -> None:
        super().__init__(hierarchy, measures.inconsistency_measure(hierarchy), **forms)


class ClassAccuracy(HierarchicalMetric):
    """:func:`hace.metrics.class_accuracy` at a level, streaming. ``table()`` names the classes.

    Args:
        hierarchy: a tree or forest.
        level: a depth or a level's name.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, level: int | str, **forms: Unpack[MetricOptions]) -> None:
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


class Mistakes(HierarchicalMetric):
    """:func:`hace.metrics.confusion`, streaming: ``summary()`` says where mistakes go. Keeps two integers per sample.

    Args:
        hierarchy: the hierarchy.
        **forms: ``labels``, ``kind`` and ``outputs``, see :class:`hace.metrics.ScoreForms`; and torchmetrics' own keywords.
    """

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[MetricOptions]) -> None:
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
