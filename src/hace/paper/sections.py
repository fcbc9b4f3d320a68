"""The paper in a study's report: its loss, its tables beside the study's numbers, its claims, and what we assume."""

from __future__ import annotations

from typing import Any

from hace.lab.report.document import Section
from hace.lab.report.render import HOME, Entry, ReportTable
from hace.lab.report.results import Results
from hace.paper.assumptions import ASSUMPTIONS
from hace.paper.claims import paper_claims
from hace.paper.report_setup import setup_tables
from hace.paper.report_tables import comparable, paper_table, touched
from hace.paper.text import claims_summary

ELSEWHERE = (
    "This study has no runs on the paper's data sets with the paper's models. Its tables, claims and errata are in the guide: "
    f"<{HOME}/blob/main/docs/paper.md>; in Python they are in `hace.paper`."
)


def report_sections(results: Results, draw: bool = True) -> list[Section]:
    """The sections on the paper; where a study has none of its data, one that says where to find it.

    Args:
        results: Of the study.
        draw: Whether to draw figures.
    """
    touching = [table for table in comparable() if touched(results, table)]
    if not touching:
        return [Section("paper", "The paper", (ELSEWHERE,), folded=True)]
    rest = [table.title for table in comparable() if table not in touching]
    blocks: list[Any] = [
        "Every table of the paper that this study has runs for: the printed numbers, with known errors as footnotes, and ours "
        "in the same cells.",
        *(paper_table(results, table) for table in touching),
        *setup_tables(results),
    ]
    if rest:
        blocks += ["Tables that this study does not touch:", rest]
    return [
        _loss(draw),
        Section("paper", "The paper's tables", tuple(blocks)),
        Section(
            "claims",
            "The paper's claims",
            (f"{claims_summary()} From the printed numbers alone, without a run.", claims_table()),
        ),
        Section(
            "assumptions",
            "What we assume",
            ("Where the paper says nothing, the runs under its protocol assume:", list(ASSUMPTIONS)),
        ),
    ]


def claims_table() -> ReportTable:
    """The paper's claims, recomputed from its own printed tables."""
    rows = tuple(
        tuple(Entry(text) for text in (c.text, c.where, c.printed, c.recomputed or "-", c.status, c.note))
        for c in paper_claims()
    )
    heads = (("claim", "section", "printed", "recomputed", "verdict", "note"),)
    return ReportTable(
        "claims", "The paper's claims, recomputed from the numbers that it prints", heads, rows, stub=6
    )


def _loss(draw: bool) -> Section:
    blocks: list[Any] = ["HACE in one figure, after figure 1 of the paper, with numbers from this library."]
    if draw:
        from hace.paper.first_figure import toy_picture

        blocks.append(toy_picture())
    return Section("idea", "The loss", tuple(blocks))
