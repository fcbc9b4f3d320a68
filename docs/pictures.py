"""The picture at the top of the README: python docs/pictures.py

Two mistakes that cross-entropy cannot tell apart, on a tree, with the probabilities q* and the target p* of every node.
All numbers are computed by the library.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from hace import CrossEntropyLoss, HACELoss, Hierarchy

PATHS = [
    ("animal", "dog", "husky"),
    ("animal", "dog", "beagle"),
    ("animal", "cat", "tabby"),
    ("vehicle", "aircraft", "airliner"),
]
PLACES = {
    "animal": (1.0, 2.8), "vehicle": (3.4, 2.8), "dog": (0.5, 1.4), "cat": (2.2, 1.4), "aircraft": (3.4, 1.4),
    "husky": (0.0, 0), "beagle": (1.0, 0), "tabby": (2.2, 0), "airliner": (3.4, 0),
}  # fmt: skip
MISTAKES = {"beagle": "A husky taken for a beagle", "airliner": "A husky taken for an airliner"}
SURE, TEAL, RED, INK = 0.8, "#00796b", "#c2410c", "#1f2933"
TRUTH = 0.1  # what both predictions give the true class


def prediction(h: Hierarchy, answer: str) -> torch.Tensor:
    """(1, N) logits: most mass at the answer, the same share at the truth, the rest even, hardly any at inner nodes."""
    rest = (1 - SURE - TRUTH) / (h.num_leaves - 2)
    shares = {leaf: {answer: SURE, "husky": TRUTH}.get(leaf, rest) for leaf in h.leaves}
    return torch.tensor([[math.log(shares.get(node, 1e-6)) for node in h.nodes]])


def draw(axes: Axes, h: Hierarchy, answer: str) -> None:
    """One tree: how full a node is shows q*, the number below it p*."""
    loss = HACELoss(h, dilution=0.5)
    z = prediction(h, answer)
    q = loss.node_log_probs(z).exp()[0]
    p = loss.table(dense=True)[h.leaves.index("husky")]
    edges = {pair: "husky" in path for path in reversed(PATHS) for pair in pairwise(path)}
    for (above, below), on_path in edges.items():
        (x0, y0), (x1, y1) = PLACES[above], PLACES[below]
        colour, width = (TEAL, 2.6) if on_path else ("#b8c1cc", 1.4)
        axes.plot([x0, x1], [y0, y1], color=colour, lw=width, zorder=1)
    for node, (x, y) in PLACES.items():
        i = h.index(node)
        truth = p[i] > 0
        axes.add_patch(
            Circle(
                (x, y), 0.27, fc="white", ec=TEAL if truth else "#9aa5b1", lw=2.2 if truth else 1.2, zorder=2
            )
        )
        axes.add_patch(
            Circle(
                (x, y), 0.27 * math.sqrt(float(q[i])), fc=TEAL if truth else RED, alpha=0.85, lw=0, zorder=3
            )
        )
        numbers = f"q* {q[i]:.2f}" + (f"   p* {p[i]:.2f}" if truth else "")
        leaf = y == 0  # labelled below; inner nodes beside, where no edge crosses the words
        (u, v), side = ((x, y - 0.45), "center") if leaf else ((x + 0.34, y + 0.1), "left")
        weight = "bold" if truth else "normal"
        axes.text(u, v, node, fontsize=12, color=INK, ha=side, va="center", weight=weight)
        axes.text(u, v - 0.21, numbers, fontsize=9.5, color="#52606d", ha=side, va="center")
    plain = CrossEntropyLoss(h)(loss.leaf_logits(z), torch.tensor([0])).item()
    axes.set_title(MISTAKES[answer], fontsize=15, color=INK, loc="left", weight="bold", pad=22)
    text = f"cross-entropy {plain:.2f}      HACE {loss(z, torch.tensor([0])).item():.2f}"
    axes.text(
        0,
        1.015,
        text,
        transform=axes.transAxes,
        fontsize=13,
        color=TEAL if answer == "beagle" else RED,
        va="bottom",
    )
    axes.set_xlim(-0.6, 4.3)
    axes.set_ylim(-0.75, 3.2)
    axes.set_aspect("equal")
    axes.axis("off")


def main() -> None:
    """Write docs/images/mistakes.png."""
    h = Hierarchy.from_paths(PATHS, leaves=[path[-1] for path in PATHS])
    figure, both = plt.subplots(1, 2, figsize=(11.6, 5.4), facecolor="white")
    for axes, answer in zip(both, MISTAKES, strict=True):
        draw(axes, h, answer)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.0, top=0.88, wspace=0.06)
    figure.savefig(Path(__file__).parent / "images" / "mistakes.png", dpi=110)


if __name__ == "__main__":
    main()
