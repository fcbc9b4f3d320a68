"""The figures of a report: learning rates, operating curves, reliability."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import matplotlib.ticker
import numpy as np

from hace.lab.report.arenas import Arena, Choice, arena_of, method_title
from hace.lab.report.drawing import (
    GREY,
    RC_PARAMS,
    WIDTH,
    Picture,
    finish,
    name_lines,
    new_figure,
    picture,
    style,
)
from hace.lab.study.cells import Record
from hace.lab.study.methods import METHODS


def rates_picture(arena: Arena, records: Sequence[Record], compared: Sequence[str]) -> Picture | None:
    """Accuracy against the learning rate: on held-out samples, or on the test set in the paper's protocol."""
    stage = "search" if arena.protocol == "fair" else "final"
    found = _rate_curves(arena, records, stage)
    if not found:
        return None
    with matplotlib.rc_context(RC_PARAMS):
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
        name_lines(axes, {m: (0.0, 100 * list(c.values())[-1]) for m, (_, c) in found.items()}, compared)
    alt = f"Lines of top-1 accuracy against learning rate for {len(found)} methods."
    text = f"How much the learning rate matters: mean accuracy on {split}"
    text += ", at the dilution with the highest point." if len({d for d, _ in found.values()}) > 2 else "."
    return picture(figure, f"rates-{arena.slug}", text, alt)


def _rate_curves(
    arena: Arena, records: Sequence[Record], stage: str
) -> dict[str, tuple[float | None, dict[float, float]]]:
    """For each method, rate -> mean accuracy over seeds, each at its best decay, at the dilution with the highest point."""
    found: dict[str, dict[float | None, dict[float, dict[int, float]]]] = {}
    for r in records:
        if r.stage == stage and arena_of(r.key) == arena and r.top1 is not None:
            # A method without a dilution has that of its partner in a pair.
            diluted = r.key.method not in METHODS or METHODS[r.key.method].diluted
            curves = found.setdefault(r.key.method, {}).setdefault(r.key.dilution if diluted else None, {})
            seeds = curves.setdefault(r.lr, {})
            seeds[r.key.seed] = max(r.top1, seeds.get(r.key.seed, 0.0))
    best = {}
    for method in [m for m in METHODS if m in found] + [m for m in found if m not in METHODS]:
        curves = {
            d: {lr: float(np.mean([*c[lr].values()])) for lr in sorted(c)}
            for d, c in found[method].items()
            if len(c) > 1
        }
        if curves:
            best[method] = max(curves.items(), key=lambda item: max(item[1].values()))
    return best


def operating_picture(arena: Arena, choices: dict[str, Choice], compared: Sequence[str]) -> Picture | None:
    """Precision against specificity as the threshold moves, averaged over seeds; calibrated where all runs are.

    Raw scores of an under-confident head lead down the larger branch, so their curve ends below the accuracy of classes.
    """
    columns = ("specificity", "precision")
    raw, warm = (
        {
            m: found
            for m, c in choices.items()
            if (found := _mean_curve(c, "operating_curve", columns, calibrated))
        }
        for calibrated in (False, True)
    )
    curves = warm if set(warm) == set(raw) else raw
    if not curves:
        return None
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(WIDTH, 3.2)
        axes = figure.add_subplot()
        for method, (x, y) in curves.items():
            axes.plot(100 * x, 100 * y, **style(method, compared))
        axes.set(
            xlabel="detail of the answers, % of the possible information", ylabel="answers that are true, %"
        )
        finish(axes)
        ends = {m: (0.0, 100 * float(y[np.argmax(x)])) for m, (x, y) in curves.items()}
        name_lines(axes, ends, compared)
    alt = f"Curves of precision against specificity for {len(curves)} methods."
    text = "What a threshold buys: from sure and vague, left, to exact and risky, right."
    text += " After one temperature." if curves is warm else " Raw scores."
    return picture(figure, f"operating-{arena.slug}", text, alt)


def reliability_picture(arena: Arena, choices: dict[str, Choice], compared: Sequence[str]) -> Picture | None:
    """Accuracy against confidence of the classes, over the samples of all seeds; calibrated where runs are."""
    panels = [("raw", {m: _bins(choices[m]) for m in compared if m in choices})]
    warm = {m: _bins(choices[m], calibrated=True) for m in compared if m in choices}
    panels += [("after one temperature", warm)] if any(warm.values()) else []
    if not any(panels[0][1].values()):
        return None
    with matplotlib.rc_context(RC_PARAMS):
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
        for i, method in enumerate(m for m in compared if m in choices):
            look = {"color": style(method, compared)["color"], "fontsize": 8.5}
            figure.axes[0].text(0.04, 0.96 - 0.08 * i, method_title(method), va="top", **look)
    names = " and ".join(method_title(m) for m in compared if m in choices)
    text = "How far to trust the confidence in classes: below the diagonal a model is too sure of itself, above not enough."
    return picture(figure, f"reliability-{arena.slug}", text, f"Accuracy against confidence of {names}.")


def _mean_curve(
    choice: Choice, name: str, columns: tuple[str, str], calibrated: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Two columns of a curve, averaged over seeds; None where a run has no such curve."""
    found = []
    for record in choice.finished:
        result = (record.run.result if record.run else None) or {}
        curve = ((result.get("calibrated") or {}) if calibrated else result).get(name)
        if curve and all(curve.get(c) and None not in curve[c] for c in columns):
            found.append([curve[c] for c in columns])
    lengths = {len(curve[0]) for curve in found}
    if len(lengths) != 1 or len(found) < len(choice.finished):
        return None
    x, y = np.mean(np.array(found, dtype=float), axis=0)
    return x, y


def _bins(choice: Choice, calibrated: bool = False) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each level mean confidence and accuracy of each bin with samples, over all seeds."""
    sums: dict[str, np.ndarray] = {}
    for record in choice.finished:
        result = (record.run.result if record.run else None) or {}
        source = (result.get("calibrated") or {}) if calibrated else result
        for title, r in (source.get("reliability") or {}).items():
            values = np.array([r["count"], r["confidence"], r["accuracy"]], dtype=float)  # None becomes nan
            part = np.nan_to_num(np.stack([values[0], values[0] * values[1], values[0] * values[2]]))
            if title not in sums or sums[title].shape == part.shape:
                sums[title] = sums.get(title, 0) + part
    found = {}
    for title, (count, confidence, accuracy) in sums.items():
        there = count > 0
        found[title] = (confidence[there] / count[there], accuracy[there] / count[there])
    return found
