"""Tables as LaTeX, for booktabs."""

from __future__ import annotations

import re

from hace.lab.report.render import Entry, ReportTable, spans


def to_latex(table: ReportTable) -> str:
    """A `table` environment for booktabs (and graphicx, to fit wide ones): best bold, second underlined."""
    width = len(table.heads[-1])
    prose = table.stub == width
    columns = _paragraphs(table) if prose else "l" * table.stub + "r" * (width - table.stub)
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{latex(table.title)}}}",
        rf"\label{{tab:{_label(table.id)}}}",
    ]
    tabular = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    for line in table.heads[:-1]:
        groups = list(spans(line))
        tabular.append(
            " & ".join(rf"\multicolumn{{{n}}}{{c}}{{{latex(text)}}}" for text, _, n in groups) + r" \\"
        )
        rules = [rf"\cmidrule(lr){{{at + 1}-{at + n}}}" for text, at, n in groups if text and n > 1]
        tabular += ["".join(rules)] if rules else []
    tabular += [" & ".join(map(latex, table.heads[-1])) + r" \\", r"\midrule"]
    for i, row in enumerate(table.rows):
        tabular += [r"\midrule"] if i in table.blocks and i else []
        tabular.append(" & ".join(map(_tex_cell, row)) + r" \\")
    tabular += [r"\bottomrule", r"\end{tabular}"]
    if prose:
        tabular = [r"\scriptsize", *tabular]
    elif width > 5:
        tabular = [r"\resizebox{\linewidth}{!}{%", *tabular, "}"]
    below = [latex(remark) for remark in table.remarks]
    below += [rf"\textsuperscript{{{mark}}}\,{latex(text)}" for mark, text in table.notes]
    if below:
        body = " \\\\\n".join(below)
        below = [
            r"\par\smallskip\begin{minipage}{\linewidth}\footnotesize\raggedright",
            body,
            r"\end{minipage}",
        ]
    return "\n".join([*lines, *tabular, *below, r"\end{table}"]) + "\n"


def _paragraphs(table: ReportTable) -> str:
    """Columns of text, wide in proportion to their longest entry."""
    columns = zip(table.heads[-1], *([e.text for e in row] for row in table.rows), strict=True)
    longest = [max(map(len, texts)) for texts in columns]
    asked = [min(max(n, 8), 44) for n in longest]
    return "".join(rf"p{{{0.84 * n / sum(asked):.3f}\linewidth}}" for n in asked)


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "β": r"$\beta$", "α": r"$\alpha$", "−": "$-$", "±": r"$\pm$",
    "→": r"$\to$", "Δ": r"$\Delta$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip


def latex(text: str) -> str:
    r"""Text that LaTeX prints literally.

    Example:
        >>> print(latex("50 % of A_1 & B"))
        50 \% of A\_1 \& B
    """
    escaped = "".join(_TEX.get(c, c) for c in " ".join(text.split()))
    return re.sub(r"`([^`]*)`", r"\\texttt{\1}", escaped)


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.:-]", "-", text)


def _tex_cell(entry: Entry) -> str:
    text = latex(entry.text)
    text = {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}"}.get(entry.mark, text)
    notes = rf"\textsuperscript{{{','.join(entry.notes)}}}" if entry.notes else ""
    detail = rf" {{\scriptsize {latex(entry.detail)}}}" if entry.detail else ""
    return text + notes + detail
