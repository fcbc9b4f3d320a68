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
from typing import NamedTuple

import numpy as np

from hace.decisions.bounds import RiskBound
from hace.decisions.ladders import Ladder
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import cached_on_hierarchy
from hace.hierarchy.distances import relations

DERIVED = "answers"  # heading of the metrics that follow from stored predictions alone
SIBLINGS = "siblings"  # top-1 over the classes that share their parent with another
GUARANTEE = 0.95
CONFIDENCE_ERROR = (DERIVED, "confidence_error")
SURE_DETAIL = (DERIVED, "sure_detail")
DRAWS = 300  # bootstrap draws of the samples


@dataclass(frozen=True, eq=False)
class AnswerLadder(Ladder):
    """The answers of a run to its test samples as they climb from the best class, and whether each rung is true."""

    is_true: np.ndarray  # (S, L) whether a node is the truth or above it
    groups: np.ndarray | None = None  # (S,) of each sample, where there are groups

    @cached_property
    def false_up_to(self) -> np.ndarray:
        """(S,) the greatest threshold at which each sample's answer is false; 0 for none."""
        bound = ~self.is_true.T * np.finfo(self.reached.dtype).max  # 0 where true; np.where is slow
        return np.minimum(self.reached.T, bound).max(axis=0)

    @cached_property
    def rising(self) -> tuple[np.ndarray, np.ndarray]:
        """The same of each half, in order."""
        first, second = self.resampled.halves
        return np.sort(self.false_up_to[first]), np.sort(self.false_up_to[second])

    def rungs_above(self, limits: Iterable[float]) -> np.ndarray:
        """(S,) the rung that answers each sample, above the limit of its half."""
        limit = np.empty_like(self.false_up_to)
        for rows, value in zip(self.resampled.halves, limits, strict=True):
            limit[rows] = value
        # The first rung always passes, and what is reached falls from rung to rung.
        return (self.reached.T[1:] > limit).sum(axis=0, dtype=np.int16).astype(np.intp)

    @property
    def resampled(self) -> Resampled:
        """The halves and the draws of its samples."""
        groups = None if self.groups is None else self.groups.astype(np.int64).tobytes()
        return resampled(len(self), groups)


def run_ladder(run: Mapping[str, np.ndarray], h: Hierarchy) -> AnswerLadder | None:
    """The ladder of a run's predictions; None on a DAG, or where too little was stored."""
    mass = run.get("path_confidence")
    if not h.is_tree or mass is None or not mass.shape[1]:
        return None
    up = np.append(h.parent_nodes, -1)
    if h.rooted:
        up[0] = 0
    last = mass.shape[1] - 1
    nodes = np.empty(mass.T.shape, dtype=np.int64)  # the root, or -1 where there is none, repeats in front
    nodes[last] = run["answer"]
    for rung in range(last, 0, -1):
        up.take(nodes[rung], out=nodes[rung - 1], mode="wrap")
    reached = np.ascontiguousarray(mass.T)
    reached[0] = np.inf  # the root, or no answer, always passes
    shared = run["met"] if "met" in run else levels_met(h, run["truth"], nodes[last])
    depth = h.depths.astype(np.int16).take(nodes[last])
    is_true = np.arange(-last, 1, dtype=np.int16)[:, None] + depth <= shared
    return AnswerLadder(h, nodes.T, reached.T, is_true.T, run.get("group"))


_carried = cached_on_hierarchy(
    lambda h: [h.level_nodes(k).astype(np.int32) for k in range(1, h.max_depth + 1)]
)


