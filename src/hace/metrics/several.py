"""Several comparisons at once: p-values, Holm's correction, and the smallest effect that would have been found.

A 95 % interval excludes 0 by chance in one of twenty comparisons without a difference. Holm's correction holds that chance to
5 % for all comparisons of a family together. The smallest detectable effect says what "no difference was found" is worth: a
true effect of that size is found in 80 % of repetitions, a much smaller one rarely.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np

from hace.errors import ConfigError
from hace.metrics.bootstrap import LEVEL
from hace.metrics.intervals import Interval

POWER = 0.8
_NORMAL = NormalDist()
Key = TypeVar("Key", bound=Hashable)


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
