"""The tables of a report: methods and metrics in each condition, confidence, and differences from the reference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import NamedTuple

import numpy as np
import pandas as pd

from hace.lab.report.document import WORDS, Entry, Switch, Table, with_marks
from hace.lab.report.metric import (
    HEADLINES,
    Metric,
    accuracy_by_level,
    best_node_by_level,
    calibrated,
    ece_by_level,
    level_names,
)
from hace.lab.report.results import Results
from hace.lab.report.runs import PROTOCOLS, control_of, method_title, shown
from hace.lab.report.scores import MethodScores, Score
from hace.lab.report.sentences import say
from hace.metrics.evaluation import CALIBRATED
from hace.metrics.intervals import SIGNIFICANT

MEANS = "Means over seeds; in brackets the 95% interval over seeds and test samples."
_AREAS = [
    Metric(("selection", "AURC"), "AURC", higher=False),
    Metric(("selection", "hAURC"), "hAURC", higher=False),
    Metric(("selection", "area under the operating curve"), "operating area"),
]


# --- entries


def score_entry(score: Score, metric: Metric, state: str, seeds: bool = False) -> Entry:
    """The mean and its interval, or why there is none."""
    if score.value is None:
        return Entry(state or "-", soft=True)
    detail = (metric.interval(score.low, score.high), f"n = {score.seeds}" if seeds else "", state)
    return Entry(metric.text(score.value), ", ".join(filter(None, detail)))


def marked_scores(
    entries: Sequence[Entry], scores: Sequence[Score], metric: Metric, rivals: Sequence[bool]
) -> list[Entry]:
    """The entries with the best and the second of the rivals marked; equal digits share a mark."""
    values = [
        float(metric.text(score.value)) if rival and score.value is not None else None
        for score, rival in zip(scores, rivals, strict=True)
    ]
    return with_marks(entries, values, metric.higher)


def score_column(
    scores: MethodScores, metric: Metric, methods: Collection[str], states: bool = False
) -> list[Entry]:
    """A metric of some methods, best and second marked, controls aside; `states` adds missing seeds to numbers too."""
    values = [scores.score(method, metric) for method in methods]
    entries = []
    for method, score in zip(methods, values, strict=True):
        state = scores.methods["state"].get(method, "")
        entries.append(score_entry(score, metric, state if states or score.value is None else ""))
    return marked_scores(entries, values, metric, [not control_of(method) for method in methods])


def gap_entry(row: pd.Series | None, instead: str = "-") -> Entry:
    """A difference of :func:`compare` with its interval, with a star where that excludes 0."""
    if row is None:
        return Entry(instead, soft=True)
    interval = row.metric.interval(row.low, row.high, sign=True)
    star = "*" if row.low > 0 or row.high < 0 else ""
    return Entry(row.metric.text(row.difference, sign=True), interval and interval + star)


# --- tables of one condition


def headline_table(scores: MethodScores) -> Table:
    """All methods of a condition with the headline metrics, the settings tried and chosen."""
    condition = scores.condition
    metrics = scores.known(
        [*HEADLINES, *(replace(m, title="ECE") for m in ece_by_level(scores.hierarchy)[-1:])]
    )
    remarks = [WORDS["chosen"][condition.protocol], f"{MEANS} {WORDS['metrics']}"]
    if controls := [
        f"{method_title(m)}: {control}." for m in scores.methods.index if (control := control_of(m))
    ]:
        remarks.append("Controls. " + " ".join(controls))
    table = metric_table(
        f"methods-{condition.slug}", f"{condition.title}: all methods", scores, metrics, remarks
    )
    settings = {
        "settings tried": [tried or "-" for tried in scores.methods["tried"]],
        "chosen": [chosen or "-" for chosen in scores.methods["settings"]],
    }
    return replace(table, frame=table.frame.assign(**settings))


def levels_switch(scores: MethodScores) -> Switch | None:
    """Accuracy by level, by either rule; None on a DAG or a flat set of classes."""
    condition = scores.condition
    hierarchy = scores.hierarchy
    if len(level_names(hierarchy)) < 2:
        return None
    options = []
    for rule, metrics, end in (
        ("best class, carried up", accuracy_by_level(hierarchy), ""),
        ("most probable node of the level", best_node_by_level(hierarchy)[:-1], "-best_node"),
    ):
        title = f"{condition.title}: accuracy by level, %: {rule}"
        remarks = (WORDS["rules"][rule], MEANS)
        table = metric_table(f"levels-{condition.slug}{end}", title, scores, metrics, remarks, arrows=False)
        options.append((rule, table))
    return Switch("Rule at inner levels", tuple(options))


def confidence_table(scores: MethodScores) -> Table | None:
    """Every metric of confidence beside its calibrated form; None without calibrated runs."""
    metrics = ece_by_level(scores.hierarchy)
    for name in level_names(scores.hierarchy)[-1:]:
        metrics.append(Metric(("Brier score by level", name), "Brier", percent=False, higher=False))
        metrics.append(Metric(("log-likelihood by level", name), "log-likelihood", percent=False))
    both = [form for metric in (*metrics, *_AREAS) for form in (metric, calibrated(metric))]
    known = scores.known(both)
    if not any(metric.key[0].startswith(CALIBRATED) for metric in known):
        return None
    remarks = (f"{say('calibrated', temperatures=temperatures(scores))} {MEANS}",)
    title = f"{scores.condition.title}: confidence, raw and calibrated"
    return metric_table(f"confidence-{scores.condition.slug}", title, scores, known, remarks)


def temperatures(scores: MethodScores) -> dict[str, float]:
    """The mean temperature of each method's runs, by its title."""
    means = {}
    for method in scores.methods.index:
        results = [run.result or {} for run in scores.finished(method)["run"]]
        values = [(result.get("temperature") or {}).get("value") for result in results]
        if known := [value for value in values if value is not None]:
            means[method_title(method)] = mean(known)
    return means


