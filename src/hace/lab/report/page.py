"""A report as one page that opens from disk without a network, as Markdown, and as LaTeX."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hace.draw import asset, json_for_page, page_data
from hace.lab.report.arenas import method_title
from hace.lab.report.document import Document, Section
from hace.lab.report.latex import to_latex
from hace.lab.report.render import ReportTable, code, markdown, to_csv, to_html, to_markdown

MOST_NUMBERS = 1_500_000  # in the drawing's data: about 5 MB
FOOTER = "Made by hace {version}. Tables: tables/ (CSV, LaTeX). Figures: figures/ (PNG, SVG). Runs: runs.csv."


def to_page(document: Document, compared: tuple[str, str], version: str) -> str:
    """The page. Names, errors and options are always escaped."""
    e = html.escape
    facts = "".join(f"<dt>{e(term)}</dt><dd>{code(text)}</dd>" for term, text in document.facts)
    toc = "".join(
        f'<li><a href="#{e(s.id)}">{e(s.title)}</a></li>' for s in document.sections if s.level == 2
    )
    sections = "\n".join(_section(s, bool(document.arenas)) for s in document.sections)
    parts = {
        "title": e(document.title),
        "style": asset("report.css", "hace.lab.report"),
        "sunburst-style": asset("hierarchy.css"),
        "facts": f'<dl class="facts">{facts}</dl>',
        "toc": toc,
        "sections": sections,
        "footer": e(FOOTER.format(version=version)),
        "data": json_for_page(drawing_data(document, compared)),
        "sunburst-script": asset("hierarchy.js"),
        "script": asset("report.js", "hace.lab.report"),
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
            trees[h.fingerprint] = page_data(h)
        arenas.append({**{k: v for k, v in arena.items() if k != "hierarchy"}, "tree": h.fingerprint})
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
    level = section.level
    lines = [f'<section id="{e(section.id)}">', f"<h{level}>{e(section.title)}</h{level}>"]
    pictures: list[str] = []
    for block in section.blocks:
        if hasattr(block, "svg"):
            pictures.append(_picture(block))
        elif isinstance(block, ReportTable):
            lines.append(to_html(block))
        elif isinstance(block, str):
            lines.append(f"<p>{code(block)}</p>")
        else:
            lines.append("<ul>" + "".join(f"<li>{code(item)}</li>" for item in block) + "</ul>")
    if pictures:
        lines.append(f'<div class="pictures">{"".join(pictures)}</div>')
    if section.id == "explore":
        lines.append(
            asset("report_explore.html", "hace.lab.report")
            if drawn
            else "<p>No run keeps predictions, from which the drawing would follow.</p>"
        )
    return "\n".join([*lines, "</section>"])


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
    lines = [
        f"# {markdown(document.title)}",
        "",
        *(f"- **{term}**: {markdown(text)}" for term, text in document.facts),
        "",
    ]
    for section in document.sections:
        if section.id == "explore":  # only the page can do that
            continue
        lines += [f"{'#' * section.level} {markdown(section.title)}", ""]
        for block in section.blocks:
            if hasattr(block, "svg"):
                lines += [
                    f"![{markdown(block.alt)}](figures/{block.name}.png)",
                    "",
                    markdown(block.caption),
                    "",
                ]
            elif isinstance(block, ReportTable):
                lines += [to_markdown(block)]
            elif isinstance(block, str):
                lines += [markdown(block), ""]
            else:
                lines += [*(f"- {markdown(item)}" for item in block), ""]
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


def command_of(preset: str, choices: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The command that makes a study, with PATH for the data.

    Example:
        >>> command_of("fair-probe", {"methods": ["hace", "sce"], "seeds": 3}, {"cifar100": {"kind": "probe"}})
        'hace study fair-probe --features cifar100=PATH --methods hace,sce --seeds 3 --out STUDY'
    """
    words = ["hace study", preset]
    for name, known in data.items():
        for part in (known, known.get("also") or {}):
            made_up = str((part.get("config") or {}).get("name")).startswith("synthetic")
            option = {"probe": "--features", "train": "--data-root"}.get(part.get("kind", ""))
            words += [] if made_up or option is None else [f"{option} {name}=PATH"]
    for name in ("methods", "rates", "decays", "fine"):
        if choices.get(name):
            words.append(
                f"--{name} {','.join(f'{x:g}' if isinstance(x, float) else str(x) for x in choices[name])}"
            )
    if choices.get("shares"):
        words.append(f"--shares {','.join(f'{100 * share:g}' for share in choices['shares'])}")
    if choices.get("coarse_to"):
        words.append(f"--coarse-to {choices['coarse_to']}")
    if choices.get("seeds"):
        words.append(f"--seeds {choices['seeds']}")
    if choices.get("epochs_scale", 1.0) != 1.0:
        words.append(f"--epochs-scale {choices['epochs_scale']:g}")
    if choices.get("only"):
        said = {k: v if isinstance(v, str) else ",".join(map(str, v)) for k, v in choices["only"].items()}
        words.append("--only " + " ".join(f"{k}={v}" for k, v in said.items()))
    return " ".join([*words, "--out STUDY"])
