"""The pictures of the guide: python docs/guide_pictures.py [NAME ...]

Every number comes from the library, from evidence/results or from a table of the docs.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from sklearn.datasets import load_iris

from hace import (
    CrossEntropyLoss,
    HACEClassifier,
    HACELoss,
    HCELoss,
    Hierarchy,
    SoftLabelLoss,
    build_loss,
    export_run,
)
from hace.data import synthetic_features
from hace.draw import draw_hierarchy, lay_out
from hace.draw.picture import _rings
from hace.formats import parse_hierarchy
from hace.formats.readers import animals_hierarchy
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.linear import Optimization, Trial, fit_heads, head_scores
from hace.losses.head import node_log_probs
from hace.metrics import LevelAccuracy, distances, hierarchical_prf, information_prf, level_accuracy

DOCS = Path(__file__).parent
DPI = 130
SHADES = 96  # of a file: fewer make it small
IMAGES = DOCS / "images"
TEAL, RED, INK, GREY = "#00796b", "#c2410c", "#1f2933", "#9aa5b1"
SHOWN = {
    "cross-entropy": "cross-entropy",
    "path sums": "shared-ancestor head",
    "HACE": "HACE",
    "cross-entropy, coarse labels dropped": "coarse labels dropped",
}
COLOURS = {"cross-entropy": INK, "path sums": TEAL, "HACE": RED, "cross-entropy, coarse labels dropped": GREY}


def shop() -> None:
    """The shop on the page of taxonomies."""
    table = re.search(r'title="shop.csv"\n(.*?)```', (DOCS / "taxonomies.md").read_text(), re.DOTALL)
    assert table
    h = parse_hierarchy(table[1], "csv", columns=["department", "shelf", "product"], label="label")
    draw_hierarchy(h, IMAGES / "shop.png")


def four_classes() -> Hierarchy:
    """README's taxonomy."""
    paths = [
        ("animal", "dog", "husky"),
        ("animal", "dog", "beagle"),
        ("animal", "cat", "tabby"),
        ("vehicle", "aircraft", "airliner"),
    ]
    return Hierarchy.from_paths(paths, leaves=[path[-1] for path in paths])


def animals() -> Figure:
    """The built-in taxonomy of animals as a sunburst."""
    h = animals_hierarchy()
    return _rings(h, lay_out(h))


