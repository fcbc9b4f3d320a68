"""Tables: the target of each loss at each node, built once from a hierarchy.

A row of the table T belongs to a label and is written from the label upward. For losses whose rows follow the
label's path (or among its ancestors, on a DAG) that is all; label smoothing adds one row that all labels share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray

FloatArray = NDArray[np.float64]
Profile = Literal["uniform", "linear"]
LevelWeights = Profile | Sequence[float]


class Table(NamedTuple):
    """Sparse rows, label by label."""

    start: IntArray  # (R + 1,) where each row begins
    node: IntArray  # (entries,) from the label upward
    value: FloatArray  # (entries,)


def label_table(h: Hierarchy, rows: IntArray) -> Table:
    """One-hot rows: mass 1 at the label."""
    return Table(np.arange(len(rows) + 1), np.array(rows), np.ones(len(rows)))


def ancestral_table(h: Hierarchy, rows: IntArray, dilution: float) -> Table:
    r"""V, the paper's ancestral label smoothing (eq. 4, and its repaired form for DAGs).

    Mass 1 starts at the label. A node keeps ``d`` times what arrives (all of it, if it has no parent) and passes
    ``1 - d`` times it in equal shares to its parents:

        V[y, b_j] = d (1 - d)^j  for j < k,        V[y, b_k] = (1 - d)^k   along a path b_0 = y, ..., b_k.
    """
    if dilution == 1:
        return label_table(h, rows)
    if not h.is_tree:
        return _dag_table(h, rows, dilution)
    start, node, step = path_entries(h, rows)
    is_top = h.parent_nodes[node] < 0
    value = np.power(1.0 - dilution, step) * np.where(is_top, 1.0, dilution)  # eq. (4)
    return Table(start, node, value)


def profile_table(h: Hierarchy, rows: IntArray, level_weights: LevelWeights) -> Table:
    """V for a given profile: the mass that stays at the label, at its parent, and so on.

    Mass moves up a step at a time, on a DAG in equal shares to all parents, and a share of it stays at each step. A node
    without parents keeps whatever arrives.
    """
    lengths = h.depths[rows] + (1 if h.rooted else 0)
    masses = np.zeros((int(lengths.max()) + 1, int(lengths.max())))
    for length in np.unique(lengths).tolist():
        masses[length, :length] = level_masses(level_weights, length)
    if not h.is_tree:
        return _dag_profile(h, rows, masses[lengths])
    start, node, step = path_entries(h, rows)
    return Table(start, node, masses[np.repeat(lengths, lengths), step])


def level_masses(level_weights: LevelWeights, length: int) -> FloatArray:
    """(length,) masses along a path, from the label to its top; they sum to 1.

    Example:
        >>> level_masses("linear", 3).round(3).tolist(), level_masses([0.5, 0.3, 0.2], 2).tolist()
        ([0.5, 0.333, 0.167], [0.5, 0.5])
    """
    if level_weights == "uniform":
        return np.full(length, 1.0 / length)
    if level_weights == "linear":
        falling = np.arange(length, 0, -1.0)
        return falling / falling.sum()
    given = np.asarray(level_weights, dtype=np.float64)
    masses = np.zeros(length)
    masses[: len(given)] = given[:length]
    if len(given) > length:
        masses[-1] = given[length - 1 :].sum()
    return masses


def hxe_table(h: Hierarchy, rows: IntArray, alpha: float, decay: str, normalize: str | None) -> Table:
    r"""HXE (Bertinetto et al. 2020, eq. 2 and 3) as a table.

        - sum_i lambda(b_i) log [P(b_i) / P(b_{i+1})]
            = - sum_i (lambda(b_i) - lambda(b_{i-1})) log P(b_i),      lambda(b_{-1}) = 0.

    ``decay="depth"``: lambda(v) = exp(-alpha (depth(v) - 1)). ``decay="height"``: lambda(v) = exp(-alpha
    height(v)). ``normalize="tree"`` divides by the sum of lambda over all nodes, the (virtual) root included.
    """
    if decay == "depth":
        with np.errstate(over="ignore"):  # a root's may overflow; log P(root) = 0 cancels it
            weight = np.exp(-alpha * (h.depths - 1.0))
            virtual = np.exp(alpha)
    else:
        weight = np.exp(-alpha * h.heights)
        virtual = np.exp(-alpha * (h.heights.max() + 1.0))
    if normalize == "tree":
        with np.errstate(invalid="ignore"):  # inf / inf at a root, whose entry is not used
            weight = weight / (weight.sum() + (0.0 if h.rooted else virtual))
    start, node, step = path_entries(h, rows)
    below = np.where(step == 0, 0.0, weight[np.roll(node, 1)])
    value = np.where(h.rooted & (node == 0), 0.0, weight[node] - below)  # log P(root) = 0
    return Table(start, node, value)


def background(h: Hierarchy, dilution: float, smoothing: float, weight: FloatArray) -> FloatArray:
    """(N,) the row that uniform smoothing (eq. 3) adds to all labels: eps / n * sum over leaves c of w[c] V[c]."""
    if smoothing == 0:
        return np.zeros(h.num_nodes)
    arrived = [0.0] * h.num_nodes
    for leaf in h.leaf_nodes.tolist():
        arrived[leaf] = smoothing / h.num_leaves * float(weight[leaf])
    parents = np.bincount(h.edges[:, 1], minlength=h.num_nodes)
    share = ((1.0 - dilution) / np.maximum(parents, 1)).tolist()
    for parent, child in reversed(h.edges.tolist()):  # children first
        arrived[parent] += share[child] * arrived[child]
    return np.where(parents > 0, dilution, 1.0) * np.array(arrived)


def table_background(h: Hierarchy, table: Table, smoothing: float, weight: FloatArray) -> FloatArray:
    """(N,) the same from the rows of V that belong to the classes, in label order."""
    share = np.repeat(weight[h.leaf_nodes], np.diff(table.start)) * (smoothing / h.num_leaves)
    return np.bincount(table.node, weights=table.value * share, minlength=h.num_nodes).astype(np.float64)


def path_entries(h: Hierarchy, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(start, node, step): the path of each row's node up to its top, in a tree."""
    levels = h.depths - (0 if h.rooted else 1)
    lengths = levels[rows] + 1
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    node = np.empty(start[-1], dtype=np.int64)
    climbing = np.arange(len(rows))
    at = np.asarray(rows)
    step = 0
    while len(climbing):
        node[start[climbing] + step] = at
        at = h.parent_nodes[at]
        climbing = climbing[at >= 0]
        at = at[at >= 0]
        step += 1
    return start, node, np.arange(start[-1]) - np.repeat(start[:-1], lengths)


