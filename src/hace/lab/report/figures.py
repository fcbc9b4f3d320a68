"""The figures of a report: severity, learning rates, operating curves, reliability."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import matplotlib.ticker
import numpy as np

from hace.lab.report.arenas import HEADLINES, TOP1, Arena, Choice, arena_of, method_title
from hace.lab.report.drawing import (
    RC_PARAMS,
    WIDTH,
    Picture,
    finish,
    legend,
    new_figure,
    picture,
    style,
)
from hace.lab.report.scores import ArenaScores
from hace.lab.study.cells import Record
from hace.lab.study.methods import METHODS


def rates_picture(arena: Arena, records: Sequence[Record]) -> Picture | None:
    """Accuracy against the learning rate: on held-out samples, or on the test set in the paper's protocol."""
    stage = "search" if arena.protocol == "fair" else "final"
    found = _rate_curves(arena, records, stage)
    if not found:
        return None
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(WIDTH, 3.6)
        axes = figure.add_subplot()
        for method, (dilution, curve) in found.items():
            look = style(method)
            look["label"] += "" if dilution is None else f", d = {dilution:g}"
            axes.plot(list(curve), [100 * y for y in curve.values()], markersize=4, linewidth=1.3, **look)
        axes.set_xscale("log", base=2)
        every = sorted({rate for _, curve in found.values() for rate in curve})
        axes.set_xticks(every if len(every) <= 12 else every[:: math.ceil(len(every) / 12)])
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        split = "held-out samples" if stage == "search" else "test samples"
        axes.set(xlabel="learning rate", ylabel=f"top-1 on {split}, %")
        finish(axes)
        legend(figure, axes)
    alt = f"Lines of top-1 accuracy against learning rate for {len(found)} methods."
    text = f"Sensitivity to the learning rate, {arena.title}: mean top-1 accuracy on {split}"
    text += ", at the dilution with the highest point." if any(d for d, _ in found.values()) else "."
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


def tradeoff_picture(arena: Arena, arrays: ArenaScores) -> Picture | None:
    """Accuracy against the severity of mistakes, with both intervals."""
    severity = HEADLINES[2].key
    points = {m: (arrays.score(m, TOP1), arrays.score(m, severity)) for m in arrays.choices}
    points = {m: p for m, p in points.items() if p[0].value is not None and p[1].value is not None}
    if not points:
        return None
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(WIDTH, 3.6)
        axes = figure.add_subplot()
        for method, (accuracy, distance) in points.items():
            look = style(method)
            bars = []
            for score, scale in ((accuracy, 100), (distance, 1)):
                low, high = (
                    score.value if end is None or end != end else end for end in (score.low, score.high)
                )
                bars.append([[scale * (score.value - low)], [scale * (high - score.value)]])  # type: ignore[operator]
            drawn = axes.errorbar(
                100 * accuracy.value, distance.value, xerr=np.abs(bars[0]), yerr=np.abs(bars[1]), fmt=look["marker"],  # type: ignore[operator]
                color=look["color"], elinewidth=0.7, markersize=6, label=look["label"],
            )  # fmt: skip
            for line in drawn.lines[2]:
                line.set_alpha(0.35)  # of many methods the intervals overlap, and the points count
        axes.set(xlabel="top-1 accuracy, % (right is better)", ylabel="severity of mistakes (down is better)")
        finish(axes)
        legend(figure, axes)
    alt = f"Points of {len(points)} methods: top-1 accuracy and severity of mistakes, with 95 % intervals."
    text = f"Accuracy against severity of mistakes, {arena.title}. Bars are 95 % intervals."
    return picture(figure, f"tradeoff-{arena.slug}", text, alt)


def operating_picture(arena: Arena, choices: dict[str, Choice]) -> Picture | None:
    """Precision against specificity as the threshold moves, averaged over seeds."""
    curves = {m: _mean_curve(c, "operating_curve", ("specificity", "precision")) for m, c in choices.items()}
    curves = {m: c for m, c in curves.items() if c is not None}
    if not curves:
        return None
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(WIDTH, 3.6)
        axes = figure.add_subplot()
        for method, (x, y) in curves.items():
            axes.plot(x, 100 * y, markevery=max(1, len(x) // 8), markersize=4, linewidth=1.3, **style(method))
        axes.set(xlabel="specificity: share of the possible information", ylabel="answers that are true, %")
        finish(axes)
        legend(figure, axes)
    alt = f"Curves of precision against specificity for {len(curves)} methods."
    text = f"Operating curves, {arena.title}: the deepest node above a threshold, from sure and vague to exact and risky."
    return picture(figure, f"operating-{arena.slug}", text, alt)


def reliability_picture(arena: Arena, choices: dict[str, Choice], methods: Sequence[str]) -> Picture | None:
    """Accuracy against confidence at each level, over the samples of all seeds."""
    found = {m: _bins(choices[m]) for m in methods if m in choices}
    found = {m: levels for m, levels in found.items() if levels}
    warmed = {m: _bins(choices[m], calibrated=True) for m in found}
    if not found:
        return None
    titles = list(next(iter(found.values())))
    titles = titles if len(titles) <= 8 else [*titles[:7], titles[-1]]
    columns = min(2, len(titles))
    rows = math.ceil(len(titles) / columns)
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(WIDTH, 2.5 * rows + 0.5)
        for i, title in enumerate(titles):
            axes = figure.add_subplot(rows, columns, i + 1)
            axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=(0, (2, 2)))
            for method, levels in found.items():
                if title in levels:
                    axes.plot(*levels[title], markersize=3.5, linewidth=1.2, **style(method))
                if title in warmed[method]:
                    look = {**style(method), "linestyle": ":", "label": f"{method_title(method)}, calibrated"}
                    axes.plot(*warmed[method][title], markersize=3.5, linewidth=1.2, **look)
            axes.set_title(title, fontsize=9)
            axes.set(
                xlim=(0, 1.03),
                ylim=(0, 1.03),
                xlabel="confidence",
                ylabel="accuracy" if i % columns == 0 else "",
            )
            finish(axes)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False, fontsize=8
        )
    names = " and ".join(method_title(m) for m in found)
    text = (
        f"Reliability of each level's most probable node, {arena.title}. Below the diagonal a model is too sure of itself."
        f"{' Dotted: calibrated.' if any(warmed.values()) else ''}"
    )
    return picture(
        figure,
        f"reliability-{arena.slug}",
        text,
        f"Accuracy against confidence of {names} at {len(titles)} levels.",
    )


def _mean_curve(choice: Choice, name: str, columns: tuple[str, str]) -> tuple[np.ndarray, np.ndarray] | None:
    found = []
    for record in choice.finished:
        result = record.run.result if record.run else None
        curve = (result or {}).get(name)
        if curve and all(curve.get(c) and None not in curve[c] for c in columns):
            found.append([curve[c] for c in columns])
    lengths = {len(curve[0]) for curve in found}
    if len(lengths) != 1:
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
