"""Distances from labels to all classes, a batch of rows at a time: what soft labels and the distance losses share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.errors import HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import check_distance
from hace.hierarchy.index import leaf_ranges, preorder_labels
from hace.losses import numerics
from hace.losses.head import TableModule
from hace.losses.kernels.losses import Call, make_call
from hace.losses.tables import distance_parts, path_entries

DENSE_LIMIT = 1 << 26  # entries of a dense distance table on a DAG (512 MiB)


class LeafDistances(TableModule):
    """dist(label, class) for given labels, in label order.

    On a tree a row follows from the label's path: the classes below b_j that are not below b_{j-1} are equally far
    (up to their own depth, for ``edges``), and in preorder they are two ranges. No n x n matrix exists. On a DAG
    there is no such path, so the rows are computed once and kept.

    Args:
        hierarchy: the taxonomy.
        rows: (R,) node index of each label.
        distance: see :meth:`hace.Hierarchy.distances`.
    """

    table: Tensor
    start: Tensor
    node: Tensor
    own: Tensor
    at: Tensor
    low: Tensor
    high: Tensor
    leaf: Tensor
    place: Tensor
    label: Tensor

    def __init__(self, hierarchy: Hierarchy, rows: np.ndarray, distance: str) -> None:
        super().__init__()
        check_distance(distance)
        h = hierarchy
        self.is_tree = h.is_tree
        if not h.is_tree:
            if len(rows) * h.num_leaves > DENSE_LIMIT:
                raise HierarchyError(
                    f"Distances between {len(rows):,} labels and {h.num_leaves:,} classes of a DAG need a "
                    "dense table, which is too large. Use a tree, or a loss without distances."
                )
            table = h.distances(rows[:, None], h.leaf_nodes[None, :], distance, labels="nodes")
            self.constant("table", table.astype(np.float64))
            return
        own, at, leaf, self.outside = distance_parts(h, distance)
        start, node, _ = path_entries(h, rows)
        self.longest = int(np.diff(start).max())
        self.ragged = bool(leaf.any())
        low, high = leaf_ranges(h)
        self.constant("start", start)
        self.constant("node", node)
        self.constant("own", own[rows])
        self.constant("at", at)
        self.constant("low", low)
        self.constant("high", high)
        self.constant("leaf", leaf[h.labels >= 0])
        self.constant("place", np.argsort(preorder_labels(h)))  # position of each label in preorder
        self.constant("label", h.labels[rows])

    def call(self, kind: int, strength: float, column: Tensor | None, weight: Tensor | None) -> Call | None:
        """A compiled loss of the classes' probabilities and these distances; None on a DAG."""
        if not self.is_tree:
            return None
        leaf = self.leaf if self.ragged else None
        tensors = (self.start, self.node, self.low, self.high, column, self.own, self.at, leaf, self.label)
        return make_call(
            "lca_group_loss", tensors, (self.outside, kind, strength), len(self.start) - 1, weight
        )

    def forward(self, rows: Tensor) -> Tensor:
        """(B,) positions in ``rows`` -> (B, n) distances, float64."""
        if not self.is_tree:
            return self.table.index_select(0, rows)
        node, _ = self.path(rows)
        low, high, at = self.low[node], self.high[node], self.at[node]
        batch = len(node)
        classes = len(self.leaf)
        edges = torch.cat(
            [low.new_zeros(batch, 1), low.flip(1), high, high.new_full((batch, 1), classes)], dim=1
        )
        # One group of classes per lowest common ancestor with the label, the rest last: (B, K + 1). Then in preorder: the left
        # parts from the outside in, and the right parts.
        groups = torch.cat([at, at.new_full((batch, 1), self.outside)], dim=1)
        groups = torch.cat([groups.flip(1), groups[:, 1:]], dim=1)
        distance = groups.flatten()[numerics.segment_members(edges, classes).long()].view(batch, classes)
        distance = self.own[rows][:, None] + distance + self.leaf
        distance = distance.index_select(1, self.place)
        itself = self.label[rows][:, None] == torch.arange(classes, device=rows.device)
        return distance.masked_fill(itself, 0.0)

    def path(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) nodes of each label's path, filled up with its top, and which entries are real."""
        entry, real = padded(rows, self.start, self.longest)
        return self.node[entry], real


def padded(rows: Tensor, start: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Positions (B, K) of the entries of sparse rows, filled up with a row's last, and which of them are real."""
    # index_select refuses a negative row, which [] would count from the end.
    entry = start.index_select(0, rows)[:, None] + torch.arange(longest, device=rows.device)
    last = start.index_select(0, rows + 1)[:, None] - 1
    return torch.minimum(entry, last), entry <= last
