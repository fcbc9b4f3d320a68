"""Curves of confidence: risk against coverage, precision against specificity, and reliability by level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hace.checks import MOST_BINS, check_choice, check_count, is_number, require
from hace.decisions.ladders import LADDERS, Ladder
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack

THRESHOLDS = tuple(np.round(np.arange(0, 1.0001, 0.01), 2).tolist())  # 0, 0.01, ..., 1


@dataclass(frozen=True)
class RiskCoverage:
    """Mean loss of the most confident answers as coverage grows.

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
    confidence = np.asarray(confidence, dtype=np.float64)
    risk = np.asarray(risk, dtype=np.float64)
    if confidence.shape != risk.shape or confidence.ndim != 1:
        raise DataError(
            f"confidence and risk must be one-dimensional and equally long. Got {confidence.shape} and {risk.shape}."
        )
    if not len(confidence):
        return RiskCoverage(*(np.empty(0) for _ in range(3)))
    at, coverage, mean = risk_curves(confidence, risk, np.ones((1, len(confidence))))
    return RiskCoverage(at, coverage[0], mean[0])


def risk_curves(
    confidence: np.ndarray, risk: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(P,) confidences, falling, and (R, P) coverage and mean risk under R weightings (R, S) of some samples."""
    order = np.argsort(-confidence, kind="stable")
    last = np.flatnonzero(np.append(np.diff(confidence[order]) != 0, True))
    covered = np.cumsum(weights[:, order], axis=1)[:, last]
    lost = np.cumsum(weights[:, order] * risk[order], axis=1)[:, last]
    mean = np.divide(lost, covered, out=np.zeros_like(lost), where=covered > 0)
    return confidence[order][last], covered / covered[:, -1:], mean


@dataclass(frozen=True)
class OperatingCurve:
    """What a threshold costs and gives: the answers of :func:`hace.decisions.threshold_rules.deepest_above` as it moves.

    An answer is true if it is the truth or an ancestor of it. An answer at the root, or none, says nothing: it counts as
    true in ``precision`` and does not count in ``answer_precision``.

    Attributes:
        thresholds: (T,).
        specificity: (T,) mean information of the answers over log2 n: 1 when all are leaves, 0 when all are the root.
        precision: (T,) share of samples without a false answer.
        answered: (T,) share of samples with an answer below the root.
        answer_precision: (T,) share of true answers among those below the root; nan where there are none.
    """

    thresholds: np.ndarray
    specificity: np.ndarray
    precision: np.ndarray
    answered: np.ndarray
    answer_precision: np.ndarray

    @property
    def area(self) -> float:
        """Area under precision over specificity: trapezoids over the sorted points and (0, 1)."""
        return float(operating_area(self.specificity[None], self.precision[None])[0])

    def threshold_for(self, precision: float, of: str = "answers") -> float:
        """The threshold of the most specific point that reaches a precision; nan if none does.

        Choose it on validation data, not on the test set.

        Args:
            precision: the share to reach, from 0 to 1.
            of: ``"answers"``: of the answers below the root, at least this share are true. ``"samples"``: of all samples,
                at most 1 - precision get a false answer; a sample without an answer counts as true.

        Example:
            >>> h = Hierarchy.flat(["cat", "dog"])
            >>> scores = np.array([[0.0, 0.1], [0.0, 0.1], [0.0, 0.1], [0.0, 2.0]])  # all cats: three unsure, one wrong
            >>> curve = operating_curve(scores, [0, 0, 0, 0], h, thresholds=[0.0, 0.8])
            >>> curve.threshold_for(0.75, of="samples"), curve.threshold_for(0.75, of="answers")
            (0.8, nan)
        """
        check_choice("of", of, ("answers", "samples"))
        fits = is_number(precision) and 0 <= precision <= 1
        require("precision", precision, "a number from 0 to 1", fits)
        share = self.answer_precision if of == "answers" else self.precision
        reached = np.flatnonzero(share >= precision)
        if not len(reached):
            return np.nan
        return float(self.thresholds[reached[np.argmax(self.specificity[reached])]])


def operating_area(specificity: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """(R,) areas of R curves (R, T); points of equal specificity count from the highest precision down."""
    x = np.concatenate([np.zeros((len(specificity), 1)), specificity], axis=1)
    y = np.concatenate([np.ones((len(precision), 1)), precision], axis=1)
    order = np.lexsort((-y, x), axis=1)
    x = np.take_along_axis(x, order, axis=1)
    y = np.take_along_axis(y, order, axis=1)
    return (np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2).sum(axis=1)


def _ladder(batch: MetricBatch, rule: str, constrained: bool = True) -> Ladder:
    """The answers of a rule as the threshold falls."""
    best = {"best": torch.from_numpy(batch.answers)} if rule == "climb" else {}
    return LADDERS[rule, constrained](batch.log_q, batch.hierarchy, **best)


def _worth(ladder: Ladder, batch: MetricBatch) -> list[np.ndarray]:
    """(B, L) of each rung its information over log2 n, whether it is true, and whether it is below the root."""
    return [batch.relations.specificity[ladder.nodes], ladder.true(batch.truth), ladder.says]


def checked_thresholds(thresholds: Any) -> tuple[float, ...]:
    """Thresholds of a curve: probabilities."""
    given: list[Any] = [None]
    if (
        isinstance(thresholds, Iterable)
        and not isinstance(thresholds, str)
        and getattr(thresholds, "ndim", 1)
    ):
        given = list(thresholds)
    fits = all(is_number(t) and 0 <= t <= 1 for t in given)
    require("thresholds", thresholds, "probabilities, from 0 to 1", fits)
    return tuple(map(float, given))


def operating_columns(
    batch: MetricBatch, thresholds: Sequence[float] = THRESHOLDS, constrained: bool = True
) -> list[np.ndarray]:
    """(B, T) the specificity of the threshold rule's answers, whether they are true, and below the root."""
    limits = np.array(checked_thresholds(thresholds))
    ladder = _ladder(batch, "threshold", constrained)
    last = (ladder.reached[:, :, None] >= limits).sum(axis=1) - 1  # (B, T)
    return [np.take_along_axis(values, last, axis=1) for values in _worth(ladder, batch)]


def _exact_sums(batch: MetricBatch, constrained: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Every threshold at which an answer changes, growing, and the sums of the columns over the samples at each."""
    ladder = _ladder(batch, "threshold", constrained)
    limits, place = np.unique(np.minimum(ladder.reached[:, 1:], 1.0), return_inverse=True)
    if not len(limits):  # the root is all there is
        limits = np.zeros(1)
    sums = []
    for values in _worth(ladder, batch):
        change = np.diff(values.astype(np.float64), axis=1)
        gained = np.bincount(place.ravel(), weights=change.ravel(), minlength=len(limits))
        sums.append(values[:, 0].sum() + gained[::-1].cumsum()[::-1])
    return limits, sums


def operating_curve(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    thresholds: Sequence[float] | None = None,
    constrained: bool = True,
    **forms: Unpack[ScoreForms],
) -> OperatingCurve:
    """Precision and specificity of the threshold rule as the threshold moves.

    Args:
        thresholds: None: every score at which an answer changes, so curve and area are exact. Or probabilities.
        constrained: True to walk down from the root; False to take the most informative of all nodes that pass.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> operating_curve(np.array([[2.0, 1.9, 0.0]]), [1], h, thresholds=[0.0, 0.7]).precision
        array([0., 1.])
    """
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    if thresholds is None:
        limits, sums = _exact_sums(batch, constrained)
        return curve_of(limits.tolist(), sums, len(batch))
    sums = [column.sum(axis=0) for column in operating_columns(batch, thresholds, constrained)]
    return curve_of(thresholds, sums, len(batch))


def curve_of(thresholds: Sequence[float], sums: Sequence[np.ndarray], samples: int) -> OperatingCurve:
    """The curve from the sums of :func:`operating_columns` over samples."""
    specific, true, answered = sums
    count = samples or np.nan
    among = np.full(answered.shape, np.nan)
    np.divide(true - (samples - answered), answered, out=among, where=answered > 0)
    return OperatingCurve(
        np.asarray(thresholds, dtype=np.float64), specific / count, true / count, answered / count, among
    )


# ---------------------------------------------------------------------- answers that climb from the best leaf
#
# The hierarchical risk-coverage curve of Goren et al. (2024), exact. At threshold t a sample is answered with the deepest node
# of its ladder whose probability is at least t. Coverage is the mean specificity of the answers, I(answer) / log2 n; risk is
# the share of samples whose answer is neither the truth nor above it. Both change only at the probabilities on the ladders, so
# the curve has a point for each of them.


@dataclass(frozen=True)
class HierarchicalRiskCoverage:
    """Risk against coverage as the threshold falls.

    Attributes:
        threshold: (P,) falling from inf; a point is the answers at this threshold, down to the next one.
        coverage: (P,) mean specificity of the answers, from 0 (all at the root) to 1 (all leaves).
        risk: (P,) share of samples with a false answer.
    """

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray

    @property
    def area(self) -> float:
        """hAURC: the area under risk over coverage, by trapezoids; nan without samples."""
        if not len(self.coverage):
            return np.nan
        return float((np.diff(self.coverage) * (self.risk[1:] + self.risk[:-1]) / 2).sum())


# (B, L) of each sample's rungs from the root down: greatest threshold, information over log2 n, whether it is true
Ladders = tuple[np.ndarray, np.ndarray, np.ndarray]


def ladder_columns(batch: MetricBatch, rule: str = "climb") -> Ladders:
    """The ladders of a batch."""
    check_choice("rule", rule, ("climb", "threshold"))
    ladder = _ladder(batch, rule)
    specific, true, _ = _worth(ladder, batch)
    return ladder.reached, specific, true


def ladder_curves(ladders: Ladders, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(P,) thresholds, and (R, P) coverage and risk under R weightings (R, S) of the samples."""
    reached, specific, true = ladders
    total = weights.sum(axis=1, keepdims=True)
    # From the root down: passing below the probability of rung j moves a sample's answer from rung j - 1 to j.
    at = np.minimum(reached[:, 1:], 1.0).ravel()
    order = np.argsort(-at, kind="stable")
    ends = np.append(np.diff(at[order]) != 0, True) if len(at) else np.empty(0, dtype=bool)
    owner = np.repeat(np.arange(len(reached)), reached.shape[1] - 1)[order]
    curves = []
    for column in (specific, 1.0 - true):
        moves = np.diff(column, axis=1).ravel()[order]
        sums = np.cumsum(weights[:, owner] * moves, axis=1)[:, ends]
        start = weights @ column[:, 0]
        with np.errstate(invalid="ignore"):
            curves.append(np.concatenate([start[:, None], start[:, None] + sums], axis=1) / total)
    return np.append(np.inf, at[order][ends]), curves[0], curves[1]


def hierarchical_risk_coverage(
    preds: Any, target: Any, hierarchy: Hierarchy, *, rule: str = "climb", **forms: Unpack[ScoreForms]
) -> HierarchicalRiskCoverage:
    """The hierarchical risk-coverage curve, with a point at every score; its ``area`` is hAURC.

    Args:
        hierarchy: a tree or forest; for ``rule="threshold"`` also a DAG.
        rule: how answers move: ``"climb"``, from the best leaf up, or ``"threshold"``, from the root down.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> curve = hierarchical_risk_coverage(np.array([[0.5, 0.3, 0.2]]), [1], h, kind="probs")
        >>> curve.coverage.round(3), curve.risk  # the root, dog, husky
        (array([0.  , 0.369, 1.   ]), array([0., 0., 1.]))
    """
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    return ladder_curve(ladder_columns(batch, rule))


def ladder_curve(ladders: Ladders) -> HierarchicalRiskCoverage:
    """The curve of ladders."""
    if not ladders[0].size:  # no samples, or a DAG
        return HierarchicalRiskCoverage(*(np.empty(0) for _ in range(3)))
    threshold, coverage, risk = ladder_curves(ladders, np.ones((1, len(ladders[0]))))
    return HierarchicalRiskCoverage(threshold, coverage[0], risk[0])


@dataclass(frozen=True)
class Reliability:
    """Sums by bin of confidence: the reliability diagram, and the expected calibration error (ECE) that follows from it.

    Bins of equal width: [i/M, (i+1)/M), and one more for a confidence of exactly 1, as in torchmetrics. Bins of
    equal mass: M parts of the sorted samples, equal confidences together.

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
        return self._means(self.correct_sums)

    @property
    def confidence(self) -> np.ndarray:
        """(M + 1,) mean confidence in each bin; nan for an empty one."""
        return self._means(self.confidence_sums)

    def _means(self, sums: np.ndarray) -> np.ndarray:
        return np.divide(sums, self.counts, out=np.full(sums.shape, np.nan), where=self.counts > 0)


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
    confidence = np.asarray(confidence, dtype=np.float64)
    correct = np.asarray(correct, dtype=np.float64)
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise DataError(
            f"confidence and correct must be one-dimensional and equally long. Got {confidence.shape} and {correct.shape}."
        )
    at = bin_of(confidence, bins, binning)
    most = bins + 1 if binning == "width" else bins  # one more bin of width: a confidence of exactly 1
    return Reliability(
        np.bincount(at, minlength=most).astype(np.float64),
        np.bincount(at, weights=confidence, minlength=most),
        np.bincount(at, weights=correct, minlength=most),
    )


def bin_of(confidence: np.ndarray, bins: int, binning: str = "width") -> np.ndarray:
    """The bin of each confidence, from 0. Rounding may lift a sum of probabilities slightly above 1."""
    check_choice("binning", binning, ("width", "mass"))
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
        bins: number of bins; see :func:`reliability`.
        binning: ``"width"`` or ``"mass"``; see :func:`reliability`.
    """
    return level_diagrams(as_metric_batch(preds, target, hierarchy, **forms), bins, binning)


def level_diagrams(batch: MetricBatch, bins: int, binning: str = "width") -> list[Reliability]:
    """:func:`level_calibration` of a batch."""
    confidence = batch.levels.probabilities.double().cpu().numpy()
    correct = batch.correct_at_levels
    return [reliability(confidence[:, k], correct[:, k], bins, binning) for k in range(confidence.shape[1])]
