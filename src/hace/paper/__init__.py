"""The paper's printed numbers as data, its claims recomputed from them, and its errata."""

from __future__ import annotations

from hace.paper.printed import Cell, Footnote, PaperTable, errata, paper_names, paper_tables

__all__ = ["Cell", "Footnote", "PaperTable", "errata", "paper_names", "paper_tables"]
