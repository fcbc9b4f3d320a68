"""One classifier per level: a softmax of its own over the nodes of each level, with summed losses."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from hace.checks import check_choice, require_tree
from hace.hierarchy import Hierarchy
from hace.losses import numerics
from hace.losses.base import ClassWeights, LabelLoss, Labels, Reduction
from hace.losses.head import Head

LevelAnswers = Literal["product", "leaf", "top_down"]


class NodeScoreLoss(LabelLoss):
    """Base of losses over all nodes' outputs whose classes are scored by a rule, and whose probabilities are a softmax of that.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"mean"`` (weighted as torch does), ``"sum"`` or ``"none"``.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        labels: Labels,
        weight: ClassWeights,
        ignore_index: int,
        reduction: Reduction,
    ) -> None:
        require_tree(hierarchy, type(self).__name__)
        super().__init__(
            hierarchy,
            outputs="nodes",
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self.classes = Head(hierarchy, "leaves")

    @abstractmethod
    def class_scores(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, n) scores of the classes in label order."""

    @abstractmethod
    def node_losses(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, N) the loss with each node as the label."""

    def leaf_logits(self, z: Tensor) -> Tensor:
        """(B, n, ...) scores of the classes in label order."""
        rows, restore = self.head.rows(z)
        return restore(self.class_scores(rows))

    def node_log_probs(self, z: Tensor) -> Tensor:
        """(B, N, ...) log-probabilities in node order: a softmax of the classes' scores, added up."""
        rows, restore = self.head.rows(z)
        return restore(self.classes.aggregate(self.class_scores(rows)))

    def label_losses(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) losses."""
        return self.node_losses(z).gather(1, self.label_nodes[rows][:, None])[:, 0]

    def mixed_losses(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) masses -> (B,) losses."""
        losses = self.node_losses(z).index_select(1, self.label_nodes)
        return numerics.table_cross_entropy(-losses, mass)  # 0 times inf is 0


class LevelwiseLoss(NodeScoreLoss):
    r"""One classifier per level: a softmax of its own over the nodes of each level.

    .. math:: \ell(z, y) = -\sum_k \log \operatorname{softmax}_{\text{level } k}(z)_{a_k(y)}

    where a_k(y) is the label's ancestor at level k. A class that ends above a level is carried down: it is one of that
    level's nodes, by the same output. A label at an inner node counts at its own level and those above. The output of a
    root is inert. Trees and forests only.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        answers: how classes are scored. ``"product"``: by the product of the probabilities of their ancestors, each at its
            level. ``"leaf"``: by the deepest classifier alone. ``"top_down"``: by the product of the probabilities among
            siblings, each level's softmax taken over the children of one node.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"mean"`` (weighted as torch does), ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = LevelwiseLoss(h)
        >>> loss(torch.zeros(1, loss.num_outputs), torch.tensor([h.label("husky")]))  # log 2 + log 3
        tensor(1.7918)

    Reference: Silla and Freitas, "A survey of hierarchical classification across different application domains" (2011),
    local classifier per level; ``levelwise_softmax`` in the hiercls code.
    """

    entry: Tensor
    level: Tensor
    inert: Tensor
    group: Tensor
    fixed: Tensor

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        answers: LevelAnswers = "product",
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        check_choice("answers", answers, get_args(LevelAnswers))
        super().__init__(
            hierarchy, labels=labels, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        self.answers: LevelAnswers = answers
        h = hierarchy
        first = np.maximum(h.depths, 1)  # levels of each node: its own, and for a class all below it
        counts = np.where(h.labels >= 0, h.max_depth - first + 1, h.depths > 0)
        entry = np.repeat(np.arange(h.num_nodes), counts)
        later = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.constant("entry", entry)
        self.constant("level", first[entry] + later - 1)
        self.constant("inert", np.zeros(len(entry), dtype=bool))
        self.constant("group", h.parent_nodes + 1)
        self.constant("fixed", (np.arange(h.num_nodes) == 0) & h.rooted)

    def class_scores(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, n) scores of the classes in label order."""
        if self.answers == "leaf":
            return z.index_select(1, self.head.leaf_nodes)
        if self.answers == "product":
            scores = -self.node_losses(z)
        else:
            among = numerics.sibling_log_probs(z, self.group, self.hierarchy.num_nodes + 1, self.fixed)
            scores = numerics.sum_down(among, self.head.levels)
        return scores.index_select(1, self.head.leaf_nodes)

    def node_losses(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, N) the loss with each node as the label."""
        entries = z.index_select(1, self.entry)
        log_p = numerics.sibling_log_probs(entries, self.level, self.hierarchy.max_depth, self.inert)
        own = log_p.new_zeros(z.shape[0], self.hierarchy.num_nodes).index_add(1, self.entry, log_p)
        return -numerics.sum_down(own, self.head.levels)

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        return {"answers": self.answers}
