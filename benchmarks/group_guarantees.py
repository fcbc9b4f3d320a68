"""Whether guarantees about new groups hold, whatever the size of groups and however alike their samples are.

    python benchmarks/group_guarantees.py --repetitions 200 --out benchmarks/group_guarantees.csv     two minutes on one core

Each repetition calibrates on 40 groups and sees 40 new ones. A group has one of four classes and 1 to `size` samples; their
scores share a part of the variance, `alike`. `on average`: mean share of false answers in a new group, guaranteed at most 0.1.
`in most`: share of new groups in which at most 0.2 of the samples get a false answer, guaranteed at least 0.8. `as samples`: the
first if groups are ignored: right over samples, but not over groups.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from hace import Hierarchy, guaranteed_threshold
from hace.decisions import GuaranteedThreshold
from hace.hierarchy.derived import is_above

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])
GROUPS, COLUMNS = (
    40,
    ("size", "alike", "repetitions", "on average", "error", "in most", "error", "as samples"),
)


def draw(rng: np.random.Generator, size: int, alike: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and groups."""
    group = np.repeat(np.arange(GROUPS), rng.integers(1, size + 1, GROUPS))
    y = rng.integers(4, size=GROUPS)[group]
    shared = np.sqrt(alike) * rng.normal(size=(GROUPS, 4))[group]
    z = 2 * (shared + np.sqrt(1 - alike) * rng.normal(size=(len(y), 4)))
    z[np.arange(len(y)), y] += 2.5
    return z, y, group


def shares(found: GuaranteedThreshold, z: np.ndarray, y: np.ndarray, group: np.ndarray) -> np.ndarray:
    """(G,) the share of each group's samples with a false answer."""
    answers = found.predict(z, TREE).nodes.numpy()
    false = (np.append(TREE.depths, 0)[answers] > 0) & ~is_above(TREE, answers, TREE.leaf_nodes[y])
    return np.bincount(group, weights=false) / np.bincount(group)


def main() -> None:
    """Simulate and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    table = []
    for size in (1, 10, 100, 1000):
        for alike in (0.0, 0.5, 0.95):
            rng, each = np.random.default_rng([size, int(100 * alike)]), []
            repetitions = max(20, args.repetitions // (10 if size == 1000 else 1))
            for _ in range(repetitions):
                (z, y, group), new = draw(rng, size, alike), draw(rng, size, alike)
                mean = shares(guaranteed_threshold(z, y, TREE, 0.9, groups=group), *new).mean()
                most = shares(guaranteed_threshold(z, y, TREE, 0.8, groups=group, group_share=0.8), *new)
                alone = shares(guaranteed_threshold(z, y, TREE, 0.9), *new).mean() if len(y) > 8 else np.nan
                each.append((mean, (most <= 0.2).mean(), alone))
            found, error = np.mean(each, axis=0), np.std(each, axis=0) / np.sqrt(repetitions)
            pairs = [f"{found[0]:.3f}", f"{error[0]:.3f}", f"{found[1]:.3f}", f"{error[1]:.3f}"]
            table.append([size, alike, repetitions, *pairs, f"{found[2]:.3f}"])
            print(*table[-1], flush=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *table])


if __name__ == "__main__":
    main()
