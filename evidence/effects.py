"""What each method changes against cross-entropy, with every comparison of a study counted: effects.csv.

One row per labels, method and metric: method minus reference, its 95% interval, its p-value before and after Holm's correction
for all comparisons of the study in that metric, and the smallest effect that would have been found in 80% of repetitions,
without and with that correction.

Intervals are paired over seeds and test samples where runs keep what a metric needs of each sample. Otherwise interval, p-value
and detectable effect are Student's, from the seeds' differences on the one test set, and `over` says so.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.lab.report.conformal import DERIVED, SIBLINGS, SURE_DETAIL
from hace.lab.report.method_tables import calibrated
from hace.lab.report.results import (
    BY_LEVEL,
    ECE_BY_LEVEL,
    HEADLINES,
    Comparison,
    Metric,
    Results,
    level_names,
    method_title,
)
from hace.lab.runs.samples import has_siblings
from hace.metrics.intervals import Compared, Interval, compared_together
from hace.metrics.sample_statistics import MetricKey

REFERENCE = "sce"
COLUMNS = (
    "labels", "method", "minus", "metric", "first", "second", "difference", "low", "high", "p", "holm", "comparisons",
    "detectable", "detectable (all)", "seeds", "over",
)  # fmt: skip
SAMPLES, SEEDS = "seeds and samples", "seeds"


class Pair(NamedTuple):
    """Two methods, each where it was trained."""

    comparison: Comparison
    method: str
    against: Comparison
    reference: str


def write_effects(results: Results, target: Path) -> None:
    """Write the effects of a finished study."""
    with target.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for metric in metrics(results):
            out.writerows(rows(results, metric))


def metrics(results: Results) -> list[Metric]:
    """The metrics to compare: headlines, accuracy by level, how specific guaranteed answers are, calibration."""
    hierarchy = next((a.hierarchy for a in results.arrays.values() if a.hierarchy is not None), None)
    names = () if hierarchy is None else level_names(hierarchy)
    found = [m for m in HEADLINES if m.title not in ("HD@20", "iF1", "full path", "AURC")]
    found += [Metric((BY_LEVEL, name), f"accuracy, {name}") for name in names[:-1]]
    found += [Metric(SURE_DETAIL, "detail at 95%")] if names else []
    # A class that is alone below its parent has no label to lose: its parent's says as much.
    some_alone = hierarchy is not None and not has_siblings(hierarchy)[hierarchy.leaf_nodes].all()
    found += [Metric((DERIVED, SIBLINGS), "top-1, classes with siblings")] if some_alone else []
    raw = [Metric((ECE_BY_LEVEL, name), "ECE", higher=False) for name in names[-1:]]
    return [*found, *raw, *(calibrated(m) for m in raw)]


def pairs(results: Results) -> Iterator[Pair]:
    """Every method against the reference on the same labels; with coarse labels also against not using them."""
    for comparison, choices in results.choices.items():
        for method in choices:
            if method != REFERENCE and REFERENCE in choices:
                yield Pair(comparison, method, comparison, REFERENCE)
    for comparison, choices in results.choices.items():
        alone = comparison._replace(labels=comparison.labels.partition(" + ")[0])
        for method in choices:
            if alone != comparison and alone in results.choices:
                yield Pair(comparison, method, alone, REFERENCE)
            elif "sce_drop" in choices and not method.endswith("_drop"):
                yield Pair(comparison, method, comparison, "sce_drop")


def rows(results: Results, metric: Metric) -> Iterator[list[Any]]:
    """The rows of one metric: one family of comparisons."""
    found: dict[Pair, tuple[Interval, int, str]] = {}
    for pair in pairs(results):
        one = difference(results, pair, metric.key)
        if one is not None:
            found[pair] = one
    together = compared_together({pair: interval for pair, (interval, _, _) in found.items()})
    for pair, (_, seeds, over) in found.items():
        ours = results.arrays[pair.comparison].score(pair.method, metric.key).value
        theirs = results.arrays[pair.against].score(pair.reference, metric.key).value
        assert ours is not None
        assert theirs is not None
        minus = method_title(pair.reference)
        minus += "" if pair.against == pair.comparison else f", {pair.against.labels} alone"
        head = [pair.comparison.labels or "all labels", method_title(pair.method), minus, metric.title]
        numbers = [metric.text(ours), metric.text(theirs), *_compared(together[pair], metric)]
        yield [*head, *numbers, seeds, over]


def difference(results: Results, pair: Pair, key: MetricKey) -> tuple[Interval, int, str] | None:
    """Method minus reference, the number of seeds, and what the interval is over; None where either has no result."""
    ours, theirs = results.arrays[pair.comparison], results.arrays[pair.against]
    found = ours.difference(pair.method, pair.reference, key, theirs)
    if found is None:
        return None
    return (*found, SEEDS if found[0].spread is None else SAMPLES)


def _compared(one: Compared, metric: Metric) -> list[str]:
    interval = one.interval
    ends = [
        "" if np.isnan(v) else metric.text(v, sign=True)
        for v in (interval.value, interval.low, interval.high)
    ]
    p = ["" if np.isnan(v) else f"{v:.2g}" for v in (one.p, one.adjusted)]
    seen = ["" if np.isnan(v) else metric.text(v) for v in (one.detectable, one.detectable_of_all)]
    return [*ends, *p, str(one.of), *seen]
