"""What a rule with a threshold does on samples whose truth is known, at every threshold at once.

An answer is true when it is the truth or an ancestor of it; the root, or no answer, says nothing. The loss of a false answer
is 1, or its distance to the truth; other answers lose nothing. A sample loses at t what its worst answer at t or any
greater threshold loses, so its loss never grows with t. On a tree the answers of the walk down and of the climb move up one
path as t grows, and that is the loss of the answer at t itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.decisions.ladders import best_by_information, path_to_best_leaf, walk_down
from hace.decisions.literature import hedge_ladder
from hace.decisions.scores import as_nodes, log_q, row_blocks
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import check_distance, virtual_height
from hace.hierarchy.index import is_above
from hace.hierarchy.names import score_columns

AnswerRungs = tuple[
    np.ndarray, np.ndarray
]  # (B, L) nodes, and the greatest threshold at which each is the answer


def _walk(log_q: Tensor, hierarchy: Hierarchy) -> AnswerRungs:
    """A rung is reached when it and all rungs above it pass."""
    nodes, masses = _rungs(*walk_down(log_q, hierarchy), hierarchy)
    return nodes, np.minimum.accumulate(masses, axis=1)


def _climb(log_q: Tensor, hierarchy: Hierarchy) -> AnswerRungs:
    return _rungs(*path_to_best_leaf(log_q, hierarchy), hierarchy)


def _informative(log_q: Tensor, hierarchy: Hierarchy) -> AnswerRungs:
    """A rung never answers where a more informative one has as much mass."""
    nodes, masses = _rungs(*best_by_information(log_q, hierarchy), hierarchy)
    later = np.maximum.accumulate(masses[:, :0:-1], axis=1)[:, ::-1]
    masses[:, :-1][masses[:, :-1] <= later] = -np.inf
    return nodes, masses


def _rungs(nodes: Tensor, masses: Tensor, hierarchy: Hierarchy) -> AnswerRungs:
    """The masses as thresholds; the root, or no answer, passes all of them."""
    steps, reached = nodes.cpu().numpy(), masses.double().exp().cpu().numpy()
    saying = np.append(hierarchy.depths, 0)[steps] > 0
    return steps, np.where(saying, np.minimum(reached, 1.0), 1.0)  # rounding aside, no mass is above 1


# By rule and `constrained`.
LADDERS: dict[tuple[str, bool], Callable[[Tensor, Hierarchy], AnswerRungs]] = {
    ("threshold", True): _walk,
    ("threshold", False): _informative,
    ("climb", True): _climb,
    ("hedge", True): hedge_ladder,
}


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Losses and answers of B samples as the threshold moves, by events.

    Attributes:
        reached: (B, L) the greatest threshold of each event, falling; -inf for none.
        loss: (B, L) the loss of the sample up to that threshold, growing.
        answered: (B,) the greatest threshold at which each sample has an answer below the root; -inf for none.
        first: (B,) the child of the root that its answers are under, or -1.
    """

    reached: np.ndarray
    loss: np.ndarray
    answered: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.answered)

    def take(self, rows: np.ndarray) -> Outcomes:
        """The outcomes of some samples."""
        return Outcomes(self.reached[rows], self.loss[rows], self.answered[rows], self.first[rows])

    @cached_property
    def _events(self) -> tuple[np.ndarray, np.ndarray]:
        """(E,) thresholds in growing order, and (E + 1,) the loss of all samples above so many of them."""
        gain = np.diff(self.loss, axis=1, prepend=0)
        scores, gain = self.reached[gain > 0], gain[gain > 0]
        order = np.argsort(scores)
        total = np.concatenate([[0], np.cumsum(gain[order])])
        return scores[order], total[-1] - total

    @cached_property
    def _answers(self) -> np.ndarray:
        return np.sort(self.answered)

    def places(self, answers: bool = False) -> np.ndarray:
        """Where the loss changes (with ``answers``, the number of answers too), from the greatest down to -inf."""
        scores = self._events[0]
        scores = np.concatenate([scores, self._answers]) if answers else scores
        return np.append(np.unique(scores[scores > -np.inf])[::-1], -np.inf)

    def loss_above(self, places: np.ndarray) -> np.ndarray:
        """The loss of all samples at thresholds just above each place."""
        scores, above = self._events
        return above[np.searchsorted(scores, places, side="right")]

    def answers_above(self, places: np.ndarray) -> np.ndarray:
        """How many samples have an answer below the root at thresholds just above each place."""
        return len(self) - np.searchsorted(self._answers, places, side="right")


