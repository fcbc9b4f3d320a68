"""Curves that show what a threshold buys: risk against coverage, precision against specificity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.decisions.rules import best_by_depth, level_thresholds, walk_down
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.metrics.metric_batch import MetricBatch, as_metric_batch

THRESHOLDS = tuple(np.round(np.arange(0, 1.0001, 0.01), 2).tolist())  # 0, 0.01, ..., 1


@dataclass(frozen=True)
class RiskCoverage:
    """Mean loss of the most confident answers as more of them are let in.

    Attributes:
        confidence: (P,) falling; a point covers all answers of at least this confidence.
        coverage: (P,) their share.
        risk: (P,) their mean loss.
    """

    confidence: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray

    @property
    def area(self) -> float:
        """AURC: the sum of (step in coverage) * risk; nan without samples."""
        if not len(self.coverage):
            return np.nan
        return float((np.diff(self.coverage, prepend=0.0) * self.risk).sum())


def risk_coverage(confidence: Any, risk: Any) -> RiskCoverage:
    """The risk-coverage curve. Equal confidences enter together.

    Args:
        confidence: (S,) of each answer.
        risk: (S,) loss of each answer: 0/1 for mistakes, or any distance.

    Example:
        >>> risk_coverage([0.9, 0.8, 0.7], [0, 0, 1]).risk.round(3)
        array([0.   , 0.   , 0.333])
    """
    confidence, risk = np.asarray(confidence, dtype=np.float64), np.asarray(risk, dtype=np.float64)
    if confidence.shape != risk.shape or confidence.ndim != 1:
        raise DataError(
            f"confidence and risk must be one-dimensional and equally long. Got {confidence.shape} and {risk.shape}."
        )
    order = np.argsort(-confidence, kind="stable")
    confidence, total = confidence[order], np.cumsum(risk[order])
    last = (
        np.flatnonzero(np.append(np.diff(confidence) != 0, True))
        if len(confidence)
        else np.empty(0, dtype=int)
    )
    count = last + 1
    return RiskCoverage(confidence[last], count / max(len(confidence), 1), total[last] / count)


@dataclass(frozen=True)
class OperatingCurve:
    """Precision against specificity as the threshold of :func:`hace.decisions.rules.deepest_above` moves.

    Attributes:
        thresholds: (T,).
        specificity: (T,) mean information of the answers over log2 n: 1 when all are leaves, 0 when all are the root.
        precision: (T,) share of answers that are the truth or an ancestor of it; no answer counts as true.
    """

    thresholds: np.ndarray
    specificity: np.ndarray
    precision: np.ndarray

    @property
    def area(self) -> float:
        """Area under precision over specificity: trapezoids over the sorted points and (0, 1)."""
        return float(operating_area(self.specificity[None], self.precision[None])[0])

    def threshold_for(self, precision: float) -> float:
        """The threshold of the most specific point that reaches a precision; nan where none does.

        Choose it on data that is not the test set.
        """
        reached = np.flatnonzero(self.precision >= precision)
        if not len(reached):
            return np.nan
        return float(self.thresholds[reached[np.argmax(self.specificity[reached])]])


def operating_area(specificity: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """(R,) areas of R curves (R, T); points of equal specificity count from the highest precision down."""
    x = np.concatenate([np.zeros((len(specificity), 1)), specificity], axis=1)
    y = np.concatenate([np.ones((len(precision), 1)), precision], axis=1)
    order = np.lexsort((-y, x), axis=1)
    x, y = np.take_along_axis(x, order, axis=1), np.take_along_axis(y, order, axis=1)
    return (np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2).sum(axis=1)


def operating_columns(
    batch: MetricBatch, thresholds: Sequence[float] = THRESHOLDS, constrained: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(B, T) specificity and truth of the answer of each sample at each threshold: what the curve is the mean of."""
    h, limits = batch.hierarchy, np.asarray(thresholds, dtype=np.float64)
    for t in thresholds:
        level_thresholds(float(t), h)  # refuses what is no probability
    ladder = walk_down if constrained else best_by_depth
    nodes, masses = (t.cpu() for t in ladder(batch.log_q, h))
    mass = masses.double().exp().numpy()  # (B, L)
    mass[:, 0] = np.inf  # the root, or no answer, always passes
    passing = mass[:, :, None] >= limits  # (B, L, T)
    if constrained:
        last = np.minimum.accumulate(passing, axis=1).sum(axis=1) - 1
    else:
        last = passing.shape[1] - 1 - passing[:, ::-1].argmax(axis=1)
    steps = nodes.numpy()
    flat, truth = steps.ravel(), np.repeat(batch.truth, steps.shape[1])
    true = batch.relations.is_above(flat, truth).reshape(steps.shape)
    most = np.log2(h.num_leaves)
    specific = batch.relations.information[steps] / most if most else np.ones(steps.shape)
    return np.take_along_axis(specific, last, axis=1), np.take_along_axis(true, last, axis=1).astype(
        np.float64
    )


def operating_curve(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    constrained: bool = True,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> OperatingCurve:
    """Precision and specificity of the threshold rule at every threshold.

    Args:
        preds: scores; see :func:`hace.metrics.metric_batch.as_metric_batch`.
        target, hierarchy, labels, kind, outputs: likewise.
        thresholds: probabilities.
        constrained: walk down from the root, or the deepest of all nodes that pass.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> operating_curve(np.array([[2.0, 1.9, 0.0]]), [1], h, thresholds=[0.0, 0.7]).precision
        array([0., 1.])
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    specific, true = operating_columns(batch, thresholds, constrained)
    return curve_of(thresholds, specific.sum(axis=0), true.sum(axis=0), len(batch))


def curve_of(
    thresholds: Sequence[float], specific: np.ndarray, true: np.ndarray, samples: int
) -> OperatingCurve:
    """The curve from sums over samples."""
    count = samples or np.nan
    return OperatingCurve(np.asarray(thresholds, dtype=np.float64), specific / count, true / count)
