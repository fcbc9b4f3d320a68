"""The paper's first figure: a small hierarchy with q, q*, p and p*, computed by the library itself."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.patches import FancyBboxPatch

from hace.hierarchy import Hierarchy
from hace.lab.report.drawing import RC_PARAMS, Picture, new_figure, picture
from hace.losses.head import node_log_probs
from hace.losses.tables import ancestral_table

DILUTION = 0.6
LABEL = "husky"
# What a network might say: most of its mass at the two dogs, some at the inner node above them.
LOGITS = {"animal": -1.0, "dog": 1.2, "husky": 2.2, "beagle": 1.7, "cat": 0.0, "tabby": 0.8, "siamese": -0.5, "bird": -0.6,
          "robin": -0.4, "wren": -1.2}  # fmt: skip
PATHS = [("animal", "dog", "husky"), ("animal", "dog", "beagle"), ("animal", "cat", "tabby"),
         ("animal", "cat", "siamese"), ("animal", "bird", "robin"), ("animal", "bird", "wren")]  # fmt: skip


def toy_values() -> tuple[Hierarchy, dict[str, np.ndarray]]:
    """The hierarchy, and q, q*, p and p* of every node, in node order.

    Example:
        >>> h, values = toy_values()
        >>> [round(float(values["p*"][h.index(v)]), 2) for v in ("husky", "dog", "animal")]
        [0.6, 0.24, 0.16]
    """
    h = Hierarchy.from_paths(PATHS, leaves=[path[-1] for path in PATHS])
    z = torch.tensor([[LOGITS[v] for v in h.nodes]], dtype=torch.float64)
    label = h.index(LABEL)
    row = ancestral_table(h, np.array([label]), DILUTION)
    smoothed = np.zeros(h.num_nodes)
    smoothed[row.node] = row.value
    return h, {
        "q": torch.softmax(z, dim=1)[0].numpy(),
        "q*": node_log_probs(z, h, outputs="nodes").exp()[0].numpy(),
        "p": np.eye(h.num_nodes)[label],
        "p*": smoothed,
    }


def toy_picture() -> Picture:
    """The figure."""
    h, values = toy_values()
    titles = {
        "q": "q: softmax over all nodes",
        "q*": "q*: each node has the mass of its subtree",
        "p": f"p: one-hot at {LABEL}",
        "p*": f"p*: ancestral smoothing, d = {DILUTION}",
    }
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(11.0, 5.6)
        for axes, (name, title) in zip(figure.subplots(2, 2).flat, titles.items(), strict=True):
            _tree(axes, h, values[name])
            axes.set_title(f"{'(a)' if name[0] == 'q' else '(b)'}  {title}", fontsize=10, loc="left")
    text = (
        "The two parts of HACE on a toy hierarchy. (a) Prediction: the softmax q, and q*, where every node has the mass of its "
        f"subtree. (b) Label: one-hot p, and p*, where a node keeps d = {DILUTION} of what arrives and passes the rest up. The "
        "loss is the cross-entropy between p* and q*. Computed by this library."
    )
    described = "; ".join(
        f"{k}: " + ", ".join(f"{v} {x:.2f}" for v, x in zip(h.nodes, values[k], strict=True)) for k in titles
    )
    return picture(figure, "toy", text, f"Four drawings of a tree of animals. {described}.", wide=True)


def _tree(axes: Any, h: Hierarchy, values: np.ndarray) -> None:
    place: dict[int, tuple[float, float]] = {}
    for i, v in enumerate(h.leaf_nodes.tolist()):
        place[v] = (float(i), -float(h.depths[v]))
    for v in range(h.num_nodes - 1, -1, -1):
        if v not in place:
            below = [place[int(c)][0] for c in np.flatnonzero(h.parent_nodes == v)]
            place[v] = (sum(below) / len(below), -float(h.depths[v]))
    for above, v in h.edges.tolist():
        axes.plot(*zip(place[above], place[v], strict=True), color="0.7", linewidth=1, zorder=1)
    shade = matplotlib.colormaps["Blues"]
    for v, (x, y) in place.items():
        value = float(values[v])
        face = shade(0.05 + 0.6 * value)
        axes.add_patch(FancyBboxPatch((x - 0.36, y - 0.2), 0.72, 0.4, boxstyle="round,pad=0.04", facecolor=face,
                                      edgecolor="#0072b2" if value else "0.7", linewidth=1, zorder=2))  # fmt: skip
        axes.text(x, y + 0.07, h.nodes[v], ha="center", va="center", fontsize=8, zorder=3)
        weight = "bold" if value else "normal"
        axes.text(
            x, y - 0.12, f"{value:.2f}", ha="center", va="center", fontsize=8, fontweight=weight, zorder=3
        )
    axes.set(xlim=(-0.6, 5.6), ylim=(-2.45, 0.35))
    axes.axis("off")
