"""Conditional softmax: one softmax per group of siblings."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.checks import require_tree
from hace.hierarchy import Hierarchy
from hace.losses import kernels, numerics
from hace.losses.base import ClassWeights, LabelLoss, Labels, Reduction
from hace.losses.kernels.autograd import Call
from hace.losses.kernels.label_losses import Siblings, sibling_call


class ConditionalSoftmaxLoss(LabelLoss):
    r"""Softmax among siblings; a node's probability is the product along its path.

    .. math:: \ell(z, y) = -\sum_i \log P(b_i \mid b_{i+1}), \qquad
        P(v \mid \text{parent}) = \operatorname{softmax}_{\text{siblings of } v}(z)_v

    The tops of a forest are siblings; a root has probability 1 and its output is inert. Trees and forests only.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"mean"`` (weighted as torch does), ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = ConditionalSoftmaxLoss(h)
        >>> loss(torch.zeros(1, loss.num_outputs), torch.tensor([h.label("husky")]))
        tensor(1.3863)

    Reference: Redmon and Farhadi, "YOLO9000" (2017), hierarchical classification.
    """

    group: Tensor
    fixed: Tensor

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        require_tree(hierarchy, "ConditionalSoftmaxLoss")
        super().__init__(
            hierarchy,
            outputs="nodes",
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self.constant("group", hierarchy.parent_nodes + 1)  # siblings share their parent; 0: the tops
        self.constant("fixed", (np.arange(hierarchy.num_nodes) == 0) & hierarchy.rooted)

    def node_log_probs(self, z: Tensor) -> Tensor:
        """(B, N, ...) log-probabilities in node order: sums of the conditionals along the path."""
        rows, restore = self.head.rows(z)
        return restore(self._log_probs(rows))

    def leaf_logits(self, z: Tensor) -> Tensor:
        """(B, n, ...) log-probabilities of the classes in label order."""
        rows, restore = self.head.rows(z)
        return restore(self._log_probs(rows).index_select(1, self.head.leaf_nodes))

    def kernel_call(self) -> Call | None:
        """The compiled loss for batches of labels; None where the buffers are elsewhere."""
        if not kernels.is_plain(self.group):
            return None
        member = self.group.argsort(stable=True)
        groups = torch.arange(self.hierarchy.num_nodes + 2)
        first = torch.searchsorted(self.group[member], groups)
        tree = Siblings(
            self.label_nodes, self.head.parent, first, member.to(torch.int32), self.hierarchy.rooted
        )
        return sibling_call(tree, self.label_weight)

    def label_losses(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) losses."""
        return -self._log_probs(z).gather(1, self.label_nodes[rows][:, None])[:, 0]

    def mixed_losses(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) masses -> (B,) losses."""
        return numerics.table_cross_entropy(self._log_probs(z).index_select(1, self.label_nodes), mass)

    def _log_probs(self, z: Tensor) -> Tensor:
        conditional = numerics.sibling_log_probs(z, self.group, self.hierarchy.num_nodes + 1, self.fixed)
        return numerics.sum_down(conditional, self.head.levels)
