"""What another draw of the test samples would change: differences of two models, and curves, with 95% intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hace.checks import MOST_REPLICATES, MOST_SEED, check_choice, check_count
from hace.errors import DataError
from hace.metrics.curves import ladder_curves, risk_curves
from hace.metrics.evaluation import CALIBRATED, Evaluation, MetricKey, SampleStatistics
from hace.metrics.intervals import LEVEL

_WEIGHTS = 1 << 22  # entries of the table of weights held at once
_POINTS = 101  # of a curve
_ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
Curves = Callable[[SampleStatistics, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Difference:
    """A metric of two models.

    Attributes:
        first: its value for the first model.
        second: its value for the second model.
        low: 2.5% quantile of second - first over resampled sets of samples; nan if the metric is undefined.
        high: 97.5% quantile, likewise.
    """

    first: float
    second: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """Second minus first."""
        return self.second - self.first

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def compare(
    first: Evaluation,
    second: Evaluation,
    *,
    replicates: int = 1000,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> dict[MetricKey, Difference]:
    """The difference of every metric of two models, with a 95% interval.

    The bootstrap is paired: it draws samples with replacement, the same ones for both models, and computes both models'
    metrics on them. Where the first evaluation has groups, it draws whole groups. The interval reflects the choice of test
    samples, not the seed of a training run.

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
    for weights in draws(len(first.samples), replicates, seed, first.groups):
        gaps.append(second.samples.values(weights, second.bins) - first.samples.values(weights, first.bins))
        if progress is not None:
            progress(len(weights))
    gap = np.concatenate(gaps)
    found = {}
    for (key, value), column in zip(first.values.items(), gap.T, strict=True):
        there = column[~np.isnan(column)]
        ends = np.quantile(there, _ENDS).tolist() if len(there) else (np.nan, np.nan)
        found[key] = Difference(value, second.values[key], *ends)
    if first.calibrated is not None and second.calibrated is not None:
        more = compare(first.calibrated, second.calibrated, replicates=replicates, seed=seed)
        warm = [key for key in first.all_values if key not in found]
        found |= {(heading, name): more[heading.removeprefix(CALIBRATED), name] for heading, name in warm}
    return found


def draws(samples: int, replicates: int, seed: int, groups: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Blocks (R, S) of how often each sample is drawn when S of them, or all groups, are drawn with replacement."""
    rng = np.random.default_rng(seed)
    step = max(1, _WEIGHTS // max(samples, 1))
    names, place = (range(samples), None) if groups is None else np.unique(groups, return_inverse=True)
    units = len(names)
    for start in range(0, replicates, step):
        found = np.empty((min(step, replicates - start), units))
        drawn = rng.integers(units, size=found.shape) if units else found.astype(np.int64)
        for row, indices in enumerate(drawn):  # one row of counts stays in the cache
            found[row] = np.bincount(indices, minlength=units)
        yield found if place is None else found[:, place]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A second model beside the first, and how much it differs."""

    second: Evaluation
    differences: dict[MetricKey, Difference]
    replicates: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = [
            {"heading": heading, "name": name, **asdict(d), "change": d.value}
            for (heading, name), d in self.differences.items()
        ]
        second = self.second.source or self.second.name
        return {"second": second, "replicates": self.replicates, "seed": self.seed, "metrics": rows}

    def to_text(self, first: str) -> str:
        """The table for the terminal, in 100 columns; a star marks intervals that exclude 0."""
        width, heading = max(len(name) for _, name in self.differences), ""
        lines = [
            f"first: {first}\nsecond: {self.second.name}\nchange: second minus first; 95% intervals by "
            f"{self.replicates:,} paired bootstrap draws; * excludes 0"
        ]
        for (group, name), d in self.differences.items():
            if group != heading:
                heading = group
                columns = f"  {'first':>8}  {'second':>8}  {'change':>8}  95% interval"
                lines += ["", heading.ljust(width + 2)]
                if len(heading) > width + 2:
                    lines.append(" " * (width + 2))
                lines[-1] += columns
            if np.isnan(d.low):
                lines.append(f"  {name:<{width}}  {'-':>8}  {'-':>8}  {'-':>8}")
                continue
            star = " *" if d.excludes_zero else ""
            lines.append(
                f"  {name:<{width}}  {d.first:8.4f}  {d.second:8.4f}  {d.value:+8.4f}  {d.low:+.4f} to {d.high:+.4f}{star}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class CurveBand:
    """A curve and its pointwise 95% interval.

    Attributes:
        x: (P,) coverage or specificity, from 0 to 1.
        y: (P,) the curve there: risk or precision.
        low: (P,) 2.5% quantile over draws of the samples.
        high: (P,) 97.5% quantile.
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
    check_choice("curve", curve, CURVES)
    if not len(samples):
        raise DataError("evaluation must hold at least one sample. Got none.")
    if curve == "hierarchical" and not samples.ladders[0].shape[1]:
        raise DataError("The hierarchical curve needs a tree or forest: on a DAG a leaf has several ways up.")
    grid = np.linspace(0, 1, _POINTS)
    value = _on_grid(grid, *CURVES[curve](samples, np.ones((1, len(samples)))))
    weights = draws(len(samples), replicates, seed, evaluation.groups)
    drawn = np.concatenate([_on_grid(grid, *CURVES[curve](samples, w)) for w in weights])
    low, high = np.quantile(drawn, _ENDS, axis=0)
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


CURVES: dict[str, Curves] = {
    "operating": _operating,
    "risk": lambda s, w: risk_curves(s.confidence, s.answers != s.truth, w)[1:],
    "hierarchical": lambda s, w: ladder_curves(s.ladders, w)[1:],
}