def _dag_table(h: Hierarchy, rows: IntArray, dilution: float) -> Table:
    """The rows of V on a DAG, where paths join."""
    first = np.searchsorted(h.edges[:, 1], np.arange(h.num_nodes + 1)).tolist()
    above = h.edges[:, 0].tolist()
    nodes: list[IntArray] = []
    values: list[FloatArray] = []
    for v in range(h.num_nodes):  # parents come before children: V[v] = d e_v + (1 - d) mean of V[parents]
        parents = above[first[v] : first[v + 1]]
        if not parents:
            nodes.append(np.array([v]))
            values.append(np.array([1.0]))
            continue
        node = np.concatenate([nodes[p] for p in parents])
        value = np.concatenate([values[p] for p in parents]) * ((1.0 - dilution) / len(parents))
        unique, place = np.unique(node, return_inverse=True)
        nodes.append(np.append(unique, v))
        values.append(np.append(np.bincount(place, weights=value, minlength=len(unique)), dilution))
    chosen = rows.tolist()
    start = np.concatenate([[0], np.cumsum([len(nodes[v]) for v in chosen])]).astype(np.int64)
    return Table(start, *(np.concatenate([part[v][::-1] for v in chosen]) for part in (nodes, values)))


def _dag_profile(h: Hierarchy, rows: IntArray, masses: FloatArray) -> Table:
    """The rows on a DAG: (row, node, mass) entries that move up step by step, and what stays of them."""
    num_parents = np.bincount(h.edges[:, 1], minlength=h.num_nodes)
    first_edge = np.searchsorted(h.edges[:, 1], np.arange(h.num_nodes + 1))
    row = np.arange(len(rows))
    node = np.asarray(rows)
    mass = np.ones(len(rows))
    keys = []
    values = []
    for step in range(masses.shape[1]):
        keys.append(row * h.num_nodes + node)
        values.append(mass * masses[row, step])
        # Each entry moves on to every parent of its node, in equal shares; a top keeps what arrives.
        ways = np.maximum(num_parents[node], 1)
        entry = np.repeat(np.arange(len(node)), ways)
        before = np.cumsum(ways) - ways
        which = np.arange(len(entry)) - before[entry]
        edge = np.minimum(first_edge[node][entry] + which, len(h.edges) - 1)  # any, for a top
        is_top = num_parents[node][entry] == 0
        moved = np.where(is_top, node[entry], h.edges[edge, 0])
        row, node, mass = _merged(row[entry] * h.num_nodes + moved, (mass / ways)[entry], h)
    row, node, value = _merged(np.concatenate(keys), np.concatenate(values), h)
    order = np.lexsort((-node, row))  # a label has the largest index of its row
    start = np.searchsorted(row, np.arange(len(rows) + 1))
    return Table(start.astype(np.int64), node[order], value[order])


def _merged(keys: IntArray, values: FloatArray, h: Hierarchy) -> tuple[IntArray, IntArray, FloatArray]:
    """(row, node, value) of entries with keys row * N + node, sorted, those with one key added up."""
    unique, place = np.unique(keys, return_inverse=True)
    total = np.bincount(place, weights=values, minlength=len(unique)).astype(np.float64)
    return unique // h.num_nodes, unique % h.num_nodes, total


def distance_parts(h: Hierarchy, distance: str) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """A tree's distance from a label y to a leaf c below the path node b, in parts that need no matrix.

    dist(y, c) = own[y] + at[b] + leaf[c], where b is the lowest common ancestor and ``outside`` replaces at[b]
    when b is the virtual root. Returns (own, at, leaf, outside), over nodes.
    """
    zero = np.zeros(h.num_nodes)
    depths = h.depths.astype(np.float64)
    heights = h.heights.astype(np.float64)
    if distance == "lca_height":
        return zero, heights, zero, float(heights.max() + 1)
    if distance == "lca_depth":
        return zero, h.max_depth - depths, zero, float(h.max_depth)
    if distance == "edges":
        return depths, -2.0 * depths, depths, 0.0
    raise ConfigError(f"distance must be 'lca_height', 'lca_depth' or 'edges'. Got {distance!r}.")
