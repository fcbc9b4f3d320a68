"""A batch of truths and what a model says about them.

Every derived quantity is computed once, on first use. The node index -1 is the virtual root: no answer.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from hace.decisions import Decisions
from hace.decisions.rules import all_levels
from hace.decisions.scores import (
    INDEPENDENT,
    Scores,
    as_nodes,
    as_tensor,
    check_truths,
    holds_ids,
    leaf_log_probs,
    level_numbers,
    rank_leaves,
)
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import cached_on_hierarchy, layout, level_choices
from hace.hierarchy.distances import Relations, relations
from hace.losses.kernels import level_squares


class ScoreForms(TypedDict, total=False):
    """What every metric takes: ``preds``, ``target``, ``hierarchy``, and three keywords that say what they hold.

    ``preds`` are scores (floating point, (B, n) over the leaves in label order or (B, N) over the nodes in node order) or
    answers (integers, ids of nodes with None for no answer, or :class:`hace.decisions.Decisions`). ``target`` are integers or
    ids (B,).

    Attributes:
        labels: what integers in ``preds`` and ``target`` are: ``"leaves"``, labels of leaves (the default), or ``"nodes"``,
            node indices, where -1 in ``preds`` means no answer. Decisions are nodes in either case.
        kind: what scores are: ``"logits"`` (the default), ``"probs"``, ``"log_probs"``, ``"node_log_probs"`` or
            ``"sigmoid"``; see :class:`hace.decisions.scores.Scores`.
        outputs: what the columns of scores are: ``"leaves"``, ``"nodes"``, or ``"auto"`` (the default) to tell by their
            number.
    """

    labels: str
    kind: str
    outputs: str


class MetricBatch:
    """Truths (B,) as node indices, and scores or answers (B,) or (B, k); ``labels`` are the best leaves, if known already."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        truth: IntArray,
        *,
        scores: Scores | None = None,
        answers: IntArray | None = None,
        confidence: np.ndarray | None = None,
        labels: Tensor | None = None,
    ) -> None:
        self.hierarchy = hierarchy
        self.truth = truth
        self._scores = scores
        self._answers = answers
        self._confidence = confidence
        self._ranking: IntArray | None = None if labels is None else hierarchy.leaf_nodes[labels.numpy()]
        self._distances: dict[str, IntArray] = {}  # (B, k) by name

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def relations(self) -> Relations:
        """How the nodes of the hierarchy relate to each other."""
        return relations(self.hierarchy)

    @property
    def scores(self) -> Scores:
        """The scores."""
        if self._scores is None:
            raise DataError(
                "preds must be scores over leaves or nodes for this metric. Got answers (integers, ids or Decisions)."
            )
        return self._scores

    @cached_property
    def log_q(self) -> Tensor:
        """(B, N) log q* of the nodes."""
        return self.scores.log_q()

    def ranking(self, k: int) -> IntArray:
        """(B, k) the best leaves, as node indices."""
        if self._ranking is None or self._ranking.shape[1] < k:
            self._ranking = self.hierarchy.leaf_nodes[rank_leaves(self.scores.leaves(), k).cpu().numpy()]
        return self._ranking[:, :k]

    @property
    def answers(self) -> IntArray:
        """(B,) the answers given, or the most probable leaves; -1 means no answer."""
        if self._answers is None:
            return self.ranking(1)[:, 0]
        if self._answers.ndim != 1:
            raise DataError(
                f"preds must hold one answer per sample for this metric. Got {self._answers.shape[1]}."
            )
        return self._answers

    @property
    def sets(self) -> IntArray:
        """(B, K) the answers given, of several nodes each; -1 for no further node."""
        if self._answers is None or self._answers.ndim != 2:
            raise DataError("preds must hold several nodes per sample for this metric.")
        return self._answers

    @property
    def answers_at_levels(self) -> IntArray:
        """(B, H) an answer for every level: those given, or the most probable node of each."""
        if self._answers is None:
            return self.levels.nodes.cpu().numpy()
        depth = self.hierarchy.max_depth
        if self._answers.ndim != 2 or self._answers.shape[1] != depth:
            raise DataError(
                f"preds must hold one answer for each of the levels 1 to {depth}, shape (samples, {depth}), for this "
                f"metric. Got shape {self._answers.shape}."
            )
        return self._answers

    @cached_property
    def confidence(self) -> np.ndarray:
        """(B,) the probability of each answer."""
        if self._confidence is not None:
            return self._confidence
        nodes = torch.from_numpy(self.ranking(1)).to(self.log_q.device)
        # log q* of a leaf is its log-probability.
        if self.scores.outputs == "leaves" or self.scores.kind in INDEPENDENT:
            log_p = self.log_q.gather(1, nodes)
        else:
            labels = torch.from_numpy(self.hierarchy.labels[self.ranking(1)]).to(nodes.device)
            log_p = leaf_log_probs(self.log_q, self.hierarchy).gather(1, labels)
        return log_p.squeeze(1).double().exp().cpu().numpy()

    @cached_property
    def levels(self) -> Decisions:
        """(B, H) the most probable node of every level. Trees and forests only."""
        return all_levels(self.log_q, self.hierarchy)

    @cached_property
    def correct_at_levels(self) -> np.ndarray:
        """(B, H) whether the answer at each level is the truth's node at that level."""
        return self.answers_at_levels == self.carried(self.truth)

    @cached_property
    def level_masses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, H) each: whether the truth has a node at the level, log q* of that node, and the sum of q*^2 over the level.

        A truth at an inner node has none at the levels below it.
        """
        h = self.hierarchy
        log_q = self.log_q.cpu()
        levels = level_numbers(h)
        nodes = self.carried(self.truth)
        known = (h.depths[nodes] == np.asarray(levels)) | (h.labels[nodes] >= 0)
        right = log_q.gather(1, torch.from_numpy(nodes)).double().numpy()
        squares = level_squares(log_q, layout(h).short_depths, len(levels))
        if squares is None:
            squares = ((2 * log_q).exp_() @ _at_levels(h).to(log_q.dtype)).double()
        return known, right, squares.numpy()

    def carried(self, nodes: IntArray, ranks: bool = False) -> IntArray:
        """(B, H) nodes carried to every level 1 to the deepest, and with `ranks` to every rank."""
        levels = level_numbers(self.hierarchy)
        levels = range(1, levels.stop + len(self.hierarchy.rank_names) * ranks)
        each = [self.relations.levels[k][nodes] for k in levels]
        return np.stack(each, axis=-1) if each else nodes[:, None][:, :0]

    def distance(self, distance: str) -> IntArray:
        """(B,) named distance from each answer to its truth."""
        if self._answers is None:
            return self.ranked_distances(1, distance)[:, 0]
        return self.relations.distance(self.answers, self.truth, distance)

    def ranked_distances(self, k: int, distance: str) -> IntArray:
        """(B, k) named distance from each of the best leaves to the truth."""
        known = self._distances.get(distance)
        if known is None or known.shape[1] < k:
            # The next may ask for more.
            longest = k if self._ranking is None else max(k, self._ranking.shape[1])
            ranking = self.ranking(longest)
            truth = np.broadcast_to(self.truth[:, None], ranking.shape)
            far = self.relations.distance(ranking.ravel(), truth.ravel(), distance)
            self._distances[distance] = known = far.reshape(ranking.shape)
        return known[:, :k]


@cached_on_hierarchy
def _at_levels(h: Hierarchy) -> Tensor:
    """(N, H) 1 where a node counts at a level."""
    counts = torch.zeros(h.num_nodes, h.max_depth)
    for column, level in enumerate(level_numbers(h)):
        counts[torch.from_numpy(level_choices(h, level)), column] = 1.0
    return counts


def as_metric_batch(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> MetricBatch:
    """Check predictions and truths in the forms of :class:`ScoreForms`."""
    truth = as_nodes(target, hierarchy, "target", of=labels)
    if truth.dim() != 1:
        check_truths(tuple(truth.shape), truth.numel())
    if isinstance(preds, Decisions):
        if preds.hierarchy != hierarchy:
            raise DataError(
                "preds must be decided over the given hierarchy. Got decisions over another hierarchy; pass preds.hierarchy."
            )
        answers = preds.nodes.cpu()
        confidence = preds.probabilities.detach().double().cpu().numpy()
    elif preds is None or isinstance(preds, str | dict):
        raise DataError(f"preds must be scores, answers or Decisions. Got {preds!r}.")
    elif holds_ids(preds):
        answers = as_nodes(preds, hierarchy, "preds", abstain=True)
        confidence = None
    else:
        preds = as_tensor(preds, "preds")
        confidence = None
        given = preds.is_floating_point()
        answers = None if given else as_nodes(preds, hierarchy, "preds", of=labels, abstain=True)
    scores = Scores(preds, hierarchy, kind, outputs).checked() if answers is None else None
    if len(preds) != len(truth):
        raise DataError(
            f"preds and target must have one row per sample. Got {len(preds)} and {len(truth)} rows."
        )
    nodes = None if answers is None else answers.numpy()
    return MetricBatch(hierarchy, truth.numpy(), scores=scores, answers=nodes, confidence=confidence)
