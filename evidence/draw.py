"""The picture of docs/when-it-helps.md, from the kept results: python evidence/draw.py

Each mark is one row of an effects.csv: a difference in top-1 accuracy or severity with its 95 % interval.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TARGET = HERE.parent / "docs" / "images" / "when-it-helps.svg"

METHODS = {  # title in results: title in the picture, colour, marker
    "HACE": ("HACE, d = 0.5", "#b5563c", "o"),
    "SCE, path sums": ("path sums", "#12766f", "s"),
    "SCE, path sums s=0.5": ("path sums, s = 0.5", "#5aa7a0", "D"),
    "conditional softmax": ("conditional softmax", "#8a7bb0", "^"),
    "SCE": ("cross-entropy", "#555555", "v"),
}
CLEAN = (
    ("CUB-200, all labels", "cub200-clean", "all labels"),
    ("CIFAR-100, all labels", "cifar100-clean", "all labels"),
    ("CIFAR-100, pixels, all labels", "cifar100-end-to-end-clean", "all labels"),
)
FEW = (
    ("CUB-200, 5 labels per class", "cub200-low-shot", "5 a class"),
    ("CUB-200, 1 label per class", "cub200-low-shot", "1 a class"),
    ("CIFAR-100, 5 labels per class", "cifar100-low-shot", "5 a class"),
    ("CIFAR-100, 1 label per class", "cifar100-low-shot", "1 a class"),
)
COARSE = (
    ("CUB-200, 5 per class, the rest coarse", "cub200-low-shot", "5 a class + parent"),
    ("CUB-200, 1 per class, the rest coarse", "cub200-low-shot", "1 a class + parent"),
    ("CIFAR-100, 10 per class, the rest coarse", "cifar100-mixed-labels-200", "95 % parent"),
    ("CIFAR-100, 5 per class, the rest coarse", "cifar100-low-shot", "5 a class + parent"),
    ("CIFAR-100, 1 per class, the rest coarse", "cifar100-low-shot", "1 a class + parent"),
    ("CIFAR-100, pixels, 90 % coarse", "cifar100-end-to-end-mixed", "90 % parent"),
)
WRONG = (
    ("CUB-200, 40 % wrong, same genus", "cub200-noisy-labels", "40 % wrong within parent"),
    ("CUB-200, 40 % wrong, anywhere", "cub200-noisy-labels", "40 % wrong anywhere"),
    ("CIFAR-100, 40 % wrong, same group", "cifar100-noisy-labels", "40 % wrong within parent"),
    ("CIFAR-100, 40 % wrong, anywhere", "cifar100-noisy-labels", "40 % wrong anywhere"),
)


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
        "Use coarse labels, or drop them?",
        "top-1 points, minus cross-entropy without the coarse samples",
        "top-1",
        True,
        ("SCE", "HACE", "conditional softmax", "SCE, path sums s=0.5", "SCE, path sums"),
        COARSE,
    ),
    Panel(
        "Which method, with the same labels?",
        "top-1 points, minus cross-entropy",
        "top-1",
        False,
        ("HACE", "conditional softmax", "SCE, path sums", "SCE, path sums s=0.5"),
        (*CLEAN, *FEW, *COARSE, *WRONG),
    ),
    Panel(
        "How far off are the mistakes?",
        "severity in levels, minus cross-entropy (left is milder)",
        "severity",
        False,
        ("HACE", "conditional softmax", "SCE, path sums", "SCE, path sums s=0.5"),
        (*CLEAN, *FEW, *COARSE, *WRONG),
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
    fine, few, _ = labels.partition(" + ")
    dropped = f"SCE, {fine} alone" if few else "SCE, coarse labels dropped"
    minus = dropped if panel.alone else "SCE"
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


def main() -> None:
    """Draw every panel below the other."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "hace", "font.family": "DejaVu Sans", "font.size": 9})
    from matplotlib import pyplot as plt

    drawn = [(p, [s for s in p.situations if effect(p, s[1], s[2], p.methods[-1])]) for p in PANELS]
    heights = [len(rows) * 0.62 + 0.4 for _, rows in drawn]
    figure, axes = plt.subplots(
        len(drawn), 1, figsize=(8.2, sum(heights) + 2.3), gridspec_kw={"height_ratios": heights}
    )
    for axis, (panel, situations) in zip(axes, drawn, strict=True):
        for row, (_, study, labels) in enumerate(situations):
            for i, method in enumerate(panel.methods):
                found = effect(panel, study, labels, method)
                if found is None:
                    continue
                title, colour, marker = METHODS[method]
                y = -row + 0.32 - 0.64 * i / (len(panel.methods) - 1)
                axis.plot([found.low, found.high], [y, y], color=colour, lw=1.6, solid_capstyle="butt")
                axis.plot(found.value, y, marker, color=colour, ms=4.5, label=title if row == 0 else None)
            if row % 2:
                axis.axhspan(-row - 0.5, -row + 0.5, color="#f1f3f2", zorder=0)
        axis.axvline(0, color="#333333", lw=0.8)
        axis.set_yticks([-r for r in range(len(situations))], [title for title, _, _ in situations])
        axis.set_ylim(-len(situations) + 0.5, 0.5)
        axis.set_title(panel.title, loc="left", fontweight="bold", fontsize=10)
        axis.set_xlabel(panel.axis, fontsize=8.5)
        axis.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    handles = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(), handles, loc="upper center", ncols=len(handles), frameon=False, fontsize=8.5
    )
    figure.tight_layout(rect=(0, 0, 1, 0.975), h_pad=1.6)
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, metadata={"Date": None})
    print(TARGET)


if __name__ == "__main__":
    main()
