"""Coarse labels: what each head makes of them, as tables.  python benchmarks/coarse_labels.py TABLE DATA [--data FOLDER]

    python benchmarks/coarse_labels.py heads made-up           # mini-batches: losses, kinds of heads, sharing
    python benchmarks/coarse_labels.py starts cub --data DIR   # the same from zeros and from random weights
    python benchmarks/coarse_labels.py decays made-up          # L-BFGS: decays and ways to average, by loss
    python benchmarks/coarse_labels.py clean cub --data DIR    # mini-batches on all labels, to the leaf
    python benchmarks/coarse_labels.py defaults embedded       # HACEClassifier at its defaults: coarse labels used and dropped
    python benchmarks/coarse_labels.py clean-defaults cub      # and on all labels, against the paper's loss

A training set has k samples per class with the label of the class; the others have that of its parent. DATA is "made-up" (40
classes in 8 groups, 64 unit-length features, 15% fine labels), "shop" (the same, but 12 of the 40 classes are alone in their
group, as avocado under avocado, and the others in groups of 2 to 7), "embedded" (hace.data.synthetic_features), "cub" or
"cifar" (frozen features of CUB-200, reduced to 256 dimensions by the principal axes of the training set, and CIFAR-100, from
the folders cub200_features_lite0, cub200_hierarchy and cifar100_features_lite0 of --data or HACE_TEST_DATA), or "own" (a
folder of `hace features`, reduced to 256 dimensions; --hierarchy gives another tree over its classes). --per-class
takes the first training samples of each class; the tables of L-BFGS (decays, defaults, clean-defaults) take 60 of CIFAR-100.

Mini-batch tables choose the rate on a tenth of the training samples, whose classes are taken as known for this purpose, for
every method alike; then the head is judged on the test set without a refit. Top-1 in %, means over seeds; in brackets the
95% interval of the difference from dropping the coarse labels (on clean labels: from the first row; of a random start: from
the same method started from zeros), by a bootstrap over seeds and test samples. One thread.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hace
from hace import FeatureStore, HACEClassifier, Hierarchy, build_loss
from hace.data import synthetic_features
from hace.linear import Optimization, Trial, fit_heads, head_scores

RATES = (2.0, 8.0, 32.0, 128.0)
DROP = "dropping"
FINE = {
    "made-up": (9,),
    "shop": (1, 3, 8),
    "embedded": (1, 3, 8),
    "cub": (1, 3, 8),
    "cifar": (2, 10),
    "own": (1, 3, 8),
}  # per class
EPOCHS = {"made-up": 30, "shop": 30, "embedded": 30, "cub": 30, "cifar": 10, "own": 30}

Right = np.ndarray  # (test samples,) bool


@dataclass(frozen=True, eq=False)
class Data:
    """Features and classes (positions in h.leaves), training and test."""

    h: Hierarchy
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a training set: node indices, and which of them are classes."""

    nodes: np.ndarray
    fine: np.ndarray


@dataclass(frozen=True)
class Method:
    """A loss with its parameters, and the labels it learns from."""

    name: str
    loss: str
    params: tuple[tuple[str, Any], ...] = ()
    drops: bool = False
    start: str = "zeros"

    def build(self, h: Hierarchy) -> Any:
        """The loss, for labels at any node."""
        return build_loss(self.loss, h, labels="nodes", **dict(self.params))


def paths(sharing: float, dilution: float | None = None) -> Method:
    name = f"path sums, s = {sharing:g}" + ("" if dilution is None else f", HACE d = {dilution:g}")
    given = {"sharing": sharing} | ({} if dilution is None else {"dilution": dilution})
    return Method(name, "cross_entropy_paths" if dilution is None else "hace_paths", tuple(given.items()))


