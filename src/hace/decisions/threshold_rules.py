"""Rules with a threshold: a row of nodes for each sample, and the last of them that is probable enough.

    walk_down              from the root, always to the child of greatest mass       deepest_above
    best_by_information    the most probable node for each number of leaves          deepest_above, constrained=False
    path_to_best_leaf      the most probable leaf and its ancestors                  climb
    hedge_steps            the answers of hedge as the threshold falls               hedge
    path_to_best_own       the best leaf, or the likeliest "another of this group"   own

Masses fall along the walk and the path, so as the threshold grows their answers only move up.

With i(v) = I(v) / log2 n, the information of a node from 0 at the root to 1 at a leaf, hedge answers with
argmax_v q*[v] ((1 - t) i(v) + t): Deng et al. 2012, "Hedging Your Bets", whose reward I(v) + lambda has
lambda = log2 n t / (1 - t).

The answers at every threshold at once, and what they lose, are in :mod:`hace.decisions.ladders`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number
from hace.decisions.decisions import Decisions
from hace.decisions.scores import leaf_log_probs, rank_leaves
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import cached_on_hierarchy, layout, leaf_counts
from hace.hierarchy.distances import relations
from hace.losses.kernels import walk

_NO_MASS = 1e-5  # less than this is rounding
_SILENT = (
    "No inner node has a mass of its own, so no answer can mean 'another of this group': with outputs over leaves, a group of "
    "one listed class has exactly that class's probability. Train a head over nodes, such as HCELoss(h, unseen=0.3)."
)
_EQUAL = 2.0**-20  # relative: masses, and values of hedge, this close are equal
_MARGIN = 1e-9  # of the thresholds of hedge, above the rounding of the products that they compare


def walk_down(log_q: Tensor, hierarchy: Hierarchy) -> tuple[Tensor, Tensor]:
    """From the root, always to the child of greatest mass, of equal ones the first: (B, L) nodes, and their log q*.

    Masses that single precision cannot tell apart are equal, so the precision of the scores decides nothing. The first column
    is the root, or -1 with log-mass 0, the virtual root. After a leaf, the leaf repeats.
    """
    place = layout(hierarchy, log_q.device)
    compiled = walk(log_q, place.children, place.walk_start, hierarchy.max_depth)
    if compiled is not None:
        nodes, masses = compiled
        steps = 1 + int((nodes[:, 1:] != nodes[:, :-1]).any(dim=0).sum())  # the last walker is at a leaf
        return nodes[:, :steps], masses[:, :steps]
    count = place.children[1]
    at = torch.full((len(log_q),), place.walk_start, device=log_q.device)
    mass = log_q[:, 0] if hierarchy.rooted else log_q.new_zeros(len(log_q))
    nodes = [at]
    masses = [mass]
    while bool((count[at] > 0).any()):
        walking, row, choice, value = children_of(log_q, hierarchy, at)
        best = value.new_full((len(walking),), -torch.inf).scatter_reduce(0, row, value, "amax")
        # Ties go to the first child, that of least index.
        places = torch.where(value >= _equal_from(best)[row], choice, len(log_q[0]))
        first = torch.full_like(walking, len(log_q[0])).scatter_reduce(0, row, places, "amin")
        at = at.clone()
        mass = mass.clone()
        at[walking] = first
        mass[walking] = log_q[walking, first]
        nodes.append(at)
        masses.append(mass)
    return torch.stack(nodes, dim=1), torch.stack(masses, dim=1)


def _equal_from(best: Tensor) -> Tensor:
    """The least log-mass that counts as equal to the best: sums of equal masses round in their own order and precision."""
    return best - _EQUAL * (1 + best.abs().clamp(max=1e4))


def children_of(log_q: Tensor, hierarchy: Hierarchy, at: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows whose node has children, and all these children: their place in these rows, node and log q*."""
    start, count, child = layout(hierarchy, log_q.device).children
    walking = (count[at] > 0).nonzero().squeeze(1)
    number = count[at[walking]]
    row = torch.repeat_interleave(torch.arange(len(walking), device=at.device), number)
    within = torch.arange(len(row), device=at.device) - (number.cumsum(0) - number)[row]
    choice = child[start[at[walking]][row] + within]
    return walking, row, choice, log_q[walking[row], choice]


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
    """The nodes below the root by their number of leaves."""

    order: Tensor  # (M,) by falling number of leaves, the deeper first
    sizes: list[int]  # how many have each number
    # for each number, the most steps from one of its nodes down to an only child, and so on
    chains: list[int]
    only: Tensor  # (N,) the only child of each node; the node itself where it has none or several


