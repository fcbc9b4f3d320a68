"""Frog calls: what groups change. 7,195 syllables in 60 recordings, 10 species (UCI 406; see docs/guarantees.md).

    python evidence/keep.py groups/frogs benchmarks/frog_calls.py FOLDER   FOLDER holds Frogs_MFCCs.csv; three minutes
    python benchmarks/frog_calls.py FOLDER --splits 20                     a quick look

Each of the splits deals the recordings into thirds: training, calibration, new recordings. Guarantees of at most 5% false
answers are calibrated on random syllables of the first two thirds, as if syllables were exchangeable, and on the recordings of
the second. Second table: one answer per new recording, beside one per syllable; recordings count the same.
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


SHARES = (
    "of new syllables",
    "on average over new recordings",
    "recordings with at most 5%",
    "with at most 20%",
    "answered",
)
FIGURES = ("accuracy", "negative log-likelihood", "confidence minus accuracy")


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
        results["random syllables", "at most 5%"] = clf.predict_node(x[new], accuracy=0.95)
        clf.fit(x[train], y[train])
        clf.calibrate(x[held], y[held], group[held], temperature=1.0)
        for title, accuracy, share in (
            ("at most 5%, on average", 0.95, None),
            ("at most 10%, on average", 0.9, None),
            ("at most 5%, in 90% of recordings", 0.95, 0.9),
            ("at most 20%, in 80% of recordings", 0.8, 0.8),
        ):
            options = {} if share is None else {"group_share": share}
            results["recordings", title] = clf.predict_node(x[new], accuracy=accuracy, **options)
        for name, answers in results.items():
            false, said = false_answers(answers, y[new], h)
            each = pd.DataFrame({"group": group[new], "false": false, "said": said}).groupby("group").mean()
            rows.append(
                (
                    *name,
                    false.mean(),
                    each["false"].mean(),
                    (each["false"] <= 0.05).mean(),
                    (each["false"] <= 0.2).mean(),
                    said.mean(),
                )
            )
        pools.append(pooled(clf, x[new], y[new], group[new]))
    shares = 100 * pd.DataFrame(rows, columns=["on", "guarantee", *SHARES]).set_index(["on", "guarantee"])
    print(f"\nfalse answers, {args.splits} splits of recordings into thirds, in percent")
    print(f"| calibrated on | guarantee | {' | '.join(SHARES)} |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, made in shares.groupby(level=["on", "guarantee"], sort=False):
        print(f"| {' | '.join([*name, *(f'{share:.1f}' for share in made.mean())])} |")
    print(f"\n| answers | {' | '.join(FIGURES)} |")
    print("| --- | --- | --- | --- |")
    for name in pools[0]:
        accuracy, likelihood, over = np.mean([made[name] for made in pools], axis=0)
        print(f"| {name} | {accuracy:.1%} | {likelihood:.2f} | {100 * over:+.1f} points |")


def pooled(
    clf: HACEClassifier, x: np.ndarray, y: np.ndarray, group: np.ndarray
) -> dict[str, tuple[float, ...]]:
    """The figures of one answer per syllable and per recording; recordings count the same."""
    scores = Scores(clf._scores(clf._linear(x)).leaves(), clf.hierarchy_, outputs="leaves")
    _, first, place = np.unique(group, return_index=True, return_inverse=True)
    results = {}
    for name, one, truth, of in (
        ("one answer per syllable", scores, y, place),
        ('one per recording, "log"', scores.pooled(place, "log"), y[first], np.arange(len(first))),
        ('one per recording, "mean"', scores.pooled(place, "mean"), y[first], np.arange(len(first))),
    ):
        p = one.data.softmax(1).numpy()
        label = np.array([clf.hierarchy_.leaves.index(t) for t in truth])
        right = p.argmax(1) == label
        lost = -np.log(p[np.arange(len(p)), label])
        each = [np.bincount(of, figure) / np.bincount(of) for figure in (right, lost, p.max(1) - right)]
        results[name] = tuple(float(figure.mean()) for figure in each)
    return results


if __name__ == "__main__":
    main()