def levels_met(h: Hierarchy, truth: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """(S,) at how many levels, from the top, answers are carried up to the same node as truths. Trees only."""
    shared = np.full(len(truth), h.max_depth, dtype=np.int16)
    wrong = np.flatnonzero(answer != truth)
    truth = truth.take(wrong)
    answer = answer.take(wrong)
    shared[wrong] = sum((nodes.take(truth) == nodes.take(answer) for nodes in _carried(h)), np.int16(0))
    return shared


def conformal_limits(
    false_up_to: np.ndarray,
    counts: np.ndarray,
    guarantee: float,
    sizes: np.ndarray | None = None,
    rising: np.ndarray | None = None,
) -> np.ndarray:
    """(R,) the limit that answers must exceed to keep a guarantee, from R draws (S, R) of samples with these thresholds.

    A sample is answered falsely up to its threshold. So of thresholds from the greatest down, the draw's limit is the first at
    which more samples are false than conformal risk control allows; inf where the samples are too few.

    Args:
        false_up_to: (S,) the thresholds of the samples.
        counts: (S, R) how often each sample is in each draw.
        guarantee: the share of samples without a false answer.
        sizes: (R,) the samples of each draw, where they are known already.
        rising: the thresholds in order, where they are known already.
    """
    infinite = false_up_to.dtype.type(np.inf)
    if not len(false_up_to):
        return np.full(counts.shape[1], infinite)
    number = counts.sum(axis=0, dtype=np.int64) if sizes is None else sizes
    rising = np.sort(false_up_to) if rising is None else rising
    allowed = RiskBound.of_accuracy(guarantee, None, "samples").allowed(number)
    most_allowed = int(allowed.max(initial=0))
    # In a draw about as many samples are above its limit as may be false. Sorting all samples of all draws would take
    # most of the time, so only a band of thresholds about this place is; it widens until it holds the limits of all draws.
    expected = len(rising) - most_allowed
    reach = 4 * math.isqrt(most_allowed + 1) + 16
    while True:
        low = max(expected - reach, 0)
        high = min(expected + reach, len(rising))
        band, above = _between(false_up_to, rising[low], rising[high - 1])
        false_above = counts.take(above, axis=0).sum(axis=0, dtype=np.int32)
        false = false_above + np.cumsum(counts.take(band, axis=0), axis=0, dtype=np.int32)  # (band, R)
        band_is_all = len(band) == len(rising)
        if band_is_all or ((false[0] <= allowed) & (false[-1] > allowed)).all():
            break
        reach *= 4
    first_too_many = (false <= allowed).sum(axis=0)  # its place in the band; beyond the band where none is
    limits = np.append(false_up_to[band], infinite)[first_too_many]
    return np.where(allowed < 0, infinite, limits)


def _between(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """The places of the values from a low to a high one, the greatest first; and of those above."""
    band = np.flatnonzero((values >= low) & (values <= high))
    return band[np.argsort(-values[band])], np.flatnonzero(values > high)


def sure_places(ladder: AnswerLadder, guarantees: Sequence[float]) -> list[np.ndarray]:
    """(S,) the rung of each sample's answer under each guarantee; 0 is the root, or no answer."""
    return [
        ladder.rungs_above(_limit_of_samples(other, guarantee) for other in ladder.rising[::-1])
        for guarantee in guarantees
    ]


def _limit_of_samples(rising: np.ndarray, guarantee: float) -> float:
    """:func:`conformal_limits` of the samples themselves, in order."""
    size = len(rising)
    allowed = int(RiskBound.of_accuracy(guarantee, None, "samples").allowed(np.array([size]))[0])
    return rising[size - 1 - allowed] if 0 <= allowed < size else math.inf


def detail_parts(ladder: AnswerLadder, worth: np.ndarray, guarantee: float) -> tuple[np.ndarray, np.ndarray]:
    """The worth of the answers on bootstrap draws of the samples, each with the limits that it chooses, in two parts.

    (DRAWS,) what the limits of draws decide, summed over the few samples near them; (S,) what a sample counts in any draw.
    """
    halves, counts, of_halves, sizes = ladder.resampled
    limits = [
        conformal_limits(
            ladder.false_up_to[halves[half]], of_halves[half], guarantee, sizes[half], ladder.rising[half]
        )
        for half in (1, 0)
    ]
    surest = ladder.rungs_above(limit.max() for limit in limits)
    boldest = ladder.rungs_above(limit.min() for limit in limits)
    changing = np.zeros(DRAWS)
    for rows, limit in zip(halves, limits, strict=True):
        near = rows[surest[rows] < boldest[rows]]  # some draws answer them in another way than others
        # Masses fall, so every rung above the limit adds its step of worth.
        masses = ladder.reached.T[1:].take(near, axis=1)
        steps = np.diff(worth.T.take(near, axis=1), axis=0)
        rung, at = np.nonzero((masses <= limit.max()) & (masses > limit.min()))
        above = counts.take(near[at], axis=0) * (masses[rung, at, None] > limit).view(np.uint8)
        changing += steps[rung, at].astype(np.float32) @ above
    return changing, worth.T[surest, np.arange(len(surest))]


def detail_draws(parts: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """(K, 1 + DRAWS) the mean worth of K runs on the samples and on each draw, from their "sure_detail" (K, 1 + DRAWS + S)."""
    value, total, fixed = np.split(parts, [1, 1 + DRAWS], axis=1)
    draws = resampled(fixed.shape[1], None if groups is None else groups.astype(np.int64).tobytes())
    counts = draws.counts
    sizes = draws.sizes
    for start in range(0, len(counts), 1 << 14):  # all runs at once, so that the draws are read once
        part = slice(start, start + (1 << 14))
        total = total + fixed[:, part] @ counts[part].astype(fixed.dtype)
    return np.hstack([value, total / sizes.sum(axis=0)])


class Resampled(NamedTuple):
    """Samples in two halves, and bootstrap draws within each half; groups of samples stay whole."""

    halves: tuple[np.ndarray, np.ndarray]  # the samples of each
    counts: np.ndarray  # (S, DRAWS) how often each draw has each sample
    of_halves: tuple[np.ndarray, np.ndarray]  # the same of each half's samples
    sizes: np.ndarray  # (2, DRAWS) how many of each half


@lru_cache(maxsize=2)
def resampled(samples: int, groups: bytes | None) -> Resampled:
    """The halves and draws of so many samples; ``groups`` are the bytes of int64 numbers, one for each sample."""
    names = np.arange(samples) if groups is None else np.frombuffer(groups, dtype=np.int64)
    _, place, size = np.unique(names, return_inverse=True, return_counts=True)
    rng = np.random.default_rng(0)
    units = rng.permutation(len(size))  # samples, or groups of them
    middle = np.searchsorted(np.cumsum(size[units]), samples // 2, side="right")
    of_units = np.zeros((len(size), DRAWS), dtype=np.uint8)
    for half in filter(len, (units[:middle], units[middle:])):
        for draw in range(DRAWS):
            drawn = rng.integers(len(half), size=len(half))
            of_units[half, draw] = np.bincount(drawn, minlength=len(half))
    order = np.argsort(np.argsort(units)[place], kind="stable")
    cut = int(size[units[:middle]].sum())
    halves = order[:cut], order[cut:]
    counts = of_units[place]
    of_halves = counts[halves[0]], counts[halves[1]]
    sizes = np.stack([half.sum(axis=0, dtype=np.int64) for half in of_halves])
    return Resampled(halves, counts, of_halves, sizes)


def confidence_columns(run: Mapping[str, np.ndarray], h: Hierarchy) -> dict[str, np.ndarray]:
    """(S,) squared error of the answer's confidence, and (1 + DRAWS + S,) the detail left at a guarantee of 95%: on the
    samples, then its :func:`detail_parts`; nothing on a DAG.
    """
    ladder = run_ladder(run, h)
    if ladder is None:
        return {}
    right = (run["answer"] == run["truth"]).astype(np.float64)
    worth = relations(h).specificity.take(ladder.nodes.T).T
    of_answers = worth.T[sure_places(ladder, (GUARANTEE,))[0], np.arange(len(worth))]
    detail = [of_answers.mean(), *detail_parts(ladder, worth, GUARANTEE)]
    return {
        CONFIDENCE_ERROR[1]: ((run["path_confidence"][:, -1] - right) ** 2).astype(np.float32),
        SURE_DETAIL[1]: np.hstack(detail).astype(np.float32),
    }
