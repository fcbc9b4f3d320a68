"""The figures of a report: learning rates, operating curves, reliability, labels, the nodes of a level; those of an evaluation.

Two methods have a colour and their name beside their line; the others are grey. Needs matplotlib, so it is imported on demand.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hace.lab.report.nodes import NodeAccuracies
from hace.lab.report.results import Choice, Comparison, comparison_of, method_title
from hace.lab.report.verdict import LabelQuestion
from hace.lab.study.presets import METHODS
from hace.lab.study.records import Record
from hace.metrics.comparison import curve_band
from hace.metrics.curves import OperatingCurve
from hace.metrics.evaluation import Evaluation

FIRST, SECOND = "#0067ac", "#a34a00"  # the two compared methods
GREY, LIGHT = "#8a929a", "#dfe3e6"  # the others, grids
INK, LINES = "#1b1f23", "#59626c"
RC_PARAMS: dict[Any, Any] = {"svg.hashsalt": "hace", "svg.fonttype": "none", "font.family": "sans-serif"}
RC_PARAMS |= {"font.size": 9, "text.parse_math": False, "text.color": INK, "axes.labelcolor": INK}
RC_PARAMS |= {"axes.edgecolor": LINES, "xtick.color": LINES, "ytick.color": LINES}
RC_PARAMS |= {"figure.autolayout": False, "figure.constrained_layout.use": False}  # a layout of our own
_DARK = {INK: "#e8ebee", LINES: "#a3adb7", FIRST: "#62b5f5", SECOND: "#f0a35e"}
_DARK |= {GREY: "#7d8790", LIGHT: "#343c44"}
MOST = 20  # nodes in a figure
_ONE_LINE = 30  # letters of both names that fit above the drawing
WIDTH = 4.8  # inches: two fit side by side on a screen, and one can be read on a phone


class Picture(NamedTuple):
    """A figure: name of its files, caption, alternative text, both files, and whether it is wider than a page."""

    name: str
    caption: str
    alt: str
    png: bytes
    svg: bytes
    wide: bool = False
    kind = "picture"  # of block


def style(method: str, compared: Sequence[str]) -> dict[str, Any]:
    """Colour, width and order of a method: the two that are compared stand out, the others are grey."""
    if method == compared[0]:
        return {"color": FIRST, "linewidth": 2.0, "zorder": 4}
    if method in compared:
        return {"color": SECOND, "linewidth": 2.0, "zorder": 3, "linestyle": (0, (5, 1.5))}
    return {"color": GREY, "linewidth": 0.9, "zorder": 2, "alpha": 0.75}


def name_lines(axes: Any, ends: Mapping[str, float], compared: Sequence[str]) -> None:
    """The names of the compared methods where their lines end, apart from each other, and one word for the others."""
    low, high = axes.get_ylim()
    grey = sorted(y for m, y in ends.items() if m not in compared)
    wanted = [(y, method_title(m), style(m, compared)["color"]) for m, y in ends.items() if m in compared]
    wanted += [(grey[len(grey) // 2], "others", GREY)] if grey else []
    gap, last = 0.065 * (high - low), -math.inf
    for y, words, colour in sorted(wanted):
        last = max(y, last + gap)
        axes.annotate(
            words, (1.0, last), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
            va="center", color=colour, fontsize=8.5, annotation_clip=False,
        )  # fmt: skip


def picture(figure: Figure, name: str, caption: str, alt: str, wide: bool = False) -> Picture:
    """Both files of a figure; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    files = []
    with matplotlib.rc_context(RC_PARAMS), warnings.catch_warnings():
        # Names may be in scripts the font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.draw_without_rendering()  # lays it out; once is enough for both files
        figure.set_layout_engine()  # none: with one, saving would draw twice
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=130, metadata=metadata, transparent=kind == "svg")
            files.append(buffer.getvalue())
    # Colours that follow the reader's light or dark scheme.
    pairs = [(name, light, dark) for light, dark in _DARK.items() for name in ("fill", "stroke")]
    rules = "".join(f'[style*="{n}: {light}"]{{{n}:{dark}!important}}' for n, light, dark in pairs)
    style_text = f"<style>@media screen and (prefers-color-scheme: dark){{{rules}}}</style>"
    svg = files[1].replace(b"<defs>", style_text.encode() + b"<defs>", 1)
    return Picture(name, caption, alt, files[0], svg, wide)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(rect=(0, 0, 0.965, 1))  # room on the right: a reader's font may be wider  # pyright: ignore
    return figure


