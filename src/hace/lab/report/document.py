"""What a report consists of: sections of paragraphs, lists, tables and pictures.

A block is a paragraph (str), a list of them, or an object with a `kind`, which the template `blocks.html` knows. A table is a
DataFrame with a caption; it is also text, CSV and LaTeX.
"""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import pandas as pd

from hace.files.documents import csv_text

if TYPE_CHECKING:
    from hace.lab.report.cards import Card
    from hace.lab.report.results import Results

Mark = Literal["", "best", "second"]
# Standing texts.
WORDS = json.loads((files("hace.lab.report") / "assets" / "words.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Entry:
    """What a table shows in one place."""

    text: str
    detail: str = ""  # shown small after it: an interval, a number of seeds
    mark: Mark = ""  # best (bold) or second best (underlined) of those it competes with
    notes: tuple[str, ...] = ()  # marks of footnotes
    soft: bool = False  # whether it is a remark, such as "not run", rather than a result


@dataclass(frozen=True, eq=False)
class Table:
    """A table: a DataFrame of entries and of plain text, with its caption."""

    id: str  # for files and links
    title: str  # its caption
    frame: pd.DataFrame  # several lines of headings are a MultiIndex
    stub: int = 1  # how many columns name a row
    notes: tuple[tuple[str, str], ...] = ()  # footnotes: mark and text
    remarks: tuple[str, ...] = ()  # what holds for all of it
    rules: tuple[int, ...] = ()  # rows with a rule above them
    kind: ClassVar[str] = "table"

    def table(self) -> Table:
        """Itself: every block with a table has this."""
        return self

    @property
    def heads(self) -> list[tuple[str, ...]]:
        """The lines of headings."""
        columns = self.frame.columns
        return [tuple(columns.get_level_values(line)) for line in range(columns.nlevels)]

    @property
    def head(self) -> list[str]:
        """One heading per column: the lines of headings, joined."""
        return [" ".join(dict.fromkeys(filter(None, column))) for column in zip(*self.heads, strict=True)]

    @property
    def rows(self) -> list[list[Entry]]:
        """The rows."""
        lines = self.frame.itertuples(index=False, name=None)
        return [[cell if isinstance(cell, Entry) else Entry(str(cell)) for cell in line] for line in lines]

    def plain(self) -> pd.DataFrame:
        """The table as text, for files: details have columns of their own, and marks are dropped."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.head)
        heads = []
        texts = []
        for head, column in zip(self.head, columns, strict=True):
            heads.append(head)
            texts.append(["" if entry.text == "-" else entry.text for entry in column])
            if any(entry.detail for entry in column):
                heads.append(f"{head} (detail)")
                texts.append([entry.detail for entry in column])
        return pd.DataFrame(zip(*texts, strict=True), columns=pd.Index(heads))


class Folded(NamedTuple):
    """Blocks that open with a click."""

    title: str
    blocks: tuple[Any, ...]
    kind = "folded"


class Switch(NamedTuple):
    """Blocks of which one is shown: the first, until a reader chooses another by its title."""

    label: str
    options: tuple[tuple[str, Any], ...]
    kind = "switch"


class Section(NamedTuple):
    """A part of the report: its anchor, heading and blocks, and whether a click opens it."""

    id: str
    title: str
    blocks: tuple[Any, ...]
    folded: bool = False


@dataclass
class Document:
    """A whole report."""

    title: str
    facts: list[tuple[str, str]]  # what was run: term and text
    caution: str = ""  # what a reader must know before everything else
    cards: list[Card] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    # for the interactive drawing: title, hierarchy and sums of each condition
    drawings: list[dict[str, Any]] = field(default_factory=list)
    about: str = "About this study: data, versions, command to reproduce"
    listed: str = "Tables: tables/ (CSV, LaTeX). Figures: figures/ (PNG, SVG). Runs: runs.csv."
    naming: str = "Run hace report again with --names FILE."  # for a hierarchy whose names are all numbers

    def leaves(self) -> Iterator[Any]:
        """All paragraphs, tables and pictures, in order, those within other blocks too."""
        return (leaf for section in self.sections for leaf in _leaves(section.blocks))

    def tables(self) -> Iterator[Table]:
        """All tables."""
        return (block.table() for block in self.leaves() if hasattr(block, "table"))

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The files of tables and figures: path and content."""
        for table in self.tables():
            yield f"tables/{table.id}.csv", to_csv(table).encode()
            yield f"tables/{table.id}.tex", to_latex(table).encode()
        for picture in (block for block in self.leaves() if hasattr(block, "svg")):
            yield f"figures/{picture.name}.png", picture.png
            yield f"figures/{picture.name}.svg", picture.svg


SectionBuilder = Callable[["Results", bool], Sequence[Section]]  # from results and whether to draw


def _leaves(blocks: Sequence[Any]) -> Iterator[Any]:
    for block in blocks:
        if isinstance(block, Folded):
            yield from _leaves(block.blocks)
        elif isinstance(block, Switch):
            yield from _leaves([inner for _, inner in block.options])
        else:
            yield block


def with_marks(entries: Sequence[Entry], values: Sequence[float | None], higher: bool = True) -> list[Entry]:
    """The entries that compete, with best and second marked; equals share. Of two only the best is marked, one not at all."""
    known = [value for value in values if value is not None]
    order = sorted(set(known), reverse=higher)
    marks: tuple[Mark, ...] = ("best", "second")[: max(len(known) - 1, 0)]
    mark_of = dict(zip(order, marks, strict=False))
    return [
        entry if value is None else replace(entry, mark=mark_of.get(value, ""))
        for entry, value in zip(entries, values, strict=True)
    ]


# --- a table in other formats


def to_csv(table: Table) -> str:
    """The table as CSV; no cell starts a formula."""
    plain = table.plain()
    return csv_text([list(plain.columns), *plain.itertuples(index=False, name=None)])


def to_latex(table: Table) -> str:
    """The table as a tabular of booktabs."""
    return table.plain().to_latex(index=False, escape=True)


def to_text(table: Table, width: int = 100) -> str:
    """For the terminal: columns that do not fit beside the others come below, with the rows' names again."""
    lines = [table.head, *([_in_text(entry) for entry in row] for row in table.rows)]
    widths = _widths(lines, table.stub, width)
    text = textwrap.wrap(table.title, width)
    for columns in _parts(widths, table.stub, width):
        text.append("")
        for line in lines:
            text += _text_lines(line, columns, widths, table.stub)
    remarks = [line for remark in table.remarks for line in textwrap.wrap(remark, width)]
    return "\n".join([*text, *(["", *remarks] if remarks else [])])


def aligned(lines: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows of a small table without headings: names at the left, the others at the right of their columns."""
    if not lines:
        return []
    widths = _widths(lines, 1, width)
    columns = range(len(widths))
    return [text for line in lines for text in _text_lines(line, columns, widths, 1)]


def _widths(lines: Sequence[Sequence[str]], stub: int, width: int) -> list[int]:
    """Of columns; names are cut where not all columns fit."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        room = max(width // 3, width - sum(widths[stub:]) - 2 * (len(widths) - 1)) // stub
        widths[:stub] = [min(name, room) for name in widths[:stub]]
    return widths


def _parts(widths: Sequence[int], stub: int, width: int) -> list[list[int]]:
    """The columns that are shown together: those that name a row, and as many others as fit."""
    names = list(range(stub))
    parts = [names.copy()]
    for column in range(stub, len(widths)):
        together = [*parts[-1], column]
        if len(parts[-1]) > stub and sum(widths[i] + 2 for i in together) - 2 > width:
            parts.append([*names, column])
        else:
            parts[-1] = together
    return parts


def _text_lines(
    row: Sequence[str], columns: Sequence[int], widths: Sequence[int], stub: int
) -> Iterator[str]:
    """Some columns of a row; names that are too long go on in further lines."""
    wrapped = [
        (textwrap.wrap(row[c], widths[c], break_on_hyphens=False) or [""]) if c < stub else [row[c]]
        for c in columns
    ]
    for texts in itertools.zip_longest(*wrapped, fillvalue=""):
        placed = [
            text.ljust(widths[c]) if c < stub else text.rjust(widths[c])
            for c, text in zip(columns, texts, strict=True)
        ]
        yield "  ".join(placed).rstrip()


def _in_text(entry: Entry) -> str:
    place = {"best": "1st", "second": "2nd"}.get(entry.mark, "")
    return " ".join(filter(None, (entry.text, entry.detail, place)))
