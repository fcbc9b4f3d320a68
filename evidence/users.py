"""What users would pick instead: python evidence/users.py NAME FEATURES HIERARCHY --labels all|coarse --keep FOLDER

HACEClassifier beside scikit-learn's LogisticRegression, hiclass' three kinds and one LogisticRegression per level, on frozen
features scaled to length 1. With `coarse`, 80% of the training labels of each class are those of its parent: HACEClassifier,
hiclass and the classifier per level use them; LogisticRegression trains on the others. Every method chooses its decay among
four by three-fold cross-validation on the labels it has, and is fitted again on all of them. One thread, seconds of the
processor; memory is the peak of the process, which does one method only. One row of FOLDER/NAME-LABELS.csv per method; rows
that are there are not made again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # NumPy and PyTorch read it when they are imported

import argparse
import csv
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from hace import HACEClassifier, Hierarchy, evaluate
from hace.hierarchy.derived import is_above
from hace.lab.report.conformal import SURE_DETAIL, confidence_columns
from hace.lab.runs.config import DataConfig, LabelsConfig
from hace.lab.runs.samples import data_of, known_labels
from hace.linear.features import unit_rows

DECAYS = (1e-7, 1e-6, 1e-5, 1e-4)  # per sample; LogisticRegression's C is 1 / (decay x samples)
FOLDS = 3
METHODS = ("HACEClassifier", "LogisticRegression", "hiclass, per parent node", "hiclass, per level", "hiclass, per node",
           "LogisticRegression per level")  # fmt: skip
COLUMNS = ("method", "top-1", "severity", "hF1", "detail at 95%", "decay", "fit, s", "memory, MB", "samples")


def main() -> None:
    """Every method that is missing, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("features")
    parser.add_argument("hierarchy")
    parser.add_argument("--labels", choices=("all", "coarse"), required=True)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--method", choices=METHODS, help="this one, in this process")
    args = parser.parse_args()
    if args.method is not None:
        return print(*compare(args).values(), sep="\t")
    args.keep.mkdir(parents=True, exist_ok=True)
    path = args.keep / f"{args.name}-{args.labels}.csv"
    if not path.exists():
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
    done = {row["method"] for row in csv.DictReader(path.open(encoding="utf-8", newline=""))}
    for method in METHODS:
        if method not in done:
            made = subprocess.run(
                [sys.executable, *sys.argv, "--method", method], stdout=subprocess.PIPE, text=True
            )
            values = made.stdout.strip().split("\t") if made.returncode == 0 else [method, "failed"]
            with path.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(values)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """The row of one method."""
    warnings.simplefilter("ignore")
    data = data_of(DataConfig("features", args.features, args.hierarchy))
    h = data.hierarchy
    splits = [data[split] for split in ("train", "val") if split in data.splits]
    x, true = unit_rows(np.concatenate([s.x for s in splits])), np.concatenate([s.nodes for s in splits])
    known = true if args.labels == "all" else known_labels(true, h, LabelsConfig(0.8), seed=0)
    if args.method == "LogisticRegression":
        fine = h.labels[known] >= 0
        x, known = x[fine], known[fine]
    fold = np.random.default_rng(0).permutation(len(x)) % FOLDS
    right = {}
    for decay in DECAYS:
        agrees = []
        for k in range(FOLDS):
            model = make(args.method, h, decay, int((fold != k).sum()))
            model.fit(x[fold != k], known[fold != k])
            agrees.append(is_above(h, known[fold == k], h.leaf_nodes[model.labels(x[fold == k])]).mean())
        right[decay] = np.mean(agrees)
    best = max(right, key=lambda decay: right[decay])
    model = make(args.method, h, best, len(x))
    began = time.process_time()
    model.fit(x, known)
    seconds = time.process_time() - began
    test = data["test"]
    result = measured(model, unit_rows(test.x), test.labels, h)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"method": args.method, **result, "decay": best, "fit, s": f"{seconds:.1f}", "memory, MB": f"{memory:.0f}",
            "samples": len(x)}  # fmt: skip


def measured(model: Any, x: np.ndarray, truth: np.ndarray, h: Hierarchy) -> dict[str, str]:
    """The metrics of a fitted model; how specific sure answers are where it has probabilities."""
    scores = model.scores(x)
    answers = scores is None
    if scores is None:  # a one-hot row for each answer
        scores = np.full((len(x), h.num_leaves), -50.0)
        scores[np.arange(len(x)), model.labels(x)] = 0.0
    report = evaluate(scores, truth, h, outputs="leaves")
    values = report.values
    detail = "" if answers else f"{100 * sure_detail(report, h):.2f}"
    return {"top-1": f"{100 * values['leaves', 'top-1']:.2f}", "severity": f"{values['leaves', 'severity']:.3f}",
            "hF1": f"{100 * values['ancestors and information', 'hF1 (micro)']:.2f}", "detail at 95%": detail}  # fmt: skip


