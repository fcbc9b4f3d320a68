"""The style of figures, and a figure as the files of a page.

Two methods have a colour and their name beside their line; the others are grey. Needs matplotlib, so it is imported on demand.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hace.lab.report.runs import method_title

# The two compared methods.
FIRST = "#0067ac"
SECOND = "#a34a00"
GREY = "#8a929a"  # other methods
LIGHT = "#dfe3e6"  # grids
INK = "#1b1f23"
LINES = "#59626c"
RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "hace",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINES,
    "xtick.color": LINES,
    "ytick.color": LINES,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,  # a layout of our own
}
_DARK = {
    INK: "#e8ebee",
    LINES: "#a3adb7",
    FIRST: "#62b5f5",
    SECOND: "#f0a35e",
    GREY: "#7d8790",
    LIGHT: "#343c44",
}
WIDTH = 4.8  # inches: two fit side by side on a screen, and one can be read on a phone


class Picture(NamedTuple):
    """A figure: name of its files, caption, alternative text, both files, and whether it is wider than a page."""

    name: str
    caption: str
    alt: str
    png: bytes
    svg: bytes
    wide: bool = False
    kind = "picture"  # of block


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    # Room on the right: a reader's font may be wider.
    figure.get_layout_engine().set(rect=(0, 0, 0.965, 1))  # pyright: ignore
    return figure


def finish(axes: Any, grid: str = "both", colour: str = LIGHT) -> None:
    """A light grid, no frame at the top and at the right."""
    axes.grid(axis=grid, color=colour, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def style(method: str, compared: Sequence[str]) -> dict[str, Any]:
    """Colour, width and order of a method: the two that are compared stand out, the others are grey."""
    if method == compared[0]:
        return {"color": FIRST, "linewidth": 2.0, "zorder": 4}
    if method in compared:
        return {"color": SECOND, "linewidth": 2.0, "zorder": 3, "linestyle": (0, (5, 1.5))}
    return {"color": GREY, "linewidth": 0.9, "zorder": 2, "alpha": 0.75}


def name_lines(axes: Any, ends: Mapping[str, float], compared: Sequence[str]) -> None:
    """The names of the compared methods where their lines end, apart from each other, and one word for the others."""
    low, high = axes.get_ylim()
    others = sorted(y for method, y in ends.items() if method not in compared)
    labels = [
        (y, method_title(method), style(method, compared)["color"])
        for method, y in ends.items()
        if method in compared
    ]
    if others:
        labels.append((others[len(others) // 2], "others", GREY))
    least_gap = 0.065 * (high - low)
    last = -math.inf
    for y, text, colour in sorted(labels):
        last = max(y, last + least_gap)
        axes.annotate(
            text,
            (1.0, last),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=8.5,
            annotation_clip=False,
        )


def picture(figure: Figure, name: str, caption: str, alt: str, wide: bool = False) -> Picture:
    """Both files of a figure; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    files = []
    with matplotlib.rc_context(RC_PARAMS), warnings.catch_warnings():
        # Names may be in scripts the font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.draw_without_rendering()  # lays it out; once is enough for both files
        figure.set_layout_engine()  # none: with one, saving would draw twice
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=130, metadata=metadata, transparent=kind == "svg")
            files.append(buffer.getvalue())
    png, svg = files
    return Picture(name, caption, alt, png, svg.replace(b"<defs>", _dark_style() + b"<defs>", 1), wide)


def _dark_style() -> bytes:
    """Colours that follow the reader's light or dark scheme."""
    rules = "".join(
        f'[style*="{paint}: {light}"]{{{paint}:{dark}!important}}'
        for light, dark in _DARK.items()
        for paint in ("fill", "stroke")
    )
    return f"<style>@media screen and (prefers-color-scheme: dark){{{rules}}}</style>".encode()
