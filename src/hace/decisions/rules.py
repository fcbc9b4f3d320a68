"""From scores to answers: log q* of the nodes in, :class:`Decisions` out.

The rules are functions of log q* (B, N) and the hierarchy; :func:`predict` is their front:

    leaf         the most probable leaf, or the k best                     top_k
    level        the most probable node of a level                         at_level
    threshold    the deepest node the model is sure enough of              deepest_above
    cost         the answer of least expected cost                         least_cost
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hace.decisions.costs import expected_costs, least
from hace.decisions.decisions import Decisions
from hace.decisions.scores import leaf_log_probs, level_numbers, log_q, row_blocks
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.tensors import layout
from hace.losses.head import node_log_probs

Mass = Literal["all", "leaves"]


def rank_leaves(log_p: Tensor, k: int) -> Tensor:
    """(B, k) labels of the k greatest scores, best first; equal scores in label order."""
    n = log_p.shape[1]
    if not 1 <= k <= n:
        raise DataError(f"k must be from 1 to the number of leaves, {n}. Got {k}.")
    values, labels = log_p.topk(min(k + 1, n), dim=1)
    split = values[:, k - 1] == values[:, -1] if n > k else torch.zeros(len(values), dtype=torch.bool)
    # topk leaves the order of equal scores open: sort by label, then stably by score.
    labels, order = labels[:, :k].sort(dim=1)
    best = values[:, :k].gather(1, order).sort(dim=1, descending=True, stable=True).indices
    labels = labels.gather(1, best)
    if bool(split.any()):  # equal scores on both sides of the cut: only a full stable sort decides
        whole = log_p[split].sort(dim=1, descending=True, stable=True).indices
        labels[split] = whole[:, :k]
    return labels


def top_k(log_q: Tensor, hierarchy: Hierarchy, k: int = 1) -> Decisions:
    """The k most probable leaves (leaf outputs only, renormalised), best first: (B,) for k = 1, otherwise (B, k)."""
    log_p = leaf_log_probs(log_q, hierarchy)
    labels = rank_leaves(log_p, k)
    nodes = layout(hierarchy, log_q.device).leaf_nodes[labels]
    probabilities = log_p.gather(1, labels).exp()
    return (
        Decisions(hierarchy, nodes.squeeze(1), probabilities.squeeze(1))
        if k == 1
        else Decisions(hierarchy, nodes, probabilities)
    )


def node_masses(log_q: Tensor, hierarchy: Hierarchy, mass: str = "all") -> Tensor:
    """(B, N) log-mass of every node, from ``"all"`` outputs or from the ``"leaves"`` alone."""
    if mass == "all":
        return log_q
    if mass != "leaves":
        raise ConfigError(f"mass must be 'all' or 'leaves'. Got {mass!r}.")
    return node_log_probs(leaf_log_probs(log_q, hierarchy), hierarchy, outputs="leaves")


def at_level(log_q: Tensor, hierarchy: Hierarchy, level: int | str, mass: str = "all") -> Decisions:
    """The most probable node of a level; a leaf above the level represents itself.

    Args:
        log_q: (B, N).
        hierarchy: a tree or forest.
        level: a depth or a level's name.
        mass: ``"all"``: inner nodes keep the mass of their own output; ``"leaves"``: only leaf outputs count. The same
            for heads over leaves.
    """
    level_numbers(hierarchy)
    choices = layout(hierarchy, log_q.device).level_choices(hierarchy.level_index(level))
    best = node_masses(log_q, hierarchy, mass)[:, choices].max(dim=1)
    return Decisions(hierarchy, choices[best.indices], best.values.exp())


def all_levels(log_q: Tensor, hierarchy: Hierarchy, mass: str = "all") -> Decisions:
    """The most probable node of every level 1 to the deepest, each on its own: (B, H). They need not be on one path."""
    masses = node_masses(log_q, hierarchy, mass)
    levels = [at_level(masses, hierarchy, k) for k in level_numbers(hierarchy)]
    if not levels:  # a hierarchy of a root alone has no level
        return Decisions(
            hierarchy, torch.zeros(len(log_q), 0, dtype=torch.long), log_q.new_zeros(len(log_q), 0)
        )
    return Decisions(
        hierarchy,
        torch.stack([d.nodes for d in levels], dim=1),
        torch.stack([d.probabilities for d in levels], dim=1),
    )


def walk_down(log_q: Tensor, hierarchy: Hierarchy) -> tuple[Tensor, Tensor]:
    """From the root, always to the child of greatest mass: (B, L) nodes, and their log q*.

    The first column is the root, or -1 with log-mass 0, the virtual root. After a leaf, the leaf repeats.
    """
    place = layout(hierarchy, log_q.device)
    start, count, child = place.children
    rows = torch.arange(len(log_q), device=log_q.device)
    at = torch.full_like(rows, place.walk_start)
    mass = log_q[:, 0] if hierarchy.rooted else log_q.new_zeros(len(log_q))
    nodes, masses = [at], [mass]
    while len(rows):
        walking = (count[at] > 0).nonzero().squeeze(1)
        if not len(walking):
            break
        number = count[at[walking]]
        row = torch.repeat_interleave(torch.arange(len(walking), device=rows.device), number)
        within = torch.arange(len(row), device=rows.device) - (number.cumsum(0) - number)[row]
        choice = child[start[at[walking]][row] + within]  # children are in node order
        value = log_q[walking[row], choice]
        best = value.new_full((len(walking),), -torch.inf).scatter_reduce(0, row, value, "amax")
        # Ties go to the first child: the least position among those that reach the maximum.
        places = torch.where(value == best[row], within, len(child))
        first = torch.full_like(number, len(child)).scatter_reduce(0, row, places, "amin")
        at, mass = at.clone(), mass.clone()
        at[walking] = child[start[nodes[-1][walking]] + first]
        mass[walking] = best
        nodes.append(at)
        masses.append(mass)
    return torch.stack(nodes, dim=1), torch.stack(masses, dim=1)


def deepest_above(
    log_q: Tensor, hierarchy: Hierarchy, threshold: float | Sequence[float], constrained: bool = True
) -> Decisions:
    """The deepest node whose probability is at least a threshold.

    Args:
        log_q: (B, N).
        hierarchy: a tree, a forest or a DAG.
        threshold: one for all nodes, or one for each level 1 to the deepest. The root always passes.
        constrained: True: walk down from the root to the child of greatest mass while it passes. False: of all nodes that
            pass, the deepest, then the most probable, then the first in node order.

    Returns:
        Decisions; node -1 (no answer, level 0, probability 1) if nothing below a virtual root passes.
    """
    limits = level_thresholds(threshold, hierarchy).to(log_q.device)  # by depth
    depths = layout(hierarchy, log_q.device).depths
    nodes, masses = walk_down(log_q, hierarchy) if constrained else best_by_depth(log_q, hierarchy)
    last = last_passing(masses.double().exp() >= limits[depths[nodes]], constrained)
    return Decisions(hierarchy, nodes.gather(1, last).squeeze(1), masses.gather(1, last).exp().squeeze(1))


def best_by_depth(log_q: Tensor, hierarchy: Hierarchy) -> tuple[Tensor, Tensor]:
    """The node of greatest mass at every depth: (B, H + 1) nodes, and their log q*.

    The first column is the root, or -1 with log-mass 0, the virtual root.
    """
    depths = layout(hierarchy, log_q.device).depths[:-1]
    nodes = [depths.new_full((len(log_q),), 0 if hierarchy.rooted else -1)]
    masses = [log_q[:, 0] if hierarchy.rooted else log_q.new_zeros(len(log_q))]
    for depth in range(1, hierarchy.max_depth + 1):
        at = (depths == depth).nonzero().squeeze(1)
        best = log_q[:, at].max(dim=1)
        nodes.append(at[best.indices])
        masses.append(best.values)
    return torch.stack(nodes, dim=1), torch.stack(masses, dim=1)


def last_passing(passing: Tensor, constrained: bool) -> Tensor:
    """(B, 1) the last column that passes; with ``constrained``, the last before the first that does not.

    The first column, the root or no answer, always passes.
    """
    passing = passing.int()
    passing[:, 0] = 1
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


def least_cost(
    log_q: Tensor,
    hierarchy: Hierarchy,
    candidates: str = "leaves",
    distance: str = "lca_height",
    price: float = 0.5,
) -> Decisions:
    """The answer of least expected cost under the leaf probabilities; see :func:`hace.decisions.costs.expected_costs`.

    Args:
        log_q: (B, N).
        hierarchy: a tree, a forest or a DAG.
        candidates: ``"leaves"``: a class, even if unsure; ``"nodes"``: a rank, too, at a price.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        price: what a true but vague answer costs, as a share of its distance to the truth. With ``lca_height``, a leaf
            beats its parent when its share of the parent's mass is above 1 - price.

    Returns:
        Decisions with ``costs``; of equal costs the most probable answer, then the first.
    """
    p = leaf_log_probs(log_q.double(), hierarchy).exp()
    costs, masses = expected_costs(p, hierarchy, candidates=candidates, distance=distance, price=price)
    best = least(costs, masses)[:, None]
    nodes = best.squeeze(1)
    if candidates == "leaves":
        nodes = layout(hierarchy, log_q.device).leaf_nodes[nodes]
    return Decisions(hierarchy, nodes, masses.gather(1, best).squeeze(1), costs.gather(1, best).squeeze(1))


# Each rule with the options it takes and those it needs.
RULES: dict[str, tuple[Callable[..., Decisions], tuple[str, ...], tuple[str, ...]]] = {
    "leaf": (top_k, ("k",), ()),
    "level": (at_level, ("level", "mass"), ("level",)),
    "threshold": (deepest_above, ("threshold", "constrained"), ("threshold",)),
    "cost": (least_cost, ("candidates", "distance", "price"), ()),
}


def check_rule(rule: str | None, options: Iterable[str]) -> None:
    """Refuse an unknown rule, options it does not take, and a missing option it needs.

    Args:
        rule: a key of :data:`RULES`.
        options: names of the options given.
    """
    if rule is None or rule not in RULES:
        raise ConfigError(f"rule must be one of {', '.join(RULES)}. Got {rule!r}.")
    _, takes, needs = RULES[rule]
    given = list(options)
    for name in given:
        if name not in takes:
            owner = next((other for other, (_, names, _) in RULES.items() if name in names), None)
            hint = f"It belongs to rule={owner!r}." if owner else f"It takes {', '.join(takes)}."
            raise ConfigError(f"rule {rule!r} takes no {name}. {hint}")
    for name in needs:
        if name not in given:
            raise ConfigError(f"rule {rule!r} needs {name}. Give {name}=...")


def predict(
    scores: Any,
    hierarchy: Hierarchy,
    rule: str = "leaf",
    *,
    k: int | None = None,
    level: int | str | None = None,
    mass: str | None = None,
    threshold: float | Sequence[float] | None = None,
    constrained: bool | None = None,
    candidates: str | None = None,
    distance: str | None = None,
    price: float | None = None,
    subset: Iterable[Any] | None = None,
    kind: str = "logits",
    outputs: str = "auto",
) -> Decisions:
    """Answers from the scores of any model.

    Args:
        scores: (B, n) over leaves in label order or (B, N) over nodes in node order.
        hierarchy: the hierarchy.
        rule: ``"leaf"`` (option k), ``"level"`` (level, mass), ``"threshold"`` (threshold, constrained) or ``"cost"``
            (candidates, distance, price).
        k: how many leaves to answer with, best first. Default: 1.
        level: the depth or name of the level to answer at.
        mass: ``"all"`` (default): inner nodes keep the mass of their own output; ``"leaves"``: only leaf outputs count.
        threshold: the probability an answer must reach; one for all nodes, or one for each level 1 to the deepest.
        constrained: True (default): walk down from the root to the most probable child while it passes. False: the deepest
            of all nodes that pass.
        candidates: answer with ``"leaves"`` (default) or any ``"nodes"``.
        distance: the cost of a wrong answer: ``"lca_height"`` (default), ``"lca_depth"`` or ``"edges"``.
        price: the cost of a true but vague answer, as a share of its distance to the truth, from 0 to 1. Default: 0.5.
        subset: ids of leaves to restrict the answer to; see :func:`hace.decisions.scores.restrict`.
        kind: what the scores are: ``"logits"``, ``"probs"``, ``"log_probs"`` or ``"node_log_probs"``.
        outputs: what their columns are: ``"leaves"``, ``"nodes"``, or ``"auto"`` to tell by their number.

    Returns:
        Decisions.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> z = torch.tensor([[2.0, 1.9, 0.0], [5.0, 0.0, 0.0]])
        >>> predict(z, h).ids
        ['husky', 'husky']
        >>> predict(z, h, "threshold", threshold=0.7).ids
        ['dog', 'husky']
        >>> predict(z, h, subset=["beagle", "cat"]).ids
        ['beagle', 'beagle']
    """
    options = {
        "k": k,
        "level": level,
        "mass": mass,
        "threshold": threshold,
        "constrained": constrained,
        "candidates": candidates,
        "distance": distance,
        "price": price,
    }
    given = {name: value for name, value in options.items() if value is not None}
    check_rule(rule, given)
    decide = RULES[rule][0]
    q = log_q(scores, hierarchy, kind=kind, outputs=outputs, subset=subset)
    blocks = [decide(q[rows], hierarchy, **given) for rows in row_blocks(len(q), hierarchy.num_nodes)]
    return Decisions.joined(blocks) if blocks else decide(q, hierarchy, **given)