HEADS = (
    Method(DROP, "cross_entropy", drops=True),
    Method("dropping, path sums, s = 0.5", "cross_entropy_paths", (("sharing", 0.5),), drops=True),
    Method("marginal cross-entropy", "cross_entropy"),
    Method("HCE", "hce"),
    Method("HACE over nodes, d = 0.5", "hace"),
    Method("HACE on leaves, d = 0.5", "hace_leaves"),
    Method("conditional softmax", "conditional_softmax"),
    *(paths(sharing) for sharing in (0.25, 0.5, 1.0)),
    *(paths(sharing, 0.5) for sharing in (0.25, 0.5, 1.0)),
)
_WITHOUT_PATHS = (DROP, "marginal cross-entropy", "HCE", "HACE over nodes, d = 0.5", "conditional softmax")
STARTED = (*(m for m in HEADS if m.name in _WITHOUT_PATHS), paths(0.5), paths(1.0), paths(1.0, 0.5))
CLEAN = (
    Method("cross-entropy", "cross_entropy"),
    Method("HACE over nodes, d = 0.5", "hace"),
    *(m for m in HEADS if m.loss.endswith("_paths") and not m.drops),
)


# Data


GROUPS = {"made-up": (5,) * 8, "shop": (*(1,) * 12, 2, 3, 4, 5, 7, 7)}


def made_up(sizes: tuple[int, ...], seed: int = 0) -> Data:
    """40 classes in groups: a group's mean, a class's step from it, noise; features of unit length."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    h = Hierarchy.from_paths([(f"g{group[i]}", f"c{i:02d}") for i in range(40)])
    means = rng.standard_normal((len(sizes), 64))[group] + 0.6 * rng.standard_normal((40, 64))

    def sample(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(40), count)
        return unit(means[y] + 2.0 * rng.standard_normal((len(y), 64))), y

    return Data(h, *sample(60), *sample(50))


def embedded() -> Data:
    data = synthetic_features()
    train, test = data["train"], data["test"]
    return Data(data.hierarchy, np.asarray(train.x), train.labels, np.asarray(test.x), test.labels)


def frozen(path: Path, h: Hierarchy, dims: int | None = None) -> Data:
    with np.load(path) as file:
        x, y, x_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    x, x_test = x.astype(np.float32), x_test.astype(np.float32)
    if dims is not None:
        x, x_test = reduced(x, x_test, dims)
    return Data(h, unit(x), y.astype(np.int64), unit(x_test), y_test.astype(np.int64))


def own(folder: Path, tree: Path | None) -> Data:
    """Features of `hace features`, with their hierarchy or another one over the same classes."""
    store = FeatureStore(folder)
    train, test = (store.load(split, normalize="none") for split in ("train", "test"))
    h = store.hierarchy if tree is None else hace.read_hierarchy(tree, leaves=store.hierarchy.leaves)
    x, x_test = reduced(np.asarray(train.x), np.asarray(test.x), min(256, train.x.shape[1]))
    return Data(h, unit(x), train.labels, unit(x_test), test.labels)


def reduced(x: np.ndarray, x_test: np.ndarray, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Both in the principal axes of the first."""
    mean = x.mean(axis=0)
    _, axes = np.linalg.eigh((x - mean).T @ (x - mean))
    return (x - mean) @ axes[:, -dims:], (x_test - mean) @ axes[:, -dims:]


def read(name: str, folder: Path | None, features: Path | None = None, tree: Path | None = None) -> Data:
    if name == "own":
        if features is None:
            raise SystemExit("own needs --features FOLDER, of `hace features`.")
        return own(features, tree)
    if name in GROUPS:
        return made_up(GROUPS[name])
    if name == "embedded":
        return embedded()
    if folder is None:
        raise SystemExit(f"{name} needs --data FOLDER, or HACE_TEST_DATA.")
    if name == "cifar":
        path = folder / "cifar100_features_lite0" / "cifar100_lite0_128px_pca256_fp16.npz"
        return frozen(path, hace.cifar100_hierarchy())
    h = hace.read_hierarchy(folder / "cub200_hierarchy" / "cub_wikispecies.parent-child.txt")
    return frozen(folder / "cub200_features_lite0" / "cub200_lite0_224px_fp16.npz", h, dims=256)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def coarsened(data: Data, fine_per_class: int, seed: int) -> Known:
    """The label of the class for some samples of each, that of its parent for the others."""
    rng = np.random.default_rng(seed)
    leaf = data.h.leaf_nodes
    parent = np.where(data.h.parent_nodes[leaf] >= 0, data.h.parent_nodes[leaf], leaf)
    fine = np.zeros(len(data.y), dtype=bool)
    for label in range(data.h.num_leaves):
        fine[rng.permutation(np.flatnonzero(data.y == label))[:fine_per_class]] = True
    fine |= parent[data.y] == leaf[data.y]  # a class without a parent is known
    return Known(np.where(fine, leaf[data.y], parent[data.y]), fine)


