"""Shared by all figures of a report: sizes, colours of methods, and files.

Colours are those of Okabe and Ito; lines and markers say the same again.
"""

from __future__ import annotations

import io
import math
import warnings
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hace.lab.report.arenas import method_title
from hace.lab.study.methods import METHODS

RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "hace",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "hatch.linewidth": 0.8,
    "text.parse_math": False,
}
_COLOURS = {
    "sce": "#333333", "hace": "#0072b2", "hxe": "#e69f00", "hce": "#009e73", "hace_shuffled": "#cc79a7",
    "ancestral": "#d55e00", "hace_leaves": "#56b4e9", "conditional": "#8c6d31", "simloss": "#7b4173",
    "expected_distance": "#637939", "sce_paths": "#999999", "hace_paths": "#3182bd",
    "sce_paths_0.5": "#999999", "hace_paths_0.5": "#3182bd",
}  # fmt: skip
_VARIANTS = {
    "smooth": ("--", "s"),
    "soft10": (":", "^"),
    "soft30": ("-.", "v"),
    "0.5": ("--", "s"),
    "paths": ("-", "P"),
    "paths_0.5": ("--", "P"),
}
WIDTH = 5.4  # inches: two fit side by side on a screen, and one can be read on a phone


class Picture(NamedTuple):
    """A figure: name of its files, caption, alternative text, both files, and whether it is wider than a page."""

    name: str
    caption: str
    alt: str
    png: bytes
    svg: bytes
    wide: bool = False


def style(method: str) -> dict[str, Any]:
    """Colour, line and marker of a method: the family gives the colour, the variant the line."""
    family, _, variant = method.partition("_")
    colour = _COLOURS.get(method) or _COLOURS.get(family)
    line, marker = _VARIANTS.get(variant, ("-", "o"))
    if colour is None:
        colour = f"C{sum(map(ord, method)) % 10}"
    if method in METHODS and METHODS[method].control:
        marker = "D"
    return {"color": colour, "linestyle": line, "marker": marker, "label": method_title(method)}


def picture(figure: Figure, name: str, caption: str, alt: str, wide: bool = False) -> Picture:
    """Both files of a figure; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    files = []
    with matplotlib.rc_context(RC_PARAMS), warnings.catch_warnings():
        # Names may be in scripts the font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.draw_without_rendering()  # lays it out; once is enough for both files
        figure.set_layout_engine("none")
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=130, metadata=metadata)
            files.append(buffer.getvalue())
    return Picture(name, caption, alt, files[0], files[1], wide)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def finish(axes: Any, grid: str = "both") -> None:
    """A light grid, no frame at the top and at the right."""
    axes.grid(axis=grid, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def legend(figure: Figure, axes: Any) -> None:
    """A legend below the axes; the figure grows for it."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels), default=0) > 16 or len(labels) <= 4 else 3
    figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
