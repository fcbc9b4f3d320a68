"""HACEClassifier beside scikit-learn's LogisticRegression: python benchmarks/estimator.py [--data FOLDER] [--quick]

    python benchmarks/estimator.py --quick          # the embedded data alone, some seconds
    python benchmarks/estimator.py                  # and made-up data of 4,000 x 256 features and 100 or 200 classes
    python benchmarks/estimator.py --data DIR       # and frozen features of CUB-200 and CIFAR-100 (60 samples per class)

Both fit by L-BFGS with the same penalty (C = 1 / (weight_decay x samples)) and the same tolerance, at the estimator's
defaults. "flat" has no hierarchy and is the same model as LogisticRegression. "paths" is the default with a hierarchy.
"sgd" trains it in mini-batches. Every round fits each case once, so that other work on the machine falls
on all alike; a ratio is that of the medians, in seconds of the processor. "bar" is what the ratio must stay below. One thread.
The data are those of benchmarks/coarse_labels.py, all labels fine; CUB-200 with its 1,280 features.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # NumPy and PyTorch read it when they are imported

import argparse
import statistics
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from hace import HACEClassifier, Hierarchy, read_hierarchy

sys.path.insert(0, str(Path(__file__).parent))
from coarse_labels import Data, frozen, read, unit

BARS = {"flat": 1.0, "paths": 1.5}  # on CUB-200
DECAY, TOLERANCE = 1e-4, 1e-5  # the estimator's defaults


def made_up(classes: int, samples: int = 4000, dims: int = 256, seed: int = 0) -> Data:
    """A tree of three levels above the classes, a step for each level, noise; features of unit length."""
    rng = np.random.default_rng(seed)
    groups = [np.arange(classes) // size for size in (40, 10, 2)]
    h = Hierarchy.from_paths(
        [
            (*(f"{level}{g[i]}" for level, g in zip("ofg", groups, strict=True)), f"c{i:03d}")
            for i in range(classes)
        ]
    )
    steps = [0.3 * rng.standard_normal((classes, dims))[g] for g in (*groups, np.arange(classes))]
    means = np.sum(steps, axis=0)

    def sample(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % classes
        return unit(means[y] + rng.standard_normal((count, dims))), y

    return Data(h, *sample(samples), *sample(samples))


def cases(data: Data, batches: bool) -> dict[str, Any]:
    strength = 1 / (DECAY * len(data.y))
    result: dict[str, Any] = {
        "LogisticRegression": LogisticRegression(C=strength, tol=TOLERANCE, max_iter=1000),
        "flat": HACEClassifier(),
        "paths": HACEClassifier(data.h),
    }
    return result | ({"sgd": HACEClassifier(data.h, optimizer="sgd", random_state=0)} if batches else {})


def compare(name: str, data: Data, dtype: type, rounds: int, batches: bool) -> None:
    """One table: each case with its seconds, its ratio to the first, its iterations and its accuracy."""
    y = np.array(data.h.leaves)[data.y]
    truth = np.array(data.h.leaves)[data.y_test]
    x, x_test = data.x.astype(dtype), data.x_test.astype(dtype)
    seconds: dict[str, list[float]] = {}
    fitted = cases(data, batches)
    for clf in fitted.values():  # what is done once does not count
        clf.fit(x[:500:5], y[:500:5])
    for _ in range(rounds):
        for case, clf in fitted.items():
            began = time.process_time()
            clf.fit(x, y)
            seconds.setdefault(case, []).append(time.process_time() - began)
    shape = f"{x.shape[0]:,} x {x.shape[1]} {np.dtype(dtype).name}, {data.h.num_leaves} classes, {data.h.num_nodes} nodes"
    print(
        f"\n{name}: {shape}\n\n| fit | seconds | ratio | bar | iterations | top-1 |\n| --- | --- | --- | --- | --- | --- |"
    )
    first = statistics.median(next(iter(seconds.values())))
    for case, clf in fitted.items():
        median = statistics.median(seconds[case])
        bar = BARS.get(case, "") if name == "CUB-200" else ""
        steps = int(np.max(clf.n_iter_))
        right = 100 * np.mean(clf.predict(x_test) == truth)
        print(f"| {case} | {median:.2f} | {median / first:.2f} | {bar} | {steps} | {right:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HACE_TEST_DATA"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    compare("embedded", read("embedded", None), np.float32, args.rounds, True)
    if args.quick:
        return
    compare("made up", made_up(100), np.float32, args.rounds, False)
    compare("made up", made_up(200), np.float32, args.rounds, False)
    compare("made up", made_up(200), np.float64, args.rounds, False)
    if args.data is None:
        return
    folder = Path(args.data)
    tree = read_hierarchy(folder / "cub200_hierarchy" / "cub_wikispecies.parent-child.txt")
    cub = frozen(folder / "cub200_features_lite0" / "cub200_lite0_224px_fp16.npz", tree)
    compare("CUB-200", cub, np.float32, args.rounds, True)
    cifar = read("cifar", folder)
    rows = np.concatenate([np.flatnonzero(cifar.y == label)[:60] for label in range(cifar.h.num_leaves)])
    compare("CIFAR-100", replace(cifar, x=cifar.x[rows], y=cifar.y[rows]), np.float32, args.rounds, True)


if __name__ == "__main__":
    main()
