"""Guarantees on average over new recordings: from all syllables of each recording, or from one random syllable of each.

    python evidence/keep.py groups/sharper benchmarks/sharper_groups.py FOLDER     a minute on one core

FOLDER holds Frogs_MFCCs.csv. Recordings are dealt into thirds: training (logistic regression), calibration, new. "false" is the
mean share of false answers of a new recording, with its standard error over splits in brackets, "splits above" the share of
splits where the mean over new recordings is above the guarantee, "answered" the share of new syllables with an answer.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--repetitions", type=int, default=100)
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
    print("| allowed | prefer | false | splits above | answered |")
    print("| --- | --- | --- | --- | --- |")
    for (accuracy, prefer), made in cases.items():
        false, answered = 100 * np.array(made).T
        error = false.std() / np.sqrt(len(false))
        allowed = 100 * (1 - accuracy)
        above = 100 * (false > allowed + 1e-7).mean()
        cells = (f"{false.mean():.1f}% ({error:.1f})", f"{above:.0f}%", f"{answered.mean():.1f}%")
        print(f"| {allowed:.0f}% | {prefer} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
