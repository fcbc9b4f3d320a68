"""95 % intervals of results over seeds and test samples, and of the difference between two methods.

Seeds and samples are both resampled with replacement: a result varies because another seed gives another model, and because
another test set has other samples. Two methods are compared on the same draws, as they saw the same splits and the same
samples; what both find hard cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hace.checks import MOST_REPLICATES, MOST_SEED, check_count
from hace.errors import DataError
from hace.metrics.bootstrap import draw_counts, interval_ends

REPLICATES = 1000
_BLOCK = 1 << 24  # entries of weights drawn at once


class Interval(NamedTuple):
    """A value, its 95 % interval and its standard error, both from the bootstrap."""

    value: float
    low: float
    high: float
    error: float = float("nan")

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


class Resampled(NamedTuple):
    """A value, and (R,) its value under each draw; two of the same seeds and samples can be compared."""

    value: float
    draws: np.ndarray

    def interval(self) -> Interval:
        """The value with its interval."""
        there = self.draws[~np.isnan(self.draws)]
        error = float(there.std(ddof=1)) if len(there) > 1 else float("nan")
        return Interval(self.value, *interval_ends(self.draws), error)

    def minus(self, other: Resampled) -> Interval:
        """The difference, drawn together."""
        return Resampled(self.value - other.value, self.draws - other.draws).interval()


def interval(
    numerator: np.ndarray,
    denominator: np.ndarray | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Interval:
    """The mean of a per-sample figure over seeds and samples.

    Args:
        numerator: (K, S) of K seeds and S samples: 1 for a right answer, say.
        denominator: (K, S) if the figure is a ratio of sums, such as severity: distance over mistakes. Each seed's sums
            are divided once, and the ratios are averaged.
        replicates: number of draws.
        seed: seed of the draws.

    Example:
        >>> found = interval(np.array([[1.0, 0.0, 1.0, 1.0]] * 3))
        >>> found.value, found.low, found.high
        (0.75, 0.25, 1.0)
    """
    return resampled(numerator, denominator, replicates=replicates, seed=seed).interval()


def resampled(
    numerator: np.ndarray,
    denominator: np.ndarray | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Resampled:
    """The value of a figure and of its draws; arguments as of :func:`interval`."""
    above = drawn_sums(numerator, replicates=replicates, seed=seed)
    below = None if denominator is None else drawn_sums(denominator, replicates=replicates, seed=seed)
    return ratio(above, below, seed=seed)


class DrawnSums(NamedTuple):
    """Sums of a per-sample figure, for each of K seeds: (K,) over all samples, (R, K) under each draw; and how many samples."""

    whole: np.ndarray
    drawn: np.ndarray
    samples: int

    def complement(self) -> DrawnSums:
        """The sums of 1 minus the figure; a draw has as many samples as the set."""
        return DrawnSums(self.samples - self.whole, self.samples - self.drawn, self.samples)


def drawn_sums(figure: np.ndarray, *, replicates: int = REPLICATES, seed: int = 0) -> DrawnSums:
    """The sums behind a figure, most of the work of an interval; figures that share a sum can share it.

    Args:
        figure: (K, S) of K seeds and S samples.
        replicates: number of draws.
        seed: seed of the draws.
    """
    check_count("replicates", replicates, MOST_REPLICATES)
    check_count("seed", seed, MOST_SEED, least=0)
    figure = np.asarray(figure)
    if figure.ndim != 2 or not figure.size:
        raise DataError(f"A result must have shape (seeds, samples), with some of each. Got {figure.shape}.")
    seeds, samples = figure.shape
    small = figure.T.astype(np.float32)
    drawn = np.empty((replicates, seeds), dtype=np.float32)
    for start, w in _sample_weights(samples, replicates, seed):
        np.matmul(w, small, out=drawn[start : start + len(w)])
    return DrawnSums(figure.sum(1, dtype=np.float64), drawn, samples)


def ratio(above: DrawnSums, below: DrawnSums | None = None, *, seed: int = 0) -> Resampled:
    """A figure from the sums of its numerator and denominator, averaged over seeds; without one, a mean over samples."""
    replicates, seeds = above.drawn.shape
    with np.errstate(invalid="ignore", divide="ignore"):
        # A draw has as many samples as the set.
        whole, drawn = (above.samples, above.samples) if below is None else below[:2]
        value = _mean((above.whole / whole)[None], np.full((1, seeds), 1 / seeds))[0]
        return Resampled(float(value), _mean(above.drawn / drawn, _seed_weights(seeds, replicates, seed)))


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
        first: (K, S) of K seeds and S samples.
        second: (K, S) of the same seeds and samples.
        denominators: those of first and second, if the figure is a ratio of sums.
        replicates: number of draws.
        seed: seed of the draws.

    Raises:
        DataError: the shapes differ.
    """
    if np.shape(first) != np.shape(second):
        raise DataError(
            f"first and second must have the same seeds and samples. Got {np.shape(first)} and {np.shape(second)}."
        )
    below = denominators or (None, None)
    drawn = [
        resampled(numerator, denominator, replicates=replicates, seed=seed)
        for numerator, denominator in zip((first, second), below, strict=True)
    ]
    return drawn[0].minus(drawn[1])


def headline_columns(
    predictions: Mapping[str, np.ndarray],
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """(S,) numerator and denominator (None for a mean) of top-1, top-5, severity and mean distance (HD@1) of a run."""
    wrong = predictions["answer"] != predictions["truth"]
    distance = predictions["distance"]
    return {
        "top-1": (~wrong, None),
        "top-5": (predictions["top5"], None),
        "severity": (distance * wrong, wrong),
        "HD@1": (distance, None),
    }


def stacked(runs: Sequence[Mapping[str, np.ndarray]], metric: str) -> tuple[np.ndarray, np.ndarray | None]:
    """(K, S) numerator and denominator of a headline metric, from the predictions of K runs of one method."""
    columns = [headline_columns(run)[metric] for run in runs]
    below = [d for _, d in columns if d is not None]
    return np.stack([n for n, _ in columns]), np.stack(below) if below else None


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(R,) weighted means of (R, K) over the seeds with a value; a seed without mistakes has no severity."""
    there = ~np.isnan(values)
    total = (weights * there).sum(1)
    return np.where(total > 0, (np.where(there, values, 0) * weights).sum(1) / total, np.nan)


@lru_cache(maxsize=4)
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
    return draw_counts(np.random.default_rng([seed, 2, start]), samples, rows).astype(np.float32)
