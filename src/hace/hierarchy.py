"""The label hierarchy: the only owner of node order, label order and the map between them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hace import distances as _distances
from hace.assembly import IntArray, as_id, assemble, listed, natural_key
from hace.errors import HierarchyError, nearest
from hace.intake import edges_of_parents, edges_of_paths, index_edges

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

Labels = Literal["leaves", "nodes"]


class Hierarchy:
    """A label hierarchy: a tree, a forest or a directed acyclic graph. Immutable.

    A node is an *id*, a string (integers are accepted and written as strings). Display names stand apart and may repeat.
    A leaf is a node without children; the leaves are the classes. Three orders, and nobody else may invent one:

    * **node order** (``nodes``): depth-first preorder on trees and forests, so that every subtree is a contiguous range;
      parents before children on DAGs. Heads over nodes have their columns in this order.
    * **label order** (``leaves``): the class list, label 0 to n - 1. Heads over leaves have their columns in this order.
    * the map between them: ``leaf_nodes`` (label to node index) and ``labels`` (node index to label, -1 inside).

    Depth counts from the root, which has depth 0. Without a root (``rooted`` is False) the tops have depth 1, as if below
    a virtual root, so that :meth:`without_root` changes no depth, level or distance. On a DAG depth is the longest path.

    Build one with :meth:`from_edges`, :meth:`from_parents`, :meth:`from_paths`, :meth:`from_networkx`, :meth:`flat` or
    :func:`hace.read_hierarchy`.

    Example:
        >>> h = Hierarchy.from_edges([("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")],
        ...                          leaves=["husky", "beagle", "cat"])
        >>> h
        <Hierarchy tree: 5 nodes, 3 leaves, depth 2>
        >>> h.nodes
        ('animal', 'dog', 'husky', 'beagle', 'cat')
        >>> h.path("husky"), h.lca("husky", "cat"), h.distance("husky", "beagle")
        (('husky', 'dog', 'animal'), 'animal', 1)
    """

    def __init__(self) -> None:
        raise TypeError(
            "Build a Hierarchy with Hierarchy.from_edges, from_parents, from_paths, flat or hace.read_hierarchy."
        )

    # ------------------------------------------------------------------ construction

    @classmethod
    def _assemble(
        cls,
        ids: Sequence[str],
        edges: IntArray,
        *,
        leaves: Iterable[object] | None = None,
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
        rooted: bool | None = None,
        problems: Sequence[str] = (),
    ) -> Hierarchy:
        problems = list(problems)
        classes = None if leaves is None else [as_id(c, "leaves") for c in leaves]
        display = {as_id(k, "names"): str(v) for k, v in (names or {}).items()}
        stray = display.keys() - set(ids) if display else set()
        if stray:
            problems.append(
                f"names has entries for ids that are not in the hierarchy: {listed(sorted(stray))}."
            )
        made = assemble(ids, edges, classes, rooted, problems)
        self = object.__new__(cls)
        self._nodes = made.ids
        self._names = tuple(display.get(i, i) for i in made.ids)
        self._edges = _frozen(made.edges)
        self._leaf_nodes = _frozen(made.leaf_nodes)
        self._rooted = made.rooted
        self._level_names = None if level_names is None else tuple(str(s) for s in level_names)
        if self._level_names is not None and len(self._level_names) != self.max_depth:
            raise HierarchyError(
                f"level_names must have one name for each of the levels 1 to {self.max_depth}. "
                f"Got {len(self._level_names)} names instead: {listed(self._level_names)}."
            )
        return self

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[tuple[Any, Any]],
        *,
        leaves: Iterable[Any] | None = None,
        nodes: Iterable[Any] = (),
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
        rooted: bool | None = None,
    ) -> Hierarchy:
        """A hierarchy from (parent, child) pairs.

        Args:
            edges: pairs of ids, the parent first.
            leaves: the class list in label order. Without it the leaves stand in natural order of their ids (2 before 10).
            nodes: ids that may have no edge at all: classes without parent.
            names: display names by id; a node without one is shown by its id.
            level_names: names of the levels 1 to ``max_depth``, such as ``("order", "family", "species")``.
            rooted: whether the single top is a root. By default it is when there is one top and it has children.

        Raises:
            HierarchyError: with all problems of the input.
        """
        ids, pairs, problems = index_edges(edges, nodes)
        return cls._assemble(
            ids, pairs, leaves=leaves, names=names, level_names=level_names, rooted=rooted, problems=problems
        )

    @classmethod
    def from_parents(
        cls,
        parents: Mapping[Any, Any] | Sequence[int] | np.ndarray,
        *,
        leaves: Iterable[Any] | None = None,
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
        rooted: bool | None = None,
    ) -> Hierarchy:
        """A hierarchy from each node's parent.

        Args:
            parents: a mapping from every id to its parent, to a list of parents, or to None for a top; or a 1-D integer
                array with the parent's position of node i at position i and -1 for a top (ids are then "0", "1", ...).
            leaves, names, level_names, rooted: as in :meth:`from_edges`.

        Example:
            >>> Hierarchy.from_parents([-1, 0, 0, 1, 1]).leaves
            ('2', '3', '4')
        """
        ids, pairs, problems = edges_of_parents(parents)
        return cls._assemble(
            ids, pairs, leaves=leaves, names=names, level_names=level_names, rooted=rooted, problems=problems
        )

    @classmethod
    def from_paths(
        cls,
        paths: Iterable[Sequence[Any]] | pd.DataFrame,
        *,
        leaves: Iterable[Any] | None = None,
        ids: Literal["name", "level", "path"] = "name",
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
    ) -> Hierarchy:
        """A hierarchy from label paths, each from the top down to a class.

        Args:
            paths: rows of names, or a DataFrame with one column a level (its column names become the level names). Rows
                may be of different depth: shorter ones end early, or in None, NaN or "". A row may occur many times.
            leaves: the class list in label order, by id.
            ids: what makes a node. ``"name"``: its name; a name that stands in two places is an error. ``"level"``:
                inner nodes are ``level:name``, classes keep their plain name. ``"path"``: the names from the top,
                joined with "/".
            names: display names by id, instead of the names in the paths.
            level_names: names of the columns.

        Example:
            >>> h = Hierarchy.from_paths([("Boeing", "747", "747-100"), ("Boeing", "747", "747-200"), ("Saab", "2000")])
            >>> h.nodes
            ('Boeing', '747', '747-100', '747-200', 'Saab', '2000')
        """
        table = edges_of_paths(paths, ids, level_names)
        h = cls._assemble(
            table.ids,
            table.edges,
            leaves=leaves,
            names=names or table.names,
            rooted=None,
            problems=table.problems,
        )
        levels = table.level_names
        if levels is not None:  # a column that holds the root has no level of its own
            h._level_names = tuple(levels[-h.max_depth :]) if len(levels) == h.max_depth + h.rooted else None
        return h

    @classmethod
    def from_networkx(
        cls, graph: nx.DiGraph, *, leaves: Iterable[Any] | None = None, rooted: bool | None = None
    ) -> Hierarchy:
        """A hierarchy from a networkx graph with edges from parent to child.

        Node attributes ``name`` and ``label`` (an integer on every leaf) and the graph attributes ``rooted`` and
        ``level_names`` are used where they exist, so that :meth:`to_networkx` comes back unchanged.
        """
        if not graph.is_directed():
            raise HierarchyError(
                "graph must be directed, with edges from parent to child. Got an undirected graph."
            )
        names = {k: str(v) for k, v in graph.nodes(data="name") if v is not None}
        labels = {k: v for k, v in graph.nodes(data="label") if v is not None and v >= 0}
        if leaves is None and labels:
            shared = [v for v, k in Counter(labels.values()).items() if k > 1]
            if shared:
                raise HierarchyError(
                    f"Several nodes have the same label: {listed(map(str, shared))}. Labels must differ."
                )
            leaves = sorted(labels, key=lambda k: labels[k])
        rooted = graph.graph.get("rooted") if rooted is None else rooted
        return cls.from_edges(
            graph.edges(),
            leaves=leaves,
            nodes=graph.nodes(),
            names=names,
            level_names=graph.graph.get("level_names"),
            rooted=rooted,
        )

    @classmethod
    def flat(cls, classes: Iterable[Any]) -> Hierarchy:
        """n classes and nothing above them (N = n): every loss becomes ordinary cross-entropy.

        Example:
            >>> Hierarchy.flat(["cat", "dog"])
            <Hierarchy forest: 2 nodes, 2 leaves, depth 1>
        """
        classes = [as_id(c, "classes") for c in classes]
        repeated = [c for c, k in Counter(classes).items() if k > 1]
        problems = [f"classes repeats {listed(repeated)}. Each class must stand once."] if repeated else []
        unique = list(dict.fromkeys(classes))
        return cls._assemble(unique, np.empty((0, 2), dtype=np.int64), leaves=unique, problems=problems)

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
        return _frozen(labels)

    @property
    def rooted(self) -> bool:
        """Whether a single root stands above everything, at depth 0."""
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
        return _frozen(np.array(depth, dtype=np.int64))

    @cached_property
    def heights(self) -> IntArray:
        """(N,) height of each node: edges on the longest way down to a leaf."""
        height = [0] * self.num_nodes
        for parent, child in reversed(self._edges.tolist()):
            if height[child] >= height[parent]:
                height[parent] = height[child] + 1
        return _frozen(np.array(height, dtype=np.int64))

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
        return _frozen(parents)

    @cached_property
    def subtree_ends(self) -> IntArray:
        """(N,) end of each subtree's range in node order: node v and all below it are v to subtree_ends[v] - 1."""
        ends = np.arange(1, self.num_nodes + 1).tolist()
        parents = self.parent_nodes.tolist()
        for v in range(self.num_nodes - 1, -1, -1):
            p = parents[v]
            if p >= 0 and ends[v] > ends[p]:
                ends[p] = ends[v]
        return _frozen(np.array(ends, dtype=np.int64))

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

    def lca(self, a: Any, b: Any) -> str | None:
        """Lowest common ancestor, or None where only the virtual root stands above both.

        On a DAG: the common ancestor of least height (of several, the deepest, then the first in node order).
        """
        lca = int(_distances.lca_nodes(self, np.array([self.index(a)]), np.array([self.index(b)]))[0])
        return None if lca < 0 else self._nodes[lca]

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
            f"level must be an integer from {lowest} to {self.max_depth}{known}. Got {level!r} instead."
        )

    def distance(self, a: Any, b: Any, convention: str = "lca_height") -> int:
        """Distance of two nodes; see :meth:`distances`."""
        pair = np.array([self.index(a)]), np.array([self.index(b)])
        return int(self.distances(*pair, convention=convention, labels="nodes")[0])

    # ------------------------------------------------------------------ questions in bulk

    def distances(
        self, a: Any, b: Any, convention: str = "lca_height", *, labels: Labels = "leaves"
    ) -> IntArray:
        """Distance of each pair, without an n x n matrix.

        Args:
            a, b: integer arrays that broadcast: labels, or node indices with ``labels="nodes"``.
            convention: ``"lca_height"``: height of the lowest common ancestor (LCA); ``"lca_depth"``: the largest depth
                less the LCA's depth; ``"edges"``: length of the path. The distance of a node to itself is 0 in all three,
                and the first two agree exactly when all leaves have the same depth.
            labels: what the integers are.

        Example:
            >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
            >>> h.distances([0, 0, 0], [0, 1, 2])
            array([0, 1, 2])
            >>> h.distances(0, [0, 1, 2], "edges")
            array([0, 2, 3])
        """
        _distances.check_convention(convention)
        u, v = np.broadcast_arrays(self._node_indices(a, labels, "a"), self._node_indices(b, labels, "b"))
        return _distances.pair_distances(self, u.ravel(), v.ravel(), convention).reshape(u.shape)

    def distance_matrix(self, convention: str = "lca_height", *, labels: Labels = "leaves") -> IntArray:
        """The dense matrix of all distances: n x n, or N x N with ``labels="nodes"``. For small hierarchies."""
        every = np.arange(self.num_leaves if labels == "leaves" else self.num_nodes)
        return self.distances(every[:, None], every[None, :], convention, labels=labels)

    def max_distance(self, convention: str = "lca_height") -> int:
        """The largest distance between two leaves (0 for a single leaf)."""
        return _distances.max_distance(self, convention)

    def level_nodes(self, level: int | str) -> IntArray:
        """(N,) for each node its ancestor at a level, by node index. Trees and forests only.

        A node at or above the level stands for itself, so that leaves of a ragged tree are carried down.
        """
        self._require_tree("level_nodes")
        k = self.level_index(level)
        at = np.flatnonzero(self.depths == k)
        every = np.arange(self.num_nodes)
        return np.where(
            self.depths <= k, every, at[np.maximum(np.searchsorted(at, every, side="right") - 1, 0)]
        )

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

    # ------------------------------------------------------------------ new hierarchies from this one

    def without_root(self) -> Hierarchy:
        """The same hierarchy with its root taken away; depths, levels and distances stay as they are."""
        if not self._rooted:
            return self
        return self._keep(np.arange(self.num_nodes) > 0, rooted=False)

    def with_root(self, node: Any = "root") -> Hierarchy:
        """The same hierarchy below a new root; one that has a root already comes back unchanged."""
        if self._rooted:
            return self
        root = as_id(node, "node")
        if root in self._index:
            raise HierarchyError(f"node {root!r} is in the hierarchy already. Give the root another id.")
        tops = [(0, self._index[t] + 1) for t in self.tops]
        edges = np.concatenate([np.array(tops, dtype=np.int64), self._edges + 1])
        return self._derive((root, *self._nodes), edges, self.leaves, True, self._level_names)

    def subset(self, leaves: Iterable[Any]) -> Hierarchy:
        """The hierarchy over some of the classes: these and everything above them.

        Args:
            leaves: ids of the classes to keep, in their new label order.
        """
        kept = [as_id(c, "leaves") for c in leaves]
        unknown = [c for c in kept if c not in self._index]
        if unknown:
            raise HierarchyError(
                f"leaves names ids that are not in the hierarchy: {listed(unknown)}.{nearest(unknown[0], self.leaves)}"
            )
        if not kept:
            raise HierarchyError("leaves is empty. A hierarchy must have at least one class.")
        inner = [c for c in kept if self.labels[self._index[c]] < 0]
        if inner:
            raise HierarchyError(
                f"leaves names nodes that have children: {listed(inner)}. Name the classes below them."
            )
        keep = np.zeros(self.num_nodes, dtype=bool)
        keep[[self._index[c] for c in kept]] = True
        for parent, child in reversed(self._edges.tolist()):
            keep[parent] |= keep[child]
        return self._keep(keep, rooted=self._rooted, leaves=kept)

    def collapse_unary(self) -> Hierarchy:
        """The hierarchy without inner nodes that have a single child; their child takes their place."""
        counts = np.bincount(self._edges[:, 0], minlength=self.num_nodes)
        keep = counts != 1
        start, children = self._children
        below = list(range(self.num_nodes))  # the node that takes the place of each
        for v in range(self.num_nodes - 1, -1, -1):
            if not keep[v]:
                below[v] = below[int(children[start[v]])]
        edges = np.array([(p, below[c]) for p, c in self._edges.tolist() if keep[p]], dtype=np.int64).reshape(
            -1, 2
        )
        rooted = None if self._rooted else False
        position = np.cumsum(keep) - 1
        ids = [self._nodes[i] for i in np.flatnonzero(keep).tolist()]
        return self._derive(ids, position[np.unique(edges, axis=0)], self.leaves, rooted, None)

    def shuffled(self, seed: int) -> Hierarchy:
        """The same shape with the classes dealt to other places: the control that keeps everything but the meaning."""
        order = np.random.default_rng(seed).permutation(self.num_leaves)
        ids = list(self._nodes)
        names = list(self._names)
        for place, leaf in zip(self._leaf_nodes.tolist(), self._leaf_nodes[order].tolist(), strict=True):
            ids[place], names[place] = self._nodes[leaf], self._names[leaf]
        return self._derive(ids, self._edges, self.leaves, self._rooted, self._level_names)

    def to_networkx(self) -> nx.DiGraph:
        """A networkx graph with edges from parent to child; see :meth:`from_networkx`."""
        import networkx as nx

        graph = nx.DiGraph(rooted=self._rooted, level_names=self._level_names)
        for node, name, label in zip(self._nodes, self._names, self.labels.tolist(), strict=True):
            graph.add_node(node, name=name, **({"label": label} if label >= 0 else {}))
        graph.add_edges_from((self._nodes[p], self._nodes[c]) for p, c in self._edges.tolist())
        return graph

    # ------------------------------------------------------------------ how it shows and compares itself

    def __repr__(self) -> str:
        return f"<Hierarchy {self.kind}: {self.num_nodes:,} nodes, {self.num_leaves:,} leaves, depth {self.max_depth}>"

    def summary(self) -> str:
        """A page that describes the hierarchy; meant for ``print``."""
        from hace.summary import summarize

        return summarize(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what decides results: ids, edges, label order and root; display names do not count."""
        digest = hashlib.sha256(b"hace.Hierarchy.1\0rooted" if self._rooted else b"hace.Hierarchy.1\0")
        for node in self._nodes:
            raw = node.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "little") + raw)
        digest.update(self._edges.astype("<i8").tobytes() + self._leaf_nodes.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hierarchy):
            return NotImplemented
        return self is other or (
            self.fingerprint == other.fingerprint
            and self._names == other._names
            and self._level_names == other._level_names
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._nodes, self._names, self._edges, self._leaf_nodes, self._rooted, self._level_names)
        return _restore, state

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

    @cached_property
    def _tree_lca(self) -> _distances.TreeLCA:
        return _distances.TreeLCA(self.parent_nodes)

    @cached_property
    def _ancestor_rows(self) -> _distances.Ancestors:
        return _distances.Ancestors(self.num_nodes, self._edges)

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

    def _node_indices(self, values: Any, labels: Labels, argument: str) -> IntArray:
        if labels not in ("leaves", "nodes"):
            raise HierarchyError(f"labels must be 'leaves' or 'nodes'. Got {labels!r} instead.")
        array = np.asarray(values)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise HierarchyError(f"{argument} must hold integers ({labels}). Got {array.dtype} instead.")
        array = array.astype(np.int64)
        limit = self.num_leaves if labels == "leaves" else self.num_nodes
        outside = array[(array < 0) | (array >= limit)]
        if outside.size:
            what = "labels of leaves" if labels == "leaves" else "node indices"
            raise HierarchyError(
                f"{argument} must hold {what} from 0 to {limit - 1}. Got {int(outside.flat[0])} instead."
            )
        return self._leaf_nodes[array] if labels == "leaves" else array

    def _require_tree(self, what: str) -> None:
        if not self.is_tree:
            several = [self._nodes[c] for c, k in Counter(self._edges[:, 1].tolist()).items() if k > 1]
            raise HierarchyError(
                f"{what} needs a tree or forest, but these nodes have several parents: {listed(several)}."
            )

    def _keep(self, keep: np.ndarray, *, rooted: bool, leaves: Sequence[str] | None = None) -> Hierarchy:
        position = np.cumsum(keep) - 1
        edges = position[self._edges[keep[self._edges].all(axis=1)]]
        ids = [self._nodes[i] for i in np.flatnonzero(keep).tolist()]
        return self._derive(ids, edges, self.leaves if leaves is None else leaves, rooted, self._level_names)

    def _derive(
        self,
        ids: Sequence[str],
        edges: IntArray,
        leaves: Sequence[str],
        rooted: bool | None,
        level_names: tuple[str, ...] | None,
    ) -> Hierarchy:
        """A hierarchy over (some of) the same nodes, which keep their display names."""
        names = {i: self._names[self._index[i]] for i in ids if i in self._index}
        h = Hierarchy._assemble(ids, edges, leaves=leaves, names=names, rooted=rooted)
        if level_names is not None and self.is_tree and h.max_depth <= len(level_names):
            h._level_names = level_names[: h.max_depth]
        return h


def _frozen(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array


def _restore(
    nodes: tuple[str, ...],
    names: tuple[str, ...],
    edges: IntArray,
    leaf_nodes: IntArray,
    rooted: bool,
    level_names: tuple[str, ...] | None,
) -> Hierarchy:
    """Rebuilds a pickled hierarchy through the same gate as any other."""
    leaves = [nodes[i] for i in leaf_nodes.tolist()]
    display = dict(zip(nodes, names, strict=True))
    return Hierarchy._assemble(
        nodes, edges, leaves=leaves, names=display, rooted=rooted, level_names=level_names
    )
