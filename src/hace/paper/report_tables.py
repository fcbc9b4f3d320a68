"""The paper's tables, with its printed numbers and ours in the same cells."""

from __future__ import annotations

from collections.abc import Sequence

from hace.lab.report.arenas import HEADLINES, PROTOCOLS, Arena, method_title, shown
from hace.lab.report.render import Entry, ReportTable
from hace.lab.report.results import Results, matched_key, tally
from hace.lab.report.scores import ArenaScores, Score
from hace.lab.report.tables import score_entry, with_marks
from hace.paper.printed import PaperTable, PrintedCell, paper_tables

_METRICS = {metric.title: metric for metric in HEADLINES}
SOURCES = ("printed", *(f"ours, {title}" for title in (PROTOCOLS["paper"], PROTOCOLS["fair"])))


def comparable() -> list[PaperTable]:
    """The tables with results; those of the set-up have none."""
    return [t for t in paper_tables().values() if all(cell.metric in _METRICS for cell in t.cells)]


def touched(results: Results, table: PaperTable) -> bool:
    """Whether a study has or plans runs for a table."""
    arenas = {(arena.dataset, arena.model) for arena in results.choices}
    return any((cell.dataset, cell.model) in arenas for cell in table.cells)


def paper_table(results: Results, table: PaperTable) -> ReportTable:
    """A table of the paper: for each row the printed numbers, then ours under both protocols."""
    is_matched = any(cell.pairing for cell in table.cells)
    sources = SOURCES[:2] if is_matched else SOURCES
    rows, blocks = [], []
    for key in table.rows:
        cells = [table.cell(**key, **column) for column in table.columns]
        blocks.append(len(rows))
        for source in sources:
            entries = (
                [_printed(table, c) for c in cells] if source == "printed" else _ours(results, cells, source)
            )
            rows.append((Entry(_words(key)), Entry(source), *entries))
    names = list(dict.fromkeys(name for column in table.columns for name in column))
    heads = [["", "", *(_word(name, column.get(name)) for column in table.columns)] for name in names]
    heads[-1][:2] = [next(iter(table.rows[0])).replace("dataset", "data set"), "numbers"]
    notes = tuple((note.mark, note.text) for note in table.footnotes)
    whole = [note.mark for note in table.footnotes if len(note.cells) == len(table.cells)]
    remarks = [*_about(is_matched, table.metric), *_tallies(results, table, sources)]
    remarks += [f"About the whole table: note {', '.join(whole)}."] if whole else []
    return ReportTable(
        f"paper-{table.id}",
        table.title,
        tuple(map(tuple, heads)),
        tuple(rows),
        2,
        notes,
        tuple(remarks),
        tuple(blocks),
    )


def _about(is_matched: bool, metric: str | None) -> list[str]:
    said = "Ours are means over n seeds with 95 % intervals, bootstrapped over seeds and test samples. "
    if is_matched:
        return [said + "Each cell is the run of that pair; nothing is chosen."]
    return [
        said
        + f"Under the paper's protocol the best run of each seed, over rates and dilutions, is chosen by {metric} accuracy on "
        "the test set, as the paper does; under the fair protocol by top-1 accuracy on held-out training samples."
    ]


def _printed(table: PaperTable, cell: PrintedCell) -> Entry:
    mark = {"bold": "best", "underline": "second"}.get(cell.mark, "")
    return Entry(cell.printed, mark=mark, notes=table.marks(cell))  # type: ignore[arg-type]


def _ours(results: Results, cells: Sequence[PrintedCell], source: str) -> list[Entry]:
    protocol = "paper" if source == SOURCES[1] else "fair"
    found = [measured(results, cell, protocol) for cell in cells]
    entries = [
        score_entry(score, _METRICS[str(c.metric)], state, seeds=True)
        for c, (score, state) in zip(cells, found, strict=True)
    ]
    contests: dict[tuple[object, ...], list[int]] = {}
    for i, cell in enumerate(cells):
        contests.setdefault((cell.dataset, cell.model, cell.dilution, cell.pairing, cell.metric), []).append(
            i
        )
    for arenas in contests.values():
        metric = _METRICS[str(cells[arenas[0]].metric)]
        contest = with_marks([entries[i] for i in arenas], [found[i][0].value for i in arenas], metric)
        for i, entry in zip(arenas, contest, strict=True):
            entries[i] = entry
    return entries


def measured(results: Results, cell: PrintedCell, protocol: str) -> tuple[Score, str]:
    """Our number for a cell of the paper, and its state, shown after or instead of it."""
    arena = Arena(protocol, str(cell.dataset), str(cell.model))
    chosen = results.best_top5 if cell.metric == "top-5" and protocol == "paper" else results.arrays
    arrays: ArenaScores | None = (results.matched if cell.pairing else chosen).get(arena)
    name = str(cell.method)
    if arrays is not None and cell.pairing:
        # SCE at the model's own rate is one run, whatever the dilution of its partner.
        names = [matched_key(name, d, cell.pairing) for d in (cell.dilution, None)]
        name = next((n for n in names if n in arrays.choices), names[0])
    if arrays is None or name not in arrays.choices:
        return Score(None), "not run"
    return arrays.score(name, _METRICS[str(cell.metric)].key), arrays.choices[name].state


def _tallies(results: Results, table: PaperTable, sources: Sequence[str]) -> list[str]:
    """HACE against SCE over the table, as printed and as measured: wins, mean and median."""
    said = []
    for source in sources:
        gaps = []
        for contest in table.contests():
            by = {cell.method: cell for cell in contest}
            if "hace" not in by or "sce" not in by:
                continue
            if source == "printed":
                values = [by[m].value for m in ("hace", "sce")]
            else:
                protocol = "paper" if source == SOURCES[1] else "fair"
                scores = [measured(results, by[m], protocol)[0].value for m in ("hace", "sce")]
                values = [None if v is None else 100 * v for v in scores]
            if None not in values:
                gaps.append(values[0] - values[1])  # type: ignore[operator]
        if (t := tally(gaps)) is not None:
            said.append(f"{source}: HACE wins {t.won} of {t.of}, mean {t.mean:+.2f}, median {t.median:+.2f}")
    return [f"HACE against SCE. {'; '.join(said)}."] if said else []


def _words(key: object) -> str:
    assert isinstance(key, dict)
    return ", ".join(_word(name, value) for name, value in key.items())


def _word(name: str, value: object) -> str:
    if name == "method":
        return method_title(str(value))
    if name == "dilution":
        return f"d = {value:g}"  # type: ignore[str-format]
    return shown(str(value))
