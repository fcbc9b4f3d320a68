"""Thresholds with a finite-sample guarantee, for the rules whose answers only move up as the threshold grows.

An answer is true when it is the truth or an ancestor of it; the root, or no answer, says nothing. For calibration sample i
let s_i be the greatest threshold at which it is answered falsely (-inf: never) and a_i the greatest at which it is answered at
all. At threshold t, w(t) = #{s_i >= t} of the n samples are answered falsely and m(t) = #{a_i >= t} are answered. With
alpha = 1 - accuracy and delta = 1 - confidence:

    samples, without confidence   the least t with (w(t) + 1) / (n + 1) <= alpha               conformal risk control
    samples, with confidence      the least t with P(Bin(n, alpha) <= w(t)) <= delta            Clopper-Pearson
    answers, with confidence      downward while P(Bin(m(t), alpha) <= w(t)) <= delta           the same, of a ratio

The counts change only at the s_i and a_i, so the search over them is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from hace.decisions.ladders import path_to_best_leaf, walk_down
from hace.decisions.scores import as_nodes, log_q, row_blocks
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.columns import score_columns
from hace.hierarchy.index import is_above
from hace.hierarchy.tensors import layout
from hace.losses.checks import is_number

LADDERS: dict[str, Callable[[Tensor, Hierarchy], tuple[Tensor, Tensor]]] = {
    "threshold": walk_down,
    "climb": path_to_best_leaf,
}


@overload
def guaranteed_threshold(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    accuracy: float = ...,
    confidence: float | None = ...,
    of: str = ...,
    *,
    rule: str = ...,
    groups: None = None,
    labels: str = ...,
    kind: str = ...,
    outputs: str = ...,
) -> float: ...
@overload
def guaranteed_threshold(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    accuracy: float = ...,
    confidence: float | None = ...,
    of: str = ...,
    *,
    rule: str = ...,
    groups: str | Sequence[Any] | np.ndarray,
    labels: str = ...,
    kind: str = ...,
    outputs: str = ...,
) -> dict[Any, float]: ...
def guaranteed_threshold(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    accuracy: float = 0.95,
    confidence: float | None = None,
    of: str = "samples",
    *,
    rule: str = "threshold",
    groups: str | Sequence[Any] | np.ndarray | None = None,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> float | dict[Any, float]:
    """The least threshold of ``predict`` that keeps a promise on new samples.

    An answer is true when it is the truth or an ancestor of it; an answer at the root, or none, says nothing. An answer
    below a truth at an inner node counts as false.

    What the promise assumes: the calibration samples and the new ones are exchangeable (same source, same model, same
    preparation of the scores, no ``subset``); the model, its temperature and this call were settled without looking at the
    new samples, and the model and its temperature without these calibration samples. The promise is about the average new
    sample, not about each class; ``groups`` make one for each group. ``of="answers"`` also assumes that the share of false
    answers crosses 1 - accuracy once as the threshold falls.

    Args:
        scores: (B, n) over leaves in label order or (B, N) over nodes in node order, of held-out samples.
        target: (B,) truths: labels of leaves, or any nodes with ``labels="nodes"``.
        hierarchy: the hierarchy; a tree or forest for ``rule="climb"``.
        accuracy: the promised share, above 0 and below 1.
        confidence: None: the promise holds on average over calibration samples and new samples. A probability: with at
            least this probability over the choice of the calibration samples, the threshold found keeps the promise.
        of: ``"samples"``: at most 1 - accuracy of all samples get a false answer; a sample without an answer is not false.
            ``"answers"``: of the answers below the root, at least the share ``accuracy`` is true; needs ``confidence``.
        rule: the rule of ``predict`` that the threshold is for: ``"threshold"`` (the walk down) or ``"climb"``.
        groups: None: one threshold. (B,) the group of each sample, known without its truth: one for each group.
            ``"top"``: by the child of the root that the answer is under.
        labels: what the targets are: ``"leaves"`` or ``"nodes"`` (indices into ``hierarchy.nodes``).
        kind: what the scores are: ``"logits"``, ``"probs"``, ``"log_probs"`` or ``"node_log_probs"``.
        outputs: what their columns are: ``"leaves"``, ``"nodes"``, or ``"auto"`` to tell by their number.

    Returns:
        The threshold, from 0 to 1; with ``groups``, a dict of thresholds by group (for ``"top"``, by node id).

    Raises:
        DataError: too few samples for the promise (the message says how many it takes), or no threshold keeps it.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> p = np.array([[0.5, 0.3, 0.2]] * 10 + [[0.1, 0.1, 0.8]] * 29)
        >>> y = [1] * 10 + [2] * 29  # the unsure answers are false
        >>> t = guaranteed_threshold(p, y, h, accuracy=0.9, kind="probs")
        >>> 0.5 < t < 0.51
        True
    """
    promise = Promise.of_arguments(accuracy, confidence, of)
    wrong, answered, first = answer_scores(
        scores, target, hierarchy, rule=rule, labels=labels, kind=kind, outputs=outputs
    )
    if groups is None:
        return promise.threshold(wrong, answered)
    members = _members(groups, first, hierarchy)
    found, problems = {}, []
    for name, rows in members.items():
        try:
            found[name] = promise.threshold(wrong[rows], answered[rows])
        except DataError as error:
            problems.append(f"Group {name!r}: {error}")
    if problems:
        raise DataError(problems)
    return found


def answer_scores(
    scores: Any, target: Any, hierarchy: Hierarchy, *, rule: str, labels: str, kind: str, outputs: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each sample the greatest threshold at which it is answered falsely, and at all; and its first node.

    Args:
        scores: (B, n) or (B, N).
        target: (B,) truths.
        hierarchy: the hierarchy.
        rule: a key of :data:`LADDERS`.
        labels: what the targets are.
        kind: what the scores are.
        outputs: what their columns are.

    Returns:
        (B,), (B,), (B,): thresholds from 0 to 1, -inf for never; the first node of each ladder below the root, or -1.
    """
    if rule not in LADDERS:
        raise ConfigError(
            f"rule must be one of {', '.join(LADDERS)}: the answers of others may move down as the threshold grows. "
            f"Got {rule!r}."
        )
    scores = scores if isinstance(scores, torch.Tensor) else np.asarray(scores)
    score_columns(tuple(scores.shape), hierarchy, "nodes" if kind == "node_log_probs" else outputs)
    truth = as_nodes(target, hierarchy, "target", of=labels).numpy()
    if truth.shape != (len(scores),):
        raise DataError(
            f"target must hold one truth for each of the {len(scores)} samples. Got shape {truth.shape}."
        )
    depths = np.append(hierarchy.depths, 0)
    wrong, answered = np.empty(len(scores)), np.empty(len(scores))
    first = np.full(len(scores), -1)
    for rows in row_blocks(len(scores), hierarchy.num_nodes):
        steps, masses = LADDERS[rule](log_q(scores[rows], hierarchy, kind=kind, outputs=outputs), hierarchy)
        nodes = steps.cpu().numpy()
        reached = np.minimum(masses.double().exp().cpu().numpy(), 1.0)  # rounding aside, no mass is above 1
        below = depths[nodes] > 0
        if rule == "threshold":  # a rung is reached when it and all rungs above it pass
            reached = np.minimum.accumulate(np.where(below, reached, 1.0), axis=1)
        above = is_above(hierarchy, nodes.ravel(), np.repeat(truth[rows], nodes.shape[1]))
        false = below & ~above.reshape(nodes.shape)
        wrong[rows] = np.where(false, reached, -np.inf).max(axis=1)
        answered[rows] = np.where(below, reached, -np.inf).max(axis=1)
        top = np.take_along_axis(nodes, below.argmax(axis=1)[:, None], axis=1)[:, 0]
        first[rows] = np.where(below.any(axis=1), top, -1)
    return wrong, answered, first


