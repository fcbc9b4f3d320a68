"""The paper's tables as data: every printed number, with the keys that join it to our results.

A cell is named by what it was measured on, with `None` where a table does not distinguish:

    table  dataset  model  method  dilution  pairing  metric  ->  printed, mark

Datasets are named as in :data:`hace.DATASETS`. Numbers and marks are in `tables.json`, the footnotes about known errors in
`errata.json`, what we assume where the paper says nothing in `assumptions.json`; `evidence/paper.md` lists both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import product
from string import ascii_lowercase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hace.checks import check_choice
from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.data.dataset import Dataset

CELL_KEYS = ("dataset", "model", "method", "dilution", "pairing", "metric")


@dataclass(frozen=True)
class PrintedCell:
    """A cell of a printed table."""

    table: str
    printed: str  # as printed, LaTeX turned into plain text: "77.93", "~11.7M", "1e-4"
    mark: str = ""  # "bold", "underline" or none
    dataset: str | None = None
    model: str | None = None
    method: str | None = None
    dilution: float | None = None
    # "standard": HACE at l, cross-entropy at l * d; "adjusted": HACE at l / d, cross-entropy at l
    pairing: str | None = None
    metric: str | None = None

    @property
    def value(self) -> float | None:
        """The number; None if the cell holds something else."""
        text = self.printed.removeprefix("~").replace(",", "")
        try:
            return float(text.removesuffix("M")) * (1e6 if text.endswith("M") else 1)
        except ValueError:
            return None


class Footnote(NamedTuple):
    """A known error of the paper, below one table: a letter, its text, and the cells of this table it is about."""

    mark: str
    text: str
    cells: tuple[PrintedCell, ...]


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    `rows` and `columns` are keys, in printed order: the cell at their crossing is `table.cell(**row, **column)`.
    """

    id: str
    title: str  # in our words
    label: str  # the LaTeX label
    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[Mapping[str, Any], ...]
    cells: tuple[PrintedCell, ...]
    footnotes: tuple[Footnote, ...] = ()

    @property
    def metric(self) -> str | None:
        """What all its cells measure, "top-1" or "top-5"; None if columns differ."""
        metrics = {cell.metric for cell in self.cells}
        return metrics.pop() if len(metrics) == 1 else None

    def select(self, **key: str | float | None) -> tuple[PrintedCell, ...]:
        """The cells with these keys; other keys may have any value."""
        for name in key:
            check_choice("a key", name, CELL_KEYS)
        return tuple(c for c in self.cells if all(getattr(c, name) == key[name] for name in key))

    def cell(self, **key: str | float | None) -> PrintedCell:
        """The one cell with these keys.

        Raises:
            ConfigError: No cell has them, or more than one.
        """
        cells = self.select(**key)
        if len(cells) == 1:
            return cells[0]
        differ = [name for name in CELL_KEYS if len({getattr(c, name) for c in cells}) > 1]
        remedy = f" Add {' and '.join(differ)}." if cells else ""
        for name, value in key.items() if not cells else ():
            known = dict.fromkeys(str(getattr(cell, name)) for cell in self.cells)
            remedy += "" if str(value) in known else f" For {name} it has {', '.join(known)}."
        asked = ", ".join(f"{name}={value!r}" for name, value in key.items()) or "no key"
        raise ConfigError(
            f"{asked} must name one cell of the table {self.id!r}. Got {len(cells)} cells.{remedy}"
        )

    def value(self, **key: str | float | None) -> float:
        """The number in the one cell with these keys.

        Example:
            >>> paper_tables()["best_to_best"].value(model="resnet50", dataset="cifar100", method="hace")
            80.53
        """
        cell = self.cell(**key)
        if cell.value is None:
            raise ConfigError(f"the cell must hold a number. Got {cell.printed!r}. Read its `printed`.")
        return cell.value

    def comparisons(self) -> list[list[PrintedCell]]:
        """Groups of cells with a number that compete: those that differ in the method alone."""
        return comparisons_of([c for c in self.cells if c.method is not None and c.value is not None])

    def marks(self, cell: PrintedCell) -> tuple[str, ...]:
        """The marks of a cell's footnotes, without those of the whole table."""
        return tuple(n.mark for n in self.footnotes if cell in n.cells and len(n.cells) < len(self.cells))


def comparisons_of(cells: Sequence[PrintedCell]) -> list[list[PrintedCell]]:
    """The cells in groups that differ in the method alone."""
    groups: dict[tuple[Any, ...], list[PrintedCell]] = {}
    for cell in cells:
        groups.setdefault(tuple(getattr(cell, n) for n in CELL_KEYS if n != "method"), []).append(cell)
    return list(groups.values())


