"""How answers relate to truths in a hierarchy: node indices in, one number per pair out. -1 is the virtual root: no answer."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.distances import check_distance, lca_nodes, virtual_height
from hace.hierarchy.index import derived, is_above, leaf_counts


@derived
def relations(hierarchy: Hierarchy) -> Relations:
    """The relations of a hierarchy; the same object on every call, so that its tables are made once."""
    return Relations(hierarchy)


class Relations:
    """Distances, common ancestors and information of pairs of nodes, in bulk and without an n x n matrix."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy

    @cached_property
    def information(self) -> np.ndarray:
        """(N + 1,) I(v) = -log2(share of the leaves under v) in bits; 0 for the virtual root, in the last place."""
        h = self.hierarchy
        return np.append(np.log2(h.num_leaves) - np.log2(leaf_counts(h)), 0.0)

    @cached_property
    def ancestor_counts(self) -> IntArray:
        """(N + 1,) the number of ancestors of each node, itself included and the root excluded."""
        h = self.hierarchy
        if h.is_tree:
            return np.append(h.depths, 0)
        _, descendant = h.reachability()
        return np.append(np.bincount(descendant, minlength=h.num_nodes) - int(h.rooted), 0)

    def level(self, level: int) -> IntArray:
        """(N + 1,) each node carried to a level; -1, no answer, stays -1 in the last place. Trees and forests only."""
        return self._levels[level]

    @cached_property
    def _levels(self) -> dict[int, IntArray]:
        h = self.hierarchy
        return {k: np.append(h.level_nodes(k), -1) for k in range(int(not h.rooted), h.max_depth + 1)}

    def is_above(self, answer: IntArray, truth: IntArray) -> np.ndarray:
        """Whether each answer is the truth or an ancestor of it; no answer is above everything."""
        return is_above(self.hierarchy, answer, truth)

    def lca(self, answer: IntArray, truth: IntArray) -> IntArray:
        """Lowest common ancestor of each pair, -1 where only the virtual root is above both."""
        out = np.full(answer.shape, -1, dtype=np.int64)
        real = answer >= 0
        out[real] = lca_nodes(self.hierarchy, answer[real], truth[real])
        return out

    def distance(self, answer: IntArray, truth: IntArray, distance: str) -> IntArray:
        """Distance of each pair; no answer counts as the virtual root."""
        h = self.hierarchy
        check_distance(distance)
        real = answer >= 0
        out = np.empty(answer.shape, dtype=np.int64)
        out[real] = h.distances(answer[real], truth[real], distance, labels="nodes")
        if not real.all():
            out[~real] = self._distance_of_the_virtual_root(truth[~real], distance)
        return out

    def _distance_of_the_virtual_root(self, truth: IntArray, distance: str) -> IntArray:
        h = self.hierarchy
        if distance == "lca_height":
            return np.full(truth.shape, virtual_height(h))
        if distance == "lca_depth":
            return np.full(truth.shape, h.max_depth)
        root = "".join(sorted(h.nodes, key=len)[-1:]) + "*"  # an id that no node has
        rooted = h.with_root(root)
        places = np.array([rooted.index(h.nodes[v]) for v in truth.tolist()], dtype=np.int64)
        return rooted.distances(np.array([rooted.index(root)]), places, "edges", labels="nodes")

    def shared_ancestors(self, answer: IntArray, truth: IntArray) -> IntArray:
        """The number of common ancestors of each pair, themselves included and the root excluded."""
        h = self.hierarchy
        if h.is_tree:
            return self.ancestor_counts[self.lca(answer, truth)]
        pair, _ = self._common(answer, truth)
        counts = np.bincount(pair, minlength=len(answer))
        return np.maximum(counts - int(h.rooted), 0)

    def shared_information(self, answer: IntArray, truth: IntArray) -> np.ndarray:
        """I of the most specific common ancestor of each pair."""
        if self.hierarchy.is_tree:
            return self.information[self.lca(answer, truth)]
        out = np.zeros(len(answer))
        pair, node = self._common(answer, truth)
        np.maximum.at(out, pair, self.information[node])
        return out

    def _common(self, answer: IntArray, truth: IntArray) -> tuple[IntArray, IntArray]:
        real = np.flatnonzero(answer >= 0)
        pair, node, _ = self.hierarchy._ancestor_rows.common(answer[real], truth[real])
        return real[pair], node
