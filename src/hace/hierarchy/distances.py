"""How nodes relate: lowest common ancestors, distances and information, in bulk and without an n x n matrix.

Works on arrays in node order; :class:`hace.Hierarchy` is the front door.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from hace.checks import check_choice
from hace.errors import HierarchyError
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import cached_on_hierarchy, leaf_counts

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy

Distance = Literal["lca_height", "lca_depth", "edges"]
DISTANCES: tuple[str, ...] = get_args(Distance)
_CHUNK = 1 << 22  # (pair, ancestor) entries worked on at once on a DAG


class TreeLCA:
    """Lowest common ancestors on a tree or forest by range minima over the preorder.

    For u < v in preorder, every node w in (u, v] is below lca(u, v), so its parent is no smaller; the child
    of the LCA that leads to v is among them. Hence lca(u, v) = min of parent(w) over w in (u, v]; -1 is
    the virtual root.
    """

    def __init__(self, parent_nodes: IntArray) -> None:
        tables = [parent_nodes.astype(np.int32)]
        while len(tables[-1]) > 1 << (len(tables) - 1):
            last = tables[-1]
            step = 1 << (len(tables) - 1)
            tables.append(np.minimum(last[:-step], last[step:]))
        self._start = np.cumsum([0, *map(len, tables[:-1])])
        self._minima = np.concatenate(tables)  # of 2^k parents from each node on, for k = 0, 1, ...

    def __call__(self, u: IntArray, v: IntArray) -> IntArray:
        """Node index of the LCA of each pair, -1 where only the virtual root is above both."""
        low = np.minimum(u, v)
        high = np.maximum(u, v)
        out = low.copy()  # lca(u, u) = u
        apart = np.flatnonzero(low < high)
        low = low[apart] + 1
        high = high[apart]
        power = np.frexp(high - low + 1)[1] - 1  # floor(log2(length))
        start = self._start[power]
        out[apart] = np.minimum(self._minima[start + low], self._minima[start + high + 1 - (1 << power)])
        return out


class Ancestors:
    """For each node of a DAG its ancestors (itself included) and the fewest edges up to each: rows of a CSR matrix."""

    def __init__(self, n_nodes: int, edges: IntArray) -> None:
        start = np.searchsorted(edges[:, 1], np.arange(n_nodes + 1)).tolist()
        parents = edges[:, 0].tolist()
        nodes: list[IntArray] = []
        steps: list[IntArray] = []
        for v in range(n_nodes):  # parents come before children
            above = parents[start[v] : start[v + 1]]
            node = np.concatenate([*(nodes[p] for p in above), [v]]).astype(np.int64)
            step = np.concatenate([*(steps[p] + 1 for p in above), [0]]).astype(np.int64)
            if len(above) > 1:
                order = np.lexsort((step, node))
                node = node[order]
                step = step[order]
                keep = np.r_[True, node[1:] != node[:-1]]
                node = node[keep]
                step = step[keep]
            nodes.append(node)
            steps.append(step)
        self.start = np.concatenate([[0], np.cumsum([len(a) for a in nodes])]).astype(np.int64)
        self.node = np.concatenate(nodes)
        self.steps = np.concatenate(steps)
        self.descendant = np.repeat(np.arange(n_nodes), np.diff(self.start))
        self._n_nodes = n_nodes
        self._keys = self.descendant * n_nodes + self.node  # sorted: (descendant, ancestor)

    def common(self, u: IntArray, v: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """All common ancestors of each pair: (pair, ancestor, edges of the path u .. ancestor .. v)."""
        count = self.start[u + 1] - self.start[u]
        pair = np.repeat(np.arange(len(u)), count)
        offset = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
        entry = self.start[u[pair]] + offset
        wanted = v[pair] * self._n_nodes + self.node[entry]
        other = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        hit = self._keys[other] == wanted
        return pair[hit], self.node[entry[hit]], self.steps[entry[hit]] + self.steps[other[hit]]


def lca_nodes(h: Hierarchy, u: IntArray, v: IntArray) -> IntArray:
    """Node index of the LCA of each pair, -1 where only the virtual root is above both.

    On a DAG it is the common ancestor of least height; of several, the deepest, then the first in node order.
    """
    if h.is_tree:
        return h._tree_lca(u, v)
    out = np.full(len(u), -1, dtype=np.int64)
    for part in _chunks(h, u):
        pair, node, _ = h._ancestor_rows.common(u[part], v[part])
        order = np.lexsort((node, -h.depths[node], h.heights[node], pair))
        best = order[np.r_[True, np.diff(pair[order]) > 0]] if len(order) else order
        out[part.start + pair[best]] = node[best]
    return out


def pair_distances(h: Hierarchy, u: IntArray, v: IntArray, distance: str) -> IntArray:
    """Distance of each pair of nodes; see :meth:`hace.Hierarchy.distances`."""
    check_distance(distance)
    if distance == "edges" and not h.is_tree:
        climb = _climbs(h)
        out = climb[u] + climb[v]  # by way of the top; nearer common ancestors follow
        for part in _chunks(h, u):
            pair, _, steps = h._ancestor_rows.common(u[part], v[part])
            np.minimum.at(out, part.start + pair, steps)
        return out
    lca = lca_nodes(h, u, v)
    depth = np.where(lca < 0, 0, h.depths[lca])
    if distance == "edges":
        return h.depths[u] + h.depths[v] - 2 * depth
    if distance == "lca_height":
        out = np.where(lca < 0, virtual_height(h), h.heights[lca])
    else:
        out = h.max_depth - depth
    out[u == v] = 0
    return out


def max_distance(h: Hierarchy, distance: str) -> int:
    """The largest distance between two leaves."""
    check_distance(distance)
    if h.num_leaves < 2:
        return 0
    if not h.is_tree:
        return _max_distance_on_dag(h, distance)
    parents = np.where(h.parent_nodes < 0, h.num_nodes, h.parent_nodes)
    children = np.arange(h.num_nodes)
    if h.rooted:
        parents = parents[1:]
        children = children[1:]
    # The two tallest children of each node (the virtual root has index N): only nodes with two children are an LCA.
    order = np.lexsort((-h.heights[children], parents))
    parents = parents[order]
    reach = h.heights[children[order]] + 1
    first = np.flatnonzero(np.r_[True, np.diff(parents) > 0])
    first = first[np.r_[np.diff(first), len(parents) - first[-1]] > 1]
    if distance == "edges":
        return int((reach[first] + reach[first + 1]).max())
    if distance == "lca_height":
        return int(reach[first].max())
    depths = np.append(h.depths, 0)
    return int(h.max_depth - depths[parents[first]].min())


def check_distance(distance: str) -> None:
    """Refuses a distance that does not exist."""
    check_choice("distance", distance, DISTANCES, HierarchyError)


def virtual_height(h: Hierarchy) -> int:
    """Height of the node above everything: the root's own, or one more than the highest top."""
    return int(h.heights.max()) + (0 if h.rooted else 1)


