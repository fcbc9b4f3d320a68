"""What another draw of the test samples would change: differences of two models, and curves, with 95% intervals.

Metrics that are means or ratios of sums have the intervals of :mod:`hace.metrics.intervals`. Areas of curves, calibration
errors and curves are computed anew without one unit after the other, a group of samples or a block of them, and the interval is
that of the jackknife.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hace.checks import check_choice, require
from hace.errors import DataError
from hace.metrics.curves import ladder_curves, risk_curves
from hace.metrics.evaluation import CALIBRATED, Evaluation
from hace.metrics.intervals import Interval, jackknife_interval, paired_interval
from hace.metrics.sample_statistics import MetricKey, SampleStatistics

UNITS = 100  # the most that are left out one after the other; more groups, or samples, are dealt into so many blocks
_WEIGHTS = 1 << 22  # entries of the table of weights held at once
_POINTS = 101  # of a curve
Curves = Callable[[SampleStatistics, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Difference:
    """A metric of two models.

    Attributes:
        first: its value for the first model.
        second: its value for the second model.
        low: lower end of the 95% interval of second - first; nan if the metric is undefined.
        high: upper end, likewise.
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


def compare(first: Evaluation, second: Evaluation) -> dict[MetricKey, Difference]:
    """The difference of every metric of two models, with a 95% interval.

    The comparison is paired: what both models find hard cancels. Where the first evaluation has groups, the interval is over
    groups, otherwise over samples. It reflects the choice of test samples, not the seed of a training run.

    Args:
        first: evaluation of the first model.
        second: evaluation of the second model, on the same samples in the same order.

    Raises:
        DataError: the evaluations are not of the same samples.
    """
    for name, given in (("first", first), ("second", second)):
        require(name, given, "what hace.evaluate returns", isinstance(given, Evaluation))
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
    intervals = [*_of_ratios(first, second), *_of_others(first, second)]
    differences = {
        key: Difference(value, second.values[key], between.low, between.high)
        for (key, value), between in zip(first.values.items(), intervals, strict=True)
    }
    if first.calibrated is not None and second.calibrated is not None:
        calibrated = compare(
            replace(first.calibrated, groups=first.groups), replace(second.calibrated, groups=second.groups)
        )
        for heading, name in first.all_values:
            if heading.startswith(CALIBRATED):
                differences[heading, name] = calibrated[heading.removeprefix(CALIBRATED), name]
    return differences


def _of_ratios(first: Evaluation, second: Evaluation) -> Iterator[Interval]:
    """Intervals of the metrics that are means or ratios of sums, second minus first."""
    ours = first.samples
    theirs = second.samples
    for column in range(len(ours.names)):
        if not len(ours):
            yield Interval(np.nan, np.nan, np.nan)
            continue
        above = [np.ascontiguousarray(s.numerator[:, column]) for s in (theirs, ours)]
        below = [np.ascontiguousarray(s.denominator[:, column]) for s in (theirs, ours)]
        means = all((part == 1).all() for part in below)
        denominators = None if means else ([below[0]], [below[1]])
        yield paired_interval([above[0]], [above[1]], denominators, groups=first.groups)


def _of_others(first: Evaluation, second: Evaluation) -> Iterator[Interval]:
    """Intervals of the other metrics, second minus first."""
    ours = first.samples
    theirs = second.samples
    if ours.only_leaves:
        return
    every = np.ones((1, len(ours)))
    value = (theirs.others(every, second.bins) - ours.others(every, first.bins))[0]
    places = left_out_places(len(ours), first.groups)
    without = [
        theirs.others(weights, second.bins) - ours.others(weights, first.bins)
        for weights in weights_without_each(places)
    ]
    shares = np.bincount(places) / max(len(places), 1)
    table = np.concatenate(without) if without else np.empty((0, len(value)))
    for figure, each in zip(value.tolist(), table.T, strict=True):
        yield jackknife_interval(figure, each, shares)


def left_out_places(samples: int, groups: np.ndarray | None = None) -> np.ndarray:
    """(S,) with which unit each sample is left out: its group or itself, or a block of them where these are many."""
    places = np.arange(samples) if groups is None else np.unique(groups, return_inverse=True)[1]
    units = int(places.max(initial=-1)) + 1
    if units <= UNITS:
        return places
    return (np.random.default_rng(0).permutation(units) % UNITS)[places]


