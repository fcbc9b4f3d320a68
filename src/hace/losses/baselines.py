"""Losses outside the one equation that people compare with: conditional softmax, SimLoss, expected distance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.losses import numerics as functional
from hace.losses.base import HierarchicalLoss, check_number, is_number
from hace.losses.leaf_distances import LeafDistances
from hace.losses.table_losses import require_tree

_CHUNK = 1 << 22  # (sample, label, class) entries held at once when targets are soft


class ConditionalSoftmaxLoss(HierarchicalLoss):
    r"""Softmax among siblings; a node's probability is the product along its path.

    .. math:: \ell(z, y) = -\sum_i \log P(b_i \mid b_{i+1}), \qquad
        P(v \mid \text{parent}) = \operatorname{softmax}_{\text{siblings of } v}(z)_v

    The tops of a forest are siblings; a root has probability 1 and its output is inert. Trees and forests only.

    Args:
        hierarchy: the taxonomy, without nodes of several parents.
        kwargs: see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = ConditionalSoftmaxLoss(h)
        >>> loss(torch.zeros(1, loss.num_outputs), torch.tensor([h.label("husky")]))
        tensor(1.3863)

    Reference: Redmon and Farhadi, "YOLO9000" (2017), hierarchical classification.
    """

    group: Tensor
    fixed: Tensor

    def __init__(self, hierarchy: Hierarchy, **kwargs: Any) -> None:
        require_tree(hierarchy, "ConditionalSoftmaxLoss")
        super().__init__(hierarchy, outputs="nodes", **kwargs)
        h = hierarchy
        self.constant("group", h.parent_nodes + 1)  # siblings share their parent; 0: the tops
        self.constant("fixed", (np.arange(h.num_nodes) == 0) & h.rooted)

    def node_log_probs(self, z: Tensor) -> Tensor:
        """(B, N, ...) log-probabilities in node order: sums of the conditionals along the path."""
        rows, restore = self.head.rows(z)
        return restore(self._log_probs(rows))

    def leaf_logits(self, z: Tensor) -> Tensor:
        """(B, n, ...) log-probabilities of the classes in label order."""
        rows, restore = self.head.rows(z)
        return restore(self._log_probs(rows).index_select(1, self.head.leaf_nodes))

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses."""
        losses = -self._log_probs(z).gather(1, self.label_nodes[rows][:, None])[:, 0]
        return losses if self.label_weight is None else losses * self.label_weight[rows].to(z.dtype)

    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""
        weighted = target if self.label_weight is None else target * self.label_weight.to(target.dtype)
        return functional.table_cross_entropy(self._log_probs(z).index_select(1, self.label_nodes), weighted)

    def _log_probs(self, z: Tensor) -> Tensor:
        conditional = functional.sibling_log_probs(z, self.group, self.hierarchy.num_nodes + 1, self.fixed)
        return functional.sum_down(conditional, self.head.levels)


class _DistanceLoss(HierarchicalLoss):
    """A loss of the class probabilities p and one row of distances for each label."""

    def __init__(self, hierarchy: Hierarchy, distance: str, **kwargs: Any) -> None:
        super().__init__(hierarchy, outputs="leaves", **kwargs)
        self.distances = LeafDistances(hierarchy, self.label_nodes.numpy(), distance)
        self.distance = distance

    def of_rows(self, log_p: Tensor, distance: Tensor) -> Tensor:
        """The loss from log p and distances that broadcast with it; the last dimension is summed away."""
        raise NotImplementedError

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses."""
        losses = self.of_rows(z.log_softmax(dim=1), self.distances(rows).to(z.dtype))
        return losses if self.label_weight is None else losses * self.label_weight[rows].to(z.dtype)

    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""
        weighted = target if self.label_weight is None else target * self.label_weight.to(target.dtype)
        log_p = z.log_softmax(dim=1)
        losses = z.new_zeros(len(z))
        size = max(1, _CHUNK // max(1, z.numel()))
        for part in torch.arange(self.num_labels, device=z.device).split(size):
            rows = self.of_rows(log_p[:, None], self.distances(part).to(z.dtype))  # (B, part)
            losses = losses + functional.table_cross_entropy(-rows, weighted[:, part])  # 0 times inf is 0
        return losses


class SimLoss(_DistanceLoss):
    r"""SimLoss: the logarithm of the similarity that is to be expected.

    .. math:: \ell(z, y) = -\log \sum_c S[y, c] \operatorname{softmax}(z)_c, \qquad S[y, c] =
    r^{\operatorname{dist}(y, c)}

    At r = 0 it is cross-entropy.

    Args:
        hierarchy: the taxonomy.
        reduction_factor: r in [0, 1), how much similarity a step of distance leaves.
        distance: see :meth:`hace.Hierarchy.distances`.
        kwargs: see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> SimLoss(h, 0.5)(torch.zeros(1, 3), torch.tensor([h.label("husky")]))
        tensor(0.5390)

    Reference: Kobs et al., "SimLoss: Class Similarities in Cross Entropy" (2020), eq. 2.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        reduction_factor: float = 0.5,
        *,
        distance: str = "lca_height",
        **kwargs: Any,
    ) -> None:
        fits = is_number(reduction_factor) and 0 <= reduction_factor < 1
        check_number("reduction_factor", reduction_factor, "in [0, 1)", fits)
        super().__init__(hierarchy, distance, **kwargs)
        self.reduction_factor = reduction_factor

    def of_rows(self, log_p: Tensor, distance: Tensor) -> Tensor:
        """- log of the expected similarity."""
        if self.reduction_factor > 0:
            log_similarity = distance * math.log(self.reduction_factor)
        else:
            log_similarity = torch.where(distance == 0, 0.0, -torch.inf)  # 0 ** 0 = 1
        terms = log_p + log_similarity
        nothing = (terms == -torch.inf).all(
            dim=-1
        )  # the loss is inf, and its gradient 0 where nobody asks for it
        return -terms.masked_fill(nothing[..., None], 0.0).logsumexp(dim=-1).masked_fill(nothing, -torch.inf)

    def settings(self) -> dict[str, Any]:
        """The parameters that are this loss's own."""
        return {"reduction_factor": self.reduction_factor, "distance": self.distance}


class ExpectedDistanceLoss(_DistanceLoss):
    r"""The expected distance of a class drawn from the model: a cost-sensitive baseline.

    .. math:: \ell(z, y) = \sum_c \operatorname{dist}(y, c) \operatorname{softmax}(z)_c

    Args:
        hierarchy: the taxonomy.
        distance: see :meth:`hace.Hierarchy.distances`.
        kwargs: see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> ExpectedDistanceLoss(h)(torch.zeros(1, 3), torch.tensor([h.label("husky")]))
        tensor(1.0000)

    Reference: Deng et al., "What Does Classifying More Than 10,000 Image Categories Tell Us?" (2010), hierarchical
    cost.
    """

    def __init__(self, hierarchy: Hierarchy, *, distance: str = "lca_height", **kwargs: Any) -> None:
        super().__init__(hierarchy, distance, **kwargs)

    def of_rows(self, log_p: Tensor, distance: Tensor) -> Tensor:
        """The expected distance."""
        return (log_p.exp() * distance).sum(dim=-1)

    def settings(self) -> dict[str, Any]:
        """The parameters that are this loss's own."""
        return {"distance": self.distance}
