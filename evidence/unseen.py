"""What heads say to photos of birds that they have never seen:

    python evidence/unseen.py FEATURES.npz cub_flat.parent-child.txt classes_flat.txt OUT.csv

The first test photo of each of 40 species left out (draw 0), and the answers of cross-entropy's best class, of cross-entropy
with a threshold and of leave-one-out with distances, the last two where they cost 3 points of exact answers on known species.
The tables beside it are of `hace unseen`; results/unseen/about.json has the commands.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from hace import read_hierarchy
from hace.data.feature_files import load_features
from hace.hierarchy.derived import is_above
from hace.linear.unseen_classes import (
    METHODS,
    UnseenStudy,
    answers_at,
    at_known,
    curve,
    draw_classes,
    leave_out,
)


def main() -> None:
    """Train two heads, write a row per intent left out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path)
    parser.add_argument("hierarchy")
    parser.add_argument("names", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    data = load_features(args.features, read_hierarchy(args.hierarchy), label_kind="index")
    names = dict(line.split(maxsplit=1) for line in args.names.read_text(encoding="utf-8").splitlines())
    h = data.hierarchy
    train, test = ((data[name].x, h.labels[data[name].nodes]) for name in ("train", "test"))
    left = leave_out(h, draw_classes(h, 40, 0))
    study = UnseenStudy(h, train, test, list(left.classes), epochs=20)
    truth, new = left.truths[test[1]], left.labels[test[1]] < 0
    listed = left.hierarchy
    answers = {}
    for name in ("cross-entropy", "both"):
        log_q = study.log_q(left, METHODS[name], 0, {}, {})
        if name == "cross-entropy":
            answers["best class"] = listed.leaf_nodes[log_q.numpy()[:, listed.leaf_nodes].argmax(axis=1)]
            best = 100 * float((answers["best class"] == truth)[~new].mean())
        point = at_known(curve(log_q, truth, new, listed, METHODS[name].rule), best - 3)
        assert point is not None
        (answers[name],) = answers_at(log_q, listed, METHODS[name].rule, [point.threshold])
    first = [np.flatnonzero(test[1] == h.label(c))[0] for c in left.classes]
    shown = [*(names[v] for v in listed.nodes), "no answer"]
    with args.out.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["species", "closest listed", *answers, "true"])
        for row in first:
            said = [shown[int(nodes[row])] for nodes in answers.values()]
            true = is_above(listed, answers["both"][[row]], truth[[row]])[0] and answers["both"][row] > 0
            table.writerow([names[h.leaves[test[1][row]]], shown[truth[row]], *said, "yes" if true else "no"])


if __name__ == "__main__":
    main()
