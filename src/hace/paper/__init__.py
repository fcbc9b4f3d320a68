"""What is the paper's alone: its printed tables, recipes and studies, and what we assume about it.

Only `hace.study` and the commands import it. All other code takes what is the paper's as an argument: a study takes presets,
a report takes sections.

    paper_tables                     the printed numbers; claims and errata are in evidence/paper.md
    ASSUMPTIONS                      what we assume where the paper says nothing
    STUDIES                          its experiments, for `hace.lab.study.plan.make_plan`
    TRAIN_PRESETS, train_preset      its recipes, for `hace.lab.train`
    report_sections                  its tables beside yours, for `hace.lab.report.write_report`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hace.paper.printed import ASSUMPTIONS, PaperTable, PrintedCell, paper_tables

if TYPE_CHECKING:
    from hace.paper.recipes import STUDIES, TRAIN_PRESETS, train_preset
    from hace.paper.report import report_sections

_NEED_TORCH = {"STUDIES": "recipes", "TRAIN_PRESETS": "recipes", "train_preset": "recipes"}
_NEED_TORCH |= {"report_sections": "report"}
__all__ = ["ASSUMPTIONS", "STUDIES", "TRAIN_PRESETS", "PaperTable", "PrintedCell"]
__all__ += ["paper_tables", "report_sections", "train_preset"]


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'hace.paper' has no attribute {name!r}")
    return getattr(import_module(f"hace.paper.{_NEED_TORCH[name]}"), name)
