"""What a rule with a threshold says to samples as the threshold falls, and what that loses, at every threshold at once.

A :class:`Ladder` holds the answers of a rule to each sample: the root, or no answer, first, then one rung after another. A rung
answers where the threshold is low enough for it and too high for the next.

:class:`Outcomes` say what these answers lose where the truth is known. An answer is true when it is the truth or an ancestor of
it; the root, or no answer, says nothing. The loss of a false answer is 1, or its distance to the truth; other answers lose
nothing. A sample loses at t what its worst answer at t or any greater threshold loses, so its loss never grows with t. On a
tree the answers of the walk down and of the climb move up one path as t grows, and that is the loss of the answer at t itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.decisions.decisions import Decisions
from hace.decisions.scores import Scores
from hace.decisions.threshold_rules import (
    best_by_information,
    hedge_steps,
    path_to_best_leaf,
    path_to_best_own,
    walk_down,
)
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above, layout
from hace.hierarchy.distances import check_distance, virtual_height

NOTHING = 2.0  # a threshold above every mass: answer nothing below the root
_TIED = 2.0**-22  # scores this close are one score: four units of single precision just below 1


@dataclass(frozen=True, eq=False)
class Ladder:
    """The answers of a rule to B samples as its threshold falls; made by :func:`ladder_of`, or :meth:`of` masses."""

    hierarchy: Hierarchy
    nodes: np.ndarray  # (B, L), the root or -1 first
    # (B, L) the greatest threshold that each rung, or a later one, passes; it never grows along a row
    reached: np.ndarray

    @classmethod
    def of(cls, hierarchy: Hierarchy, nodes: np.ndarray, masses: np.ndarray) -> Ladder:
        """From the masses of rungs, each of which passes the thresholds up to its mass; the root passes all of them.

        A rung never answers where a later one has as much mass.
        """
        says = np.append(hierarchy.depths, 0)[nodes] > 0
        passed = np.where(says, np.minimum(masses, 1.0), np.inf)  # rounding aside, no mass is above 1
        return cls(hierarchy, nodes, np.maximum.accumulate(passed[:, ::-1], axis=1)[:, ::-1])

    @classmethod
    def joined(cls, parts: Sequence[Ladder]) -> Ladder:
        """The ladders of several batches as one; those of one batch may be shorter than those of another."""
        longest = max(part.nodes.shape[1] for part in parts)
        nodes = []
        reached = []
        for part in parts:
            missing = ((0, 0), (0, longest - part.nodes.shape[1]))
            nodes.append(np.pad(part.nodes, missing, mode="edge"))
            reached.append(np.pad(part.reached, missing, constant_values=-np.inf))
        return cls(parts[0].hierarchy, np.concatenate(nodes), np.concatenate(reached))

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def says(self) -> np.ndarray:
        """(B, L) whether a rung is below the root."""
        return np.append(self.hierarchy.depths, 0)[self.nodes] > 0

    def rung(self, threshold: float | np.ndarray) -> np.ndarray:
        """(B,) the rung that answers at a threshold, or at each sample's own."""
        passing = threshold <= self.reached.T
        return passing.sum(axis=0, dtype=np.int16).astype(np.intp) - 1

    def answers(self, threshold: float | np.ndarray) -> np.ndarray:
        """(B,) the nodes that answer at a threshold; -1 for no answer."""
        return self.nodes[np.arange(len(self)), self.rung(threshold)]

    def tops(self) -> np.ndarray:
        """(B,) the child of the root that the answers to each sample are under, or -1."""
        says = self.says
        first = np.take_along_axis(self.nodes, says.argmax(axis=1)[:, None], axis=1)[:, 0]
        return np.where(says.any(axis=1), first, -1)

    def true(self, truth: np.ndarray) -> np.ndarray:
        """(B, L) whether each rung is the truth (B,) or above it."""
        each = np.repeat(truth, self.nodes.shape[1])
        return is_above(self.hierarchy, self.nodes.ravel(), each).reshape(self.nodes.shape)

    def outcomes(self, truth: np.ndarray, distance: str | None = None) -> Outcomes:
        """What the answers lose where the truths are (B,) nodes: 1 for a false one or, with ``distance``, its distance."""
        ever = self.reached > np.pad(self.reached[:, 1:], ((0, 0), (0, 1)), constant_values=-np.inf)
        false = self.says & ever & ~self.true(truth)
        loss = false.astype(np.int64)
        if distance is not None:
            check_distance(distance)
            truths = np.broadcast_to(truth[:, None], false.shape)[false]
            loss[false] = self.hierarchy.distances(self.nodes[false], truths, distance, labels="nodes")
        return Outcomes(self.reached, np.maximum.accumulate(loss, axis=1), self.says)


def _from_walk(log_q: Tensor, hierarchy: Hierarchy) -> Ladder:
    """A rung is passed where it and all rungs above it pass."""
    nodes, masses = _arrays(*walk_down(log_q, hierarchy))
    return Ladder.of(hierarchy, nodes, np.minimum.accumulate(masses, axis=1))


def _from_climb(log_q: Tensor, hierarchy: Hierarchy, best: Tensor | None = None) -> Ladder:
    return Ladder.of(hierarchy, *_arrays(*path_to_best_leaf(log_q, hierarchy, best)))


def _from_information(log_q: Tensor, hierarchy: Hierarchy) -> Ladder:
    return Ladder.of(hierarchy, *_arrays(*best_by_information(log_q, hierarchy)))


def _from_hedge(log_q: Tensor, hierarchy: Hierarchy) -> Ladder:
    return Ladder.of(hierarchy, *hedge_steps(log_q, hierarchy))


