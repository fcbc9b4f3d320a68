"""95 % intervals of results over seeds and test samples, and of the difference between two methods.

Both the seeds and the samples are drawn again, with replacement: a result varies because another seed gives another model,
and because another test set has other samples. Two methods are compared on the same draws, since they saw the same splits
and the same samples; what both find hard then cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hace.errors import DataError

REPLICATES = 1000
_LEVEL = 0.95
_BLOCK = 1 << 24  # entries of weights drawn at once


class Interval(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is one, as far as the interval tells."""
        return self.low > 0 or self.high < 0


def interval(
    numerator: np.ndarray,
    denominator: np.ndarray | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Interval:
    """The mean of a per-sample figure over seeds and samples.

    Args:
        numerator: (K, S) of K seeds and S samples: 1 where right, say.
        denominator: (K, S) where the figure is a ratio of sums, such as severity: distance over mistakes. For each seed
            sums are divided once, and the seeds' ratios are averaged.
        replicates: Draws.
        seed: Of the draws.

    Example:
        >>> interval(np.array([[1.0, 0.0, 1.0, 1.0]] * 3))
        Interval(value=0.75, low=0.25, high=1.0)
    """
    value, draws = _draws(numerator, denominator, replicates, seed)
    return Interval(value, *_ends(draws))


def paired_interval(
    first: np.ndarray,
    second: np.ndarray,
    denominators: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Interval:
    """first - second, drawn together.

    Args:
        first, second: (K, S) of the same seeds and samples, row by row and column by column.
        denominators: Of both, where the figure is a ratio of sums.
        replicates, seed: As of :func:`interval`.

    Raises:
        DataError: The shapes differ.
    """
    if np.shape(first) != np.shape(second):
        raise DataError(
            f"first and second must have the same seeds and samples. Got {np.shape(first)} and {np.shape(second)}."
        )
    below = denominators or (None, None)
    a, drawn_a = _draws(first, below[0], replicates, seed)
    b, drawn_b = _draws(second, below[1], replicates, seed)
    return Interval(a - b, *_ends(drawn_a - drawn_b))


# What a run's predictions give for each headline metric: the numerator, and the denominator of a ratio.
def headline_columns(
    predictions: Mapping[str, np.ndarray],
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """The (S,) columns of the headline metrics of a run: top-1, top-5, severity and mean distance (HD@1)."""
    wrong = predictions["answer"] != predictions["truth"]
    distance = predictions["distance"].astype(np.float64)
    return {
        "top-1": ((~wrong).astype(np.float64), None),
        "top-5": (predictions["top5"].astype(np.float64), None),
        "severity": (distance * wrong, wrong.astype(np.float64)),
        "HD@1": (distance, None),
    }


def stacked(runs: Sequence[Mapping[str, np.ndarray]], metric: str) -> tuple[np.ndarray, np.ndarray | None]:
    """(K, S) numerator and denominator of a headline metric, from the predictions of K runs of one method."""
    columns = [headline_columns(run)[metric] for run in runs]
    below = [d for _, d in columns if d is not None]
    return np.stack([n for n, _ in columns]), np.stack(below) if below else None


def _draws(
    numerator: np.ndarray, denominator: np.ndarray | None, replicates: int, seed: int
) -> tuple[float, np.ndarray]:
    """The value, and (R,) what it would be under each draw."""
    above = np.asarray(numerator, dtype=np.float64)
    if above.ndim != 2 or not above.size:
        raise DataError(f"A result must have seeds and samples (K, S), and some of each. Got {above.shape}.")
    below = np.ones_like(above) if denominator is None else np.asarray(denominator, dtype=np.float64)
    seeds, samples = above.shape
    drawn_seeds = _seed_weights(seeds, replicates, seed)  # (R, K)
    out = np.empty(replicates)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(_mean((above.sum(1) / below.sum(1))[None], np.full((1, seeds), 1 / seeds))[0])
        for start, w in _sample_weights(samples, replicates, seed):
            ratios = (w @ above.T.astype(np.float32)) / (w @ below.T.astype(np.float32))  # (r, K)
            out[start : start + len(w)] = _mean(ratios, drawn_seeds[start : start + len(w)])
    return value, out


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(R,) weighted means of (R, K) over the seeds that have a value: one without mistakes has no severity."""
    there = ~np.isnan(values)
    total = (weights * there).sum(1)
    return np.where(total > 0, (np.where(there, values, 0) * weights).sum(1) / total, np.nan)


def _seed_weights(seeds: int, replicates: int, seed: int) -> np.ndarray:
    return (
        np.random.default_rng([seed, 1]).multinomial(seeds, np.full(seeds, 1 / seeds), size=replicates)
        / seeds
    )


def _sample_weights(samples: int, replicates: int, seed: int) -> list[tuple[int, np.ndarray]]:
    """Blocks of (start, (r, S)) counts of how often each sample was drawn; the same for every method."""
    step = max(1, _BLOCK // samples)
    return [
        (start, _block(samples, min(step, replicates - start), start, seed))
        for start in range(0, replicates, step)
    ]


@lru_cache(maxsize=4)  # every cell of a table draws the same
def _block(samples: int, rows: int, start: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 2, start])
    drawn = rng.integers(0, samples, size=(rows, samples))
    drawn += np.arange(rows)[:, None] * samples
    return np.bincount(drawn.ravel(), minlength=rows * samples).reshape(rows, samples).astype(np.float32)


def _ends(draws: np.ndarray) -> tuple[float, float]:
    if np.isnan(draws).all():
        return np.nan, np.nan
    low, high = np.nanquantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
