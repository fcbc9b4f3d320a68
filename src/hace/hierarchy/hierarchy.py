"""The label hierarchy: the only owner of node order, label order and the map between them."""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hace.checks import check_choice
from hace.errors import ConfigError, HierarchyError, listed, nearest
from hace.hierarchy import build, induction
from hace.hierarchy import distances as _distances
from hace.hierarchy.assembly import IntArray, as_id, as_ids, assemble

if TYPE_CHECKING:
    import networkx as nx

    from hace.hierarchy import matching

Labels = Literal["leaves", "nodes"]
_PAIRS_SHOWN = 5
_LEVELS_SHOWN = 30  # in a summary


class Hierarchy:
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

    # Set once, by _assemble and _with_levels.
    nodes: tuple[str, ...]
    """Ids in node order."""
    names: tuple[str, ...]
    """Display names in node order."""
    edges: IntArray
    """(E, 2) node indices (parent, child), sorted by child, then parent."""
    leaf_nodes: IntArray
    """(n,) node index of each label."""
    rooted: bool
    """Whether a single root is above everything, at depth 0."""
    level_names: tuple[str, ...] | None
    """Names of the levels 1 to ``max_depth``, or None."""
    ranks: tuple[str, ...] | None
    """Rank of each node in node order, such as "family", "" where it has none; None if no node has one."""
    synonyms: dict[str, str]
    """Other names that resolve to a node: name to id."""
    notes: tuple[str, ...]
    """What a reader decided about the file, one sentence each."""

    def __init__(self, *given: object) -> None:
        raise TypeError(
            "A Hierarchy is built from what you have. Rows of names, from the top down: Hierarchy.from_paths(rows). Pairs "
            "(parent, child): Hierarchy.from_edges(pairs). A file: hace.read_hierarchy(path)."
        )

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
        ranks: Mapping[str, str] | None = None,
        synonyms: Mapping[str, str] | None = None,
    ) -> Hierarchy:
        """The one way in: every constructor ends here. Level names follow, since they need the depth."""
        problems = list(problems)
        classes = None if leaves is None else as_ids(leaves, "leaves")
        if names is not None and not isinstance(names, Mapping):
            raise HierarchyError(
                f"names must be a mapping from ids to display names. Got {type(names).__name__}."
            )
        for argument, given in (("ranks", ranks), ("synonyms", synonyms)):
            texts = () if given is None else given.values() if isinstance(given, Mapping) else (None,)
            if not all(isinstance(text, str) for text in texts):
                raise HierarchyError(f"{argument} must be a mapping from texts to texts. Got {given!r:.80}.")
        display = dict(zip(as_ids(names or (), "names"), map(str, (names or {}).values()), strict=True))
        stray = display.keys() - set(ids) if display else set()
        if stray:
            problems.append(
                f"names has entries for ids that are not in the hierarchy: {listed(sorted(stray))}."
            )
        strange = {*(ranks or ()), *(synonyms or {}).values()} - set(ids) if ranks or synonyms else set()
        if strange:
            problems.append(f"ranks or synonyms name ids that do not exist: {listed(sorted(strange))}.")
        made = assemble(ids, edges, classes, rooted, problems)
        self = object.__new__(cls)
        self.__dict__.update(
            nodes=made.ids,
            names=tuple(display.get(i, i) for i in made.ids) if display else made.ids,
            edges=frozen(made.edges),
            leaf_nodes=frozen(made.leaf_nodes),
            rooted=made.rooted,
            level_names=None,
            ranks=tuple(ranks.get(i, "") for i in made.ids) if ranks and any(ranks.values()) else None,
            synonyms=dict(synonyms or {}),
            notes=(),
        )
        return self

    def _with_levels(self, names: Sequence[str] | None) -> Hierarchy:
        """The last step of a constructor. Ranks that are the levels name them."""
        if names is None and self.ranks is not None:
            by_level: dict[int, set[str]] = {}
            for depth, rank in zip(self.depths.tolist(), self.ranks, strict=True):
                by_level.setdefault(depth, set()).add(rank)
            ranks_by_level = [by_level[k] for k in range(1, self.max_depth + 1)]
            alone = all(len(ranks) == 1 and "" not in ranks for ranks in ranks_by_level)
            names = ["".join(ranks) for ranks in ranks_by_level] if alone else None
            names = names if names and len(set(names)) == len(names) else None
        if names is None:
            return self
        listed_names = isinstance(names, Iterable) and not isinstance(names, str)
        levels = tuple(map(str, names)) if listed_names else ()
        if len(levels) != self.max_depth:
            raise HierarchyError(
                f"level_names must have one name for each of the levels 1 to {self.max_depth}. Got {names!r}."
            )
        self.__dict__["level_names"] = levels
        return self

    def __setattr__(self, name: str, *value: object) -> None:
        raise AttributeError(f"A Hierarchy cannot be changed: {name!r} is fixed. Make a new one.")

    __delattr__ = __setattr__

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[tuple[Any, Any]] | build.Frame,
        *,
        leaves: Iterable[Any] | None = None,
        nodes: Iterable[Any] = (),
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
        rooted: bool | None = None,
        ranks: Mapping[str, str] | None = None,
        synonyms: Mapping[str, str] | None = None,
    ) -> Hierarchy:
        """A hierarchy from (parent, child) pairs.

        Args:
            edges: pairs of ids, the parent first; or a pandas or polars frame with columns ``parent`` and ``child``.
            leaves: the class list in label order. By default the natural order of their ids, 2 before 10.
            nodes: ids that may have no edge at all: classes without parent.
            names: display names by id; a node without one is shown by its id.
            level_names: names of the levels 1 to ``max_depth``, such as ``("order", "family", "species")``.
            rooted: whether the single top is a root. By default it is when there is one top and it has children.
            ranks: ranks by id, such as "family", for trees whose branches have different depths: ``level="family"`` then
                means the family of every node that has one.
            synonyms: other names by which labels, columns and :meth:`within` find a node: name to id.

        Raises:
            HierarchyError: with all problems of the input.
        """
        ids, pairs, problems = build.index_edges(edges, nodes)
        about: Any = {"names": names, "rooted": rooted, "ranks": ranks, "synonyms": synonyms}
        h = cls._assemble(ids, pairs, leaves=leaves, problems=problems, **about)
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
            leaves, names, level_names, rooted: as in :meth:`from_edges`.

        Example:
            >>> Hierarchy.from_parents([-1, 0, 0, 1, 1]).leaves
            ('2', '3', '4')
        """
        ids, pairs, problems = build.edges_of_parents(parents)
        h = cls._assemble(ids, pairs, leaves=leaves, names=names, rooted=rooted, problems=problems)
        return h._with_levels(level_names)

    @classmethod
    def from_paths(
        cls,
        paths: Iterable[Sequence[Any]] | build.Frame,
        *,
        leaves: Iterable[Any] | None = None,
        ids: Literal["name", "shared", "merged", "level", "path"] = "name",
        names: Mapping[Any, str] | None = None,
        level_names: Sequence[str] | None = None,
    ) -> Hierarchy:
        """A hierarchy from label paths, each from the top down to a class, or to a node above classes of other rows.

        Args:
            paths: rows of names, texts such as "Home > Garden > Pots", or a pandas or polars frame with one column per level
                (its column names become the level names). Shorter rows end early, or in None, NaN or "". A row may occur many
                times.
            leaves: the class list in label order, by id.
            ids: what makes a node. ``"name"``: its name; a name in two places is an error. ``"shared"``: its name; a name below
                several others is one node with several parents, and the hierarchy a DAG. ``"merged"``: its name, but a class
                and the group of its name directly above it are one node. ``"level"``: inner nodes are
                ``level:name``, classes keep their plain name. ``"path"``: the names from the top, joined with "/".
            names: display names by id, in place of the names in the paths.
            level_names: names of the columns, a column that holds the root included.

        Example:
            >>> h = Hierarchy.from_paths([("Boeing", "747", "747-100"), ("Boeing", "747", "747-200"), ("Saab", "2000")])
            >>> h.nodes
            ('Boeing', '747', '747-100', '747-200', 'Saab', '2000')
        """
        table = build.edges_of_paths(paths, ids, level_names)
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
        direction: build.Direction = "parent_to_child",
    ) -> Hierarchy:
        """A hierarchy from a directed networkx graph.

        Node attributes ``name`` and ``label`` (an integer on every leaf) and the graph attributes ``rooted`` and
        ``level_names`` are used where they exist, so that :meth:`to_networkx` comes back unchanged. Parallel edges of a
        multigraph count once.

        Args:
            graph: the graph.
            leaves: the class list in label order; by default that of the attribute ``label``, or the natural order.
            rooted: whether the single top is a root; see :meth:`from_edges`.
            direction: where edges point: ``"parent_to_child"`` or ``"child_to_parent"``. Of a graph that obonet read, its
                ``is_a`` edges count, which point to the parent; other relations are left out.
        """
        edges, names = build.graph_parts(graph, direction)
        return cls.from_edges(
            edges,
            leaves=build.labelled(graph) if leaves is None else leaves,
            nodes=graph.nodes(),
            names=names,
            level_names=graph.graph.get("level_names"),
            rooted=graph.graph.get("rooted") if rooted is None else rooted,
        )

    @classmethod
    def from_tree(
        cls,
        tree: Any,
        *,
        children: str = "children",
        parents: str | None = None,
        name: str = "name",
        ids: Literal["name", "path"] = "name",
        leaves: Iterable[Any] | None = None,
        level_names: Sequence[str] | None = None,
        rooted: bool | None = None,
    ) -> Hierarchy:
        """A hierarchy from a nested dict, or from the node objects of a tree library (bigtree, anytree, ete, NLTK's WordNet).

        Args:
            tree: a nested dict, whose values are dicts, lists of classes, or None; or a node or a list of nodes, objects or
                dicts with a name and children.
            children: the attribute, key or method that holds a node's children.
            parents: the one that holds a node's parents, to walk up instead: ``tree`` is then the list of classes, in label
                order.
            name: the one that holds a node's name. Nodes without one get the ids node1, node2, ...
            ids: what makes a node. ``"name"``: its name; two nodes of one name are an error. ``"path"``: the names from the
                top, joined with "/".
            leaves, level_names, rooted: as in :meth:`from_edges`.

        Example:
            >>> h = Hierarchy.from_tree({"animal": {"dog": ["husky", "beagle"], "cat": None}})
            >>> h.nodes
            ('animal', 'dog', 'beagle', 'husky', 'cat')
        """
        tops, edges, names = build.edges_of_tree(tree, children, parents, name, ids)
        leaves = tops if parents and leaves is None else leaves
        return cls.from_edges(
            edges, nodes=names, names=names, leaves=leaves, level_names=level_names, rooted=rooted
        )

    @classmethod
    def flat(cls, classes: Iterable[Any]) -> Hierarchy:
        """n classes and nothing above them (N = n): HACE, HCE and HXE become ordinary cross-entropy.

        Example:
            >>> Hierarchy.flat(["cat", "dog"])
            <Hierarchy forest: 2 nodes, 2 leaves, depth 1>
        """
        ids, pairs, problems = build.index_edges((), classes, "classes")
        return cls._assemble(ids, pairs, leaves=ids, problems=problems)

    @classmethod
    def from_linkage(
        cls, linkage: ArrayLike, classes: Iterable[Any] | None = None, *, levels: induction.Cut = 2
    ) -> Hierarchy:
        """A hierarchy from a linkage matrix, as of :func:`scipy.cluster.hierarchy.linkage`.

        The merges are undone from the last one until a level has its number of groups. Every class is in a group at every
        level, so all classes have one depth; a group may hold one class.

        Args:
            linkage: (n - 1, 4) merges: row i joins the clusters in its first two columns into cluster n + i.
            classes: the n classes in the order of the linkage, which becomes the label order; "0", "1", ... by default.
            levels: how many levels of groups to put above the classes, with numbers of groups in geometric progression; or
                these numbers, from the top; or None for the whole binary tree, one node per merge.

        Example:
            >>> merges = [[0, 1, 1.0, 2], [2, 3, 1.5, 2], [4, 5, 9.0, 4]]
            >>> Hierarchy.from_linkage(merges, ["cat", "lynx", "car", "bus"], levels=1).names
            ('cat, lynx', 'cat', 'lynx', 'car, bus', 'car', 'bus')
        """
        ids, edges, names = induction.edges_of_linkage(linkage, classes, levels)
        return cls.from_edges(edges, nodes=ids, leaves=ids, names=names)

    @classmethod
    def from_features(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        classes: Iterable[Any] | None = None,
        *,
        levels: induction.Cut = 2,
        linkage: induction.Linkage = "ward",
        normalize: Literal["unit", "none"] = "unit",
    ) -> Hierarchy:
        """A hierarchy from features: agglomerative clustering of the classes' means.

        Give training samples only: a tree made with test samples has seen the answers. All pairs of classes are compared, so
        time and memory grow with the square of their number: 20,000 classes of 256 features take about a minute and 3.3 GB.

        Args:
            x: (M, d) features.
            y: (M,) labels from 0 to n - 1; every class needs a sample.
            classes: the n classes in label order; "0", "1", ... by default.
            levels: as in :meth:`from_linkage`.
            linkage: how far apart two groups are, as in scipy.
            normalize: ``"unit"``: vectors are scaled to length 1 before their mean is taken; ``"none"``: taken as they are.

        Example:
            >>> x = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]
            >>> Hierarchy.from_features(x, [0, 1, 2, 3], ["cat", "lynx", "car", "bus"], levels=1).names
            ('cat, lynx', 'cat', 'lynx', 'car, bus', 'car', 'bus')
        """
        given = None if classes is None else as_ids(classes, "classes")
        merges = induction.linkage_of_features(np.asarray(x), np.asarray(y), given, linkage, normalize)
        return cls.from_linkage(merges, given, levels=levels)

    @classmethod
    def from_confusion(
        cls, matrix: ArrayLike, classes: Iterable[Any] | None = None, *, levels: induction.Cut = 2
    ) -> Hierarchy:
        """A hierarchy from confusions: classes that are taken for each other come together.

        Rows are divided by their sums; two classes are as near as the mean of both directions says, and groups by the mean
        over their pairs (average linkage). Take the confusions from held-out training samples, never from the test samples.

        Args:
            matrix: (n, n) counts or rates, the true class in the row.
            classes: the n classes in label order; "0", "1", ... by default.
            levels: as in :meth:`from_linkage`.
        """
        merges = induction.linkage_of_confusions(np.asarray(matrix, dtype=np.float64))
        return cls.from_linkage(merges, classes, levels=levels)

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Ids of the classes in label order."""
        return tuple(self.nodes[i] for i in self.leaf_nodes.tolist())

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return len(self.nodes)

    @property
    def num_leaves(self) -> int:
        """n, the number of classes."""
        return len(self.leaf_nodes)

    @property
    def num_edges(self) -> int:
        """The number of parent-child pairs."""
        return len(self.edges)

    @cached_property
    def labels(self) -> IntArray:
        """(N,) label of each node, -1 for inner nodes."""
        labels = np.full(self.num_nodes, -1, dtype=np.int64)
        labels[self.leaf_nodes] = np.arange(self.num_leaves)
        return frozen(labels)

    @cached_property
    def is_tree(self) -> bool:
        """Whether no node has two parents: a tree or a forest."""
        return not bool((self.edges[1:, 1] == self.edges[:-1, 1]).any())

    @property
    def kind(self) -> Literal["tree", "forest", "DAG"]:
        """``"tree"`` (with a root), ``"forest"`` or ``"DAG"``."""
        return "DAG" if not self.is_tree else "tree" if self.rooted else "forest"

    @cached_property
    def tops(self) -> tuple[str, ...]:
        """Ids of the nodes without parent."""
        return self._ids(np.setdiff1d(np.arange(self.num_nodes), self.edges[:, 1]))

    @cached_property
    def depths(self) -> IntArray:
        """(N,) depth of each node: 0 at the root, 1 at the tops where there is no root; the longest path on a DAG."""
        depth = [0 if self.rooted else 1] * self.num_nodes
        for parent, child in self.edges.tolist():  # sorted by child, and parents come first
            if depth[parent] >= depth[child]:
                depth[child] = depth[parent] + 1
        return frozen(np.array(depth, dtype=np.int64))

    @cached_property
    def heights(self) -> IntArray:
        """(N,) height of each node: edges on the longest way down to a leaf."""
        height = [0] * self.num_nodes
        for parent, child in reversed(self.edges.tolist()):
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
        parents[self.edges[:, 1]] = self.edges[:, 0]
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

    def index(self, node: Any) -> int:
        """Position of a node in node order."""
        key = as_id(node, "node")
        if key not in self._index:
            raise HierarchyError(f"node {key!r} is not in the hierarchy.{nearest(key, self.nodes)}")
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
        return self.names[self.index(node)]

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
        return self._ids(self._closure(self.index(node), self._parents_of, include_self))

    def descendants(self, node: Any, *, include_self: bool = False) -> tuple[str, ...]:
        """Ids of everything below a node, in node order."""
        v = self.index(node)
        if self.is_tree:
            return self.nodes[v if include_self else v + 1 : self.subtree_ends[v]]
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
        """Ids of the nodes at a level, by its depth, its name or a rank."""
        return self._ids(np.flatnonzero(self._at_level(self.level_index(level))))

    @cached_property
    def rank_names(self) -> tuple[str, ...]:
        """The ranks in use from the top down, where they are not the levels themselves."""
        depths: dict[str, list[int]] = {}
        for rank, depth in zip(self.ranks or (), self.depths.tolist(), strict=False):
            depths.setdefault(rank, []).append(depth)
        depths.pop("", None)
        return () if self.level_names else tuple(sorted(depths, key=lambda r: (np.mean(depths[r]), r)))

    def level_index(self, level: int | str) -> int:
        """Number of a level given by number or by name: its depth. Ranks have the numbers after the depths."""
        names = self.level_names or self.rank_names
        if isinstance(level, str) and level in names:
            return names.index(level) + (1 if self.level_names else self.max_depth + 1)
        lowest = 0 if self.rooted else 1
        ranks = len(self.rank_names)
        if isinstance(level, (int, np.integer)) and lowest <= level <= self.max_depth + ranks:
            return int(level)
        known = f", or one of {listed(names, 30)}" if names else ""
        raise HierarchyError(
            f"level must be an integer from {lowest} to {self.max_depth}{known}. Got {level!r}."
        )

    def level_nodes(self, level: int | str) -> IntArray:
        """(N,) for each node its ancestor at a level, by node index. Trees and forests only.

        A node at or above the level is its own answer, so that leaves of a ragged tree are carried down; so is a node
        without an ancestor of a rank.
        """
        self._require_tree("level_nodes")
        k = self.level_index(level)
        if k > self.max_depth:
            nodes = np.where(self._at_level(k), np.arange(self.num_nodes), -1).tolist()
            for v, parent in enumerate(self.parent_nodes.tolist()):
                if nodes[v] < 0 <= parent:
                    nodes[v] = nodes[parent]
            return np.where(np.array(nodes) < 0, np.arange(self.num_nodes), nodes)
        at = np.flatnonzero(self.depths == k)
        every = np.arange(self.num_nodes)
        above = at[np.maximum(np.searchsorted(at, every, side="right") - 1, 0)]
        return np.where(self.depths <= k, every, above)

    def _at_level(self, level: int) -> np.ndarray:
        """(N,) whether a node is at a level."""
        if level <= self.max_depth:
            return self.depths == level
        rank = self.rank_names[level - self.max_depth - 1]
        return np.array([own == rank for own in self.ranks or ()])

    def lca(self, a: Any, b: Any) -> str | None:
        """Lowest common ancestor, or None where only the virtual root is above both.

        On a DAG: the common ancestor of least height (of several, the deepest, then the first in node order).
        """
        lca = int(_distances.lca_nodes(self, np.array([self.index(a)]), np.array([self.index(b)]))[0])
        return None if lca < 0 else self.nodes[lca]

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

    def agreement(self, other: Hierarchy, *, seed: int = 0) -> induction.TreeAgreement:
        """How alike this tree and another one over the same classes are.

        Args:
            other: a hierarchy with the same classes, in any label order.
            seed: draws the triplets and pairs where there are more than 2,000,000.

        Example:
            >>> h = Hierarchy.from_paths([("pet", "cat"), ("pet", "dog"), ("car",)])
            >>> h.agreement(h)
            TreeAgreement(triplets=1.0, resolved=1.0, cophenetic=1.0)
        """
        return induction.compare_trees(self, other, seed)

    def without_root(self) -> Hierarchy:
        """The same hierarchy with its root taken away; depths, levels and distances stay as they are.

        One exception: a DAG may have an edge from the root to a node that has other parents too. Such a short cut
        goes with the root, so ``"edges"`` distances over it become longer; the other two stay.
        """
        if not self.rooted:
            return self
        inside = np.arange(self.num_nodes) > 0  # the root is node 0
        return self._restricted(inside, self.leaves, rooted=False)

    def with_root(self, id: Any = "root") -> Hierarchy:
        """The same hierarchy below a new root; one that has a root already comes back unchanged."""
        if self.rooted:
            return self
        root = as_id(id, "id")
        if root in self.nodes:
            raise HierarchyError(f"id {root!r} is in the hierarchy already. Give the root another id.")
        tops = np.array([(0, self.index(top) + 1) for top in self.tops], dtype=np.int64)
        edges = np.concatenate([tops, self.edges + 1])
        return self._derive((root, *self.nodes), edges, self.leaves, rooted=True)

    def subset(self, leaves: Iterable[Any]) -> Hierarchy:
        """The hierarchy over some of the nodes as classes: these and everything above them.

        An inner node may be a class: what is below it goes. If another class is below it, the class keeps its id and name and
        becomes a leaf below its own group, whose id ends in " (group)".

        Args:
            leaves: ids of the classes, in their new label order.

        Example:
            >>> h = Hierarchy.from_paths([("cell", "T cell", "CD4"), ("cell", "T cell", "CD8"), ("cell", "B cell")])
            >>> h.subset(["T cell", "B cell"]).leaves
            ('T cell', 'B cell')
            >>> h.subset(["T cell", "CD4"]).nodes
            ('cell', 'T cell (group)', 'T cell', 'CD4')
        """
        classes = as_ids(leaves, "leaves")
        if not classes:
            raise HierarchyError("leaves is empty. A hierarchy must have at least one class.")
        problems = []
        unknown = [c for c in classes if c not in self._index]
        if unknown:
            hint = nearest(unknown[0], self.leaves)
            problems.append(f"leaves names ids that are not in the hierarchy: {listed(unknown)}.{hint}")
        repeated = [c for c, count in Counter(classes).items() if count > 1]
        if repeated:
            problems.append(f"leaves repeats {listed(repeated)}. Each class must occur once.")
        if problems:
            raise HierarchyError(problems)
        keep = np.zeros(self.num_nodes, dtype=bool)
        keep[[self.index(c) for c in classes]] = True
        marks = keep.tolist()
        listed_above = set()
        for parent, child in reversed(self.edges.tolist()):  # children first
            if marks[child]:
                marks[parent] = True
                listed_above.add(parent)
        groups = [v for v in listed_above if keep[v]]
        if not groups:
            return self._restricted(np.array(marks), classes, rooted=self.rooted and sum(marks) > 1)
        return self._with_own_classes(groups).subset(classes)

    def _with_own_classes(self, inner: Iterable[int]) -> Hierarchy:
        """Inner nodes as classes: each keeps its id as a leaf below a group that takes its place."""
        ids = list(self.nodes)
        edges = self.edges.tolist()
        names = dict(zip(self.nodes, self.names, strict=True))
        ranks = dict(zip(self.nodes, self.ranks or (), strict=False))
        taken = set(ids)
        for v in inner:
            own = ids[v]
            group = f"{ids[v]} (group)"
            while group in taken:
                group += "*"
            names[group] = f"{names[own]} (group)"
            ranks[group] = ranks.pop(own, "")
            edges.append((v, len(ids)))
            ids.append(own)
            ids[v] = group
            taken.add(group)
        about: Any = {"names": names, "rooted": self.rooted, "ranks": ranks, "synonyms": self.synonyms}
        return Hierarchy._assemble(ids, np.array(edges, dtype=np.int64), **about)

    def within(
        self,
        names: Iterable[Any],
        *,
        collapse: bool = False,
        below: Any = None,
        ranks: Iterable[str] | None = None,
        matches: Mapping[str, str | None] | None = None,
    ) -> Hierarchy:
        """The part of a taxonomy above my class names.

        Names match ids, display names and synonyms; case, underscores, hyphens, authorship, leading numbers and Unicode forms
        do not matter. Each name becomes a class in the given order, and resolves to its node afterwards. Inner nodes may be
        classes, as in :meth:`subset`. :meth:`match` shows the matches.

        Args:
            names: the class names, in label order.
            collapse: whether to leave out inner nodes with a single child.
            below: id or name of a node to cut at: what is above it goes.
            ranks: keep inner nodes of these ranks only.
            matches: corrections: name to id, or None to leave the class out.

        Raises:
            HierarchyError: names without a match or with several, each with its three best candidates.

        Example:
            >>> h = Hierarchy.from_edges([("Felidae", "Panthera leo"), ("Felidae", "Lynx lynx"), ("Canidae", "Canis lupus")],
            ...                          synonyms={"African lion": "Panthera leo"})
            >>> h.within(["african_lion", "Canis lupus Linnaeus, 1758"]).nodes
            ('Felidae', 'Panthera leo', 'Canidae', 'Canis lupus')
        """
        from hace.hierarchy import matching

        return matching.within(self, list(names), collapse, below, ranks, dict(matches or {}))

    def match(self, names: Iterable[Any]) -> list[matching.Match]:
        """What each name means here: its node and how it was found, or up to three candidates. See :meth:`within`."""
        from hace.hierarchy import matching

        return matching.match(self, [str(name) for name in names])

    def migrate(
        self, mapping: Mapping[Any, Any], new: Hierarchy, *, strict: bool = True
    ) -> matching.Migration:
        """From this version of a taxonomy to the next: carries labels, scores and trained heads.

        Renamed and merged classes move. A class that was split becomes a coarse label: the lowest node above all its parts. A
        class whose parts have no node above them all is scattered (``new.with_root()`` gives them one), and one that was
        removed is dropped; their samples are counted.

        Args:
            mapping: old id or name to a new one, to a list of them where a class was split, or to None if removed. Nodes
                that it does not name keep their id, or else their display name.
            new: the next version.
            strict: whether an old class without a place in the new version, or a name in the mapping that neither version
                has, is an error; otherwise the class is dropped, and the name is left out.

        Example:
            >>> old = Hierarchy.from_paths([("pet", "dog"), ("pet", "cat")])
            >>> new = Hierarchy.from_paths([("pet", "canine", "husky"), ("pet", "canine", "beagle"), ("pet", "cat")])
            >>> old.migrate({"dog": ["husky", "beagle"]}, new).labels(["dog", "cat"])
            array([1, 4])
        """
        from hace.hierarchy import matching

        return matching.migration(self, new, mapping, strict)

    def collapse_unary(self, keep: Iterable[Any] = ()) -> Hierarchy:
        """The hierarchy without inner nodes that have a single child; their child takes their place.

        A root with a single child goes too. Levels lose their names, since a level may no longer be one rank.

        Args:
            keep: Ids of nodes that stay, such as those of coarse labels.

        Example:
            >>> h = Hierarchy.from_paths([("cell", "lymphocyte", "T"), ("cell", "monocyte", "CD14", "classical")])
            >>> h.collapse_unary(keep=["CD14"]).nodes
            ('cell', 'T', 'CD14', 'classical')
        """
        stays = {self.index(node) for node in keep}
        children: list[set[int]] = [set() for _ in self.nodes]
        replaced_by = list(range(self.num_nodes))  # each node, or the one that takes its place
        edges = self.edges.tolist()
        for v in range(self.num_nodes - 1, -1, -1):  # children first, so that theirs are known
            while edges and edges[-1][1] > v:
                parent, child = edges.pop()
                children[parent].add(replaced_by[child])
            if len(children[v]) == 1 and v not in stays:
                (replaced_by[v],) = children[v]
        remaining = [v for v in range(self.num_nodes) if replaced_by[v] == v]
        pairs = [(parent, child) for parent in remaining for child in children[parent]]
        position = {v: i for i, v in enumerate(remaining)}
        edges = np.array([(position[p], position[c]) for p, c in pairs], dtype=np.int64).reshape(-1, 2)
        ids = self._ids(remaining)
        rooted = None if self.rooted else False
        return self._derive(ids, edges, self.leaves, rooted=rooted, same_levels=False)

    def shuffled(self, seed: int) -> Hierarchy:
        """The same shape with the classes dealt to other places: the control that keeps everything but the meaning."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise HierarchyError(f"seed must be an integer from 0 on. Got {seed!r}.")
        order = np.random.default_rng(seed).permutation(self.num_leaves)
        ids = np.array(self.nodes, dtype=object)
        ids[self.leaf_nodes] = ids[self.leaf_nodes[order]]
        return self._derive(ids.tolist(), self.edges, self.leaves, rooted=self.rooted)

    def to_networkx(self) -> nx.DiGraph:
        """A networkx graph with edges from parent to child; see :meth:`from_networkx`."""
        import networkx as nx

        graph = nx.DiGraph(rooted=self.rooted, level_names=self.level_names)
        for node, name, label in zip(self.nodes, self.names, self.labels.tolist(), strict=True):
            graph.add_node(node, name=name, **({"label": label} if label >= 0 else {}))
        graph.add_edges_from((self.nodes[p], self.nodes[c]) for p, c in self.edges.tolist())
        return graph

    def __repr__(self) -> str:
        nodes = f"{self.num_nodes:,} node{'s' * (self.num_nodes != 1)}"
        leaves = "1 leaf" if self.num_leaves == 1 else f"{self.num_leaves:,} leaves"
        return f"<Hierarchy {self.kind}: {nodes}, {leaves}, depth {self.max_depth}>"

    def summary(self) -> str:
        """A page that describes the hierarchy; meant for ``print``."""
        children = np.bincount(self.edges[:, 0], minlength=self.num_nodes)
        parents = np.bincount(self.edges[:, 1], minlength=self.num_nodes)
        inner = self.num_nodes - self.num_leaves
        tops = f"{len(self.tops):,} top{'s' * (len(self.tops) > 1)}, no root"
        repeated = {name: k for name, k in Counter(self.names).items() if k > 1}
        some = children[children > 0]
        spread = f"{some.min()} to {some.max():,}, median {np.median(some):g}" if len(some) else "none"
        lines = [
            repr(self)[1:-1],
            f"  {inner:,} inner node{'s' * (inner != 1)}, {self.num_edges:,} edge{'s' * (self.num_edges != 1)}, "
            + (f"root {self.tops[0]!r}" if self.rooted else tops),
            f"  children of an inner node: {spread}",
            f"  unary nodes (one child): {_some(self, np.flatnonzero(children == 1))}",
            f"  nodes with several parents: {_some(self, np.flatnonzero(parents > 1))}",
            f"  repeated display names: {len(repeated):,}" + (f" ({listed(repeated)})" if repeated else ""),
        ]
        alike = _look_alikes(self.nodes)[:_PAIRS_SHOWN]
        lines += [f"  ids that look alike: {a!a} and {b!a}" for a, b in alike]
        lines += [f"  other names: {len(self.synonyms):,}"] * bool(self.synonyms)
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, f"  fingerprint: {self.fingerprint[:16]}", "", *_levels(self)])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what decides results: ids, edges, label order and root; display names do not count."""
        kind = "rooted" if self.rooted else "unrooted"
        digest = hashlib.sha256(f"hace.Hierarchy.1 {kind} {self.num_nodes} {self.num_edges} ".encode())
        for node in self.nodes:
            raw = node.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "little") + raw)
        digest.update(self.edges.astype("<i8").tobytes() + self.leaf_nodes.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hierarchy):
            return NotImplemented
        mine = (self.names, self.level_names, self.ranks, self.synonyms)
        theirs = (other.names, other.level_names, other.ranks, other.synonyms)
        return self is other or (self.fingerprint == other.fingerprint and mine == theirs)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:  # plain values: torch.load(weights_only=True) reads them
        arrays = self.edges.ravel().tolist(), self.leaf_nodes.tolist()
        about = self.rooted, self.level_names, self.ranks, self.synonyms
        return restore, (self.nodes, self.names, *arrays, *about)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {node: i for i, node in enumerate(self.nodes)}

    @cached_property
    def _children(self) -> tuple[IntArray, IntArray]:
        """CSR rows of children: (start, child); siblings in node order."""
        order = np.lexsort((self.edges[:, 1], self.edges[:, 0]))
        by_parent = self.edges[order]
        return np.searchsorted(by_parent[:, 0], np.arange(self.num_nodes + 1)), by_parent[:, 1]

    @cached_property
    def _parent_start(self) -> IntArray:
        return np.searchsorted(self.edges[:, 1], np.arange(self.num_nodes + 1))

    def _parents_of(self, v: int) -> list[int]:
        return self.edges[self._parent_start[v] : self._parent_start[v + 1], 0].tolist()

    def _ids(self, indices: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.nodes[int(i)] for i in indices)

    @staticmethod
    def _closure(v: int, following: Any, include_self: bool) -> list[int]:
        seen = {v}
        stack = [v]
        while stack:
            new = [u for u in following(stack.pop()) if u not in seen]
            seen.update(new)
            stack.extend(new)
        return sorted(seen if include_self else seen - {v})

    def _require_tree(self, what: str) -> None:
        if not self.is_tree:
            several = [self.nodes[c] for c, k in Counter(self.edges[:, 1].tolist()).items() if k > 1]
            raise HierarchyError(
                f"{what} needs a tree or forest, but these nodes have several parents: {listed(several)}."
            )

    @cached_property
    def _tree_lca(self) -> _distances.TreeLCA:
        return _distances.TreeLCA(self.parent_nodes)

    @cached_property
    def _ancestor_rows(self) -> _distances.Ancestors:
        return _distances.Ancestors(self.num_nodes, self.edges)

    def _node_indices(self, values: Any, labels: Labels, argument: str) -> IntArray:
        """Labels or node indices, checked, as node indices."""
        check_choice("labels", labels, ("leaves", "nodes"), HierarchyError)
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
        return self.leaf_nodes[array] if labels == "leaves" else array

    def _restricted(
        self, keep: np.ndarray, leaves: Iterable[str], *, rooted: bool | None, same_levels: bool = True
    ) -> Hierarchy:
        """The nodes in a mask that holds everything above what it holds (the root apart) and the edges among them."""
        position = np.cumsum(keep) - 1
        edges = position[self.edges[keep[self.edges].all(axis=1)]]
        ids = [self.nodes[i] for i in np.flatnonzero(keep).tolist()]
        return self._derive(ids, edges, leaves, rooted=rooted, same_levels=same_levels)

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
        names = {i: self.names[self._index[i]] for i in ids if i in self._index}
        about: Any = {"synonyms": {name: id for name, id in self.synonyms.items() if id in names}}
        if self.ranks is not None:
            about["ranks"] = {i: self.ranks[self._index[i]] for i in names}
        h = Hierarchy._assemble(ids, edges, leaves=leaves, names=names, rooted=rooted, **about)
        return h._with_levels(self.level_names[: h.max_depth] if self.level_names and same_levels else None)


