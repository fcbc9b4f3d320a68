"""The leave-one-out term: losses over nodes learn "another of this group" from classes that they know."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.hierarchy.hierarchy import Labels
from hace.losses import numerics
from hace.losses.base import ClassWeights, LabelLoss, Reduction
from hace.losses.distance_losses import padded
from hace.losses.kernels.loss_calls import KernelCall, prepare_call
from hace.losses.tables import path_entries

_TRIPLES = 1 << 24  # (sample, ancestor, output) triples held at once on a DAG


class LeaveOneOutLoss(LabelLoss):
    r"""Hide the branch of each ancestor s that holds the label y, and train the own output of s to beat everything left.

    .. math:: u(z, y) = \sum_{s \text{ above } y} \Big(\operatorname{logsumexp}_{i \notin B(s, y)} z_i - z_s\Big)

    B(s, y) are the children of s that are y or above it, and everything below them. A model without that branch has never
    seen y, and s is the most specific true answer it has. On a tree B is a range of columns: see
    :func:`hace.losses.numerics.outside_log_sums`. On a DAG every (sample, ancestor) pair has a mask of its own.

    Args:
        hierarchy: the taxonomy: a tree, a forest or a DAG.
        strength: what the term is multiplied by.
        labels, weight, ignore_index, reduction: as in every loss; see :class:`hace.losses.base.HierarchicalLoss`.
    """

    allowed_outputs = ("nodes",)

    def __init__(
        self,
        hierarchy: Hierarchy,
        strength: float = 1.0,
        *,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(
            hierarchy, labels=labels, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        self.strength = strength
        if hierarchy.is_tree:
            self._set_paths(hierarchy)
        else:
            self._set_edges(hierarchy)

    def _set_paths(self, h: Hierarchy) -> None:
        self.constant("end", h.subtree_ends)
        self.constant("above", np.maximum(h.parent_nodes, 0))
        self.constant("is_top", h.parent_nodes < 0)
        start, node, _ = path_entries(h, self.label_nodes.numpy())
        self.longest = int(np.diff(start).max())
        self.constant("start", start)
        self.constant("node", node)

    def _set_edges(self, h: Hierarchy) -> None:
        """Per label of a DAG: its ancestors, in slots, and the edges from them down to nodes at or above the label."""
        num_edges: list[int] = []  # of each label
        num_ancestors: list[int] = []
        children: list[int] = []  # the lower end of every edge, label after label
        slots: list[int] = []  # where the upper end is among the label's ancestors
        ancestors: list[int] = []  # the slots of all labels, one after another
        for label in self.label_nodes.tolist():
            slot_of: dict[int, int] = {}
            edges = _edges_above(h, label)
            for parent, child in edges:
                slots.append(slot_of.setdefault(parent, len(slot_of)))
                children.append(child)
            ancestors += slot_of
            num_edges.append(len(edges))
            num_ancestors.append(len(slot_of))
        self.longest = max(num_edges)
        self.most = max(num_ancestors)
        self.constant("start", np.cumsum([0, *num_edges]))
        self.constant("child", np.array(children, dtype=np.int64))
        self.constant("slot", np.array(slots, dtype=np.int64))
        self.constant("first", np.cumsum([0, *num_ancestors]))
        self.constant("ancestor", np.array(ancestors, dtype=np.int64))

    def kernel_call(self) -> KernelCall | None:
        """The compiled loss for batches of labels; None on a DAG."""
        if not self.hierarchy.is_tree:
            return None
        tensors = (self.start, self.node, self.end, self.head.level)
        return prepare_call("outside_loss", tensors, (self.strength,), self.num_labels, self.label_weight)

    def unweighted_losses(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, N) logits and (B,) labels -> (B,) terms."""
        if self.hierarchy.is_tree:
            entry, _ = padded(rows, self.start, self.longest)
            path = self.node[entry]  # filled up with tops, which have no term
            terms = self._of_nodes(z, path).sum(dim=1).to(z.dtype)
        elif len(z):
            few = max(1, _TRIPLES // max(1, self.most * z.shape[1]))
            parts = zip(z.split(few), rows.split(few), strict=True)
            terms = torch.cat([self._on_dag(*part) for part in parts])
        else:
            terms = z.sum(dim=1)
        return self.strength * terms

    def mixed_losses(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, N) logits and (B, labels) masses -> (B,) sums of the labels' terms times their masses."""
        if self.hierarchy.is_tree:
            every = torch.arange(z.shape[1], device=z.device).expand(len(z), -1)
            along = numerics.sum_down(self._of_nodes(z, every), self.head.levels)
            terms = self.strength * along.index_select(1, self.label_nodes).to(z.dtype)
        else:
            labels = torch.arange(len(self.label_nodes), device=z.device)
            each = [self.unweighted_losses(z, label.expand(len(z))) for label in labels]
            terms = torch.stack(each, dim=1)
        return numerics.table_cross_entropy(-terms, mass)  # 0 times inf is 0

    def _of_nodes(self, z: Tensor, nodes: Tensor) -> Tensor:
        """(B, K) the terms of the parents of nodes (B, K) of a tree, whose branches are left out; 0 for a top."""
        rest = numerics.outside_log_sums(z, nodes, self.end[nodes])
        return (rest - z.to(rest.dtype).gather(1, self.above[nodes])).masked_fill(self.is_top[nodes], 0.0)

    def _on_dag(self, z: Tensor, rows: Tensor) -> Tensor:
        """Masks of what is outside B(s, y): (B, A, N), with A slots for the ancestors of a label."""
        entry, real = padded(rows, self.start, self.longest)
        sample, place = real.nonzero(as_tuple=True)
        edge = entry[sample, place]  # (E,) the edges of all samples' labels
        child = self.child[edge]
        slot = self.slot[edge]
        # One pair per edge and node at or below its lower end, all of which are inside.
        first = self.head.below_first[child]
        size = self.head.below_first[child + 1] - first
        pair = torch.repeat_interleave(torch.arange(len(child), device=z.device), size)
        before = size.cumsum(0) - size
        which = torch.arange(len(pair), device=z.device) - before[pair]
        below = self.head.below[first[pair] + which].long()
        outside = torch.ones(len(z), self.most, z.shape[1], dtype=torch.bool, device=z.device)
        outside[sample[pair], slot[pair], below] = False
        wide = z.to(numerics.wide_dtype(z))
        rest = numerics.log_sum(wide[:, None, :].masked_fill(~outside, -torch.inf))
        ancestor, present = padded(rows, self.first, self.most)
        own = wide.gather(1, self.ancestor[ancestor])
        return torch.where(present, rest - own, 0.0).sum(dim=1).to(z.dtype)


def _edges_above(h: Hierarchy, label: int) -> list[tuple[int, int]]:
    """The edges (parent, child) from a node's ancestors down to the node."""
    edges = []
    for id in h.ancestors(h.nodes[label], include_self=True):
        edges += [(h.index(parent), h.index(id)) for parent in h.parents(id)]
    return edges