# Training


def in_batches(data: Data, known: Known, methods: list[Method], seed: int, epochs: int) -> dict[str, Right]:
    """Heads by SGD, each at the rate that is best on held-out samples."""
    held = np.random.default_rng([seed, 1]).permutation(len(data.y)) < len(data.y) // 10
    held &= ~known.fine | (known.fine.mean() > 0.5)  # few fine labels are all needed
    truth = (data.x[held], data.h.leaf_nodes[data.y[held]])
    right: dict[str, Right] = {}
    for method in methods:
        rows = ~held & (known.fine if method.drops else True)
        trials = [Trial(method.build(data.h), rate) for rate in RATES]
        heads = fit_heads(
            data.x[rows],
            known.nodes[rows],
            trials,
            Optimization(epochs=epochs, start=method.start),
            seed=seed,
            validation=truth,
        )
        best = max(
            range(len(RATES)), key=lambda i: -1.0 if heads[i].diverged else heads[i].history[-1]["val_top1"]
        )
        z = trials[best].loss.leaf_logits(head_scores(data.x_test, heads[best]))
        right[method.name] = z.argmax(dim=1).numpy() == data.y_test
        print(
            f"    {method.name:44} rate {RATES[best]:5g}  {100 * right[method.name].mean():.1f}", flush=True
        )
    return right


