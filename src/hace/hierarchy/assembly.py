"""From ids and edges to a checked, ordered graph.

This is the one gate of :class:`hace.Hierarchy`: it finds every problem of an input, reports them together, and decides the
node order. Code behind it trusts its input.

The node order of a tree or forest is its depth-first preorder (so a subtree is a contiguous range), siblings
by the smallest label below them. The node order of a DAG is the reversed depth-first postorder that visits
siblings from the largest such label to the smallest: parents before children, and the same as the preorder
where the DAG is a tree. It depends on the ids, the edges and the class list only, never on the order of lines in a
file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix

import numpy as np
from numpy.typing import NDArray

from hace.errors import HierarchyError, listed, nearest

IntArray = NDArray[np.int64]
_DIGITS = re.compile("[0-9]+")
_SHOWN = 5  # cycles shown before "k more"
_CYCLE_SHOWN = 20  # nodes of a cycle shown before "..."


@dataclass(frozen=True)
class Assembly:
    """A checked graph in node order."""

    ids: tuple[str, ...]
    edges: IntArray  # (E, 2) parent, child; sorted by child, then parent
    leaf_nodes: IntArray  # (n,) node index of each label
    rooted: bool


def as_id(value: object, where: str) -> str:
    """The id of a node: a non-empty string, or an integer written as one."""
    if isinstance(value, str):
        if value:
            return str.__str__(value)  # numpy's and other kinds of strings become plain ones
        raise HierarchyError(f"{where} holds an empty id. Ids must be non-empty strings or integers.")
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    raise HierarchyError(
        f"{where} holds {value!r} of type {type(value).__name__}. Ids must be strings or integers; "
        "convert it first, for instance with str()."
    )


def as_ids(values: Iterable[object], where: str) -> list[str]:
    """The ids in a list of nodes."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise HierarchyError(f"{where} must be a list of ids. Got {values!r}.")
    return [value if type(value) is str and value else as_id(value, where) for value in values]


def natural_key(text: str) -> str:
    """Sort key that puts "2" before "10" and "class 9" before "class 11".

    Texts and numbers in turn, compared one by one; numbers by length and then by digits, which is by value. A text ends with a
    character below all others. One string, because a million tuples take several times as long.
    """
    plain = text.replace("\1", "\1\1").replace("\0", "\1\0")  # keeps "\0" for the ends, and the order
    return f"{_DIGITS.sub(_by_length, plain)}\0\0{text}"


def _by_length(digits: re.Match[str]) -> str:
    value = digits[0].lstrip("0")
    return f"\0{chr(len(value) + 1)}{value}"


def assemble(
    ids: Sequence[str],
    edges: IntArray,
    leaves: Sequence[str] | None,
    rooted: bool | None,
    problems: Sequence[str] = (),
) -> Assembly:
    """Checks a graph over ``ids`` with index pairs ``edges`` (parent, child) and puts it in node order."""
    all_problems = list(problems)
    if not ids:
        raise HierarchyError(all_problems or "The hierarchy is empty: it must have at least one node.")
    n_nodes = len(ids)
    all_problems += _edge_problems(ids, edges)
    edges = edges[edges[:, 0] != edges[:, 1]]  # reported; a leaf with a loop is not an inner node for that
    is_parent = np.zeros(n_nodes, dtype=bool)
    is_parent[edges[:, 0]] = True
    order, leaf_problems = _label_order(ids, is_parent, leaves)
    all_problems += leaf_problems
    is_child = np.zeros(n_nodes, dtype=bool)
    is_child[edges[:, 1]] = True
    tops = np.flatnonzero(~is_child)
    one_root = len(tops) == 1 and bool(is_parent[tops[0]])
    if rooted and not one_root and not all_problems:  # a cycle hides tops
        all_problems.append(
            f"rooted=True needs exactly one node without parent that has children, got {len(tops)}: "
            f"{listed(_at(ids, tops))}. Leave rooted=None, or add a root with with_root()."
        )
    if all_problems:
        raise HierarchyError(all_problems)
    is_forest = len(edges) + len(tops) == n_nodes
    node_order = _preorder(n_nodes, edges, order, tops) if is_forest else _dag_order(ids, edges, order, tops)
    position = np.empty(n_nodes, dtype=np.int64)
    position[node_order] = np.arange(n_nodes)
    edges = position[edges]
    edges = edges[np.argsort(edges[:, 1] * n_nodes + edges[:, 0])]
    return Assembly(
        ids=tuple(np.array(ids, dtype=object)[node_order].tolist()),
        edges=edges,
        leaf_nodes=position[order],
        rooted=one_root if rooted is None else bool(rooted),
    )


