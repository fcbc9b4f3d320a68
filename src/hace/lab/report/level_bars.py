"""Accuracy of two methods at every node of a level, as bars."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.collections import PolyCollection

from hace.lab.report.arenas import Arena, method_title
from hace.lab.report.drawing import RC_PARAMS, WIDTH, Picture, finish, new_figure, picture
from hace.lab.report.nodes import LevelBars

GREY, GAIN, LOSS = "#9aa0a6", "#00897b", "#e0679b"
_NAMES_SHOWN = 90  # classes that have room for their names below the bars


def level_picture(arena: Arena, found: LevelBars, first: str, second: str) -> Picture:
    """The second method in grey, what the first gains or loses on top of it."""
    count = len(found.names)
    width = float(np.clip(0.17 * count, WIDTH, 24))
    longest = max(map(len, found.names), default=0) if count <= _NAMES_SHOWN else 0
    ours, theirs = method_title(first), method_title(second)
    up = np.maximum(found.gain, 0)
    down = np.maximum(-found.gain, 0)
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(width, 2.9 + 0.055 * min(longest, 34))
        axes = figure.add_subplot()
        at = np.arange(count)
        kept = 100 * np.minimum(found.first, found.second)
        _bars(axes, at, 0 * kept, kept, facecolor=GREY, label=theirs)
        _bars(axes, at, kept, 100 * up, facecolor=GAIN, label=f"gain of {ours}")
        _bars(
            axes,
            at,
            kept,
            100 * down,
            facecolor=LOSS,
            hatch="////",
            edgecolor="white",
            label=f"loss of {ours}",
        )
        axes.set(xlim=(-0.7, count - 0.3), ylim=(0, 104), ylabel="accuracy, %")
        axes.set_xlabel(f"{found.level}: {count:,} in order of {theirs}'s accuracy")
        if count <= _NAMES_SHOWN:
            names = [n if len(n) <= 34 else n[:33] + "…" for n in found.names]
            axes.set_xticks(at, names, rotation=90, fontsize=7, parse_math=False)
        else:
            axes.set_xticks([])
        finish(axes, "y")
        figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8)
    won = int((found.gain >= 0).sum())
    more = int((found.gain > 0).sum())
    mean = 100 * float(found.gain.mean()) if count else 0.0
    text = (
        f"Accuracy by {found.level}, {arena.title}: {ours} matches or beats {theirs} in {won:,} of {count:,} "
        f"(beats in {more:,}), mean gain {mean:+.2f} points. The best class counts, carried up. "
        f"Grey and hatched together are {theirs}."
    )
    return picture(
        figure, f"level-{arena.slug}-{_safe(found.level)}", text, f"Bars. {text}", wide=width > 1.4 * WIDTH
    )


def _bars(axes: Any, at: np.ndarray, bottom: np.ndarray, height: np.ndarray, **look: Any) -> None:
    """Bars as one collection: hundreds of single patches take seconds to draw."""
    there = height > 0
    left, low, high = at[there] - 0.425, bottom[there], (bottom + height)[there]
    corners = np.stack(
        [np.stack([left + dx, y], 1) for dx, y in ((0, low), (0.85, low), (0.85, high), (0, high))], 1
    )
    axes.add_collection(PolyCollection(list(corners), linewidth=0, **look))


def _safe(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text)[:40]
