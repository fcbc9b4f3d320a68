"""Pictures of the docs from the committed results (does it help, rates, speed, new groups): python evidence/draw.py"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from summary import DATASETS, SITUATIONS, Change, measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE / "results"
IMAGES = HERE.parent / "docs" / "images"

BEFORE, AFTER, OPEN = "#8d9692", "#12766f", "#b9c0bd"  # a change, and one whose interval includes zero
CURVES = {  # method and dilution in results: title and colour in the picture of rates
    ("cross_entropy", ""): ("cross-entropy", "#555555"),
    ("hace", "0.2"): ("HACE, dilution 0.2", "#b5563c"),
}
PRESET_RATE = "0.003"  # of `hace study paper-probe`, with AdamW
PAIRED = "0.2"  # the dilution whose pair is marked
NAMES = {"cub200": "CUB-200", "cars": "Stanford Cars"}
STEPS = {  # columns of loss-bars/growth.csv: colour, and the line's style
    "HACE as published": ("#b5563c", "-"),
    "HACE in plain PyTorch": ("#12766f", ":"),
    "HACE + smoothing": ("#12766f", "--"),
    "cross-entropy": ("#555555", "-"),
    "HACE": ("#12766f", "-"),
}

GUARANTEED = (  # rows and columns of groups/frogs.csv, what a guarantee is about, and at most how much
    (
        ("random syllables", "at most 5%"),
        "of new syllables",
        "calibrated on random syllables: false answers",
        5,
    ),
    (
        ("recordings", "at most 5%, on average"),
        "on average over new recordings",
        "on recordings: false answers, on average over recordings",
        5,
    ),
    (
        ("recordings", "at most 10%, on average"),
        "on average over new recordings",
        "the same, at most 10%",
        10,
    ),
    (
        ("recordings", "at most 5%, in 90% of recordings"),
        "recordings with at most 5%",
        "on recordings: recordings with more than 5% false answers",
        10,
    ),
    (
        ("recordings", "at most 20%, in 80% of recordings"),
        "with at most 20%",
        "on recordings: recordings with more than 20% false answers",
        20,
    ),
)


def main() -> None:
    """Draw the pictures."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "hace", "font.family": "DejaVu Sans", "font.size": 9})
    IMAGES.mkdir(exist_ok=True)
    pictures = {
        "when-it-helps": before_and_after,
        "paper-rates": by_rate,
        "speed": growth,
        "groups": new_groups,
    }
    for name, draw in pictures.items():
        target = IMAGES / f"{name}.svg"
        draw().savefig(target, metadata={"Date": None})
        print(target)


def before_and_after() -> Figure:
    """A line from before to after for every situation and dataset, headed by the change."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5.4, 5.2), layout="constrained")
    y = 0.0
    for situation in SITUATIONS:
        axis.text(0, y, situation.title.capitalize(), transform=at(axis), fontweight="bold", va="center")
        axis.text(0, y - 0.62, situation.change, transform=at(axis), color="#5b6461", fontsize=8, va="center")
        y -= 1.5
        for dataset, study in DATASETS.items():
            draw_change(axis, y, dataset, measured(study, situation))
            y -= 0.8
        y -= 0.5
    axis.set_ylim(y + 0.6, 0.6)
    axis.set_xlim(0, 108)
    axis.set_xticks([20, 40, 60, 80, 100])
    axis.set_yticks([])
    axis.set_xlabel("top-1 accuracy, %", fontsize=8.5)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_bounds(20, 100)
    return figure


def at(axis: Axes) -> Any:
    """Places for text: along the whole axis, at a row."""
    return axis.get_yaxis_transform()


def draw_change(axis: Axes, y: float, dataset: str, change: Change) -> None:
    """One line: before, after, and the difference in points."""
    colour = AFTER if change.sure else OPEN
    axis.text(0.02, y, dataset, transform=at(axis), va="center")
    axis.plot([change.before, change.after], [y, y], color=colour, lw=2.4, solid_capstyle="round", zorder=1)
    axis.plot(change.before, y, "o", color="white", mec=BEFORE, mew=1.4, ms=6, zorder=2)
    axis.plot(change.after, y, "o", color=colour, ms=7, zorder=3)
    text = f"{change.after - change.before:+.1f}" if change.sure else "no clear change"
    right = max(change.before, change.after) + 2
    axis.text(right, y, text, va="center", fontsize=8.5, color=AFTER if change.sure else "#5b6461")


def by_rate() -> Figure:
    """Accuracy against the learning rate, and the two runs that the paper's adjusted pairing compares at one base rate."""
    from matplotlib import pyplot as plt

    rows = [row for row in paper_rows() if row["optimiser"] == "adamw"]
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.1), layout="constrained")
    for axis, (key, name) in zip(axes, NAMES.items(), strict=True):
        own = [row for row in rows if row["data"] == key]
        for (method, d), (title, colour) in CURVES.items():
            best: dict[float, float] = {}
            for row in own:
                if row["method"] == method and d in ("", row["dilution"]):
                    rate, accuracy = float(row["rate"]), float(row["top-1"])
                    best[rate] = max(accuracy, best.get(rate, 0.0))
            rates = sorted(best)
            axis.plot(rates, [best[rate] for rate in rates], "-", color=colour, lw=1.8, label=title)
        hace, cross_entropy = pair_at(own, PRESET_RATE, PAIRED)
        axis.annotate(
            "",
            hace,
            cross_entropy,
            arrowprops={"arrowstyle": "->", "color": "#333333", "shrinkA": 6, "shrinkB": 6},
        )
        axis.plot(*hace, "o", color=CURVES["hace", PAIRED][1], ms=7)
        axis.plot(*cross_entropy, "o", color=CURVES["cross_entropy", ""][1], ms=7)
        gain = f"{name}: {hace[1] - cross_entropy[1]:+.1f} at five times the rate"
        axis.set_xscale("log")
        axis.set_xlim(2e-4, 0.3)
        top = max(float(row["top-1"]) for row in own)
        axis.set_ylim(top - 26, top + 4)
        axis.set_title(gain, loc="left", fontsize=9.5, fontweight="bold")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.supxlabel("learning rate", fontsize=8.5)
    figure.supylabel("top-1 accuracy, %", fontsize=8.5)
    axes[0].legend(fontsize=8.5, frameon=False, loc="lower right")
    return figure