def _edge_problems(ids: Sequence[str], edges: IntArray) -> list[str]:
    """Self-loops, edges given twice and cycles."""
    problems = []
    loops = edges[:, 0] == edges[:, 1]
    if loops.any():
        names = listed(_at(ids, np.unique(edges[loops, 0])))
        problems.append(f"A node cannot be its own parent: {names}. Remove these edges.")
        edges = edges[~loops]
    keys = np.sort(edges[:, 0] * len(ids) + edges[:, 1])
    again = keys[1:] == keys[:-1]
    if again.any():
        pairs = [divmod(key, len(ids)) for key in dict.fromkeys(keys[1:][again].tolist())]
        twice = listed(f"{ids[parent]} -> {ids[child]}" for parent, child in pairs)
        problems.append(f"Edges given more than once: {twice}. Give each edge once.")
    if len(edges):
        problems += _cycle_problems(ids, edges)
    return problems


def _cycle_problems(ids: Sequence[str], edges: IntArray) -> list[str]:
    """One problem for each cycle, which it shows."""
    if (edges[:, 0] < edges[:, 1]).all():  # every parent comes first
        return []
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(ids)
    ones = np.ones(len(edges))
    graph = csr_matrix((ones, (edges[:, 0], edges[:, 1])), shape=(n, n))
    count, component = connected_components(graph, directed=True, connection="strong")
    if count == n:
        return []
    sizes = np.bincount(component)
    problems = []
    inner = edges[component[edges[:, 0]] == component[edges[:, 1]]]
    following = dict(inner[::-1].tolist())  # one successor inside the same component for each of its nodes
    knots = np.flatnonzero(sizes > 1)
    for knot in knots[:_SHOWN].tolist():
        walk = [int(np.flatnonzero(component == knot)[0])]
        while following[walk[-1]] not in walk and len(walk) < _CYCLE_SHOWN:
            walk.append(following[walk[-1]])
        closing = following[walk[-1]]
        if closing in walk:
            walk = [*walk[walk.index(closing) :], closing]
        path = " -> ".join(ids[v] for v in walk) + ("" if closing in walk else " -> ...")
        problems.append(f"Cycle: {path}. A hierarchy must not have cycles; remove one of these edges.")
    if len(knots) > _SHOWN:
        problems.append(f"{len(knots) - _SHOWN:,} more cycles.")
    return problems


def _label_order(
    ids: Sequence[str], is_parent: NDArray[np.bool_], leaves: Sequence[str] | None
) -> tuple[IntArray, list[str]]:
    """Positions of the leaves in label order, and what is wrong with the class list."""
    childless = np.flatnonzero(~is_parent)
    if leaves is None:
        names = _at(ids, childless)
        numbers = _as_numbers(names)
        if numbers is not None:  # the same order, a few times faster
            return childless[np.argsort(numbers)], []
        keys = list(map(natural_key, names))
        return childless[np.array(sorted(range(len(names)), key=keys.__getitem__), dtype=np.int64)], []
    index = {name: i for i, name in enumerate(ids)}
    problems = []
    unknown = [c for c in leaves if c not in index]
    if unknown:
        hint = nearest(unknown[0], _at(ids, childless))
        problems.append(f"leaves names ids that are not in the hierarchy: {listed(unknown)}.{hint}")
    inner = [c for c in leaves if c in index and is_parent[index[c]]]
    if inner:
        problems.append(
            f"leaves names nodes that have children: {listed(inner)}. Classes must be leaves; to train on labels "
            'at any level, use a loss with labels="nodes".'
        )
    repeated = [c for c, k in Counter(leaves).items() if k > 1]
    if repeated:
        problems.append(f"leaves repeats {listed(repeated)}. Each class must occur once.")
    missing = sorted(set(_at(ids, childless)) - set(leaves), key=natural_key)
    if missing:
        problems.append(
            f"Nodes without children that are not in leaves: {listed(missing)}. "
            "Add them to leaves, or drop unused nodes with Hierarchy.subset."
        )
    if problems:
        return childless, problems
    return np.array([index[c] for c in leaves], dtype=np.int64), problems


def _at(ids: Sequence[str], positions: NDArray[np.integer]) -> list[str]:
    return list(map(ids.__getitem__, positions.tolist()))


