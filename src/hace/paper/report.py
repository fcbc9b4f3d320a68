"""The paper in a study's report: its printed numbers and ours in the same cells, its set-up beside ours, what we assume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hace.lab.report.document import Entry, Mark, Section, Table
from hace.lab.report.metric import HEADLINES
from hace.lab.report.nodes import node_accuracies
from hace.lab.report.results import Results
from hace.lab.report.runs import PROTOCOLS, Condition, matched_name, method_title, shown
from hace.lab.report.scores import Score
from hace.lab.report.tables import marked_scores, score_entry, tally
from hace.paper.printed import ASSUMPTIONS, PaperTable, PrintedCell, comparisons_of, paper_tables

_METRICS = {metric.key[1]: metric for metric in HEADLINES}
_MARKS: dict[str, Mark] = {"bold": "best", "underline": "second", "": ""}
SOURCES = ("printed", *(f"ours, {title}" for title in (PROTOCOLS["paper"], PROTOCOLS["fair"])))
PRINTED_LEVELS = {"Manufacturers": ("28 of 30", 4.21), "Families": ("59 of 70", 7.21)}
MATCHED = "Each cell is the run of that pair; nothing is chosen."
CHOSEN = (
    "Under the paper's protocol the best run of each seed, over rates and dilutions, is chosen by {} accuracy on the test set, "
    "as the paper does; under the fair protocol by top-1 accuracy on held-out training samples."
)
ELSEWHERE = "No runs on the paper's datasets with its models. Its tables, claims and errata: `docs/paper.md`."


def report_sections(results: Results, draw: bool = True) -> list[Section]:
    """The sections on the paper; where a study has none of its data, one that says where to find it. Nothing is drawn."""
    places = {(condition.dataset, condition.model) for condition in results.scores}
    touching = [t for t in comparable() if any((cell.dataset, cell.model) in places for cell in t.cells)]
    if not touching:
        return [Section("paper", "The paper", (ELSEWHERE,), folded=True)]
    rest = [table.title for table in comparable() if table not in touching]
    blocks: list[Any] = [
        "Every table of the paper that this study has runs for: the printed numbers, with known errors as footnotes, and ours "
        "in the same cells. What follows from the printed numbers alone is in `docs/paper.md`.",
        *(paper_table(results, table) for table in touching),
    ]
    if levels := _levels(results):
        blocks += ["Families and manufacturers, as the paper and this study have them:", levels]
    if rest:
        blocks += ["Tables that this study does not touch:", rest]
    assumed = ("Where the paper says nothing, the runs under its protocol assume:", list(ASSUMPTIONS))
    return [
        Section("paper", "The paper's tables", tuple(blocks)),
        Section("assumptions", "What we assume", assumed),
    ]


def comparable() -> list[PaperTable]:
    """The tables with results; those of the set-up have none."""
    return [t for t in paper_tables().values() if all(cell.metric in _METRICS for cell in t.cells)]


def paper_table(results: Results, table: PaperTable) -> Table:
    """A table of the paper: for each row the printed numbers, then ours under both protocols."""
    is_matched = any(cell.pairing for cell in table.cells)
    sources = SOURCES[:2] if is_matched else SOURCES
    rows = []
    rules = []
    for key in table.rows:
        cells = [table.cell(**key, **column) for column in table.columns]
        rules.append(len(rows))
        name = ", ".join(_word(axis, value) for axis, value in key.items())
        rows.append((name, sources[0], *(_printed(table, cell) for cell in cells)))
        rows += [(name, source, *_ours(results, cells, source)) for source in sources[1:]]
    chosen = MATCHED if is_matched else CHOSEN.format(table.metric)
    remarks = [f"Ours are means over n seeds with 95% intervals over seeds and test samples. {chosen}"]
    remarks += _tallies(results, table, sources)
    if whole := [note.mark for note in table.footnotes if len(note.cells) == len(table.cells)]:
        remarks.append(f"About the whole table: note {', '.join(whole)}.")
    return Table(
        f"paper-{table.id}",
        table.title,
        pd.DataFrame(rows, columns=_headings(table)),
        stub=2,
        notes=tuple((note.mark, note.text) for note in table.footnotes),
        remarks=tuple(remarks),
        rules=tuple(rules),
    )


def _headings(table: PaperTable) -> pd.MultiIndex:
    """A line for each name of the paper's columns; the last also says what the first two columns are."""
    names = list(dict.fromkeys(name for column in table.columns for name in column))
    above = [""] * (len(names) - 1)
    stub = [(*above, next(iter(table.rows[0]))), (*above, "numbers")]
    columns = [tuple(_word(name, column.get(name)) for name in names) for column in table.columns]
    return pd.MultiIndex.from_tuples([*stub, *columns])


