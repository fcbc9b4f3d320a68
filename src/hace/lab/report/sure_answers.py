"""The rank a model is sure of: answers that climb from the best class until a promise holds.

A promise such as 95 % says: at most 5 % of the samples get a wrong answer. Its threshold needs samples of its own, and a final
run has none but the test samples. So these are halved at random, each half is answered with the threshold of the other, and no
sample helps to choose its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hace.hierarchy import Hierarchy
from hace.hierarchy.index import leaf_counts

DERIVED = "answers"  # heading of the metrics that follow from kept predictions alone
PROMISE = 0.95
CONFIDENCE_ERROR = (DERIVED, "confidence_error")
SURE_DETAIL = (DERIVED, "sure_detail")


class AnswerLadder(NamedTuple):
    """(S, L) of the nodes from the root to each answer.

    Attributes:
        nodes: The root, or -1 where there is none, repeats in front.
        mass: Their probabilities, falling.
        true: Whether a node is the truth or above it.
    """

    nodes: np.ndarray
    mass: np.ndarray
    true: np.ndarray


def ladder_of(run: Mapping[str, np.ndarray], h: Hierarchy) -> AnswerLadder | None:
    """The ladder of a run's predictions; None on a DAG, or where the run kept too little."""
    mass = run.get("path_confidence")
    if not h.is_tree or mass is None or not mass.shape[1]:
        return None
    up = np.append(h.parent_nodes, -1)
    if h.rooted:
        up[0] = 0
    answer, truth = run["answer"].astype(np.int64), run["truth"].astype(np.int64)
    above = [truth]  # the truth and its ancestors
    nodes = [answer]
    for _ in range(mass.shape[1] - 1):
        nodes.append(up[nodes[-1]])
        above.append(up[above[-1]])
    path = np.stack(nodes[::-1], axis=1)
    true = (path[:, :, None] == np.stack(above, axis=1)[:, None, :]).any(axis=2) | (path < 0)
    return AnswerLadder(path, mass.astype(np.float64), true)


def threshold(ladder: AnswerLadder, rows: np.ndarray, promise: float) -> float:
    """The conformal threshold of some samples: an answer must have more mass than this.

    theta is the smallest threshold at which a sample's answer is true; the ceil((n + 1) promise)-th smallest of n is enough.

    Args:
        ladder: Of all samples.
        rows: Those that set the threshold.
        promise: The share of samples without a wrong answer.
    """
    theta = np.sort(np.where(ladder.true[rows], 0.0, ladder.mass[rows]).max(axis=1))
    rank = math.ceil((len(theta) + 1) * promise)
    return np.inf if rank > len(theta) else float(theta[rank - 1])


def sure_places(ladder: AnswerLadder, promise: float) -> np.ndarray:
    """(S,) the rung of each sample's answer under a promise; 0 is the root, or no answer."""
    place = np.zeros(len(ladder.mass), dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(place))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    for rows, others in (halves, halves[::-1]):
        if len(others):
            enough = ladder.mass[rows] > threshold(ladder, others, promise)
            enough[:, 0] = True
            place[rows] = enough.shape[1] - 1 - enough[:, ::-1].argmax(axis=1)
    return place


def detail(h: Hierarchy) -> np.ndarray:
    """(N + 1,) the share of the possible information that a node says: log(n / leaves below) / log n; last, no answer: 0."""
    share = np.log(h.num_leaves / leaf_counts(h)) / max(math.log(h.num_leaves), 1e-12)
    return np.append(share, 0.0)


def confidence_columns(run: Mapping[str, np.ndarray], h: Hierarchy) -> dict[str, np.ndarray]:
    """(S,) squared error of the answer's confidence, and how much detail is left at a promise of 95 %; nothing on a DAG."""
    ladder = ladder_of(run, h)
    if ladder is None:
        return {}
    right = (run["answer"] == run["truth"]).astype(np.float64)
    answers = np.take_along_axis(ladder.nodes, sure_places(ladder, PROMISE)[:, None], axis=1)[:, 0]
    return {
        CONFIDENCE_ERROR[1]: ((ladder.mass[:, -1] - right) ** 2).astype(np.float32),
        SURE_DETAIL[1]: detail(h)[answers].astype(np.float32),
    }
