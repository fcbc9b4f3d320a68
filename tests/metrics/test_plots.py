"""The plots of an evaluation: what a reader sees in them."""

from __future__ import annotations

import numpy as np
import pytest

import hace
from hace import evaluate
from tests.hierarchies import ANIMALS
from tests.metrics.test_evaluation import sample


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "rows"), [(2.0, 400), (2.8, 200), (9.0, 100)])
def test_labels_of_the_operating_curve_do_not_overlap(gain: float, rows: int) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    from hace.lab.report.evaluation_figures import operating_figure

    h = hace.cifar100_hierarchy()
    z, y = sample(h, rows)
    z[np.arange(rows), y] += gain
    figure = figures.Figure(figsize=(6.4, 4.8), dpi=130, layout="constrained")
    operating_figure(figure, [(evaluate(z, y, h), "scores")])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    named = [float(t) for text in axes.texts for t in text.get_text().removeprefix("t = ").split(",")]
    assert sorted(named) == [0.0, 0.5, 0.8, 0.9, 0.95]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(axes.bbox.containsy(box.y0) and axes.bbox.containsy(box.y1) for box in boxes)
    assert max(axes.get_yticks()) <= 1


def test_counts_of_mistakes_have_whole_ticks() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    from hace.lab.report.evaluation_figures import mistakes_figure

    h = ANIMALS.build()
    figure = figures.Figure(figsize=(11.0, 5.2), layout="constrained")
    mistakes_figure(figure, [(evaluate(2 * np.eye(4)[[0, 1, 2]], [1, 1, 1], h), "scores")])
    figure.draw_without_rendering()
    ticks = figure.axes[1].get_xticks()
    assert len(ticks) > 1
    assert all(float(tick).is_integer() for tick in ticks)


@pytest.mark.slow
def test_a_long_name_leaves_room_for_the_axes() -> None:
    pytest.importorskip("matplotlib")
    from hace.lab.report.evaluation_figures import evaluation_figures

    h = ANIMALS.build()
    each = evaluate(*sample(h, 40), h)
    for name, figure in evaluation_figures([("a" * 300, each), ("b" * 300, each)]).items():
        figure.draw_without_rendering()
        for axes in figure.axes[:2]:
            assert axes.bbox.width > 0.2 * figure.bbox.width, name
            legend = axes.get_legend()
            assert legend is None or legend.get_window_extent().width < figure.bbox.width, name