def finish(axes: Any, grid: str = "both", colour: str = LIGHT) -> None:
    """A light grid, no frame at the top and at the right."""
    axes.grid(axis=grid, color=colour, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


@matplotlib.rc_context(RC_PARAMS)
def rates_picture(
    comparison: Comparison, records: Sequence[Record], compared: Sequence[str]
) -> Picture | None:
    """Accuracy against the learning rate: on held-out samples, or on the test set in the paper's protocol."""
    stage = "search" if comparison.protocol == "fair" else "final"
    found = _rate_curves(comparison, records, stage)
    if not found:
        return None
    figure = new_figure(WIDTH, 3.2)
    axes = figure.add_subplot()
    for method, (_, curve) in found.items():
        look = style(method, compared)
        axes.plot(list(curve), [100 * y for y in curve.values()], marker="o", markersize=3, **look)
    axes.set_xscale("log", base=2)
    every = sorted({rate for _, curve in found.values() for rate in curve})
    axes.set_xticks(every if len(every) <= 12 else every[:: math.ceil(len(every) / 12)])
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    split = "held-out samples" if stage == "search" else "test samples"
    axes.set(xlabel="learning rate", ylabel=f"accuracy on {split}, %")
    finish(axes)
    name_lines(axes, {m: 100 * list(c.values())[-1] for m, (_, c) in found.items()}, compared)
    alt = f"Lines of top-1 accuracy against learning rate for {len(found)} methods."
    text = f"How much the learning rate matters: mean accuracy on {split}"
    text += ", at the dilution with the highest point." if len({d for d, _ in found.values()}) > 2 else "."
    return picture(figure, f"rates-{comparison.slug}", text, alt)


def _rate_curves(
    comparison: Comparison, records: Sequence[Record], stage: str
) -> dict[str, tuple[float | None, dict[float, float]]]:
    """For each method, rate -> mean accuracy over seeds, each at its best decay, at the dilution with the highest point."""
    found: dict[str, dict[float | None, dict[float, dict[int, float]]]] = {}
    for r in records:
        if r.stage == stage and comparison_of(r.key) == comparison and r.top1 is not None:
            # A method without a dilution has that of its partner in a pair.
            diluted = r.key.method not in METHODS or METHODS[r.key.method].diluted
            curves = found.setdefault(r.key.method, {}).setdefault(r.key.dilution if diluted else None, {})
            seeds = curves.setdefault(r.lr, {})
            seeds[r.key.seed] = max(r.top1, seeds.get(r.key.seed, 0.0))
    best = {}
    for method in [m for m in METHODS if m in found] + [m for m in found if m not in METHODS]:
        drawn = {d: curve for d, curve in found[method].items() if len(curve) > 1}
        means = {d: {lr: float(np.mean([*c[lr].values()])) for lr in sorted(c)} for d, c in drawn.items()}
        if means:
            best[method] = max(means.items(), key=lambda item: max(item[1].values()))
    return best


@matplotlib.rc_context(RC_PARAMS)
def operating_picture(
    comparison: Comparison, choices: dict[str, Choice], compared: Sequence[str]
) -> Picture | None:
    """Precision against specificity as the threshold moves, averaged over seeds; calibrated where all runs are.

    Raw scores of an under-confident head lead down the larger branch, so their curve ends below the accuracy of classes.
    """
    raw = {m: found for m, c in choices.items() if (found := _operating_curve(c, False))}
    warm = {m: found for m, c in choices.items() if (found := _operating_curve(c, True))}
    curves = warm if set(warm) == set(raw) else raw
    if not curves:
        return None
    figure = new_figure(WIDTH, 3.2)
    axes = figure.add_subplot()
    for method, (x, y) in curves.items():
        axes.plot(100 * x, 100 * y, **style(method, compared))
    axes.set(xlabel="detail of the answers, % of the possible information", ylabel="answers that are true, %")
    finish(axes)
    name_lines(axes, {m: 100 * float(y[np.argmax(x)]) for m, (x, y) in curves.items()}, compared)
    alt = f"Curves of precision against specificity for {len(curves)} methods."
    text = "What a threshold gains: from sure and vague, left, to exact and risky, right."
    text += " After one temperature." if curves is warm else " Raw scores."
    return picture(figure, f"operating-{comparison.slug}", text, alt)


@matplotlib.rc_context(RC_PARAMS)
def reliability_picture(
    comparison: Comparison, choices: dict[str, Choice], compared: Sequence[str]
) -> Picture | None:
    """Accuracy against confidence of the classes, over the samples of all seeds; calibrated where runs are."""
    there = [choices[m] for m in compared if m in choices]
    raw, warm = ({c.method: _bins(c, tempered) for c in there} for tempered in (False, True))
    panels = [("raw", raw), *([("after one temperature", warm)] if any(warm.values()) else [])]
    if not any(panels[0][1].values()):
        return None
    figure = new_figure(WIDTH, 3.2)
    for i, (title, found) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1)
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (2, 2)))
        for method, levels in found.items():
            for x, y in list(levels.values())[-1:]:
                axes.plot(x, y, marker="o", markersize=3, **style(method, compared))
        axes.set_title(title, fontsize=9)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy" if i == 0 else "")
        finish(axes)
    for i, method in enumerate(panels[0][1]):
        look = {"color": style(method, compared)["color"], "fontsize": 8.5}
        figure.axes[0].text(0.04, 0.96 - 0.08 * i, method_title(method), va="top", **look)
    names = " and ".join(map(method_title, panels[0][1]))
    text = "How far to trust the confidence in classes: below the diagonal a model is too sure of itself, above not enough."
    return picture(figure, f"reliability-{comparison.slug}", text, f"Accuracy against confidence of {names}.")


