"""The picture at the top of the README: python docs/pictures.py

Two mistakes that cross-entropy cannot tell apart, on a tree, with the probabilities q* and the target p* of every node; beside
them a taxonomy as a sunburst. All numbers are computed by the library.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Circle
from PIL import Image

from hace import CrossEntropyLoss, HACELoss, Hierarchy
from hace.draw import lay_out
from hace.draw.picture import _colours, _label, _ring_edges, _sector
from hace.formats.readers import animals_hierarchy

PATHS = [
    ("animal", "dog", "husky"),
    ("animal", "dog", "beagle"),
    ("animal", "cat", "tabby"),
    ("vehicle", "aircraft", "airliner"),
]
PLACES = {
    "animal": (1.0, 2.8), "vehicle": (3.95, 2.8), "dog": (0.5, 1.4), "cat": (2.4, 1.4), "aircraft": (3.95, 1.4),
    "husky": (0.0, 0), "beagle": (1.0, 0), "tabby": (2.4, 0), "airliner": (3.95, 0),
}  # fmt: skip
MISTAKES = {"beagle": "A husky taken for a beagle", "airliner": "A husky taken for an airliner"}
IMAGE = Path(__file__).parent / "images" / "mistakes.png"
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
        leaf = y == 0  # labelled below; inner nodes beside, where no edge crosses the words
        (u, v), side = ((x, y - 0.46), "center") if leaf else ((x + 0.37, y + 0.24), "left")
        weight = "bold" if truth else "normal"
        axes.text(u, v, node, fontsize=14, color=INK, ha=side, va="center", weight=weight)
        numbers = [f"q* {q[i]:.2f}", *([f"p* {p[i]:.2f}"] if truth else [])]
        for line, number in enumerate(numbers, start=1):
            axes.text(u, v - 0.24 * line, number, fontsize=12, color="#52606d", ha=side, va="center")
    plain = CrossEntropyLoss(h)(loss.leaf_logits(z), torch.tensor([0])).item()
    axes.set_title(MISTAKES[answer], fontsize=17, color=INK, loc="left", weight="bold", pad=24)
    text = f"cross-entropy {plain:.2f}      HACE {loss(z, torch.tensor([0])).item():.2f}"
    axes.text(
        0,
        1.015,
        text,
        transform=axes.transAxes,
        fontsize=15,
        color=TEAL if answer == "beagle" else RED,
        va="bottom",
    )
    axes.set_xlim(-0.6, 5.2)
    axes.set_ylim(-1.05, 3.2)
    axes.set_aspect("equal")
    axes.axis("off")


def sunburst(axes: Axes, h: Hierarchy, radius: float) -> None:
    """Every node of a taxonomy by name, its tops in the middle."""
    cells = lay_out(h)
    edges = _ring_edges(h, cells, radius)
    turn, top = 2 * math.pi / cells.rows, h.depths.min()
    sectors = []
    for v in range(h.num_nodes):
        inner = edges[h.depths[v] - top]
        outer = edges[-1] if cells.ends[v] else edges[h.depths[v] - top + 1]
        low, high = math.pi / 2 - turn * cells.start[v], math.pi / 2 - turn * cells.end[v]
        sectors.append(_sector(inner, outer, low, high))
        at = outer if cells.ends[v] else inner
        _label(axes, h.names[v], (low + high) / 2, (low - high) * (at + 0.05), at + 0.05, 2.0)
    colours = np.asarray(_colours(h, cells))
    axes.add_collection(PolyCollection(sectors, facecolors=colours, edgecolors="white", linewidths=0.6))
    axes.set_title(
        f"A taxonomy: {h.num_leaves} classes, {h.num_nodes} nodes", fontsize=17, color=INK, weight="bold"
    )
    axes.set_xlim(-radius - 0.95, radius + 0.95)
    axes.set_ylim(-radius - 0.95, radius + 0.95)
    axes.set_aspect("equal")
    axes.axis("off")


def main() -> None:
    """Write docs/images/mistakes.png."""
    h = Hierarchy.from_paths(PATHS, leaves=[path[-1] for path in PATHS])
    figure = plt.figure(figsize=(12.6, 9.0), facecolor="white")
    for answer, below in zip(MISTAKES, (0.5, 0.0), strict=True):
        draw(figure.add_axes((0.0, below, 0.45, 0.43)), h, answer)
    side = 0.53 * 12.6
    sunburst(figure.add_axes((0.47, 0.0, 0.53, 0.95)), animals_hierarchy(), side / 2 - 0.95)
    figure.savefig(IMAGE, dpi=100, metadata={"Software": None})
    Image.open(IMAGE).convert("RGB").quantize(128).save(IMAGE, optimize=True)  # a third of the size


if __name__ == "__main__":
    main()