def _members(
    groups: str | Sequence[Any] | np.ndarray, first: np.ndarray, hierarchy: Hierarchy
) -> dict[Any, np.ndarray]:
    """The rows of each group."""
    if isinstance(groups, str):
        if groups != "top":
            raise ConfigError(f"groups must be None, 'top' or one group for each sample. Got {groups!r}.")
        place = layout(hierarchy)
        start, count, child = (part.numpy() for part in place.children)
        tops = child[start[place.walk_start] :][: count[place.walk_start]]
        return {hierarchy.nodes[v]: np.flatnonzero(first == v) for v in tops.tolist()}
    given = groups.tolist() if isinstance(groups, np.ndarray | Tensor) else list(groups)
    if len(given) != len(first):
        raise DataError(f"groups must name one group for each of the {len(first)} samples. Got {len(given)}.")
    if not given:
        raise DataError("scores must hold at least one sample. Got none.")
    rows: dict[Any, list[int]] = {}
    for row, name in enumerate(given):
        rows.setdefault(name, []).append(row)
    return {name: np.array(row) for name, row in rows.items()}


@dataclass(frozen=True)
class Promise:
    """What a threshold guarantees.

    Attributes:
        alpha: the share of false answers it allows.
        delta: the probability of breaking the promise; None for a promise on average.
        of: ``"samples"`` or ``"answers"``.
    """

    alpha: Fraction
    delta: Fraction | None
    of: str

    @classmethod
    def of_arguments(cls, accuracy: float, confidence: float | None, of: str) -> Promise:
        """The promise, in exact fractions: 1 - 0.9 is a tenth."""
        if of not in ("samples", "answers"):
            raise ConfigError(f"of must be 'samples' or 'answers'. Got {of!r}.")
        shares = {"accuracy": accuracy} | ({} if confidence is None else {"confidence": confidence})
        for name, share in shares.items():
            if not is_number(share) or not 0 < share < 1:
                raise ConfigError(f"{name} must be a number above 0 and below 1. Got {share!r}.")
        if of == "answers" and confidence is None:
            raise ConfigError(
                "of='answers' needs confidence: its promise is a ratio and holds with a probability, not on average. "
                "Give confidence=0.9, or of='samples'."
            )
        exact = {name: 1 - Fraction(str(float(share))) for name, share in shares.items()}
        return cls(exact["accuracy"], exact.get("confidence"), of)

    def needed(self) -> int:
        """The least number of samples (or answers) that allows a promise at all: with none of them false."""
        if self.delta is None:
            return math.ceil(1 / self.alpha) - 1
        number = max(1, math.floor(math.log(self.delta) / math.log1p(-self.alpha)) - 1)
        while not self.holds(np.array([0]), np.array([number]))[0]:
            number += 1
        return number

    def holds(self, false: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Whether so many false answers among so many samples support the promise."""
        if self.delta is None:
            return np.array(
                [f + 1 <= self.alpha * (n + 1) for f, n in zip(false.tolist(), number.tolist(), strict=True)]
            )
        from scipy.special import bdtr

        return bdtr(false.astype(float), number.astype(np.int64), float(self.alpha)) <= float(self.delta)

    def threshold(self, wrong: np.ndarray, answered: np.ndarray) -> float:
        """The least threshold that keeps the promise.

        Args:
            wrong: (B,) the greatest threshold at which each sample is answered falsely; -inf: never.
            answered: (B,) the greatest at which it is answered at all.
        """
        needed, number = self.needed(), len(wrong)
        if number < needed:
            how = "" if self.delta is None else f" with confidence {float(1 - self.delta):g}"
            raise DataError(
                f"scores must hold at least {needed} samples to promise {float(1 - self.alpha):g} of the {self.of}{how}. "
                f"Got {number}. Calibrate on more samples, or ask for less."
            )
        # The counts at thresholds just above each of these scores, the safest first; below the last one, at 0.
        among = wrong if self.of == "samples" else np.concatenate([wrong, answered])
        places = np.append(np.unique(among[among > -np.inf])[::-1], -np.inf)
        false = number - np.searchsorted(np.sort(wrong), places, side="right")
        if self.of == "samples":
            total, start = np.full(len(places), number), 0
        else:
            total = number - np.searchsorted(np.sort(answered), places, side="right")
            start = int(np.searchsorted(total, self.first_test(number)))
        kept = self.holds(false[start:], total[start:])
        last = start + (int(np.argmin(kept)) if not kept.all() else len(kept)) - 1
        threshold = 0.0 if last >= 0 and places[last] == -np.inf else np.nextafter(places[max(last, 0)], 2.0)
        if last < start or threshold > 1:
            raise DataError(
                f"No threshold from 0 to 1 promises {float(1 - self.alpha):g} of the {self.of}: too many answers are false "
                "however sure the model is. Ask for a lower accuracy, or calibrate on more samples."
            )
        return float(threshold)

    def first_test(self, number: int) -> int:
        """How many answers the first test of ``of="answers"`` takes: enough to bear half the allowed share of false ones.

        A test of fewer answers fails by a single false one, and the search ends at the first that fails.
        """
        tries = np.arange(self.needed(), number + 1)
        bearing = np.flatnonzero(self.holds(np.ceil(float(self.alpha) * tries / 2), tries))
        enough = int(tries[bearing[0]]) if len(bearing) else number
        return min(enough, max(self.needed(), number // 2))
