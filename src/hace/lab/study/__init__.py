"""Studies: methods under a protocol, on any data, in one process or on a cluster.

A preset and a user's choices make a plan (`plans`), a plan on a folder is a study (`start`, `study`), and the scheduler makes
its runs on an executor. `cells` holds the protocols: what is searched, and how one run is chosen among several. Ad-hoc
studies (`ad_hoc`) are those of `hace probe`. Imports `features`, `runs`, `probe` and `train` of `hace.lab`, and nothing of the
paper: `hace.paper.STUDIES` are presets like any other.
"""

from __future__ import annotations

from hace.lab.study.cells import Cell, CellKey, Record
from hace.lab.study.locations import Locations
from hace.lab.study.methods import METHODS, Method
from hace.lab.study.plans import Choices, StudyPlan, make_plan
from hace.lab.study.presets import PRESETS, Preset, find_presets
from hace.lab.study.study import Study, read_study

__all__ = [
    "METHODS",
    "PRESETS",
    "Cell",
    "CellKey",
    "Choices",
    "Locations",
    "Method",
    "Preset",
    "Record",
    "Study",
    "StudyPlan",
    "find_presets",
    "make_plan",
    "read_study",
]
