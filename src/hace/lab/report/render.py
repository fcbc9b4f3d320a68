"""A formatted table, as Markdown, HTML, CSV and plain text."""

from __future__ import annotations

import html
import io
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hace.files.documents import write_rows

Mark = Literal["", "best", "second"]
HOME = "https://github.com/hace-taxonomy/hace"


@dataclass(frozen=True)
class Entry:
    """A cell.

    Attributes:
        text: What it says.
        detail: Shown small after it: an interval, a number of seeds.
        mark: Best (bold) or second best (underlined) of those it competes with.
        notes: Marks of footnotes.
        soft: Whether it is a remark, such as "not run", rather than a result.
    """

    text: str
    detail: str = ""
    mark: Mark = ""
    notes: tuple[str, ...] = ()
    soft: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table.

    Attributes:
        id: For files and links.
        title: Its caption.
        heads: One or more lines of headings, all of the same length; equal neighbours in all but the last line span.
        rows: Cells; the first `stub` of a row name it.
        stub: How many columns name a row.
        notes: Footnotes: mark and text.
        remarks: What holds for all of it.
        blocks: Indices of rows with a rule above them.
    """

    id: str
    title: str
    heads: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[Entry, ...], ...]
    stub: int = 1
    notes: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    blocks: tuple[int, ...] = ()


def marked(values: Sequence[float | None], higher: bool = True) -> list[Mark]:
    """Marks of the best and the second; equals share. Of two values only the best is marked, a single one not at all.

    Example:
        >>> marked([71.2, 70.0, None, 71.2, 69.0])
        ['best', 'second', '', 'best', '']
    """
    order = sorted({v for v in values if v is not None}, reverse=higher)
    count = sum(v is not None for v in values)
    if count < 2:
        return [""] * len(values)
    marks: tuple[Mark, ...] = ("best", "second") if count > 2 else ("best",)
    names = dict(zip(order, marks, strict=False))
    return ["" if v is None else names.get(v, "") for v in values]


def head_line(table: ReportTable) -> list[str]:
    """One heading per column: the lines of headings, joined."""
    columns = zip(*table.heads, strict=True)
    return [" ".join(dict.fromkeys(part for part in column if part)) for column in columns]


# ---------------------------------------------------------------------- Markdown, CSV, plain text


def to_markdown(table: ReportTable) -> str:
    """A Markdown table with its title above and its notes below."""
    lines = [f"**{markdown(table.title)}**", ""]
    lines.append("| " + " | ".join(markdown(head) or " " for head in head_line(table)) + " |")
    lines.append("|" + " --- |" * table.stub + " ---: |" * (len(table.heads[-1]) - table.stub))
    lines += ["| " + " | ".join(map(_md_cell, row)) + " |" for row in table.rows]
    lines += [""] if table.notes or table.remarks else []
    lines += [f"{markdown(remark)}\n" for remark in table.remarks]
    lines += [f"<sup>{mark}</sup> {markdown(text)}\n" for mark, text in table.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def _md_cell(entry: Entry) -> str:
    text = markdown(entry.text)
    text = {"best": f"**{text}**", "second": f"<u>{text}</u>"}.get(entry.mark, text)
    notes = f"<sup>{','.join(entry.notes)}</sup>" if entry.notes else ""
    detail = f" <small>{markdown(entry.detail)}</small>" if entry.detail else ""
    return text + notes + detail


def markdown(text: str) -> str:
    """Text that Markdown shows literally, on one line and in one cell; text between backticks is code."""
    parts = " ".join(text.split()).split("`")
    for i, part in enumerate(parts):  # every second one is code, where only | needs an escape
        plain = i % 2 == 0 or i == len(parts) - 1
        parts[i] = (
            re.sub(r"([\\*_\[\]|~#])", r"\\\1", html.escape(part, quote=False))
            if plain
            else part.replace("|", "\\|")
        )
    whole = len(parts) % 2 == 1
    return "`".join(parts) if whole else "`".join(parts[:-1]) + "\\`" + parts[-1]


def to_csv(table: ReportTable) -> str:
    """One line per row; details have their own columns, marks are dropped, and no cell starts a formula."""
    detailed = [any(row[c].detail for row in table.rows) for c in range(len(table.heads[-1]))]
    heads = ([h, f"{h} (detail)"] if d else [h] for h, d in zip(head_line(table), detailed, strict=True))
    rows = [list(itertools.chain.from_iterable(heads))]
    for row in table.rows:
        cells = ([e.text, e.detail] if d else [e.text] for e, d in zip(row, detailed, strict=True))
        rows.append(["" if cell == "-" else cell for cell in itertools.chain.from_iterable(cells)])
    out = io.StringIO()
    write_rows(out, rows)
    return out.getvalue()


def to_text(table: ReportTable, width: int = 100) -> str:
    """For the terminal: columns that do not fit beside the others come below, with the rows' names again.

    The marks are those of the page: 1st and 2nd are its bold and underlined, * its intervals without 0.

    Args:
        table: What to show.
        width: The most characters of a line.
    """
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
        lines.append("")
        for row in [heads, *cells]:
            lines += _text_lines(row, [*range(stub), *part], widths, stub)
    remarks = [line for remark in table.remarks for line in textwrap.wrap(remark, width)]
    return "\n".join([*lines, *(["", *remarks] if remarks else [])])


def _text_lines(
    row: Sequence[str], columns: Sequence[int], widths: Sequence[int], stub: int
) -> Iterator[str]:
    """Some columns of a row; names that are too long go on in further lines."""
    wrapped = [
        textwrap.wrap(row[c], widths[c], break_on_hyphens=False) or [""] if c < stub else [row[c]]
        for c in columns
    ]
    for texts in itertools.zip_longest(*wrapped, fillvalue=""):
        yield "  ".join(
            t.ljust(widths[c]) if c < stub else t.rjust(widths[c])
            for c, t in zip(columns, texts, strict=True)
        ).rstrip()


def _plain(entry: Entry) -> str:
    mark = {"best": " 1st", "second": " 2nd"}.get(entry.mark, "")
    return entry.text + (f" {entry.detail}" if entry.detail else "") + mark


def spans(line: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Equal neighbours as one: text, first column, number of columns."""
    at = 0
    for text, group in itertools.groupby(line):
        count = len(list(group))
        yield text, at, count
        at += count


