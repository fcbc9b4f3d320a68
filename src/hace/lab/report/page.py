"""A report as one page that opens from disk without a network, as Markdown, and as LaTeX."""

from __future__ import annotations

import base64
import html
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from hace.draw import asset, json_for_page, page_data
from hace.lab.report.arenas import method_title
from hace.lab.report.blocks import Folded, Switch, leaves_of
from hace.lab.report.cards import verdict_html, verdict_markdown
from hace.lab.report.document import Document, Section
from hace.lab.report.forest import Forest, to_forest_html
from hace.lab.report.latex import to_latex
from hace.lab.report.render import ReportTable, code, markdown, to_csv, to_html, to_markdown

MOST_NUMBERS = 1_500_000  # in the drawing's data: about 5 MB
SCRIPTS = ("explore.js", "sure.js", "report.js")


def to_page(document: Document, compared: tuple[str, str], version: str) -> str:
    """The page. Names, errors and options are always escaped."""
    e = html.escape
    facts = "".join(f"<dt>{e(term)}</dt><dd>{code(text)}</dd>" for term, text in document.facts)
    toc = "".join(
        f'<li><a href="#{e(s.id)}">{e(s.title)}</a></li>' for s in document.sections if not s.folded
    )
    parts = {
        "title": e(document.title),
        "style": asset("report.css", "hace.lab.report"),
        "sunburst-style": asset("hierarchy.css"),
        "verdict": verdict_html(document.verdicts, document.caution),
        "toc": toc,
        "sections": "\n".join(_section(s, bool(document.arenas)) for s in document.sections),
        "about": e(document.about),
        "facts": f'<dl class="facts">{facts}</dl>',
        "footer": e(document.footer.format(version=version)),
        "data": json_for_page(drawing_data(document, compared)),
        "sunburst-script": asset("hierarchy.js"),
        "script": "\n".join(asset(name, "hace.lab.report") for name in SCRIPTS),
    }
    # In one pass, so inserted text is never searched.
    return re.sub(
        r"<!--([a-z-]+)-->", lambda found: parts[found.group(1)], asset("report.html", "hace.lab.report")
    )


def drawing_data(document: Document, compared: tuple[str, str]) -> dict[str, Any]:
    """The data of report.js. Arenas with the same hierarchy share it."""
    trees: dict[str, Any] = {}
    arenas = []
    for arena in document.arenas:
        h = arena["hierarchy"]
        if h.fingerprint not in trees:
            trees[h.fingerprint] = page_data(h, arena.get("dataset", "everything"), document.naming)
        known = {k: v for k, v in arena.items() if k != "hierarchy"}
        arenas.append({"sure": {}, "promises": [], **known, "tree": h.fingerprint})
    methods = dict.fromkeys(method for arena in arenas for method in arena["methods"])
    titles = {method: method_title(method) for method in methods}
    data = {"trees": trees, "places": arenas, "titles": titles, "first": compared[0], "second": compared[1]}
    return thinned(data, compared)


def thinned(data: dict[str, Any], kept: Collection[str], most: int = MOST_NUMBERS) -> dict[str, Any]:
    """The same, small enough for a page: drops the mistakes of other methods first, then these methods."""
    for arena in data["places"] if _numbers(data) > most else ():
        for name, method in arena["methods"].items():
            if name not in kept:
                arena["methods"][name] = {**method, "went": [[]] * len(method["went"])}
    for arena in data["places"] if _numbers(data) > most else ():
        chosen = {name: method for name, method in arena["methods"].items() if name in kept}
        arena["methods"] = chosen or dict(list(arena["methods"].items())[:2])
    return data


def _numbers(data: dict[str, Any]) -> int:
    methods = [method for arena in data["places"] for method in arena["methods"].values()]
    return sum(len(m["right"]) + len(m["went"]) + sum(map(len, m["went"])) for m in methods)


