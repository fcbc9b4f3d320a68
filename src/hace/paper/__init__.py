"""What is the paper's alone: its printed tables, claims and errata, recipes and studies, and what we assume about it.

May import everything but `hace.cli`; only `hace.cli` may import it. General code takes what is the paper's as an argument:
a study takes presets, a report takes sections.

    paper_tables, paper_claims, errata            the paper as data
    ASSUMPTIONS                                   what we assume where it says nothing
    STUDIES                                       its experiments, for `hace.lab.study.plans.make_plan`
    TRAIN_PRESETS, train_preset                   its recipes, for `hace.lab.train`
    report_sections                               its tables beside yours, for `hace.lab.report.write_report`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hace.paper.assumptions import ASSUMPTIONS
from hace.paper.claims import Claim, paper_claims
from hace.paper.printed import (
    Erratum,
    Footnote,
    PaperTable,
    PrintedCell,
    errata,
    paper_names,
    paper_tables,
)

if TYPE_CHECKING:
    from hace.paper.sections import report_sections
    from hace.paper.studies import STUDIES
    from hace.paper.train_presets import TRAIN_PRESETS, train_preset

_LAZY = {  # these need torch
    "STUDIES": "studies",
    "TRAIN_PRESETS": "train_presets",
    "report_sections": "sections",
    "train_preset": "train_presets",
}

__all__ = [
    "ASSUMPTIONS",
    "STUDIES",
    "TRAIN_PRESETS",
    "Claim",
    "Erratum",
    "Footnote",
    "PaperTable",
    "PrintedCell",
    "errata",
    "paper_claims",
    "paper_names",
    "paper_tables",
    "report_sections",
    "train_preset",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hace.paper' has no attribute {name!r}")
    return getattr(import_module(f"hace.paper.{_LAZY[name]}"), name)
