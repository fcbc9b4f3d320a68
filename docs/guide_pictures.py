"""The pictures of the guide: python docs/guide_pictures.py [NAME ...]

Every number comes from the library, from evidence/results or from a table of the docs.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hace import CrossEntropyLoss, HACELoss, HCELoss, Hierarchy, SoftLabelLoss
from hace.data import synthetic_images
from hace.draw.drawing_files import draw_hierarchy
from hace.draw.static_picture import _rings
from hace.draw.tree_layout import lay_out
from hace.formats import parse_hierarchy
from hace.formats.builtin import animals_hierarchy
from hace.paper import paper_tables

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
TEAL, RED, INK, GREY = "#00796b", "#c2410c", "#1f2933", "#9aa5b1"
SHOWN = {
    "SCE": "cross-entropy",
    "SCE, path sums": "path sums",
    "HACE": "HACE",
    "SCE, coarse labels dropped": "coarse labels dropped",
}
COLOURS = {"SCE": INK, "SCE, path sums": TEAL, "HACE": RED, "SCE, coarse labels dropped": GREY}


def shop() -> None:
    """The taxonomy of the first tutorial."""
    table = re.search(
        r'title="shop.csv"\n(.*?)```', (DOCS / "tutorials" / "taxonomy.md").read_text(), re.DOTALL
    )
    assert table
    h = parse_hierarchy(table[1], "csv", columns=["department", "shelf", "product"], label="label")
    draw_hierarchy(h, IMAGES / "shop.png")


def animals() -> Figure:
    """The built-in taxonomy of animals as a sunburst."""
    h = animals_hierarchy()
    return _rings(h, lay_out(h))


def targets() -> Figure:
    """What each loss asks for when the label is husky: rows of T."""
    paths = [
        ("animal", "dog", "husky"),
        ("animal", "dog", "beagle"),
        ("animal", "cat", "tabby"),
        ("vehicle", "aircraft", "airliner"),
    ]
    h = Hierarchy.from_paths(paths, leaves=[path[-1] for path in paths])
    losses = {
        "cross-entropy": CrossEntropyLoss(h),
        "soft labels, beta = 4": SoftLabelLoss(h, beta=4),
        "HCE": HCELoss(h),
        "HACE, d = 0.7": HACELoss(h, dilution=0.7),
        "HACE, d = 0.5": HACELoss(h, dilution=0.5),
        "HACE, d = 0.5, smoothing 0.1": HACELoss(h, dilution=0.5, label_smoothing=0.1),
    }
    rows = np.array([loss.table(dense=True)[0].numpy() for loss in losses.values()])
    figure, axes = plt.subplots(figsize=(9.6, 3.6))
    axes.imshow(rows, cmap="GnBu", vmin=0, vmax=1.1, aspect="auto")
    for (i, j), value in np.ndenumerate(rows):
        if value > 0:
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else INK)
    axes.set_xticks(range(h.num_nodes), h.nodes)
    axes.set_yticks(range(len(losses)), list(losses))
    axes.tick_params(length=0, labelsize=11)
    axes.set_title("the target p* of every node when the label is husky", loc="left", color=INK)
    axes.spines[:].set_visible(False)
    return figure


def threshold() -> Figure:
    """One prediction, and the rank at which thresholds stop."""
    nodes, q = ["animal", "dog", "husky"], [0.97, 0.84, 0.46]
    figure, axes = plt.subplots(figsize=(8.2, 2.6))
    axes.barh(nodes, q, color=[TEAL, TEAL, GREY], height=0.55)
    for y, (node, value) in enumerate(zip(nodes, q, strict=True)):
        axes.text(0.02, y, f"{value:.2f}", va="center", color="white", weight="bold")
        if node == "dog":
            axes.text(value + 0.07, y, 'the answer: "dog"', va="center", color=TEAL, weight="bold")
    axes.axvline(0.8, color=RED, lw=1.6)
    axes.text(0.8, 2.5, "threshold 0.8", color=RED, ha="center", va="bottom")
    axes.invert_yaxis()
    axes.set_ylim(2.45, -0.5)
    axes.texts[-1].set_position((0.8, -0.55))
    axes.set_xlim(0, 1.3)
    axes.set_xticks([0, 0.5, 1])
    axes.set_xlabel("probability of the node and everything below it")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def coarse_labels() -> Figure:
    """Accuracy against what is known of the labels, on two data sets."""
    figure, both = plt.subplots(1, 2, figsize=(9.6, 3.6), sharey=False)
    for axes, (name, title) in zip(both, (("cub200", "CUB-200"), ("cifar100", "CIFAR-100")), strict=True):
        path = (
            DOCS.parent / "evidence" / "results" / f"{name}-mixed-labels" / f"labels-{name}-features-fair.csv"
        )
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns = ["all labels", "80 % parent", "95 % parent"]
        for row in rows:
            method = row["method"]
            if method in SHOWN:
                values = [float(row[c].split()[0]) if row[c] else None for c in columns]
                known = [(x, v) for x, v in enumerate(values) if v is not None]
                axes.plot(*zip(*known, strict=True), "o-", color=COLOURS[method], label=SHOWN[method])
        axes.set_xticks(
            range(3), ["all labels\nknown", "80 % only\nto the parent", "95 % only\nto the parent"]
        )
        axes.set_title(title, loc="left", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylabel("top-1 accuracy, %")
    both[0].legend(frameon=False, fontsize=9)
    return figure


def segments() -> Figure:
    """How a label's path cuts a row of logits: nested ranges above the columns, one factor per segment below."""
    figure, axes = plt.subplots(figsize=(8.2, 3.2))
    ranges = [  # first and last column, what the node is, and its sum
        (0, 11, "root, $b_2$", "$S_2$: all terms", GREY),
        (1, 7, "node 1, $b_1$", "$S_1 = S_0$ + terms of 1–4, 6, 7", TEAL),
        (5, 5, "the label, node 5, $b_0$", "$S_0$: its own term", RED),
    ]
    colour = {column: c for low, high, _, _, c in ranges for column in range(low, high + 1)}
    for column, c in colour.items():
        axes.add_patch(Rectangle((column, 0), 0.94, 0.8, fc=c, alpha=0.25, ec="none"))
        axes.text(column + 0.47, 0.4, str(column), ha="center", va="center", color=INK)
    for row, (low, high, node, total, c) in enumerate(ranges):
        y = 3.5 - row
        axes.plot([low, low, high + 0.94, high + 0.94], [y - 0.18, y, y, y - 0.18], color=c, lw=2)
        axes.text(low, y + 0.08, node, ha="left", va="bottom", color=INK, fontsize=9)
        axes.text(12.3, y, total, ha="left", va="center", color=INK, fontsize=9)
    for low, high, r in ((0, 0, 2), (1, 4, 1), (5, 5, 0), (6, 7, 1), (8, 11, 2)):
        axes.text((low + high + 0.94) / 2, -0.2, f"$g_{r}$", ha="center", va="top", color=INK)
    axes.text(12.3, 0.4, "columns of one row", va="center", color=INK, fontsize=9)
    axes.text(12.3, -0.2, "factor of each segment", va="top", color=INK, fontsize=9)
    axes.set(xlim=(-0.1, 17.2), ylim=(-0.7, 4.1))
    axes.axis("off")
    return figure


