"""The folder that `hace evaluate --out` writes: a page, JSON, tables and pictures, all of them or none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hace.errors import ConfigError
from hace.files.documents import write_table
from hace.files.writing import atomic_folder

if TYPE_CHECKING:
    from hace.metrics.comparison import Difference
    from hace.metrics.evaluation import Evaluation
    from hace.metrics.sample_statistics import MetricKey

EVALUATION_PAGE = "report.html"


def check_out(out: str) -> None:
    """Refuse an --out that cannot be written, before any work is done.

    Raises:
        ConfigError: It is a file, is below a file or in a read-only folder, or pictures cannot be drawn.
    """
    there = Path(out).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent  # missing folders are created later
    if not there.is_dir():
        words = "it is a file" if there == Path(out).absolute() else f"{there} is a file"
        raise ConfigError(f"--out must be a folder. Got {out!r}: {words}. Name another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--out must be a folder that can be written to. Got {out!r}: {there} may not be.")
    if find_spec("matplotlib") is None:
        raise ConfigError('--out draws with matplotlib. Install it with: pip install "hace[report]".')


def write_results(
    folder: Path,
    models: Sequence[tuple[str, Evaluation]],
    document: str,
    level: int,
    *,
    facts: Sequence[tuple[str, str]] = (),
    differences: Mapping[MetricKey, Difference] | None = None,
    raw: bool = False,
) -> None:
    """Write the page, the report as JSON, the tables and the pictures: all of them, or none.

    Where only the metrics of the leaves were computed, there is neither page nor picture.

    Args:
        folder: Where to.
        models: Name and metrics of a model, and of the one it is compared with.
        document: The report as JSON.
        level: The level of classes.csv.
        facts: What the page says of the data: term and text.
        differences: Between the two models.
        raw: Whether text in tables is written unchanged, formulas included.
    """
    from hace.lab.report.evaluation_page import evaluation_page
    from hace.metrics.plots import draw_evaluation, evaluation_figures

    name, report = models[0]
    other_name, other = models[1] if len(models) > 1 else ("", None)
    leaves = report.samples.only_leaves
    figures = {} if leaves else evaluation_figures(report, other, (name, other_name))
    with atomic_folder(folder) as temporary:
        _write_tables(temporary, report, document, level, raw)
        if leaves:
            return
        draw_evaluation(figures, temporary)
        page = evaluation_page(models, figures, facts, differences)
        (temporary / EVALUATION_PAGE).write_text(page, encoding="utf-8", newline="\n")


def _write_tables(folder: Path, report: Evaluation, document: str, level: int, raw: bool) -> None:
    tables = {"decisions.csv": decision_columns(report), "mistakes.csv": report.confusion.pair_columns()}
    if report.hierarchy.is_tree:
        tables["classes.csv"] = report.class_table(level).columns()
    (folder / "report.json").write_text(document + "\n", encoding="utf-8")
    for name, table in tables.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            write_table(file, table, raw=raw)


def decision_columns(report: Evaluation) -> dict[str, list]:
    """One row per sample: truth, best leaf, and the answers of the other rules."""
    import torch

    from hace.decisions import Decisions

    h, s = report.hierarchy, report.samples
    table = {
        "sample": list(range(len(s))),
        "truth": [h.nodes[v] for v in s.truth.tolist()],
        "truth_name": [h.names[v] for v in s.truth.tolist()],
        "leaf": [h.nodes[v] for v in s.answers.tolist()],
        "leaf_name": [h.names[v] for v in s.answers.tolist()],
        "leaf_probability": s.confidence.tolist(),
        "distance": s.distance.tolist(),
    }
    if s.only_leaves:
        del table["leaf_probability"]
    for title, (nodes, probabilities) in s.decided.items():
        decided = Decisions(h, torch.from_numpy(nodes), torch.from_numpy(probabilities))
        columns = decided.columns()
        for name in ("id", "name", "level", "probability", "path"):
            table[f"{title}: {name}"] = columns[name]
    return table
