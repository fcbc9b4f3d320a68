"""Blood cells known to an ancestor of their type: HACEClassifier at its defaults beside dropping such labels.

    python benchmarks/cells.py --ontology cl-basic.obo [--splits 6] [--out table.csv]
    python benchmarks/cells.py --ontology cl-basic.obo --peers --splits 12 --out peers.csv

The 700 cells of scanpy's pbmc68k_reduced, 500 to train on and 200 to test on, by all 765 genes and by 50 principal components.
A share of the training cells of each type is known only to a parent of the type, or to any of its ancestors, drawn at random.
The hierarchy is the part of the Cell Ontology above the ten types, a DAG of several depths, and the same without nodes that
have a single child, a ragged tree. Top-1 in %; the difference from dropping with its standard error over splits.

--peers: by all genes, on the ragged tree, with all labels and with 80% of each type known to a parent only, beside methods
that drop such cells: LogisticRegression, CellTypist (pip install celltypist; its own training, which standardises the genes)
and hiclass, each at its defaults.
"""

from __future__ import annotations

import argparse
import csv
import logging
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hace import HACEClassifier, Hierarchy, read_hierarchy

TYPES = {
    "CD4+/CD25 T Reg": "CL:0000792",
    "CD4+/CD45RA+/CD25- Naive T": "CL:0000895",
    "CD4+/CD45RO+ Memory": "CL:0000897",
    "CD8+ Cytotoxic T": "CL:0000794",
    "CD8+/CD45RA+ Naive Cytotoxic": "CL:0000900",
    "CD14+ Monocyte": "CL:0001054",
    "CD19+ B": "CL:0000236",
    "CD34+": "CL:0000037",
    "CD56+ NK": "CL:0000623",
    "Dendritic": "CL:0000451",
}
SHARES, LABELS = (0.5, 0.8, 0.9), ("a parent", "any ancestor")
WAYS = ("drop", "auto")


def hierarchies(path: Path) -> dict[str, Hierarchy]:
    """The ontology above the types, where some nodes have several parents; without nodes of a single child, a tree."""
    dag = read_hierarchy(path, relations="intersection_of").subset(list(TYPES.values()))
    return {"DAG": dag, "tree": dag.collapse_unary()}


def coarsened(
    y: np.ndarray, h: Hierarchy, share: float, labels: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share of each class is known to a parent or an ancestor, and which are still fine."""
    known, fine = y.copy(), np.full(len(y), True)
    for label in np.unique(y):
        here = rng.permutation(np.flatnonzero(y == label))
        hidden = here[: round(share * len(here))]
        above = h.parents(label) if labels == LABELS[0] else h.ancestors(label)
        known[hidden] = np.array(above, dtype=object)[rng.integers(len(above), size=len(hidden))]
        fine[hidden] = False
    return known, fine


def one_split(
    h: Hierarchy, x: np.ndarray, y: np.ndarray, share: float, labels: str, seed: int
) -> dict[str, Any]:
    """Top-1 of each way to take coarse labels, and what the default chose."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    train, test = order[:500], order[500:]
    known, _ = coarsened(y[train], h, share, labels, rng)
    result: dict[str, Any] = {}
    for way in WAYS:
        clf = HACEClassifier(h, coarse_labels=way).fit(x[train], known)
        result[way] = float(np.mean(clf.predict(x[test]) == y[test]))
        result["chosen"] = clf.coarse_labels_
    return result


def peers(h: Hierarchy, x: np.ndarray, y: np.ndarray, splits: int) -> list[Sequence[Any]]:
    """Rows of top-1 by method, all labels and 80% coarse, with standard errors over splits."""
    import celltypist
    from hiclass import LocalClassifierPerParentNode
    from sklearn.linear_model import LogisticRegression

    celltypist.logger.set_level(logging.ERROR)
    genes = [f"gene {i}" for i in range(x.shape[1])]

    def type_by_cells(x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray) -> np.ndarray:
        model = celltypist.train(x_train, labels=y_train, genes=genes, check_expression=False)
        return model.classifier.predict((x_test - model.scaler.mean_) / model.scaler.scale_)

    def by_parents(x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray) -> np.ndarray:
        depth = max(len(h.path(node)) for node in h.leaves)
        paths = [[*h.path(node)[::-1], *[""] * depth][:depth] for node in y_train]
        model = LocalClassifierPerParentNode(LogisticRegression(max_iter=1000)).fit(
            x_train, np.array(paths, dtype=object)
        )
        return np.array([[node for node in path if node][-1] for path in model.predict(x_test)])

    others = {
        "LogisticRegression": lambda a, b, c: LogisticRegression(max_iter=1000).fit(a, b).predict(c),
        "CellTypist": type_by_cells,
        "hiclass, per parent node": by_parents,
    }
    result: dict[str, dict[float, list[float]]] = {
        name: {0: [], 0.8: []} for name in ("HACEClassifier", *others)
    }
    for seed in range(splits):
        for share in (0, 0.8):
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(y))
            train, test = order[:500], order[500:]
            known, fine = coarsened(y[train], h, share, LABELS[0], rng)
            answers = {"HACEClassifier": HACEClassifier(h).fit(x[train], known).predict(x[test])}
            for name, ask in others.items():
                answers[name] = ask(x[train][fine], y[train][fine].astype(str), x[test])
            for name, given in answers.items():
                result[name][share].append(
                    100 * float(np.mean(np.asarray(given).astype(str) == y[test].astype(str)))
                )
    rows: list[Sequence[Any]] = [("method", "all labels", "80% known to a parent", "splits")]
    for name, by_share in result.items():
        shown = [f"{np.mean(v):.1f} ± {np.std(v, ddof=1) / len(v) ** 0.5:.1f}" for v in by_share.values()]
        rows.append((name, *shown, splits))
        print(*rows[-1], sep="  ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ontology", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import scanpy

    cells = scanpy.datasets.pbmc68k_reduced()
    y = np.array([TYPES[name] for name in cells.obs["bulk_labels"]], dtype=object)
    features = {"genes": np.asarray(cells.X), "components": np.asarray(cells.obsm["X_pca"])}
    rows: list[Sequence[Any]] = [
        ("hierarchy", "features", "labels", "share", *WAYS, "difference", "standard_error", "chosen")
    ]
    if args.peers:
        rows = peers(hierarchies(args.ontology)["tree"], features["genes"], y, args.splits)
    for shape, h in ({} if args.peers else hierarchies(args.ontology)).items():
        print(f"{shape}: {h!r}", flush=True)
        for what, x in features.items():
            for labels in LABELS:
                for share in SHARES:
                    began = time.process_time()
                    results = [one_split(h, x, y, share, labels, seed) for seed in range(args.splits)]
                    top1 = {way: 100 * np.array([one[way] for one in results]) for way in WAYS}
                    gain = top1["auto"] - top1["drop"]
                    chosen = [one["chosen"] for one in results]
                    counts = " ".join(f"{way}:{chosen.count(way)}" for way in sorted(set(chosen)))
                    means = [f"{top1[way].mean():.1f}" for way in WAYS]
                    error = gain.std(ddof=1) / len(gain) ** 0.5
                    rows.append(
                        (
                            shape,
                            what,
                            labels,
                            f"{share:.0%}",
                            *means,
                            f"{gain.mean():+.1f}",
                            f"{error:.1f}",
                            counts,
                        )
                    )
                    print(*rows[-1], f"{time.process_time() - began:.0f} s", sep="  ", flush=True)
    if args.out is not None:
        with args.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
