"""Curves with intervals: how far a curve may move with another draw of the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hace.checks import MOST_REPLICATES, MOST_SEED, check_count
from hace.errors import ConfigError, DataError
from hace.metrics.bootstrap import LEVEL
from hace.metrics.comparison import draws
from hace.metrics.evaluation import Evaluation
from hace.metrics.hierarchical_risk import ladder_curves
from hace.metrics.sample_statistics import SampleStatistics

_POINTS = 101
Curves = Callable[[SampleStatistics, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class CurveBand:
    """A curve and its pointwise 95 % interval.

    Attributes:
        x: (P,) coverage or specificity, from 0 to 1.
        y: (P,) the curve there: risk or precision.
        low: (P,) 2.5 % quantile over draws of the samples.
        high: (P,) 97.5 % quantile.
    """

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve_band(
    evaluation: Evaluation, curve: str = "operating", *, replicates: int = 1000, seed: int = 0
) -> CurveBand:
    """A curve of an evaluation with its interval, from a bootstrap over samples.

    Args:
        evaluation: the model's evaluation.
        curve: ``"operating"``: precision over specificity. ``"risk"``: share of mistakes over coverage of the best leaf.
            ``"hierarchical"``: share of false answers over coverage as answers climb; trees and forests only.
        replicates: number of draws, at most 1,000,000.
        seed: seed of the draws, a whole number from 0.

    Raises:
        DataError: there are no samples.

    Example:
        >>> from hace import Hierarchy, evaluate
        >>> h = Hierarchy.flat(["cat", "dog"])
        >>> found = evaluate(np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), [0, 0, 0], h)
        >>> band = curve_band(found, "risk", replicates=50)
        >>> float(band.y[-1].round(3)), bool((band.low <= band.high).all())
        (0.333, True)
    """
    check_count("replicates", replicates, MOST_REPLICATES)
    check_count("seed", seed, MOST_SEED, least=0)
    samples = evaluation.samples
    if curve not in CURVES:
        raise ConfigError(f"curve must be one of {', '.join(CURVES)}. Got {curve!r}.")
    if not len(samples):
        raise DataError("evaluation must hold at least one sample. Got none.")
    if curve == "hierarchical" and not samples.ladders.reached.shape[1]:
        raise DataError("The hierarchical curve needs a tree or forest: on a DAG a leaf has several ways up.")
    grid = np.linspace(0, 1, _POINTS)
    value = _on_grid(grid, *CURVES[curve](samples, np.ones((1, len(samples)))))
    drawn = np.concatenate(
        [_on_grid(grid, *CURVES[curve](samples, w)) for w in draws(len(samples), replicates, seed)]
    )
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return CurveBand(grid, value[0], low, high)


def _on_grid(grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(R, P) curves (R, T), read at the points of a grid."""
    order = np.lexsort((-y, x), axis=1)
    x, y = np.take_along_axis(x, order, axis=1), np.take_along_axis(y, order, axis=1)
    return np.stack([np.interp(grid, each, values) for each, values in zip(x, y, strict=True)])


def _operating(s: SampleStatistics, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total, edge = w.sum(axis=1, keepdims=True), np.ones((len(w), 1))
    x, y = (w @ column / total for column in (s.specific, s.true))
    return np.concatenate([0 * edge, x], axis=1), np.concatenate([edge, y], axis=1)


def _risk(s: SampleStatistics, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-s.confidence, kind="stable")
    last = np.flatnonzero(np.append(np.diff(s.confidence[order]) != 0, True))
    covered = np.cumsum(w[:, order], axis=1)[:, last]
    lost = np.cumsum(w[:, order] * (s.answers != s.truth)[order], axis=1)[:, last]
    risk = np.divide(lost, covered, out=np.zeros_like(lost), where=covered > 0)
    return covered / covered[:, -1:], risk


def _hierarchical(s: SampleStatistics, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return ladder_curves(s.ladders, w)[1:]


CURVES: dict[str, Curves] = {"operating": _operating, "risk": _risk, "hierarchical": _hierarchical}