def _as_numbers(names: list[str]) -> IntArray | None:
    """The integers at the ends of ids such as "Q31", if all before is shared, and they are from 0 on, in the plain way."""
    shared = len(commonprefix(names).rstrip("0123456789"))  # noqa: RUF071  any characters
    ends = [name[shared:] for name in names] if shared else list(names)
    try:
        numbers = np.array(ends, dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    plain = not len(numbers) or (int(numbers.min()) >= 0 and list(map(str, numbers.tolist())) == ends)
    return numbers if plain else None


def _preorder(n_nodes: int, edges: IntArray, leaf_order: IntArray, tops: IntArray) -> IntArray:
    """(N,) the nodes of a tree or forest, parents before children, siblings by the smallest label below them.

    It goes level by level: a million steps of Python take three times as long.
    """
    parent = np.full(n_nodes, -1, dtype=np.int64)
    parent[edges[:, 1]] = edges[:, 0]
    levels = _levels(n_nodes, edges, tops)

    # From the bottom up: what lies below each node.
    first_label = np.full(n_nodes, n_nodes)
    first_label[leaf_order] = np.arange(len(leaf_order))
    subtree_size = np.ones(n_nodes, dtype=np.int64)
    for level in reversed(levels[1:]):
        np.minimum.at(first_label, parent[level], first_label[level])
        np.add.at(subtree_size, parent[level], subtree_size[level])

    # From the top down: a node comes after its parent and the subtrees of its elder siblings.
    position = _nodes_below_elder_siblings(parent, first_label, subtree_size)
    for level in levels[1:]:
        position[level] += position[parent[level]] + 1
    order = np.empty(n_nodes, dtype=np.int64)
    order[position] = np.arange(n_nodes)
    return order


def _levels(n_nodes: int, edges: IntArray, tops: IntArray) -> list[IntArray]:
    """The nodes of a tree or forest by depth: the tops, their children, and so on; the last array is empty."""
    num_children = np.bincount(edges[:, 0], minlength=n_nodes)
    # The children of v are children[start[v] : start[v] + num_children[v]].
    children = edges[np.argsort(edges[:, 0]), 1]
    start = np.cumsum(num_children) - num_children
    levels = [tops]
    while len(levels[-1]):
        parents = levels[-1]
        counts = num_children[parents]
        # The children of the first parent, of the second, and so on: each parent's run begins at its own start.
        begin = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(start[parents] - begin, counts)
        levels.append(children[places])
    return levels


def _nodes_below_elder_siblings(parent: IntArray, first_label: IntArray, subtree_size: IntArray) -> IntArray:
    """(N,) how many nodes the subtrees of each node's elder siblings have; the elder has the smaller first label."""
    n_nodes = len(parent)
    by_family = np.argsort(parent * (n_nodes + 1) + first_label)  # by parent, then by first label
    before = np.cumsum(subtree_size[by_family]) - subtree_size[by_family]  # in all families so far
    # Where a family begins; tops have parent -1.
    eldest = np.flatnonzero(np.diff(parent[by_family], prepend=-2))
    family_sizes = np.diff(eldest, append=n_nodes)
    result = np.empty(n_nodes, dtype=np.int64)
    result[by_family] = before - np.repeat(before[eldest], family_sizes)
    return result


def _dag_order(ids: Sequence[str], edges: IntArray, leaf_order: IntArray, tops: IntArray) -> IntArray:
    """Node order of a DAG: a reversed postorder. Siblings may share their smallest label; then the id decides."""
    n_nodes = len(ids)
    first = _smallest_label(n_nodes, edges, leaf_order)
    by_rank = sorted(range(n_nodes), key=lambda v: (first[v], natural_key(ids[v])))
    rank = np.empty(n_nodes, dtype=np.int64)
    rank[by_rank] = np.arange(n_nodes)
    start, children = _children_by(rank, edges)
    stack = sorted(tops.tolist(), key=rank.tolist().__getitem__)
    seen = bytearray(n_nodes)
    postorder: list[int] = []
    while stack:
        v = stack.pop()
        if v < 0:  # all below ~v is done
            postorder.append(~v)
        elif not seen[v]:
            seen[v] = 1
            stack.append(~v)
            stack += children[start[v] : start[v + 1]]  # the last one is visited first
    return np.array(postorder[::-1], dtype=np.int64)


def _smallest_label(n_nodes: int, edges: IntArray, leaf_order: IntArray) -> list[int]:
    """The smallest label below each node: climb from the leaves in label order and stop at what is marked already."""
    by_child = edges[np.argsort(edges[:, 1], kind="stable")]
    start = np.searchsorted(by_child[:, 1], np.arange(n_nodes + 1)).tolist()
    parents = by_child[:, 0].tolist()
    first = [-1] * n_nodes
    for label, leaf in enumerate(leaf_order.tolist()):
        stack = [leaf]
        while stack:
            v = stack.pop()
            if first[v] < 0:
                first[v] = label
                stack += parents[start[v] : start[v + 1]]
    return first


def _children_by(rank: IntArray, edges: IntArray) -> tuple[list[int], list[int]]:
    """Children of each node v in the order of their rank: ``children[start[v] : start[v + 1]]``."""
    ordered = edges[np.lexsort((rank[edges[:, 1]], edges[:, 0]))]
    start = np.searchsorted(ordered[:, 0], np.arange(len(rank) + 1))
    return start.tolist(), ordered[:, 1].tolist()
