"""Path sums: outputs of all nodes become logits of the classes, so that relatives share what their ancestors learn."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.hierarchy.index import preorder_labels
from hace.losses import numerics
from hace.losses.kernels import path_sums as kernel
from hace.losses.table_module import TableModule

_NEAR = 16.0  # a largest sum that is small enough to stay


class PathSums(TableModule):
    r"""A class's logit is its own output plus a share of the outputs of all its ancestors.

    .. math:: \ell_c = z_c + s \sum_{v \text{ above } c} z_v

    On a DAG each ancestor counts once, however many ways lead up to it. Sums are taken in double precision and rounded once.

    Args:
        hierarchy: the taxonomy: a tree, a forest or a DAG.
        sharing: s >= 0. At 0 inner outputs do nothing and have no gradient.
    """

    leaf_nodes: Tensor
    factor: Tensor
    level: Tensor
    end: Tensor
    parent: Tensor
    label: Tensor
    pair_nodes: Tensor
    pair_labels: Tensor

    def __init__(self, hierarchy: Hierarchy, sharing: float) -> None:
        super().__init__()
        h = self.hierarchy = hierarchy
        self.sharing = float(sharing)
        self.constant("leaf_nodes", h.leaf_nodes)
        self.constant("factor", np.where(h.labels >= 0, 1.0, self.sharing))
        if not h.is_tree:
            ancestor, descendant = h.reachability()  # each node with itself among them
            ends = h.labels[descendant] >= 0
            self.constant("pair_nodes", ancestor[ends])
            self.constant("pair_labels", h.labels[descendant[ends]])
            return
        self.constant("level", (h.depths - h.depths.min()).astype(np.int32))
        self.constant("end", h.subtree_ends)
        self.constant("parent", np.where(h.parent_nodes < 0, h.num_nodes, h.parent_nodes))
        self.constant("label", preorder_labels(h).astype(np.int32))

    @property
    def adds(self) -> bool:
        """Whether any class's logit has a share of other outputs."""
        return self.sharing != 0 and self.hierarchy.num_nodes != self.hierarchy.num_leaves

    @property
    def tree(self) -> kernel.Tree:
        """The paths of the classes, for the kernel."""
        return kernel.Tree(self.level, self.end, self.parent, self.label, self.sharing)

    def forward(self, z: Tensor, levels: numerics.Levels | None, *, centred: bool = False) -> Tensor:
        """(B, N) outputs -> (B, n) logits of the classes in label order.

        Args:
            z: outputs in node order.
            levels: the tree cut into levels; None on a DAG.
            centred: take the row's largest off before rounding, where it is beyond 16 in size; no softmax sees that.
                However large the outputs, a class's logit then carries the rounding of its distance from the best class.
        """
        if not self.adds:
            return z.index_select(1, self.leaf_nodes)  # an inner output of inf times 0 must not count
        if levels is not None and kernel.serves(z, self.tree):
            return kernel.path_sums(z, self.tree, centred, lambda z: self._sums(z, levels, centred=False))
        return self._sums(z, levels, centred=centred)

    def _sums(self, z: Tensor, levels: numerics.Levels | None, *, centred: bool) -> Tensor:
        """The same in plain PyTorch: sums in double precision, where the device has it."""
        shares = z.to(numerics.wide_dtype(z)) * self.factor
        if levels is not None:
            sums = numerics.sum_down(shares, levels).index_select(1, self.leaf_nodes)
        else:
            terms = shares.t().index_select(0, self.pair_nodes)  # (pairs, B)
            sums = (
                terms.new_zeros(self.hierarchy.num_leaves, z.shape[0])
                .index_add(0, self.pair_labels, terms)
                .t()
            )
        if centred:
            top = numerics.finite_shift(sums.detach().amax(dim=1, keepdim=True))
            sums = sums - top.masked_fill(top.abs() <= _NEAR, 0.0)
        return sums.to(z.dtype)
