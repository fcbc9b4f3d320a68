"""The rank a model is sure of: answers that climb from the best class until a guarantee holds.

A guarantee such as 95% says: at most 5% of the samples get a wrong answer. Its threshold needs samples of its own, and a final
run has none but the test samples. So these are halved at random, each half is answered with the threshold of the other, and no
sample helps to choose its own. Groups of samples stay whole. Another draw of the samples would choose other thresholds, so
intervals resample calibration and evaluation together (benchmarks/detail_coverage.py, with its table).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import cached_on_hierarchy
from hace.hierarchy.distances import relations

DERIVED = "answers"  # heading of the metrics that follow from kept predictions alone
SIBLINGS = "siblings"  # top-1 over the classes that share their parent with another
GUARANTEE = 0.95
CONFIDENCE_ERROR = (DERIVED, "confidence_error")
SURE_DETAIL = (DERIVED, "sure_detail")
DRAWS = 300  # bootstrap draws of the samples
_Draws = tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class AnswerLadder:
    """(S, L) of the nodes from the root to each answer."""

    nodes: np.ndarray  # the root, or -1 where there is none, repeats in front
    mass: np.ndarray  # their probabilities, falling
    true: np.ndarray  # whether a node is the truth or above it
    groups: np.ndarray | None = None  # (S,) of each sample, where there are groups

    @cached_property
    def theta(self) -> np.ndarray:
        """(S,) the smallest threshold at which each sample's answer is true."""
        bound = ~self.true.T * np.finfo(self.mass.dtype).max  # 0 where true; np.where is slow
        return np.minimum(self.mass.T, bound).max(axis=0)

    @cached_property
    def known(self) -> list[np.ndarray]:
        """Theta of each half, in order."""
        return [np.sort(self.theta[rows]) for rows in _resampled(self)[0]]

    def place(self, limits: Iterable[float]) -> np.ndarray:
        """(S,) the deepest rung with more mass than the limit of the sample's half: masses fall, so they are counted."""
        limit = np.empty_like(self.theta)
        for rows, value in zip(_resampled(self)[0], limits, strict=True):
            limit[rows] = value
        return (self.mass.T[1:] > limit).sum(axis=0, dtype=np.int16).astype(np.intp)


def ladder_of(run: Mapping[str, np.ndarray], h: Hierarchy) -> AnswerLadder | None:
    """The ladder of a run's predictions; None on a DAG, or where the run kept too little."""
    mass = run.get("path_confidence")
    if not h.is_tree or mass is None or not mass.shape[1]:
        return None
    up = np.append(h.parent_nodes, -1)
    if h.rooted:
        up[0] = 0
    path, last = np.empty(mass.T.shape, dtype=np.int64), mass.shape[1] - 1
    path[last] = run["answer"]
    for rung in range(last, 0, -1):
        up.take(path[rung], out=path[rung - 1], mode="wrap")
    met = run["met"] if "met" in run else levels_met(h, run["truth"], path[last])
    true = np.arange(-last, 1, dtype=np.int16)[:, None] + h.depths.astype(np.int16).take(path[last]) <= met
    return AnswerLadder(path.T, np.ascontiguousarray(mass.T).T, true.T, run.get("group"))


_carried = cached_on_hierarchy(
    lambda h: [h.level_nodes(k).astype(np.int32) for k in range(1, h.max_depth + 1)]
)