@cached_on_hierarchy
def _information_groups(hierarchy: Hierarchy, device: torch.device) -> _InformationGroups:
    """Nodes below the root in groups of equally many leaves, most first, with the chains of only children below them."""
    counts = leaf_counts(hierarchy)
    depths = hierarchy.depths
    start, count, child = (part.numpy() for part in layout(hierarchy).children)
    only = np.arange(hierarchy.num_nodes)
    chain = np.zeros(hierarchy.num_nodes, dtype=np.int64)
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
    parent. Of masses that single precision cannot tell apart the deeper node counts, then the first. The first column is the
    root, or -1 with log-mass 0, the virtual root.
    """
    order, sizes, chains, only = _information_groups(hierarchy, log_q.device)
    nodes = [order.new_full((len(log_q),), layout(hierarchy).walk_start)]
    masses = [log_q[:, 0] if hierarchy.rooted else log_q.new_zeros(len(log_q))]
    for group, chain in zip(order.split(sizes), chains, strict=True):
        those = log_q[:, group]
        tied = those >= _equal_from(those.amax(dim=1, keepdim=True))
        first = tied.int().argmax(dim=1, keepdim=True)
        nodes.append(group[first.squeeze(1)])
        masses.append(those.gather(1, first).squeeze(1))
        for _ in range(chain):
            nodes.append(only[nodes[-1]])
            masses.append(log_q.gather(1, nodes[-1][:, None]).squeeze(1))
    return torch.stack(nodes, dim=1), torch.stack(masses, dim=1)


def deepest_above(
    log_q: Tensor, hierarchy: Hierarchy, threshold: float | Sequence[float], constrained: bool = True
) -> Decisions:
    """The most specific node whose probability is at least a threshold, or that of its level. The root always passes.

    ``constrained``: walk down from the root to the child of greatest mass while it passes. Otherwise, of all nodes that
    pass, one with the fewest leaves under it; of these the most probable, then the deepest, then the first in node order;
    from there down to only children that pass. Node -1 (no answer, probability 1) if nothing below a virtual root passes.
    """
    check_choice("constrained", constrained, (True, False))
    limits = level_thresholds(threshold, hierarchy).to(log_q.device)  # by depth
    depths = layout(hierarchy, log_q.device).depths
    if constrained:
        nodes, masses = walk_down(log_q, hierarchy)
        passing = masses.double().exp() >= limits[depths[nodes]]
    else:
        failing = log_q.double().exp() < limits[depths[:-1]]
        # log 0 of a node that passes is above the -inf of those that fail
        passing = log_q.clamp(min=torch.finfo(log_q.dtype).min).masked_fill_(failing, -torch.inf)
        nodes, masses = best_by_information(passing, hierarchy)
        passing = masses > -torch.inf
    return _answers(hierarchy, nodes, masses, last_passing(passing, constrained))


def climb(log_q: Tensor, hierarchy: Hierarchy, threshold: float | Sequence[float]) -> Decisions:
    """From the most probable leaf, up to the first ancestor that passes, as in :func:`deepest_above`. Trees and forests."""
    limits = level_thresholds(threshold, hierarchy).to(log_q.device)
    nodes, masses = path_to_best_leaf(log_q, hierarchy)
    passing = masses.double().exp() >= limits[layout(hierarchy, log_q.device).depths[nodes]]
    return _answers(hierarchy, nodes, masses, last_passing(passing, constrained=False))


def path_to_best_own(log_q: Tensor, hierarchy: Hierarchy) -> tuple[Tensor, Tensor]:
    """The path down to the inner node whose own output has the greatest mass, then the best leaf: (B, L), and their scores.

    A node's own mass is its q* minus that of its children: "another of this group". The score of the leaf is log p / (p + o), p
    its mass and o the greatest own mass, the root's included; that of the other nodes is log q* / 2, so that at a threshold t a
    group needs t^2: on classes left out of training, t asked more of groups than of classes. Trees and forests only.
    """
    place = layout(hierarchy, log_q.device)
    leaf = place.leaf_nodes[rank_leaves(leaf_log_probs(log_q, hierarchy), 1).squeeze(1)]
    q = log_q.double().exp()
    own = own_masses(log_q, hierarchy)
    most = own.amax(dim=1)
    if hierarchy.rooted:
        own[:, 0] = -1.0  # the path begins there anyway
    best = own.argmax(dim=1)
    nodes, masses = path_to_best_leaf(log_q, hierarchy, best)
    p = q.gather(1, leaf[:, None]).squeeze(1)
    score = (p / (p + most)).nan_to_num(0.0).log().to(log_q.dtype)
    return torch.cat([nodes, leaf[:, None]], dim=1), torch.cat([masses / 2, score[:, None]], dim=1)


def own_masses(log_q: Tensor, hierarchy: Hierarchy) -> Tensor:
    """(B, N) what the children of each inner node leave of its mass, and -1 at the leaves. Warns where there is none at all."""
    if not hierarchy.is_tree:
        raise HierarchyError(
            "Own masses need a tree or forest: on a DAG children share what is below them. Use the walk down."
        )
    q = log_q.double().exp()
    below = torch.from_numpy(hierarchy.edges.copy()).to(log_q.device)
    own = (q - torch.zeros_like(q).index_add(1, below[:, 0], q[:, below[:, 1]])).clamp_(min=0.0)
    own[:, layout(hierarchy, log_q.device).leaf_nodes] = -1.0
    if len(own) and not bool((own > _NO_MASS).any()):
        warnings.warn(_SILENT, UserWarning, stacklevel=2)
    return own


def answer_or_own(log_q: Tensor, hierarchy: Hierarchy, threshold: float) -> Decisions:
    """The best leaf, or "another of this group" where an inner node's own output says so: see :func:`path_to_best_own`.

    At 0.5 the likelier of the two counts. Below the leaf, the answer is the deepest node on the way to that group that passes.
    """
    if not is_number(threshold) or not 0 <= threshold <= 1:
        raise ConfigError(f"threshold must be one number from 0 to 1 for rule='own'. Got {threshold!r}.")
    nodes, scores = path_to_best_own(log_q, hierarchy)
    saying = layout(hierarchy, log_q.device).depths[nodes] > 0
    column = last_passing((scores.double().exp() >= threshold) | ~saying, constrained=False)
    answer = nodes.gather(1, column).squeeze(1)
    mass = log_q.gather(1, answer.clamp(min=0)[:, None]).squeeze(1).exp()
    return Decisions(hierarchy, answer, mass.masked_fill(answer < 0, 1.0))


@cached_on_hierarchy
def information_of(h: Hierarchy, device: torch.device) -> Tensor:
    """(N,) i(v), from 0 to 1; 1 where there is only one leaf."""
    return torch.from_numpy(np.where(h.depths > 0, relations(h).specificity[:-1], 0.0)).to(device)


def hedge(log_q: Tensor, hierarchy: Hierarchy, threshold: float) -> Decisions:
    """The answer of greatest expected information with a bonus for truth, from 0 (none) to 1 (truth alone: the root).

    Of equal ones the least informative, which is the root or no answer where it is among them, then the first in node order.
    Values that single precision cannot tell apart are equal, so the precision of the scores decides nothing.
    """
    if not is_number(threshold) or not 0 <= threshold <= 1:
        raise ConfigError(f"threshold must be one number from 0 to 1 for rule='hedge'. Got {threshold!r}.")
    information = information_of(hierarchy, log_q.device)
    value = log_q.double().exp_().mul_((1 - threshold) * information + threshold)
    best = value.amax(dim=1, keepdim=True)
    tied = value >= best * (1 - _EQUAL)
    nodes = information.expand_as(value).masked_fill(~tied, torch.inf).argmin(dim=1)
    masses = log_q.gather(1, nodes[:, None]).squeeze(1).exp()
    if not hierarchy.rooted:
        nothing = best.squeeze(1) <= threshold * (1 + _EQUAL)
        nodes = nodes.masked_fill(nothing, -1)
        masses = masses.masked_fill(nothing, 1.0)
    return Decisions(hierarchy, nodes, masses)


def hedge_steps(log_q: Tensor, hierarchy: Hierarchy) -> tuple[np.ndarray, np.ndarray]:
    """The answers of :func:`hedge` as the threshold falls from 1: (B, L) nodes and the greatest threshold of each.

    Every node is a line in t, and the answers are the upper envelope of these lines. The thresholds have a margin for
    rounding, so that above them the node is not the answer.
    """
    q = torch.nn.functional.pad(log_q.double().exp(), (0, 1), value=1.0)
    info = torch.nn.functional.pad(information_of(hierarchy, log_q.device), (0, 1))
    start = layout(hierarchy).walk_start
    gain = q * info  # the value at t = 0
    rows = torch.arange(len(q), device=q.device)
    at = torch.full_like(rows, start if start >= 0 else q.shape[1] - 1)
    reached = torch.ones(len(q), dtype=torch.float64, device=q.device)
    nodes = [at]
    thresholds = [reached]
    while len(rows):
        more = gain - gain[rows, at][:, None]
        less = (q[rows, at][:, None] - q).clamp_(min=0.0)
        crossing = torch.where(more > 0, more / (more + less), -torch.inf)
        best = crossing.max(dim=1)
        moving = best.values > -torch.inf
        if not bool(moving.any()):
            break
        at = torch.where(moving, best.indices, at)
        reached = torch.where(moving, torch.minimum(best.values + _MARGIN, reached), -torch.inf)
        nodes.append(at)
        thresholds.append(reached)
    steps = torch.stack(nodes, dim=1)
    steps[steps == q.shape[1] - 1] = -1
    return steps.cpu().numpy(), torch.stack(thresholds, dim=1).cpu().numpy()


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
    one: Any = threshold
    several = isinstance(one, Sequence | Tensor | np.ndarray) and getattr(one, "ndim", 1) > 0
    given: list[Any] = list(one) if several else [one] * levels
    if len(given) != levels:
        raise ConfigError(
            f"threshold must be one number, or one for each of the levels 1 to {levels}. Got {len(given)} numbers."
        )
    limits = [t.item() if getattr(t, "ndim", None) == 0 else t for t in given]
    wrong = [t for t in limits if not is_number(t) or not 0 <= t <= 1]
    if wrong:
        raise ConfigError(f"threshold must be a probability from 0 to 1. Got {wrong[0]!r}.")
    return torch.tensor([-1.0, *map(float, limits)], dtype=torch.float64)
