"""HXE: a weighted sum of conditional cross-entropies along the label's path (Bertinetto et al. 2020)."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, get_args

from hace.checks import check_choice, check_number, is_number, require_tree
from hace.hierarchy import Hierarchy
from hace.losses import tables
from hace.losses.base import ClassWeights, Labels, Reduction
from hace.losses.head import LeafOutputs
from hace.losses.table_loss import TableLoss


class HXELoss(TableLoss):
    r"""Hierarchical cross-entropy over conditionals, HXE.

    .. math:: \ell(z, y) = -\sum_i \lambda(b_i) \log \frac{P(b_i)}{P(b_{i+1})}

    along the path from the label b_0 = y to the top, where P aggregates a softmax over the leaves. At alpha = 0 it is
    cross-entropy. Trees and forests only.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        alpha: decay >= 0; the paper uses 0.2 and 0.5.
        decay: ``"depth"``: lambda(v) = exp(-alpha (depth(v) - 1)), smaller toward the leaves, as in both published
            codes. ``"height"``: lambda(v) = exp(-alpha height(v)), smaller toward the root, as in the paper's words.
        normalize: None, or ``"tree"``: lambda divided by its sum over all nodes, as in the published code. That divides
            the loss, and so the learning rate, by hundreds.
        outputs: ``"leaves"``: the head has n columns. ``"paths"``: it has N, and a class's logit is its own output plus
            ``sharing`` times the sum of its ancestors'.
        sharing: s >= 0 of path sums: how much of each ancestor's output its classes share. 0 is a head over leaves, 1 the
            plain sum along the path; with ``outputs="paths"`` only.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"mean"`` (weighted as torch does), ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> HXELoss(h, alpha=0.0)(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)

    Reference: Bertinetto et al., "Making Better Mistakes" (2020), eq. 2 to 4.
    """

    allowed_outputs = get_args(LeafOutputs)

    def __init__(
        self,
        hierarchy: Hierarchy,
        alpha: float = 0.2,
        *,
        decay: Literal["depth", "height"] = "depth",
        normalize: Literal["tree"] | None = None,
        outputs: LeafOutputs = "leaves",
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        check_number("alpha", alpha, "a number >= 0", is_number(alpha) and alpha >= 0)
        check_choice("decay", decay, ("depth", "height"))
        check_choice("normalize", normalize, (None, "tree"))
        require_tree(hierarchy, "HXELoss")
        super().__init__(
            hierarchy,
            partial(tables.hxe_table, hierarchy, alpha=alpha, decay=decay, normalize=normalize),
            outputs=outputs,
            sharing=sharing,
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self.alpha, self.decay, self.normalize = alpha, decay, normalize

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        return {"alpha": self.alpha, "decay": self.decay, "normalize": self.normalize}
