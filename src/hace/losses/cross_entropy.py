"""Cross-entropy over the classes, the baseline of every comparison; with soft labels; and HXE (Bertinetto et al. 2020)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from hace.checks import check_choice, check_number, is_number, require_tree
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import Distance
from hace.losses import tables
from hace.losses.base import LeafLossOptions
from hace.losses.fused_linear import PathRanges
from hace.losses.head import LeafOutputs
from hace.losses.kernels import SOFT_LABELS, Call
from hace.losses.table_loss import TableLoss

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CrossEntropyLoss(TableLoss):
    r"""Standard cross-entropy over the leaves, with uniform label smoothing.

    .. math:: \ell(z, y) = -\sum_c \big[(1 - \varepsilon) 1[c = y] + \varepsilon / n\big] \log
        \operatorname{softmax}(z)_c

    A label at an inner node (``labels="nodes"``) asks for the probability of all classes below it.

    Args:
        hierarchy: the taxonomy; it decides the order of the columns only.
        label_smoothing: eps in [0, 1); the paper uses 0.1 (eq. 3).
        **shared: ``outputs`` (leaves or paths), ``sharing`` and the rest: :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> loss = CrossEntropyLoss(Hierarchy.flat(["cat", "dog"]))
        >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.6931)
    """

    allowed_outputs = get_args(LeafOutputs)

    def __init__(
        self, hierarchy: Hierarchy, label_smoothing: float = 0.0, **shared: Unpack[LeafLossOptions]
    ) -> None:
        up = shared.get("labels") == "nodes"  # labels at the leaves ask for nothing above them
        super().__init__(hierarchy, label_smoothing=label_smoothing, aggregate=up, **shared)

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses; torch's own serves labels at the leaves."""
        if self.labels == "nodes":
            return super().per_sample(z, rows)
        weight = None if self.label_weight is None else self.label_weight.to(z.dtype)
        return F.cross_entropy(z, rows, weight, reduction="none", label_smoothing=self.label_smoothing)

    @property
    def _on_one_path(self) -> bool:
        if self.labels == "nodes":
            return super()._on_one_path
        return self.shared is None and self.head.path_sums is None

    def _path(self, rows: Tensor) -> PathRanges:
        if self.labels == "nodes":
            return super()._path(rows)
        return PathRanges(rows[:, None], rows[:, None] + 1, self.value[rows][:, None], None)


class SoftLabelLoss(TableLoss):
    r"""Cross-entropy with LCA soft labels over the leaves.

    .. math:: \ell(z, y) = -\sum_c s_y(c) \log \operatorname{softmax}(z)_c, \qquad
        s_y(c) \propto \exp(-\beta \operatorname{dist}(y, c) / \max \operatorname{dist})

    As beta grows it becomes cross-entropy.

    Args:
        hierarchy: the taxonomy.
        beta: sharpness > 0; the paper uses 10 and 30, its authors 4 to 30.
        distance: see :meth:`hace.Hierarchy.distances`.
        **shared: ``outputs`` (leaves or paths), ``sharing`` and the rest: :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> SoftLabelLoss(h, beta=10)(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)

    Reference: Bertinetto et al., "Making Better Mistakes" (2020), eq. 5.
    """

    allowed_outputs = get_args(LeafOutputs)

    def __init__(
        self,
        hierarchy: Hierarchy,
        beta: float = 10.0,
        *,
        distance: Distance = "lca_height",
        **shared: Unpack[LeafLossOptions],
    ) -> None:
        check_number("beta", beta, "a number above 0", is_number(beta) and beta > 0)
        up = shared.get("labels") == "nodes"  # labels at the leaves ask for nothing above them
        super().__init__(hierarchy, soft_label_beta=beta, distance=distance, aggregate=up, **shared)
        self.beta = beta

    def kernel_call(self) -> Call | None:
        """The compiled loss for batches of labels; None where there is none."""
        served = self.head.outputs == self.labels == "leaves" and self.label_weight is None
        if not served or self.soften is None:
            return super().kernel_call()
        return self.soften.call(SOFT_LABELS, -self.sharpness, self.head.column, None)


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
        **shared: ``outputs`` (leaves or paths), ``sharing`` and the rest: :class:`hace.losses.base.HierarchicalLoss`.

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
        **shared: Unpack[LeafLossOptions],
    ) -> None:
        check_number("alpha", alpha, "a number >= 0", is_number(alpha) and alpha >= 0)
        check_choice("decay", decay, ("depth", "height"))
        check_choice("normalize", normalize, (None, "tree"))
        require_tree(hierarchy, "HXELoss")
        table = partial(tables.hxe_table, hierarchy, alpha=alpha, decay=decay, normalize=normalize)
        super().__init__(hierarchy, table=table, **shared)
        self.alpha, self.decay, self.normalize = alpha, decay, normalize
