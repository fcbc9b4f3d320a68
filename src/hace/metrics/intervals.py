"""95% intervals of results over seeds and test samples, and of the difference between two methods.

Three engines, for three kinds of figures:

    interval, paired_interval     a mean over samples or a ratio of sums, over seeds and samples or groups of samples;
    and jackknife_interval        any other figure, from its values without each sample or group
    resampled_interval            a figure whose threshold is chosen on the samples: computed anew on resampled ones
    share_interval                a share of independent samples of which only the counts are known, and a difference of two

**Seeds and samples.** A result varies because another seed gives another model, and because another test set has other samples.
With D[k, i] the figure, or the difference of two methods, of seed k on sample i, the design is crossed:

    D[k, i] = mean + seed_k + sample_i + rest_ki
    a = var(row means) / K      b = var(column means) / M      e = var(rest) / (K M)
    variance of the mean = b + max(a - e, 0)

Both sources are estimated, so the quantiles are Student's, with Satterthwaite's degrees of freedom. K seeds are few: a variance
of seeds that comes out too small narrows the interval and raises its degrees of freedom at once. Therefore these are counted
as if the seeds' part were three times as large, and only three quarters of the rest's part is taken off it; both numbers were
chosen by simulation (benchmarks/interval_coverage.py, with its table): 3, 5 and 10 seeds cover 93 to 97%; heavy-tailed and
skewed parts on which they were not chosen, 92.5 to 96.3%.

**Groups.** Samples of one group are alike, so groups take the place of samples: the column of group g is its pseudo-value in
the jackknife, G theta - (G - 1) theta(without g), exact for ratios too. With weights w_g, the groups' shares of the samples (of
a ratio: of its denominator), the variance has fewer degrees of freedom than G - 1 where groups differ in size: f,
Satterthwaite's where all variance is between groups (Bell and McCaffrey 2002). That is too few where some of it is within
groups or tails are heavy. The geometric mean of f and G - 1 covers 93 to 97% with 10, 15 and 30 groups of equal and of
log-normal sizes, for means and ratios (benchmarks/group_intervals.py, with its table); G - 1 alone covers 90 to 95%.

Far out in the tails, where corrected p-values are, no degrees of freedom hold at every mixture. There p is at least what
follows when the seeds' variance is drawn from its fiducial distribution, a (K - 1) / chi^2: it never rejects too often.

A 95% interval excludes 0 by chance in one of twenty comparisons without a difference. Holm's correction holds that chance to
5% for all comparisons of a family together. The smallest detectable effect says what "no difference was found" is worth: a
true effect of that size is found in 80% of repetitions, a much smaller one rarely.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np

from hace.checks import require
from hace.errors import ConfigError, DataError

LEVEL = 0.95
SIGNIFICANT = 0.05
POWER = 0.8
# Of the degrees of freedom; chosen by simulation, see above.
_SEEDS_WEIGHT = 3.0
_REST_TAKEN_OFF = 0.75
_NORMAL = NormalDist()
Key = TypeVar("Key", bound=Hashable)
Rows = np.ndarray | Sequence[np.ndarray]  # (K, S), or K rows of S


class Spread(NamedTuple):
    """Where the variance of a mean over seeds and samples comes from."""

    seeds: float  # a, of the seeds and of the rest
    samples: float  # b, of the samples and of the rest
    rest: float  # e, of the rest alone
    num_seeds: int  # K
    sample_freedom: float  # degrees of freedom of b: M - 1 for samples, fewer for groups of unequal sizes

    @property
    def variance(self) -> float:
        """Of the mean."""
        return self.samples + max(self.seeds - self.rest, 0.0)

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom."""
        ours = _SEEDS_WEIGHT * max(self.seeds - _REST_TAKEN_OFF * self.rest, 0.0)
        theirs = max(self.samples - self.rest, 0.0)
        if ours == 0:
            return max(self.sample_freedom, 1.0)
        inverse = ours**2 / (self.num_seeds - 1)
        if theirs > 0:
            inverse += theirs**2 / self.sample_freedom
        return (ours + theirs) ** 2 / inverse

    def tail(self, value: float) -> float:
        """P(the mean is as far from 0 as ``value``), the seeds' variance drawn from its fiducial distribution."""
        from scipy.special import ndtr

        chi2, weight = _chi_squares(self.num_seeds - 1)
        seeds = np.maximum(self.seeds * (self.num_seeds - 1) / chi2 - self.rest, 0.0)
        with np.errstate(divide="ignore"):
            return float(2 * weight @ ndtr(-abs(value) / np.sqrt(self.samples + seeds)))


