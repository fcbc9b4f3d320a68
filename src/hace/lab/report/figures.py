"""The figures of a study: learning rates, operating curves, reliability, labels, the nodes of a level.

Needs matplotlib, so it is imported on demand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np
import pandas as pd

from hace.lab.report.drawing import (
    FIRST,
    GREY,
    RC_PARAMS,
    SECOND,
    WIDTH,
    Picture,
    finish,
    name_lines,
    new_figure,
    picture,
    style,
)
from hace.lab.report.labels import LabelQuestion, Panel
from hace.lab.report.metric import ACCURACY, TOP1
from hace.lab.report.nodes import NodeAccuracies
from hace.lab.report.runs import Condition, method_title, metric_values
from hace.lab.report.scores import MethodScores
from hace.lab.study.presets import METHODS

MOST_NODES = 20  # in a figure
_ONE_LINE = 30  # letters of both names that fit above the drawing
Curve = tuple[np.ndarray, np.ndarray]


# --- learning rates


@matplotlib.rc_context(RC_PARAMS)
def rates_picture(condition: Condition, runs: pd.DataFrame, compared: Sequence[str]) -> Picture | None:
    """Accuracy against the learning rate: on held-out samples, or on the test set in the paper's protocol."""
    stage = "search" if condition.protocol == "fair" else "final"
    curves = _rate_curves(runs[runs["stage"] == stage])
    if not curves:
        return None
    figure = new_figure(WIDTH, 3.2)
    axes = figure.add_subplot()
    for method, curve in curves.items():
        axes.plot(list(curve.index), 100 * curve, marker="o", markersize=3, **style(method, compared))
    axes.set_xscale("log", base=2)
    rates = sorted({rate for curve in curves.values() for rate in curve.index})
    axes.set_xticks(rates if len(rates) <= 12 else rates[:: math.ceil(len(rates) / 12)])
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    split = "held-out samples" if stage == "search" else "test samples"
    axes.set(xlabel="learning rate", ylabel=f"accuracy on {split}, %")
    finish(axes)
    name_lines(axes, {method: 100 * curve.iloc[-1] for method, curve in curves.items()}, compared)
    alt = f"Lines of top-1 accuracy against learning rate for {len(curves)} methods."
    text = f"How much the learning rate matters: mean accuracy on {split}"
    several = len({curve.name for curve in curves.values()}) > 2
    text += ", at the dilution with the highest point." if several else "."
    return picture(figure, f"rates-{condition.slug}", text, alt)


def _rate_curves(runs: pd.DataFrame) -> dict[str, pd.Series]:
    """For each method the mean accuracy over seeds by rate, each at its best decay, at the dilution with the highest point.

    A curve is named by that dilution.
    """
    # A method without a dilution has that of its partner in a pair.
    without = [method for method in METHODS if not METHODS[method].diluted]
    known = runs.assign(
        top1=metric_values(runs, TOP1),
        dilution=runs["dilution"].mask(runs["method"].isin(without)).fillna(-1.0),
    ).dropna(subset="top1")
    best_decay = known.groupby(["method", "dilution", "lr", "seed"], as_index=False)["top1"].max()
    means = best_decay.groupby(["method", "dilution", "lr"], as_index=False)["top1"].mean()
    curves: dict[str, pd.Series] = {}
    for method, own in means.groupby("method"):
        of_dilutions = {d: points.set_index("lr")["top1"].rename(d) for d, points in own.groupby("dilution")}
        drawn = [curve for curve in of_dilutions.values() if len(curve) > 1]
        if drawn:
            curves[str(method)] = max(drawn, key=lambda curve: curve.max())
    order = [*(m for m in METHODS if m in curves), *(m for m in curves if m not in METHODS)]
    return {method: curves[method] for method in order}


# --- thresholds and confidence


@matplotlib.rc_context(RC_PARAMS)
def operating_picture(scores: MethodScores, compared: Sequence[str]) -> Picture | None:
    """Precision against specificity as the threshold moves, averaged over seeds; calibrated where all runs are.

    Raw scores of an under-confident head lead down the larger branch, so their curve ends below the accuracy of classes.
    """
    raw = _operating_curves(scores, False)
    calibrated = _operating_curves(scores, True)
    curves = calibrated if set(calibrated) == set(raw) else raw
    if not curves:
        return None
    figure = new_figure(WIDTH, 3.2)
    axes = figure.add_subplot()
    for method, (x, y) in curves.items():
        axes.plot(100 * x, 100 * y, **style(method, compared))
    axes.set(xlabel="specificity: share of the possible information, %", ylabel="answers that are true, %")
    finish(axes)
    name_lines(axes, {m: 100 * float(y[np.argmax(x)]) for m, (x, y) in curves.items()}, compared)
    alt = f"Curves of precision against specificity for {len(curves)} methods."
    text = "What a threshold gains: from sure and vague, left, to exact and risky, right."
    text += " After one temperature." if curves is calibrated else " Raw scores."
    return picture(figure, f"operating-{scores.condition.slug}", text, alt)


