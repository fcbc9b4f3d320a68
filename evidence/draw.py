"""The pictures of docs/when-it-helps.md and docs/results.md, from the kept results: python evidence/draw.py

Each mark is one row of an effects.csv: a difference in top-1 accuracy or levels off with its 95% interval. The picture is drawn
twice, the second time for screens as narrow as a phone's.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE / "results"
IMAGES = HERE.parent / "docs" / "images"

METHODS = {  # title in results: title in the picture, colour, marker
    "cross-entropy": ("cross-entropy", "#555555", "v"),
    "HACE": ("HACE, d = 0.5", "#b5563c", "o"),
    "path sums": ("path sums", "#12766f", "s"),
    "path sums s=0.5": ("path sums, s = 0.5", "#5aa7a0", "D"),
    "soft margin τ=1": ("soft margins, τ = 1", "#8a7bb0", "^"),
}
COARSE = (  # title, study, labels
    ("CUB-200, 1 fine label per class", "cub200-low-shot", "1 a class + parent"),
    ("CUB-200, 5 fine labels per class", "cub200-low-shot", "5 a class + parent"),
    ("CIFAR-100, 1 fine label per class", "cifar100-low-shot", "1 a class + parent"),
    ("CIFAR-100, 5 fine labels per class", "cifar100-low-shot", "5 a class + parent"),
    ("CUB-200 ResNet-50, 5 fine labels per class", "confirm-cub200-resnet50-labels", "5 a class + parent"),
    ("Cars, 5 fine labels per class", "confirm-cars-labels", "5 a class + parent"),
    ("HWU64, 5 fine labels per class", "confirm-hwu64-labels", "5 a class + parent"),
    ("CIFAR-100, 10 fine labels per class", "cifar100-mixed-labels-200", "95% parent"),
    ("CUB-200 fine-tuned, 6 fine labels per class", "cub200-fine-tuning-coarse", "80% parent"),
    ("CIFAR-100 pixels, 10 fine labels", "cifar100-end-to-end-mixed-100", "90% parent"),
    ("CIFAR-100 pixels, 50 fine, 2 epochs", "cifar100-end-to-end-mixed", "90% parent"),
)
FINE = (
    ("CUB-200, all labels", "cub200-clean", "all labels"),
    ("CIFAR-100, all labels", "cifar100-clean", "all labels"),
    ("CUB-200 ResNet-50, all labels", "confirm-cub200-resnet50-labels", "all labels"),
    ("Cars, all labels", "confirm-cars-labels", "all labels"),
    ("HWU64, all labels", "confirm-hwu64-labels", "all labels"),
    ("CUB-200 fine-tuned, all labels", "cub200-fine-tuning-clean", "all labels"),
    ("CIFAR-100 pixels, all labels", "cifar100-end-to-end-clean", "all labels"),
    ("CUB-200, 5 labels per class", "cub200-low-shot", "5 a class"),
    ("CIFAR-100, 5 labels per class", "cifar100-low-shot", "5 a class"),
    ("CUB-200 ResNet-50, 5 labels per class", "confirm-cub200-resnet50-labels", "5 a class"),
    ("Cars, 5 labels per class", "confirm-cars-labels", "5 a class"),
    ("HWU64, 5 labels per class", "confirm-hwu64-labels", "5 a class"),
    ("CUB-200, 1 label per class", "cub200-low-shot", "1 a class"),
    ("CIFAR-100, 1 label per class", "cifar100-low-shot", "1 a class"),
    ("CUB-200, 40% wrong, same genus", "cub200-noisy-labels", "40% wrong within parent"),
    ("CIFAR-100, 40% wrong, same group", "cifar100-noisy-labels", "40% wrong within parent"),
    ("CUB-200 ResNet-50, 40% wrong, same genus", "confirm-cub200-resnet50-labels", "40% wrong within parent"),
    ("Cars, 40% wrong, same group", "confirm-cars-labels", "40% wrong within parent"),
    ("HWU64, 40% wrong, same group", "confirm-hwu64-labels", "40% wrong within parent"),
    ("CUB-200, 40% wrong, anywhere", "cub200-noisy-labels", "40% wrong anywhere"),
    ("CIFAR-100, 40% wrong, anywhere", "cifar100-noisy-labels", "40% wrong anywhere"),
)
CURVES = {  # method and dilution in results: title and colour in the picture of rates
    ("cross_entropy", ""): ("cross-entropy", "#555555"),
    ("hace", "0.2"): ("HACE, d = 0.2", "#7d2f1a"),
    ("hace", "0.5"): ("HACE, d = 0.5", "#b5563c"),
    ("hace", "0.7"): ("HACE, d = 0.7", "#e0a184"),
}
PRESET_RATE = "0.003"  # of `hace study paper-probe`, with AdamW
NAMES = {"cub200": "CUB-200", "cifar100": "CIFAR-100", "clinc150": "CLINC150", "cars": "Cars"}
OPTIMISERS = {"adamw": "AdamW", "sgd": "SGD"}
NAMED = {  # in the picture of every method: title in results, and where its name is, in points from its mark
    "HACE, uniform profile": (-8, -12, "right"),
    "HACE": (-8, -4, "right"),
    "HACE, shuffled tree": (-8, 6, "right"),
    "path sums": (-8, -12, "right"),
    "path sums s=0.5": (6, -13, "left"),
    "soft margin τ=1": (8, 5, "left"),
    "soft margin τ=5": (8, 5, "left"),
    "HXE α=0.5": (-8, 6, "right"),
    "soft labels β=10": (-8, -9, "right"),
    "cross-entropy, label smoothing 0.1": (8, 6, "left"),
    "SimLoss r=0.1": (8, 6, "left"),
}
SHOWN = -3.0  # points of top-1: methods further behind are listed in the table only


class Panel(NamedTuple):
    """A part of the picture: what is subtracted, from which rows."""

    title: str
    axis: str
    metric: str
    alone: bool  # against cross-entropy without the coarse samples
    methods: tuple[str, ...]
    situations: tuple[tuple[str, str, str], ...]


PANELS = (
    Panel(
        "Some labels are coarse: use them, or drop them?",
        "top-1 in points, minus cross-entropy on the fine labels alone",
        "top-1",
        True,
        tuple(METHODS),
        COARSE,
    ),
    Panel(
        "Otherwise: more accurate?",
        "top-1 in points, minus cross-entropy",
        "top-1",
        False,
        tuple(METHODS)[1:],
        FINE,
    ),
    Panel(
        "Otherwise: milder mistakes?",
        "levels off, minus cross-entropy",
        "levels off",
        False,
        tuple(METHODS)[1:],
        FINE,
    ),
)


class Effect(NamedTuple):
    """A mark of the picture."""

    value: float
    low: float
    high: float


def effect(panel: Panel, study: str, labels: str, method: str) -> Effect | None:
    """One row of a study's effects; None if the study has not been run."""
    path = RESULTS / study / "effects.csv"
    if not path.exists():
        return None
    if (study, labels, method, panel.metric) in withheld():
        return None
    fine, few, _ = labels.partition(" + ")
    dropped = f"cross-entropy, {fine} alone" if few else "cross-entropy, coarse labels dropped"
    minus = dropped if panel.alone else "cross-entropy"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["labels"], row["method"], row["minus"], row["metric"]) == (
                labels,
                method,
                minus,
                panel.metric,
            ):
                return Effect(*(float(row[column]) for column in ("difference", "low", "high")))
    return None


