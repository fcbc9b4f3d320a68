"""Which samples to label next.

Samples about which a model is unsure teach most, but those it is most unsure about resemble each other. So of the samples with
the smallest margins, ten times as many as can be labelled, one is taken from each of so many clusters (Zhdanov 2019, diverse
mini-batch active learning): k-means of their log-probabilities, each sample counted with 1 - margin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hace.checks import MOST_SEED, check_count
from hace.errors import DataError
from hace.hierarchy.assembly import IntArray

CANDIDATES = 10  # per label
_ROUNDS = 20  # of k-means
_LEAST = 1e-6  # probability: the logarithms of smaller ones say nothing about a sample


class NextSamples(NamedTuple):
    """What to label next, the most doubtful first.

    Attributes:
        samples: (K,) positions of the samples.
        margins: (K,) how much likelier the best class is than the second.
    """

    samples: IntArray
    margins: np.ndarray


def next_samples(probabilities: Any, budget: int, *, seed: int = 0) -> NextSamples:
    """Choose samples to label.

    Args:
        probabilities: (M, n) of the classes, for samples without a label.
        budget: how many to label; all where there are no more.
        seed: random seed of the clusters.

    Example:
        >>> p = [[0.99, 0.01, 0.0], [0.5, 0.49, 0.01], [0.51, 0.48, 0.01], [0.01, 0.5, 0.49]]
        >>> next_samples(p, 2).samples.tolist()  # two kinds of doubt
        [3, 2]
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or not p.size:
        raise DataError(f"probabilities must be (M, n), both at least 1. Got {p.shape}.")
    if not np.isfinite(p).all() or (p < 0).any():
        raise DataError("probabilities must be finite, and 0 or more.")
    check_wish(budget, seed)
    margins = _margins(p)
    if budget < len(p):
        likely = np.argsort(margins, kind="stable")[: CANDIDATES * budget]
        x = np.log(np.maximum(p[likely], _LEAST))
        chosen = likely[_one_of_each_cluster(x, 1 - margins[likely] + _LEAST, budget, seed)]
    else:
        chosen = np.arange(len(p))
    chosen = chosen[np.argsort(margins[chosen], kind="stable")]
    return NextSamples(chosen, margins[chosen])


def check_wish(budget: int, seed: int) -> None:
    """Refuse a budget or seed that cannot be."""
    check_count("budget", budget, 10**7)
    check_count("seed", seed, MOST_SEED, least=0)


def _margins(p: np.ndarray) -> np.ndarray:
    if p.shape[1] == 1:
        return np.ones(len(p))
    best = np.partition(p, -2, axis=1)
    return best[:, -1] - best[:, -2]


def _one_of_each_cluster(x: np.ndarray, weight: np.ndarray, clusters: int, seed: int) -> IntArray:
    """The positions of samples nearest to the centres of weighted k-means, one per cluster."""
    rng = np.random.default_rng(seed)
    centres = x[_spread_out(x, weight, clusters, rng)].copy()
    squares = (x**2).sum(axis=1)
    cluster = np.full(len(x), -1)
    near = np.zeros(len(x))
    for _ in range(_ROUNDS):
        distance = squares[:, None] - 2 * x @ centres.T + (centres**2).sum(axis=1)
        before = cluster
        cluster = distance.argmin(axis=1)
        near = distance[np.arange(len(x)), cluster]
        if np.array_equal(before, cluster):
            break
        mass = np.bincount(cluster, weights=weight, minlength=clusters)
        sums = np.zeros_like(centres)
        np.add.at(sums, cluster, x * weight[:, None])
        filled = mass > 0
        centres[filled] = sums[filled] / mass[filled, None]
    order = np.lexsort((near, cluster))
    chosen = order[np.unique(cluster[order], return_index=True)[1]]
    others = np.setdiff1d(np.arange(len(x)), chosen)  # in the order of their margins
    return np.concatenate([chosen, others[: clusters - len(chosen)]])


def _spread_out(x: np.ndarray, weight: np.ndarray, count: int, rng: np.random.Generator) -> IntArray:
    """Samples to begin with: each drawn by its weight and its squared distance from those before (k-means++)."""
    squares = (x**2).sum(axis=1)
    distance = np.ones(len(x))
    chosen = np.zeros(count, dtype=np.int64)
    for i in range(count):
        chance = weight * distance
        total = chance.sum()
        chosen[i] = rng.choice(len(x), p=chance / total if total > 0 else None)
        own = np.maximum(squares + squares[chosen[i]] - 2 * x @ x[chosen[i]], 0)
        distance = own if i == 0 else np.minimum(distance, own)
    return chosen
