"""The page of `hace unseen`: if something new appears, this is what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from hace import environment
from hace.files.writing import write_whole
from hace.lab.report.document import WORDS, Document, Entry, ReportTable, Section
from hace.lab.report.figures import RC_PARAMS, WIDTH, Picture, finish, name_lines, new_figure, picture, style
from hace.lab.report.page import to_page
from hace.lab.report.verdict import Verdict
from hace.linear.unseen_classes import BASELINE, COLUMNS, LOST, Rows, best_methods, cells, guarantees, summary

_LOST = 3.0


def write_unseen_page(rows: Rows, source: str, path: Path) -> None:
    """Write the rows of :meth:`UnseenStudy.run` as a page: card, table, curves."""
    lines = summary(rows, _LOST)
    kept = {line["method"]: line for line in lines if not np.isnan(line["known_exact"])}
    tied = [name for name in best_methods(rows, _LOST) if name in kept]
    best = tied[0] if tied else BASELINE
    accuracy = float(np.nanmean([row["best"] for row in rows]))
    said = [f"The best class of cross-entropy is right for {accuracy:.1f}% of known samples, for no new one."]
    said += [_said(kept[name]) for name in (BASELINE,) if name in kept and name != best]
    answer = _said(kept[best]) if best in kept else "No method keeps so many exact answers."
    if len(tied) > 1:
        shares = ", ".join(f"{name} {kept[name]['unseen_true']:.1f}%" for name in tied)
        answer = f"Tied for the most true answers to new samples: {shares}."
    question = "if something new appears, what happens?"
    verdict = Verdict(Path(source).name, answer, "part", lines=tuple(said), question=question)
    heads = (("method", *(title for title, _ in COLUMNS.values())),)
    entries = tuple((Entry(line["method"]), *map(Entry, cells(line))) for line in lines)
    title = f"In % of new samples, {_LOST:g} points of exact answers on known classes given up; ± over draws"
    guaranteed = [found] if (found := guarantees(rows)) else []
    blocks = (ReportTable("unseen", title, heads, entries), *guaranteed, _curves(rows, best))
    facts = [("features", source), *environment.config().items()]
    document = Document("Not in my list", facts, about="About this study: data, versions", listed="")
    document.verdicts = [verdict]
    document.sections = [
        Section("unseen", "If something new appears, this is what happens", blocks),
        Section("reading", "How to read this page", (WORDS["reading_unseen"],), folded=True),
    ]
    write_whole(path, to_page(document, ("", ""), environment.config()["hace"]).encode())


def _said(line: dict[str, Any]) -> str:
    name, true, named = line["method"], line["unseen_true"], line["unseen_named"]
    return f"{name[0].upper()}{name[1:]} answers {true:.1f}% of new samples truly and names a wrong class for {named:.1f}%."


@matplotlib.rc_context(RC_PARAMS)
def _curves(rows: Rows, best: str) -> Picture:
    """True answers for new samples against exact ones given up on known classes, a curve per method."""
    figure = new_figure(WIDTH, 3.2)
    axes = figure.add_subplot()
    curves = {}
    for lost in LOST:
        for line in summary(rows, lost):
            curves.setdefault(line["method"], []).append(line["unseen_true"])
    for method, true in curves.items():
        axes.plot(LOST, true, **style(method, (best, BASELINE)))
    axes.set(xlabel="points of exact answers on known classes given up", ylabel="true for new samples, %")
    finish(axes)
    name_lines(axes, {m: y[-1] for m, y in curves.items() if not np.isnan(y[-1])}, (best, BASELINE))
    text = "What caution gains: true answers for new samples as thresholds grow."
    return picture(figure, "unseen", text, f"Curves of {len(curves)} methods.")
