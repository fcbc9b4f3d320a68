"""From scores to answers: log q* of the nodes in, :class:`Decisions` out.

The rules are functions of log q* (B, N) and the hierarchy; :func:`predict` is their front, ``RULES`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hace.checks import check_choice
from hace.decisions.cost_rules import best_expected, least_cost
from hace.decisions.decisions import Decisions
from hace.decisions.node_sets import node_sets
from hace.decisions.scores import Scores, leaf_log_probs, level_numbers, rank_leaves, subset_mask
from hace.decisions.threshold_rules import answer_or_own, climb, deepest_above, hedge
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import layout
from hace.losses.head import node_log_probs
from hace.losses.kernels import best_of_levels


def top_k(log_q: Tensor, hierarchy: Hierarchy, k: int = 1) -> Decisions:
    """The k most probable leaves (leaf outputs only, renormalised), best first: (B,) for k = 1, otherwise (B, k)."""
    log_p = leaf_log_probs(log_q, hierarchy)
    labels = rank_leaves(log_p, k)
    nodes = layout(hierarchy, log_q.device).leaf_nodes[labels]
    probabilities = log_p.gather(1, labels).exp()
    if k == 1:
        nodes = nodes.squeeze(1)
        probabilities = probabilities.squeeze(1)
    return Decisions(hierarchy, nodes, probabilities)


def node_masses(log_q: Tensor, hierarchy: Hierarchy, mass: str = "all") -> Tensor:
    """(B, N) log-mass of every node, from ``"all"`` outputs or from the ``"leaves"`` alone."""
    check_choice("mass", mass, ("all", "leaves"))
    if mass == "all":
        return log_q
    return node_log_probs(leaf_log_probs(log_q, hierarchy), hierarchy, outputs="leaves")


def at_level(log_q: Tensor, hierarchy: Hierarchy, level: int | str, mass: str = "all") -> Decisions:
    """The most probable node of a level, a depth or a name; a leaf above the level represents itself.

    ``mass="all"``: inner nodes keep the mass of their own output; ``"leaves"``: only leaf outputs count.
    """
    level_numbers(hierarchy)
    choices = layout(hierarchy, log_q.device).level_choices(hierarchy.level_index(level))
    best = node_masses(log_q, hierarchy, mass)[:, choices].max(dim=1)
    return Decisions(hierarchy, choices[best.indices], best.values.exp())


def all_levels(log_q: Tensor, hierarchy: Hierarchy, mass: str = "all") -> Decisions:
    """The most probable node of every level 1 to the deepest, each on its own: (B, H). They need not be on one path."""
    levels = level_numbers(hierarchy)
    masses = node_masses(log_q, hierarchy, mass)
    place = layout(hierarchy, log_q.device)
    compiled = best_of_levels(masses, place.short_depths, len(levels))
    if compiled is not None:
        return Decisions(hierarchy, compiled[0], compiled[1].exp())
    best = [masses[:, choices].max(dim=1) for choices in map(place.level_choices, levels)]
    if not best:  # a hierarchy of a root alone has no level
        empty = log_q.new_zeros(len(log_q), 0)
        return Decisions(hierarchy, torch.zeros_like(empty, dtype=torch.long), empty)
    nodes = [
        place.level_choices(k)[most_probable.indices] for k, most_probable in zip(levels, best, strict=True)
    ]
    masses = torch.stack([most_probable.values.exp() for most_probable in best], dim=1)
    return Decisions(hierarchy, torch.stack(nodes, dim=1), masses)


# Each rule with the options it takes and those it needs.
RULES: dict[str, tuple[Callable[..., Decisions], tuple[str, ...], tuple[str, ...]]] = {
    "leaf": (top_k, ("k",), ()),
    "level": (at_level, ("level", "mass"), ("level",)),
    "threshold": (deepest_above, ("threshold", "constrained"), ("threshold",)),
    "climb": (climb, ("threshold",), ("threshold",)),
    "hedge": (hedge, ("threshold",), ("threshold",)),
    "own": (answer_or_own, ("threshold",), ("threshold",)),
    "set": (node_sets, ("nodes", "threshold"), ("nodes", "threshold")),
    "cost": (least_cost, ("candidates", "distance", "price"), ()),
    "expected": (best_expected, ("metric", "beta", "candidates"), ("metric",)),
}

_OF_SHARES = ("hedge", "own", "set", "cost", "expected")


def check_rule(rule: str | None, options: Iterable[str]) -> None:
    """Refuse an unknown rule, options it does not take, and a missing option it needs."""
    check_choice("rule", rule, RULES)
    _, takes, needs = RULES[str(rule)]
    given = list(options)
    for name in given:
        if name not in takes:
            owner = next((other for other, (_, names, _) in RULES.items() if name in names), None)
            hint = f"It belongs to rule={owner!r}." if owner else f"It takes {', '.join(takes)}."
            raise ConfigError(f"rule {rule!r} takes no {name}. {hint}")
    for name in needs:
        if name not in given:
            raise ConfigError(f"rule {rule!r} needs {name}. Give {name}=...")


def check_kind(rule: str, scores: Scores) -> None:
    """Refuse rules that weigh probabilities against each other where scores are independent."""
    if isinstance(rule, str) and rule in _OF_SHARES:
        scores.need_shares(f"rule {rule!r}")


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
    nodes: int | None = None,
    candidates: str | None = None,
    distance: str | None = None,
    price: float | None = None,
    metric: str | None = None,
    beta: float | None = None,
    subset: Iterable[Any] | None = None,
    kind: str = "logits",
    outputs: str = "auto",
) -> Decisions:
    """Answers from the scores of any model.

    Args:
        scores: (B, n) over leaves in label order or (B, N) over nodes in node order.
        hierarchy: the hierarchy.
        rule: ``"leaf"`` (option k), ``"level"`` (level, mass), ``"threshold"`` (threshold, constrained), ``"climb"``
            (threshold), ``"hedge"`` (threshold), ``"own"`` (threshold), ``"set"`` (nodes, threshold), ``"cost"`` (candidates,
            distance, price) or ``"expected"`` (metric, beta, candidates).
        k: how many leaves to answer with, best first. Default: 1.
        level: the depth or name of the level to answer at.
        mass: ``"all"`` (default): inner nodes keep the mass of their own output; ``"leaves"``: only leaf outputs count.
        threshold: the probability an answer must reach; one for all nodes, or one for each level 1 to the deepest. For
            ``"hedge"``, how much truth counts against information: 0 for the most informative answer, 1 for the root. For
            ``"own"``, how sure the best leaf must be against "another of this group": at 0.5 the likelier counts.
        constrained: True (default): walk down from the root to the most probable child while it passes. False: the most
            informative of all nodes that pass, the one with the fewest leaves.
        nodes: for ``"set"``: answer with at most so many nodes, "the truth is under one of these", that have the fewest leaves.
        candidates: answer with ``"leaves"`` or any ``"nodes"``. Default: leaves for ``"cost"``, nodes for ``"expected"``.
        distance: the cost of a wrong answer: ``"lca_height"`` (default), ``"lca_depth"`` or ``"edges"``.
        price: the cost of a true but vague answer, as a share of its distance to the truth, from 0 to 1. Default: 0.5.
        metric: what to expect the most of: ``"hierarchical_f"``, ``"wu_palmer"``, ``"zhao"``, ``"information_f1"`` or
            ``"hamming"`` (the least).
        beta: the weight of recall in ``"hierarchical_f"``. Default: 1.
        subset: ids of leaves to restrict the answer to; see :meth:`hace.decisions.Scores.restricted`.
        kind: what the scores are: ``"logits"``, ``"probs"``, ``"log_probs"``, ``"node_log_probs"`` or, for columns that
            do not exclude each other, ``"sigmoid"``; see :class:`hace.decisions.Scores`.
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
    options: dict[str, Any] = {"k": k, "level": level, "mass": mass, "threshold": threshold}
    options |= {"constrained": constrained, "nodes": nodes, "candidates": candidates, "distance": distance}
    options |= {"price": price, "metric": metric, "beta": beta}
    given = {name: value for name, value in options.items() if value is not None}
    keep = None if subset is None else subset_mask(hierarchy, subset)
    return decide(Scores(scores, hierarchy, kind, outputs).restricted(keep), rule, **given)


def decide(scores: Scores, rule: str, **options: Any) -> Decisions:
    """The answers of a rule to scores, in blocks that bound the memory; see :func:`predict`."""
    check_rule(rule, options)
    check_kind(rule, scores)
    scores = scores.checked()  # as a whole: messages count all rows
    answers = RULES[rule][0]
    h = scores.hierarchy
    parts = [answers(block.log_q(), h, **options) for _, block in scores.blocks()]
    return Decisions.joined(parts) if parts else answers(scores.log_q(), h, **options)