def weights_without_each(places: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks (R, S) of weights that leave out one unit after the other."""
    units = int(places.max(initial=-1)) + 1
    step = max(1, _WEIGHTS // max(len(places), 1))
    for start in range(0, units, step):
        left_out = np.arange(start, min(start + step, units))
        yield (places[None, :] != left_out[:, None]).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A second model beside the first, and how much it differs."""

    second: Evaluation
    differences: dict[MetricKey, Difference]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = [
            {"heading": heading, "name": name, **asdict(d), "change": d.value}
            for (heading, name), d in self.differences.items()
        ]
        return {"second": self.second.source or self.second.name, "metrics": rows}

    def to_text(self, first: Evaluation) -> str:
        """The table for the terminal, in 100 columns; a star marks intervals that exclude 0."""
        width = max(len(name) for _, name in self.differences)
        heading = ""
        over = "samples" if first.groups is None else f"{len(np.unique(first.groups)):,} groups"
        lines = [
            f"first: {first.name}\nsecond: {self.second.name}\nchange: second minus first; 95% intervals, paired, over {over}; "
            "* excludes 0"
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


def compared(first: Evaluation, second: Evaluation) -> Evaluation:
    """An evaluation with a second model's beside it; see :func:`compare`."""
    return replace(first, comparison=Comparison(second, compare(first, second)))


@dataclass(frozen=True)
class CurveBand:
    """A curve and its pointwise 95% interval.

    Attributes:
        x: (P,) coverage or specificity, from 0 to 1.
        y: (P,) the curve there: risk or precision.
        low: (P,) lower end.
        high: (P,) upper end.
    """

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve_band(evaluation: Evaluation, curve: str = "operating") -> CurveBand:
    """A curve of an evaluation with its interval over samples, or over groups where the evaluation has them.

    Args:
        evaluation: the model's evaluation.
        curve: ``"operating"``: precision over specificity. ``"risk"``: share of mistakes over coverage of the best leaf.
            ``"hierarchical"``: share of false answers over coverage as answers climb; trees and forests only.

    Raises:
        DataError: there are no samples.

    Example:
        >>> from hace import Hierarchy, evaluate
        >>> h = Hierarchy.flat(["cat", "dog"])
        >>> evaluation = evaluate(np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), [0, 0, 0], h)
        >>> band = curve_band(evaluation, "risk")
        >>> float(band.y[-1].round(3)), bool((band.low <= band.high).all())
        (0.333, True)
    """
    samples = evaluation.samples
    check_choice("curve", curve, CURVES)
    if not len(samples):
        raise DataError("evaluation must hold at least one sample. Got none.")
    if curve == "hierarchical" and not samples.ladders[0].shape[1]:
        raise DataError("The hierarchical curve needs a tree or forest: on a DAG a leaf has several ways up.")
    grid = np.linspace(0, 1, _POINTS)
    value = _on_grid(grid, *CURVES[curve](samples, np.ones((1, len(samples)))))[0]
    places = left_out_places(len(samples), evaluation.groups)
    without = [_on_grid(grid, *CURVES[curve](samples, w)) for w in weights_without_each(places)]
    shares = np.bincount(places) / len(places)
    each = zip(value.tolist(), np.concatenate(without).T, strict=True)
    bands = [jackknife_interval(figure, left_out, shares) for figure, left_out in each]
    low = np.clip([band.low for band in bands], 0, 1)
    high = np.clip([band.high for band in bands], 0, 1)
    return CurveBand(grid, value, low, high)


def _on_grid(grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(R, P) curves (R, T), read at the points of a grid."""
    order = np.lexsort((-y, x), axis=1)
    x = np.take_along_axis(x, order, axis=1)
    y = np.take_along_axis(y, order, axis=1)
    return np.stack([np.interp(grid, each, values) for each, values in zip(x, y, strict=True)])


def _operating(s: SampleStatistics, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = w.sum(axis=1, keepdims=True)
    edge = np.ones((len(w), 1))
    x = w @ s.specific / total
    y = w @ s.true / total
    return np.concatenate([0 * edge, x], axis=1), np.concatenate([edge, y], axis=1)


CURVES: dict[str, Curves] = {
    "operating": _operating,
    "risk": lambda s, w: risk_curves(s.confidence, s.answers != s.truth, w)[1:],
    "hierarchical": lambda s, w: ladder_curves(s.ladders, w)[1:],
}
