"""How alike two trees over the same classes are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hace.errors import HierarchyError, listed
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.pairs import Pairs

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy

_TRIPLETS = 2_000_000  # beyond these, as many are drawn


class TreeAgreement(NamedTuple):
    """How alike two trees over the same classes are.

    Attributes:
        triplets: of the triplets of classes in which both trees have a closest pair, the share in which it is the same pair;
            1/3 by chance, nan where there is no such triplet.
        resolved: the share of all triplets in which both trees have a closest pair.
        cophenetic: the correlation of the two trees' distances over all pairs of classes; 0 by chance, nan where one tree
            has all classes equally far.
    """

    triplets: float
    resolved: float
    cophenetic: float


def compare_trees(h: Pairs, other: Hierarchy, seed: int) -> TreeAgreement:
    """See :meth:`hace.Hierarchy.agreement`."""
    missing = sorted(set(h.leaves) ^ set(other.leaves))
    if missing:
        raise HierarchyError(
            f"other must have the same classes. Got {listed(missing)} in one of the two only."
        )
    label = np.array([other.label(leaf) for leaf in h.leaves])
    triples = _triples(h.num_leaves, np.random.default_rng(seed))
    ours, theirs = _closest(h, triples), _closest(other, label[triples])
    both = (ours >= 0) & (theirs >= 0)
    alike = float((ours == theirs)[both].mean()) if both.any() else float("nan")
    resolved = float(both.mean()) if len(both) else float("nan")
    a, b = _pairs(h.num_leaves, np.random.default_rng(seed))
    return TreeAgreement(
        alike, resolved, _correlation(h.distances(a, b), other.distances(label[a], label[b]))
    )


def _triples(classes: int, rng: np.random.Generator) -> IntArray:
    """(T, 3) triplets of labels: all of them, or as many as are looked at."""
    total = classes * (classes - 1) * (classes - 2) // 6
    if total <= _TRIPLETS:
        first, rest = np.triu_indices(classes, 1)
        reach = classes - 1 - rest  # third classes after the second
        return np.stack([np.repeat(first, reach), np.repeat(rest, reach), _after(rest, reach)], axis=1)
    drawn = rng.integers(0, classes, (_TRIPLETS, 3))
    apart = (drawn[:, 0] != drawn[:, 1]) & (drawn[:, 0] != drawn[:, 2]) & (drawn[:, 1] != drawn[:, 2])
    return drawn[apart]


def _after(start: IntArray, reach: IntArray) -> IntArray:
    """start + 1, ..., start + reach, for each start in turn."""
    first = np.cumsum(reach) - reach
    return np.arange(int(reach.sum())) - np.repeat(first, reach) + np.repeat(start, reach) + 1


def _pairs(classes: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Pairs of labels: all of them, or as many as are looked at."""
    if classes * (classes - 1) // 2 <= _TRIPLETS:
        return np.triu_indices(classes, 1)
    a, b = rng.integers(0, classes, (2, _TRIPLETS))
    return a[a != b], b[a != b]


def _closest(h: Pairs, triples: IntArray) -> IntArray:
    """(T,) which class of each triplet is the odd one out, -1 where no pair is closest."""
    a, b, c = triples.T
    apart = np.stack([h.distances(b, c), h.distances(a, c), h.distances(a, b)], axis=1)
    order = np.sort(apart, axis=1)
    return np.where(order[:, 0] < order[:, 1], apart.argmin(axis=1), -1)


def _correlation(a: IntArray, b: IntArray) -> float:
    if not len(a) or a.min() == a.max() or b.min() == b.max():
        return float("nan")
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1.0, 1.0))
