"""Expected cost of every answer, in O(N) per sample on trees and without an n x n matrix.

With p over the leaves, P(v) the mass of the leaves at or below v, and the sums over the nodes b from v up to its top:

    lca_height   E(v) = height(root) - sum_b [height(parent of b) - height(b)] P(b)
    lca_depth    E(v) = H - sum_b P(b)                                               (b below the root)
    edges        E(v) = E[depth of the leaf] + depth(v) - 2 sum_b P(b)               (b below the root)

An answer at an inner node is vague about the leaves below it, which costs only a share of their distance, the *price*; a true
answer at a leaf costs nothing. Both are one more term in P(v).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import check_distance, virtual_height
from hace.hierarchy.index import derived, leaf_ranges, preorder_labels
from hace.losses.checks import is_number

TIE = 1e-12  # costs this close, relative to the larger of 1 and the least cost, are equal
_CACHE = (
    1 << 16
)  # (node, sample) entries per step on a tree, so that its tables stay in the processor's cache
_DENSE = 1 << 22  # entries of the distance table held at once on a DAG


def expected_costs(
    leaf_probs: Tensor,
    hierarchy: Hierarchy,
    *,
    candidates: str = "leaves",
    distance: str = "lca_height",
    price: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Expected cost and probability of every answer.

    cost(c, v) for the true leaf c: the distance of c and v if v is wrong, ``price`` times their distance if v is an
    ancestor of c (true but vague), 0 if v is c.

    Args:
        leaf_probs: (B, n) probabilities in label order.
        hierarchy: the hierarchy; a DAG takes O(n N) per sample instead of O(N).
        candidates: ``"leaves"`` or ``"nodes"``.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        price: 0 (vagueness is free: the root always wins) to 1 (plain distance).

    Returns:
        costs, probabilities: (B, n) in label order or (B, N) in node order, float64.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> costs, _ = expected_costs(torch.tensor([[0.5, 0.2, 0.3]]), h)
        >>> costs.numpy().round(3)
        array([[0.8, 1.1, 1.4]])
    """
    check_distance(distance)
    if candidates not in ("leaves", "nodes"):
        raise ConfigError(f"candidates must be 'leaves' or 'nodes'. Got {candidates!r}.")
    if not is_number(price) or not 0 <= price <= 1:
        raise ConfigError(f"price must be a number from 0 (vague answers are free) to 1. Got {price!r}.")
    p = leaf_probs.detach().double()
    if hierarchy.is_tree:
        return _tree_costs(p, hierarchy, candidates, distance, price)
    return _dag_costs(p, hierarchy, candidates, distance, price)


def least(costs: Tensor, probabilities: Tensor) -> Tensor:
    """(B,) position of the least cost in each row; of equal ones the most probable, then the first."""
    low = costs.amin(dim=1, keepdim=True)
    tied = costs <= low + TIE * low.abs().clamp(min=1.0)
    return probabilities.masked_fill(~tied, -1.0).argmax(dim=1)


