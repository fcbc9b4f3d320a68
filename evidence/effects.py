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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hace.lab.report.compare import Pair, compare
from hace.lab.report.metric import (
    HEADLINES,
    SPECIFICITY,
    WITH_SIBLINGS,
    Metric,
    accuracy_by_level,
    calibrated,
    ece_by_level,
)
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition, method_title
from hace.lab.runs.samples import has_siblings

REFERENCE = "cross_entropy"
COLUMNS = (
    "labels", "method", "minus", "metric", "first", "second", "difference", "low", "high", "p", "holm", "comparisons",
    "detectable", "detectable (all)", "seeds", "over",
)  # fmt: skip
SAMPLES, SEEDS = "seeds and samples", "seeds"


def write_effects(results: Results, target: Path) -> None:
    """Write the effects of a finished study."""
    with target.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for metric in metrics(results):
            out.writerows(rows(results, metric))


def metrics(results: Results) -> list[Metric]:
    """The metrics to compare: headlines, accuracy by level, how specific guaranteed answers are, calibration."""
    trees = [scores.hierarchy for scores in results.scores.values() if scores.hierarchy is not None]
    h = trees[0] if trees else None
    known = [m for m in HEADLINES if m.title not in ("HD@20", "iF1", "full path", "AURC")]
    levels = accuracy_by_level(h)
    known += [replace(metric, title=f"accuracy, {metric.title}") for metric in levels[:-1]]
    known += [replace(SPECIFICITY, title="specificity at 95%")] if levels else []
    # A class that is alone below its parent has no label to lose: its parent's says as much.
    if h is not None and not has_siblings(h)[h.leaf_nodes].all():
        known.append(replace(WITH_SIBLINGS, title="top-1, classes with siblings"))
    raw = [replace(metric, title="ECE") for metric in ece_by_level(h)[-1:]]
    return [*known, *raw, *map(calibrated, raw)]


def pairs(results: Results, metric: Metric) -> Iterator[Pair]:
    """Every method against the reference on the same labels; with coarse labels also against not using them."""
    for scores in results.scores.values():
        for method in scores.methods.index:
            if method != REFERENCE and REFERENCE in scores.methods.index:
                yield Pair(metric, scores, method, scores, REFERENCE)
    for condition, scores in results.scores.items():
        alone = results.scores.get(replace(condition, labels=condition.labels.partition(" + ")[0]))
        for method in scores.methods.index:
            if alone is not None and alone is not scores:
                yield Pair(metric, scores, method, alone, REFERENCE)
            elif "cross_entropy_drop" in scores.methods.index and not method.endswith("_drop"):
                yield Pair(metric, scores, method, scores, "cross_entropy_drop")


def rows(results: Results, metric: Metric) -> Iterator[list[Any]]:
    """The rows of one metric: one family of comparisons."""
    for _, row in compare(pairs(results, metric)).iterrows():
        minus = method_title(row.second) + _where(row.condition, row.against)
        head = [row.condition.labels or "all labels", method_title(row["first"]), minus, metric.title]
        over = SAMPLES if row.over_samples else SEEDS
        yield [*head, metric.text(row.ours), metric.text(row.theirs), *_numbers(row, metric), row.seeds, over]


def _where(condition: Condition, against: Condition) -> str:
    """The labels of the reference, where they are others."""
    return "" if against == condition else f", {against.labels} alone"


def _numbers(row: pd.Series, metric: Metric) -> list[str]:
    ends = ["" if np.isnan(v) else metric.text(v, sign=True) for v in (row.difference, row.low, row.high)]
    p = ["" if np.isnan(v) else f"{v:.2g}" for v in (row.p, row.holm)]
    seen = ["" if np.isnan(v) else metric.text(v) for v in (row.detectable, row.detectable_of_all)]
    return [*ends, *p, str(row.comparisons), *seen]
