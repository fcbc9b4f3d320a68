"""What a report consists of: sections of paragraphs, lists, tables and pictures. A table is also text, CSV and LaTeX.

A block is a paragraph (str), a list of them, or an object with a `kind`, which the template `blocks.html` knows.
"""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from hace.files.documents import csv_text

if TYPE_CHECKING:
    from hace.lab.report.results import Results
    from hace.lab.report.verdict import Verdict

Mark = Literal["", "best", "second"]
# Standing texts.
WORDS = json.loads((files("hace.lab.report") / "assets" / "words.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Entry:
    """A cell."""

    text: str
    detail: str = ""  # shown small after it: an interval, a number of seeds
    mark: Mark = ""  # best (bold) or second best (underlined) of those it competes with
    notes: tuple[str, ...] = ()  # marks of footnotes
    soft: bool = False  # whether it is a remark, such as "not run", rather than a result


@dataclass(frozen=True)
class ReportTable:
    """A table."""

    id: str  # for files and links
    title: str  # its caption
    # one or more lines of headings, all of the same length; equal neighbours in all but the last line span
    heads: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[Entry, ...], ...]
    stub: int = 1  # how many columns name a row
    notes: tuple[tuple[str, str], ...] = ()  # footnotes: mark and text
    remarks: tuple[str, ...] = ()  # what holds for all of it
    blocks: tuple[int, ...] = ()  # indices of rows with a rule above them
    kind: ClassVar[str] = "table"

    def table(self) -> ReportTable:
        """Itself: every block with a table has this."""
        return self


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
    verdicts: list[Verdict] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    # for the interactive drawing: title, hierarchy and sums of each comparison
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    about: str = "About this study: data, versions, command to reproduce"
    listed: str = "Tables: tables/ (CSV, LaTeX). Figures: figures/ (PNG, SVG). Runs: runs.csv."
    naming: str = "Run hace report again with --names FILE."  # for a hierarchy whose names are all numbers

    def leaves(self) -> Iterator[Any]:
        """All paragraphs, tables and pictures, in order, those within other blocks too."""
        return (leaf for section in self.sections for leaf in _leaves(section.blocks))

    def tables(self) -> Iterator[ReportTable]:
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


def marked(values: Sequence[float | None], higher: bool = True) -> list[Mark]:
    """Marks of the best and the second; equals share. Of two values only the best is marked, a single one not at all."""
    order = sorted({v for v in values if v is not None}, reverse=higher)
    count = sum(v is not None for v in values)
    marks: tuple[Mark, ...] = ("best", "second")[: max(count - 1, 0)]
    names = dict(zip(order, marks, strict=False))
    return ["" if v is None else names.get(v, "") for v in values]


def head_line(table: ReportTable) -> list[str]:
    """One heading per column: the lines of headings, joined."""
    columns = zip(*table.heads, strict=True)
    return [" ".join(dict.fromkeys(part for part in column if part)) for column in columns]


def to_rows(table: ReportTable) -> list[list[str]]:
    """Headings, then one line per row; details have their own columns, and marks are dropped."""
    detailed = [any(row[c].detail for row in table.rows) for c in range(len(table.heads[-1]))]
    heads = ([h, f"{h} (detail)"] if d else [h] for h, d in zip(head_line(table), detailed, strict=True))
    rows = [list(itertools.chain.from_iterable(heads))]
    for row in table.rows:
        cells = ([e.text, e.detail] if d else [e.text] for e, d in zip(row, detailed, strict=True))
        rows.append(["" if cell == "-" else cell for cell in itertools.chain.from_iterable(cells)])
    return rows


def to_csv(table: ReportTable) -> str:
    """The table as CSV; no cell starts a formula."""
    return csv_text(to_rows(table))


def to_latex(table: ReportTable) -> str:
    """The table as a tabular of booktabs, with the text that pandas would write, without the time to load it."""
    cells = to_rows(table)
    heads, *rows = [" & ".join(_LATEX.sub(_escaped, cell) for cell in row) + r" \\" for row in cells]
    begin = rf"\begin{{tabular}}{{{'l' * len(cells[0])}}}"
    lines = (begin, r"\toprule", heads, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", "")
    return "\n".join(lines)


_LATEX = re.compile(r"\\ ?|[~^] ?|[_%$#{}&]")
_NAMED = {"\\": r"\textbackslash ", "~": r"\textasciitilde ", "^": r"\textasciicircum "}


def _escaped(found: re.Match[str]) -> str:
    sign = found[0][0]
    return _NAMED.get(sign, f"\\{sign}") + (r"\space " if found[0][1:] else "")  # LaTeX swallows a plain one


def to_text(table: ReportTable, width: int = 100) -> str:
    """For the terminal: columns that do not fit beside the others come below, with the rows' names again."""
    heads, stub = head_line(table), table.stub
    cells = [[_plain(e) for e in row] for row in table.rows]
    widths = [max([len(h), *(len(row[c]) for row in cells)]) for c, h in enumerate(heads)]
    room = width // 3 // stub  # of a name, if not all columns fit
    if sum(widths) + 2 * (len(widths) - 1) > width:
        widths[:stub] = [min(w, room) for w in widths[:stub]]
    names = sum(widths[:stub]) + 2 * stub
    parts: list[list[int]] = [[]]
    for c in range(stub, len(heads)):
        if parts[-1] and names + sum(widths[i] + 2 for i in (*parts[-1], c)) - 2 > width:
            parts.append([])
        parts[-1].append(c)
    lines = textwrap.wrap(table.title, width)
    for part in parts:
        shown = [_text_lines(row, [*range(stub), *part], widths, stub) for row in (heads, *cells)]
        lines += ["", *itertools.chain.from_iterable(shown)]
    remarks = [line for remark in table.remarks for line in textwrap.wrap(remark, width)]
    return "\n".join([*lines, *(["", *remarks] if remarks else [])])


def _text_lines(
    row: Sequence[str], columns: Sequence[int], widths: Sequence[int], stub: int
) -> Iterator[str]:
    """Some columns of a row; names that are too long go on in further lines."""
    names = [textwrap.wrap(row[c], widths[c], break_on_hyphens=False) or [""] for c in columns if c < stub]
    wrapped = [*names, *([row[c]] for c in columns if c >= stub)]
    for texts in itertools.zip_longest(*wrapped, fillvalue=""):
        cells = zip(columns, texts, strict=True)
        yield "  ".join(t.ljust(widths[c]) if c < stub else t.rjust(widths[c]) for c, t in cells).rstrip()


def _plain(entry: Entry) -> str:
    mark = {"best": " 1st", "second": " 2nd"}.get(entry.mark, "")
    return entry.text + (f" {entry.detail}" if entry.detail else "") + mark
