"""The tables of a report: methods and metrics in each comparison, confidence, differences, and every run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from statistics import mean, median

from hace.files.documents import csv_text
from hace.lab.report.document import WORDS, Entry, ReportTable, Switch, marked
from hace.lab.report.results import (
    BEST_NODE_BY_LEVEL,
    BY_LEVEL,
    ECE_BY_LEVEL,
    HEADLINES,
    PROTOCOLS,
    Comparison,
    MethodScores,
    Metric,
    Results,
    Score,
    control_of,
    level_names,
    method_title,
    shown,
    tally,
)
from hace.lab.study.records import Record
from hace.metrics.evaluation import CALIBRATED
from hace.metrics.intervals import Interval

MEANS = "Means over seeds; in brackets the 95% interval over seeds and test samples."
_AREAS = [Metric(("selection", name), name, higher=False) for name in ("AURC", "hAURC")]
_AREAS += [Metric(("selection", "area under the operating curve"), "operating area")]


def score_entry(score: Score, metric: Metric, state: str, seeds: bool = False) -> Entry:
    """A measured cell: the mean and its interval, or why there is none."""
    if score.value is None:
        return Entry(state or "-", soft=True)
    detail = (bracket(score.low, score.high, metric), f"n = {score.seeds}" if seeds else "", state)
    return Entry(metric.text(score.value), ", ".join(filter(None, detail)))


def score_column(
    arrays: MethodScores, metric: Metric, methods: Collection[str], states: bool = False
) -> list[Entry]:
    """A metric of some methods, best and second marked, controls aside; `states` adds missing seeds to numbers too."""
    scores, entries = [], []
    for method in methods:
        state = arrays.choices[method].state if method in arrays.choices else ""
        scores.append(arrays.score(method, metric.key))
        entries.append(score_entry(scores[-1], metric, state if states or scores[-1].value is None else ""))
    rivals = [None if control_of(m) else s.value for m, s in zip(methods, scores, strict=True)]
    return with_marks(entries, rivals, metric)


def gap_entry(gap: Interval | None, metric: Metric, instead: str = "-") -> Entry:
    """A difference with its interval, with a star where that excludes 0."""
    if gap is None:
        return Entry(instead, soft=True)
    star = "*" if gap.excludes_zero else ""
    ends = bracket(gap.low, gap.high, metric, sign=True)
    return Entry(metric.text(gap.value, sign=True), ends and ends + star)


def bracket(low: float | None, high: float | None, metric: Metric, sign: bool = False) -> str:
    """An interval: "[71.2, 73.0]"; "" where it is not known."""
    if low is None or high is None or low != low:
        return ""
    if metric.percent and not sign:  # a share of few groups
        low, high = max(low, 0.0), min(high, 1.0)
    return f"[{metric.text(low, sign)}, {metric.text(high, sign)}]"


def with_marks(entries: Sequence[Entry], scores: Sequence[float | None], metric: Metric) -> list[Entry]:
    """The entries of one contest with best and second marked; equal digits share a mark."""
    marks = marked([None if v is None else float(metric.text(v)) for v in scores], metric.higher)
    return [replace(entry, mark=mark) for entry, mark in zip(entries, marks, strict=True)]


def methods_table(comparison: Comparison, arrays: MethodScores) -> ReportTable:
    """All methods of a comparison with the headline metrics."""
    deepest = level_names(arrays.hierarchy)[-1:]
    calibration = [Metric((ECE_BY_LEVEL, name), "ECE", higher=False) for name in deepest]
    metrics = _known((*HEADLINES, *calibration), arrays)
    remarks = [WORDS["chosen"][comparison.protocol], f"{MEANS} {WORDS['metrics']}"]
    if controls := [f"{method_title(m)}: {c}." for m in arrays.choices if (c := control_of(m))]:
        remarks.append("Controls. " + " ".join(controls))
    name, title = f"methods-{comparison.slug}", f"{comparison.title}: all methods"
    return metric_table(name, title, arrays, metrics, tuple(remarks), settings=True)


def _known(metrics: Iterable[Metric], arrays: MethodScores) -> list[Metric]:
    """The metrics that some method has."""
    return [m for m in metrics if any(choice.values(m.key) for choice in arrays.choices.values())]


def levels_switch(comparison: Comparison, arrays: MethodScores) -> Switch | None:
    """Accuracy by level, by either rule; None on a DAG or a flat set of classes."""
    names = level_names(arrays.hierarchy)
    if len(names) < 2:
        return None
    rules = (
        ("best class, carried up", BY_LEVEL, names, "The best class carried up to the level, from the top to the classes."),
        ("most probable node of the level", BEST_NODE_BY_LEVEL, names[:-1],
         "The most probable node of the level: it penalises under-confident models for errors that no user sees."),
    )  # fmt: skip
    options = []
    for title, heading, shown_names, remark in rules:
        metrics = [Metric((heading, name), name) for name in shown_names]
        slug = f"levels-{comparison.slug}" + ("" if heading == BY_LEVEL else "-best_node")
        caption = f"{comparison.title}: accuracy by level, %: {title}"
        options.append((title, metric_table(slug, caption, arrays, metrics, (remark, MEANS), arrows=False)))
    return Switch("Rule at inner levels", tuple(options))


def confidence_table(comparison: Comparison, arrays: MethodScores) -> ReportTable | None:
    """Every metric of confidence beside its calibrated form; None without calibrated runs."""
    names = level_names(arrays.hierarchy)
    metrics = [Metric((ECE_BY_LEVEL, name), f"{name} ECE", higher=False) for name in names]
    for name in names[-1:]:
        metrics.append(Metric(("Brier score by level", name), "Brier", percent=False, higher=False))
        metrics.append(Metric(("log-likelihood by level", name), "log-likelihood", percent=False))
    known = _known([m for metric in (*metrics, *_AREAS) for m in (metric, calibrated(metric))], arrays)
    if not any(m.key[0].startswith(CALIBRATED) for m in known):
        return None
    remark = f"{WORDS['calibrated'].format(temperatures(arrays))} {MEANS}"
    title = f"{comparison.title}: confidence, raw and calibrated"
    return metric_table(f"confidence-{comparison.slug}", title, arrays, known, (remark,))


def calibrated(metric: Metric) -> Metric:
    """The same metric of calibrated scores."""
    heading, name = metric.key
    return Metric((CALIBRATED + heading, name), f"{metric.title}, calibrated", metric.percent, metric.higher)


def temperatures(arrays: MethodScores) -> str:
    """The mean temperature of each method's runs, in words."""
    found = {}
    for method, choice in arrays.choices.items():
        fitted = [record.result.get("temperature") or {} for record in choice.finished]
        if known := [t["value"] for t in fitted if t.get("value") is not None]:
            found[method_title(method)] = mean(known)
    return "; ".join(f"{title}: {value:.2f}" for title, value in found.items())