def paper_rows() -> list[dict[str, str]]:
    """The settings of the paper's protocol that have been measured, means over seeds."""
    with (RESULTS / "paper-protocol" / "runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def pair_at(
    rows: list[dict[str, str]], base: str, dilution: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The adjusted pair at a base rate: rate and accuracy of HACE and of cross-entropy."""
    place = {
        (row["method"], row["dilution"]): (float(row["rate"]), float(row["top-1"]))
        for row in rows
        if row["base rate"] == base and row["pairing"] == "adjusted"
    }
    return place["hace", dilution], place["cross_entropy", ""]


def growth() -> Figure:
    """Time of a step against nodes, and of `hace fit` against samples, both logarithmic, with slopes."""
    from matplotlib import pyplot as plt

    figure, (steps, fits) = plt.subplots(
        1, 2, figsize=(7.6, 3.4), layout="constrained", width_ratios=(1.35, 1)
    )
    rows = read_numbers("loss-bars/growth.csv")
    for name, (colour, style) in STEPS.items():
        line = [(row["nodes"], row[name]) for row in rows if name in row]
        label = f"{name}, slope {slope(line):.1f}"
        steps.plot(*zip(*line, strict=True), style, color=colour, marker="o", ms=3.5, lw=1.8, label=label)
    steps.set_title("One step of a loss, batch 8", loc="left", fontsize=9.5, fontweight="bold")
    steps.set_xlabel("nodes", fontsize=8.5)
    steps.set_ylabel("processor time, ms", fontsize=8.5)

    rows = read_numbers("fit-scale/growth.csv")
    for classes, colour in zip(sorted({row["classes"] for row in rows}), ("#12766f", "#b5563c"), strict=True):
        line = [(row["rows"], row["processor: s"]) for row in rows if row["classes"] == classes]
        label = f"{classes:,.0f} classes" + (f", slope {slope(line):.1f}" if len(line) > 1 else "")
        fits.plot(*zip(*line, strict=True), "-", color=colour, marker="o", ms=3.5, lw=1.8, label=label)
    fits.set_title("hace fit, 512 features", loc="left", fontsize=9.5, fontweight="bold")
    fits.set_xlabel("samples", fontsize=8.5)
    fits.set_ylabel("processor time, s", fontsize=8.5)
    for axis in (steps, fits):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(axis.get_ylim()[0] / 5)  # room for what the lines are
        axis.legend(fontsize=7.5, frameon=False, loc="lower right")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure


def new_groups() -> Figure:
    """What was guaranteed on frog calls, and what new recordings got: the share that each guarantee is about."""
    from matplotlib import pyplot as plt

    with (RESULTS / "groups" / "frogs.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["calibrated on"], row["guarantee"]): row for row in csv.DictReader(file)}
    figure, axis = plt.subplots(figsize=(7.6, 2.6), layout="constrained")
    for y, (key, column, title, most) in enumerate(GUARANTEED):
        share = float(rows[key][column])
        value = 100 - share if column.startswith(("recordings", "with")) else share
        axis.barh(-y, value, height=0.55, color="#b5563c" if value > most else "#12766f")
        axis.plot([most, most], [-y - 0.4, -y + 0.4], color="#333333", lw=2)
        axis.text(max(value, most) + 0.4, -y, f"{value:.1f}%", va="center", fontsize=8.5)
        axis.text(-0.5, -y, title, ha="right", va="center", fontsize=8.5)
    axis.set_yticks([])
    axis.set_xlim(0, 24)
    axis.set_xlabel("measured, % (line: guaranteed)", fontsize=8.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure


def read_numbers(name: str) -> list[dict[str, float]]:
    """Rows of a result, without the cells that are empty or no numbers."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        rows = [{k: v.replace(",", "") for k, v in row.items()} for row in csv.DictReader(file)]
    return [{k: float(v) for k, v in row.items() if v.replace(".", "", 1).isdigit()} for row in rows]


def slope(line: list[tuple[float, float]]) -> float:
    """The slope over the last tenfold of a line in a picture with both axes logarithmic."""
    (x, y), (after, time) = line[-2:]
    return math.log(time / y) / math.log(after / x)


if __name__ == "__main__":
    main()