def _max_distance_on_dag(h: Hierarchy, distance: str) -> int:
    """One row of distances after another, until none can be larger than the largest so far; that is soon."""
    climb = _climbs(h)[h.leaf_nodes]
    # A class with few of them has its common ancestors high up.
    ancestors = np.diff(h._ancestor_rows.start)[h.leaf_nodes]
    order = np.argsort(-climb if distance == "edges" else ancestors, kind="stable")
    limit = {"lca_height": virtual_height(h), "lca_depth": h.max_depth}
    best = 0
    for label in order.tolist():
        if best >= limit.get(distance, int(climb[label] + climb.max())):
            break
        row = pair_distances(h, np.full(h.num_leaves, h.leaf_nodes[label]), h.leaf_nodes, distance)
        best = max(best, int(row.max()))
    return best


@cached_on_hierarchy
def _climbs(h: Hierarchy) -> IntArray:
    """(N,) fewest edges from each node up to the root, or to the virtual root."""
    if h.is_tree:
        return h.depths
    rows = h._ancestor_rows
    is_top = np.bincount(h.edges[:, 1], minlength=h.num_nodes)[rows.node] == 0
    steps = np.where(is_top, rows.steps, h.num_nodes)
    return np.minimum.reduceat(steps, rows.start[:-1]) + (0 if h.rooted else 1)


def _chunks(h: Hierarchy, u: IntArray) -> list[slice]:
    """Slices of the pairs whose ancestor lists fit in memory together."""
    rows = h._ancestor_rows
    total = np.cumsum(rows.start[u + 1] - rows.start[u])
    cuts = np.flatnonzero(np.diff(total // _CHUNK)) + 1  # where the running sum passes a multiple
    return [slice(a, b) for a, b in pairwise([0, *cuts.tolist(), len(u)])]


class Relations:
    """Tables of single nodes, and distances, common ancestors and information of pairs; the node -1 is no answer."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy

    @cached_property
    def information(self) -> np.ndarray:
        """(N + 1,) I(v) = -log2(share of the leaves under v) in bits; 0 for the virtual root, in the last place."""
        return np.append(np.log2(self.hierarchy.num_leaves) - np.log2(leaf_counts(self.hierarchy)), 0.0)

    @cached_property
    def specificity(self) -> np.ndarray:
        """(N + 1,) information as a share of log2 n, the most there is; 1 throughout where there is one leaf."""
        most = np.log2(self.hierarchy.num_leaves)
        return self.information / most if most else np.ones(len(self.information))

    @cached_property
    def ancestor_counts(self) -> IntArray:
        """(N + 1,) the number of ancestors of each node, itself included and the root excluded."""
        h = self.hierarchy
        if h.is_tree:
            return np.append(h.depths, 0)
        _, descendant = h.reachability()
        return np.append(np.bincount(descendant, minlength=h.num_nodes) - int(h.rooted), 0)

    @cached_property
    def levels(self) -> dict[int, IntArray]:
        """(N + 1,) by level, each node carried to it; -1, no answer, stays -1 in the last place. Trees and forests only."""
        h = self.hierarchy
        last = h.max_depth + len(h.rank_names)
        return {k: np.append(h.level_nodes(k), -1) for k in range(int(not h.rooted), last + 1)}

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
            above = {"lca_height": virtual_height(h), "lca_depth": h.max_depth}
            out[~real] = _climbs(h)[truth[~real]] if distance == "edges" else above[distance]
        return out

    def shared_ancestors(self, answer: IntArray, truth: IntArray) -> IntArray:
        """The number of common ancestors of each pair, themselves included and the root excluded."""
        if self.hierarchy.is_tree:
            return self.ancestor_counts[self.lca(answer, truth)]
        counts = np.bincount(self._common(answer, truth)[0], minlength=len(answer))
        return np.maximum(counts - int(self.hierarchy.rooted), 0)

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


relations = cached_on_hierarchy(Relations)  # the same object on every call, so that its tables are made once
