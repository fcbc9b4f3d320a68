"""Questions about pairs of nodes: common ancestors, distances, what is above what."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from hace.errors import HierarchyError
from hace.hierarchy import distances as _distances
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.structure import Structure

Labels = Literal["leaves", "nodes"]


class Pairs(Structure):
    """The part of :class:`hace.Hierarchy` that answers questions about pairs of nodes."""

    def lca(self, a: Any, b: Any) -> str | None:
        """Lowest common ancestor, or None where only the virtual root is above both.

        On a DAG: the common ancestor of least height (of several, the deepest, then the first in node order).
        """
        lca = int(_distances.lca_nodes(self, np.array([self.index(a)]), np.array([self.index(b)]))[0])
        return None if lca < 0 else self._nodes[lca]

    def distance(self, a: Any, b: Any, distance: str = "lca_height") -> int:
        """Distance of two nodes; see :meth:`distances`."""
        pair = np.array([self.index(a)]), np.array([self.index(b)])
        return int(self.distances(*pair, distance=distance, labels="nodes")[0])

    def distances(
        self, a: Any, b: Any, distance: str = "lca_height", *, labels: Labels = "leaves"
    ) -> IntArray:
        """Distance of each pair, without an n x n matrix.

        Args:
            a: integers that broadcast with ``b``: labels, or node indices with ``labels="nodes"``.
            b: the other ends of the pairs.
            distance: ``"lca_height"``: height of the lowest common ancestor (LCA); ``"lca_depth"``: the largest depth
                less the LCA's depth; ``"edges"``: length of the path. The distance of a node to itself is 0
                in all three, and the first two agree exactly when all leaves have the same depth.
            labels: what the integers are.

        Example:
            >>> from hace import Hierarchy
            >>> paths = [("dog", "husky"), ("dog", "beagle"), ("cat",)]
            >>> h = Hierarchy.from_paths(paths, leaves=["husky", "beagle", "cat"])
            >>> h.distances([0, 0, 0], [0, 1, 2])
            array([0, 1, 2])
            >>> h.distances(0, [0, 1, 2], "edges")
            array([0, 2, 3])
        """
        _distances.check_distance(distance)
        u, v = np.broadcast_arrays(self._node_indices(a, labels, "a"), self._node_indices(b, labels, "b"))
        return _distances.pair_distances(self, u.ravel(), v.ravel(), distance).reshape(u.shape)

    def distance_matrix(self, distance: str = "lca_height", *, labels: Labels = "leaves") -> IntArray:
        """The dense matrix of all distances: n x n, or N x N with ``labels="nodes"``. For small hierarchies."""
        every = np.arange(self.num_leaves if labels == "leaves" else self.num_nodes)
        return self.distances(every[:, None], every[None, :], distance, labels=labels)

    def max_distance(self, distance: str = "lca_height") -> int:
        """The largest distance between two leaves (0 for a single leaf)."""
        return _distances.max_distance(self, distance)

    def reachability(self) -> tuple[IntArray, IntArray]:
        """All pairs (ancestor, descendant) of node indices, each node with itself included.

        They are the non-zero entries of the paper's matrix R, sorted by ancestor, then descendant.
        """
        if self.is_tree:
            every = np.arange(self.num_nodes)
            counts = self.subtree_ends - every
            ancestor = np.repeat(every, counts)
            return ancestor, np.arange(len(ancestor)) - np.repeat(np.cumsum(counts) - counts - every, counts)
        rows = self._ancestor_rows
        order = np.lexsort((rows.descendant, rows.node))
        return rows.node[order], rows.descendant[order]

    @cached_property
    def _tree_lca(self) -> _distances.TreeLCA:
        return _distances.TreeLCA(self.parent_nodes)

    @cached_property
    def _ancestor_rows(self) -> _distances.Ancestors:
        return _distances.Ancestors(self.num_nodes, self._edges)

    def _node_indices(self, values: Any, labels: Labels, argument: str) -> IntArray:
        if labels not in ("leaves", "nodes"):
            raise HierarchyError(f"labels must be 'leaves' or 'nodes'. Got {labels!r}.")
        array = np.asarray(values)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise HierarchyError(f"{argument} must hold integers ({labels}). Got {array.dtype}.")
        array = array.astype(np.int64)
        limit = self.num_leaves if labels == "leaves" else self.num_nodes
        outside = array[(array < 0) | (array >= limit)]
        if outside.size:
            what = "labels of leaves" if labels == "leaves" else "node indices"
            raise HierarchyError(
                f"{argument} must hold {what} from 0 to {limit - 1}. Got {int(outside.flat[0])}."
            )
        return self._leaf_nodes[array] if labels == "leaves" else array
