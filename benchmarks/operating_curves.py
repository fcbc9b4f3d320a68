"""The operating curve of the most informative answer, beside that of the hiercls code, on the same scores.

    git clone https://github.com/jvlmdr/hiercls
    python benchmarks/operating_curves.py --hiercls hiercls --data FOLDER --cache FOLDER

hiercls (Valmadre 2022) answers with the most informative node whose probability is above a threshold, and its curve has a
point for every score. Here that is ``operating_curve(..., constrained=False)``. Scores: the heads of
benchmarks/guarantees.py (CUB-200 and CIFAR-100, cross-entropy and HACE; --cache keeps them), and drawn ones on hiercls' own
tree of ImageNet-1k: a leaf's logit is the sum of normal draws along its path, deviation 1, with 2 more for the truth and each
node above it. Of each, 2,000 samples, because the other code takes them one at a time.

"area": trapezoids over all points, of both codes. "apart": the largest difference of two points at one score. "grid": the same
area from 101 thresholds. "walk down": the default rule here. At t = 0: the share of true answers and the number of distinct
ones, of the most informative node that passes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from guarantees import SIMULATED, trained
from torch import Tensor

from hace import Hierarchy, predict
from hace.decisions.scores import Scores
from hace.metrics.curves import THRESHOLDS, OperatingCurve, operating_area, operating_curve

SAMPLES, BOOST = 2000, 2.0


def heads(options: argparse.Namespace) -> Iterator[tuple[str, Hierarchy, str, Tensor, np.ndarray]]:
    """Name, hierarchy, outputs, scores and labels."""
    yield "ImageNet-1k, drawn", *drawn(options.hiercls / "resources/hierarchy/imagenet_fiveai.csv")
    if options.data is not None:
        for head in trained(options.data, options.cache, SIMULATED):
            rows = np.random.default_rng(0).permutation(len(head.labels))[:SAMPLES]
            yield head.name, head.hierarchy, head.outputs, head.scores[rows], head.labels[rows]


def drawn(path: Path) -> tuple[Hierarchy, str, Tensor, np.ndarray]:
    lines = [line.split(",") for line in path.read_text().split()]
    h = Hierarchy.from_edges([(parent, child) for parent, child in lines])
    rng = np.random.default_rng(0)
    labels = rng.integers(0, h.num_leaves, SAMPLES)
    values = rng.standard_normal((SAMPLES, h.num_nodes))
    for row, label in enumerate(labels.tolist()):
        values[row, [h.index(v) for v in h.path(h.leaves[label])]] += BOOST
    for parent, child in h.edges.tolist():  # parents before children
        values[:, child] += values[:, parent]
    return h, "leaves", torch.from_numpy(values[:, h.leaf_nodes]), labels


def other_curve(
    code: dict[str, ModuleType], h: Hierarchy, q: np.ndarray, truth: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, specificity and precision at each, by the other code."""
    tree = code["hier"].Hierarchy(h.parent_nodes)
    information = -np.log2(code["hier"].uniform_leaf(tree))
    correct, allowed = code["metrics"].IsCorrect(tree), tree.num_children() != 1
    scores, true, specific = [], [], []
    for row, y in zip(q, truth, strict=True):
        answers = code["infer"].pareto_optimal_predictions(information, row, condition=allowed)
        scores.append(row[answers])
        true.append(correct(y, answers))
        specific.append(information[answers])
    limits, totals = code["metrics"].operating_curve(scores, {"true": true, "specific": specific})
    return (
        np.append(1.0, limits),
        totals["specific"] / len(q) / np.log2(h.num_leaves),
        totals["true"] / len(q),
    )


def report(
    code: dict[str, ModuleType], name: str, h: Hierarchy, outputs: str, z: Tensor, y: np.ndarray
) -> None:
    """One line of the table."""
    q = Scores(z.double(), h, outputs=outputs).log_q()
    if h.rooted:
        q[:, 0] = 0.0  # without rounding: hiercls begins with the greatest score
    else:
        assert h.with_root().nodes[1:] == h.nodes
        h, q = h.with_root(), torch.nn.functional.pad(q, (1, 0))
    form = {"kind": "node_log_probs"}
    ours = operating_curve(q, y, h, constrained=False, **form)
    grid = operating_curve(q, y, h, constrained=False, thresholds=THRESHOLDS, **form)
    walk = operating_curve(q, y, h, **form)
    theirs = other_curve(code, h, q.exp().numpy(), h.leaf_nodes[y])
    area = float(operating_area(theirs[1][None], theirs[2][None])[0])
    at_zero = predict(q, h, "threshold", threshold=0.0, constrained=False, **form)
    print(
        f"| {name} | {area:.4f} | {ours.area:.4f} | {apart(theirs, ours):.1e} | {grid.area:.4f} | {walk.area:.4f} "
        f"| {100 * ours.precision[0]:.1f}% | {len(set(at_zero.ids)):,} |",
        flush=True,
    )


def apart(theirs: tuple[np.ndarray, np.ndarray, np.ndarray], ours: OperatingCurve) -> float:
    """How far the points of two curves are apart at the scores of the first, up to rounding of the scores."""
    limits, specificity, precision = (part[1:] for part in theirs)
    place = np.searchsorted(ours.thresholds, limits * (1 - 1e-12))
    gaps = np.abs(specificity - ours.specificity[place]) + np.abs(precision - ours.precision[place])
    return float(gaps.max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hiercls", type=Path, required=True, help="a clone of the hiercls repository")
    parser.add_argument("--data", type=Path, default=os.environ.get("HACE_TEST_DATA"), help="feature files")
    parser.add_argument("--cache", type=Path, help="a folder for the scores of trained heads")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(options.hiercls))
    code = {name: importlib.import_module(name) for name in ("hier", "infer", "metrics")}
    print("| scores | hiercls, area | here, area | apart | grid | walk down | true at t = 0 | distinct |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for head in heads(options):
        report(code, *head)


if __name__ == "__main__":
    main()
