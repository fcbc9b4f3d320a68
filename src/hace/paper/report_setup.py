"""The paper's set-up (data sets, architectures, learning rates) beside that of our runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hace.lab.report.arenas import method_title, shown
from hace.lab.report.render import Entry, ReportTable
from hace.lab.report.results import Results
from hace.lab.study.cells import Record
from hace.paper.printed import PaperTable, PrintedCell, paper_tables

TITLES = {
    "train_images": "training images", "test_images": "test images", "image_size": "image size", "batch_size": "batch",
    "learning_rate": "rate", "weight_decay": "weight decay", "params": "parameters",
}  # fmt: skip


def setup_tables(results: Results) -> list[ReportTable]:
    """The set-up tables whose data sets or models the study has finished runs of."""
    finished = [r for r in results.records if r.stage == "final" and r.status == "finished"]
    tables = paper_tables()
    found = [
        _table(tables["datasets"], "dataset", finished, lambda cell, runs: _data(results, cell, runs)),
        _table(tables["architectures"], "model", finished, _architecture),
        _table(tables["learning_rates"], "pairing", finished, _rates),
    ]
    return [table for table in found if table is not None]


def _table(
    table: PaperTable, axis: str, records: list[Record], ours: Callable[[PrintedCell, list[Record]], str]
) -> ReportTable | None:
    rows, blocks = [], []
    for key in table.rows:
        name = str(key[axis])
        runs = [r for r in records if getattr(r.key, axis) == name]
        cells = [table.cell(**key, **column) for column in table.columns]
        blocks.append(len(rows))
        title = shown(name)
        rows.append(
            (Entry(title), Entry("printed"), *(Entry(c.printed, notes=table.marks(c)) for c in cells))
        )
        entries = [
            Entry(text, soft=text == "not run")
            for text in (ours(c, runs) if runs else "not run" for c in cells)
        ]
        rows.append((Entry(title), Entry("ours"), *entries))
    if not any(getattr(r.key, axis) in {row[axis] for row in table.rows} for r in records):
        return None
    heads = ({"dataset": "data set"}.get(axis, axis), "numbers", *map(_head, table.columns))
    notes = tuple((note.mark, note.text) for note in table.footnotes)
    remark = "Ours: the settings of this study's final runs; several values where runs differ."
    return ReportTable(
        f"paper-{table.id}", table.title, (heads,), tuple(rows), 2, notes, (remark,), tuple(blocks)
    )


def _head(column: Any) -> str:
    if "method" in column:
        return method_title(column["method"])
    metric = TITLES.get(column["metric"], column["metric"])
    return f"{metric}, {shown(column['dataset'])}" if "dataset" in column else str(metric)


def _data(results: Results, cell: PrintedCell, runs: list[Record]) -> str:
    metric = str(cell.metric)
    if metric in ("train_images", "test_images"):
        found = [_result(r) for r in runs]
        counts = {
            (d.get("train") or {}).get("samples") if metric == "train_images" else d.get("samples")
            for d in found
        }
        return _several(f"{count:,}" for count in sorted(c for c in counts if c is not None))
    if metric == "image_size":
        sides = {_setting(r, "image_size") for r in runs} - {None}
        return _several(f"{side} x {side}" for side in sorted(sides))
    trees = [
        a.hierarchy
        for p, a in results.arrays.items()
        if p.dataset == cell.dataset and a.hierarchy is not None
    ]
    answers = {
        "leaves": lambda h: f"{h.num_leaves:,}",
        "nodes": lambda h: f"{h.num_nodes:,}",
        "depth": lambda h: " or ".join(map(str, sorted({int(d) for d in h.depths[h.leaf_nodes]}))),
    }
    return _several(answers[metric](h) for h in trees)


def _architecture(cell: PrintedCell, runs: list[Record]) -> str:
    names = {"learning_rate": "lr", "scheduler": "schedule"}
    metric = str(cell.metric)
    if cell.dataset is not None:
        runs = [r for r in runs if r.key.dataset == cell.dataset]
    if metric in ("type", "params"):  # a property of the model, which the report does not build
        return "-"
    values = [v for r in runs if (v := _setting(r, names.get(metric, metric))) is not None]
    texts = {f"{v:g}" if isinstance(v, float) else str(v): v for v in values}
    return _several(sorted(texts, key=lambda t: (isinstance(texts[t], str), texts[t])))


def _rates(cell: PrintedCell, runs: list[Record]) -> str:
    rates = sorted({r.lr for r in runs if r.key.method == cell.method})
    return _several(f"{rate:g}" for rate in rates)


def _setting(record: Record, name: str) -> Any:
    return getattr(record.run.config, name, None) if record.run is not None else None


def _result(record: Record) -> Any:
    return (record.run.result if record.run is not None else None) or {}


def _several(texts: Iterable[str]) -> str:
    found = list(dict.fromkeys(texts))
    return (", ".join(found) if len(found) <= 6 else f"{found[0]} to {found[-1]}") or "-"
