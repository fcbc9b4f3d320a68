"""HACEClassifier beside hiclass on the same features: python benchmarks/peers.py [--data FOLDER]

    python benchmarks/peers.py               # made-up data: 4,000 samples of 256 features, 200 classes, three levels above
    python benchmarks/peers.py --data DIR    # and frozen features of CUB-200, reduced to 256 dimensions

hiclass fits scikit-learn's LogisticRegression per parent node, per level or per node; its class is the end of the path it
answers with. "flat" is one LogisticRegression over the classes. Every method chooses its penalty among five on a tenth of the
training samples and is fitted again on all of them. Seconds are of the processor, one thread, for that last fit and for
the answers on the test samples. docs/migration.md has the table.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # NumPy and PyTorch read it when they are imported

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hiclass import LocalClassifierPerLevel, LocalClassifierPerNode, LocalClassifierPerParentNode
from sklearn.linear_model import LogisticRegression

from hace import HACEClassifier, Hierarchy

sys.path.insert(0, str(Path(__file__).parent))
from coarse_labels import Data, read
from estimator import TOLERANCE, made_up

DECAYS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # per sample; LogisticRegression's C is 1 / (decay x samples)


class OnPaths:
    """A classifier of hiclass that takes and gives classes."""

    def __init__(self, h: Hierarchy, local: type, base: LogisticRegression) -> None:
        self.h, self.model = h, local(local_classifier=base)
        deepest = max(len(h.path(leaf)) for leaf in h.leaves)
        self.rows = {
            leaf: [*reversed(h.path(leaf)), *[""] * (deepest - len(h.path(leaf)))] for leaf in h.leaves
        }

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """Fit on classes."""
        self.model.fit(x, np.array([self.rows[leaf] for leaf in y]))

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The class at the end of each path."""
        return np.array([[node for node in row if node][-1] for row in self.model.predict(x)])


def makers(h: Hierarchy, samples: int) -> dict[str, Callable[[float], Any]]:
    def flat(decay: float) -> LogisticRegression:
        return LogisticRegression(C=1 / (decay * samples), tol=TOLERANCE, max_iter=1000)

    def local(kind: type) -> Callable[[float], OnPaths]:
        return lambda decay: OnPaths(h, kind, flat(decay))

    return {
        "flat": flat,
        "hiclass, per parent node": local(LocalClassifierPerParentNode),
        "hiclass, per level": local(LocalClassifierPerLevel),
        "hiclass, per node": local(LocalClassifierPerNode),
        "hace": lambda decay: HACEClassifier(h, weight_decay=decay),
    }


def compare(name: str, data: Data) -> None:
    """One table: a row per method."""
    h, leaves = data.h, np.array(data.h.leaves)
    y, truth = leaves[data.y], leaves[data.y_test]
    held = np.random.default_rng(0).permutation(len(y)) < len(y) // 10
    print(f"\n{name}: {data.x.shape[0]:,} x {data.x.shape[1]}, {h.num_leaves} classes, {h.num_nodes} nodes\n")
    print("| method | top-1 | fit, s | answers, s | decay |\n| --- | --- | --- | --- | --- |")
    for method, make in makers(h, len(y)).items():

        def fitted(decay: float, rows: np.ndarray, make: Callable[[float], Any] = make) -> Any:
            model = make(decay)
            model.fit(data.x[rows], y[rows])
            return model

        right = {decay: np.mean(fitted(decay, ~held).predict(data.x[held]) == y[held]) for decay in DECAYS}
        best = max(right, key=lambda decay: right[decay])
        began = time.process_time()
        model = fitted(best, np.ones(len(y), dtype=bool))
        done = time.process_time()
        answers = model.predict(data.x_test)
        spent = time.process_time() - done
        print(
            f"| {method} | {100 * np.mean(answers == truth):.1f} | {done - began:.1f} | {spent:.2f} | {best:g} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HACE_TEST_DATA"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    compare("made up", made_up(200))
    if args.data is not None:
        compare("CUB-200", read("cub", Path(args.data)))


if __name__ == "__main__":
    main()