def metric_table(
    name: str,
    title: str,
    arrays: MethodScores,
    metrics: Sequence[Metric],
    remarks: tuple[str, ...],
    settings: bool = False,
    arrows: bool = True,
) -> ReportTable:
    """Methods as rows and metrics as columns; `settings` shows what was chosen from how many, `arrows` which way is better."""
    # The column of seeds says how many are missing.
    columns = [score_column(arrays, metric, arrays.choices) for metric in metrics]
    rows = []
    for i, (method, choice) in enumerate(arrays.choices.items()):
        seeds = Entry(str(len(choice.finished)), choice.state if choice.finished else "")
        extra = [Entry(choice.budget or "-"), Entry(choice.settings or "-")] if settings else []
        rows.append((Entry(method_title(method)), *(column[i] for column in columns), seeds, *extra))
    heads = [f"{m.title} {'↑' if m.higher else '↓'}" if arrows else m.title for m in metrics]
    line = ("method", *heads, "seeds", *(["candidates", "chosen"] if settings else []))
    return ReportTable(name, title, (line,), tuple(rows), remarks=remarks)


def against_table(results: Results, protocol: str) -> ReportTable | None:
    """Every method minus the reference, in top-1 accuracy, in every comparison, with wins, mean and median."""
    reference, metric = results.second, HEADLINES[0]
    comparisons = [c for c in results.comparisons(protocol) if reference in results.choices[c]]
    rows = []
    for method in results.methods:
        gaps = results.gaps(method, reference, protocol)
        found = tally([gap.value for gap in gaps.values()])
        if found is None or method == reference:
            continue
        there = [results.choices[c].get(method) for c in comparisons]
        states = ["not run" if choice is None else choice.state or "-" for choice in there]
        cells = [gap_entry(gaps.get(c), metric, s) for c, s in zip(comparisons, states, strict=True)]
        sums = [f"{found.won} of {found.of}", metric.text(found.mean, True), metric.text(found.median, True)]
        rows.append((Entry(method_title(method)), *cells, *map(Entry, sums)))
    if not rows:
        return None
    columns = [", ".join(filter(None, (shown(c.model), c.labels))) for c in comparisons]
    datasets = [shown(c.dataset) for c in comparisons]
    heads = (("", *datasets, "", "", ""), ("method", *columns, "won", "mean", "median"))
    if len(comparisons) == 1:  # nothing to sum up
        heads, rows = tuple(head[:-3] for head in heads), [row[:-3] for row in rows]
    title = f"Every method minus {method_title(reference)}, top-1 accuracy in points, {PROTOCOLS[protocol]}"
    paired = "Paired over seeds and test samples, with 95% intervals; * marks intervals without 0."
    remarks = (paired, together_text(results, protocol))
    return ReportTable(f"against-{reference}-{protocol}", title, heads, tuple(rows), remarks=remarks)


def together_text(results: Results, protocol: str) -> str:
    """What remains of a table of differences when all of them are judged together, and what it could have shown."""
    found = [one for one in results.compared(protocol).values() if one.p == one.p]
    if not found:
        return "No run kept its predictions, so there are no intervals."
    alone, held = sum(one.interval.excludes_zero for one in found), sum(one.holds for one in found)
    smallest = HEADLINES[0].text(median(one.detectable for one in found))
    several = "comparisons" if len(found) > 1 else "comparison"
    return WORDS["judged_together"].format(len(found), several, alone, held, smallest)


RUN_COLUMNS = "protocol dataset model method dilution pairing seed labels stage lr status error id".split()


def runs_csv(records: Iterable[Record]) -> str:
    """Every run with all its metrics, one per line; no cell starts a formula."""
    records = list(records)
    headings = [item for record in records for item in (record.result.get("metrics") or {}).items()]
    metrics = dict.fromkeys((heading, name) for heading, names in headings for name in names)
    names = (f"{heading}: {name}" for heading, name in metrics)
    rows: list[list[object]] = [[*RUN_COLUMNS, "split", "samples", *names, "seconds"]]
    for record in records:
        result = record.result
        error = record.error or ("loss became infinite or NaN" if record.status == "diverged" else "")
        line = [*vars(record.key).values(), record.stage, record.lr, record.status, error]
        line += [record.run.id if record.run else "", result.get("split"), result.get("samples")]
        line += [*(record.metric(*metric) for metric in metrics), result.get("seconds")]
        rows.append([_field(value) for value in line])
    return csv_text(rows)


def _field(value: object) -> object:
    if value is None or value != value:  # a rate that is not chosen yet is NaN
        return ""
    return repr(value) if isinstance(value, float) else value
