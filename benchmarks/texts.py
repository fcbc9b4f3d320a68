"""Intents of CLINC150 by MiniLM embeddings and by TF-IDF: HACEClassifier beside logistic regression and hiclass.

    python benchmarks/texts.py --data clinc150_minilm_fp16.npz --hierarchy clinc150_hierarchy.csv

30 training sentences of each intent, the same for every method and all at scikit-learn's C = 1 / (weight_decay x samples). With
"80% domain" that share of the labels is known only to the domain: HACEClassifier uses them, the others drop them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from hiclass import LocalClassifierPerParentNode
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from hace import HACEClassifier, Hierarchy, read_hierarchy

PER_CLASS, COARSE = 30, 0.8
DECAYS = {"minilm": 1e-5, "tfidf": 1e-5}


def methods(
    h: Hierarchy, decay: float, samples: int
) -> dict[str, Callable[[Any, np.ndarray, Any], np.ndarray]]:
    """Each method as a function from training features, labels and test features to answers."""

    def logistic() -> LogisticRegression:
        return LogisticRegression(C=1 / (decay * samples), max_iter=1000)

    def by_levels(x: Any, y: np.ndarray, new: Any) -> np.ndarray:
        paths = np.array([h.path(node)[::-1] for node in y], dtype=object)
        tree = LocalClassifierPerParentNode(logistic()).fit(x, paths)
        return tree.predict(new)[:, -1]

    return {
        "HACEClassifier": lambda x, y, new: HACEClassifier(h, weight_decay=decay).fit(x, y).predict(new),
        "logistic regression": lambda x, y, new: logistic().fit(x, y.astype(str)).predict(new),
        "hiclass": by_levels,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--hierarchy", required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    h, data = read_hierarchy(args.hierarchy), np.load(args.data)
    y, truth = data["y_train"].astype(object), data["y_test"].astype(object)
    chosen = np.sort(np.concatenate([np.flatnonzero(y == label)[:PER_CLASS] for label in h.leaves]))
    y = y[chosen]
    coarse = np.random.default_rng(0).permutation(len(y)) < COARSE * len(y)
    known = np.array(
        [h.parents(label)[0] if c else label for label, c in zip(y, coarse, strict=True)], dtype=object
    )
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit(data["text_train"][chosen])
    features = {
        "minilm": (data["x_train"][chosen].astype(np.float32), data["x_test"].astype(np.float32)),
        "tfidf": tuple(
            words.transform(data[f"text_{s}"][rows]) for s, rows in (("train", chosen), ("test", slice(None)))
        ),
    }
    for name, (x, new) in features.items():
        for state, labels in (("all", y), ("80% domain", known)):
            for title, method in methods(h, DECAYS[name], len(y)).items():
                drops = title != "HACEClassifier" and state != "all"
                rows = np.flatnonzero(~coarse) if drops else np.arange(len(y))
                start = time.process_time()
                answers = method(x[rows], labels[rows], new)
                seconds = time.process_time() - start
                print(
                    f"{name:8} {state:12} {title:20} {100 * np.mean(answers == truth):5.1f}% {seconds:6.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
