"""A checked graph in node order, and what follows from it alone: orders, shape, ancestors, depths, levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hace.errors import HierarchyError, listed, nearest
from hace.hierarchy.assembly import IntArray, as_id


class Structure:
    """The part of :class:`hace.Hierarchy` that answers questions about single nodes."""

    # Set once, by _assemble and _with_levels.
    _nodes: tuple[str, ...]
    _names: tuple[str, ...]
    _edges: IntArray
    _leaf_nodes: IntArray
    _rooted: bool
    _level_names: tuple[str, ...] | None

    # ------------------------------------------------------------------ orders and shape

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids in node order."""
        return self._nodes

    @property
    def names(self) -> tuple[str, ...]:
        """Display names in node order."""
        return self._names

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Ids of the classes in label order."""
        return tuple(self._nodes[i] for i in self._leaf_nodes.tolist())

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return len(self._nodes)

    @property
    def num_leaves(self) -> int:
        """n, the number of classes."""
        return len(self._leaf_nodes)

    @property
    def num_edges(self) -> int:
        """The number of parent-child pairs."""
        return len(self._edges)

    @property
    def edges(self) -> IntArray:
        """(E, 2) node indices (parent, child), sorted by child, then parent."""
        return self._edges

    @property
    def leaf_nodes(self) -> IntArray:
        """(n,) node index of each label."""
        return self._leaf_nodes

    @cached_property
    def labels(self) -> IntArray:
        """(N,) label of each node, -1 for inner nodes."""
        labels = np.full(self.num_nodes, -1, dtype=np.int64)
        labels[self._leaf_nodes] = np.arange(self.num_leaves)
        return frozen(labels)

    @property
    def rooted(self) -> bool:
        """Whether a single root is above everything, at depth 0."""
        return self._rooted

    @cached_property
    def is_tree(self) -> bool:
        """Whether no node has two parents: a tree or a forest."""
        return not bool((self._edges[1:, 1] == self._edges[:-1, 1]).any())

    @property
    def kind(self) -> Literal["tree", "forest", "DAG"]:
        """``"tree"`` (with a root), ``"forest"`` or ``"DAG"``."""
        return "DAG" if not self.is_tree else "tree" if self._rooted else "forest"

    @cached_property
    def tops(self) -> tuple[str, ...]:
        """Ids of the nodes without parent."""
        has_parent = np.zeros(self.num_nodes, dtype=bool)
        has_parent[self._edges[:, 1]] = True
        return tuple(self._nodes[i] for i in np.flatnonzero(~has_parent).tolist())

    @property
    def level_names(self) -> tuple[str, ...] | None:
        """Names of the levels 1 to ``max_depth``, or None."""
        return self._level_names

    @cached_property
    def depths(self) -> IntArray:
        """(N,) depth of each node: 0 at the root, 1 at the tops where there is no root; the longest path on a DAG."""
        depth = [0 if self._rooted else 1] * self.num_nodes
        for parent, child in self._edges.tolist():  # sorted by child, and parents come first
            if depth[parent] >= depth[child]:
                depth[child] = depth[parent] + 1
        return frozen(np.array(depth, dtype=np.int64))

    @cached_property
    def heights(self) -> IntArray:
        """(N,) height of each node: edges on the longest way down to a leaf."""
        height = [0] * self.num_nodes
        for parent, child in reversed(self._edges.tolist()):
            if height[child] >= height[parent]:
                height[parent] = height[child] + 1
        return frozen(np.array(height, dtype=np.int64))

    @cached_property
    def max_depth(self) -> int:
        """The largest depth."""
        return int(self.depths.max())

    @cached_property
    def parent_nodes(self) -> IntArray:
        """(N,) node index of the parent, -1 at the tops. Trees and forests only."""
        self._require_tree("parent_nodes")
        parents = np.full(self.num_nodes, -1, dtype=np.int64)
        parents[self._edges[:, 1]] = self._edges[:, 0]
        return frozen(parents)

    @cached_property
    def subtree_ends(self) -> IntArray:
        """(N,) end of each subtree's range in node order: node v and all below it are v to subtree_ends[v] - 1."""
        ends = np.arange(1, self.num_nodes + 1).tolist()
        parents = self.parent_nodes.tolist()
        for v in range(self.num_nodes - 1, -1, -1):
            p = parents[v]
            if p >= 0 and ends[v] > ends[p]:
                ends[p] = ends[v]
        return frozen(np.array(ends, dtype=np.int64))

    # ------------------------------------------------------------------ questions about single nodes

    def index(self, node: Any) -> int:
        """Position of a node in node order."""
        key = as_id(node, "node")
        if key not in self._index:
            raise HierarchyError(f"node {key!r} is not in the hierarchy.{nearest(key, self._nodes)}")
        return self._index[key]

    def label(self, node: Any) -> int:
        """Label of a leaf."""
        label = int(self.labels[self.index(node)])
        if label < 0:
            raise HierarchyError(
                f"node {node!r} is not a leaf, so it has no label. Its children: {listed(self.children(node))}."
            )
        return label

    def name(self, node: Any) -> str:
        """Display name of a node."""
        return self._names[self.index(node)]

    def parents(self, node: Any) -> tuple[str, ...]:
        """Ids of the parents."""
        return self._ids(self._parents_of(self.index(node)))

    def children(self, node: Any) -> tuple[str, ...]:
        """Ids of the children."""
        start, children = self._children
        v = self.index(node)
        return self._ids(children[start[v] : start[v + 1]])

    def ancestors(self, node: Any, *, include_self: bool = False) -> tuple[str, ...]:
        """Ids of everything above a node, in node order."""
        v = self.index(node)
        return self._ids(self._closure(v, self._parents_of, include_self))

    def descendants(self, node: Any, *, include_self: bool = False) -> tuple[str, ...]:
        """Ids of everything below a node, in node order."""
        v = self.index(node)
        if self.is_tree:
            return self._nodes[v if include_self else v + 1 : self.subtree_ends[v]]
        start, children = self._children
        return self._ids(self._closure(v, lambda u: children[start[u] : start[u + 1]].tolist(), include_self))

    def path(self, node: Any) -> tuple[str, ...]:
        """Ids from the node up to its top (b_0, b_1, ... of the paper). On a DAG, along the deepest parents."""
        path = [self.index(node)]
        while above := self._parents_of(path[-1]):
            path.append(max(above, key=lambda p: (self.depths[p], -p)))
        return self._ids(path)

    def depth(self, node: Any) -> int:
        """Depth of a node."""
        return int(self.depths[self.index(node)])

    def height(self, node: Any) -> int:
        """Height of a node: edges on the longest way down to a leaf."""
        return int(self.heights[self.index(node)])

    def level(self, level: int | str) -> tuple[str, ...]:
        """Ids of the nodes at a level, by its depth or its name."""
        return self._ids(np.flatnonzero(self.depths == self.level_index(level)))

    def level_index(self, level: int | str) -> int:
        """Depth of a level given by number or by name."""
        if isinstance(level, str) and self._level_names and level in self._level_names:
            return self._level_names.index(level) + 1
        lowest = 0 if self._rooted else 1
        if isinstance(level, (int, np.integer)) and lowest <= level <= self.max_depth:
            return int(level)
        known = f", or one of {', '.join(map(repr, self._level_names))}" if self._level_names else ""
        raise HierarchyError(
            f"level must be an integer from {lowest} to {self.max_depth}{known}. Got {level!r}."
        )

    def level_nodes(self, level: int | str) -> IntArray:
        """(N,) for each node its ancestor at a level, by node index. Trees and forests only.

        A node at or above the level is its own answer, so that leaves of a ragged tree are carried down.
        """
        self._require_tree("level_nodes")
        k = self.level_index(level)
        at = np.flatnonzero(self.depths == k)
        every = np.arange(self.num_nodes)
        return np.where(
            self.depths <= k, every, at[np.maximum(np.searchsorted(at, every, side="right") - 1, 0)]
        )

    # ------------------------------------------------------------------ inside

    @cached_property
    def _index(self) -> dict[str, int]:
        return {node: i for i, node in enumerate(self._nodes)}

    @cached_property
    def _children(self) -> tuple[IntArray, IntArray]:
        """CSR rows of children: (start, child); siblings in node order."""
        order = np.lexsort((self._edges[:, 1], self._edges[:, 0]))
        by_parent = self._edges[order]
        return np.searchsorted(by_parent[:, 0], np.arange(self.num_nodes + 1)), by_parent[:, 1]

    @cached_property
    def _parent_start(self) -> IntArray:
        return np.searchsorted(self._edges[:, 1], np.arange(self.num_nodes + 1))

    def _parents_of(self, v: int) -> list[int]:
        return self._edges[self._parent_start[v] : self._parent_start[v + 1], 0].tolist()

    def _ids(self, indices: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._nodes[int(i)] for i in indices)

    @staticmethod
    def _closure(v: int, following: Any, include_self: bool) -> list[int]:
        seen, stack = {v}, [v]
        while stack:
            new = [u for u in following(stack.pop()) if u not in seen]
            seen.update(new)
            stack.extend(new)
        return sorted(seen if include_self else seen - {v})

    def _require_tree(self, what: str) -> None:
        if not self.is_tree:
            several = [self._nodes[c] for c, k in Counter(self._edges[:, 1].tolist()).items() if k > 1]
            raise HierarchyError(
                f"{what} needs a tree or forest, but these nodes have several parents: {listed(several)}."
            )


def frozen(array: IntArray) -> IntArray:
    """The array, read-only from now on."""
    array.flags.writeable = False
    return array
