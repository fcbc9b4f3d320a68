"""The answer of least expected cost: a distance, with a discount for answers that are true but vague.

With p over the leaves, P(v) the mass of the leaves at or below v, and the sums over the nodes b from v up to its top:

    lca_height   E(v) = height(root) - sum_b [height(parent of b) - height(b)] P(b)
    lca_depth    E(v) = H - sum_b P(b)                                               (b below the root)
    edges        E(v) = E[depth of the leaf] + depth(v) - 2 sum_b P(b)               (b below the root)

An answer at an inner node is vague about the leaves below it, which costs only a share of their distance, the *price*; a true
answer at a leaf costs nothing. Both are one more term in the masses below v. On a tree `search` finds the least; on a DAG every
answer is compared.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number
from hace.decisions.decisions import Decisions
from hace.decisions.scores import leaf_log_probs
from hace.decisions.search import TIE, Worth, best_answers, places
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import check_distance, virtual_height
from hace.hierarchy.index import derived, layout

_DENSE = 1 << 22  # entries of the distance table held at once on a DAG


def least_cost(
    log_q: Tensor,
    hierarchy: Hierarchy,
    candidates: str = "leaves",
    distance: str = "lca_height",
    price: float = 0.5,
) -> Decisions:
    """The answer of least expected cost under the leaf probabilities.

    cost(c, v) for the true leaf c: the distance of c and v if v is wrong, ``price`` times their distance if v is an
    ancestor of c (true but vague), 0 if v is c.

    Args:
        log_q: (B, N).
        hierarchy: a tree, a forest or a DAG; a DAG takes O(n N) per sample.
        candidates: ``"leaves"``: a class, even if unsure; ``"nodes"``: a rank, too, at a price.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        price: from 0 (vagueness is free: the root always wins) to 1 (plain distance). With ``lca_height``, a leaf beats its
            parent when its share of the parent's mass is above 1 - price.

    Returns:
        Decisions with ``costs``; of equal costs the most probable answer, then the first.
    """
    check_distance(distance)
    check_choice("candidates", candidates, ("leaves", "nodes"))
    if not is_number(price) or not 0 <= price <= 1:
        raise ConfigError(f"price must be a number from 0 (vague answers are free) to 1. Got {price!r}.")
    if hierarchy.is_tree:
        measure = cost_measure(
            hierarchy, distance, 1.0 if candidates == "leaves" else float(price), log_q.device
        )
        answers, values = best_answers(log_q, hierarchy, measure, candidates)
        return Decisions(hierarchy, answers.nodes, answers.probabilities, -values)
    p = leaf_log_probs(log_q.double(), hierarchy).exp()
    costs, probabilities = _dag_costs(p, hierarchy, candidates, distance, price)
    best = _least(costs, probabilities)[:, None]
    nodes = best.squeeze(1)
    if candidates == "leaves":
        nodes = layout(hierarchy, log_q.device).leaf_nodes[nodes]
    return Decisions(
        hierarchy, nodes, probabilities.gather(1, best).squeeze(1), costs.gather(1, best).squeeze(1)
    )


@derived
def cost_measure(h: Hierarchy, distance: str, price: float, device: torch.device) -> Worth:
    """-cost in the terms of `search`.

    An answer at u costs ``price`` times its distance to the leaves below u; that is all a branch below u can save.
    """
    where = places(h, torch.device("cpu"))
    depths, heights = np.append(h.depths, 0), np.append(h.heights, virtual_height(h))
    leaf, below = np.append(h.labels >= 0, False), depths > 0
    vague = heights if distance == "lca_height" else h.max_depth - depths
    inside = (vague * np.where(leaf, 1.0, 1 - price))[:, None]
    if distance == "lca_height":
        gain, constant = np.where(below, heights[np.append(h.parent_nodes, -1)] - heights, 0), -heights[-1]
    elif distance == "lca_depth":
        gain, constant = 1 * below, -h.max_depth
    else:
        gain, constant = 2 * below, -depths
        leaf_depths = where.depths.numpy()[None, :] if price < 1 else depths[:, None]
        inside = (1 - price) * (leaf_depths - depths[:, None])

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float64)).to(device)

    ones = np.ones(h.num_nodes + 1)
    return Worth(
        0.0,
        tensor(gain),
        tensor(ones[:1, None]),
        tensor(ones),
        tensor(inside),
        tensor(constant * ones),
        tensor(-h.depths[where.columns.numpy()]) if distance == "edges" else None,
        tensor(price * vague),
    )


def _least(costs: Tensor, probabilities: Tensor) -> Tensor:
    """(B,) position of the least cost in each row; of equal ones the most probable, then the first."""
    low = costs.amin(dim=1, keepdim=True)
    tied = costs <= low + TIE * low.abs().clamp(min=1.0)
    return probabilities.masked_fill(~tied, -1.0).argmax(dim=1)


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
