"""The label hierarchy: the only owner of node order, label order and the map between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hace.errors import HierarchyError, listed
from hace.hierarchy import transforms as _transforms
from hace.hierarchy.assembly import IntArray, as_ids, assemble
from hace.hierarchy.build import Frame, edges_of_parents, edges_of_paths, index_edges
from hace.hierarchy.graphs import Direction, graph_parts, to_graph
from hace.hierarchy.objects import Converted
from hace.hierarchy.pickling import restore
from hace.hierarchy.structure import frozen

if TYPE_CHECKING:
    import networkx as nx


class Hierarchy(Converted):
    """A label hierarchy: a tree, a forest or a directed acyclic graph. Immutable.

    A node is an *id*, a string (integers are accepted and written as strings); display names are separate and may
    repeat. A leaf is a node without children; the leaves are the classes. A hierarchy owns three orders:

    * **node order** (``nodes``): depth-first preorder on trees and forests, so that every subtree is a
      contiguous range; parents before children on DAGs. Heads over nodes have their columns in this order.
    * **label order** (``leaves``): the class list, label 0 to n - 1. Heads over leaves have their columns in
      this order.
    * the map between them: ``leaf_nodes`` (label to node index) and ``labels`` (node index to label, -1 inside).

    The root has depth 0. Without a root (``rooted`` is False) the tops have depth 1, as if below a virtual root, so that
    :meth:`without_root` changes no depth, level or distance. On a DAG depth is the longest path.

    Build one with :meth:`from_edges`, :meth:`from_parents`, :meth:`from_paths`, :meth:`from_tree`, :meth:`from_networkx`,
    :meth:`flat` or :func:`hace.read_hierarchy`; from data with :meth:`from_features`, :meth:`from_confusion` or
    :meth:`from_linkage`.

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
        raise TypeError("Build one with from_edges, from_parents, from_paths, flat or hace.read_hierarchy.")

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
        display = dict(zip(as_ids(names or (), "names"), map(str, (names or {}).values()), strict=True))
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
        """The last step of a constructor."""
        if names is None:
            return self
        levels = () if isinstance(names, str) else tuple(str(name) for name in names)
        if len(levels) != self.max_depth:
            raise HierarchyError(
                f"level_names must have one name for each of the levels 1 to {self.max_depth}. Got {names!r}."
            )
        self.__dict__["_level_names"] = levels
        return self

    def __setattr__(self, name: str, *value: object) -> None:
        raise AttributeError(f"A Hierarchy cannot be changed: {name!r} is fixed. Make a new one.")

    __delattr__ = __setattr__

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[tuple[Any, Any]] | Frame,
        *,
        leaves: Iterable[Any] | None = None,
        nodes: Iterable[Any] = (),
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
        rooted: bool | None = None,
    ) -> Hierarchy:
        """A hierarchy from (parent, child) pairs.

        Args:
            edges: pairs of ids, the parent first; or a pandas or polars frame with columns ``parent`` and ``child``.
            leaves: the class list in label order. By default the natural order of their ids, 2 before 10.
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
            parents: a mapping (or a pandas Series) from every id to its parent, to a list of parents, or to None for a top; or
                a 1-D integer array with the parent's position of node i at position i and -1 for a top (ids are then "0",
                "1", ...).
            leaves: as in :meth:`from_edges`.
            names: as in :meth:`from_edges`.
            level_names: as in :meth:`from_edges`.
            rooted: as in :meth:`from_edges`.

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
        paths: Iterable[Sequence[Any]] | Frame,
        *,
        leaves: Iterable[Any] | None = None,
        ids: Literal["name", "merged", "level", "path"] = "name",
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
    ) -> Hierarchy:
        """A hierarchy from label paths, each from the top down to a class.

        Args:
            paths: rows of names, or a pandas or polars frame with one column per level (its column names become the
                level names). Shorter rows end early, or in None, NaN or "". A row may occur many times.
            leaves: the class list in label order, by id.
            ids: what makes a node. ``"name"``: its name; a name in two places is an error. ``"merged"``: the same, but a
                class and the group of its name directly above it are one node. ``"level"``: inner nodes are
                ``level:name``, classes keep their plain name. ``"path"``: the names from the top, joined with "/".
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
        cls,
        graph: nx.DiGraph,
        *,
        leaves: Iterable[Any] | None = None,
        rooted: bool | None = None,
        direction: Direction = "parent_to_child",
    ) -> Hierarchy:
        """A hierarchy from a directed networkx graph.

        Node attributes ``name`` and ``label`` (an integer on every leaf) and the graph attributes ``rooted`` and
        ``level_names`` are used where they exist, so that :meth:`to_networkx` comes back unchanged. Parallel edges of a
        multigraph count once.

        Args:
            graph: the graph.
            leaves: the class list in label order; by default that of the attribute ``label``, or the natural order.
            rooted: whether the single top is a root; see :meth:`from_edges`.
            direction: where edges point: ``"parent_to_child"``, or ``"child_to_parent"`` as in graphs of ontologies
                (obonet).
        """
        found = graph_parts(graph, leaves, direction)
        rooted = graph.graph.get("rooted") if rooted is None else rooted
        return cls.from_edges(
            found.edges,
            leaves=found.leaves,
            nodes=graph.nodes(),
            names=found.names,
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
        ids, pairs, problems = index_edges((), classes, "classes")
        return cls._assemble(ids, pairs, leaves=ids, problems=problems)

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
        return to_graph(self)

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
        edges, leaves = self._edges.ravel().tolist(), self._leaf_nodes.tolist()  # plain values: see pickling
        return restore, (self._nodes, self._names, edges, leaves, self._rooted, self._level_names)

    def _derive(
        self,
        ids: Sequence[str],
        edges: IntArray,
        leaves: Iterable[str],
        *,
        rooted: bool | None,
        same_levels: bool = True,
    ) -> Hierarchy:
        """A hierarchy over (some of) the same nodes, which keep their display names and, with `same_levels`, their levels."""
        names = {i: self._names[self._index[i]] for i in ids if i in self._index}
        h = Hierarchy._assemble(ids, edges, leaves=leaves, names=names, rooted=rooted)
        return h._with_levels(self._level_names[: h.max_depth] if self._level_names and same_levels else None)
