"""Rules with a threshold: a ladder of nodes for each sample, and the last rung that is probable enough.

    walk_down              from the root, always to the child of greatest mass       deepest_above
    best_by_information    the most probable node for each number of leaves          deepest_above, constrained=False
    path_to_best_leaf      the most probable leaf and its ancestors                  climb

Masses fall along the first and the last ladder, so as the threshold grows their answers only move up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.decisions.decisions import Decisions
from hace.decisions.ranking import rank_leaves
from hace.decisions.scores import leaf_log_probs
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.index import derived, layout, leaf_counts
from hace.losses.kernels.answers import walk


def walk_down(log_q: Tensor, hierarchy: Hierarchy) -> tuple[Tensor, Tensor]:
    """From the root, always to the child of greatest mass: (B, L) nodes, and their log q*.

    The first column is the root, or -1 with log-mass 0, the virtual root. After a leaf, the leaf repeats.
    """
    place = layout(hierarchy, log_q.device)
    served = walk(log_q, place.children, place.walk_start, hierarchy.max_depth)
    if served is not None:
        nodes, masses = served
        steps = 1 + int((nodes[:, 1:] != nodes[:, :-1]).any(dim=0).sum())  # the last walker is at a leaf
        return nodes[:, :steps], masses[:, :steps]
    count = place.children[1]
    at = torch.full((len(log_q),), place.walk_start, device=log_q.device)
    mass = log_q[:, 0] if hierarchy.rooted else log_q.new_zeros(len(log_q))
    nodes, masses = [at], [mass]
    while bool((count[at] > 0).any()):
        walking, row, choice, value = _children_of(log_q, hierarchy, at)
        best = value.new_full((len(walking),), -torch.inf).scatter_reduce(0, row, value, "amax")
        # Ties go to the first child, that of least index.
        places = torch.where(value == best[row], choice, len(log_q[0]))
        first = torch.full_like(walking, len(log_q[0])).scatter_reduce(0, row, places, "amin")
        at, mass = at.clone(), mass.clone()
        at[walking], mass[walking] = first, best
        nodes.append(at)
        masses.append(mass)
    return torch.stack(nodes, dim=1), torch.stack(masses, dim=1)


def _children_of(log_q: Tensor, hierarchy: Hierarchy, at: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows whose node has children, and all these children: their place in these rows, node and log q*."""
    start, count, child = layout(hierarchy, log_q.device).children
    walking = (count[at] > 0).nonzero().squeeze(1)
    number = count[at[walking]]
    row = torch.repeat_interleave(torch.arange(len(walking), device=at.device), number)
    within = torch.arange(len(row), device=at.device) - (number.cumsum(0) - number)[row]
    choice = child[start[at[walking]][row] + within]
    return walking, row, choice, log_q[walking[row], choice]