def _from_own(log_q: Tensor, hierarchy: Hierarchy) -> Ladder:
    return Ladder.of(hierarchy, *_arrays(*path_to_best_own(log_q, hierarchy)))


def _arrays(nodes: Tensor, log_masses: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return nodes.cpu().numpy(), log_masses.double().exp().cpu().numpy()


# By rule and `constrained`: log q* (B, N) in, the ladder out.
LADDERS: dict[tuple[str, bool], Callable[..., Ladder]] = {
    ("threshold", True): _from_walk,
    ("threshold", False): _from_information,
    ("climb", True): _from_climb,
    ("hedge", True): _from_hedge,
    ("own", True): _from_own,
}


def ladder_of(scores: Scores, rule: str = "threshold", constrained: bool = True) -> Ladder:
    """The ladders of a rule, in blocks that bound the memory."""
    if not isinstance(rule, str) or not isinstance(constrained, bool) or (rule, constrained) not in LADDERS:
        raise ConfigError(
            f"rule must be one with a threshold: {', '.join(repr(name) for name, walks in LADDERS if walks)}; "
            f"constrained=False belongs to the first. Got {rule!r} with constrained={constrained!r}."
        )
    make = LADDERS[rule, constrained]
    h = scores.hierarchy
    parts = [make(block.log_q(), h) for _, block in scores.blocks()]
    return Ladder.joined(parts) if parts else make(scores.log_q(), h)


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Losses of B samples as the threshold falls."""

    reached: np.ndarray  # (B, L) the greatest threshold of each rung, falling; -inf for none
    loss: np.ndarray  # (B, L) the loss of the sample down to there, growing
    says: np.ndarray  # (B, L) whether the rung is an answer below the root

    def __len__(self) -> int:
        return len(self.reached)

    def take(self, rows: np.ndarray) -> Outcomes:
        """The outcomes of some samples."""
        return Outcomes(self.reached[rows], self.loss[rows], self.says[rows])

    @cached_property
    def answered(self) -> np.ndarray:
        """(B,) the greatest threshold at which each sample has an answer below the root; -inf for none."""
        return np.where(self.says, self.reached, -np.inf).max(axis=1, initial=-np.inf)

    @cached_property
    def _answered_in_order(self) -> np.ndarray:
        return np.sort(self.answered)

    @cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """(E,) the thresholds at which a loss grows, in growing order, and (E + 1,) the loss of all samples above each."""
        gain = np.diff(self.loss, axis=1, prepend=0)
        places = self.reached[gain > 0]
        gain = gain[gain > 0]
        order = np.argsort(places)
        total = np.concatenate([[0], np.cumsum(gain[order])])
        return places[order], total[-1] - total

    def thresholds(self) -> np.ndarray:
        """Thresholds to choose from, falling from :data:`NOTHING` to 0: midpoints between neighbouring scores.

        So no rounding, such as that of scores computed in another precision, moves a sample across a threshold. Scores
        closer than that rounding are one score, and so are those that round to 1.
        """
        known = self.reached[self.says & (self.reached > -np.inf)]
        scores = np.unique(np.append(known, 1.0))
        first = np.flatnonzero(np.diff(np.rint(scores / _TIED), prepend=-1.0))
        between = (scores[first[1:] - 1] + scores[first[1:]]) / 2
        return np.concatenate([[NOTHING], between[::-1], [0.0]])

    def losses(self, threshold: float) -> np.ndarray:
        """(B,) the loss of each sample at a threshold."""
        passed = (self.reached >= threshold).sum(axis=1, keepdims=True)
        loss = np.take_along_axis(self.loss, np.maximum(passed - 1, 0), axis=1)
        return np.where(passed > 0, loss, 0)[:, 0]

    def counted_losses(self, threshold: float, of: str) -> np.ndarray:
        """The losses of all samples at a threshold; with ``of="answers"``, of those answered below the root."""
        losses = self.losses(threshold)
        return losses[self.answered >= threshold] if of == "answers" else losses

    def loss_at(self, thresholds: np.ndarray) -> np.ndarray:
        """The loss of all samples at each threshold."""
        places, above = self._steps
        return above[np.searchsorted(places, thresholds)]

    def answers_at(self, thresholds: np.ndarray) -> np.ndarray:
        """How many samples have an answer below the root at each threshold."""
        return len(self) - np.searchsorted(self._answered_in_order, thresholds)


def outcomes_of(
    scores: Scores,
    target: Any,
    *,
    rule: str = "threshold",
    constrained: bool = True,
    distance: str | None = None,
    labels: str = "leaves",
) -> Outcomes:
    """The outcomes of a rule on samples with truths (B,); see :meth:`Ladder.outcomes`."""
    truth = scores.truths(target, labels)
    return ladder_of(scores, rule, constrained).outcomes(truth, distance)


def no_answers(scores: Scores) -> Decisions:
    """The root, or no answer, for every sample: the answers at the threshold :data:`NOTHING`."""
    z = scores.checked().data
    nodes = torch.full((len(z),), layout(scores.hierarchy).walk_start, device=z.device)
    return Decisions(scores.hierarchy, nodes, z.new_ones(len(z)))


def greatest_distance(hierarchy: Hierarchy, distance: str) -> int:
    """A bound on the distance of two nodes that the hierarchy alone gives."""
    check_distance(distance)
    deepest = hierarchy.max_depth
    bounds = {"lca_height": virtual_height(hierarchy), "lca_depth": deepest, "edges": 2 * deepest}
    return int(bounds[distance])
