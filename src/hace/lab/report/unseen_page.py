"""The page of `hace unseen`: if something new appears, this is what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from hace import environment
from hace.files.writing import write_whole
from hace.lab.report.cards import Card
from hace.lab.report.document import WORDS, Document, Section, Table
from hace.lab.report.drawing import RC_PARAMS, WIDTH, Picture, finish, name_lines, new_figure, picture, style
from hace.lab.report.page import to_page
from hace.lab.report.sentences import say
from hace.linear.unseen_classes import BASELINE, COLUMNS, LOST, Rows, best_methods, cells, guarantees, summary

_LOST = 3.0


def write_unseen_page(rows: Rows, source: str, path: Path) -> None:
    """Write the rows of :meth:`UnseenStudy.run` as a page: card, table, curves."""
    lines = summary(rows, _LOST)
    known = {line["method"]: line for line in lines if not np.isnan(line["known_exact"])}
    tied = [name for name in best_methods(rows, _LOST) if name in known]
    best = tied[0] if tied else BASELINE
    guaranteed = guarantees(rows)
    blocks = (_methods_table(lines), *([guaranteed] if guaranteed else []), _curves(rows, best))
    facts = [("features", source), *environment.config().items()]
    document = Document("Not in my list", facts, about="About this study: data, versions", listed="")
    document.cards = [_card(rows, known, tied, Path(source).name)]
    document.sections = [
        Section("unseen", "If something new appears, this is what happens", blocks),
        Section("reading", "How to read this page", (WORDS["reading_unseen"],), folded=True),
    ]
    write_whole(path, to_page(document, ("", ""), environment.config()["hace"]).encode())


def _card(rows: Rows, known: dict[str, dict[str, Any]], tied: list[str], where: str) -> Card:
    """The answer of the best method, or of those that are tied for the best."""
    accuracy = float(np.nanmean([row["best"] for row in rows]))
    lines = [say("unseen_known", accuracy=f"{accuracy:.1f}%")]
    if BASELINE in known and tied and tied[0] != BASELINE:
        lines.append(_answers(known[BASELINE]))
    if len(tied) > 1:
        answer = say("unseen_tied", shares={name: f"{known[name]['unseen_true']:.1f}%" for name in tied})
    else:
        answer = _answers(known[tied[0]]) if tied else "No method keeps so many exact answers."
    return Card(where, "if something new appears, what happens?", answer, "part", lines=tuple(lines))


def _answers(line: dict[str, Any]) -> str:
    right = f"{line['unseen_true']:.1f}%"
    wrong = f"{line['unseen_named']:.1f}%"
    return say("unseen_answers", method=line["method"], right=right, wrong=wrong)


def _methods_table(lines: list[dict[str, Any]]) -> Table:
    heads = ["method", *(title for title, _ in COLUMNS.values())]
    frame = pd.DataFrame([[line["method"], *cells(line)] for line in lines], columns=pd.Index(heads))
    title = f"In % of new samples, {_LOST:g} points of exact answers on known classes given up; ± over draws"
    return Table("unseen", title, frame)


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
