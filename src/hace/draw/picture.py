"""A hierarchy as a picture: rows from left to right (an icicle) when there are few classes, rings when there are many.

Needs matplotlib, so :mod:`hace.draw` imports it on demand.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from hace.draw import PALETTE, Cells, caption, drawable, lay_out

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy

ROWS_SHOWN = 150  # more classes than this become rings
_SETTINGS: dict[Any, str] = {"svg.hashsalt": "hace", "svg.fonttype": "none", "font.family": "sans-serif"}
_POINT = 1 / 72  # inches
_CHARACTER = 0.56  # mean width of a character, in font sizes
_LETTERS = 8.0  # points of the names around rings
_THIN = 0.15 * _POINT  # cells thinner than this cannot be seen


def write_picture(h: Hierarchy, path: Path) -> None:
    """Draw a hierarchy to a .png or .svg file."""
    cells = lay_out(h)
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Characters that the font lacks show as boxes in a .png; an .svg uses the reader's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = _rows(h, cells) if cells.rows <= ROWS_SHOWN else _rings(h, cells)
        kind = path.suffix[1:].lower()
        metadata = {"Date" if kind == "svg" else "Software": None}
        figure.savefig(path, format=kind, dpi=150, metadata=metadata)


def _rows(h: Hierarchy, cells: Cells) -> Figure:
    """Columns are depths; a class reaches to the right edge, so that its name has room."""
    size = 8.0
    polygons = []
    columns = _columns(h, cells, size)
    height = max(cells.rows * 1.55 * size * _POINT, 1.0)
    figure, axes = _empty(columns[-1] + 0.4, height + 0.75, caption(h, cells), 0.2, 0.55)
    axes.set(xlim=(0, columns[-1]), ylim=(cells.rows, 0))
    for v, depth in enumerate((h.depths - h.depths.min()).tolist()):
        left = columns[depth]
        right = columns[-1] if cells.ends[v] else columns[depth + 1]
        low = cells.start[v]
        high = cells.end[v]
        polygons.append([(left, low), (right, low), (right, high), (left, high)])
        room = (right - left - 0.1) / (_CHARACTER * size * _POINT)
        style = {"fontsize": size, "va": "center_baseline", "parse_math": False}
        axes.text(left + 0.05, (low + high) / 2, _fitted(_shown(h, cells, v), room), **style)
    look = {"facecolors": _colours(h, cells), "edgecolors": "white", "linewidths": 0.8}
    axes.add_collection(PolyCollection(polygons, **look))
    return figure


def _columns(h: Hierarchy, cells: Cells, size: float) -> list[float]:
    """Edges of the columns, wide enough for the names in them (within reason)."""
    character = _CHARACTER * size * _POINT
    depths = (h.depths - h.depths.min()).tolist()
    widest = [0.6] * (max(depths) + 1)
    for v, depth in enumerate(depths):
        if not cells.ends[v] or depth == len(widest) - 1:
            widest[depth] = max(widest[depth], min(len(_shown(h, cells, v)), 34) * character + 0.15)
    edges = np.concatenate([[0], np.cumsum(widest)])
    # A class that ends early may have a longer name than what remains of its row.
    for v, depth in enumerate(depths):
        if cells.ends[v]:
            edges[-1] = max(edges[-1], edges[depth] + min(len(_shown(h, cells, v)), 40) * character + 0.15)
    return edges.tolist()


def _rings(h: Hierarchy, cells: Cells) -> Figure:
    """Rings are depths; names of classes are outside, as far as they fit."""
    side = float(np.clip(5.5 + cells.rows / 25, 8, 24))
    longest = max(len(_shown(h, cells, v)) for v in np.flatnonzero(cells.ends).tolist())
    label_room = min(1.9, 0.15 + longest * _CHARACTER * _LETTERS * _POINT)
    first = int(h.depths.min())
    edges = _ring_edges(h, cells, side / 2 - label_room)
    figure, axes = _empty(side, side + 0.35, caption(h, cells), 0, 0.35)
    axes.set(xlim=(-side / 2, side / 2), ylim=(-side / 2, side / 2), aspect="equal")
    turn = 2 * np.pi / cells.rows
    polygons = []
    shown = []
    for v in range(h.num_nodes):
        inner = edges[h.depths[v] - first]
        outer = edges[-1] if cells.ends[v] else edges[h.depths[v] - first + 1]
        low = np.pi / 2 - turn * cells.start[v]
        high = np.pi / 2 - turn * cells.end[v]
        if (low - high) * outer < _THIN:
            continue
        shown.append(v)
        polygons.append(_sector(inner, outer, low, high))
        at, room = (outer + 0.05, label_room - 0.1) if cells.ends[v] else (inner + 0.05, outer - inner - 0.1)
        _label(axes, _shown(h, cells, v), (low + high) / 2, (low - high) * at, at, room)
    colours = _colours(h, cells)[shown]
    axes.add_collection(PolyCollection(polygons, facecolors=colours, edgecolors="white", linewidths=0.4))
    return figure


def _ring_edges(h: Hierarchy, cells: Cells, radius: float) -> list[float]:
    """Radii between the rings: the more nodes have their names inside a ring, the thicker it is; a root is a disc."""
    first = int(h.depths.min())
    named = np.bincount((h.depths - first)[~cells.ends], minlength=h.max_depth - first + 1)
    hole = 0.0 if h.rooted else 0.6
    ends = np.cumsum((named + 1) ** 0.25)
    return [hole, *(hole + (radius - hole) * ends / ends[-1]).tolist()]


def _sector(inner: float, outer: float, low: float, high: float) -> np.ndarray:
    angles = np.linspace(low, high, 2 + int((low - high) / 0.03))
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.concatenate([inner * circle, outer * circle[::-1]])


def _label(axes: Axes, text: str, angle: float, arc: float, radius: float, room: float) -> None:
    """Write along the radius, if the arc is high enough for legible letters."""
    size = min(_LETTERS, 0.9 * arc / _POINT)
    fitted = _fitted(text, room / (_CHARACTER * size * _POINT)) if size >= 3.5 else ""
    if not fitted or (fitted != text and len(fitted) < 8):
        return
    turned = np.cos(angle) < 0
    style = {"fontsize": size, "rotation_mode": "anchor", "va": "center_baseline", "parse_math": False}
    rotation = np.degrees(angle) + (180 if turned else 0)
    side = "right" if turned else "left"
    axes.text(radius * np.cos(angle), radius * np.sin(angle), fitted, rotation=rotation, ha=side, **style)


def _empty(width: float, height: float, caption: str, side: float, above: float) -> tuple[Figure, Axes]:
    """A figure of that size in inches, with its caption at the top and margins at the sides and below, and above."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((side / width, side / height, 1 - 2 * side / width, 1 - (side + above) / height))
    axes.axis("off")
    figure.text(0.2 / width, 1 - 0.15 / height, caption, fontsize=9, va="top", wrap=True)
    return figure, axes


def _shown(h: Hierarchy, cells: Cells, v: int) -> str:
    return drawable(h.names[v]) + (" +" if v in cells.extra else "")


def _fitted(text: str, room: float) -> str:
    return text if len(text) <= room else text[: max(int(room) - 1, 0)].rstrip() + "…"


def _colours(h: Hierarchy, cells: Cells) -> np.ndarray:
    """(N, 3): the colour of the branch, lighter towards the classes; grey above the branches."""
    palette = np.array([to_rgb(colour) for colour in PALETTE])
    base = np.where((cells.group < 0)[:, None], 0.88, palette[cells.group % len(PALETTE)])
    depth = h.depths - h.depths[cells.group >= 0].min() if (cells.group >= 0).any() else h.depths * 0
    light = np.clip(depth * 0.25, 0, 0.6)[:, None]
    return base + (1 - base) * np.where((cells.group < 0)[:, None], 0, light)