def withheld() -> set[tuple[str, str, str, str]]:
    """Study, labels, method and metric of the results that are being measured anew."""
    with (HERE / "withheld.csv").open(encoding="utf-8", newline="") as file:
        return {(r["study"], r["labels"], r["method"], r["metric"]) for r in csv.DictReader(file)}


def main() -> None:
    """Draw the pictures, that of when it helps for wide and for narrow screens."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "hace", "font.family": "DejaVu Sans", "font.size": 9})
    IMAGES.mkdir(exist_ok=True)
    for name, narrow in (("when-it-helps", False), ("when-it-helps-narrow", True)):
        target = IMAGES / f"{name}.svg"
        picture(narrow).savefig(target, metadata={"Date": None})
        print(target)
    target = IMAGES / "every-method.svg"
    every_method("cub200-clean").savefig(target, metadata={"Date": None})
    print(target)
    if (RESULTS / "paper-protocol").exists():
        target = IMAGES / "paper-rates.svg"
        by_rate().savefig(target, metadata={"Date": None})
        print(target)


def picture(narrow: bool) -> Figure:
    """Three panels; below each other on a narrow screen, where the names of situations are above their marks."""
    from matplotlib import pyplot as plt

    step = 0.46 if narrow else 0.36  # inches per situation
    rows = [len(found_situations(panel)) * step + 0.75 for panel in PANELS]
    if narrow:
        figure = plt.figure(figsize=(4.2, sum(rows) + 0.9), layout="constrained")
        axes = figure.subplots(len(PANELS), 1, height_ratios=rows)
    else:
        figure = plt.figure(figsize=(7.6, rows[0] + max(rows[1:]) + 0.5), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=[rows[0], max(rows[1:])])
        first = figure.add_subplot(grid[0, :])
        second = figure.add_subplot(grid[1, 0])
        axes = [first, second, figure.add_subplot(grid[1, 1])]
    for i, (axis, panel) in enumerate(zip(axes, PANELS, strict=True)):
        draw_panel(axis, panel, narrow=narrow, named=narrow or i < 2)
    handles = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        handles.values(),
        handles,
        loc="outside upper center",
        ncols=2 if narrow else len(handles),
        frameon=False,
        fontsize=8.5,
        columnspacing=1.2,
        handletextpad=0.2,
    )
    return figure


def every_method(study: str) -> Figure:
    """Accuracy against levels off, a mark per method; those of `NAMED` have their intervals."""
    from matplotlib import pyplot as plt

    with (RESULTS / study / "effects.csv").open(encoding="utf-8", newline="") as file:
        found = {
            (row["method"], row["metric"]): Effect(*(float(row[c]) for c in ("difference", "low", "high")))
            for row in csv.DictReader(file)
            if row["minus"] == "cross-entropy" and row["metric"] in ("top-1", "levels off")
        }
    figure, axis = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    for method in dict.fromkeys(method for method, _ in found):
        x, y = found[method, "top-1"], found[method, "levels off"]
        if x.value < SHOWN:
            continue
        colour = METHODS.get(method, ("", "#555555", ""))[1] if method in NAMED else "#b9c0bd"
        if method in NAMED:
            axis.plot([x.low, x.high], [y.value, y.value], color=colour, lw=0.9, alpha=0.55)
            axis.plot([x.value, x.value], [y.low, y.high], color=colour, lw=0.9, alpha=0.55)
            dx, dy, side = NAMED[method]
            axis.annotate(
                method,
                (x.value, y.value),
                (dx, dy),
                textcoords="offset points",
                ha=side,
                fontsize=8.5,
                color=colour,
            )
        axis.plot(x.value, y.value, "o", color=colour, ms=5 if method in NAMED else 3.5)
    axis.axvline(0, color="#333333", lw=0.8)
    axis.axhline(0, color="#333333", lw=0.8)
    axis.set_xlabel("top-1 in points, minus cross-entropy (right: more accurate)", fontsize=8.5)
    axis.set_ylabel("levels off, minus cross-entropy (down: milder)", fontsize=8.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure


def by_rate() -> Figure:
    """Accuracy against the learning rate under the paper's protocol; the pairs at its preset's base rate are joined."""
    from matplotlib import pyplot as plt

    rows = paper_rows()
    sets = list(dict.fromkeys(row["data"] for row in rows))
    panels = [(data, optimiser) for optimiser in OPTIMISERS for data in sets]
    figure, axes = plt.subplots(
        len(OPTIMISERS), len(sets), figsize=(2.9 * len(sets), 5.6), layout="constrained", squeeze=False
    )
    for axis, (data, optimiser) in zip(axes.flat, panels, strict=True):
        own = [row for row in rows if (row["data"], row["optimiser"]) == (data, optimiser)]
        for (method, d), (title, colour) in CURVES.items():
            found = [row for row in own if row["method"] == method and d in ("", row["dilution"])]
            means: dict[float, list[float]] = {}
            for row in found:
                means.setdefault(float(row["rate"]), []).append(float(row["top-1"]))
            rates = sorted(means)
            axis.plot(rates, [max(means[rate]) for rate in rates], "-", color=colour, lw=1.4, label=title)
        for d, pairing, hace, cross_entropy in pairs_at(own, PRESET_RATE if optimiser == "adamw" else ""):
            colour = CURVES["hace", d][1]
            axis.plot(*zip(cross_entropy, hace, strict=True), "--", color=colour, lw=0.7, alpha=0.8)
            axis.plot(*hace, "o" if pairing == "standard" else "D", color=colour, ms=5)
            axis.plot(
                *cross_entropy,
                "o" if pairing == "standard" else "D",
                color=CURVES["cross_entropy", ""][1],
                ms=5,
            )
        axis.set_xscale("log")
        top = max(float(row["top-1"]) for row in own)
        axis.set_ylim(top - 30, top + 1.5)
        axis.set_title(f"{NAMES.get(data, data)}, {OPTIMISERS[optimiser]}", loc="left", fontsize=9.5)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.supxlabel("learning rate", fontsize=8.5)
    figure.supylabel("top-1, %", fontsize=8.5)
    axes[0, 0].legend(fontsize=7.5, frameon=False, loc="lower right")
    return figure


def paper_rows() -> list[dict[str, str]]:
    """The settings of the paper's protocol that have been measured, means over seeds."""
    with (RESULTS / "paper-protocol" / "runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def pairs_at(
    rows: list[dict[str, str]], base: str
) -> list[tuple[str, str, tuple[float, float], tuple[float, float]]]:
    """The six pairs at a base rate: dilution, pairing, and rate and accuracy of HACE and of cross-entropy."""
    own = [row for row in rows if row["base rate"] == base]
    place = {
        (row["method"], row["dilution"], row["pairing"]): (float(row["rate"]), float(row["top-1"]))
        for row in own
    }
    return [
        (d, pairing, at, place["cross_entropy", d if pairing == "standard" else "", pairing])
        for (method, d, pairing), at in place.items()
        if method == "hace"
    ]


