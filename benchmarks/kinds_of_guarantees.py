"""Guarantees in known groups, within classes, of a distance and of sets of nodes, on samples of the same source.

    python evidence/keep.py guarantees/kinds benchmarks/kinds_of_guarantees.py     # keeps the table; minutes on one core

Eight classes in three groups, scores that are three times too sure, three sites of which one is hard and two classes that are
hard. Every calibration draws 300 samples independently from a population of 3,000, which then judges it: that is the risk a
guarantee is about, without the luck of a test set. "lost" is the mean loss over calibrations, with its standard error; where a
guarantee is in each of several groups, that of the group with the most. "broken" is the share of calibrations whose threshold
loses more than is guaranteed: with a confidence of 0.8, 20% may. Without one there is no limit on it, only one on the mean.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from hace import Hierarchy, guaranteed_threshold
from hace.decisions import GuaranteedThreshold
from hace.metrics.guarantee_outcome import losses_of

H = Hierarchy.from_paths(
    [("a", "1"), ("a", "2"), ("a", "3"), ("b", "4"), ("b", "5"), ("c", "6"), ("c", "7"), ("c", "8")]
)
SITES = 3
SAMPLES, POPULATION = 300, 3000
CASES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("in each of three sites, 80%", {"accuracy": 0.8, "by": "site"}, 0.2),
    ("in each of three sites, 80%", {"accuracy": 0.8, "by": "site", "confidence": 0.8}, 0.2),
    ("under each top node, 80%", {"accuracy": 0.8, "by": "top"}, 0.2),
    ("within each class, 80%", {"accuracy": 0.8, "by": "class"}, 0.2),
    ("within each class, 80%", {"accuracy": 0.8, "by": "class", "confidence": 0.8}, 0.2),
    ("a mean distance of 0.5", {"distance": "edges", "at_most": 0.5}, 0.5),
    ("a mean distance of 0.5", {"distance": "edges", "at_most": 0.5, "confidence": 0.8}, 0.5),
    ("one of three nodes, 90%", {"accuracy": 0.9, "rule": "set", "nodes": 3}, 0.1),
    ("one of three nodes, 90%", {"accuracy": 0.9, "rule": "set", "nodes": 3, "confidence": 0.8}, 0.1),
    (
        "one of three nodes, 90% of answers",
        {"accuracy": 0.9, "rule": "set", "nodes": 3, "of": "answers", "confidence": 0.8},
        0.1,
    ),
)


def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and sites."""
    y = rng.integers(8, size=number)
    site = rng.integers(SITES, size=number)
    hard = np.where(y % 4 == 0, 0.35, 0.1) + np.where(site == 0, 0.2, 0.0)
    seen = np.where(rng.random(number) < hard, rng.integers(8, size=number), y)
    z = 1.2 * rng.normal(size=(number, 8))
    z[np.arange(number), seen] += 2.5 + 1.5 * rng.normal(size=number)
    return 3 * z, y, site


def groups_of(guarantee: GuaranteedThreshold, z: np.ndarray, y: np.ndarray, site: np.ndarray) -> np.ndarray:
    """(S,) the group in which each sample's loss counts."""
    if guarantee.groups == "given":
        return site
    if guarantee.groups == "class":
        return y
    if guarantee.groups == "top":  # the child of the root with the most mass
        p = np.exp(z - z.max(axis=1, keepdims=True))
        tops = H.level_nodes(1)[H.leaf_nodes]
        return np.stack([p[:, tops == top].sum(axis=1) for top in np.unique(tops)], axis=1).argmax(axis=1)
    return np.zeros(len(y), dtype=int)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=300)
    repetitions = parser.parse_args().repetitions
    print("| guarantee | holds | allowed | lost | error | broken | answered |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for title, options, allowed in CASES:
        rng = np.random.default_rng(len(title))
        z, y, site = draw(rng, POPULATION)
        lost, answered = [], []
        for _ in range(repetitions):
            drawn = rng.integers(POPULATION, size=SAMPLES)
            by = site[drawn] if options.get("by") == "site" else options.get("by")
            sure = guaranteed_threshold(z[drawn], y[drawn], H, **{**options, "by": by})
            nodes = sure.predict(z, H, by=site if sure.groups == "given" else None).nodes.numpy()
            losses, counted = losses_of(sure, H, nodes, H.leaf_nodes[y])
            place = groups_of(sure, z, y, site)
            number = np.bincount(place, weights=counted)
            lost.append(
                np.divide(np.bincount(place, losses), number, out=np.zeros(len(number)), where=number > 0)
            )
            answered.append((np.append(H.depths, 0)[nodes].reshape(POPULATION, -1)[:, 0] > 0).mean())
        each = np.array(lost)  # (repetitions, groups)
        most = each.mean(axis=0).argmax()
        error = each[:, most].std() / np.sqrt(repetitions)
        sure_of = options.get("confidence")
        holds = "on average" if sure_of is None else f"with probability {sure_of:g}"
        broken = "" if sure_of is None else f"{(each > allowed).mean(axis=0).max():.1%}"
        figures = f"{each[:, most].mean():.3f} | {error:.3f} | {broken} | {np.mean(answered):.1%}"
        print(f"| {title} | {holds} | {allowed:g} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