def _sources(choice: Choice, calibrated: bool) -> list[Mapping[str, Any]]:
    """The results of a method's runs, or their calibrated parts."""
    results = [record.result for record in choice.finished]
    return [(result.get("calibrated") or {}) if calibrated else result for result in results]


def _operating_curve(choice: Choice, calibrated: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Specificity and precision, averaged over seeds; None where a run has no such curve."""
    curves = [source.get("operating_curve") or {} for source in _sources(choice, calibrated)]
    found = [[curve.get(c) or [None] for c in ("specificity", "precision")] for curve in curves]
    if len({len(x) for x, _ in found}) != 1 or any(None in column for both in found for column in both):
        return None
    return tuple(np.mean(np.array(found, dtype=float), axis=0))


def _bins(choice: Choice, calibrated: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each level mean confidence and accuracy of each bin with samples, over all seeds."""
    sums: dict[str, np.ndarray] = {}
    for source in _sources(choice, calibrated):
        for title, r in (source.get("reliability") or {}).items():
            values = np.array([r["count"], r["confidence"], r["accuracy"]], dtype=float)  # None becomes nan
            part = np.nan_to_num(np.stack([values[0], values[0] * values[1], values[0] * values[2]]))
            if title not in sums or sums[title].shape == part.shape:
                sums[title] = sums.get(title, 0) + part
    filled = {title: total[:, total[0] > 0] for title, total in sums.items()}
    return {title: (total[1] / total[0], total[2] / total[0]) for title, total in filled.items()}


@matplotlib.rc_context(RC_PARAMS)
def labels_picture(
    question: LabelQuestion, panels: Sequence[tuple[str, str, Sequence[tuple[float, Comparison]]]]
) -> Picture:
    """Top-1 accuracy against the share or number of labels; a panel is a title, the horizontal axis's name, and points."""
    choices = [question.results.choices[comparison] for comparison in question.comparisons]
    methods = [m for m in question.results.methods if any(m in there for there in choices)]
    answers = [answer for answer in question.answers if answer.comparison != question.whole]
    drops = [answer.dropping[0] for answer in answers if answer.dropping is not None]
    compared = [answers[-1].best if answers else methods[0], *drops[-1:]]
    figure = new_figure(WIDTH * (1.0 if len(panels) == 1 else 1.6), 3.2)
    first = None
    for i, (title, axis, points) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1, sharey=first)
        first = first or axes
        ends = {}
        for method in methods:
            values = [(x, question.scores(comparison).get(method)) for x, comparison in points]
            line = [(x, 100 * y) for x, y in values if y is not None]
            if line:
                xs, ys = zip(*line, strict=True)
                axes.plot(xs, ys, marker="o", markersize=3, **style(method, compared))
                ends[method] = ys[-1]
        if question.whole is not None and (known := question.scores(question.whole)):
            name = compared[0] if compared[0] in known else next(iter(known))
            value = known[name]
            axes.axhline(100 * value, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
            axes.annotate(f"all labels, {method_title(name)}", (0.99, 100 * value), xycoords=("axes fraction", "data"),
                          ha="right", xytext=(0, 3), textcoords="offset points", fontsize=7.5, color=GREY)  # fmt: skip
        if axis == "known labels per class":
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks([x for x, _ in points], [f"{x:g}" for x, _ in points])
        axes.set_title(title, fontsize=9)
        axes.set(xlabel=axis, ylabel="top-1 on test samples, %" if i == 0 else "")
        finish(axes)
        if i == len(panels) - 1:
            name_lines(axes, ends, compared)
    caption = f"Accuracy by what is known of the training labels, {question.title}."
    alt = f"Lines of top-1 accuracy for {len(methods)} methods as fewer training labels are known."
    return picture(figure, f"labels-{question.slug}", caption, alt, wide=len(panels) > 1)


@matplotlib.rc_context(RC_PARAMS)
def nodes_picture(comparison: Comparison, found: NodeAccuracies, first: str, second: str) -> Picture:
    """A line from the second method's accuracy to the first's, for the nodes of a level where they differ most."""
    gains = np.array([gap.value for gap in found.gaps])
    largest = np.argsort(-np.abs(gains), kind="stable")[:MOST]
    order = largest[np.argsort(gains[largest], kind="stable")].tolist()
    ours, theirs = method_title(first), method_title(second)
    figure = new_figure(WIDTH, 0.9 + 0.2 * len(order))
    axes = figure.add_subplot()
    for at, i in enumerate(order):
        gap = found.gaps[i]
        alpha = 1.0 if gap.excludes_zero else 0.45
        a, b = 100 * found.first[i], 100 * found.second[i]
        dot = {"marker": "o", "markersize": 5.5, "alpha": alpha}
        axes.plot([a, b], [at, at], color=GREY, linewidth=1.6, alpha=alpha, zorder=1)
        axes.plot([b], [at], color=SECOND, markerfacecolor="none", zorder=2, **dot)
        axes.plot([a], [at], color=FIRST, zorder=3, **dot)
        ends = f"[{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]"
        words = f"{100 * gap.value:+.1f} {ends}  n = {found.samples[i]:,}"
        axes.annotate(words, (1.02, at), xycoords=("axes fraction", "data"), va="center", fontsize=7.5,
                      alpha=0.5 + alpha / 2, annotation_clip=False)  # fmt: skip
    names = [found.names[i] if len(found.names[i]) <= 26 else found.names[i][:25] + "…" for i in order]
    axes.set_yticks(range(len(order)), names, fontsize=8)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlabel("accuracy, %")
    finish(axes, "x")
    fits = len(ours) + len(theirs) <= _ONE_LINE
    axes.set_title(f"● {ours}" if fits else f"● {ours}\n", loc="left", color=FIRST, fontsize=8.5)
    axes.set_title(f"○ {theirs}" if fits else "", loc="right", color=SECOND, fontsize=8.5)
    if not fits:
        axes.annotate(f"○ {theirs}", (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
                      color=SECOND, fontsize=8.5)  # fmt: skip
    few = len(order) < len(found.names)
    shown = f"Shown are the {len(order)} that differ most, with" if few else "With"
    certain = sum(found.gaps[i].excludes_zero for i in order)
    text = (
        f"{found.summary(ours, theirs)} {shown} differences in points and 95% intervals, faint where they include 0, as "
        f"{f'all but {certain}' if certain else 'they all'} do; among many some exclude it by chance."
    )
    name = f"level-{comparison.slug}-{re.sub('[^0-9A-Za-z]', '_', found.level)[:40]}"
    return picture(figure, name, text, f"Dumbbells of two accuracies. {text}")


# The figures of an evaluation: what a threshold costs and gives, how far to trust confidence, where mistakes go.

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
    pictures = {
        "operating_curve": (_operating, (6.4, 4.8), both),
        "risk_coverage": (_risk, (6.4, 4.8), both),
        "mistakes": (_mistakes, (11.0, 5.2), both),
    }
    if evaluation.reliability:
        warm = [] if evaluation.calibrated is None else [(evaluation.calibrated, "calibrated")]
        shown = both if len(both) > 1 else [(evaluation, "as scored"), *warm]
        pictures["reliability"] = (_reliability, (11.0, 5.6), shown)
    figures = {}
    for name, (draw, size, shown) in pictures.items():
        figures[name] = figure = Figure(figsize=size, dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, shown)
    return figures


def _curves(
    figure: Figure, both: _Models, name: str, x: str, y: str, title: str, labels: tuple[str, str]
) -> Any:
    """One curve of each model with its 95% interval, shaded; ``x`` and ``y``: the attributes to draw."""
    axes = figure.add_subplot()
    for (evaluation, model), colour in zip(both, MODEL_COLOURS, strict=False):
        curve = getattr(evaluation, name)
        label = f"{model} (area {curve.area:.3f})"
        axes.plot(getattr(curve, x), getattr(curve, y), color=colour, label=label)
        if len(evaluation.samples):
            band = curve_band(evaluation, name.split("_")[0])
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel=labels[0], ylabel=labels[1], xlim=(0, 1.02))
    axes.set_title(f"{title} (shaded: 95%)", fontsize=11)
    finish(axes, colour="0.9")
    return axes


def _operating(figure: Figure, both: _Models) -> None:
    labels = (
        "specificity (share of the possible information)",
        "precision (share of samples without a false answer)",
    )
    title = "Operating curve: the deepest node above a threshold t"
    axes = _curves(figure, both, "operating_curve", "specificity", "precision", title, labels)
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


def _risk(figure: Figure, both: _Models) -> None:
    labels = ("coverage (share of samples answered, most confident first)", "share of mistakes among them")
    axes = _curves(
        figure, both, "risk_coverage", "coverage", "risk", "Risk and coverage of the best leaf", labels
    )
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)


