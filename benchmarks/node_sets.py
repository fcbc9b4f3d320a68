"""Sets of nodes with a guarantee, and by the model's probability alone, as the package setvaluedprediction chooses them.

    python evidence/keep.py decisions/node-sets benchmarks/node_sets.py DATA

CUB-200 under softmax regression, whose scores are over-confident as trained and calibrated after one temperature. For sets of
at most K nodes: the share of test photos whose class is under none of them, the mean number of classes under a set (of 200; no
answer counts all), and the share with an answer. 5% false sets are allowed. Half of 1,200 test photos calibrate, 100 times.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from checks import scored

from hace.decisions.bounds import RiskBound
from hace.decisions.ladders import NOTHING
from hace.decisions.node_sets import SetLadder, ladder_of_sets
from hace.decisions.scores import Scores
from hace.hierarchy.derived import leaf_counts

PHOTOS, SPLITS, ACCURACY, OVER = 1200, 100, 0.95, 2.0


def sizes(ladder: SetLadder) -> np.ndarray:
    """(B, L) how many classes are under each rung; all of them under no answer."""
    counts = np.append(leaf_counts(ladder.hierarchy), 0)
    classes = counts[ladder.sets].sum(axis=2)
    return np.where(ladder.says, classes, ladder.hierarchy.num_leaves)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    z, y, h = scored(parser.parse_args().data)
    rows = np.random.default_rng(0).permutation(len(y))[:PHOTOS]
    z, truth = z[rows], h.leaf_nodes[y[rows]]
    print("| nodes | threshold | false | classes under it | answered |")
    print("| --- | --- | --- | --- | --- |")
    for nodes in (1, 2, 3):
        for name, scores in (
            ("by probability, over-confident", OVER * z),
            ("by probability", z),
            ("guaranteed", z),
        ):
            ladder = ladder_of_sets(Scores(scores, h), nodes)
            outcomes, size = ladder.outcomes(truth), sizes(ladder)
            made = []
            for seed in range(SPLITS):
                order = np.random.default_rng(seed).permutation(PHOTOS)
                held, new = order[: PHOTOS // 2], order[PHOTOS // 2 :]
                t = ACCURACY
                if name == "guaranteed":
                    t = RiskBound.of_accuracy(ACCURACY, None, "samples").threshold(outcomes.take(held))
                rung = ladder.rung(min(t, NOTHING))[new]
                made.append(
                    (
                        outcomes.losses(t)[new].mean(),
                        size[new, rung].mean(),
                        (outcomes.answered[new] >= t).mean(),
                    )
                )
            false, under, said = np.mean(made, axis=0)
            print(f"| {nodes} | {name} | {false:.1%} | {under:.1f} | {said:.0%} |", flush=True)


if __name__ == "__main__":
    main()