def outcomes_of(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    rule: str = "threshold",
    constrained: bool = True,
    distance: str | None = None,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Outcomes:
    """The outcomes of a rule on samples.

    Args:
        scores: (B, n) or (B, N).
        target: (B,) truths.
        hierarchy: the hierarchy.
        rule: ``"threshold"``, ``"climb"`` or ``"hedge"``.
        constrained: see :func:`hace.predict`.
        distance: None: a false answer loses 1; otherwise its distance to the truth.
        labels: what the targets are.
        kind: what the scores are.
        outputs: what their columns are.
    """
    if (rule, constrained) not in LADDERS:
        raise ConfigError(
            "rule must be 'threshold', 'climb' or 'hedge', the rules with a threshold; constrained=False belongs to the "
            f"first. Got {rule!r} with constrained={constrained!r}."
        )
    if distance is not None:
        check_distance(distance)
    scores = scores if isinstance(scores, torch.Tensor) else np.asarray(scores)
    score_columns(tuple(scores.shape), hierarchy, "nodes" if kind == "node_log_probs" else outputs)
    truth = as_nodes(target, hierarchy, "target", of=labels).numpy()
    if truth.shape != (len(scores),):
        raise DataError(
            f"target must hold one truth for each of the {len(scores)} samples. Got shape {truth.shape}."
        )
    ladder = LADDERS[rule, constrained]
    parts = [_outcomes(np.full((0, 1), -1), np.zeros((0, 1)), truth[:0], hierarchy, distance)]
    for rows in row_blocks(len(scores), hierarchy.num_nodes):
        q = log_q(scores[rows], hierarchy, kind=kind, outputs=outputs)
        parts.append(_outcomes(*ladder(q, hierarchy), truth[rows], hierarchy, distance))
    return _joined(parts)


def first_nodes(scores: Any, hierarchy: Hierarchy, rule: str, kind: str, outputs: str) -> np.ndarray:
    """(B,) the child of the root that the answers to each sample are under, or -1."""
    parts = [np.zeros(0, dtype=np.int64)]
    for rows in row_blocks(len(scores), hierarchy.num_nodes):
        nodes, _ = LADDERS[rule, True](log_q(scores[rows], hierarchy, kind=kind, outputs=outputs), hierarchy)
        parts.append(_first(nodes, hierarchy))
    return np.concatenate(parts)


def _first(nodes: np.ndarray, hierarchy: Hierarchy) -> np.ndarray:
    saying = np.append(hierarchy.depths, 0)[nodes] > 0
    top = np.take_along_axis(nodes, saying.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(saying.any(axis=1), top, -1)


def _outcomes(
    nodes: np.ndarray, reached: np.ndarray, truth: np.ndarray, h: Hierarchy, distance: str | None
) -> Outcomes:
    """Of ladders (B, L): the events in falling order, with the running maximum of the losses."""
    below = np.append(h.depths, 0)[nodes] > 0
    each = np.broadcast_to(truth[:, None], nodes.shape)
    false = below & ~is_above(h, nodes.ravel(), each.ravel()).reshape(nodes.shape)
    loss = false.astype(np.int64)
    if distance is not None:
        loss[false] = h.distances(nodes[false], each[false], distance, labels="nodes")
    events = np.where(false, reached, -np.inf)
    order = np.argsort(-events, axis=1, kind="stable")
    answered = np.where(below, reached, -np.inf).max(axis=1, initial=-np.inf)
    return Outcomes(
        np.take_along_axis(events, order, axis=1),
        np.maximum.accumulate(np.take_along_axis(loss, order, axis=1), axis=1),
        answered,
        _first(nodes, h),
    )


def _joined(parts: list[Outcomes]) -> Outcomes:
    """Outcomes of all samples; ladders of one block may be shorter than those of another."""
    width = max(part.reached.shape[1] for part in parts)
    padded = [
        (
            np.pad(part.reached, ((0, 0), (0, width - part.reached.shape[1])), constant_values=-np.inf),
            np.pad(part.loss, ((0, 0), (0, width - part.loss.shape[1])), mode="edge"),
            part.answered,
            part.first,
        )
        for part in parts
    ]
    return Outcomes(*(np.concatenate(arrays) for arrays in zip(*padded, strict=True)))


def greatest_distance(hierarchy: Hierarchy, distance: str) -> int:
    """A bound on the distance of two nodes that the hierarchy alone gives."""
    check_distance(distance)
    bounds = {
        "lca_height": virtual_height(hierarchy),
        "lca_depth": hierarchy.max_depth,
        "edges": 2 * hierarchy.max_depth,
    }
    return int(bounds[distance])