def _reliability(figure: Figure, both: _Models) -> None:
    titles = list(both[0][0].reliability)
    shown = titles if len(titles) <= _LEVELS else [*titles[: _LEVELS - 1], titles[-1]]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure.set_size_inches(2.9 * columns + 0.4, 3.0 * rows + 0.5)
    for place, title in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
        lines = [title]
        for (evaluation, _), colour in zip(both, MODEL_COLOURS, strict=False):
            diagram = evaluation.reliability[title]
            share = diagram.counts / max(diagram.counts.sum(), 1)
            axes.bar(diagram.confidence, share, width=0.04, color=colour, alpha=0.2)
            axes.plot(diagram.confidence, diagram.accuracy, color=colour, linewidth=1.2)
            sizes = 4 + 120 * np.minimum(share, 0.25)  # the accuracy of a bin of few samples says little
            axes.scatter(diagram.confidence, diagram.accuracy, s=sizes, color=colour)
            lines.append(f"ECE {diagram.ece:.3f}")
        axes.set_title("   ".join(lines), fontsize=9)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03))
        finish(axes, colour="0.9")
        if place % columns == 0:
            axes.set_ylabel("accuracy (bars: share)", fontsize=9)
        if place >= len(shown) - columns:
            axes.set_xlabel("confidence", fontsize=9)
    legend = "" if len(both) == 1 else f" ({both[0][1]} green, {both[1][1]} orange)"
    figure.suptitle(f"Reliability of the most probable node of each level{legend}", fontsize=11)