def targets() -> Figure:
    """What each loss asks for when the label is husky: rows of T."""
    h = four_classes()
    losses = {
        "cross-entropy": CrossEntropyLoss(h),
        "soft labels, beta 4": SoftLabelLoss(h, beta=4),
        "HCE": HCELoss(h),
        "HACE, dilution 0.7": HACELoss(h, dilution=0.7),
        "HACE, dilution 0.5": HACELoss(h, dilution=0.5),
        "HACE, 0.5, smoothing 0.1": HACELoss(h, dilution=0.5, label_smoothing=0.1),
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
    axes.set_title("What each loss asks of every node when the label is husky", loc="left", color=INK)
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
    """Accuracy against what is known of the labels, on two datasets."""
    figure, both = plt.subplots(1, 2, figsize=(9.6, 3.6), sharey=False)
    with (DOCS.parent / "evidence" / "withheld.csv").open(newline="", encoding="utf-8") as file:
        withheld = {(row["study"], row["labels"], row["method"]) for row in csv.DictReader(file)}
    for axes, (name, title) in zip(both, (("cub200", "CUB-200"), ("cifar100", "CIFAR-100")), strict=True):
        path = (
            DOCS.parent / "evidence" / "results" / f"{name}-mixed-labels" / f"labels-{name}-features-fair.csv"
        )
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns = ["all labels", "80% parent", "95% parent"]
        for row in rows:
            method = row["method"]
            if method in SHOWN:
                shown = [c for c in columns if row[c] and (f"{name}-mixed-labels", c, method) not in withheld]
                known = [(columns.index(c), float(row[c].split()[0])) for c in shown]
                axes.plot(*zip(*known, strict=True), "o-", color=COLOURS[method], label=SHOWN[method])
        axes.set_xticks(range(3), ["all labels\nfine", "80%\ncoarse", "95%\ncoarse"])
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


def estimator() -> Figure:
    """Where the estimator of the page answers with a species, and where with the kind alone."""
    iris = load_iris()
    x, y = iris.data[:, 2:], iris.target_names[iris.target]
    h = Hierarchy.from_paths([("small", "setosa"), ("large", "versicolor"), ("large", "virginica")])
    classifier = HACEClassifier(h).fit(x, y)
    u, v = np.meshgrid(np.linspace(0.5, 7.3, 340), np.linspace(-0.1, 2.7, 140))
    answers = np.array(
        classifier.predict_node(np.column_stack([u.ravel(), v.ravel()]), threshold=0.9), dtype=object
    )
    shades = {
        "setosa": TEAL,
        "versicolor": RED,
        "virginica": "#4f6d9e",
        "large": "#e4e7eb",
        "small": "#cbd2d9",
        None: "white",
    }
    figure, axes = plt.subplots(figsize=(8.2, 3.6))
    image = np.array([to_rgb(shades[answer]) for answer in answers]).reshape(*u.shape, 3)
    axes.imshow(0.45 * image + 0.55, origin="lower", extent=(0.5, 7.3, -0.1, 2.7), aspect="auto")
    for species in h.leaves:
        axes.scatter(*x[y == species].T, s=14, color=shades[species], label=species, lw=0)
    words = 'the answer "large":\none of the two, but which?'
    axes.annotate(words, (4.72, 1.78), (5.2, 0.35), color=INK, arrowprops={"arrowstyle": "-", "color": INK})
    axes.set(xlabel="petal length, cm", ylabel="petal width, cm")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def probing() -> Figure:
    """Accuracy of many heads of one pass, by learning rate: two losses, two different best rates."""
    data = synthetic_features("animals", signal=0.7, train=60, test=20)
    train, test = data["train"], data["test"]
    rates = [2.0**i for i in range(-3, 10)]
    figure, axes = plt.subplots(figsize=(8.2, 3.4))
    for name, colour, shown in (
        ("cross_entropy", INK, "cross-entropy"),
        ("hace", TEAL, "HACE, dilution 0.5"),
    ):
        loss = build_loss(name, data.hierarchy)
        heads = fit_heads(
            train.x, train.labels, [Trial(loss, rate) for rate in rates], Optimization(epochs=20)
        )
        scores = [loss.leaf_logits(head_scores(test.x, head)) for head in heads]
        right = [100 * (s.argmax(1).numpy() == test.labels).mean() for s in scores]
        best = int(np.argmax(right))
        axes.plot(rates, right, "o-", color=colour, label=shown, ms=4)
        axes.plot(rates[best], right[best], "o", color=colour, ms=10, mfc="none")
    axes.set_xscale("log", base=2)
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set(xlabel="learning rate", ylabel="top-1 accuracy, %")
    axes.legend(frameon=False, loc="lower center")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def deployment() -> Figure:
    """What an exported file says of three samples: q* along the path to the most probable class."""
    with tempfile.TemporaryDirectory() as folder:
        data = DataConfig("synthetic-features", hierarchy="animals", options={"signal": 0.7})
        (run,) = probe(
            [ProbeConfig(data=data, loss=LossConfig("hace"), lr=16, epochs=20)], Path(folder) / "runs"
        )
        file = Path(folder) / "animals.onnx"
        export_run(run.folder, file)
        samples = synthetic_features("animals", signal=0.7)["test"]
        session = onnxruntime.InferenceSession(file)
        document = json.loads(session.get_modelmeta().custom_metadata_map["hace"])
        q = session.run(["node_probabilities"], {"features": np.asarray(samples.x, dtype=np.float32)})[0]
    h = animals_hierarchy()
    assert tuple(document["nodes"]) == h.nodes
    best = q[:, h.leaf_nodes].argmax(axis=1)
    sure = q[np.arange(len(q)), h.leaf_nodes[best]]
    figure, row = plt.subplots(1, 3, figsize=(9.6, 1.9))
    for axes, wanted in zip(row, (0.9, 0.6, 0.35), strict=True):
        i = int(np.abs(sure - wanted).argmin())
        path = list(reversed(h.path(h.leaves[best[i]])))
        values = [q[i, h.index(node)] for node in path]
        axes.barh(path, values, color=[TEAL if value >= 0.8 else GREY for value in values], height=0.6)
        for y, value in enumerate(values):
            axes.text(0.03, y, f"{value:.2f}", va="center", color="white", weight="bold")
        axes.axvline(0.8, color=RED, lw=1.4)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xticks=[0, 0.8, 1])
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def integrations() -> Figure:
    """`plot()` of a torchmetrics class of ours, over the epochs of a small training."""
    data = synthetic_features("animals", signal=0.7, nuisance=4.0)
    train, test = data["train"], data["test"]
    loss = HACELoss(data.hierarchy)
    torch.manual_seed(0)
    model = torch.nn.Linear(train.x.shape[1], loss.num_outputs)
    x, y = torch.as_tensor(np.asarray(train.x)), torch.as_tensor(train.labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    metric = LevelAccuracy(data.hierarchy)
    values = []
    for _ in range(12):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        metric.update(model(torch.as_tensor(np.asarray(test.x))).detach(), torch.as_tensor(test.labels))
        values.append(metric.compute())
        metric.reset()
    figure, axes = plt.subplots(figsize=(8.2, 3.2))
    metric.plot(values, ax=axes)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def peers() -> Figure:
    """The table of classifiers: accuracy against the time to fit."""
    with (DOCS.parent / "evidence/results/peers/classifiers.csv").open(encoding="utf-8") as file:
        rows = [(row["method"], row["top-1, %"], row["fit, s"]) for row in csv.DictReader(file)]
    figure, axes = plt.subplots(figsize=(8.2, 2.8))
    for name, right, seconds in rows:
        shown = name.replace("`", "").split(", without")[0].removeprefix("scikit-learn's ")
        colour = TEAL if shown.startswith("HACE") else INK if shown.startswith("Logistic") else RED
        axes.plot(float(seconds), float(right), "o", color=colour)
        offset = (8, -12) if "parent" in shown else (8, 4)
        axes.annotate(shown, (float(seconds), float(right)), offset, textcoords="offset points", color=colour)
    axes.set(xscale="log", xlim=(1, 60), ylim=(60, 73), xlabel="seconds to fit", ylabel="top-1, %")
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def groceries() -> Figure:
    """Ranks of the answers about next year's photos at a guarantee of 95%: as fitted, calibrated on 200, fitted with these."""
    with (DOCS.parent / "evidence/results/groceries/answers.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(8.2, 2.6))
    ranks = {"product": TEAL, "kind": "#5fa8a0", "department": "#bfdcd9", "nothing": GREY}
    for y, row in enumerate(rows):
        left = 0.0
        for rank, colour in ranks.items():
            width = float(row[rank].rstrip("%"))
            axes.barh(y, width, 0.62, left, color=colour, label=rank if y == 0 else None)
            if width >= 5:
                dark = rank in ("product", "nothing")
                axes.text(
                    left + width / 2,
                    y,
                    f"{width:.0f}%",
                    ha="center",
                    va="center",
                    color="white" if dark else INK,
                )
            left += width
        axes.text(101, y, f"{row['false']} false", va="center", color=INK)
    axes.set_yticks(range(len(rows)), [f"{row['model']}\n{row['photos']} photos" for row in rows])
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="answers about next year's photos, % (guaranteed: at most 5% false)")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def decisions() -> Figure:
    """One prediction on a tree, and the answers of all rules."""
    page = (DOCS / "decisions.md").read_text(encoding="utf-8")
    first = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert first
    names: dict = {}
    exec(first[1], names)
    h, answer = names["h"], names["answer"]
    calls = [
        ("leaf", {}),
        ("cost", {}),
        ("expected", {"metric": "hierarchical_f"}),
        ("expected", {"metric": "hamming"}),
        ("level", {"level": "group"}),
        ("hedge", {"threshold": 0.5}),
        ("climb", {"threshold": 0.8}),
        ("threshold", {"threshold": 0.8}),
        ("threshold", {"threshold": 0.9}),
    ]
    q = dict(zip(h.nodes, node_log_probs(names["p"].log(), h).exp()[0].tolist(), strict=True))
    figure, (tree, table) = plt.subplots(1, 2, figsize=(11.0, 4.0), width_ratios=[1.3, 1])
    places = {leaf: (1.35 * x, 0.0) for x, leaf in enumerate(h.leaves)}
    for node in reversed(h.nodes):
        if node not in places:
            below = [places[child][0] for child in h.children(node)]
            places[node] = (sum(below) / len(below), 3.0 - h.depth(node))
    for node, (x, y) in places.items():
        for parent in h.parents(node):
            tree.plot([x, places[parent][0]], [y, places[parent][1]], color="#b8c1cc", lw=1.4, zorder=1)
        tree.scatter(x, y, s=1500 * q[node] + 30, color=TEAL, alpha=0.85, zorder=2)
        at, side = ((x, -0.34), "center") if y == 0 else ((x + 0.14 + 0.32 * q[node] ** 0.5, y), "left")
        tree.text(*at, f"{node} {q[node]:.2f}", ha=side, va="center", fontsize=11, color=INK)
    tree.set_xlim(-0.4, 5.2)
    tree.set_ylim(-0.5, 2.4)
    tree.axis("off")
    for row, (rule, options) in enumerate(calls):
        said = ", ".join(f"{key}={value!r}" for key, value in options.items())
        table.text(0.0, -row, f"{rule}({said})", family="monospace", fontsize=10, color=INK, va="center")
        table.text(1.06, -row, answer(rule, **options), fontsize=11, color=TEAL, va="center", weight="bold")
    table.set_xlim(0, 1.25)
    table.set_ylim(-len(calls) + 0.4, 0.6)
    table.axis("off")
    return figure


def metrics() -> Figure:
    """Answers to a husky, and what metrics of single answers say."""
    h = four_classes()
    answers = ["husky", "dog", "beagle", "tabby", "airliner"]
    truth = [h.index("husky")]
    rows = []
    for name in answers:
        given = [h.index(name)]
        apart = distances(given, truth, h, labels="nodes").item()
        f1 = hierarchical_prf(given, truth, h, labels="nodes").f1.item()
        bits = information_prf(given, truth, h, labels="nodes").f1.item()
        kingdom, group, kind = level_accuracy(given, truth, h, labels="nodes").tolist()
        rows.append([kind, group, kingdom, f1, bits, apart])
    columns = [
        "right\nclass",
        "right\ngroup",
        "right\nkingdom",
        "hierarchical\nF1",
        "information\nF1",
        "levels\noff",
    ]
    shade = np.array(rows)
    shade[:, -1] = 1 - shade[:, -1] / shade[:, -1].max()
    figure, axes = plt.subplots(figsize=(8.6, 3.4))
    axes.imshow(shade, cmap="GnBu", vmin=-0.1, vmax=1.25, aspect="auto")
    for (i, j), value in np.ndenumerate(np.array(rows)):
        text = f"{value:.2f}" if j in (3, 4) else f"{value:.0f}"
        axes.text(j, i, text, ha="center", va="center", color="white" if shade[i, j] > 0.7 else INK)
    axes.set_xticks(range(len(columns)), columns)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(answers)), [f'husky answered "{name}"' for name in answers])
    axes.tick_params(length=0, labelsize=11)
    axes.spines[:].set_visible(False)
    return figure


