"""Two models on the same samples: the difference of each metric with a paired bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hace.checks import MOST_REPLICATES, MOST_SEED, check_count
from hace.errors import DataError
from hace.metrics.bootstrap import draw_counts, interval_ends
from hace.metrics.evaluation import CALIBRATED, Evaluation
from hace.metrics.sample_statistics import MetricKey

_WEIGHTS = 1 << 22  # entries of the table of weights held at once


@dataclass(frozen=True)
class Difference:
    """A metric of two models.

    Attributes:
        first: its value for the first model.
        second: its value for the second model.
        low: 2.5 % quantile of second - first over resampled sets of samples; nan if the metric is undefined.
        high: 97.5 % quantile, likewise.
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

    The bootstrap is paired: it draws samples with replacement, the same ones for both models, and computes both models'
    metrics on them. The interval reflects the choice of test samples, not the seed of a training run.

    Args:
        first: evaluation of the first model.
        second: evaluation of the second model, on the same samples in the same order.
        replicates: number of draws, at most 1,000,000.
        seed: seed of the draws, a whole number from 0.
        progress: called with the number of replicates done since the last call.

    Raises:
        DataError: the evaluations are not of the same samples.
    """
    check_count("replicates", replicates, MOST_REPLICATES)
    check_count("seed", seed, MOST_SEED, least=0)
    if first.hierarchy.fingerprint != second.hierarchy.fingerprint:
        raise DataError(
            "first and second must be over the same hierarchy. Got two hierarchies; evaluate both models over one."
        )
    if not np.array_equal(first.samples.truth, second.samples.truth):
        raise DataError(
            "first and second must be over the same samples. Got different truths; evaluate both models on the same samples."
        )
    if list(first.values) != list(second.values):
        raise DataError(
            "first and second must hold the same metrics. Evaluate both models with the same options."
        )
    gaps = []
    for weights in draws(len(first.samples), replicates, seed):
        gaps.append(second.samples.values(weights, second.bins) - first.samples.values(weights, first.bins))
        if progress is not None:
            progress(len(weights))
    gap = np.concatenate(gaps)
    found = {}
    for column, (key, value) in enumerate(first.values.items()):
        found[key] = Difference(value, second.values[key], *interval_ends(gap[:, column]))
    if first.calibrated is not None and second.calibrated is not None:
        more = compare(first.calibrated, second.calibrated, replicates=replicates, seed=seed)
        found |= {
            key: more[key[0].removeprefix(CALIBRATED), key[1]] for key in first.all_values if key not in found
        }
    return found


def draws(samples: int, replicates: int, seed: int) -> Iterator[np.ndarray]:
    """Blocks (R, S) of how often each sample is drawn."""
    rng = np.random.default_rng(seed)
    step = max(1, _WEIGHTS // max(samples, 1))
    for start in range(0, replicates, step):
        yield draw_counts(rng, samples, min(step, replicates - start)).astype(np.float64)


def comparison_text(differences: dict[MetricKey, Difference]) -> str:
    """The table for the terminal, in 100 columns; a star marks intervals that exclude 0."""
    width = max(len(name) for _, name in differences)
    lines, heading = [], ""
    for (group, name), d in differences.items():
        if group != heading:
            heading = group
            columns = f"  {'first':>8}  {'second':>8}  {'change':>8}  95 % interval"
            fits = len(heading) <= width + 2
            lines += ["", *([] if fits else [heading]), f"{heading if fits else '':<{width + 2}}{columns}"]
        if np.isnan(d.low):
            lines.append(f"  {name:<{width}}  {'-':>8}  {'-':>8}  {'-':>8}")
            continue
        star = " *" if d.low > 0 or d.high < 0 else ""
        lines.append(
            f"  {name:<{width}}  {d.first:8.4f}  {d.second:8.4f}  {d.value:+8.4f}  {d.low:+.4f} to {d.high:+.4f}{star}"
        )
    return "\n".join(lines[1:])
