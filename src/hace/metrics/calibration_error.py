"""Calibration by level: are answers given with confidence 0.8 right in 80 % of the cases?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.checks import MOST_BINS, check_count
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack

BINNINGS = ("width", "mass")


@dataclass(frozen=True)
class Reliability:
    """Sums by bin of confidence: the reliability diagram, and the expected calibration error (ECE) that follows from it.

    Bins of equal width: [i/M, (i+1)/M), and one more for a confidence of exactly 1, as in torchmetrics. Diagrams with them add
    up. Bins of equal mass: M parts of the sorted samples, equal confidences together.

    Attributes:
        counts: (M + 1,) samples in each bin; (M,) with bins of equal mass.
        confidence_sums: the same shape, the sum of their confidences.
        correct_sums: the same shape, how many of them are right.
    """

    counts: np.ndarray
    confidence_sums: np.ndarray
    correct_sums: np.ndarray

    @property
    def ece(self) -> float:
        """Sum over bins of share * |accuracy - mean confidence|; nan without samples."""
        total = self.counts.sum()
        return float(np.abs(self.correct_sums - self.confidence_sums).sum() / total) if total else np.nan

    @property
    def accuracy(self) -> np.ndarray:
        """(M + 1,) share of right answers in each bin; nan for an empty one."""
        return _ratio(self.correct_sums, self.counts)

    @property
    def confidence(self) -> np.ndarray:
        """(M + 1,) mean confidence in each bin; nan for an empty one."""
        return _ratio(self.confidence_sums, self.counts)

    def __add__(self, other: Reliability) -> Reliability:
        return Reliability(
            self.counts + other.counts,
            self.confidence_sums + other.confidence_sums,
            self.correct_sums + other.correct_sums,
        )


def reliability(confidence: Any, correct: Any, bins: int = 15, binning: str = "width") -> Reliability:
    """The reliability diagram of answers with a confidence.

    Args:
        confidence: (S,) probabilities.
        correct: (S,) whether each answer is right.
        bins: M, at most 100,000.
        binning: ``"width"``: M bins of equal width. ``"mass"``: M bins of equally many samples.

    Example:
        >>> round(reliability([0.9, 0.8, 0.6], [True, True, False], bins=5).ece, 3)
        0.3
    """
    check_count("bins", bins, MOST_BINS)
    confidence, correct = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise DataError(
            f"confidence and correct must be one-dimensional and equally long. Got {confidence.shape} and {correct.shape}."
        )
    at, most = bin_of(confidence, bins, binning), bins + (binning == "width")
    return Reliability(
        np.bincount(at, minlength=most).astype(np.float64),
        np.bincount(at, weights=confidence, minlength=most),
        np.bincount(at, weights=correct, minlength=most),
    )


def bin_of(confidence: np.ndarray, bins: int, binning: str = "width") -> np.ndarray:
    """The bin of each confidence, from 0. Rounding may lift a sum of probabilities slightly above 1."""
    check_binning(binning)
    if binning == "mass":
        first = np.searchsorted(np.sort(confidence), confidence)  # the rank of the first that is equal
        return first * bins // max(len(confidence), 1)
    edges = np.arange(bins + 1) / bins
    return np.clip(np.searchsorted(edges, np.minimum(confidence, 1.0), side="right") - 1, 0, bins)


def expected_calibration_error(
    confidence: Any, correct: Any, bins: int = 15, binning: str = "width"
) -> float:
    """ECE (l1) of answers with a confidence.

    Args:
        confidence: (S,) probabilities.
        correct: (S,) whether each answer is right.
        bins: number of bins; see :func:`reliability`.
        binning: ``"width"`` or ``"mass"``; see :func:`reliability`.
    """
    return reliability(confidence, correct, bins, binning).ece


def check_binning(binning: str) -> None:
    """Refuse what is not a way to make bins."""
    if binning not in BINNINGS:
        raise ConfigError(f"binning must be 'width' or 'mass'. Got {binning!r}.")


def level_calibration(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    bins: int = 15,
    binning: str = "width",
    **forms: Unpack[ScoreForms],
) -> list[Reliability]:
    """The reliability diagram of every level 1 to the deepest. Confidence is the mass of the level's most probable node.

    Args:
        preds: scores.
        target: (B,) truths.
        hierarchy: a tree or forest.
        bins: number of bins; see :func:`reliability`.
        binning: ``"width"`` or ``"mass"``; see :func:`reliability`.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """
    return level_diagrams(as_metric_batch(preds, target, hierarchy, **forms), bins, binning)


def level_diagrams(batch: MetricBatch, bins: int, binning: str = "width") -> list[Reliability]:
    """:func:`level_calibration` of a batch."""
    confidence = batch.levels.probabilities.double().cpu().numpy()
    correct = batch.correct_at_levels
    return [reliability(confidence[:, k], correct[:, k], bins, binning) for k in range(confidence.shape[1])]


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    out = np.full(part.shape, np.nan)
    return np.divide(part, whole, out=out, where=whole > 0)
