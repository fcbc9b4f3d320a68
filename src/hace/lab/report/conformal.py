"""The rank a model is sure of: answers that climb from the best class until a promise holds.

A promise such as 95% says: at most 5% of the samples get a wrong answer. Its threshold needs samples of its own, and a final
run has none but the test samples. So these are halved at random, each half is answered with the threshold of the other, and no
sample helps to choose its own. Groups of samples stay whole. Another draw of the samples would choose other thresholds, so
intervals resample calibration and evaluation together (benchmarks/detail_coverage.py, with its table).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.hierarchy.distances import relations

DERIVED = "answers"  # heading of the metrics that follow from kept predictions alone
SIBLINGS = "siblings"  # top-1 over the classes that share their parent with another
PROMISE = 0.95
CONFIDENCE_ERROR = (DERIVED, "confidence_error")
SURE_DETAIL = (DERIVED, "sure_detail")
DRAWS = 300  # bootstrap draws of the samples


class AnswerLadder(NamedTuple):
    """(S, L) of the nodes from the root to each answer."""

    nodes: np.ndarray  # the root, or -1 where there is none, repeats in front
    mass: np.ndarray  # their probabilities, falling
    true: np.ndarray  # whether a node is the truth or above it
    groups: np.ndarray | None = None  # (S,) of each sample, where there are groups


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
    return AnswerLadder(path.T, np.ascontiguousarray(mass.T).T, is_above(h, path, truth).T, run.get("group"))


def sure_places(ladder: AnswerLadder, promises: Sequence[float]) -> list[np.ndarray]:
    """(S,) the rung of each sample's answer under each promise; 0 is the root, or no answer."""
    theta, halves = _theta(ladder), _resampled(ladder)[0]
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


def detail_parts(ladder: AnswerLadder, worth: np.ndarray, promise: float) -> tuple[np.ndarray, np.ndarray]:
    """The worth of the answers on bootstrap draws of the samples, each with the thresholds that it chooses, in two parts.

    (DRAWS,) what the thresholds of draws decide, summed over the few samples near them; (S,) what a sample counts in any draw.
    """
    theta, (halves, counts, sizes) = _theta(ladder), _resampled(ladder)
    changing, fixed = np.zeros(DRAWS), worth[:, 0].copy()
    low, high = np.empty_like(theta), np.empty_like(theta)
    limits = []
    for rows, others, size in zip(halves, reversed(halves), reversed(sizes), strict=True):
        limit = _limits(theta[others], counts, others, size, promise)
        low[rows], high[rows] = limit.min(initial=np.inf), limit.max(initial=0.0)
        limits.append(limit)
    second = np.zeros(len(theta), dtype=bool)
    second[halves[1]] = True
    # Masses fall, so every rung above the limit adds its step of worth.
    for rung in range(1, ladder.mass.shape[1]):
        at, step = ladder.mass[:, rung], worth[:, rung] - worth[:, rung - 1]
        fixed += np.where(at > high, step, 0.0)
        some = (at > low) & (at <= high)  # above the limits of some draws
        for half, limit in zip((~second, second), limits, strict=True):
            own = np.flatnonzero(some & half)
            changing += step[own] @ (counts[own] * (at[own, None] > limit).view(np.uint8))
    return changing, fixed


def _limits(
    theta: np.ndarray, counts: np.ndarray, rows: np.ndarray, total: np.ndarray, promise: float
) -> np.ndarray:
    """(DRAWS,) the conformal threshold of each draw of `rows`, from the samples about where it is expected."""
    size, rank, most = len(theta), np.ceil((total + 1) * promise), (1 - promise) * len(theta)
    around = 4 * most**0.5 + 16
    while size:
        last, first = max(0, int(size - most - around)), min(size, int(size - most + around))
        order = np.partition(theta, [last, first - 1])
        band = np.flatnonzero((theta >= order[last]) & (theta <= order[first - 1]))
        band = band[np.argsort(theta[band])]
        above = counts[rows[theta > order[first - 1]]].sum(axis=0, dtype=np.int32)
        reached = np.cumsum(counts[rows[band]], axis=0, dtype=np.int32)
        reached += total - above - reached[-1]
        whole = len(band) == size
        if whole or ((reached[0] < rank) & (reached[-1] >= rank)).all():
            return np.append(theta[band], theta.dtype.type(np.inf))[(reached < rank).sum(axis=0)]
        around *= 4
    return np.full(DRAWS, np.inf, dtype=theta.dtype)


def detail_draws(parts: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """(K, 1 + DRAWS) the mean worth of K runs on the samples and on each draw, from their "sure_detail" (K, 1 + DRAWS + S)."""
    value, total, fixed = np.split(parts, [1, 1 + DRAWS], axis=1)
    _, counts, sizes = _draws(fixed.shape[1], None if groups is None else groups.astype(np.int64).tobytes())
    for start in range(0, len(counts), 1 << 14):  # all runs at once, so that the draws are read once
        part = slice(start, start + (1 << 14))
        total = total + fixed[:, part] @ counts[part].astype(fixed.dtype)
    return np.hstack([value, total / sizes.sum(axis=0)])


def _resampled(ladder: AnswerLadder) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """Two halves of the samples, (S, DRAWS) how often each draw has each sample, and (2, DRAWS) how many of each half."""
    groups = None if ladder.groups is None else ladder.groups.astype(np.int64).tobytes()
    return _draws(len(ladder.mass), groups)


@lru_cache(maxsize=2)
def _draws(
    samples: int, groups: bytes | None
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    names = np.arange(samples) if groups is None else np.frombuffer(groups, dtype=np.int64)
    _, place, size = np.unique(names, return_inverse=True, return_counts=True)
    rng = np.random.default_rng(0)
    units = rng.permutation(len(size))  # samples, or groups of them
    middle = np.searchsorted(np.cumsum(size[units]), samples // 2, side="right")
    counts = np.zeros((len(size), DRAWS), dtype=np.uint8)
    for half in filter(len, (units[:middle], units[middle:])):
        for draw in range(DRAWS):
            counts[half, draw] = np.bincount(rng.integers(len(half), size=len(half)), minlength=len(half))
    order = np.argsort(np.argsort(units)[place], kind="stable")
    first = int(size[units[:middle]].sum())
    halves, counts = (order[:first], order[first:]), counts[place]
    return halves, counts, np.stack([counts[half].sum(axis=0, dtype=np.int32) for half in halves])


def threshold(theta: np.ndarray, promise: float) -> float:
    """The conformal threshold of n samples, which answers must exceed: the ceil((n + 1) promise)-th smallest theta."""
    rank = math.ceil((len(theta) + 1) * promise)
    return np.inf if rank > len(theta) else float(theta[rank - 1])


def confidence_columns(run: Mapping[str, np.ndarray], h: Hierarchy) -> dict[str, np.ndarray]:
    """(S,) squared error of the answer's confidence, and (1 + DRAWS + S,) the detail left at a promise of 95%: on the samples,
    then its :func:`detail_parts`; nothing on a DAG.
    """
    ladder = ladder_of(run, h)
    if ladder is None:
        return {}
    right = (run["answer"] == run["truth"]).astype(np.float64)
    worth = relations(h).specificity[ladder.nodes]
    said = np.take_along_axis(worth, sure_places(ladder, (PROMISE,))[0][:, None], axis=1)
    return {
        CONFIDENCE_ERROR[1]: ((ladder.mass[:, -1] - right) ** 2).astype(np.float32),
        SURE_DETAIL[1]: np.hstack([said.mean(), *detail_parts(ladder, worth, PROMISE)]).astype(np.float32),
    }
