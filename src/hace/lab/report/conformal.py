"""The rank a model is sure of: answers that climb from the best class until a promise holds.

A promise such as 95 % says: at most 5 % of the samples get a wrong answer. Its threshold needs samples of its own, and a final
run has none but the test samples. So these are halved at random, each half is answered with the threshold of the other, and no
sample helps to choose its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above, leaf_counts

DERIVED = "answers"  # heading of the metrics that follow from kept predictions alone
SIBLINGS = "siblings"  # top-1 over the classes that share their parent with another
PROMISE = 0.95
CONFIDENCE_ERROR = (DERIVED, "confidence_error")
SURE_DETAIL = (DERIVED, "sure_detail")


class AnswerLadder(NamedTuple):
    """(S, L) of the nodes from the root to each answer."""

    nodes: np.ndarray  # the root, or -1 where there is none, repeats in front
    mass: np.ndarray  # their probabilities, falling
    true: np.ndarray  # whether a node is the truth or above it


def ladder_of(run: Mapping[str, np.ndarray], h: Hierarchy) -> AnswerLadder | None:
    """The ladder of a run's predictions; None on a DAG, or where the run kept too little."""
    mass = run.get("path_confidence")
    if not h.is_tree or mass is None or not mass.shape[1]:
        return None
    up = np.append(h.parent_nodes, -1)
    if h.rooted:
        up[0] = 0
    nodes, truth = [run["answer"].astype(np.int64)], run["truth"].astype(np.int64)
    for _ in range(mass.shape[1] - 1):
        nodes.append(up[nodes[-1]])
    path = np.stack(nodes[::-1])
    return AnswerLadder(path.T, np.ascontiguousarray(mass.T).T, is_above(h, path, truth).T)


def sure_places(ladder: AnswerLadder, promises: Sequence[float]) -> list[np.ndarray]:
    """(S,) the rung of each sample's answer under each promise; 0 is the root, or no answer."""
    theta, halves = _theta(ladder), _halves(len(ladder.mass))
    known = [np.sort(theta[others]) for others in reversed(halves)]
    found = []
    for promise in promises:
        limit = np.full(len(theta), np.inf, dtype=ladder.mass.dtype)
        for rows, others in zip(halves, known, strict=True):
            limit[rows] = threshold(others, promise)
        place = np.zeros(len(theta), dtype=np.int64)
        for rung in range(1, ladder.mass.shape[1]):  # the deepest with more mass than the limit
            np.copyto(place, rung, where=ladder.mass[:, rung] > limit)
        found.append(place)
    return found


def _theta(ladder: AnswerLadder) -> np.ndarray:
    """(S,) the smallest threshold at which each sample's answer is true."""
    return np.where(ladder.true, 0.0, ladder.mass).max(axis=1)


def threshold_part(ladder: AnswerLadder, worth: np.ndarray, promise: float) -> np.ndarray:
    """(S,) what each sample, by helping to choose the other half's threshold, adds to the mean worth of all answers; mean 0.

    Another draw of the samples would choose another threshold. With w_i of sample i, the rank of a half's threshold moves by
    sum_i (w_i - 1) (promise - 1[theta_i <= threshold]), and the mean moves with the rank at a slope that is measured between
    one standard deviation of that rank to either side. So an interval over these parts and the worths resamples calibration
    and evaluation together.
    """
    theta, halves = _theta(ladder), _halves(len(ladder.mass))
    found = np.zeros(len(theta))
    # Masses fall along a ladder, so every rung above the limit adds its step of worth.
    steps = [(worth[:, k] - worth[:, k - 1], ladder.mass[:, k]) for k in range(1, worth.shape[1])]
    for rows, others in zip(halves, reversed(halves), strict=True):
        known = np.sort(theta[others])
        rank, step = (len(known) + 1) * promise, math.sqrt(len(known) * promise * (1 - promise))
        low, high = max(math.floor(rank - step), 1), min(math.ceil(rank + step), len(known))
        if high <= low or math.ceil(rank) > len(known):
            continue
        inside = np.zeros(len(theta), dtype=bool)
        inside[rows] = True
        between = [(mass > known[low - 1]) & (mass <= known[high - 1]) & inside for _, mass in steps]
        change = -sum(float(added[there].sum()) for (added, _), there in zip(steps, between, strict=True))
        part = promise - (theta[others] <= threshold(known, promise))
        found[others] = change / (high - low) * (part - part.mean())
    return found


@lru_cache(maxsize=4)
def _halves(samples: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(samples)
    return order[: samples // 2], order[samples // 2 :]


def threshold(theta: np.ndarray, promise: float) -> float:
    """The conformal threshold of n samples, which answers must exceed: the ceil((n + 1) promise)-th smallest theta."""
    rank = math.ceil((len(theta) + 1) * promise)
    return np.inf if rank > len(theta) else float(theta[rank - 1])


def detail(h: Hierarchy) -> np.ndarray:
    """(N + 1,) the share of the possible information that a node says: log(n / leaves below) / log n; last, no answer: 0."""
    share = np.log(h.num_leaves / leaf_counts(h)) / max(math.log(h.num_leaves), 1e-12)
    return np.append(share, 0.0)


def confidence_columns(run: Mapping[str, np.ndarray], h: Hierarchy) -> dict[str, np.ndarray]:
    """(S,) squared error of the answer's confidence, and how much detail is left at a promise of 95%; nothing on a DAG.

    The detail of a sample includes its part in the other half's threshold, so that intervals know the threshold's own noise.
    """
    ladder = ladder_of(run, h)
    if ladder is None:
        return {}
    right = (run["answer"] == run["truth"]).astype(np.float64)
    worth = detail(h)[ladder.nodes]
    said = np.take_along_axis(worth, sure_places(ladder, (PROMISE,))[0][:, None], axis=1)[:, 0]
    return {
        CONFIDENCE_ERROR[1]: ((ladder.mass[:, -1] - right) ** 2).astype(np.float32),
        SURE_DETAIL[1]: (said + threshold_part(ladder, worth, PROMISE)).astype(np.float32),
    }
