"""The figures of an evaluation: what a threshold costs and gives, how far to trust confidence, where mistakes go.

Needs matplotlib, so it is imported on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hace.lab.report.drawing import finish
from hace.metrics.comparison import curve_band
from hace.metrics.curves import OperatingCurve
from hace.metrics.evaluation import Evaluation

_Models = list[tuple[Evaluation, str]]
MODEL_COLOURS = ("#00796b", "#d35400")  # the model, and the one it is compared with
_MARKED = (0.0, 0.5, 0.8, 0.9, 0.95)  # thresholds with a point on the operating curve
_PAIRS = 12
_LEVELS = 8


def evaluation_figures(models: Sequence[tuple[str, Evaluation]]) -> dict[str, Figure]:
    """All plots of one or two models, by name; of one, reliability is shown before and after calibration."""
    # Longer names would leave no room for the axes.
    both = [(each, _short(name, 40)) for name, each in models]
    evaluation = both[0][0]
    figures = {
        "operating_curve": _drawn(operating_figure, (6.4, 4.8), both),
        "risk_coverage": _drawn(risk_figure, (6.4, 4.8), both),
        "mistakes": _drawn(mistakes_figure, (11.0, 5.2), both),
    }
    if evaluation.reliability:
        calibrated = [] if evaluation.calibrated is None else [(evaluation.calibrated, "calibrated")]
        shown = both if len(both) > 1 else [(evaluation, "as scored"), *calibrated]
        figures["reliability"] = _drawn(reliability_figure, (11.0, 5.6), shown)
    return figures


def _drawn(draw: Callable[[Figure, _Models], None], size: tuple[float, float], models: _Models) -> Figure:
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure, models)
    return figure


class _Axes(NamedTuple):
    """What a plot of curves shows on its axes: attributes of the curve, and labels."""

    x: str
    y: str
    x_label: str
    y_label: str


def _curves(figure: Figure, both: _Models, name: str, title: str, shown: _Axes) -> Any:
    """One curve of each model with its 95% interval, shaded."""
    axes = figure.add_subplot()
    for (evaluation, model), colour in zip(both, MODEL_COLOURS, strict=False):
        curve = getattr(evaluation, name)
        label = f"{model} (area {curve.area:.3f})"
        axes.plot(getattr(curve, shown.x), getattr(curve, shown.y), color=colour, label=label)
        if len(evaluation.samples):
            band = curve_band(evaluation, name.split("_")[0])
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel=shown.x_label, ylabel=shown.y_label, xlim=(0, 1.02))
    axes.set_title(f"{title} (shaded: 95%)", fontsize=11)
    finish(axes, colour="0.9")
    return axes


def operating_figure(figure: Figure, both: _Models) -> None:
    """Precision against specificity as a threshold moves, with some thresholds named."""
    shown = _Axes(
        "specificity",
        "precision",
        "specificity (share of the possible information)",
        "precision (share of samples without a false answer)",
    )
    title = "Operating curve: the deepest node above a threshold t"
    axes = _curves(figure, both, "operating_curve", title, shown)
    low = 0.0
    if len(both[0][0].samples):
        low = max(0.0, min(float(np.nanmin(e.operating_curve.precision)) for e, _ in both) - 0.05)
    axes.set_ylim(low, 1 + 0.07 * (1 - low))  # room for labels above a precision of 1
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= 1])
    axes.legend(loc="lower left", frameon=False)
    for (evaluation, _), colour in zip(both, MODEL_COLOURS, strict=False):
        curve = evaluation.operating_curve
        places = [_place(curve, t) for t in _marked(curve)]
        axes.plot(curve.specificity[places], curve.precision[places], "o", color=colour, markersize=5)
    if len(both[0][0].samples):
        _name_thresholds(axes, both[0][0].operating_curve)


def _marked(curve: OperatingCurve) -> list[float]:
    return [t for t in _MARKED if np.isclose(curve.thresholds, t).any()]


def _place(curve: OperatingCurve, threshold: float) -> int:
    return int(np.argmin(np.abs(curve.thresholds - threshold)))


def _name_thresholds(axes: Any, curve: OperatingCurve) -> None:
    """Write the thresholds beside the points of a curve; labels that would overlap become one."""
    groups = [[t] for t in _marked(curve)]
    while True:
        texts = [_name_point(axes, curve, group) for group in groups]
        axes.figure.draw_without_rendering()  # only then is their size known
        boxes = [text.get_window_extent() for text in texts]
        pairs = [(i, j) for j in range(len(boxes)) for i in range(j)]
        clash = next((pair for pair in pairs if boxes[pair[0]].overlaps(boxes[pair[1]])), None)
        if clash is None:
            return
        for text in texts:
            text.remove()
        first, last = clash
        groups[first : last + 1] = [[t for group in groups[first : last + 1] for t in group]]


def _name_point(axes: Any, curve: OperatingCurve, group: list[float]) -> Any:
    """A label at the first of some thresholds: above the curve, at the right end below it, where there is room."""
    place = _place(curve, group[0])
    at = (float(curve.specificity[place]), float(curve.precision[place]))
    above = {"xytext": (6, 5), "ha": "left", "va": "bottom"}
    below = {"xytext": (-6, -4), "ha": "right", "va": "top"}
    look = {"textcoords": "offset points", "fontsize": 8, **(below if at[0] > 0.8 else above)}
    return axes.annotate(f"t = {', '.join(f'{t:g}' for t in group)}", at, **look)


def risk_figure(figure: Figure, both: _Models) -> None:
    """The share of mistakes among the most confident samples."""
    shown = _Axes(
        "coverage",
        "risk",
        "coverage (share of samples answered, most confident first)",
        "share of mistakes among them",
    )
    axes = _curves(figure, both, "risk_coverage", "Risk and coverage of the best leaf", shown)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)


def reliability_figure(figure: Figure, both: _Models) -> None:
    """Stated confidence against accuracy, a panel for each level."""
    titles = list(both[0][0].reliability)
    shown = titles if len(titles) <= _LEVELS else [*titles[: _LEVELS - 1], titles[-1]]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure.set_size_inches(2.9 * columns + 0.4, 3.0 * rows + 0.5)
    for place, title in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        _draw_reliability(axes, both, title)
        if place % columns == 0:
            axes.set_ylabel("accuracy (bars: share)", fontsize=9)
        if place >= len(shown) - columns:
            axes.set_xlabel("confidence", fontsize=9)
    legend = "" if len(both) == 1 else f" ({both[0][1]} green, {both[1][1]} orange)"
    figure.suptitle(f"Reliability of the most probable node of each level{legend}", fontsize=11)


def _draw_reliability(axes: Any, both: _Models, title: str) -> None:
    """One level of each model."""
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    heading = [title]
    for (evaluation, _), colour in zip(both, MODEL_COLOURS, strict=False):
        diagram = evaluation.reliability[title]
        share = diagram.counts / max(diagram.counts.sum(), 1)
        axes.bar(diagram.confidence, share, width=0.04, color=colour, alpha=0.2)
        axes.plot(diagram.confidence, diagram.accuracy, color=colour, linewidth=1.2)
        sizes = 4 + 120 * np.minimum(share, 0.25)  # the accuracy of a bin of few samples says little
        axes.scatter(diagram.confidence, diagram.accuracy, s=sizes, color=colour)
        heading.append(f"ECE {diagram.ece:.3f}")
    axes.set_title("   ".join(heading), fontsize=9)
    axes.set(xlim=(0, 1.03), ylim=(0, 1.03))
    finish(axes, colour="0.9")


def mistakes_figure(figure: Figure, both: _Models) -> None:
    """Where mistakes meet the truth, and the most frequent ones."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    _draw_meeting_levels(left, both)
    _draw_frequent_mistakes(right, both)
    for axes in (left, right):
        finish(axes, "x", "0.9")


