"""A study's results for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hace.lab.report.cells import HEADLINES, Arena, method_title
from hace.lab.report.render import Entry, ReportTable, to_text
from hace.lab.report.results import Results
from hace.lab.report.scores import Score
from hace.lab.report.tables import bracket, score_entry, with_marks
from hace.lab.study.records import Record

_REMARK = "* best, + second; [95 % intervals] over seeds and test samples"


def report_text(records: Iterable[Record], compare: Sequence[str] | None = None) -> str:
    """The summary of a study: a table for each data set, model and protocol, and what is missing.

    Args:
        records: What a study yields.
        compare: Two methods; the second is the one that all are compared with. By default ("hace", "sce").

    Raises:
        DataError: No run has finished.
    """
    return results_text(Results(records, compare))


def results_text(results: Results) -> str:
    """The summary of results."""
    tables = [to_text(_table(results, place)) for place in results.choices]
    return "\n\n".join([*tables, f"{_REMARK}.\n{counts_text(results.records)}"])


def counts_text(records: Sequence[Record]) -> str:
    """How many runs there are, and how they stand.

    Example:
        >>> counts_text([])
        '0 runs'
    """
    count = Counter(record.status for record in records)
    missing = [f"{count[s]:,} {s}" for s in ("diverged", "failed", "not run") if count[s]]
    finished = [f"{count['finished']:,} finished"]
    total = f"{len(records):,} {'run' if len(records) == 1 else 'runs'}"
    return f"{total}: {', '.join([*finished, *missing])}" if records else total


def _table(results: Results, place: Arena) -> ReportTable:
    """Methods with top-1, the difference to the reference, and three more."""
    arrays, reference = results.arrays[place], results.second
    methods = list(arrays.choices)
    columns = []
    for i, metric in enumerate(HEADLINES[:4]):
        scores = [arrays.score(method, metric.key) for method in methods]
        if i:  # intervals of all would not fit into a line
            scores = [Score(s.value) for s in scores]
        states = [
            arrays.choices[m].state if s.value is None and not i else ""
            for m, s in zip(methods, scores, strict=True)
        ]
        entries = [score_entry(s, metric, state) for s, state in zip(scores, states, strict=True)]
        columns.append(with_marks(entries, [s.value for s in scores], metric))
    gaps = []
    for method in methods:
        found = None if method == reference else arrays.difference(method, reference, HEADLINES[0].key)
        if found is None:
            gaps.append(Entry(""))
            continue
        gap = found[0]
        detail = "" if gap.low != gap.low else bracket(gap.low, gap.high, HEADLINES[0], sign=True)
        gaps.append(Entry(HEADLINES[0].text(gap.value, sign=True), detail))
    columns.insert(1, gaps)
    rows = tuple(
        (Entry(method_title(m)), *(column[i] for column in columns), Entry(_seeds(results, place, m)))
        for i, m in enumerate(methods)
    )
    heads = ("method", "top-1", f"minus {method_title(reference)}", "top-5", "severity", "HD@1", "seeds")
    if not any(gap.text for gap in gaps):
        heads, rows = heads[:2] + heads[3:], tuple(row[:2] + row[3:] for row in rows)
    return ReportTable("summary", place.title, (heads,), rows)


def _seeds(results: Results, place: Arena, method: str) -> str:
    choice = results.choices[place][method]
    done, all_of_them = len(choice.finished), len(choice.records)
    return str(done) if done == all_of_them else f"{done} of {all_of_them}"
