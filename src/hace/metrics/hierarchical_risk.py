"""Risk against coverage of answers that climb: the hierarchical risk-coverage curve of Goren et al. (2024), exact.

At threshold t a sample is answered with the deepest node of its ladder whose probability is at least t. Coverage is the mean
specificity of the answers, I(answer) / log2 n; risk is the share of samples whose answer is neither the truth nor above it.
Both change only at the probabilities on the ladders, so the curve has a point for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hace.decisions.ladders import path_to_best_leaf, walk_down
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.metrics.curves import rungs_of
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack


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


class LadderColumns(NamedTuple):
    """(B, L) of the rungs of each sample's ladder, from the root down.

    Attributes:
        reached: the greatest threshold at which the answer is this rung or below it.
        specific: its information over log2 n.
        false: whether it is neither the truth nor above it.
    """

    reached: np.ndarray
    specific: np.ndarray
    false: np.ndarray


def ladder_columns(batch: MetricBatch, rule: str = "climb") -> LadderColumns:
    """The ladders of a batch."""
    if rule not in ("climb", "threshold"):
        raise ConfigError(f"rule must be 'climb' or 'threshold'. Got {rule!r}.")
    constrained = rule == "threshold"
    ladder = walk_down if constrained else partial(path_to_best_leaf, best=torch.from_numpy(batch.answers))
    reached, columns = rungs_of(batch, ladder, constrained)
    return LadderColumns(reached.copy(), columns.specific, columns.true == 0)


def ladder_curves(ladders: LadderColumns, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(P,) thresholds, and (R, P) coverage and risk under R weightings (R, S) of the samples."""
    reached, specific, false = ladders
    total = weights.sum(axis=1, keepdims=True)
    # From the root down: passing below the probability of rung j moves a sample's answer from rung j - 1 to j.
    at = reached[:, 1:].ravel()
    order = np.argsort(-at, kind="stable")
    ends = np.append(np.diff(at[order]) != 0, True) if len(at) else np.empty(0, dtype=bool)
    owner = np.repeat(np.arange(len(reached)), reached.shape[1] - 1)[order]
    curves = []
    for column in (specific, false.astype(np.float64)):
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
        preds: scores.
        target: (B,) truths.
        hierarchy: a tree or forest; for ``rule="threshold"`` also a DAG.
        rule: how answers move: ``"climb"``, from the best leaf up, or ``"threshold"``, from the root down.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> curve = hierarchical_risk_coverage(np.array([[0.5, 0.3, 0.2]]), [1], h, kind="probs")
        >>> curve.coverage.round(3), curve.risk  # the root, dog, husky
        (array([0.  , 0.369, 1.   ]), array([0., 0., 1.]))
    """
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    return ladder_curve(ladder_columns(batch, rule))


def ladder_curve(ladders: LadderColumns) -> HierarchicalRiskCoverage:
    """The curve of ladders."""
    if not len(ladders.reached):
        return HierarchicalRiskCoverage(*(np.empty(0) for _ in range(3)))
    threshold, coverage, risk = ladder_curves(ladders, np.ones((1, len(ladders.reached))))
    return HierarchicalRiskCoverage(threshold, coverage[0], risk[0])