def frozen(array: IntArray) -> IntArray:
    """The array, read-only from now on."""
    array.flags.writeable = False
    return array


def restore(nodes: tuple[str, ...], names: tuple[str, ...], *rest: Any) -> Hierarchy:
    """A pickled hierarchy, from plain values and through the same gate as any other."""
    edges, leaf_nodes, rooted, level_names, ranks, synonyms = rest
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    leaves = [nodes[i] for i in leaf_nodes]
    display = dict(zip(nodes, names, strict=True))
    about: Any = {"ranks": ranks and dict(zip(nodes, ranks, strict=True)), "synonyms": synonyms}
    h = Hierarchy._assemble(nodes, pairs, leaves=leaves, names=display, rooted=rooted, **about)
    return h._with_levels(level_names)


def check_hierarchy(hierarchy: object) -> None:
    """Refuses what is no hierarchy."""
    if not isinstance(hierarchy, Hierarchy):
        raise ConfigError(f"hierarchy must be a hace.Hierarchy. Got {type(hierarchy).__name__}.")


def allow_in_checkpoints() -> None:
    """Tell torch, where it is loaded, that a checkpoint may hold a hierarchy: it is built from plain values and validated."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "serialization"):
        torch.serialization.add_safe_globals([restore])


# Letters of Cyrillic and Greek that print as Latin ones, and characters that do not print.
_LETTERS = str.maketrans(
    "АВЕКМНОРСТХІЈЅасеокрухіјѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧονρ",
    "ABEKMHOPCTXIJSaceokpyxijsABEZHIKMNOPTYXovp",
    "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff",
)


def _look_alikes(ids: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of ids that differ only by blanks, case, Unicode form or look-alike letters: one of them is probably a slip."""
    first: dict[str, str] = {}
    plain = (" ".join(unicodedata.normalize("NFKC", id).translate(_LETTERS).casefold().split()) for id in ids)
    pairs = ((first.setdefault(name, id), id) for name, id in zip(plain, ids, strict=True))
    return [(one, other) for one, other in pairs if one != other]


