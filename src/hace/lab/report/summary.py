"""The summary of a study for the terminal: its cards, its tables, and what is missing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pandas as pd

from hace.lab.report.about import counts_text, notes, selection_text
from hace.lab.report.cards import Card, study_cards
from hace.lab.report.compare import Pair, compare
from hace.lab.report.document import Entry, Table, aligned, to_text
from hace.lab.report.labels import label_questions, label_tables
from hace.lab.report.metric import HEADLINES, Metric
from hace.lab.report.results import Results
from hace.lab.report.runs import method_title
from hace.lab.report.scores import MethodScores
from hace.lab.report.tables import gap_entry, score_column
from hace.lab.study.records import Record

MARKS = "1st, 2nd: the best and the second of a column; * marks differences whose interval excludes 0"
_WIDTH = 100  # of lines


def report_text(records: Iterable[Record], compare: Sequence[str] | None = None) -> str:
    """The summary of a study: its answers, tables, and what is missing."""
    results = Results(records, compare)
    return f"{cards_text(study_cards(results))}\n\n{results_text(results)}"


def results_text(results: Results) -> str:
    """The numbers: one table per question about labels, or else one per condition, and how to read them."""
    tables = [table for question in label_questions(results) for table in label_tables(question)]
    tables = tables or [
        summary_table(c.title, scores, results.second) for c, scores in results.scores.items()
    ]
    chosen_on = selection_text(results.records)
    grouped = any(scores.store.groups is not None for scores in results.scores.values())
    lines = [f"[95% intervals] over seeds and {'groups of ' if grouped else ''}test samples.", f"{MARKS}."]
    lines += [f"Rates chosen on {chosen_on}."] if chosen_on else []
    lines += [*notes(results.records), counts_text(results.records)]
    return "\n\n".join([*(to_text(table, _WIDTH) for table in tables), "\n".join(map(_wrapped, lines))])


def cards_text(cards: Iterable[Card]) -> str:
    """The cards of the page's first screen."""
    return "\n".join(line for card in cards for line in _card_lines(card))


def _card_lines(card: Card) -> list[str]:
    lines = [_wrapped(f"{card.where}: {card.question}"), _wrapped(card.answer, "  ")]
    rows = [[d.question, d.difference, d.interval, d.words] for d in card.decisions]
    lines += [f"    {line}" for line in aligned(rows, _WIDTH - 4)]
    sentences = [*card.lines, *([f"Use {card.use}. {card.why}"] if card.use else [])]
    lines += [_wrapped(sentence, "  ") for sentence in sentences]
    return [*lines, *(f"    {line}" for command in card.commands for line in command.splitlines())]


def _wrapped(text: str, indent: str = "") -> str:
    """Text whose lines fit; what goes on in the next line is indented."""
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


def summary_table(
    title: str,
    scores: MethodScores,
    reference: str,
    *,
    gaps: Sequence[Metric] = HEADLINES[:1],
    name: Callable[[str], str] = method_title,
) -> Table:
    """Methods with their headline metrics, and how they differ from a reference in the metrics `gaps`."""
    methods = scores.methods
    columns: dict[str, list[str | Entry]] = {"method": [name(method) for method in methods.index]}
    for metric in HEADLINES[:3]:
        column = score_column(scores, metric, methods.index)
        if metric != HEADLINES[0]:  # the first column has the intervals, and says why there is no result
            column = [Entry("", soft=True) if e.soft else replace(e, detail="") for e in column]
        columns[metric.title] = [*column]
        if metric in gaps:
            head = f"minus {name(reference)}"
            head = head if head not in columns else f"{head}, {metric.title}"
            columns[head] = _gap_column(scores, reference, metric)
    columns["settings tried"] = [*methods["tried"]]
    columns["chosen"] = [*methods["settings"]]
    seeds = [
        str(finished) if finished == runs else f"{finished} ({state})"
        for finished, runs, state in zip(methods["finished"], methods["runs"], methods["state"], strict=True)
    ]
    if len(set(seeds)) > 1:
        columns["seeds"] = [*seeds]
    else:  # as usual: the title has room for it
        title += f", {seeds[0]} {'seed' if seeds[0] == '1' else 'seeds'}"
    filled = {head: column for head, column in columns.items() if any(_text(cell) for cell in column)}
    return Table("summary", title, pd.DataFrame(filled))


def _text(cell: str | Entry) -> str:
    return cell.text if isinstance(cell, Entry) else cell


def _gap_column(scores: MethodScores, reference: str, metric: Metric) -> list[str | Entry]:
    """Each method minus the reference."""
    pairs = [Pair(metric, scores, m, scores, reference) for m in scores.methods.index if m != reference]
    rows = {row["first"]: row for _, row in compare(pairs).iterrows()}
    return [gap_entry(rows.get(method), "") for method in scores.methods.index]
