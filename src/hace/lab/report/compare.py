"""The comparisons of a report as one table: first minus second, corrected together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import pandas as pd

from hace.lab.report.metric import Metric
from hace.lab.report.scores import Difference, MethodScores
from hace.metrics.intervals import Compared, compared_together

ENOUGH_SEEDS = 2  # one says nothing of how another would turn out
Outcome = Literal["gain", "loss", "unclear"]


class Pair(NamedTuple):
    """Two methods to compare in a metric, each where it was trained."""

    metric: Metric
    ours: MethodScores
    first: str
    theirs: MethodScores
    second: str


COLUMNS = [
    "condition",  # of the first
    "against",  # that of the second
    "metric",
    "first",
    "second",
    "ours",  # their means
    "theirs",
    "difference",  # first minus second
    "low",  # its own 95% interval
    "high",
    "seeds",
    "over_samples",  # whether the interval is over seeds and samples, not over seeds alone
    "p",
    "holm",  # p after Holm's correction for all rows
    "comparisons",  # how many these are
    "detectable",  # the smallest true difference that would be found in 80% of repetitions
    "detectable_of_all",  # the same after the correction
    "outcome",
]


def compare(pairs: Iterable[Pair]) -> pd.DataFrame:
    """First minus second of all pairs that have the metric, one row each. All rows are one family.

    The `outcome` is a gain or a loss where the difference remains after Holm's correction for all rows, over two or more
    seeds; else it is unclear. So at most one call in twenty finds anything where nothing differs.
    """
    differences = {pair: result for pair in dict.fromkeys(pairs) if (result := _difference(pair)) is not None}
    together = compared_together({pair: result.interval for pair, result in differences.items()})
    rows = [_row(pair, together[pair], result.seeds) for pair, result in differences.items()]
    return pd.DataFrame(rows, columns=COLUMNS)


def _difference(pair: Pair) -> Difference | None:
    means = (
        pair.ours.score(pair.first, pair.metric).value,
        pair.theirs.score(pair.second, pair.metric).value,
    )
    if None in means:
        return None
    other = None if pair.theirs is pair.ours else pair.theirs
    return pair.ours.difference(pair.first, pair.second, pair.metric, other)


def _row(pair: Pair, compared: Compared, seeds: int) -> dict[str, Any]:
    interval = compared.interval
    return {
        "condition": pair.ours.condition,
        "against": pair.theirs.condition,
        "metric": pair.metric,
        "first": pair.first,
        "second": pair.second,
        "ours": pair.ours.score(pair.first, pair.metric).value,
        "theirs": pair.theirs.score(pair.second, pair.metric).value,
        "difference": interval.value,
        "low": interval.low,
        "high": interval.high,
        "seeds": seeds,
        "over_samples": interval.spread is not None,
        "p": compared.p,
        "holm": compared.adjusted,
        "comparisons": compared.of,
        "detectable": compared.detectable,
        "detectable_of_all": compared.detectable_of_all,
        "outcome": _outcome(compared, pair.metric, seeds),
    }


def _outcome(compared: Compared, metric: Metric, seeds: int) -> Outcome:
    if not compared.holds or seeds < ENOUGH_SEEDS:
        return "unclear"
    return "gain" if (compared.interval.value > 0) == metric.higher else "loss"