def speed() -> Figure:
    """The table of the page as a plot: cost relative to cross-entropy, by the number of nodes."""
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^\| (\w[^|]*?) \| (?:CIFAR-100, )?([\d,]+) nodes \| \d+ \| 1 \| ([\d.]+) ", text, re.MULTILINE
    )
    figure, axes = plt.subplots(figsize=(8.2, 3.8))
    styles = {
        "HACE": (TEAL, "o-"),
        "HCE": (INK, "s-"),
        "HXE": (RED, "^-"),
        "HACE as published": (TEAL, "o:"),
        "HXE as published": (RED, "^:"),
    }
    for name, (colour, style) in styles.items():
        points = [(int(nodes.replace(",", "")), float(ratio)) for loss, nodes, ratio in found if loss == name]
        axes.plot(*zip(*points, strict=True), style, color=colour, label=name)
    axes.axhline(1, color=GREY, lw=1)
    axes.text(130_000, 1.04, "F.cross_entropy", ha="right", va="bottom", color="#52606d", fontsize=9)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="nodes",
        ylabel="time, forward and backward,\nrelative to cross-entropy",
    )
    axes.set_yticks([0.25, 0.5, 1, 2, 5, 10], ["0.25", "0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def painted() -> Figure:
    """Synthetic images of twelve classes, in the order of the tree."""
    data = synthetic_images(classes=12, train=1, test=4)
    h, samples = data.hierarchy, data["test"]
    figure, grid = plt.subplots(4, 12, figsize=(9.6, 3.6))
    order = sorted(range(h.num_leaves), key=lambda label: h.leaf_nodes[label])
    for column, label in enumerate(order):
        for row, sample in enumerate(np.flatnonzero(h.labels[samples.nodes] == label)[:4]):
            grid[row, column].imshow(samples.image(int(sample)))
            grid[row, column].axis("off")
        grid[0, column].set_title(h.leaves[label], fontsize=10, color=INK)
    figure.subplots_adjust(wspace=0.06, hspace=0.06)
    return figure


def gains() -> Figure:
    """What the paper prints: HACE minus SCE for each model and data set."""
    table = paper_tables()["best_to_best"]
    models = [row["model"] for row in table.rows]
    names = {"cifar100": "CIFAR-100", "aircraft": "FGVC-Aircraft", "nabirds": "NABirds"}
    figure, axes = plt.subplots(figsize=(8.6, 3.6))
    for i, (dataset, colour) in enumerate(zip(names, (INK, TEAL, RED), strict=True)):
        both = [
            [table.value(model=m, dataset=dataset, method=name) for m in models] for name in ("hace", "sce")
        ]
        values = np.subtract(*[np.array(v, dtype=float) for v in both])
        axes.bar(np.arange(len(models)) + 0.27 * (i - 1), values, 0.25, color=colour, label=names[dataset])
    axes.axhline(0, color=GREY, lw=1)
    axes.set_xticks(range(len(models)), list(models))
    axes.set_ylabel("points of top-1, HACE minus SCE")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


PICTURES: dict[str, Callable[[], Figure | None]] = {
    f.__name__: f for f in (shop, animals, targets, threshold, coarse_labels, segments, speed, painted, gains)
}


def main() -> None:
    """Write the named pictures, or all."""
    torch.set_num_threads(1)
    plt.rcParams.update(
        {"font.size": 10, "axes.titlesize": 12, "savefig.bbox": "tight", "figure.facecolor": "white"}
    )
    small = {"animals": 64, "painted": 72}  # many colours make large files
    for name in sys.argv[1:] or PICTURES:
        figure = PICTURES[name]()
        if figure is not None:
            figure.savefig(
                IMAGES / f"{name.replace('_', '-')}.png",
                dpi=small.get(name, 110),
                metadata={"Software": None},
            )


if __name__ == "__main__":
    main()