def _mistakes(figure: Figure, both: _Models) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
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
        left.barh(places, share, height=height, color=colour, label=label)
        for y, (x, count) in zip(places, zip(share, counts, strict=True), strict=True):
            left.text(x + 0.01, y, f"{count:,}", va="center", fontsize=7)
    left.set_yticks(range(len(titles)), titles)
    left.invert_yaxis()
    left.set_xlim(0, max(0.1, *[p.get_width() for p in left.patches]) * 1.18)
    left.set(xlabel="share of mistakes")
    left.set_title("Level where answer and truth meet", fontsize=11)
    narrow = any(len(name) > 20 for _, name in both)  # two long names side by side leave no room for the bars
    columns = 1 if narrow else 2
    left.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=columns)
    table = evaluation.confusion.pair_columns(_PAIRS)
    names = zip(table["truth_name"], table["answer_name"], strict=True)
    pairs = [f"{_short(truth)} → {_short(answer or 'no answer')}" for truth, answer in names]
    right.barh(range(len(pairs)), table["count"], color=MODEL_COLOURS[0], height=0.7)
    right.set_yticks(range(len(pairs)), pairs, fontsize=8)
    right.invert_yaxis()
    right.set(xlabel="samples")
    right.xaxis.get_major_locator().set_params(integer=True)
    whose = f" of {both[0][1]}" if len(both) > 1 else ""
    right.set_title(f"Most frequent mistakes{whose}: truth → answer", fontsize=11)
    for axes in (left, right):
        finish(axes, "x", "0.9")


def _short(text: str, room: int = 26) -> str:
    clean = text.replace("$", r"\$")  # matplotlib would read formulas
    return clean if len(clean) <= room else clean[: room - 1] + "…"