def converged(data: Data, known: Known, sample_weight: np.ndarray | None = None, **settings: Any) -> Right:
    """HACEClassifier with some settings."""
    ids = np.array(data.h.nodes)[known.nodes]
    clf = HACEClassifier(data.h, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf.fit(data.x, ids, sample_weight=sample_weight)
    return clf.predict(data.x_test) == np.array(data.h.leaves)[data.y_test]


# Tables


def decay_cases(known: Known) -> dict[str, dict[str, Any]]:
    """Losses by decay and by how samples are averaged."""
    share = float(known.fine.mean())
    balanced = np.where(
        known.fine, 0.5 / share, 0.5 / (1 - share)
    )  # fine and coarse labels count the same in all
    cases: dict[str, dict[str, Any]] = {}
    for decay in (1e-4, 1e-5, 1e-6):
        cases[f"{DROP}|{decay:g}"] = {"loss": "cross_entropy", "weight_decay": decay, "coarse_labels": "drop"}
        for method in DECAYED:
            base = {"loss": method.loss, "loss_params": dict(method.params), "coarse_labels": "plain"}
            cases[f"{method.name}|{decay:g}"] = base | {"weight_decay": decay}
            cases[f"{method.name}, decay x fine share|{decay:g}"] = base | {"weight_decay": decay * share}
            cases[f"{method.name}, balanced|{decay:g}"] = base | {
                "weight_decay": decay,
                "sample_weight": balanced,
            }
            cases[f"{method.name}, balanced, not one-sided|{decay:g}"] = base | {
                "weight_decay": decay,
                "coarse_labels": "balanced",
            }
    return cases


DEFAULTS: dict[str, dict[str, Any]] = {
    DROP: {"coarse_labels": "drop"},
    "the defaults": {},
    "loss='hace', coarse_labels='plain'": {"loss": "hace", "coarse_labels": "plain"},
}
ON_CLEAN: dict[str, dict[str, Any]] = {
    "loss='hace'": {"loss": "hace"},
    "loss='cross_entropy'": {"loss": "cross_entropy"},
    "the defaults": {},
    "weight_decay=2e-4": {"weight_decay": 2e-4},
}
DECAYED = (
    Method("marginal cross-entropy", "cross_entropy"),
    Method("HACE over nodes", "hace"),
    Method("conditional softmax", "conditional_softmax"),
    *(paths(sharing) for sharing in (0.5, 1.0)),
    *(paths(sharing, 0.5) for sharing in (0.5, 1.0)),
)


def one_seed(table: str, name: str, data: Data, known: Known, seed: int) -> dict[str, Right]:
    """The answers of every method of a table, right or wrong."""
    if table in ("heads", "clean"):
        return in_batches(data, known, list(HEADS if table == "heads" else CLEAN), seed, EPOCHS[name])
    if table == "starts":
        both = [
            replace(method, name=method.name if start == "zeros" else f"{method.name}, random", start=start)
            for method in STARTED
            for start in ("zeros", "random")
        ]
        return in_batches(data, known, both, seed, EPOCHS[name])
    cases = decay_cases(known) if table == "decays" else dict(DEFAULTS if table == "defaults" else ON_CLEAN)
    right = {}
    for case, settings in cases.items():
        began = time.process_time()
        right[case] = converged(data, known, **settings)
        seconds = time.process_time() - began
        print(f"    {case:60} {100 * right[case].mean():.1f}  ({seconds:.1f} s)", flush=True)
    return right


def interval(first: list[Right], second: list[Right]) -> tuple[float, float]:
    """95% of the mean difference in points, over seeds and test samples drawn again."""
    difference = np.stack(first).astype(np.float32) - np.stack(second)
    rng = np.random.default_rng(0)
    seeds, samples = difference.shape
    means = [
        difference[rng.integers(seeds, size=seeds)][:, rng.integers(samples, size=samples)].mean()
        for _ in range(500)
    ]
    low, high = np.percentile(means, (2.5, 97.5))
    return 100 * float(low), 100 * float(high)


def show(title: str, right: dict[str, list[Right]]) -> None:
    """A table in Markdown."""
    first = next(iter(right))
    print(f"\n{title}\n\n| method | top-1 | difference |\n| --- | --- | --- |")
    for method, runs in right.items():
        against = first
        if "|" in method:
            against = f"{DROP}|{method.split('|')[1]}"
        elif method.endswith(", random"):
            against = method.removesuffix(", random")
        low, high = interval(runs, right[against])
        mean = 100 * float(np.mean(runs))
        gap = mean - 100 * float(np.mean(right[against]))
        difference = "" if method == against else f"{gap:+.1f} [{low:+.1f}, {high:+.1f}]"
        print(f"| {method.replace('|', ', decay ')} | {mean:.1f} | {difference} |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("heads", "starts", "decays", "clean", "defaults", "clean-defaults"))
    parser.add_argument("name", metavar="DATA", choices=tuple(FINE))
    parser.add_argument("--data", type=Path, default=os.environ.get("HACE_TEST_DATA"))
    parser.add_argument("--features", type=Path, help="own: a folder of `hace features`")
    parser.add_argument("--hierarchy", type=Path, help="own: another hierarchy over the same classes")
    parser.add_argument("--fine", type=int, nargs="+", help="fine labels per class")
    parser.add_argument("--per-class", type=int, metavar="N", help="training samples per class")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = read(args.name, args.data and Path(args.data), args.features, args.hierarchy)
    per_class = args.per_class
    if per_class is None and args.name == "cifar" and args.table in ("decays", "defaults", "clean-defaults"):
        per_class = 60
    if per_class is not None:
        rows = np.concatenate(
            [np.flatnonzero(data.y == label)[:per_class] for label in range(data.h.num_leaves)]
        )
        data = replace(data, x=data.x[rows], y=data.y[rows])
    counts = args.fine or FINE[args.name]
    for count in (len(data.y),) if args.table.startswith("clean") else counts:
        right: dict[str, list[Right]] = {}
        for seed in range(args.seeds):
            print(f"  {args.name}, {count} fine labels per class, seed {seed}", flush=True)
            for name, answers in one_seed(
                args.table, args.name, data, coarsened(data, count, seed), seed
            ).items():
                right.setdefault(name, []).append(answers)
        known = "all labels fine" if args.table.startswith("clean") else f"{count} fine labels per class"
        show(f"{args.table}: {args.name}, {known}, {args.seeds} seeds", right)


if __name__ == "__main__":
    main()