def _printed(table: PaperTable, cell: PrintedCell) -> Entry:
    return Entry(cell.printed, mark=_MARKS[cell.mark], notes=table.marks(cell))


def _ours(results: Results, cells: Sequence[PrintedCell], source: str) -> list[Entry]:
    """Our numbers for the cells of a row; those that differ in the method alone compete for the marks."""
    entries: dict[PrintedCell, Entry] = {}
    for rivals in comparisons_of(cells):
        metric = _METRICS[str(rivals[0].metric)]
        known = [measured(results, cell, source) for cell in rivals]
        shown_ = [score_entry(score, metric, state, seeds=True) for score, state in known]
        marked = marked_scores(shown_, [score for score, _ in known], metric, [True] * len(known))
        entries |= zip(rivals, marked, strict=True)
    return [entries[cell] for cell in cells]


def measured(results: Results, cell: PrintedCell, source: str) -> tuple[Score, str]:
    """Our number for a cell of the paper, and its state, shown after or instead of it."""
    protocol = "paper" if source == SOURCES[1] else "fair"
    condition = Condition(protocol, str(cell.dataset), str(cell.model))
    chosen = results.best_top5 if cell.metric == "top-5" and protocol == "paper" else results.scores
    scores = (results.matched if cell.pairing else chosen).get(condition)
    if scores is None:
        return Score(None), "not run"
    names = [str(cell.method)]
    if cell.pairing:
        # Cross-entropy at the model's own rate is one run, whatever the dilution of its partner.
        names = [matched_name(str(cell.method), d, cell.pairing) for d in (cell.dilution, None)]
    name = next((name for name in names if name in scores.methods.index), None)
    if name is None:
        return Score(None), "not run"
    return scores.score(name, _METRICS[str(cell.metric)]), scores.methods["state"][name]


def _tallies(results: Results, table: PaperTable, sources: Sequence[str]) -> list[str]:
    """HACE against cross-entropy over the table, as printed and as measured: wins, mean and median."""
    sums = []
    for source in sources:
        gaps = []
        for rivals in table.comparisons():
            pair = [cell for method in ("hace", "cross_entropy") for cell in rivals if cell.method == method]
            points = [_points(results, cell, source) for cell in pair]
            if len(points) == 2 and points[0] is not None and points[1] is not None:
                gaps.append(points[0] - points[1])
        if (wins := tally(gaps)) is not None:
            means = f"mean {wins.mean:+.2f}, median {wins.median:+.2f}"
            sums.append(f"{source}: HACE wins {wins.won} of {wins.of}, {means}")
    return [f"HACE against cross-entropy. {'; '.join(sums)}."] if sums else []


def _points(results: Results, cell: PrintedCell, source: str) -> float | None:
    """An accuracy in percent, as printed or as measured."""
    if source == "printed":
        return cell.value
    value = measured(results, cell, source)[0].value
    return None if value is None else 100 * value


def _levels(results: Results) -> list[str]:
    """HACE and cross-entropy at the nodes above the classes, where the paper has them: ResNet-50 on FGVC-Aircraft."""
    lines = []
    for condition, scores in results.scores.items():
        if (condition.dataset, condition.model) == ("aircraft", "resnet50"):
            for level, (name, (won, gain)) in enumerate(PRINTED_LEVELS.items()):
                nodes = node_accuracies(scores, "hace", "cross_entropy", level)
                ours = "not run" if nodes is None else nodes.summary("HACE", "cross-entropy")
                printed = f"{name}. Printed: HACE matches or beats cross-entropy in {won}, mean gain {gain}."
                lines.append(f"{printed} Ours, {PROTOCOLS[condition.protocol]}: {ours}")
    return lines


def _word(name: str, value: Any) -> str:
    if name == "method":
        return method_title(str(value))
    return f"d = {value:g}" if name == "dilution" else shown(str(value))
