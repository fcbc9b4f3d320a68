"""Shared by all figures of a report: sizes, colours of methods, and files.

Two methods have a colour and their name beside their line; the others are grey.
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

from hace.lab.report.arenas import method_title

RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "hace",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,
    "text.color": "#1b1f23",
    "axes.labelcolor": "#1b1f23",
    "axes.edgecolor": "#59626c",
    "xtick.color": "#59626c",
    "ytick.color": "#59626c",
}
FIRST, SECOND, GREY, LIGHT = (
    "#0067ac",
    "#a34a00",
    "#8a929a",
    "#dfe3e6",
)  # the two compared methods, the others, grids
_DARK = {
    "#1b1f23": "#e8ebee",
    "#59626c": "#a3adb7",
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


def style(method: str, compared: Sequence[str]) -> dict[str, Any]:
    """Colour, width and order of a method: the two that are compared stand out, the others are grey."""
    if method == compared[0]:
        return {"color": FIRST, "linewidth": 2.0, "zorder": 4}
    if method in compared:
        return {"color": SECOND, "linewidth": 2.0, "zorder": 3, "linestyle": (0, (5, 1.5))}
    return {"color": GREY, "linewidth": 0.9, "zorder": 2, "alpha": 0.75}


def name_lines(
    axes: Any, ends: Mapping[str, tuple[float, float]], compared: Sequence[str], rest: str = "others"
) -> None:
    """The names of the compared methods at the right of their lines, apart from each other, and one word for the others.

    Args:
        axes: Where.
        ends: The last point of each line, in data units.
        compared: The methods with a name.
        rest: What the grey lines are.
    """
    low, high = axes.get_ylim()
    grey = [y for m, (_, y) in ends.items() if m not in compared]
    wanted = [
        (y, method_title(m), style(m, compared)["color"]) for m, (_, y) in ends.items() if m in compared
    ]
    wanted += [(float(sorted(grey)[len(grey) // 2]), rest, GREY)] if grey else []
    gap, last = 0.065 * (high - low), -math.inf
    for y, words, colour in sorted(wanted):
        last = max(y, last + gap)
        axes.annotate(
            words, (1.0, last), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
            va="center", color=colour, fontsize=8.5, annotation_clip=False,
        )  # fmt: skip


def adapted(svg: bytes) -> bytes:
    """The same picture with colours that follow the reader's light or dark scheme."""
    rules = []
    for light, dark in _DARK.items():
        for name in ("fill", "stroke"):
            rules.append(f'[style*="{name}: {light}"]{{{name}:{dark}!important}}')
    style_text = f"<style>@media screen and (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    head, end, rest = svg.partition(b"<defs>")
    return head + style_text.encode() + end + rest if end else svg


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
            figure.savefig(buffer, format=kind, dpi=130, metadata=metadata, transparent=kind == "svg")
            files.append(buffer.getvalue())
    return Picture(name, caption, alt, files[0], adapted(files[1]), wide)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(rect=(0, 0, 0.965, 1))  # room on the right: a reader's font may be wider  # pyright: ignore
    return figure


def finish(axes: Any, grid: str = "both") -> None:
    """A light grid, no frame at the top and at the right."""
    axes.grid(axis=grid, color=LIGHT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