def _operating_curves(scores: MethodScores, calibrated: bool) -> dict[str, Curve]:
    """Specificity and precision of each method, averaged over seeds; of those whose runs all have such a curve."""
    curves = {}
    for method in scores.done:
        sources = _sources(scores, method, calibrated)
        columns = [
            [
                (source.get("operating_curve") or {}).get(name) or [None]
                for name in ("specificity", "precision")
            ]
            for source in sources
        ]
        lengths = {len(column) for both in columns for column in both}
        if len(lengths) == 1 and not any(None in column for both in columns for column in both):
            curves[method] = tuple(np.mean(np.array(columns, dtype=float), axis=0))
    return curves


@matplotlib.rc_context(RC_PARAMS)
def reliability_picture(scores: MethodScores, compared: Sequence[str]) -> Picture | None:
    """Accuracy against confidence of the classes, over the samples of all seeds; calibrated where runs are."""
    raw = _class_bins(scores, compared, False)
    calibrated = _class_bins(scores, compared, True)
    panels = [("raw", raw), *([("after one temperature", calibrated)] if calibrated else [])]
    if not raw:
        return None
    figure = new_figure(WIDTH, 3.2)
    for i, (title, curves) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1)
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (2, 2)))
        for method, (x, y) in curves.items():
            axes.plot(x, y, marker="o", markersize=3, **style(method, compared))
        axes.set_title(title, fontsize=9)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy" if i == 0 else "")
        finish(axes)
    for i, method in enumerate(reversed(raw)):  # below the diagonal there is room
        look = {"color": style(method, compared)["color"], "fontsize": 8.5}
        figure.axes[0].text(0.97, 0.04 + 0.08 * i, method_title(method), ha="right", **look)
    names = " and ".join(map(method_title, raw))
    text = "How far to trust the confidence in classes: below the diagonal a model is too sure of itself, above not enough."
    return picture(
        figure, f"reliability-{scores.condition.slug}", text, f"Accuracy against confidence of {names}."
    )


def _class_bins(scores: MethodScores, methods: Sequence[str], calibrated: bool) -> dict[str, Curve]:
    """Mean confidence and accuracy in the classes of each bin with samples, over all seeds, of methods that have them."""
    bins = {}
    for method in methods:
        of_levels = [source.get("reliability") or {} for source in _sources(scores, method, calibrated)]
        classes = [list(levels.values())[-1] for levels in of_levels if levels]
        sums = [_bin_sums(diagram) for diagram in classes]
        if sums:
            total = np.sum([part for part in sums if part.shape == sums[0].shape], axis=0)
            count, confidence, right = total[:, total[0] > 0]
            bins[method] = (confidence / count, right / count)
    return bins


def _bin_sums(diagram: Mapping[str, Any]) -> np.ndarray:
    """(3, bins) samples, and the sums of their confidence and of right answers."""
    # None becomes nan.
    values = np.array([diagram["count"], diagram["confidence"], diagram["accuracy"]], dtype=float)
    count, confidence, accuracy = values
    return np.nan_to_num(np.stack([count, count * confidence, count * accuracy]))


def _sources(scores: MethodScores, method: str, calibrated: bool) -> list[Mapping[str, Any]]:
    """The results of a method's runs, or their calibrated parts."""
    results = [run.result or {} for run in scores.finished(method)["run"]]
    return [(result.get("calibrated") or {}) if calibrated else result for result in results]


# --- labels


@matplotlib.rc_context(RC_PARAMS)
def labels_picture(question: LabelQuestion, panels: Sequence[Panel]) -> Picture:
    """Top-1 accuracy against the share or number of labels."""
    results = question.results
    means = {condition: results.scores[condition].means(ACCURACY) for condition in question.conditions}
    methods = [m for m in results.methods if any(m in results.scores[c].methods.index for c in means)]
    states = question.states
    droppers = [state.dropper for state in states if state.dropper]
    compared = [states[-1].best if states else methods[0], *droppers[-1:]]
    figure = new_figure(WIDTH * (1.0 if len(panels) == 1 else 1.6), 3.2)
    first = None
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1, sharey=first)
        first = first or axes
        ends = {}
        for method in methods:
            known = [(x, 100 * means[c][method]) for x, c in panel.points if method in means[c]]
            if known:
                xs, ys = zip(*known, strict=True)
                axes.plot(xs, ys, marker="o", markersize=3, **style(method, compared))
                ends[method] = ys[-1]
        if question.whole is not None and means[question.whole]:
            _mark_all_labels(axes, means[question.whole], compared[0])
        if panel.axis == "known labels per class":
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks([x for x, _ in panel.points], [f"{x:g}" for x, _ in panel.points])
        axes.set_title(panel.title, fontsize=9)
        axes.set(xlabel=panel.axis, ylabel="top-1 on test samples, %" if i == 0 else "")
        finish(axes)
        if i == len(panels) - 1:
            name_lines(axes, ends, compared)
    caption = f"Accuracy by what is known of the training labels, {question.title}."
    alt = f"Lines of top-1 accuracy for {len(methods)} methods as fewer training labels are known."
    return picture(figure, f"labels-{question.slug}", caption, alt, wide=len(panels) > 1)