PICTURES: dict[str, Callable[[], Figure | None]] = {
    f.__name__: f
    for f in (
        shop,
        animals,
        targets,
        threshold,
        coarse_labels,
        segments,
        estimator,
        probing,
        deployment,
        integrations,
        peers,
        groceries,
        decisions,
        metrics,
    )
}


def main() -> None:
    """Write the named pictures, or all."""
    torch.set_num_threads(1)
    plt.rcParams.update(
        {"font.size": 10, "axes.titlesize": 12, "savefig.bbox": "tight", "figure.facecolor": "white"}
    )
    for name in sys.argv[1:] or PICTURES:
        figure = PICTURES[name]()
        if figure is not None:
            file = IMAGES / f"{name.replace('_', '-')}.png"
            text = PngInfo()
            text.add_text("shown", shown(figure))
            figure.savefig(file, dpi=DPI)
            picture = Image.open(file).convert("RGB").quantize(SHADES, dither=Image.Dither.NONE)
            picture.save(file, optimize=True, pnginfo=text)


def shown(figure: Figure) -> str:
    """A short record of the words and numbers of a picture, by which a test notices that the file is stale."""
    parts: list[str] = []
    for axes in figure.axes:
        words = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        numbers = [line.get_xydata() for line in axes.lines]
        for bar in (patch for patch in axes.patches if isinstance(patch, Rectangle)):
            numbers.append(np.array([*bar.get_xy(), bar.get_width(), bar.get_height()]))
        parts += [text.get_text() for text in words]
        parts += [f"{value:.3g}" for part in numbers for value in np.asarray(part, dtype=float).ravel()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