def _section(section: Section, drawn: bool) -> str:
    e = html.escape
    body = _blocks(section.blocks)
    if section.id == "explore":
        nothing = "<p>No run keeps predictions, from which the drawing would follow.</p>"
        body += asset("report_explore.html", "hace.lab.report") if drawn else nothing
    heading = f"<h{section.level}>{e(section.title)}</h{section.level}>"
    if section.folded:
        return f'<details id="{e(section.id)}"><summary>{heading}</summary>\n{body}\n</details>'
    return f'<section id="{e(section.id)}">\n{heading}\n{body}\n</section>'


def _blocks(blocks: Sequence[Any]) -> str:
    """Blocks as HTML; neighbouring pictures share a grid."""
    lines: list[str] = []
    for kind, group in itertools.groupby(blocks, lambda block: hasattr(block, "svg")):
        found = "".join(map(_block, group))
        lines.append(f'<div class="pictures">{found}</div>' if kind else found)
    return "\n".join(lines)


def _block(block: Any) -> str:
    e = html.escape
    if hasattr(block, "svg"):
        return _picture(block)
    if isinstance(block, ReportTable):
        return to_html(block)
    if isinstance(block, Forest):
        return to_forest_html(block)
    if isinstance(block, Folded):
        return f"<details><summary>{e(block.title)}</summary>{_blocks(block.blocks)}</details>"
    if isinstance(block, Switch):
        return _switch(block)
    if isinstance(block, str):
        return f"<p>{code(block)}</p>"
    return "<ul>" + "".join(f"<li>{code(item)}</li>" for item in block) + "</ul>"


def _switch(switch: Switch) -> str:
    options, parts = [], []
    for i, (title, block) in enumerate(switch.options):
        options.append(f'<option value="{i}">{html.escape(title)}</option>')
        parts.append(f'<div data-option="{i}"{" hidden" if i else ""}>{_block(block)}</div>')
    chooser = f"<label>{html.escape(switch.label)}<select>{''.join(options)}</select></label>"
    return f'<div class="switch"><div class="controls">{chooser}</div>{"".join(parts)}</div>'


def _picture(picture: Any) -> str:
    source = base64.b64encode(picture.svg).decode()
    wide = " wide" if picture.wide else ""
    return (
        f'<figure class="picture{wide}" id="figure-{html.escape(picture.name)}"><div class="scroll" tabindex="0">'
        f'<img alt="{html.escape(picture.alt)}" src="data:image/svg+xml;base64,{source}"></div>'
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>\n"
    )


def to_report_markdown(document: Document) -> str:
    """The report as Markdown; figures are linked."""
    lines = [f"# {markdown(document.title)}", "", *verdict_markdown(document.verdicts, document.caution)]
    for section in document.sections:
        if section.id == "explore":  # only the page can do that
            continue
        lines += [f"{'#' * section.level} {markdown(section.title)}", ""]
        for block in leaves_of(section.blocks):
            if hasattr(block, "svg"):
                lines += [
                    f"![{markdown(block.alt)}](figures/{block.name}.png)",
                    "",
                    markdown(block.caption),
                    "",
                ]
            elif isinstance(block, ReportTable | Forest):
                lines += [to_markdown(block if isinstance(block, ReportTable) else block.table())]
            elif isinstance(block, str):
                lines += [markdown(block), ""]
            else:
                lines += [*(f"- {markdown(item)}" for item in block), ""]
    lines += [
        "## About this study",
        "",
        *(f"- **{term}**: {markdown(text)}" for term, text in document.facts),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_report_latex(document: Document) -> str:
    """A LaTeX document with all tables, for `pdflatex report.tex`."""
    inputs = "\n".join(rf"\input{{tables/{table.id}.tex}}" for table in document.tables())
    return "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage[utf8]{inputenc}",
            r"\usepackage[T1]{fontenc}",
            r"\usepackage{booktabs,graphicx}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\begin{document}",
            inputs,
            r"\end{document}",
            "",
        ]
    )


def files_of(document: Document) -> Iterator[tuple[str, bytes]]:
    """The files of tables and figures: path and content."""
    for table in document.tables():
        yield f"tables/{table.id}.csv", to_csv(table).encode()
        yield f"tables/{table.id}.tex", to_latex(table).encode()
    for picture in document.pictures():
        yield f"figures/{picture.name}.png", picture.png
        yield f"figures/{picture.name}.svg", picture.svg