def _draw_meeting_levels(axes: Any, both: _Models) -> None:
    """Bars of the levels where answer and truth meet."""
    evaluation = both[0][0]
    levels = evaluation.level_titles or [f"depth {k}" for k in range(1, evaluation.hierarchy.max_depth + 1)]
    deepest = max(int(np.max(np.flatnonzero(e.confusion.by_level), initial=0)) for e, _ in both)
    titles = ["root", *levels][: deepest + 1]
    height = 0.8 / len(both)
    for i, ((each, name), colour) in enumerate(zip(both, MODEL_COLOURS, strict=False)):
        counts = each.confusion.by_level[: len(titles)]
        share = counts / max(each.confusion.mistakes, 1)
        places = np.arange(len(counts)) + (i - (len(both) - 1) / 2) * height
        label = f"{name}: {each.confusion.mistakes:,} mistakes"
        axes.barh(places, share, height=height, color=colour, label=label)
        for y, x, count in zip(places, share, counts, strict=True):
            axes.text(x + 0.01, y, f"{count:,}", va="center", fontsize=7)
    axes.set_yticks(range(len(titles)), titles)
    axes.invert_yaxis()
    axes.set_xlim(0, max(0.1, *[bar.get_width() for bar in axes.patches]) * 1.18)
    axes.set(xlabel="share of mistakes")
    axes.set_title("Level where answer and truth meet", fontsize=11)
    narrow = any(len(name) > 20 for _, name in both)  # two long names side by side leave no room for the bars
    columns = 1 if narrow else 2
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=columns)


def _draw_frequent_mistakes(axes: Any, both: _Models) -> None:
    """Bars of the first model's most frequent pairs of truth and answer."""
    evaluation, name = both[0]
    table = evaluation.confusion.pair_columns(_PAIRS)
    names = zip(table["truth_name"], table["answer_name"], strict=True)
    pairs = [f"{_short(truth)} → {_short(answer or 'no answer')}" for truth, answer in names]
    axes.barh(range(len(pairs)), table["count"], color=MODEL_COLOURS[0], height=0.7)
    axes.set_yticks(range(len(pairs)), pairs, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="samples")
    axes.xaxis.get_major_locator().set_params(integer=True)
    whose = f" of {name}" if len(both) > 1 else ""
    axes.set_title(f"Most frequent mistakes{whose}: truth → answer", fontsize=11)


def _short(text: str, room: int = 26) -> str:
    clean = text.replace("$", r"\$")  # matplotlib would read formulas
    return clean if len(clean) <= room else clean[: room - 1] + "…"
