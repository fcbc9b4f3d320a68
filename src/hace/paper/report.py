"""The paper in a study's report: its printed numbers and ours in the same cells, its set-up beside ours, what we assume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hace.lab.report.document import Entry, ReportTable, Section
from hace.lab.report.method_tables import score_entry, with_marks
from hace.lab.report.nodes import node_accuracies
from hace.lab.report.results import (
    HEADLINES,
    PROTOCOLS,
    Comparison,
    MethodScores,
    Results,
    Score,
    matched_key,
    method_title,
    shown,
    tally,
)
from hace.paper.printed import ASSUMPTIONS, PaperTable, PrintedCell, contests_of, paper_tables

_METRICS = {metric.title: metric for metric in HEADLINES}
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
    pairs = {(comparison.dataset, comparison.model) for comparison in results.choices}
    touching = [t for t in comparable() if any((cell.dataset, cell.model) in pairs for cell in t.cells)]
    if not touching:
        return [Section("paper", "The paper", (ELSEWHERE,), folded=True)]
    rest = [table.title for table in comparable() if table not in touching]
    blocks: list[Any] = [
        "Every table of the paper that this study has runs for: the printed numbers, with known errors as footnotes, and ours "
        "in the same cells. What follows from the printed numbers alone is in `docs/paper.md`.",
        *(paper_table(results, table) for table in touching),
    ]
    if found := _levels(results):
        blocks += ["Families and manufacturers, as the paper and this study have them:", found]
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


def paper_table(results: Results, table: PaperTable) -> ReportTable:
    """A table of the paper: for each row the printed numbers, then ours under both protocols."""
    is_matched = any(cell.pairing for cell in table.cells)
    sources = SOURCES[:2] if is_matched else SOURCES
    marks = {"bold": "best", "underline": "second", "": ""}
    rows, blocks = [], []
    for key in table.rows:
        cells = [table.cell(**key, **column) for column in table.columns]
        blocks.append(len(rows))
        name = Entry(", ".join(_word(axis, value) for axis, value in key.items()))
        printed = [Entry(c.printed, mark=marks[c.mark], notes=table.marks(c)) for c in cells]  # type: ignore[arg-type]
        rows.append((name, Entry(sources[0]), *printed))
        rows += [(name, Entry(source), *_ours(results, cells, source)) for source in sources[1:]]
    names = list(dict.fromkeys(name for column in table.columns for name in column))
    heads = [["", "", *(_word(name, column.get(name)) for column in table.columns)] for name in names]
    heads[-1][:2] = [next(iter(table.rows[0])), "numbers"]
    lines, notes = tuple(map(tuple, heads)), tuple((note.mark, note.text) for note in table.footnotes)
    said = MATCHED if is_matched else CHOSEN.format(table.metric)
    remarks = [f"Ours are means over n seeds with 95% intervals over seeds and test samples. {said}"]
    remarks += _tallies(results, table, sources)
    if whole := [note.mark for note in table.footnotes if len(note.cells) == len(table.cells)]:
        remarks.append(f"About the whole table: note {', '.join(whole)}.")
    name, said = f"paper-{table.id}", tuple(remarks)
    return ReportTable(name, table.title, lines, tuple(rows), 2, notes, said, tuple(blocks))


def _ours(results: Results, cells: Sequence[PrintedCell], source: str) -> list[Entry]:
    """Our numbers for the cells of a row; those that differ in the method alone compete for the marks."""
    entries: dict[PrintedCell, Entry] = {}
    for contest in contests_of(cells):
        metric, found = _METRICS[str(contest[0].metric)], [measured(results, c, source) for c in contest]
        shown_ = [score_entry(score, metric, state, seeds=True) for score, state in found]
        marked = with_marks(shown_, [score.value for score, _ in found], metric)
        entries |= zip(contest, marked, strict=True)
    return [entries[c] for c in cells]


def measured(results: Results, cell: PrintedCell, source: str) -> tuple[Score, str]:
    """Our number for a cell of the paper, and its state, shown after or instead of it."""
    protocol = "paper" if source == SOURCES[1] else "fair"
    comparison = Comparison(protocol, str(cell.dataset), str(cell.model))
    chosen = results.best_top5 if cell.metric == "top-5" and protocol == "paper" else results.arrays
    arrays: MethodScores | None = (results.matched if cell.pairing else chosen).get(comparison)
    name = str(cell.method)
    if arrays is not None and cell.pairing:
        # cross-entropy at the model's own rate is one run, whatever the dilution of its partner.
        names = [matched_key(name, d, cell.pairing) for d in (cell.dilution, None)]
        name = next((n for n in names if n in arrays.choices), names[0])
    if arrays is None or name not in arrays.choices:
        return Score(None), "not run"
    return arrays.score(name, _METRICS[str(cell.metric)].key), arrays.choices[name].state


def _tallies(results: Results, table: PaperTable, sources: Sequence[str]) -> list[str]:
    """HACE against cross-entropy over the table, as printed and as measured: wins, mean and median."""
    said = []
    for source in sources:
        gaps = []
        for contest in table.contests():
            pair = [c for method in ("hace", "sce") for c in contest if c.method == method]
            known = [c.value if source == "printed" else measured(results, c, source)[0].value for c in pair]
            if len(known) == 2 and None not in known:
                gaps.append((known[0] - known[1]) * (1 if source == "printed" else 100))  # pyright: ignore
        if (t := tally(gaps)) is not None:
            said.append(f"{source}: HACE wins {t.won} of {t.of}, mean {t.mean:+.2f}, median {t.median:+.2f}")
    return [f"HACE against cross-entropy. {'; '.join(said)}."] if said else []


def _levels(results: Results) -> list[str]:
    """HACE and cross-entropy at the nodes above the classes, where the paper has them: ResNet-50 on FGVC-Aircraft."""
    lines = []
    for comparison, arrays in results.arrays.items():
        if (comparison.dataset, comparison.model) == ("aircraft", "resnet50"):
            for level, (name, (won, gain)) in enumerate(PRINTED_LEVELS.items()):
                found = node_accuracies(arrays, "hace", "sce", level)
                ours = "not run" if found is None else found.summary("HACE", "cross-entropy")
                printed = f"{name}. Printed: HACE matches or beats cross-entropy in {won}, mean gain {gain}."
                lines.append(f"{printed} Ours, {PROTOCOLS[comparison.protocol]}: {ours}")
    return lines


def _word(name: str, value: Any) -> str:
    if name == "method":
        return method_title(str(value))
    return f"d = {value:g}" if name == "dilution" else shown(str(value))
