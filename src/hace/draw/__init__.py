"""Drawings of hierarchies: pictures (.png, .svg) and one interactive page (.html).

Imports `errors`, `files` and `hierarchy`; matplotlib only to draw a picture.
"""

from __future__ import annotations

from hace.draw.drawing_files import DRAWERS, draw_hierarchy
from hace.draw.interactive_page import NAMING, asset, json_for_page, page_data
from hace.draw.tree_layout import drawable, lay_out

__all__ = [
    "DRAWERS",
    "NAMING",
    "asset",
    "draw_hierarchy",
    "drawable",
    "json_for_page",
    "lay_out",
    "page_data",
]