def sure_detail(report: Any, h: Hierarchy) -> float:
    """How specific answers stay when at most 5% may be wrong; the threshold of each half of the samples is the other's."""
    s = report.samples
    run = {"answer": s.answers, "truth": s.truth, "path_confidence": s.ladders[0]}
    return float(confidence_columns(run, h)[SURE_DETAIL[1]][0])


class Ours:
    """HACEClassifier on node indices."""

    def __init__(self, h: Hierarchy, decay: float) -> None:
        self.h, self.model = h, HACEClassifier(h, weight_decay=decay)

    def fit(self, x: np.ndarray, nodes: np.ndarray) -> None:
        """Fit on node indices."""
        self.model.fit(x, np.array(self.h.nodes)[nodes])

    def scores(self, x: np.ndarray) -> np.ndarray:
        """(S, n) log-probabilities in label order."""
        order = {str(leaf): place for place, leaf in enumerate(self.model.classes_)}
        return self.model.predict_log_proba(x)[:, [order[str(leaf)] for leaf in self.h.leaves]]

    def labels(self, x: np.ndarray) -> np.ndarray:
        """The most probable class."""
        return self.scores(x).argmax(1)


class PerLevel:
    """One LogisticRegression for the classes, or one for each level, whose probabilities are multiplied along the path."""

    def __init__(self, h: Hierarchy, base: Any, levels: bool) -> None:
        self.h, self.base = h, base
        paths = [[h.index(node) for node in reversed(h.path(leaf))] for leaf in h.leaves]
        depth = max(map(len, paths)) if levels else 1
        # (n, L): the ancestor of each class at each level; a short path repeats its class. The last column is the class.
        self.path = np.array(
            [[*path[:depth], *[path[-1]] * (depth - len(path))] if levels else path[-1:] for path in paths]
        )
        self.path[:, -1] = h.leaf_nodes
        self.path = self.path[:, [len(set(level)) > 1 for level in self.path.T]]  # a root says nothing

    def fit(self, x: np.ndarray, nodes: np.ndarray) -> None:
        """Fit on node indices; a label above a level says nothing there."""
        from sklearn.base import clone

        self.models = []
        for level in range(self.path.shape[1]):
            target = np.full(len(nodes), -1)
            for node in np.unique(self.path[:, level]):
                target[is_above(self.h, np.full(len(nodes), node), nodes)] = (
                    node  # what is above its level stays unknown
                )
            self.models.append(clone(self.base).fit(x[target >= 0], target[target >= 0]))

    def scores(self, x: np.ndarray) -> np.ndarray:
        """(S, n) sums of the levels' log-probabilities."""
        total = np.zeros((len(x), self.h.num_leaves))
        for level, model in enumerate(self.models):
            place = {node: column for column, node in enumerate(model.classes_)}
            logs = np.full((len(x), self.h.num_nodes), -50.0)
            logs[:, list(place)] = model.predict_log_proba(x)
            total += logs[:, self.path[:, level]]
        return total

    def labels(self, x: np.ndarray) -> np.ndarray:
        """The most probable class."""
        return self.scores(x).argmax(1)


class HiClass:
    """A classifier of hiclass; it answers with paths, and coarse labels are shorter paths."""

    def __init__(self, h: Hierarchy, kind: str, base: Any) -> None:
        import hiclass

        names = {"parent node": "LocalClassifierPerParentNode", "level": "LocalClassifierPerLevel",
                 "node": "LocalClassifierPerNode"}  # fmt: skip
        self.h, self.model = h, getattr(hiclass, names[kind])(local_classifier=base)
        deepest = max(len(h.path(node)) for node in h.nodes)
        self.rows = [[*reversed(h.path(node)), *[""] * (deepest - len(h.path(node)))] for node in h.nodes]

    def fit(self, x: np.ndarray, nodes: np.ndarray) -> None:
        """Fit on node indices."""
        self.model.fit(x, np.array([self.rows[node] for node in nodes], dtype=str))

    def scores(self, x: np.ndarray) -> None:
        """It has answers, no probabilities."""

    def labels(self, x: np.ndarray) -> np.ndarray:
        """Of an answer above the leaves, the first class below it."""
        ends = [self.h.index([node for node in row if node][-1]) for row in self.model.predict(x)]
        first = [label if (label := self.h.labels[end]) >= 0 else self._below(end) for end in ends]
        return np.array(first)

    def _below(self, node: int) -> int:
        return int(np.flatnonzero(is_above(self.h, np.full(self.h.num_leaves, node), self.h.leaf_nodes))[0])


def make(method: str, h: Hierarchy, decay: float, samples: int) -> Any:
    """A method with a decay."""
    from sklearn.linear_model import LogisticRegression

    base = LogisticRegression(C=1 / (decay * samples), max_iter=500)
    if method == "HACEClassifier":
        return Ours(h, decay)
    if method.startswith("hiclass"):
        return HiClass(h, method.removeprefix("hiclass, per "), base)
    return PerLevel(h, base, levels=method.endswith("level"))


if __name__ == "__main__":
    main()
