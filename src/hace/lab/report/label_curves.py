"""The figure of a study about labels: accuracy by what is known of them, one line per method."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib

from hace.lab.report.arenas import Arena, method_title
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
from hace.lab.report.labels import LabelQuestion


def curves_picture(
    question: LabelQuestion, panels: Sequence[tuple[str, str, Sequence[tuple[float, Arena]]]]
) -> Picture:
    """Top-1 accuracy against the share or number of labels; dropping coarse ones and knowing all as references.

    Args:
        question: The study's question.
        panels: Title, name of the horizontal axis, and points of each part.
    """
    methods = [
        m for m in question.results.methods if any(m in question.results.choices[a] for a in question.arenas)
    ]
    answers = [answer for answer in question.answers if answer.arena != question.whole]
    drops = [answer.dropping[0] for answer in answers if answer.dropping is not None]
    compared = [answers[-1].best if answers else methods[0], *drops[-1:]]
    with matplotlib.rc_context(RC_PARAMS):
        figure = new_figure(WIDTH * (1.0 if len(panels) == 1 else 1.6), 3.2)
        first = None
        for i, (title, axis, points) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), i + 1, sharey=first)
            first = first or axes
            ends = {}
            for method in methods:
                values = [(x, question.scores(arena).get(method)) for x, arena in points]
                line = [(x, 100 * y) for x, y in values if y is not None]
                if line:
                    xs, ys = zip(*line, strict=True)
                    axes.plot(xs, ys, marker="o", markersize=3, **style(method, compared))
                    ends[method] = (xs[-1], ys[-1])
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
