"""Between hierarchies and networkx graphs. networkx itself loads only where a graph is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from hace.errors import HierarchyError, listed

if TYPE_CHECKING:
    import networkx as nx

    from hace.hierarchy.hierarchy import Hierarchy

Direction = Literal["parent_to_child", "child_to_parent"]
_RELATIONS = {"is_a", "part_of"}  # edge keys of ontology graphs, which point from child to parent


class GraphParts(NamedTuple):
    """What a graph says about a hierarchy."""

    edges: list[tuple[Any, Any]]  # parent, child
    leaves: Iterable[Any] | None
    names: dict[Any, str]


def graph_parts(graph: nx.DiGraph, leaves: Iterable[Any] | None, direction: str) -> GraphParts:
    """Edges, class list and names of a graph; see :meth:`hace.Hierarchy.from_networkx`."""
    if direction not in get_args(Direction):
        raise HierarchyError(f"direction must be 'parent_to_child' or 'child_to_parent'. Got {direction!r}.")
    if not graph.is_directed():
        raise HierarchyError("graph must be directed. Got an undirected graph.")
    every: Any = graph.edges
    keys = {edge[2] for edge in every(keys=True)} if graph.is_multigraph() else set()
    if direction == "parent_to_child" and keys & _RELATIONS:
        raise HierarchyError(
            f"The edges of graph must point from parent to child. Got the relations {listed(sorted(map(str, keys)))}, as "
            "obonet reads them from child to parent: pass direction='child_to_parent'. To follow is_a alone, pass "
            "graph.edge_subgraph(e for e in graph.edges(keys=True) if e[2] == 'is_a')."
        )
    edges = list(dict.fromkeys((edge[0], edge[1]) for edge in graph.edges()))
    if direction == "child_to_parent":
        edges = [(parent, child) for child, parent in edges]
    names = {k: str(v) for k, v in graph.nodes(data="name") if v is not None}
    return GraphParts(edges, _labelled(graph) if leaves is None else leaves, names)


def to_graph(h: Hierarchy) -> nx.DiGraph:
    """See :meth:`hace.Hierarchy.to_networkx`."""
    import networkx as nx

    graph = nx.DiGraph(rooted=h.rooted, level_names=h.level_names)
    for node, name, label in zip(h.nodes, h.names, h.labels.tolist(), strict=True):
        graph.add_node(node, name=name, **({"label": label} if label >= 0 else {}))
    graph.add_edges_from((h.nodes[p], h.nodes[c]) for p, c in h.edges.tolist())
    return graph


def _labelled(graph: nx.DiGraph) -> list[Any] | None:
    """The nodes with an attribute ``label``, in its order; None where there are none."""
    labels: dict[Any, Any] = {k: v for k, v in graph.nodes(data="label") if v is not None}
    strange = [f"{k}: {v!r}" for k, v in labels.items() if not isinstance(v, (int, np.integer))]
    if strange:
        raise HierarchyError(f"The node attribute label must be an integer. Got {listed(strange)}.")
    labels = {k: v for k, v in labels.items() if v >= 0}
    shared = [v for v, k in Counter(labels.values()).items() if k > 1]
    if shared:
        raise HierarchyError(f"Labels must differ. Got {listed(map(str, shared))} at several nodes.")
    return sorted(labels, key=lambda k: labels[k]) if labels else None
