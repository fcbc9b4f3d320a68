"""The label hierarchy: the only owner of node order, label order and the map between them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hace.errors import HierarchyError
from hace.hierarchy import distances as _distances
from hace.hierarchy import transforms as _transforms
from hace.hierarchy.assembly import IntArray, as_id, as_ids, assemble, listed
from hace.hierarchy.build import edges_of_parents, edges_of_paths, index_edges
from hace.hierarchy.structure import Structure, frozen

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

Labels = Literal["leaves", "nodes"]


class Hierarchy(Structure):
    """A label hierarchy: a tree, a forest or a directed acyclic graph. Immutable.

    A node is an *id*, a string (integers are accepted and written as strings). Display names stand apart and
    may repeat. A leaf is a node without children; the leaves are the classes. Three orders, and nobody else
    may invent one:

    * **node order** (``nodes``): depth-first preorder on trees and forests, so that every subtree is a
      contiguous range; parents before children on DAGs. Heads over nodes have their columns in this order.
    * **label order** (``leaves``): the class list, label 0 to n - 1. Heads over leaves have their columns in
      this order.
    * the map between them: ``leaf_nodes`` (label to node index) and ``labels`` (node index to label, -1 inside).

    Depth counts from the root, which has depth 0. Without a root (``rooted`` is False) the tops have depth 1,
    as if below a virtual root, so that :meth:`without_root` changes no depth, level or distance. On a DAG
    depth is the longest path.

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
        rooted: bool | None = None,
        problems: Sequence[str] = (),
    ) -> Hierarchy:
        """The one way in: every constructor ends here. Level names follow, since they need the depth."""
        problems = list(problems)
        classes = None if leaves is None else as_ids(leaves, "leaves")
        if names is not None and not isinstance(names, Mapping):
            raise HierarchyError(
                f"names must be a mapping from ids to display names. Got {type(names).__name__}."
            )
        display = {as_id(k, "names"): str(v) for k, v in (names or {}).items()}
        stray = display.keys() - set(ids) if display else set()
        if stray:
            problems.append(
                f"names has entries for ids that are not in the hierarchy: {listed(sorted(stray))}."
            )
        made = assemble(ids, edges, classes, rooted, problems)
        self = object.__new__(cls)
        self.__dict__.update(
            _nodes=made.ids,
            _names=tuple(display.get(i, i) for i in made.ids) if display else made.ids,
            _edges=frozen(made.edges),
            _leaf_nodes=frozen(made.leaf_nodes),
            _rooted=made.rooted,
            _level_names=None,
        )
        return self

    def _with_levels(self, names: Sequence[str] | None) -> Hierarchy:
        """The last step of a constructor, before anybody else sees the object."""
        if names is None:
            return self
        levels = () if isinstance(names, str) else tuple(str(name) for name in names)
        if len(levels) != self.max_depth:
            raise HierarchyError(
                f"level_names must have one name for each of the levels 1 to {self.max_depth}. Got {names!r}."
            )
        self.__dict__["_level_names"] = levels
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A Hierarchy cannot be changed: {name!r} is fixed. Make a new one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A Hierarchy cannot be changed: {name!r} is fixed. Make a new one.")

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
            leaves: the class list in label order. Without it the leaves stand in natural order of their ids
                (2 before 10).
            nodes: ids that may have no edge at all: classes without parent.
            names: display names by id; a node without one is shown by its id.
            level_names: names of the levels 1 to ``max_depth``, such as ``("order", "family", "species")``.
            rooted: whether the single top is a root. By default it is when there is one top and it has children.

        Raises:
            HierarchyError: with all problems of the input.
        """
        ids, pairs, problems = index_edges(edges, nodes)
        h = cls._assemble(ids, pairs, leaves=leaves, names=names, rooted=rooted, problems=problems)
        return h._with_levels(level_names)

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
        h = cls._assemble(ids, pairs, leaves=leaves, names=names, rooted=rooted, problems=problems)
        return h._with_levels(level_names)

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
            names: display names by id, in place of the names in the paths.
            level_names: names of the columns, a column that holds the root included.

        Example:
            >>> h = Hierarchy.from_paths([("Boeing", "747", "747-100"), ("Boeing", "747", "747-200"), ("Saab", "2000")])
            >>> h.nodes
            ('Boeing', '747', '747-100', '747-200', 'Saab', '2000')
        """
        table = edges_of_paths(paths, ids, level_names)
        display = table.names if names is None else {**table.names, **names}
        h = cls._assemble(table.ids, table.edges, leaves=leaves, names=display, problems=table.problems)
        if table.level_names is None:
            return h
        # The first column of rooted paths holds the root, which has no level; the last ones may be empty.
        return h._with_levels(table.level_names[h.rooted : h.rooted + h.max_depth])

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
        labels: dict[Any, Any] = {k: v for k, v in graph.nodes(data="label") if v is not None}
        strange = [f"{k}: {v!r}" for k, v in labels.items() if not isinstance(v, (int, np.integer))]
        if strange:
            raise HierarchyError(f"The node attribute label must be an integer. Got {listed(strange)}.")
        labels = {k: v for k, v in labels.items() if v >= 0}
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
        classes = as_ids(classes, "classes")
        repeated = [c for c, k in Counter(classes).items() if k > 1]
        problems = [f"classes repeats {listed(repeated)}. Each class must stand once."] if repeated else []
        unique = list(dict.fromkeys(classes))
        return cls._assemble(unique, np.empty((0, 2), dtype=np.int64), leaves=unique, problems=problems)

    # ------------------------------------------------------------------ distances

    def lca(self, a: Any, b: Any) -> str | None:
        """Lowest common ancestor, or None where only the virtual root stands above both.

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

    # ------------------------------------------------------------------ new hierarchies from this one

    def without_root(self) -> Hierarchy:
        """The same hierarchy with its root taken away; depths, levels and distances stay as they are.

        One exception: a DAG may have an edge from the root to a node that has other parents too. Such a short cut
        goes with the root, so ``"edges"`` distances over it become longer; the other two stay.
        """
        return _transforms.without_root(self)

    def with_root(self, id: Any = "root") -> Hierarchy:
        """The same hierarchy below a new root; one that has a root already comes back unchanged."""
        return _transforms.with_root(self, id)

    def subset(self, leaves: Iterable[Any]) -> Hierarchy:
        """The hierarchy over some of the classes: these and everything above them.

        Args:
            leaves: ids of the classes to keep, in their new label order.
        """
        return _transforms.subset(self, leaves)

    def collapse_unary(self) -> Hierarchy:
        """The hierarchy without inner nodes that have a single child; their child takes their place.

        A root with a single child goes too. Levels lose their names, since a level may no longer be one rank.
        """
        return _transforms.collapse_unary(self)

    def shuffled(self, seed: int) -> Hierarchy:
        """The same shape with the classes dealt to other places: the control that keeps everything but the meaning."""
        return _transforms.shuffled(self, seed)

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
        nodes = f"{self.num_nodes:,} node{'s' * (self.num_nodes != 1)}"
        leaves = "1 leaf" if self.num_leaves == 1 else f"{self.num_leaves:,} leaves"
        return f"<Hierarchy {self.kind}: {nodes}, {leaves}, depth {self.max_depth}>"

    def summary(self) -> str:
        """A page that describes the hierarchy; meant for ``print``."""
        from hace.hierarchy.summary import summarize

        return summarize(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what decides results: ids, edges, label order and root; display names do not count."""
        kind = "rooted" if self._rooted else "unrooted"
        digest = hashlib.sha256(f"hace.Hierarchy.1 {kind} {self.num_nodes} {self.num_edges} ".encode())
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

    def _derive(
        self,
        ids: Sequence[str],
        edges: IntArray,
        leaves: Iterable[str],
        *,
        rooted: bool | None,
        same_levels: bool = True,
    ) -> Hierarchy:
        """A hierarchy over (some of) the same nodes, which keep their display names, and their depths if so said."""
        names = {i: self._names[self._index[i]] for i in ids if i in self._index}
        h = Hierarchy._assemble(ids, edges, leaves=leaves, names=names, rooted=rooted)
        return h._with_levels(self._level_names[: h.max_depth] if self._level_names and same_levels else None)


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
    h = Hierarchy._assemble(nodes, edges, leaves=leaves, names=display, rooted=rooted)
    return h._with_levels(level_names)