def _mark_all_labels(axes: Any, known: Mapping[str, float], wanted: str) -> None:
    """A line at the accuracy with all labels, of the method that is compared, or else of the best."""
    method = wanted if wanted in known else max(known, key=lambda name: known[name])
    height = 100 * known[method]
    axes.axhline(height, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.annotate(
        f"all labels, {method_title(method)}",
        (0.99, height),
        xycoords=("axes fraction", "data"),
        ha="right",
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=7.5,
        color=GREY,
    )


# --- the nodes of a level


@matplotlib.rc_context(RC_PARAMS)
def nodes_picture(condition: Condition, nodes: NodeAccuracies, first: str, second: str) -> Picture:
    """A line from the second method's accuracy to the first's, for the nodes of a level where they differ most."""
    gains = np.array([gap.value for gap in nodes.gaps])
    largest = np.argsort(-np.abs(gains), kind="stable")[:MOST_NODES]
    order = largest[np.argsort(gains[largest], kind="stable")].tolist()
    ours = method_title(first)
    theirs = method_title(second)
    figure = new_figure(WIDTH, 0.9 + 0.2 * len(order))
    axes = figure.add_subplot()
    for height, i in enumerate(order):
        _draw_node(axes, height, nodes, i)
    names = [nodes.names[i] if len(nodes.names[i]) <= 26 else nodes.names[i][:25] + "…" for i in order]
    axes.set_yticks(range(len(order)), names, fontsize=8)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlabel("accuracy, %")
    finish(axes, "x")
    _name_dots(axes, ours, theirs)
    few = len(order) < len(nodes.names)
    shown = f"Shown are the {len(order)} that differ most, with" if few else "With"
    certain = sum(nodes.gaps[i].excludes_zero for i in order)
    text = (
        f"{nodes.summary(ours, theirs)} {shown} differences in points and 95% intervals, faint where they include 0, as "
        f"{f'all but {certain}' if certain else 'they all'} do; among many some exclude it by chance."
    )
    name = f"level-{condition.slug}-{re.sub('[^0-9A-Za-z]', '_', nodes.level)[:40]}"
    return picture(figure, name, text, f"Dumbbells of two accuracies. {text}")


def _draw_node(axes: Any, height: int, nodes: NodeAccuracies, i: int) -> None:
    """A node's line, with its difference beside it; faint where the interval includes 0."""
    gap = nodes.gaps[i]
    alpha = 1.0 if gap.excludes_zero else 0.45
    first = 100 * nodes.first[i]
    second = 100 * nodes.second[i]
    dot = {"marker": "o", "markersize": 5.5, "alpha": alpha}
    axes.plot([first, second], [height, height], color=GREY, linewidth=1.6, alpha=alpha, zorder=1)
    axes.plot([second], [height], color=SECOND, markerfacecolor="none", zorder=2, **dot)
    axes.plot([first], [height], color=FIRST, zorder=3, **dot)
    ends = f"[{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]"
    axes.annotate(
        f"{100 * gap.value:+.1f} {ends}  n = {nodes.samples[i]:,}",
        (1.02, height),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=7.5,
        alpha=0.5 + alpha / 2,
        annotation_clip=False,
    )


def _name_dots(axes: Any, ours: str, theirs: str) -> None:
    """Which dot is whose, above the drawing; long names in two lines."""
    if len(ours) + len(theirs) <= _ONE_LINE:
        axes.set_title(f"● {ours}", loc="left", color=FIRST, fontsize=8.5)
        axes.set_title(f"○ {theirs}", loc="right", color=SECOND, fontsize=8.5)
        return
    axes.set_title(f"● {ours}\n", loc="left", color=FIRST, fontsize=8.5)
    axes.annotate(
        f"○ {theirs}",
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 6),
        textcoords="offset points",
        color=SECOND,
        fontsize=8.5,
    )
