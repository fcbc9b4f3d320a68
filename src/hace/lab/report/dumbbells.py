"""Where two methods differ most: the nodes of a level as dumbbells, each with its number of samples and its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import matplotlib
import numpy as np

from hace.draw import drawable
from hace.lab.report.arenas import Arena, method_title
from hace.lab.report.drawing import (
    FIRST,
    GREY,
    RC_PARAMS,
    SECOND,
    WIDTH,
    Picture,
    finish,
    new_figure,
    picture,
)
from hace.lab.report.scores import ArenaScores
from hace.metrics.intervals import Interval
from hace.metrics.measures import node_of_level

MOST = 20  # nodes in a figure
_ONE_LINE = 30  # letters of both names that fit above the drawing
_Z = 1.959964


@dataclass(frozen=True, eq=False)
class NodeAccuracies:
    """Accuracy of two methods at the nodes of a level."""

    level: str
    names: list[str]
    samples: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """First minus second."""
        return self.first - self.second


def node_accuracies(
    arrays: ArenaScores, first: str, second: str, level: int, name: str
) -> NodeAccuracies | None:
    """Mean over seeds of the share of each node's samples whose answer, the best class, is below the same node.

    Args:
        arrays: The scores of an arena.
        first: A method.
        second: The method it is compared with.
        level: From 0, the top.
        name: Of the level.

    Returns:
        Nodes with test samples, in node order; None where predictions are missing.
    """
    h = arrays.hierarchy
    runs = [list(arrays.predictions(method).values()) for method in (first, second)]
    if h is None or not all(runs):
        return None
    carried = h.level_nodes(level + 1)
    node = carried[runs[0][0]["truth"]]
    samples = np.bincount(node, minlength=h.num_nodes)
    seen = np.flatnonzero(samples)
    share = []
    for kept in runs:
        right = np.stack([carried[run["answer"]] == node for run in kept]).mean(axis=0)
        share.append((np.bincount(node, weights=right, minlength=h.num_nodes)[seen]) / samples[seen])
    return NodeAccuracies(name, [drawable(h.names[v]) for v in seen], samples[seen], share[0], share[1])


def _wilson(share: float, samples: float) -> tuple[float, float]:
    """The 95 % interval of a share of samples (Wilson 1927).

    Example:
        >>> [round(end, 3) for end in _wilson(0.5, 10)]
        [0.237, 0.763]
    """
    z = _Z**2 / samples
    middle = (share + z / 2) / (1 + z)
    half = math.sqrt(share * (1 - share) / samples * _Z**2 + z * z / 4) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


def newcombe(first: float, second: float, samples: float) -> Interval:
    """The difference of two shares of so many samples, with its 95 % interval (Newcombe 1998, method 10).

    It takes both methods to have samples of their own, and seeds not to add samples, so it is wider than a paired interval.

    Example:
        >>> found = newcombe(0.8, 0.6, 50)
        >>> round(found.value, 2), round(found.low, 3), round(found.high, 3)
        (0.2, 0.02, 0.364)
    """
    (low_a, high_a), (low_b, high_b) = _wilson(first, samples), _wilson(second, samples)
    gap = first - second
    low = gap - math.hypot(first - low_a, high_b - second)
    return Interval(gap, low, gap + math.hypot(high_a - first, second - low_b))


def dumbbell_picture(arena: Arena, found: NodeAccuracies, first: str, second: str) -> Picture:
    """A line from the second method's accuracy to the first's, for the nodes where they differ most."""
    largest = np.argsort(-np.abs(found.gain), kind="stable")[:MOST]
    order = largest[np.argsort(found.gain[largest], kind="stable")].tolist()
    ours, theirs = method_title(first), method_title(second)
    gaps = [newcombe(float(found.first[i]), float(found.second[i]), float(found.samples[i])) for i in order]
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(WIDTH, 0.9 + 0.2 * len(order))
        axes = figure.add_subplot()
        for at, (i, gap) in enumerate(zip(order, gaps, strict=True)):
            alpha = 1.0 if gap.excludes_zero else 0.45
            a, b = 100 * found.first[i], 100 * found.second[i]
            axes.plot([a, b], [at, at], color=GREY, linewidth=1.6, alpha=alpha, zorder=1)
            axes.plot(
                [b], [at], "o", color=SECOND, markersize=5.5, alpha=alpha, zorder=2, markerfacecolor="none"
            )
            axes.plot([a], [at], "o", color=FIRST, markersize=5.5, alpha=alpha, zorder=3)
            text = f"{100 * gap.value:+.1f} [{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]  n = {found.samples[i]:,}"
            axes.annotate(text, (1.02, at), xycoords=("axes fraction", "data"), va="center", fontsize=7.5,
                          alpha=0.5 + alpha / 2, annotation_clip=False)  # fmt: skip
        names = [found.names[i] if len(found.names[i]) <= 26 else found.names[i][:25] + "…" for i in order]
        axes.set_yticks(range(len(order)), names, fontsize=8)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xlabel("accuracy, %")
        finish(axes, "x")
        axes.set_title(f"● {ours}", loc="left", color=FIRST, fontsize=8.5)
        axes.set_title(f"○ {theirs}", loc="right", color=SECOND, fontsize=8.5)
        if len(ours) + len(theirs) > _ONE_LINE:
            axes.set_title("", loc="right")
            axes.set_title(f"● {ours}\n", loc="left", color=FIRST, fontsize=8.5)
            axes.annotate(f"○ {theirs}", (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
                          color=SECOND, fontsize=8.5)  # fmt: skip
    shown = (
        f"the {len(order)} of {len(found.names):,} that differ most"
        if len(order) < len(found.names)
        else "all"
    )
    certain = sum(gap.excludes_zero for gap in gaps)
    text = (
        f"How often the best class is below the right {node_of_level(found.level)}: {shown}. Differences in points with 95 % "
        f"intervals, faint where they include 0, as {f'all but {certain}' if certain else 'they all'} do; among many some "
        "exclude it by chance."
    )
    return picture(
        figure, f"level-{arena.slug}-{_safe(found.level)}", text, f"Dumbbells of two accuracies. {text}"
    )


def _safe(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text)[:40]
