"""New hierarchies from a hierarchy: with or without its root, over fewer classes, simplified, or shuffled.

:class:`hace.Hierarchy` is the front door; its methods of the same names say what each does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.errors import HierarchyError, listed, nearest
from hace.hierarchy.assembly import as_id, as_ids

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy


def without_root(h: Hierarchy) -> Hierarchy:
    """See :meth:`hace.Hierarchy.without_root`."""
    if not h.rooted:
        return h
    return _restricted(h, np.arange(h.num_nodes) > 0, h.leaves, rooted=False)  # the root is node 0


def with_root(h: Hierarchy, id: Any) -> Hierarchy:
    """See :meth:`hace.Hierarchy.with_root`."""
    if h.rooted:
        return h
    root = as_id(id, "id")
    if root in h.nodes:
        raise HierarchyError(f"id {root!r} is in the hierarchy already. Give the root another id.")
    tops = np.array([(0, h.index(top) + 1) for top in h.tops], dtype=np.int64)
    return h._derive((root, *h.nodes), np.concatenate([tops, h.edges + 1]), h.leaves, rooted=True)


def subset(h: Hierarchy, leaves: Iterable[Any]) -> Hierarchy:
    """See :meth:`hace.Hierarchy.subset`."""
    kept = as_ids(leaves, "leaves")
    if not kept:
        raise HierarchyError("leaves is empty. A hierarchy must have at least one class.")
    known = set(h.nodes)
    classes = set(h.leaves)
    problems = []
    unknown = [c for c in kept if c not in known]
    if unknown:
        hint = nearest(unknown[0], h.leaves)
        problems.append(f"leaves names ids that are not in the hierarchy: {listed(unknown)}.{hint}")
    inner = [c for c in kept if c in known - classes]
    if inner:
        problems.append(
            f"leaves names nodes that have children: {listed(inner)}. Name the classes below them."
        )
    if problems:
        raise HierarchyError(problems)
    keep = np.zeros(h.num_nodes, dtype=bool)
    keep[[h.index(c) for c in kept]] = True
    marks = keep.tolist()
    for parent, child in reversed(h.edges.tolist()):  # children first
        if marks[child]:
            marks[parent] = True
    return _restricted(h, np.array(marks), kept, rooted=h.rooted)


def collapse_unary(h: Hierarchy) -> Hierarchy:
    """See :meth:`hace.Hierarchy.collapse_unary`."""
    children: list[set[int]] = [set() for _ in h.nodes]
    replaced_by = list(range(h.num_nodes))  # each node, or the one that takes its place
    edges = h.edges.tolist()
    for v in range(h.num_nodes - 1, -1, -1):  # children first, so that theirs are known
        while edges and edges[-1][1] > v:
            parent, child = edges.pop()
            children[parent].add(replaced_by[child])
        if len(children[v]) == 1:
            (replaced_by[v],) = children[v]
    kept = [v for v in range(h.num_nodes) if replaced_by[v] == v]
    pairs = [(parent, child) for parent in kept for child in children[parent]]
    position = {v: i for i, v in enumerate(kept)}
    edges = np.array([(position[p], position[c]) for p, c in pairs], dtype=np.int64).reshape(-1, 2)
    rooted = None if h.rooted else False
    return h._derive([h.nodes[v] for v in kept], edges, h.leaves, rooted=rooted, same_levels=False)


def shuffled(h: Hierarchy, seed: int) -> Hierarchy:
    """See :meth:`hace.Hierarchy.shuffled`."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise HierarchyError(f"seed must be an integer from 0 on. Got {seed!r}.")
    order = np.random.default_rng(seed).permutation(h.num_leaves)
    ids = list(h.nodes)
    for place, leaf in zip(h.leaf_nodes.tolist(), h.leaf_nodes[order].tolist(), strict=True):
        ids[place] = h.nodes[leaf]
    return h._derive(ids, h.edges, h.leaves, rooted=h.rooted)


def _restricted(h: Hierarchy, keep: np.ndarray, leaves: Iterable[str], *, rooted: bool) -> Hierarchy:
    """The nodes in a mask that holds everything above what it holds (the root apart) and the edges among them."""
    position = np.cumsum(keep) - 1
    edges = position[h.edges[keep[h.edges].all(axis=1)]]
    ids = [h.nodes[i] for i in np.flatnonzero(keep).tolist()]
    return h._derive(ids, edges, leaves, rooted=rooted)