class _Tree:
    """The inner nodes of a tree, level by level: a level is a slice of rows, its parents a gather of earlier ones.

    Position M, one after the last of the M inner nodes, is the virtual root.
    """

    def __init__(self, h: Hierarchy, device: torch.device) -> None:
        inner = np.flatnonzero(h.labels < 0)
        inner = inner[np.argsort(h.depths[inner], kind="stable")]
        self.size = len(inner)
        place = np.full(h.num_nodes + 1, self.size)
        place[inner] = np.arange(self.size)
        preorder = preorder_labels(h)
        heights = np.append(h.heights, virtual_height(h))
        above = heights[h.parent_nodes]
        levels = np.cumsum([0, *np.bincount(h.depths[inner])]) if self.size else np.array([0])
        self.levels = [(int(a), int(b)) for a, b in pairwise(levels) if b > a]
        leaf = h.leaf_nodes
        # The row of each node when the leaves, in label order, follow the inner nodes.
        rows = np.where(h.labels >= 0, self.size + h.labels, place[:-1])

        def tensor(values: np.ndarray, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.from_numpy(np.array(values)).to(device, dtype)

        self.low, self.high = (tensor(x[inner], torch.int64) for x in leaf_ranges(h))
        self.parent = tensor(place[h.parent_nodes[inner]], torch.int64)
        self.leaf_parent = tensor(place[h.parent_nodes[leaf]], torch.int64)
        self.rows = tensor(rows, torch.int64)
        self.preorder = tensor(preorder, torch.int64)
        self.preorder_depth = tensor(h.depths[leaf][preorder])
        self.depth, self.leaf_depth = tensor(h.depths[inner])[:, None], tensor(h.depths[leaf])
        below_root = h.depths[inner] > 0
        self.weight = {  # of P(b) in the sum over the path, for inner b
            "lca_height": tensor((above[inner] - h.heights[inner]) * below_root)[:, None],
            "lca_depth": tensor(below_root)[:, None],
            "edges": tensor(2 * below_root)[:, None],
        }
        self.leaf_weight = {  # of P(v) for a leaf v: its place in the sum, and the distance it does not have to itself
            "lca_height": tensor(above[leaf]),
            "lca_depth": tensor(1 + h.max_depth - h.depths[leaf]),
            "edges": tensor(np.full(h.num_leaves, 2)),
        }
        self.inside = {  # the distance of an inner node to the leaves below it
            "lca_height": tensor(h.heights[inner])[:, None],
            "lca_depth": tensor(h.max_depth - h.depths[inner])[:, None],
        }
        self.farthest = {"lca_height": float(virtual_height(h)), "lca_depth": float(h.max_depth)}


@derived
def _tree(h: Hierarchy, device: torch.device) -> _Tree:
    return _Tree(h, device)


def _tree_costs(
    p: Tensor, h: Hierarchy, candidates: str, distance: str, price: float
) -> tuple[Tensor, Tensor]:
    tree = _tree(h, p.device)
    if candidates == "leaves":
        costs, masses = torch.empty_like(p), p
    else:
        costs, masses = p.new_empty(len(p), h.num_nodes), p.new_empty(len(p), h.num_nodes)
    step = min(len(p), max(1, _CACHE // h.num_nodes))
    buffers = _Buffers(tree, h.num_leaves, step, p)
    for start in range(0, len(p), max(step, 1)):
        start = min(start, len(p) - step)  # the last step repeats a few samples: the buffers have one size
        few = slice(start, start + step)
        buffers.sum_along_paths(p[few], distance)
        if candidates == "leaves":
            buffers.leaf_costs(p[few], distance, costs[few])
        else:
            buffers.node_costs(p[few], distance, price, costs[few], masses[few])
    return costs, masses


class _Buffers:
    """Buffers for a few samples, reused: fresh memory costs more than the arithmetic.

    Nodes are rows, samples columns: whole rows move from a node to its parent.
    """

    def __init__(self, tree: _Tree, leaves: int, samples: int, like: Tensor) -> None:
        self.tree = tree
        self.ordered, self.cumulated = like.new_empty(2, samples, leaves)
        self.running = like.new_zeros(leaves + 1, samples)
        self.mass, self.before = like.new_empty(2, tree.size, samples)
        self.path = like.new_zeros(tree.size + 1, samples)  # row M: nothing above the tops
        self.leaf = like.new_empty(leaves, samples)

    def sums(self, columns: Tensor, out: Tensor) -> Tensor:
        """(M, B) sums of the leaves (B, n), in preorder, below each inner node.

        Differences of running sums: errors of 1e-16 of a mass of at most 1.
        """
        self.running[1:] = torch.cumsum(columns, 1, out=self.cumulated).t()
        torch.index_select(self.running, 0, self.tree.high, out=out)
        torch.index_select(self.running, 0, self.tree.low, out=self.before)
        return out.sub_(self.before).clamp_(min=0.0)

    def sum_along_paths(self, p: Tensor, distance: str) -> None:
        """Fill ``mass`` with P(v) of the inner nodes and ``path`` with the weighted sums from each up to its top."""
        tree = self.tree
        torch.index_select(p, 1, tree.preorder, out=self.ordered)
        self.sums(self.ordered, self.mass)
        torch.mul(self.mass, tree.weight[distance], out=self.path[:-1])
        for low, high in tree.levels:
            self.path[low:high] += self.path.index_select(0, tree.parent[low:high])
        torch.index_select(self.path, 0, tree.leaf_parent, out=self.leaf)

    def leaf_costs(self, p: Tensor, distance: str, out: Tensor) -> None:
        """(B, n) costs of the leaves, in label order."""
        out.copy_(self.leaf.t()).neg_().addcmul_(p, self.tree.leaf_weight[distance], value=-1)
        if distance == "edges":
            out += self.tree.leaf_depth
            out += (p * self.tree.leaf_depth).sum(dim=1, keepdim=True)
        else:
            out += self.tree.farthest[distance]

    def node_costs(self, p: Tensor, distance: str, price: float, out: Tensor, mass: Tensor) -> None:
        """(B, N) costs and probabilities of all nodes, in node order."""
        tree = self.tree
        inner = self.path[:-1].neg()
        if distance == "edges":
            below = self.sums(self.ordered.mul_(tree.preorder_depth), torch.empty_like(inner))
            inner += tree.depth + (p * tree.leaf_depth).sum(dim=1)
            inner -= (1 - price) * (below - tree.depth * self.mass)
        else:
            inner += tree.farthest[distance]
            inner.addcmul_(self.mass, tree.inside[distance], value=price - 1)
        leaf = torch.empty_like(p)
        self.leaf_costs(p, distance, leaf)
        out.copy_(torch.cat([inner, leaf.t()]).index_select(0, tree.rows).t())
        mass.copy_(torch.cat([self.mass, p.t()]).index_select(0, tree.rows).t())


def _dag_costs(
    p: Tensor, h: Hierarchy, candidates: str, distance: str, price: float
) -> tuple[Tensor, Tensor]:
    """The definition itself, one block of answers at a time."""
    answers = h.leaf_nodes if candidates == "leaves" else np.arange(h.num_nodes)
    ancestor, descendant = h.reachability()
    to_leaf = h.labels[descendant] >= 0
    ancestor, label = ancestor[to_leaf], h.labels[descendant[to_leaf]]
    costs, masses = [], []
    for block in np.array_split(answers, max(1, len(answers) * h.num_leaves // _DENSE)):
        cost = h.distances(block[:, None], h.leaf_nodes[None, :], distance, labels="nodes").astype(float)
        above = np.zeros(cost.shape)
        for row, v in enumerate(block.tolist()):
            span = slice(np.searchsorted(ancestor, v), np.searchsorted(ancestor, v, side="right"))
            above[row, label[span]] = 1.0
        cost *= 1.0 - (1.0 - price) * above
        costs.append(p @ torch.from_numpy(cost.T).to(p.device))
        masses.append(p @ torch.from_numpy(above.T).to(p.device))
    return torch.cat(costs, dim=1), torch.cat(masses, dim=1)