def families(
    log_q: Tensor, hierarchy: Hierarchy, nodes: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """For each step of walks (B, L): rows, and of all children there the place in these rows, log q*, and whether taken."""
    for here, there in pairwise(nodes.unbind(dim=1)):
        walking, row, choice, value = _children_of(log_q, hierarchy, here)
        yield walking, row, value, choice == there[walking][row]


def path_to_best_leaf(
    log_q: Tensor, hierarchy: Hierarchy, best: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The path from the root down to the most probable leaf: (B, H + 1) nodes, and their log q*. Trees and forests only.

    The root, or -1 with log-mass 0, repeats in front of a leaf that is not deep. ``best``: these leaves, if known.
    """
    if not hierarchy.is_tree:
        raise HierarchyError(
            "The climb from the best leaf needs a tree or forest: on a DAG a leaf has several ways up. Use the walk down."
        )
    place = layout(hierarchy, log_q.device)
    if best is None:
        best = place.leaf_nodes[rank_leaves(leaf_log_probs(log_q, hierarchy), 1).squeeze(1)]
    up = torch.from_numpy(np.append(hierarchy.parent_nodes, -1)).to(log_q.device)
    if hierarchy.rooted:
        up[0] = 0
    nodes = [best.to(log_q.device)]
    for _ in range(hierarchy.max_depth):
        nodes.append(up[nodes[-1]])
    path = torch.stack(nodes[::-1], dim=1)
    masses = log_q.gather(1, path.clamp(min=0))
    return path, masses.masked_fill_(path < 0, 0.0)


class _InformationGroups(NamedTuple):
    """The nodes below the root by their number of leaves.

    Attributes:
        order: (M,) by falling number of leaves, the deeper first.
        sizes: how many have each number.
        chains: for each number, the most steps from one of its nodes down to an only child, and so on.
        only: (N,) the only child of each node; the node itself where it has none or several.
    """

    order: Tensor
    sizes: list[int]
    chains: list[int]
    only: Tensor


@derived
def _information_groups(hierarchy: Hierarchy, device: torch.device) -> _InformationGroups:
    counts, depths = leaf_counts(hierarchy), hierarchy.depths
    start, count, child = (part.numpy() for part in layout(hierarchy).children)
    only, chain = np.arange(hierarchy.num_nodes), np.zeros(hierarchy.num_nodes, dtype=np.int64)
    for v in np.flatnonzero(count[:-1] == 1)[::-1].tolist():  # children before parents
        only[v] = child[start[v]]
        chain[v] = chain[only[v]] + 1
    order = np.lexsort((-depths, -counts))
    order = order[depths[order] > 0]
    _, first, sizes = np.unique(-counts[order], return_index=True, return_counts=True)
    chains = np.maximum.reduceat(chain[order], first).tolist() if len(order) else []
    return _InformationGroups(
        torch.from_numpy(order).to(device), sizes.tolist(), chains, torch.from_numpy(only).to(device)
    )


def best_by_information(log_q: Tensor, hierarchy: Hierarchy) -> tuple[Tensor, Tensor]:
    """The node of greatest mass for each number of leaves, falling, and its only children: (B, U) nodes, and their log q*.

    I(v) = -log2(share of the leaves under v) grows from column to column, but for an only child, which has the leaves of its
    parent. Of equal masses the deeper node counts, then the first. The first column is the root, or -1 with log-mass 0,
    the virtual root.
    """
    order, sizes, chains, only = _information_groups(hierarchy, log_q.device)
    nodes = [order.new_full((len(log_q),), layout(hierarchy).walk_start)]
    masses = [log_q[:, 0] if hierarchy.rooted else log_q.new_zeros(len(log_q))]
    for group, chain in zip(order.split(sizes), chains, strict=True):
        best = log_q[:, group].max(dim=1)
        nodes.append(group[best.indices])
        masses.append(best.values)
        for _ in range(chain):
            nodes.append(only[nodes[-1]])
            masses.append(log_q.gather(1, nodes[-1][:, None]).squeeze(1))
    return torch.stack(nodes, dim=1), torch.stack(masses, dim=1)


def deepest_above(
    log_q: Tensor, hierarchy: Hierarchy, threshold: float | Sequence[float], constrained: bool = True
) -> Decisions:
    """The most specific node whose probability is at least a threshold.

    Args:
        log_q: (B, N).
        hierarchy: a tree, a forest or a DAG.
        threshold: one for all nodes, or one for each level 1 to the deepest. The root always passes.
        constrained: True: walk down from the root to the child of greatest mass while it passes. False: of all nodes that
            pass, one with the fewest leaves under it; of these the most probable, then the deepest, then the first in node
            order; from there down to only children that pass.

    Returns:
        Decisions; node -1 (no answer, level 0, probability 1) if nothing below a virtual root passes.
    """
    limits = level_thresholds(threshold, hierarchy).to(log_q.device)  # by depth
    depths = layout(hierarchy, log_q.device).depths
    if constrained:
        nodes, masses = walk_down(log_q, hierarchy)
        passing = masses.double().exp() >= limits[depths[nodes]]
    else:
        failing = log_q.double().exp() < limits[depths[:-1]]
        least = torch.finfo(
            log_q.dtype
        ).min  # log 0 of a node that passes is above the -inf of those that fail
        kept = log_q.clamp(min=least).masked_fill_(failing, -torch.inf)
        nodes, masses = best_by_information(kept, hierarchy)
        passing = masses > -torch.inf
    return _answers(hierarchy, nodes, masses, last_passing(passing, constrained))


def climb(log_q: Tensor, hierarchy: Hierarchy, threshold: float | Sequence[float]) -> Decisions:
    """From the most probable leaf, up to the first ancestor whose probability is at least a threshold.

    Args:
        log_q: (B, N).
        hierarchy: a tree or a forest.
        threshold: one for all nodes, or one for each level 1 to the deepest. The root always passes.

    Returns:
        Decisions; node -1 (no answer, level 0, probability 1) if nothing below a virtual root passes.
    """
    limits = level_thresholds(threshold, hierarchy).to(log_q.device)
    nodes, masses = path_to_best_leaf(log_q, hierarchy)
    passing = masses.double().exp() >= limits[layout(hierarchy, log_q.device).depths[nodes]]
    return _answers(hierarchy, nodes, masses, last_passing(passing, constrained=False))


def _answers(hierarchy: Hierarchy, nodes: Tensor, masses: Tensor, column: Tensor) -> Decisions:
    return Decisions(hierarchy, nodes.gather(1, column).squeeze(1), masses.gather(1, column).exp().squeeze(1))


def last_passing(passing: Tensor, constrained: bool) -> Tensor:
    """(B, 1) the last column that passes; with ``constrained``, the last before the first that does not.

    The first column, the root or no answer, passes.
    """
    passing = passing.int()
    if constrained:
        return passing.cummin(dim=1).values.sum(dim=1, keepdim=True) - 1
    places = torch.arange(passing.shape[1], device=passing.device)
    return (passing * places).amax(dim=1, keepdim=True)


def level_thresholds(threshold: float | Sequence[float], hierarchy: Hierarchy) -> Tensor:
    """(H + 1,) the threshold of each depth; -1, which any mass passes, at depth 0."""
    levels = hierarchy.max_depth
    given = list(threshold) if isinstance(threshold, Sequence | Tensor | np.ndarray) else [threshold] * levels
    if len(given) != levels:
        raise ConfigError(
            f"threshold must be one number, or one for each of the levels 1 to {levels}. Got {len(given)} numbers."
        )
    wrong = [t for t in given if not isinstance(t, int | float | np.number | Tensor) or not 0 <= t <= 1]
    if wrong:
        raise ConfigError(f"threshold must be a probability from 0 to 1. Got {wrong[0]!r}.")
    return torch.tensor([-1.0, *given], dtype=torch.float64)
