"""Guarantees on average over new recordings: from all syllables of each recording, or from one random syllable of each.

    python benchmarks/sharper_groups.py FOLDER --repetitions 200 --out benchmarks/sharper_groups.csv     two minutes

FOLDER holds Frogs_MFCCs.csv. Recordings are dealt into thirds: training (logistic regression), calibration, new. "false" is the
mean share of false answers of a new recording, "error" its standard error over splits, "above" the share of splits where the
mean over new recordings is above the guarantee, "answered" the share of new syllables with an answer.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
from checks import frog_scores
from frog_calls import read, thirds

from hace import guaranteed_threshold
from hace.decisions import Scores
from hace.decisions.ladders import outcomes_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    x, names, group, h = read(args.folder)
    y = np.array([h.leaves.index(name) for name in names])
    cases = defaultdict(list)
    for seed in range(args.repetitions):
        train, held, new = thirds(names, group, seed)
        scores = frog_scores(x, y, h, train)
        place = np.unique(group[new], return_inverse=True)[1]
        z, fresh = scores(held), outcomes_of(Scores(scores(new), h), y[new])
        for accuracy in (0.95, 0.9):
            for prefer in ("steadier", "sharper"):
                sure = guaranteed_threshold(
                    z, y[held], h, accuracy, groups=group[held], prefer=prefer, seed=seed
                )
                false = np.bincount(place, fresh.losses(sure.threshold)) / np.bincount(place)
                cases[accuracy, prefer].append((false.mean(), (fresh.answered >= sure.threshold).mean()))
    with args.out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["allowed", "prefer", "splits", "false", "error", "above", "answered"])
        for (accuracy, prefer), made in cases.items():
            false, answered = np.array(made).T
            error = false.std() / np.sqrt(len(false))
            above = (false > 1 - accuracy + 1e-9).mean()
            numbers = (f"{value:.3f}" for value in (false.mean(), error, above, answered.mean()))
            table.writerow([f"{1 - accuracy:.2g}", prefer, len(made), *numbers])
    print(args.out.read_text())


if __name__ == "__main__":
    main()