# ---------------------------------------------------------------------- HTML


def to_html(table: ReportTable) -> str:
    """A figure with the table, its caption and its notes; wide tables scroll."""
    e = html.escape
    prose = " prose" if table.stub == len(table.heads[-1]) else ""
    lines = [
        f'<figure class="table{prose}" id="table-{e(table.id)}">',
        # A caption inside would scroll away with a wide table; screen readers still read it.
        f'<p class="title" aria-hidden="true">{e(table.title)}</p>',
        f'<div class="scroll" tabindex="0" role="region" aria-label="{e(table.title)}"><table>',
        f'<caption class="heard">{e(table.title)}</caption>',
        "<thead>",
    ]
    for line in table.heads[:-1]:
        cells = (
            f'<th scope="colgroup" colspan="{n}">{e(t)}</th>' if t else f'<td colspan="{n}"></td>'
            for t, _, n in spans(line)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    stubs = [' class="stub"' if c < table.stub else "" for c in range(len(table.heads[-1]))]
    last = (f'<th scope="col"{stub}>{e(t)}</th>' for t, stub in zip(table.heads[-1], stubs, strict=True))
    lines.append(f"<tr>{''.join(last)}</tr></thead><tbody>")
    for i, row in enumerate(table.rows):
        rule = ' class="block"' if i in table.blocks and i else ""
        cells = "".join(_html_cell(entry, c < table.stub) for c, entry in enumerate(row))
        lines.append(f"<tr{rule}>{cells}</tr>")
    lines.append("</tbody></table></div>")
    if table.remarks or table.notes:
        notes = [f"<p>{code(remark)}</p>" for remark in table.remarks]
        notes += [f"<p><sup>{e(mark)}</sup> {code(text)}</p>" for mark, text in table.notes]
        lines.append(f"<figcaption>{''.join(notes)}</figcaption>")
    return "\n".join([*lines, "</figure>"]) + "\n"


def code(text: str) -> str:
    """Text as HTML; text between backticks becomes code, and an address of the project between angle brackets a link.

    Example:
        >>> code("`hace report` & <b>, <https://example.org>")
        '<code>hace report</code> &amp; &lt;b&gt;, &lt;https://example.org&gt;'
        >>> code(f"<{HOME}/a>")
        '<a href="https://github.com/hace-taxonomy/hace/a">https://github.com/hace-taxonomy/hace/a</a>'
    """
    plain = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
    return re.sub(rf"&lt;({re.escape(HOME)}[\w./#-]*)&gt;", r'<a href="\1">\1</a>', plain)


def _html_cell(entry: Entry, stub: bool) -> str:
    e = html.escape
    text = {"best": f"<strong>{e(entry.text)}</strong>", "second": f"<u>{e(entry.text)}</u>"}.get(
        entry.mark, e(entry.text)
    )
    notes = f"<sup>{e(','.join(entry.notes))}</sup>" if entry.notes else ""
    detail = f" <small>{e(entry.detail)}</small>" if entry.detail else ""
    soft = ' class="soft"' if entry.soft else ""
    body = f"{text}{notes}{detail}"
    return f'<th scope="row"{soft}>{body}</th>' if stub else f"<td{soft}>{body}</td>"
