"""Frog calls: what groups change. 7,195 syllables in 60 recordings, 10 species (UCI 406; see docs/guarantees.md).

    python benchmarks/frog_calls.py FOLDER              FOLDER holds Frogs_MFCCs.csv; about ten minutes on one core
    python benchmarks/frog_calls.py FOLDER --splits 20  a quick look

Each of the splits deals the recordings into thirds: training, calibration, new recordings. Guarantees of at most 5% false
answers are calibrated on random syllables of the first two thirds, as if syllables were exchangeable, and on the recordings of
the second. Pooled: one answer per new recording.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_score

from hace import HACEClassifier, Hierarchy
from hace.decisions.scores import Scores
from hace.hierarchy.derived import is_above

warnings.simplefilter("ignore", ConvergenceWarning)
warnings.simplefilter("ignore", UserWarning)


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, Hierarchy]:
    """Features, species, recordings and the tree."""
    table = pd.read_csv(folder / "Frogs_MFCCs.csv")
    h = Hierarchy.from_paths(table[["Family", "Genus", "Species"]].drop_duplicates().to_numpy().tolist())
    x = table.filter(like="MFCC").to_numpy()
    return (
        (x - x.mean(0)) / np.maximum(x.std(0), 1e-9),
        table["Species"].to_numpy(),
        table["RecordID"].to_numpy(),
        h,
    )


def thirds(y: np.ndarray, group: np.ndarray, seed: int) -> list[np.ndarray]:
    """Rows of three parts of the recordings, each with a third of every species' recordings, as far as they go."""
    rng = np.random.default_rng(seed)
    part = {}
    for start, species in enumerate(np.unique(y)):
        names = rng.permutation(np.unique(group[y == species]))
        part |= {g: (i + start) % 3 if len(names) > 3 else i % 3 for i, g in enumerate(names)}
    place = np.array([part[g] for g in group])
    return [np.flatnonzero(place == k) for k in range(3)]


def false_answers(answers: np.ndarray, truth: np.ndarray, h: Hierarchy) -> tuple[np.ndarray, np.ndarray]:
    """Whether each answer is false, and whether it says something."""
    nodes = np.array([-1 if a is None else h.index(a) for a in answers])
    said = np.append(h.depths, 0)[nodes] > 0
    return said & ~is_above(h, nodes, np.array([h.index(t) for t in truth])), said


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=200)
    args = parser.parse_args()
    x, y, group, h = read(args.folder)
    model = HACEClassifier(h, weight_decay=1e-3, max_iter=300, tol=1e-4)
    for name, folds, groups in (
        ("random syllables", StratifiedKFold(5, shuffle=True, random_state=0), None),
        ("recordings", StratifiedGroupKFold(3, shuffle=True, random_state=0), group),
    ):
        print(
            f"accuracy, split by {name}: {cross_val_score(model, x, y, cv=folds, groups=groups).mean():.1%}",
            flush=True,
        )
    rows, pools = [], []
    for seed in range(args.splits):
        train, held, new = thirds(y, group, seed)
        clf = HACEClassifier(h, weight_decay=1e-3, max_iter=300, tol=1e-4)
        seen = np.random.default_rng(seed).permutation(np.concatenate([train, held]))
        half = len(seen) // 2
        results = {}
        clf.fit(x[seen[:half]], y[seen[:half]])
        clf.calibrate(x[seen[half:]], y[seen[half:]])
        results["random syllables"] = clf.predict_node(x[new], accuracy=0.95)
        clf.fit(x[train], y[train])
        clf.calibrate(x[held], y[held], group[held], temperature=1.0)
        results["recordings, on average"] = clf.predict_node(x[new], accuracy=0.95)
        results["recordings, on average 10%"] = clf.predict_node(x[new], accuracy=0.9)
        results["20% in 80% of recordings"] = clf.predict_node(x[new], accuracy=0.8, group_share=0.8)
        results["5% in 90% of recordings"] = clf.predict_node(x[new], accuracy=0.95, group_share=0.9)
        for name, answers in results.items():
            false, said = false_answers(answers, y[new], h)
            each = pd.DataFrame({"group": group[new], "false": false, "said": said}).groupby("group").mean()
            rows.append(
                (
                    name,
                    false.mean(),
                    each["false"].mean(),
                    (each["false"] <= 0.05).mean(),
                    (each["false"] <= 0.2).mean(),
                    said.mean(),
                )
            )
        pools.append(pooled(clf, x[new], y[new], group[new]))
    table = pd.DataFrame(
        rows, columns=["calibrated on", "syllables", "recordings", "at most 5%", "at most 20%", "answered"]
    )
    print(f"\nfalse answers on new recordings, {args.splits} splits of recordings into thirds")
    print((100 * table.groupby("calibrated on", sort=False).mean()).round(1).to_string())
    worst = table.groupby("calibrated on", sort=False)["recordings"].max()
    print("worst split:", {name: f"{value:.0%}" for name, value in worst.items()})
    print(
        "\none answer per recording, against one per syllable: accuracy, negative log-likelihood, calibration error"
    )
    print(pd.DataFrame(pools).mean().round(3).to_string())


def pooled(clf: HACEClassifier, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Accuracy, likelihood and stated confidence of one answer per recording."""
    scores = Scores(clf._scores(clf._linear(x)).leaves(), clf.hierarchy_, outputs="leaves")
    _, first, place = np.unique(group, return_index=True, return_inverse=True)
    results = {}
    for name, one, truth in (
        ("syllable", scores, y),
        ("recording, log", scores.pooled(place, "log"), y[first]),
        ("recording, mean", scores.pooled(place, "mean"), y[first]),
    ):
        p = one.data.softmax(1).numpy()
        label = np.array([clf.hierarchy_.leaves.index(t) for t in truth])
        right = p.argmax(1) == label
        results |= {
            f"{name}: accuracy": right.mean(),
            f"{name}: nll": -np.log(p[np.arange(len(p)), label]).mean(),
        }
        results[f"{name}: confidence - accuracy"] = p.max(1).mean() - right.mean()
        if name == "syllable":
            results["syllable, recordings weigh the same: accuracy"] = (
                np.bincount(place, right) / np.bincount(place)
            ).mean()
    return results


if __name__ == "__main__":
    main()
