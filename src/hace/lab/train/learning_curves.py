"""Learning curves of trainings, drawn from their logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hace.errors import ConfigError, DataError
from hace.files.writing import atomic_path
from hace.lab.runs.run import Run

# Okabe and Ito's colours, which are distinct for any colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
PANELS = (("loss", "loss"), ("accuracy", "accuracy of the most probable leaf"))


def plot_log(runs: Mapping[str, Run], path: str | Path) -> None:
    """Draw loss and accuracy by epoch: dashed in training, solid on held-out samples.

    Args:
        runs: By the names that the legend gives them.
        path: The picture; the suffix says which kind.

    Raises:
        DataError: No runs, or one without a finished epoch.
        ConfigError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("Pictures need matplotlib: pip install 'hace[report]'.") from None
    logs = {name: run.log() for name, run in runs.items()}
    empty = [name for name, log in logs.items() if not log]
    if empty or not logs:
        raise DataError(
            f"There is nothing to draw: {', '.join(empty) or 'no run'} has no epoch in its log yet."
        )
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for colour, (name, log) in zip(COLOURS * len(logs), logs.items(), strict=False):
            held_out = _draw(axes, log, f"val_{key}", color=colour, label=f"{name}, held-out")
            label = f"{name}, training" if held_out else name
            _draw(axes, log, key, color=colour, linestyle="--" if held_out else "-", label=label)
        axes.set(xlabel="epoch", title=title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[1].set_ylim(bottom=0)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _draw(axes: Any, log: list[dict[str, Any]], key: str, **style: str) -> bool:
    """Draw one line, if the log has it."""
    points = [(entry["epoch"], entry[key]) for entry in log if entry.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, **style)
    return bool(points)
