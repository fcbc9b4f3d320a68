"""Expected cost of every answer, in O(N) a sample on trees and without an n x n matrix.

With p over the leaves, P(v) the mass of the leaves at or below v, and the sums over the nodes b from v up to its top:

    lca_height   E(v) = height(root) - sum_b [height(parent of b) - height(b)] P(b)
    lca_depth    E(v) = H - sum_b P(b)                                               (b below the root)
    edges        E(v) = E[depth of the leaf] + depth(v) - 2 sum_b P(b)               (b below the root)

An answer at an inner node is vague about the leaves below it, which costs only a share, the *price*, of their distance;
an answer at a leaf costs nothing when it is true. Both are one more term with P(v).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.distances import check_convention, virtual_height
from hace.errors import ConfigError
from hace.functional import sum_down
from hace.head import Head, head_for
from hace.hierarchy import Hierarchy

TIE = 1e-12  # costs this close, relative to the larger of 1 and the least cost, are equal
_DENSE = 1 << 22  # entries of the distance table held at once on a DAG


def expected_costs(
    leaf_probs: Tensor,
    hierarchy: Hierarchy,
    *,
    candidates: str = "leaves",
    convention: str = "lca_height",
    price: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Expected cost and probability of every answer.

    cost(c, v), the true leaf being c: the distance of c and v where v is wrong, ``price`` times their distance where v is
    an ancestor of c (true but vague), 0 where v is c.

    Args:
        leaf_probs: (B, n) probabilities in label order.
        hierarchy: the hierarchy; a DAG costs O(n N) a sample instead of O(N).
        candidates: ``"leaves"`` or ``"nodes"``.
        convention: the distance.
        price: 0 (vagueness is free: the root always wins) to 1 (plain distance).

    Returns:
        costs, probabilities: (B, n) in label order or (B, N) in node order, float64.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> costs, _ = expected_costs(torch.tensor([[0.5, 0.2, 0.3]]), h)
        >>> costs.numpy().round(3)
        array([[0.8, 1.1, 1.4]])
    """
    check_convention(convention)
    if candidates not in ("leaves", "nodes"):
        raise ConfigError(f"candidates must be 'leaves' or 'nodes'. Got {candidates!r} instead.")
    if not 0 <= price <= 1:
        raise ConfigError(f"price must be from 0 (vague answers are free) to 1. Got {price!r} instead.")
    p = leaf_probs.double()
    if hierarchy.is_tree:
        return _tree_costs(p, hierarchy, candidates, convention, price)
    return _dag_costs(p, hierarchy, candidates, convention, price)


def least(costs: Tensor, probabilities: Tensor) -> Tensor:
    """(B,) position of the least cost in each row; of equal ones the most probable, then the first."""
    low = costs.amin(dim=1, keepdim=True)
    tied = costs <= low + TIE * low.abs().clamp(min=1.0)
    return probabilities.masked_fill(~tied, -1.0).argmax(dim=1)


def _tree_costs(
    p: Tensor, h: Hierarchy, candidates: str, convention: str, price: float
) -> tuple[Tensor, Tensor]:
    head = head_for(p, h, "leaves")
    depth, height, leaf_depth, share, is_below_root, step = _tree_constants(h, price, p.device)

    # Nodes are rows, samples columns: going from a node to its parent then moves whole rows.
    ordered = head.preorder(p).t().contiguous()  # (n, B), leaves in preorder
    mass = _ranges(ordered, head)  # (N, B) P(v)
    weight = {"lca_height": step, "lca_depth": is_below_root, "edges": 2 * is_below_root}[convention]
    cost = sum_down((mass * weight).t(), head.levels).t().neg()
    if convention == "edges":
        weighted = ordered * leaf_depth
        cost += depth + weighted.sum(dim=0)
        cost -= share * (_ranges(weighted, head) - depth * mass)
    else:
        # The root is the farthest meeting point; `inside` is the distance of an answer to the leaves below it.
        farthest = virtual_height(h) if convention == "lca_height" else h.max_depth
        inside = height if convention == "lca_height" else h.max_depth - depth
        cost += farthest
        cost -= share * inside * mass
    if candidates == "leaves":
        cost, mass = cost[head.leaf_nodes], mass[head.leaf_nodes]
    return cost.t().contiguous(), mass.t().contiguous()


def _tree_constants(h: Hierarchy, price: float, device: torch.device) -> tuple[Tensor, ...]:
    """Columns over the nodes (over the leaves in preorder: the third) that the equations multiply rows by."""
    heights = np.append(h.heights, virtual_height(h))  # index -1: the virtual root's
    below_root = h.depths > 0
    values = (
        h.depths,
        h.heights,
        h.depths[h.labels >= 0],
        np.where(h.labels >= 0, 1.0, 1.0 - price),
        below_root,
        (heights[h.parent_nodes] - h.heights) * below_root,
    )
    return tuple(torch.from_numpy(v.astype(np.float64)).to(device)[:, None] for v in values)


def _ranges(rows: Tensor, head: Head) -> Tensor:
    """(N, B) sums of each node's range of rows. Differences of running sums: errors of 1e-16 of a mass of at most 1."""
    running = torch.cat([rows.new_zeros(1, rows.shape[1]), rows.cumsum(dim=0)])
    return (running[head.high] - running[head.low]).clamp_(min=0.0)  # type: ignore[index]


def _dag_costs(
    p: Tensor, h: Hierarchy, candidates: str, convention: str, price: float
) -> tuple[Tensor, Tensor]:
    """The definition itself, a block of answers at a time."""
    answers = h.leaf_nodes if candidates == "leaves" else np.arange(h.num_nodes)
    ancestor, descendant = h.reachability()
    to_leaf = h.labels[descendant] >= 0
    ancestor, label = ancestor[to_leaf], h.labels[descendant[to_leaf]]
    costs, masses = [], []
    for block in np.array_split(answers, max(1, len(answers) * h.num_leaves // _DENSE)):
        cost = h.distances(block[:, None], h.leaf_nodes[None, :], convention, labels="nodes").astype(float)
        above = np.zeros(cost.shape)
        for row, v in enumerate(block.tolist()):
            span = slice(np.searchsorted(ancestor, v), np.searchsorted(ancestor, v, side="right"))
            above[row, label[span]] = 1.0
        cost *= 1.0 - (1.0 - price) * above
        costs.append(p @ torch.from_numpy(cost.T).to(p.device))
        masses.append(p @ torch.from_numpy(above.T).to(p.device))
    return torch.cat(costs, dim=1), torch.cat(masses, dim=1)