@lru_cache(maxsize=16)
def _chi_squares(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of chi^2 and their probabilities: trapezoids over its logarithm, where the density is smooth."""
    y = np.linspace(-36.0, math.log(freedom + 60 * math.sqrt(freedom) + 60), 1500)
    log_density = freedom / 2 * (y - math.log(2)) - np.exp(y) / 2 - math.lgamma(freedom / 2)
    return np.exp(y), np.exp(log_density) * (y[1] - y[0])


class Interval(NamedTuple):
    """A value and its 95% interval.

    Attributes:
        value: the value.
        low: lower end.
        high: upper end.
        error: standard error.
        freedom: degrees of freedom of the error.
        spread: where the error comes from, if it is over samples too.
    """

    value: float
    low: float
    high: float
    error: float = math.nan
    freedom: float = math.inf
    spread: Spread | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


# ---------------------------------------------------------------------- over seeds and samples


def interval(
    numerator: Rows, denominator: Rows | None = None, *, groups: np.ndarray | None = None
) -> Interval:
    """The mean of a per-sample figure over seeds and samples.

    With one seed, the interval is over samples alone; with one column, such as figures of which nothing is known by sample,
    over seeds alone.

    Args:
        numerator: (K, S) of K seeds and S samples: 1 for a right answer, say.
        denominator: (K, S) if the figure is a ratio of sums, such as severity: distance over mistakes. Each seed's sums
            are divided once, and the ratios are averaged.
        groups: (S,) which samples belong together, such as those of one site; the interval is then over seeds and groups.

    Example:
        >>> result = interval(np.array([[1.0, 0.0, 1.0, 1.0] * 25] * 3))
        >>> result.value, round(result.low, 3), round(result.high, 3), result.freedom
        (0.75, 0.664, 0.836, 99.0)
    """
    if groups is None:
        result = _crossed(_sample_columns(numerator, denominator))
        return _with_width(result, len(numerator[0])) if _are_answers(numerator, denominator) else result
    places = _places(groups)
    freedom = _group_freedom([_shares(numerator, denominator, places)])
    result = _crossed(_group_columns(numerator, denominator, places), freedom)
    return _with_width(result, int(places.max()) + 1) if _are_answers(numerator, denominator) else result


def paired_interval(
    first: Rows,
    second: Rows,
    denominators: tuple[Rows, Rows] | None = None,
    *,
    groups: np.ndarray | None = None,
) -> Interval:
    """first - second, on the same seeds and samples; what both find hard cancels.

    Args:
        first: (K, S) of K seeds and S samples.
        second: (K, S) of the same seeds and samples.
        denominators: those of first and second, if the figure is a ratio of sums.
        groups: (S,) which samples belong together; see :func:`interval`.

    Raises:
        DataError: the shapes differ.
    """
    if list(map(np.shape, first)) != list(map(np.shape, second)):
        shapes = " and ".join(f"({len(rows)}, {len(rows[0])})" for rows in (first, second))
        raise DataError(f"first and second must have the same seeds and samples. Got {shapes}.")
    below = denominators or (None, None)
    both = (first, below[0]), (second, below[1])
    answers = all(_are_answers(*figure) for figure in both)
    if groups is None:
        columns = zip(*(_sample_columns(*figure) for figure in both), strict=True)
        difference = _crossed(a - b for a, b in columns)
        return _with_width(difference, len(first[0]), paired=True) if answers else difference
    places = _places(groups)
    freedom = _group_freedom([_shares(*figure, places) for figure in both])
    columns = zip(*(_group_columns(*figure, places) for figure in both), strict=True)
    difference = _crossed((a - b for a, b in columns), freedom)
    return _with_width(difference, int(places.max()) + 1, paired=True) if answers else difference


def jackknife_interval(value: float, without: np.ndarray, shares: np.ndarray) -> Interval:
    """Any figure, from its values (U,) without each of U units, which are such shares (U,) of the samples.

    The units are groups of samples, or samples, or blocks of either.
    """
    if len(without) < 2 or not np.isfinite(without).all():
        return Interval(value, math.nan, math.nan)
    columns = value + (len(without) - 1) * (without.mean() - without)
    return _crossed([columns], _group_freedom([shares]))


def _are_answers(numerator: Rows, denominator: Rows | None) -> bool:
    """Whether a figure is a share of right answers."""
    return denominator is None and np.asarray(numerator[0]).dtype == bool


def _with_width(narrow: Interval, units: int, *, paired: bool = False) -> Interval:
    """The interval of a share, or of a difference of two. Where all answers agree, their variance says nothing of others;
    Wilson's interval knows how many samples or groups there are.
    """
    value = narrow.value
    if narrow.low < narrow.high or abs(value) not in (0.0, 1.0):
        return narrow
    low, high = share_interval(abs(value) * units, units)
    if paired and value == 0.0:
        low = -high
    elif value < 0:
        low, high = -high, -low
    return narrow._replace(low=low, high=high)


def _pairs(numerator: Rows, denominator: Rows | None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Numerator and denominator (S,) of each seed."""
    if not len(numerator) or np.ndim(numerator[0]) != 1 or not len(numerator[0]):
        shape = np.shape(numerator)
        raise DataError(f"A result must have shape (seeds, samples), with some of each. Got {shape}.")
    for above, below in zip(numerator, repeat(None) if denominator is None else denominator, strict=False):
        yield np.asarray(above), None if below is None else np.asarray(below)


def _sample_columns(numerator: Rows, denominator: Rows | None) -> Iterator[np.ndarray]:
    """(S,) of each seed, what each sample adds to its figure: their means are the figures.

    Of a ratio r = sum n / sum d it is r + (n - r d) / mean d, the delta method; nan for a seed without a ratio.
    """
    for above, below in _pairs(numerator, denominator):
        if below is None:
            yield above.view(np.int8) if above.dtype == bool else above.astype(float)
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = above.sum() / below.sum()
            yield ratio + (above - ratio * below) / below.mean()


def _places(groups: np.ndarray) -> np.ndarray:
    """(S,) the place of each sample's group, counted from 0."""
    return np.unique(np.asarray(groups), return_inverse=True)[1]


def _group_columns(numerator: Rows, denominator: Rows | None, places: np.ndarray) -> Iterator[np.ndarray]:
    """(G,) of each seed, the pseudo-value of each group: their means are the figures; nan for a seed without a ratio."""
    for above, below in _pairs(numerator, denominator):
        sums = np.bincount(places, weights=above)
        most = np.bincount(places, weights=below)
        with np.errstate(invalid="ignore", divide="ignore"):
            figure = sums.sum() / most.sum()
            without = (sums.sum() - sums) / (most.sum() - most)
        # A group with the whole denominator moves nothing that could be compared with it.
        without = np.where(np.isfinite(without), without, figure)
        yield figure + (len(sums) - 1) * (without.mean() - without)


def _shares(numerator: Rows, denominator: Rows | None, places: np.ndarray) -> np.ndarray:
    """(G,) the share of each group in the denominator, on average over seeds."""
    shares = []
    for _, below in _pairs(numerator, denominator):
        most = np.bincount(places, weights=below)
        if most.sum() > 0:
            shares.append(most / most.sum())
    return np.mean(shares, axis=0) if shares else np.full(int(places.max()) + 1, np.nan)


def _group_freedom(shares: Sequence[np.ndarray]) -> float:
    """Degrees of freedom of the jackknife's variance over groups with these shares: see the head of this file.

    That variance is a quadratic form m' A m in the means of the groups, with A = M' D M, M = I - 1 w' and
    D = diag(w^2 / (1 - w)^2). Where these have equal variances, Satterthwaite's degrees of freedom are tr(A)^2 / tr(A^2).
    """
    w = np.mean(shares, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        d = w**2 / (1 - w) ** 2
        total = d.sum()
        dd = d @ d
        dw = d @ w
        ww = w @ w
        trace = total - 2 * dw + total * ww
        outer = 2 * dd * ww + 2 * dw**2 + total**2 * ww**2 - 4 * total * dw * ww  # of A - D
        squares = dd + 2 * (d @ (total * w**2 - 2 * d * w)) + outer
        return float(np.sqrt((len(w) - 1) * trace**2 / squares))


def _crossed(columns: Iterable[np.ndarray], freedom: float | None = None) -> Interval:
    """The interval of the mean of (K, M) values; ``freedom`` is that of the variance of columns, by default M - 1.

    Seeds come one by one and stay in the processor's cache: of their deviations from the row means, sums and squares suffice.
    """
    means, total, squares = _sums_of_seeds(columns)
    if not means:
        return Interval(math.nan, math.nan, math.nan)
    seeds = len(means)
    number = len(total)
    value = float(np.mean(means))
    a = float(np.var(means, ddof=1)) / seeds if seeds > 1 else 0.0
    if number == 1:
        if seeds == 1:
            return Interval(value, math.nan, math.nan)
        return _student(value, math.sqrt(a), seeds - 1.0)
    deviations = total / seeds
    b = float(deviations.var(ddof=1)) / number
    e = 0.0
    if seeds > 1:
        # Squares of what neither the seed nor the sample explains.
        rest = max(squares - seeds * float(deviations @ deviations), 0.0)
        e = rest / ((seeds - 1) * (number - 1) * seeds * number)
    return _over(value, Spread(a, b, e, seeds, number - 1.0 if freedom is None else freedom))


def _sums_of_seeds(columns: Iterable[np.ndarray]) -> tuple[list[float], np.ndarray, float]:
    """Means of the seeds that have one; the sum over seeds of deviations from these (M,); and the sum of all their squares."""
    means: list[float] = []
    total: np.ndarray = np.zeros((), dtype=np.int32)
    shift = 0.0  # what the whole numbers in `total` are above their deviations
    squares = 0.0
    for values in columns:
        if values.dtype == np.int8:  # yes and no, or their difference
            counted = np.count_nonzero(values)
            mean = (2 * np.count_nonzero(values > 0) - counted) / len(values)
            squares += counted - len(values) * mean**2
            shift += mean
        else:
            mean = float(values.mean())
            if not math.isfinite(mean):  # a seed without mistakes has no severity
                continue
            values = values - mean
            squares += float(values @ values)
        means.append(mean)
        total = total + values
    return means, total - shift, squares


def _over(mean: float, spread: Spread) -> Interval:
    return _student(mean, math.sqrt(spread.variance), spread.freedom)._replace(spread=spread)


# ---------------------------------------------------------------------- figures computed anew on resampled samples


def resampled_interval(values: np.ndarray, units: int) -> Interval:
    """The mean over seeds of a figure that is no mean over samples: its threshold, say, is chosen on them.

    ``values`` (K, 1 + R): each seed's figure, then that of R bootstrap draws, shared by seeds, of ``units`` samples or groups.
    """
    figures = values[:, 0]
    moved = values[:, 1:] - values[:, 1:].mean(axis=1, keepdims=True)
    seeds, draws = moved.shape
    small = units / max(units - 1, 1)  # a draw varies by that much less than the samples do
    a = float(figures.var(ddof=1)) / seeds if seeds > 1 else 0.0
    b = small * float(moved.mean(axis=0).var(ddof=1))
    rest = float(((moved - moved.mean(axis=0)) ** 2).sum())
    e = small * rest / (max(seeds - 1, 1) * (draws - 1) * seeds)
    return _over(float(figures.mean()), Spread(a, b, e, seeds, units - 1.0))


# ---------------------------------------------------------------------- shares of which only counts are known


def share_interval(count: float, samples: float, comparisons: int = 1) -> tuple[float, float]:
    """The ends of the 95% interval of a share, after Wilson; of several shares, all hold theirs at once (Bonferroni)."""
    z = _quantile(1 - (1 - LEVEL) / (2 * comparisons), math.inf)
    share = count / samples
    room = z * z / samples
    half = z * math.sqrt(share * (1 - share) / samples + room / (4 * samples))
    middle = share + room / 2
    low, high = (middle - half) / (1 + room), (middle + half) / (1 + room)
    return max(0.0, low), min(1.0, high)  # without rounding beyond the ends, such as -1e-17


def share_difference(first: float, second: float, samples: float) -> Interval:
    """The difference of two shares of so many samples, with its 95% interval (Newcombe 1998, method 10).

    It takes both to have samples of their own, so it is wider than a paired interval.
    """
    (low_a, high_a), (low_b, high_b) = (share_interval(share * samples, samples) for share in (first, second))
    gap = first - second
    low = gap - math.hypot(first - low_a, high_b - second)
    return Interval(gap, low, gap + math.hypot(high_a - first, second - low_b))


# ---------------------------------------------------------------------- quantiles, p-values, several comparisons at once


def _student(value: float, error: float, freedom: float) -> Interval:
    half = error * _quantile((1 + LEVEL) / 2, freedom)
    return Interval(value, value - half, value + half, error, freedom)


def _quantile(share: float, freedom: float) -> float:
    """Student's quantile; the normal one for infinite degrees of freedom."""
    if freedom == math.inf:
        return _NORMAL.inv_cdf(share)
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def headline_columns(
    predictions: Mapping[str, np.ndarray],
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """(S,) numerator and denominator (None for a mean) of top-1, top-5, severity and mean distance (HD@1) of a run."""
    wrong = predictions["answer"] != predictions["truth"]
    distance = predictions["distance"]
    ratios = {"severity": (distance * wrong, wrong)}
    return {"top-1": (~wrong, None), "top-5": (predictions["top5"], None), **ratios, "HD@1": (distance, None)}


class Compared(NamedTuple):
    """A comparison that is one of several.

    Attributes:
        interval: The difference with its own 95% interval, which knows nothing of the others.
        p: Two-sided p-value by itself.
        adjusted: Holm's p-value among all of them.
        of: How many comparisons that counts.
        detectable: The smallest true difference found with 80% power by the 95% interval alone.
        detectable_of_all: The same when all comparisons share the 5%.
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
        return self.adjusted < SIGNIFICANT


def compared_together(intervals: Mapping[Key, Interval], power: float = POWER) -> dict[Key, Compared]:
    """Differences that belong to one question, each with its p-value before and after Holm's correction.

    Differences without a standard error are kept, with nan, and do not count.

    Example:
        >>> compared = compared_together({"a": Interval(3.0, 1.0, 5.0, 1.0), "b": Interval(0.5, -1.5, 2.5, 1.0)})
        >>> compared["a"].of, round(compared["a"].p, 4), round(compared["a"].adjusted, 4), compared["b"].holds
        (2, 0.0027, 0.0054, False)
    """
    p = {key: p_value(given) for key, given in intervals.items()}
    known = [key for key in p if not np.isnan(p[key])]
    adjusted = dict(zip(known, holm([p[key] for key in known]), strict=True))
    compared = {}
    for key, given in intervals.items():
        effects = [detectable_effect(given, comparisons=n, power=power) for n in (1, max(len(known), 1))]
        compared[key] = Compared(given, p[key], adjusted.get(key, np.nan), len(known), *effects)
    return compared


def p_value(difference: Interval) -> float:
    """Two-sided p-value of a difference; nan without a standard error. It is below 5% where the interval excludes 0."""
    if np.isnan(difference.error) or np.isnan(difference.value):
        return float("nan")
    if difference.error == 0:
        return 1.0 if difference.value == 0 else 0.0
    distance = abs(difference.value / difference.error)
    if difference.freedom == math.inf:
        return math.erfc(distance / math.sqrt(2))  # unlike 1 - cdf, it is not 0 beyond eight standard errors
    from scipy.special import stdtr

    p = 2 * float(stdtr(difference.freedom, -distance))
    spread = difference.spread
    if p >= SIGNIFICANT or spread is None or spread.num_seeds < 2:
        return p
    return max(p, min(math.nextafter(SIGNIFICANT, 0), spread.tail(difference.value)))


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
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted.tolist()


def detectable_effect(difference: Interval, *, comparisons: int = 1, power: float = POWER) -> float:
    """The smallest true difference that is found with the given power, two-sided, when all comparisons share the 5%.

    Args:
        difference: whose error, degrees of freedom and spread decide.
        comparisons: how many share the 5%: Holm's first step, the strictest.
        power: the chance of finding it, between 0.5 and 1.

    Example:
        >>> result = Interval(0.0, -1.96, 1.96, 1.0)
        >>> round(detectable_effect(result), 2), round(detectable_effect(result, comparisons=10), 2)
        (2.8, 3.65)
        >>> round(detectable_effect(Interval(0.0, -2.78, 2.78, 1.0, 4)), 2)
        3.76
    """
    require("power", power, "at least 0.5 and less than 1", 0.5 <= power < 1)
    error = difference.error
    freedom = difference.freedom
    if math.isnan(error) or freedom < 1 or error == 0:
        return error
    least = _smallest_significant_effect(difference, SIGNIFICANT / comparisons) / error
    if freedom == math.inf:
        return float(error * (least + _NORMAL.inv_cdf(power)))
    from scipy.special import nctdtrinc

    # The noncentral t, since the error is estimated too: the shift at which it exceeds the bar with that chance.
    return float(error * nctdtrinc(freedom, 1 - power, least))


def _smallest_significant_effect(difference: Interval, share: float) -> float:
    """The smallest difference of this error whose p-value is at most a share."""
    high = difference.error * _quantile(1 - share / 2, difference.freedom)
    if p_value(difference._replace(value=high)) <= share * (1 + 1e-9):
        return high
    low = high
    while p_value(difference._replace(value=high)) > share:
        low = high
        high = 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(difference._replace(value=middle)) > share else (low, middle)
    return high