@cache
def read_document(name: str) -> Any:
    """A document beside this file: tables.json, errata.json or assumptions.json."""
    return json.loads(resources.files("hace.paper").joinpath(name).read_text(encoding="utf-8"))


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """All tables of the paper by our id, in the order of the paper's results, then those of its set-up.

    Example:
        >>> table = paper_tables()["model_matched"]
        >>> table.value(model="swin_tiny", dilution=0.2, pairing="adjusted", method="hace")
        9.75
    """
    tables = {}
    for entry in read_document("tables.json")["tables"]:
        table = _table(entry)
        notes = []
        for error in read_document("errata.json"):
            keys = [
                {k: key[k] for k in key if k != "table"} for key in error["cells"] if key["table"] == table.id
            ]
            if cells := tuple(cell for key in keys for cell in table.select(**key)):
                notes.append(Footnote(ascii_lowercase[len(notes)], error["text"], cells))
        tables[table.id] = replace(table, footnotes=tuple(notes))
    return MappingProxyType(tables)


def _table(entry: Mapping[str, Any]) -> PaperTable:
    """A table from its entry: one line per row, cells between bars, **bold** and _underlined_."""
    columns = entry["columns"]
    if isinstance(columns, dict):  # all combinations, the last key fastest
        columns = [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]
    common = {**entry.get("all", {}), **({"metric": entry["metric"]} if "metric" in entry else {})}
    cells = []
    for name, line in entry["rows"].items():
        for column, text in zip(columns, map(str.strip, line.split("|")), strict=True):
            mark = "bold" if text.startswith("**") else "underline" if text.startswith("_") else ""
            key = {**common, entry["row"]: name, **column}
            cells.append(PrintedCell(entry["id"], text.strip("*_"), mark, **key))
    rows = tuple({entry["row"]: name} for name in entry["rows"])
    return PaperTable(entry["id"], entry["title"], entry["label"], rows, tuple(columns), tuple(cells))


ASSUMPTIONS: tuple[str, ...] = tuple(read_document("assumptions.json"))
NOTES = {"nabirds": ("passeriformes", "three-level-path")}  # errata of the text about a dataset


def data_text(data: Dataset[Any], name: str) -> str:
    """A dataset's figures from its files, with those that the paper prints beside them where it has any."""
    from hace.data import DATASETS

    kind = DATASETS[name]
    table = paper_tables()["datasets"]
    printed = {str(cell.metric): cell for cell in table.select(dataset=name)}
    marks = {metric: ",".join(table.marks(cell)) for metric, cell in printed.items()}
    rows = [("", "files", "paper", "")] if printed else []
    for key, heading, value in _figures(data, kind.size):
        there = printed[key].printed if key in printed else ""
        rows.append((heading, value, there, marks.get(key, "")))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [kind.title if printed else f"{data.name} ({kind.title})", ""]
    for heading, here, paper, mark in rows:
        note = f" {mark}" if mark else ""
        lines.append(f"  {heading:<{widths[0]}}  {here:>{widths[1]}}  {paper:>{widths[2]}}{note}".rstrip())
    notes = [f"{note.mark} {note.text}" for note in table.footnotes if note.mark in ",".join(marks.values())]
    notes += [error["text"] for error in read_document("errata.json") if error["id"] in NOTES.get(name, ())]
    h = data.hierarchy
    root = f"with the root {h.tops[0]!r}" if h.rooted else "without a root"
    nodes = [int((h.depths == depth).sum()) for depth in range(0 if h.rooted else 1, h.max_depth + 1)]
    shape = f"hierarchy: {h.kind} {root}, {' + '.join(map(str, nodes))} nodes by depth"
    details = [shape, *data.summary().splitlines()[1:]]
    return "\n".join([*lines, "", *details, *(["", *notes] if notes else [])])


def _figures(data: Dataset[Any], size: int | None) -> Iterator[tuple[str, str, str]]:
    """Key, heading and value of what the paper's table says of a dataset; depth is counted below the root."""
    h = data.hierarchy
    counts = {split: f"{len(samples):,}" for split, samples in data.splits.items()}
    yield "train_images", "training samples", counts.pop("train", "-")
    yield "test_images", "test samples", counts.pop("test", "-")
    yield from ((split, f"{split} samples", count) for split, count in counts.items())
    yield "leaves", "leaf classes", f"{h.num_leaves:,}"
    yield "nodes", "nodes", f"{h.num_nodes:,}"
    depths = sorted(map(str, set(h.depths[h.leaf_nodes].tolist())), key=int)
    between = " or " if len(depths) < 3 else " to "
    yield "depth", "hierarchical depth", between.join(depths[:1] + depths[1:][-1:])
    features = getattr(next(iter(data.splits.values())), "num_features", None)
    image = ("image_size", "cropped image size", f"{size} x {size}")
    yield image if features is None else ("features", "features", f"{features:,}")
