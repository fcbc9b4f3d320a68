"""The paper in a study's report: its printed numbers and ours in the same cells, its set-up beside ours, what we assume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hace.lab.report.comparisons import HEADLINES, PROTOCOLS, Comparison, method_title, shown
from hace.lab.report.document import Entry, ReportTable, Section
from hace.lab.report.method_tables import score_entry, with_marks
from hace.lab.report.page import HOME
from hace.lab.report.results import MethodScores, Results, Score, matched_key, tally
from hace.lab.study.cells import Record
from hace.paper.assumptions import ASSUMPTIONS
from hace.paper.printed import PaperTable, PrintedCell, TableKey, paper_tables

_METRICS = {metric.title: metric for metric in HEADLINES}
SOURCES = ("printed", *(f"ours, {title}" for title in (PROTOCOLS["paper"], PROTOCOLS["fair"])))
GUIDE = f"<{HOME}/blob/main/docs/paper.md>"
ELSEWHERE = (
    "This study has no runs on the paper's data sets with the paper's models. Its tables, claims and errata are in the guide: "
    f"{GUIDE}."
)
SET_UP = {
    "train_images": "training images", "test_images": "test images", "image_size": "image size", "batch_size": "batch",
    "learning_rate": "rate", "weight_decay": "weight decay", "params": "parameters",
}  # fmt: skip


def report_sections(results: Results, draw: bool = True) -> list[Section]:
    """The sections on the paper; where a study has none of its data, one that says where to find it.

    Args:
        results: Results of the study.
        draw: Whether to draw figures; there are none.
    """
    pairs = {(comparison.dataset, comparison.model) for comparison in results.choices}
    touching = [t for t in comparable() if any((cell.dataset, cell.model) in pairs for cell in t.cells)]
    if not touching:
        return [Section("paper", "The paper", (ELSEWHERE,), folded=True)]
    rest = [table.title for table in comparable() if table not in touching]
    blocks: list[Any] = [
        "Every table of the paper that this study has runs for: the printed numbers, with known errors as footnotes, and ours "
        f"in the same cells. What follows from the printed numbers alone is in the guide: {GUIDE}.",
        *(paper_table(results, table) for table in touching),
        *setup_tables(results),
    ]
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

    def entries(cells: Sequence[PrintedCell], source: str) -> list[Entry]:
        return _printed(table, cells) if source == "printed" else _ours(results, cells, source)

    said = "Ours are means over n seeds with 95% intervals over seeds and test samples. "
    said += "Each cell is the run of that pair; nothing is chosen." if is_matched else (
        "Under the paper's protocol the best run of each seed, over rates and dilutions, is chosen by "
        f"{table.metric} accuracy on the test set, as the paper does; under the fair protocol by top-1 accuracy on held-out "
        "training samples."
    )  # fmt: skip
    whole = [note.mark for note in table.footnotes if len(note.cells) == len(table.cells)]
    remarks = [said, *_tallies(results, table, sources)]
    remarks += [f"About the whole table: note {', '.join(whole)}."] if whole else []
    names = list(dict.fromkeys(name for column in table.columns for name in column))
    heads = [["", "", *(_word(name, column.get(name)) for column in table.columns)] for name in names]
    return _beside(table, heads, sources, entries, remarks)


def _beside(
    table: PaperTable,
    heads: list[list[str]],
    sources: Sequence[str],
    entries: Callable[[Sequence[PrintedCell], str], list[Entry]],
    remarks: Sequence[str],
) -> ReportTable:
    """A printed table with a line for each source of numbers below each of its rows."""
    rows, blocks = [], []
    for key in table.rows:
        cells = [table.cell(**key, **column) for column in table.columns]
        blocks.append(len(rows))
        for source in sources:
            name = ", ".join(_word(axis, value) for axis, value in key.items())
            rows.append((Entry(name), Entry(source), *entries(cells, source)))
    heads[-1][:2] = [next(iter(table.rows[0])).replace("dataset", "data set"), "numbers"]
    notes = tuple((note.mark, note.text) for note in table.footnotes)
    lines = tuple(map(tuple, heads))
    title = table.title
    return ReportTable(
        f"paper-{table.id}", title, lines, tuple(rows), 2, notes, tuple(remarks), tuple(blocks)
    )


def _printed(table: PaperTable, cells: Sequence[PrintedCell]) -> list[Entry]:
    marks = {"bold": "best", "underline": "second", "": ""}
    return [Entry(c.printed, mark=marks[c.mark], notes=table.marks(c)) for c in cells]  # type: ignore[arg-type]


def _ours(results: Results, cells: Sequence[PrintedCell], source: str) -> list[Entry]:
    found = [measured(results, cell, source) for cell in cells]
    entries = [
        score_entry(score, _METRICS[str(c.metric)], state, seeds=True)
        for c, (score, state) in zip(cells, found, strict=True)
    ]
    contests: dict[tuple[object, ...], list[int]] = {}
    for i, c in enumerate(cells):
        contests.setdefault((c.dataset, c.model, c.dilution, c.pairing, c.metric), []).append(i)
    for places in contests.values():
        metric = _METRICS[str(cells[places[0]].metric)]
        contest = with_marks([entries[i] for i in places], [found[i][0].value for i in places], metric)
        for i, entry in zip(places, contest, strict=True):
            entries[i] = entry
    return entries


def measured(results: Results, cell: PrintedCell, source: str) -> tuple[Score, str]:
    """Our number for a cell of the paper, and its state, shown after or instead of it."""
    protocol = "paper" if source == SOURCES[1] else "fair"
    comparison = Comparison(protocol, str(cell.dataset), str(cell.model))
    chosen = results.best_top5 if cell.metric == "top-5" and protocol == "paper" else results.arrays
    arrays: MethodScores | None = (results.matched if cell.pairing else chosen).get(comparison)
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
            pair = [by["hace"], by["sce"]]
            printed = source == "printed"
            values = [
                (c.value or 0) / 100 if printed else measured(results, c, source)[0].value for c in pair
            ]
            if values[0] is not None and values[1] is not None:
                gaps.append(100 * (values[0] - values[1]))
        if (t := tally(gaps)) is not None:
            said.append(f"{source}: HACE wins {t.won} of {t.of}, mean {t.mean:+.2f}, median {t.median:+.2f}")
    return [f"HACE against SCE. {'; '.join(said)}."] if said else []


def setup_tables(results: Results) -> list[ReportTable]:
    """The tables of the set-up (data sets, architectures, learning rates) whose rows the study has finished runs of."""
    finished = [r for r in results.records if r.stage == "final" and r.status == "finished"]
    tables = []
    for name, axis in (("datasets", "dataset"), ("architectures", "model"), ("learning_rates", "pairing")):
        table = paper_tables()[name]
        if any(getattr(r.key, axis) == key[axis] for r in finished for key in table.rows):
            tables.append(_setup_table(results, table, axis, finished))
    return tables


def _setup_table(results: Results, table: PaperTable, axis: str, records: Sequence[Record]) -> ReportTable:
    def entries(cells: Sequence[PrintedCell], source: str) -> list[Entry]:
        if source == "printed":
            return _printed(table, cells)
        runs = [r for r in records if getattr(r.key, axis) == getattr(cells[0], axis)]
        if not runs:
            return [Entry("not run", soft=True)] * len(cells)
        return [Entry(_several(_setting(results, cell, runs))) for cell in cells]

    heads = [["", "", *map(_setup_head, table.columns)]]
    remark = "Ours: the settings of this study's final runs; several values where runs differ."
    return _beside(table, heads, ("printed", "ours"), entries, [remark])


def _setup_head(column: TableKey) -> str:
    if "method" in column:
        return method_title(column["method"])
    metric = SET_UP.get(column["metric"], column["metric"])
    return f"{metric}, {shown(column['dataset'])}" if "dataset" in column else str(metric)


def _setting(results: Results, cell: PrintedCell, runs: Sequence[Record]) -> Iterable[Any]:
    """The values that our runs have where the paper prints a cell of its set-up; none for properties of a model."""
    metric = {"learning_rate": "lr", "scheduler": "schedule"}.get(str(cell.metric), str(cell.metric))
    if cell.method is not None:
        return {r.lr for r in runs if r.key.method == cell.method}
    configs = [r.run.config for r in runs if r.run is not None and cell.dataset in (None, r.key.dataset)]
    if metric in ("train_images", "test_images"):
        found = [(r.run.result if r.run is not None else None) or {} for r in runs]
        part = [d.get("train") or {} for d in found] if metric == "train_images" else found
        return {f"{d['samples']:,}": d["samples"] for d in part if d.get("samples")}
    if metric == "image_size":
        return {f"{s} x {s}": s for c in configs if (s := getattr(c, metric, None)) is not None}
    trees = [a.hierarchy for c, a in results.arrays.items() if c.dataset == cell.dataset and a.hierarchy]
    if metric in ("leaves", "nodes"):
        return [f"{getattr(h, f'num_{metric}'):,}" for h in trees]
    if metric == "depth":
        return [" or ".join(map(str, sorted({int(d) for d in h.depths[h.leaf_nodes]}))) for h in trees]
    return {value for c in configs if (value := getattr(c, metric, None)) is not None}


def _several(values: Iterable[Any]) -> str:
    known = sorted(values, key=values.get) if isinstance(values, Mapping) else values
    ordered = (
        known if isinstance(values, Mapping) else sorted(set(known), key=lambda v: (isinstance(v, str), v))
    )
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in ordered]
    return (", ".join(texts) if len(texts) <= 6 else f"{texts[0]} to {texts[-1]}") or "-"


def _word(name: str, value: Any) -> str:
    if name == "method":
        return method_title(str(value))
    return f"d = {value:g}" if name == "dilution" else shown(str(value))
