"""How many labels `hace next` saves: replayed on labelled data against random choice.

    python evidence/keep.py next-labels/savings evidence/next_labels.py --data DATA

Every round trains a linear head on the samples labelled so far, evaluates it on the test samples and chooses the next ones. A
seed decides the first samples, which all methods share. The rule was chosen on the first two datasets; the others confirm it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hace import Hierarchy, read_hierarchy
from hace.decisions.next_samples import next_samples
from hace.linear import FittedHead, Optimization, Trial
from hace.linear.features import LabelledFeatures
from hace.linear.lbfgs import converged_head
from hace.losses.registry import build_loss

METHODS = ("random", "margin", "next")
DECAY = 1e-4  # of features with a mean squared distance of 1 from their mean
AXES = 192
OPTIONS = Optimization("lbfgs", tolerance=1e-3, max_iter=60)


class Source(NamedTuple):
    """A dataset to replay, and its steps."""

    arrays: str
    hierarchy: str
    budget: int
    rounds: int


CUB_TREE = "cub200_hierarchy/cub_balanced.parent-child.txt"
SOURCES = {
    "CUB-200": Source("cub200_features_lite0/cub200_lite0_224px_fp16.npz", CUB_TREE, 200, 10),
    "HWU64": Source("hwu64_minilm/hwu64_minilm_fp16.npz", "hwu64_minilm/hwu64_hierarchy.csv", 100, 10),
    "CUB-200, ResNet-50": Source("cub200_resnet50/cub200_resnet50_224px_pca512_fp16.npz", CUB_TREE, 200, 10),
    "CLINC150": Source(
        "clinc150_minilm/clinc150_minilm_fp16.npz", "clinc150_minilm/clinc150_hierarchy.csv", 150, 10
    ),
}


class Replayed(NamedTuple):
    """Samples whose labels are known, and given when they are asked for."""

    h: Hierarchy
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def replayed(data: Path, source: Source) -> Replayed:
    """The samples of a dataset, on their leading principal axes."""
    arrays = np.load(data / source.arrays)
    h = read_hierarchy(data / source.hierarchy, "edges" if source.hierarchy.endswith(".txt") else None)
    first = 1 if arrays["y_train"].dtype.kind in "iu" else None  # ids of CUB-200 count from 1
    label = {leaf: place for place, leaf in enumerate(h.leaves)}
    y, y_test = (
        np.array([label[str(v if first is None else int(v) + first)] for v in arrays[f"y_{part}"]])
        for part in ("train", "test")
    )
    x, x_test = (arrays[f"x_{part}"].astype(np.float64) for part in ("train", "test"))
    x, x_test = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, x_test))
    mean = x.mean(axis=0)
    axes = np.linalg.svd(x - mean, full_matrices=False)[2][:AXES]
    x, x_test = (x - mean) @ axes.T, (x_test - mean) @ axes.T
    scale = np.sqrt((x**2).sum(axis=1).mean())
    return Replayed(h, (x / scale).astype(np.float32), y, (x_test / scale).astype(np.float32), y_test)


def probabilities(head: FittedHead, x: np.ndarray) -> np.ndarray:
    """(M, n) of the leaves."""
    assert head.bias is not None
    return torch.softmax(torch.from_numpy(x) @ head.weight.T + head.bias, dim=1).double().numpy()


def choose(method: str, p: np.ndarray, budget: int, seed: int) -> np.ndarray:
    """The next samples of the pool."""
    if method == "random":
        return np.random.default_rng(seed).choice(len(p), budget, replace=False)
    if method == "margin":
        best = np.sort(p, axis=1)
        return np.argsort(best[:, -1] - best[:, -2], kind="stable")[:budget]
    return next_samples(p, budget, seed=seed).samples


def replay(samples: Replayed, source: Source, method: str, seed: int) -> list[tuple[int, float]]:
    """After each round the labels so far, and the accuracy on the test samples."""
    loss = build_loss("cross_entropy", samples.h)
    labelled = np.random.default_rng(seed).choice(len(samples.x), source.budget, replace=False)
    head, curve = None, []
    for number in range(source.rounds):
        rows = LabelledFeatures(samples.x[labelled], samples.y[labelled], loss)
        head = converged_head(rows, Trial(loss, weight_decay=DECAY), OPTIONS, head)
        right = probabilities(head, samples.x_test).argmax(axis=1) == samples.y_test
        curve.append((len(labelled), float(right.mean())))
        pool = np.setdiff1d(np.arange(len(samples.x)), labelled)
        chosen = choose(method, probabilities(head, samples.x[pool]), source.budget, 1000 * seed + number)
        labelled = np.concatenate([labelled, pool[chosen]])
    return curve


def needed(labels: np.ndarray, accuracy: np.ndarray, wanted: float) -> float:
    """The labels at which a curve first has an accuracy, between rounds by interpolation; nan if never."""
    above = np.flatnonzero(accuracy >= wanted)
    if not len(above):
        return float("nan")
    i = int(above[0])
    if i == 0:
        return float(labels[0])
    share = (wanted - accuracy[i - 1]) / (accuracy[i] - accuracy[i - 1])
    return float(labels[i - 1] + share * (labels[i] - labels[i - 1]))


def tables(
    name: str, curves: dict[str, np.ndarray]
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Every round of every method, and what the final accuracy of random choice costs; curves (seeds, rounds, 2)."""
    rounds, savings = [], []
    final = curves["random"][:, -1]
    for method, curve in curves.items():
        for labels, accuracy, spread in zip(
            curve[0, :, 0], curve[..., 1].mean(0), curve[..., 1].std(0, ddof=1), strict=True
        ):
            about = {"data": name, "method": method, "labels": int(labels)}
            rounds.append(
                about | {"accuracy": f"{100 * accuracy:.2f}", "sd over seeds": f"{100 * spread:.2f}"}
            )
        cost = [needed(c[:, 0], c[:, 1], wanted) for c, wanted in zip(curve, final[:, 1], strict=True)]
        ahead = curve[:, -1, 1] - final[:, 1]
        savings.append(
            {
                "data": name,
                "method": method,
                "accuracy": f"{100 * final[:, 1].mean():.2f}",
                "labels": round(float(np.mean(cost))),
                "labels of random": int(final[0, 0]),
                "ahead at as many labels": f"{100 * ahead.mean():.2f}",
                "seeds ahead": int((ahead > 0).sum()),
                "seeds": len(curve),
            }
        )
    return rounds, savings


def print_table(rows: list[dict[str, object]]) -> None:
    """A Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    print(*(f"| {' | '.join(map(str, line))} |" for line in lines), sep="\n", end="\n\n")


def main() -> None:
    """Replay and print two tables: what equal accuracy costs, and every round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    rounds: list[dict[str, object]] = []
    savings: list[dict[str, object]] = []
    for name, source in SOURCES.items():
        samples = replayed(asked.data, source)
        curves = {
            m: np.array([replay(samples, source, m, seed) for seed in range(asked.seeds)]) for m in METHODS
        }
        more = tables(name, curves)
        rounds += more[0]
        savings += more[1]
        print(name, file=sys.stderr)
    print_table(savings)
    print_table(rounds)


if __name__ == "__main__":
    main()
