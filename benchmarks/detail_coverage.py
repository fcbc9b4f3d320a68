"""How often the 95% intervals of the detail at a guarantee hold the truth, and what they say without the threshold's noise.

    python benchmarks/detail_coverage.py --out benchmarks/detail_coverage.csv

"Detail at 95%" answers each half of the test samples with the threshold that keeps 95% of the other half right. Two methods of
one law are simulated on a tree of 3 x 3 x 3 classes: a sample's difficulty and luck are partly its own, partly a method's,
partly a run's; a seed shifts a run's confidence. `value` is one method's detail, whose truth is its mean over all repetitions;
`difference` is that of two, whose truth is 0. `sd` is how much the figure really varies over repetitions, `stated` the mean
standard error of the interval, in points. `fixed` columns take the thresholds for given and vary the evaluated samples alone:
the error that a reader would compute from the answers. With groups, samples of one group are alike, and groups are drawn.

Bar: 93 to 97% covered.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from scipy.special import expit, ndtr

from hace import Hierarchy
from hace.hierarchy.distances import relations
from hace.lab.report.conformal import (
    GUARANTEE,
    AnswerLadder,
    detail_draws,
    detail_parts,
    sure_places,
)
from hace.metrics.intervals import Interval, interval, resampled_interval

COLUMNS = (
    "figure",
    "samples",
    "groups",
    "seeds",
    "repetitions",
    "sd",
    "stated",
    "covered",
    "fixed stated",
    "fixed covered",
)
CASES = ((500, 0, 1), (1000, 0, 3), (1000, 0, 5), (3000, 0, 5), (2000, 40, 5))  # samples, groups, seeds
TREE = Hierarchy.from_paths(
    [(f"a{i}", f"a{i}b{j}", f"a{i}b{j}c{k}") for i in range(3) for j in range(3) for k in range(3)]
)
WORTH = relations(TREE).specificity[
    [-1, *(TREE.index(name) for name in ("a0", "a0b0", "a0b0c0"))]
]  # of no answer, ..., a class


def method(
    rng: np.random.Generator, hard: np.ndarray, luck: np.ndarray, seeds: int, groups: np.ndarray | None
) -> list[AnswerLadder]:
    """The answers of a method's runs to samples of this difficulty and luck, which its runs share in part."""
    samples, result = len(hard), []
    own, ours = 0.5 * rng.standard_normal(samples), rng.standard_normal(samples)
    for _ in range(seeds):
        shift = (
            0.1 * rng.standard_normal() if seeds > 1 else 0.0
        )  # of one run, the interval is over samples alone
        mass = [expit(1.5 + hard + own + shift + 0.3 * rng.standard_normal(samples))]
        for _ in range(2):  # up the tree
            mass.append(mass[-1] + (1 - mass[-1]) * (0.3 + 0.6 * ndtr(hard)))
        drawn = ndtr(0.8 * luck + 0.5 * ours + np.sqrt(0.11) * rng.standard_normal(samples))
        masses = np.stack([np.ones(samples), *mass[::-1]], axis=1)
        true = np.concatenate([np.ones((samples, 1), dtype=bool), drawn[:, None] < masses[:, 1:]], axis=1)
        masses[:, 0] = np.inf  # no answer always passes
        result.append(AnswerLadder(TREE, np.zeros_like(masses, dtype=np.int64), masses, true, groups))
    return result


def figures(ladders: list[AnswerLadder]) -> tuple[np.ndarray, np.ndarray]:
    """(K, 1 + R) the detail of each run and of its draws; (K, S) the detail of each answer."""
    draws, answers = [], []
    for ladder in ladders:
        worth = np.broadcast_to(WORTH, ladder.reached.shape)
        said = WORTH[sure_places(ladder, (GUARANTEE,))[0]]
        parts = np.hstack([said.mean(), *detail_parts(ladder, worth, GUARANTEE)])
        draws.append(detail_draws(parts[None], ladder.groups)[0])
        answers.append(said)
    return np.stack(draws), np.stack(answers)


def case(samples: int, groups: int, seeds: int, repetitions: int) -> list[list[str]]:
    """The rows of one size of study."""
    rng = np.random.default_rng([samples, groups, seeds])
    place = np.sort(rng.integers(groups, size=samples)) if groups else None
    result: dict[str, list[tuple[Interval, Interval]]] = {"value": [], "difference": []}
    for _ in range(repetitions):
        hard, luck = rng.standard_normal((2, samples))
        if place is not None:  # half of the difficulty is the group's
            hard = np.sqrt(0.5) * (hard + rng.standard_normal(groups)[place])
        first, second = (figures(method(rng, hard, luck, seeds, place)) for _ in range(2))
        for name, (draws, answers) in (
            ("value", first),
            ("difference", (first[0] - second[0], first[1] - second[1])),
        ):
            result[name].append(
                (resampled_interval(draws, groups or samples), interval(answers, groups=place))
            )
    rows = []
    for name, pairs in result.items():
        values = np.array([joint.value for joint, _ in pairs])
        truth = values.mean() if name == "value" else 0.0
        cells = [f"{100 * values.std():.2f}"]
        for intervals in zip(*pairs, strict=True):
            held = np.mean([one.low <= truth <= one.high for one in intervals])
            cells += [f"{100 * np.mean([one.error for one in intervals]):.2f}", f"{held:.3f}"]
        rows.append([name, str(samples), str(groups or ""), str(seeds), str(repetitions), *cells])
        print("  ".join(f"{cell:>10}" for cell in rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Simulate and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = [row for one in CASES for row in case(*one, args.repetitions)]
    with args.out.open("w", newline="", encoding="utf-8") if args.out else sys.stdout as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *table])


if __name__ == "__main__":
    main()
