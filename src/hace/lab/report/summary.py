"""A study's results for the terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from hace.lab.report.document import Entry, ReportTable, to_text
from hace.lab.report.method_tables import gap_entry, score_column
from hace.lab.report.results import (
    HEADLINES,
    MethodScores,
    Metric,
    Results,
    method_title,
    shown,
    unseen_classes,
)
from hace.lab.report.verdict import Verdict, label_questions, label_tables, verdicts
from hace.lab.study.cells import NO_RESULT, Record, chosen_on, coarse_searches, each_run, searched_at

MARKS = "1st, 2nd: the best and the second of a column; * marks differences whose interval excludes 0"
_WIDTH = 100  # of lines


def report_text(records: Iterable[Record], compare: Sequence[str] | None = None) -> str:
    """The summary of a study: its answers, tables, and what is missing."""
    results = Results(records, compare)
    return f"{verdicts_text(verdicts(results))}\n\n{results_text(results)}"


def results_text(results: Results) -> str:
    """The numbers: one table per question about labels, or else one per comparison, and how to read them."""
    found = [table for question in label_questions(results) for table in label_tables(question)]
    found = found or [summary_table(c.title, a, results.second) for c, a in results.arrays.items()]
    tables = [to_text(table, _WIDTH) for table in found]
    chosen = selection_text(results.records)
    lines = ["[95% intervals] over seeds and test samples.", f"{MARKS}."]
    lines += [f"Rates chosen on {chosen}."] if chosen else []
    lines += [*notes(results.records), counts_text(results.records)]
    return "\n\n".join([*tables, _wrapped("\n".join(lines))])


def verdicts_text(found: Iterable[Verdict]) -> str:
    """The answers of the page's first screen."""
    lines = []
    for verdict in found:
        lines.append(f"{verdict.where}: {verdict.question}")
        more = [*(step.line for step in verdict.steps), *verdict.lines]
        more += [f"Use {verdict.use}{verdict.why}"] if verdict.use else []
        lines += [f"  {part}" for part in (verdict.answer, *more)]
    return _wrapped("\n".join(lines))


def _wrapped(text: str) -> str:
    """Text whose lines fit; what goes on in the next line is indented."""
    indents = ((line, " " * (2 + len(line) - len(line.lstrip()))) for line in text.splitlines())
    return "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent=indent) for line, indent in indents)


def counts_text(records: Sequence[Record]) -> str:
    """How many runs there are, by status; a run that cells share is one."""
    records = each_run(records)
    count = Counter(record.status for record in records)
    parts = [f"{count[s]:,} {s}" for s in ("finished", *NO_RESULT) if count[s] or s == "finished"]
    total = f"{len(records):,} {'run' if len(records) == 1 else 'runs'}"
    return f"{total}: {', '.join(parts)}" if records else total


def failures(records: Sequence[Record]) -> list[str]:
    """Each error of runs without a result, with the number of runs and the first of them."""
    found: dict[str, list[str]] = {}
    for r in records:
        if r.status in ("failed", "diverged"):
            key = r.key
            where = [shown(key.dataset), shown(key.model), method_title(key.method)]
            where += ["" if key.dilution is None else f"d {key.dilution:g}", f"seed {key.seed}"]
            where += [f"rate {r.lr:g}" if r.lr == r.lr else "", r.stage]
            error = r.error or "diverged: the loss became infinite or NaN"
            found.setdefault(error, []).append(", ".join(filter(None, where)))
    return [f"{e} ({len(w)}: {'; '.join(w[:5])}{' ...' if len(w) > 5 else ''})" for e, w in found.items()]


def shortened(lines: Sequence[str], most: int = 50) -> list[str]:
    """The first of many lines, and how many more there are."""
    return [*lines] if len(lines) <= most else [*lines[:most], f"and {len(lines) - most:,} more"]


def selection_text(records: Sequence[Record]) -> str:
    """What rates are chosen on, for each data set where that differs; "" where nothing is searched."""
    searches: dict[str, list[Record]] = {}
    for record in records:
        if record.stage == "search":
            searches.setdefault(record.key.dataset, []).append(record)
    words = {name: chosen_on(found) for name, found in searches.items()}
    if len(set(words.values())) < 2:
        return next(iter(words.values()), "")
    return "; ".join(f"{text} ({shown(name)})" for name, text in words.items())


def notes(records: Sequence[Record]) -> Iterator[str]:
    """What a reader of the table should know: classes without samples, L-BFGS that stopped early, rates at the edge."""
    trained = [r.run.result["train"] for r in records if r.stage == "final" and r.run and r.run.result]
    if unseen := unseen_classes(r for r in records if r.stage == "final"):
        yield unseen
    if short := sum(train.get("converged") is False for train in trained):
        yield f"{short} of {len(trained)} L-BFGS runs did not converge: raise max_iter or tolerance in a --config."
    final = [r for r in records if r.stage == "final" and r.status == "finished" and r.candidates > 2]
    if searched_at(records) is not None:  # the seeds of a method share a search
        final = list({replace(r.key, seed=0): r for r in final}.values())
    if edges := sum(bool(r.edge) for r in final):
        yield f"{edges:,} of {len(final):,} searches end at the edge of their grid: a wider range may do better."
    if coarse := sorted({method_title(key.method) for key in coarse_searches(records)}):
        yield f"The grid of rates is coarse for {', '.join(coarse)}: a rate between its neighbours may do better."


def summary_table(
    title: str,
    arrays: MethodScores,
    reference: str,
    *,
    gaps: Sequence[Metric] = HEADLINES[:1],
    name: Callable[[str], str] = method_title,
) -> ReportTable:
    """Methods with their headline metrics, and how they differ from a reference in the metrics `gaps`."""
    methods = list(arrays.choices)
    columns = [("method", [Entry(name(m)) for m in methods])]
    for metric in HEADLINES[:3]:
        column = score_column(arrays, metric, methods)
        if metric is not HEADLINES[0]:  # the first column has the intervals, and says why there is no result
            column = [Entry("", soft=True) if e.soft else replace(e, detail="") for e in column]
        columns.append((metric.title, column))
        if metric in gaps:
            found = {m: arrays.difference(m, reference, metric.key) for m in methods if m != reference}
            minus = [gap_entry(gap[0] if (gap := found.get(m)) else None, metric, "") for m in methods]
            columns.append((f"minus {name(reference)}", minus))
    columns.append(("tried", [Entry(arrays.choices[m].budget) for m in methods]))
    columns.append(("chosen", [Entry(arrays.choices[m].settings) for m in methods]))
    done = [(len(c.finished), c) for c in arrays.choices.values()]
    seeds = [str(n) if n == len(c.records) else f"{n} ({c.state})" for n, c in done]
    if len(set(seeds)) > 1:
        columns.append(("seeds", [Entry(count) for count in seeds]))
    else:  # as usual: the title has room for it
        title += f", {seeds[0]} {'seed' if seeds[0] == '1' else 'seeds'}"
    filled = [(head, column) for head, column in columns if any(entry.text for entry in column)]
    rows = tuple(zip(*(column for _, column in filled), strict=True))
    return ReportTable("summary", title, (tuple(head for head, _ in filled),), rows)