def metric_table(
    name: str,
    title: str,
    scores: MethodScores,
    metrics: Sequence[Metric],
    remarks: Sequence[str],
    arrows: bool = True,
) -> Table:
    """Methods as rows and metrics as columns; `arrows` show which way is better."""
    methods = scores.methods
    columns: dict[str, list] = {"method": [method_title(method) for method in methods.index]}
    for metric in metrics:
        arrow = (" ↑" if metric.higher else " ↓") if arrows else ""
        columns[f"{metric.title}{arrow}"] = score_column(scores, metric, methods.index)
    # How many seeds are missing is said here, not beside every number.
    columns["seeds"] = [
        Entry(str(finished), state if finished else "")
        for finished, state in zip(methods["finished"], methods["state"], strict=True)
    ]
    return Table(name, title, pd.DataFrame(columns), remarks=tuple(remarks))


# --- differences over all conditions


class Wins(NamedTuple):
    """Differences over several conditions, summed up."""

    won: int
    of: int
    mean: float
    median: float


def tally(differences: Collection[float]) -> Wins | None:
    """Wins, mean and median of differences; None without any."""
    if not differences:
        return None
    won = sum(value > 0 for value in differences)
    return Wins(won, len(differences), mean(differences), median(differences))


def against_table(results: Results, protocol: str) -> Table | None:
    """Every method minus the reference, in top-1 accuracy, in every condition, with wins, mean and median."""
    frame = results.against_reference(protocol)
    reference = results.second
    if frame.empty:
        return None
    metric = HEADLINES[0]
    conditions = [c for c in results.conditions(protocol) if reference in results.scores[c].methods.index]
    methods = [method for method in results.methods if method in set(frame["first"])]
    rows = {(row["first"], row.condition): row for _, row in frame.iterrows()}
    columns: dict[tuple[str, str], list] = {("", "method"): [method_title(method) for method in methods]}
    for condition in conditions:
        states = results.scores[condition].methods["state"]
        columns[
            shown(condition.dataset), ", ".join(filter(None, (shown(condition.model), condition.labels)))
        ] = [
            gap_entry(rows.get((method, condition)), states.get(method, "not run") or "-")
            for method in methods
        ]
    if len(conditions) > 1:
        sums = [tally(frame["difference"][frame["first"] == method].tolist()) for method in methods]
        columns["", "won"] = [f"{wins.won} of {wins.of}" for wins in sums if wins]
        columns["", "mean"] = [metric.text(wins.mean, True) for wins in sums if wins]
        columns["", "median"] = [metric.text(wins.median, True) for wins in sums if wins]
    title = f"Every method minus {method_title(reference)}, top-1 accuracy in points, {PROTOCOLS[protocol]}"
    paired = "Paired over seeds and test samples, with 95% intervals; * marks intervals without 0."
    remarks = (paired, together_text(frame, metric))
    return Table(f"against-{reference}-{protocol}", title, pd.DataFrame(columns), remarks=remarks)


def together_text(frame: pd.DataFrame, metric: Metric) -> str:
    """What remains of a table of differences when all of them are judged together, and what it could have shown."""
    known = frame[frame["p"].notna()]
    if known.empty:
        return "No run kept its predictions, so there are no intervals."
    alone = ((known["low"] > 0) | (known["high"] < 0)).sum()
    return say(
        "judged_together",
        comparisons=len(known),
        alone=int(alone),
        remaining=int((known["holm"] < SIGNIFICANT).sum()),
        detectable=metric.text(float(np.median(known["detectable"]))),
    )