def levels_met(h: Hierarchy, truth: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """(S,) at how many levels, from the top, answers are carried up to the same node as truths. Trees only."""
    found, wrong = np.full(len(truth), h.max_depth, dtype=np.int16), np.flatnonzero(answer != truth)
    truth, answer = truth.take(wrong), answer.take(wrong)
    found[wrong] = sum((nodes.take(truth) == nodes.take(answer) for nodes in _carried(h)), np.int16(0))
    return found


def sure_places(ladder: AnswerLadder, guarantees: Sequence[float]) -> list[np.ndarray]:
    """(S,) the rung of each sample's answer under each guarantee; 0 is the root, or no answer."""
    return [ladder.place(threshold(others, p) for others in reversed(ladder.known)) for p in guarantees]


def detail_parts(ladder: AnswerLadder, worth: np.ndarray, guarantee: float) -> tuple[np.ndarray, np.ndarray]:
    """The worth of the answers on bootstrap draws of the samples, each with the thresholds that it chooses, in two parts.

    (DRAWS,) what the thresholds of draws decide, summed over the few samples near them; (S,) what a sample counts in any draw.
    """
    halves, counts, _ = _resampled(ladder)
    limits, changing = [_limits(ladder, other, guarantee) for other in (1, 0)], np.zeros(DRAWS)
    least, most = (ladder.place(map(end, limits)) for end in (np.max, np.min))
    for rows, limit in zip(halves, limits, strict=True):
        near = rows[least[rows] < most[rows]]  # some draws answer them in another way than others
        # Masses fall, so every rung above the limit adds its step of worth.
        masses, steps = ladder.mass.T[1:].take(near, axis=1), np.diff(worth.T.take(near, axis=1), axis=0)
        rung, at = np.nonzero((masses <= limit.max()) & (masses > limit.min()))
        above = counts.take(near[at], axis=0) * (masses[rung, at, None] > limit).view(np.uint8)
        changing += steps[rung, at].astype(np.float32) @ above
    return changing, worth.T[least, np.arange(len(least))]


def _limits(ladder: AnswerLadder, half: int, guarantee: float) -> np.ndarray:
    """(DRAWS,) the conformal threshold of each draw of a half, from the samples about where it is expected."""
    halves, counts, sizes = _resampled(ladder)
    rows, total, order = halves[half], sizes[half], ladder.known[half]
    size, theta, most = len(rows), ladder.theta[rows], (1 - guarantee) * len(rows)
    rank, around = np.ceil((total + 1) * guarantee), 4 * most**0.5 + 16
    small = np.int16 if total.max() < 1 << 14 else np.int32
    while size:
        low, high = order[max(0, int(size - most - around))], order[min(size, int(size - most + around)) - 1]
        band = np.flatnonzero((theta >= low) & (theta <= high))
        band = band[np.argsort(theta[band])]
        above = counts.take(rows[theta > high], axis=0).sum(axis=0, dtype=small)
        reached = counts.take(rows[band], axis=0).astype(small)
        for step in (1 << k for k in range((len(band) - 1).bit_length())):  # running sums; np.cumsum is slow
            reached[step:] += reached[:-step]
        wanted = (rank - (total - above - reached[-1])).astype(small)
        if len(band) == size or ((reached[0] < wanted) & (reached[-1] >= wanted)).all():
            return np.append(theta[band], theta.dtype.type(np.inf))[(reached < wanted).sum(axis=0)]
        around *= 4
    return np.full(DRAWS, np.inf, dtype=ladder.theta.dtype)


def detail_draws(parts: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """(K, 1 + DRAWS) the mean worth of K runs on the samples and on each draw, from their "sure_detail" (K, 1 + DRAWS + S)."""
    value, total, fixed = np.split(parts, [1, 1 + DRAWS], axis=1)
    _, counts, sizes = _draws(fixed.shape[1], None if groups is None else groups.astype(np.int64).tobytes())
    for start in range(0, len(counts), 1 << 14):  # all runs at once, so that the draws are read once
        part = slice(start, start + (1 << 14))
        total = total + fixed[:, part] @ counts[part].astype(fixed.dtype)
    return np.hstack([value, total / sizes.sum(axis=0)])


def _resampled(ladder: AnswerLadder) -> _Draws:
    """Two halves of the samples, (S, DRAWS) how often each draw has each sample, and (2, DRAWS) how many of each half."""
    groups = None if ladder.groups is None else ladder.groups.astype(np.int64).tobytes()
    return _draws(len(ladder.mass), groups)


@lru_cache(maxsize=2)
def _draws(samples: int, groups: bytes | None) -> _Draws:
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


def threshold(theta: np.ndarray, guarantee: float) -> float:
    """The conformal threshold of n samples, which answers must exceed: the ceil((n + 1) guarantee)-th smallest theta."""
    rank = math.ceil((len(theta) + 1) * guarantee)
    return np.inf if rank > len(theta) else float(theta[rank - 1])


def confidence_columns(run: Mapping[str, np.ndarray], h: Hierarchy) -> dict[str, np.ndarray]:
    """(S,) squared error of the answer's confidence, and (1 + DRAWS + S,) the detail left at a guarantee of 95%: on the samples,
    then its :func:`detail_parts`; nothing on a DAG.
    """
    ladder = ladder_of(run, h)
    if ladder is None:
        return {}
    right = (run["answer"] == run["truth"]).astype(np.float64)
    worth = relations(h).specificity.take(ladder.nodes.T).T
    said = worth.T[sure_places(ladder, (GUARANTEE,))[0], np.arange(len(worth))]
    return {
        CONFIDENCE_ERROR[1]: ((ladder.mass[:, -1] - right) ** 2).astype(np.float32),
        SURE_DETAIL[1]: np.hstack([said.mean(), *detail_parts(ladder, worth, GUARANTEE)]).astype(np.float32),
    }
