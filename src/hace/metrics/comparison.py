"""Two models on the same samples: each metric's difference with a paired bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hace.errors import ConfigError, DataError
from hace.metrics.evaluation import Evaluation
from hace.metrics.sample_statistics import MetricKey

_WEIGHTS = 1 << 22  # entries of the table of weights held at once


@dataclass(frozen=True)
class Difference:
    """A metric of two models.

    Attributes:
        first, second: its values.
        low, high: 2.5 % and 97.5 % quantiles of second - first over resampled sets of samples; nan where the metric is
            undefined.
    """

    first: float
    second: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """Second minus first."""
        return self.second - self.first


def compare(
    first: Evaluation,
    second: Evaluation,
    *,
    replicates: int = 1000,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> dict[MetricKey, Difference]:
    """The difference of every metric of two models, with a 95 % interval.

    The bootstrap is paired: samples are drawn with replacement, the same ones for both models, and both models' metrics
    are computed on them. The interval speaks of the choice of test samples; not of seeds of the training.

    Args:
        first, second: reports on the same samples in the same order.
        replicates: how many times to draw.
        seed: of the draws.
        progress: called with the number of replicates done since the last call.

    Raises:
        DataError: the reports are not of the same samples.
    """
    if replicates < 1:
        raise ConfigError(f"replicates must be at least 1. Got {replicates} instead.")
    if first.hierarchy.fingerprint != second.hierarchy.fingerprint:
        raise DataError(
            "The two reports are over different hierarchies, so their metrics cannot be compared."
        )
    if not np.array_equal(first.samples.truth, second.samples.truth):
        raise DataError(
            "The two reports are over different samples: their truths differ. Compare the same samples."
        )
    if list(first.values) != list(second.values):
        raise DataError("The two reports hold different metrics. Evaluate both with the same options.")
    gaps = []
    for weights in draws(len(first.samples), replicates, seed):
        gaps.append(second.samples.values(weights, second.bins) - first.samples.values(weights, first.bins))
        if progress is not None:
            progress(len(weights))
    gap = np.concatenate(gaps)
    found = {}
    for column, (key, value) in enumerate(first.values.items()):
        drawn = gap[:, column][~np.isnan(gap[:, column])]
        low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
        found[key] = Difference(value, second.values[key], float(low), float(high))
    return found


def draws(samples: int, replicates: int, seed: int) -> Iterator[np.ndarray]:
    """Blocks (R, S) of how often each sample is drawn."""
    rng = np.random.default_rng(seed)
    step = max(1, _WEIGHTS // max(samples, 1))
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        drawn = (
            rng.integers(samples, size=(rows, samples)) if samples else np.zeros((rows, 0), dtype=np.int64)
        )
        yield np.stack([np.bincount(row, minlength=samples) for row in drawn]).astype(np.float64)


def comparison_text(differences: dict[MetricKey, Difference]) -> str:
    """The table for the terminal; a star marks intervals without 0."""
    width = max(len(text) for key in differences for text in key)
    lines, heading = [], ""
    for (group, name), d in differences.items():
        if group != heading:
            heading = group
            lines += [
                "",
                f"{heading:<{width + 2}}  {'first':>8}  {'second':>8}  {'change':>8}  95 % interval",
            ]
        if np.isnan(d.low):
            lines.append(f"  {name:<{width}}  {'-':>8}  {'-':>8}  {'-':>8}")
            continue
        star = " *" if d.low > 0 or d.high < 0 else ""
        lines.append(
            f"  {name:<{width}}  {d.first:8.4f}  {d.second:8.4f}  {d.value:+8.4f}  {d.low:+.4f} to {d.high:+.4f}{star}"
        )
    return "\n".join(lines[1:])
