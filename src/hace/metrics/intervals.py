"""95 % intervals of results over seeds and test samples, and of the difference between two methods.

Seeds and samples are both resampled with replacement: a result varies because another seed gives another model, and because
another test set has other samples. Two methods are compared on the same draws, as they saw the same splits and the same
samples; what both find hard cancels.

A 95% interval excludes 0 by chance in one of twenty comparisons without a difference. Holm's correction holds that chance to
5% for all comparisons of a family together. The smallest detectable effect says what "no difference was found" is worth: a
true effect of that size is found in 80% of repetitions, a much smaller one rarely.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np

from hace.checks import MOST_REPLICATES, MOST_SEED, check_count
from hace.errors import ConfigError, DataError

LEVEL = 0.95
POWER = 0.8
REPLICATES = 1000
_BLOCK = 1 << 24  # entries of weights drawn at once
_NORMAL = NormalDist()
Key = TypeVar("Key", bound=Hashable)


def draw_counts(rng: np.random.Generator, samples: int, rows: int) -> np.ndarray:
    """(rows, samples) how often each sample is drawn when ``samples`` of them are drawn with replacement, row by row.

    Example:
        >>> draw_counts(np.random.default_rng(0), 4, 2).sum(axis=1)
        array([4, 4])
    """
    drawn = rng.integers(samples, size=(rows, samples)) if samples else np.zeros((rows, 0), dtype=np.int64)
    found = np.empty((rows, samples), dtype=np.int64)
    for row, indices in enumerate(drawn):  # one row of counts stays in the cache
        found[row] = np.bincount(indices, minlength=samples)
    return found


def interval_ends(draws: np.ndarray) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of the draws that have a value; nan if none has.

    Example:
        >>> interval_ends(np.array([np.nan, 1.0, 1.0]))
        (1.0, 1.0)
    """
    there = draws[~np.isnan(draws)]
    if not len(there):
        return np.nan, np.nan
    low, high = np.quantile(there, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


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


# ---------------------------------------------------------------------- several comparisons at once


class Compared(NamedTuple):
    """A comparison that is one of several.

    Attributes:
        interval: The difference with its own 95 % interval, which knows nothing of the others.
        p: Two-sided p-value by itself.
        adjusted: Holm's p-value among all of them.
        of: How many comparisons that counts.
        detectable: The smallest true difference found with 80 % power by the 95 % interval alone.
        detectable_of_all: The same when all comparisons share the 5 %.
    """

    interval: Interval
    p: float
    adjusted: float
    of: int
    detectable: float
    detectable_of_all: float

    @property
    def holds(self) -> bool:
        """Whether the difference remains after the correction."""
        return self.adjusted < 1 - LEVEL


def compared_together(
    intervals: Mapping[Key, Interval],
    power: float = POWER,
    freedom: Mapping[Key, float] | None = None,
) -> dict[Key, Compared]:
    """Differences that belong to one question, each with its p-value before and after Holm's correction.

    Differences without a standard error are kept, with nan, and do not count.

    Args:
        intervals: differences by name, from :func:`hace.metrics.paired_interval`.
        power: the chance with which an effect of the detectable size is found, between 0.5 and 1.
        freedom: degrees of freedom of standard errors that come from few numbers, such as 4 for the differences of five
            seeds; Student's distribution then takes the place of the normal one.

    Example:
        >>> found = compared_together({"a": Interval(3.0, 1.0, 5.0, 1.0), "b": Interval(0.5, -1.5, 2.5, 1.0)})
        >>> found["a"].of, round(found["a"].p, 4), round(found["a"].adjusted, 4), found["b"].holds
        (2, 0.0027, 0.0054, False)
    """
    degrees = {key: math.inf if freedom is None else freedom.get(key, math.inf) for key in intervals}
    p = {key: p_value(given, degrees[key]) for key, given in intervals.items()}
    known = [key for key in p if not np.isnan(p[key])]
    adjusted = dict(zip(known, holm([p[key] for key in known]), strict=True))
    return {
        key: Compared(
            given,
            p[key],
            adjusted.get(key, np.nan),
            len(known),
            detectable_effect(given.error, power=power, freedom=degrees[key]),
            detectable_effect(given.error, comparisons=max(len(known), 1), power=power, freedom=degrees[key]),
        )
        for key, given in intervals.items()
    }


def p_value(difference: Interval, freedom: float = math.inf) -> float:
    """Two-sided p-value of a difference over its standard error; nan without one.

    Args:
        difference: with the standard error of the bootstrap, or of a mean of few numbers.
        freedom: degrees of freedom of that error: one less than the numbers; infinite for the bootstrap.

    Example:
        >>> round(p_value(Interval(1.96, 0.0, 3.92, 1.0)), 3), round(p_value(Interval(1.96, 0.0, 3.92, 1.0), 4), 3)
        (0.05, 0.122)
    """
    if np.isnan(difference.error) or np.isnan(difference.value):
        return float("nan")
    if difference.error == 0:
        return 1.0 if difference.value == 0 else 0.0
    distance = abs(difference.value / difference.error)
    if freedom == math.inf:
        return math.erfc(distance / math.sqrt(2))  # unlike 1 - cdf, it is not 0 beyond eight standard errors
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -distance))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's p-values, in the order given: the i-th smallest of m times m - i + 1, and never less than a smaller one's.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if ((p < 0) | (p > 1) | np.isnan(p)).any():
        raise ConfigError(f"p_values must be between 0 and 1. Got {list(p_values)}.")
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return found.tolist()


def detectable_effect(
    error: float, *, comparisons: int = 1, power: float = POWER, freedom: float = math.inf
) -> float:
    """The smallest true difference that is found with the given power, two-sided, when all comparisons share the 5 %.

    Args:
        error: standard error of the difference.
        comparisons: how many share the 5 %: Holm's first step, the strictest.
        power: the chance of finding it, between 0.5 and 1.
        freedom: degrees of freedom of the error, as of :func:`p_value`.

    Example:
        >>> round(detectable_effect(1.0), 2), round(detectable_effect(1.0, comparisons=10), 2)
        (2.8, 3.65)
        >>> round(detectable_effect(1.0, freedom=4), 2)
        3.76
    """
    if not 0.5 <= power < 1:
        raise ConfigError(f"power must be at least 0.5 and less than 1. Got {power}.")
    share = 1 - (1 - LEVEL) / (2 * comparisons)
    if freedom == math.inf:
        return float(error * (_NORMAL.inv_cdf(share) + _NORMAL.inv_cdf(power)))
    if math.isnan(error) or freedom < 1:
        return float("nan")
    from scipy.special import nctdtrinc, stdtrit

    # The noncentral t, since the error is estimated too: the shift at which it exceeds the bar with that chance.
    return float(error * nctdtrinc(freedom, 1 - power, stdtrit(freedom, share)))