def _levels(h: Hierarchy) -> list[str]:
    """Width of each level and the leaves that end there, as a table with bars."""
    width = np.bincount(h.depths, minlength=h.max_depth + 1)
    ending = np.bincount(h.depths[h.leaf_nodes], minlength=h.max_depth + 1)
    rows = ["  level    nodes   leaves"]
    first = 0 if h.rooted else 1
    shown = range(first, min(h.max_depth, first + _LEVELS_SHOWN - 1) + 1)
    for k in shown:
        bar = "#" * round(24 * int(width[k]) / int(width.max())) or "."
        name = f"  {h.level_names[k - 1]}" if h.level_names and k > 0 else ""
        rows.append(f"  {k:5d} {width[k]:8,} {ending[k]:8,}  {bar}{name}")
    if shown.stop <= h.max_depth:
        rows.append(f"  ... and {h.max_depth + 1 - shown.stop:,} more levels")
    if h.rank_names:
        counts = Counter(h.ranks)
        rows.append("  ranks: " + ", ".join(f"{rank} ({counts[rank]:,})" for rank in h.rank_names))
    return rows


def _some(h: Hierarchy, nodes: np.ndarray) -> str:
    return f"{len(nodes):,}" + (f" ({listed(h.nodes[i] for i in nodes.tolist())})" if len(nodes) else "")
