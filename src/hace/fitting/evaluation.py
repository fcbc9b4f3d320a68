"""What test samples say about a model: how good, how specific under its guarantee, and whether the guarantee held."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from hace.decisions.decisions import Decisions
from hace.decisions.guarantees import GuaranteedThreshold
from hace.decisions.node_sets import common_ancestors, true_answers
from hace.decisions.trust import SIGNIFICANT
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above
from hace.linear.estimator import HACEClassifier
from hace.metrics.intervals import Interval, interval, paired_interval, share_interval

ACCURACY = 0.95
ACCURACIES = (0.95, 0.9, 0.8)  # what is tried where samples are too few for the first
NOTHING = "no answer"


def is_right(clf: HACEClassifier, x: Any, nodes: IntArray) -> np.ndarray:
    """(M,) whether the most probable class is the label or below it."""
    h = clf.hierarchy_
    best = np.array([h.index(node) for node in clf.predict(x)], dtype=np.int64)
    return is_above(h, nodes, best)


def rank_names(h: Hierarchy, nodes: Sequence[int] | IntArray) -> list[str | None]:
    """The rank of each node, by name where there is one; None for no answer."""
    names = h.level_names
    ranks: list[str | None] = []
    for v in (int(v) for v in nodes):
        depth = 0 if v < 0 else int(h.depths[v])
        if v < 0 or depth == 0:
            ranks.append(None)
        elif h.ranks is not None and h.ranks[v]:
            ranks.append(h.ranks[v])
        elif names is not None:
            ranks.append(names[depth - 1])
        else:
            group = "group" if h.max_depth == 2 else f"level {depth}"
            ranks.append("class" if h.labels[v] >= 0 else group)
    return ranks


@dataclass(frozen=True, eq=False)
class Guaranteed:
    """How answers with a guarantee turned out.

    Attributes:
        accuracy: the guaranteed share.
        ranks: share of samples answered at each rank, from the most specific; :data:`NOTHING` last.
        false: share of samples with a false answer, and its interval.
        kept: whether the guarantee held, as far as chance can tell.
    """

    accuracy: float
    ranks: dict[str, float]
    false: tuple[float, float, float]
    kept: bool


def judge_guarantee(
    decided: Decisions, truth: IntArray, record: GuaranteedThreshold, groups: np.ndarray | None = None
) -> Guaranteed:
    """How answers turned out on samples whose truth is known; ``groups``: the guarantee is about the average over them.

    A guarantee that holds on average over calibrations is missed by some of them: by how much follows from the number of
    samples, or groups, that calibrated.
    """
    h = decided.hierarchy
    single = decided if decided.nodes.dim() == 1 else common_ancestors(decided)
    nodes = single.nodes.numpy()
    names = rank_names(h, nodes)
    counts = Counter(name or NOTHING for name in names)
    depth = {NOTHING: -1.0}
    for name, v in zip(names, nodes.tolist(), strict=True):
        if name is not None:
            depth[name] = max(depth.get(name, 0.0), float(h.depths[v]))
    ranks = {name: counts[name] / len(nodes) for name in sorted(counts, key=lambda name: -depth[name])}
    assert record.accuracy is not None
    wrong = ~true_answers(decided, truth)
    if groups is None or record.num_groups is None:
        false = (float(wrong.mean()), *share_interval(float(wrong.sum()), len(wrong)))
        chance = chance_of_as_many(int(wrong.sum()), len(wrong), record.accuracy, record.samples)
    else:
        place = np.unique(groups, return_inverse=True)[1]
        shares = np.bincount(place, weights=wrong) / np.bincount(place)
        share = interval(shares[None])
        false = (share.value, max(share.low, 0.0), min(share.high, 1.0))
        chance = _chance_of_mean(shares, 1 - record.accuracy, record.num_groups)
    return Guaranteed(record.accuracy, ranks, false, chance >= SIGNIFICANT)


def chance_of_as_many(false: int, samples: int, accuracy: float, calibrated: int) -> float:
    """The chance of so many false answers or more under a guarantee that holds.

    The threshold is an order statistic of exchangeable calibration samples, so the share of false answers beyond it follows a
    Beta distribution, and their number among new samples a beta-binomial one.
    """
    above = math.ceil((calibrated + 1) * accuracy - 1e-9)
    below = calibrated + 1 - above
    if below <= 0:
        return 1.0 if not false else 0.0
    return float(stats.betabinom.sf(false - 1, samples, below, above))


def _chance_of_mean(shares: np.ndarray, least: float, calibrated: int) -> float:
    """The chance of such a mean of groups' shares (G,) if the mean over all groups is ``least``."""
    if len(shares) < 2:
        return 1.0
    error = float(shares.std(ddof=1) * np.sqrt(1 / len(shares) + 1 / calibrated))
    excess = float(shares.mean()) - least
    if error == 0:
        return 1.0 if excess <= 0 else 0.0
    return float(stats.t.sf(excess / error, len(shares) - 1))


def accuracy_of(right: np.ndarray, groups: np.ndarray | None) -> Interval:
    """The share of right predictions with its interval, over samples or groups."""
    if groups is not None and len(np.unique(groups)) > 1:
        accuracy = interval(right.astype(float)[None], groups=groups)
        return accuracy._replace(low=max(accuracy.low, 0.0), high=min(accuracy.high, 1.0))
    low, high = share_interval(float(right.sum()), len(right))
    return Interval(float(right.mean()), low, high)


def gain_of(right: np.ndarray, baseline: np.ndarray, groups: np.ndarray | None) -> Interval:
    """The paired difference of two models in right predictions on the same samples."""
    groups = None if groups is None or len(np.unique(groups)) < 2 else groups
    return paired_interval(right.astype(float)[None], baseline.astype(float)[None], groups=groups)


def best_guarantee(clf: HACEClassifier) -> tuple[float | None, str]:
    """The greatest of :data:`ACCURACIES` that the calibration samples support, and why no greater one; "" for the first."""
    why = ""
    for accuracy in ACCURACIES:
        try:
            clf.guarantee(accuracy)
        except DataError as error:
            why = why or str(error)
            continue
        return accuracy, why
    return None, why