def found_situations(panel: Panel) -> list[tuple[str, str, str]]:
    """The situations of a panel that have been measured, with at least one of its methods."""
    return [s for s in panel.situations if any(effect(panel, s[1], s[2], m) for m in panel.methods)]


def draw_panel(axis: Axes, panel: Panel, *, narrow: bool, named: bool) -> None:
    """Marks and intervals, a row per situation."""
    situations = found_situations(panel)
    top, bottom = (0.08, -0.36) if narrow else (0.3, -0.3)
    for row, (name, study, labels) in enumerate(situations):
        for i, method in enumerate(panel.methods):
            found = effect(panel, study, labels, method)
            if found is None:
                continue
            title, colour, marker = METHODS[method]
            y = -row + top + (bottom - top) * i / (len(panel.methods) - 1)
            axis.plot([found.low, found.high], [y, y], color=colour, lw=1.5, solid_capstyle="butt")
            axis.plot(found.value, y, marker, color=colour, ms=4, label=title)
        back = "#f1f3f2" if row % 2 else "white"
        axis.axhspan(-row - 0.5, -row + 0.5, color=back, lw=0, zorder=0)
        if narrow:
            box = {"facecolor": back, "edgecolor": "none", "pad": 0.5}  # over the line at 0
            place = axis.get_yaxis_transform()
            axis.text(0.005, -row + 0.29, name, transform=place, va="center", fontsize=8, bbox=box)
    axis.axvline(0, color="#333333", lw=0.8)
    shown = [] if narrow or not named else [name for name, _, _ in situations]
    axis.set_yticks([-row for row in range(len(shown))], shown)
    axis.set_ylim(-len(situations) + 0.5, 0.5)
    axis.set_title(panel.title, loc="left", fontweight="bold", fontsize=9.5)
    axis.set_xlabel(panel.axis, fontsize=8.5)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
