"""A guarantee within each class, not only on average over them.

Every class c has a threshold t_c of its own, from the calibration samples of that class. Which one to use is unknown without
the truth, so all are used: c is excluded at a sample if the answer at t_c would be false for c, and the answer is the
deepest node on the walk down that is above every class not excluded. If the truth is c, the answer is false only if the one
at t_c is, which has probability at most 1 - accuracy among samples of class c (class-conditional conformal prediction, Vovk
2012, on a path of nodes).

A class with too few samples is pooled: what is left over under one parent becomes one pool if there are enough, else it goes
on up; what is left at the top joins the smallest pool. The guarantee is then within the pool.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

from hace.decisions.bounds import RiskBound
from hace.decisions.decisions import Decisions
from hace.decisions.ladders import Outcomes, ladder_of
from hace.decisions.scores import Scores
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy

CLASS = "class"  # each class by itself; else the name of a rank, each of its nodes


def check_classes(hierarchy: Hierarchy, by: str, rule: str, constrained: bool, of: str) -> None:
    """Refuse what has no guarantee within classes."""
    if not hierarchy.is_tree:
        raise HierarchyError(
            "Guarantees within classes need a tree or forest: on a DAG a class has several ways up."
        )
    if (rule, constrained, of) != ("threshold", True, "samples"):
        raise ConfigError(
            f"by={by!r} must come with rule='threshold', constrained=True and of='samples'. Got rule={rule!r}, "
            f"constrained={constrained!r}, of={of!r}."
        )


def pools_of_classes(h: Hierarchy, label: np.ndarray, needed: int, by: str) -> list[list[int]]:
    """The labels of each pool: of one class with enough samples, of a node of the rank, or of what was too few.

    Args:
        h: a tree or forest.
        label: (S,) of the calibration samples.
        needed: samples that a pool must have.
        by: "class", or the name of a rank.
    """
    counts = np.bincount(label, minlength=h.num_leaves)
    waiting: dict[int, list[int]] = defaultdict(list)
    deepest = h.max_depth if by == CLASS else h.level_index(by)
    for leaf, node in enumerate(h.leaf_nodes.tolist()):
        while h.depths[node] > deepest:
            node = int(h.parent_nodes[node])
        waiting[node].append(leaf)
    pools: list[list[int]] = []
    for node in range(h.num_nodes - 1, -1, -1):  # children before parents
        here = waiting.pop(node, [])
        if here and counts[here].sum() >= needed:
            pools.append(here)
        elif here:
            waiting[int(h.parent_nodes[node])].extend(here)
    left = waiting.pop(-1, [])
    if left and pools:
        min(pools, key=lambda pool: counts[pool].sum()).extend(left)
    elif left:
        pools.append(left)
    return sorted(sorted(pool) for pool in pools)


def pooled_thresholds(
    bound: RiskBound, outcomes: Outcomes, label: np.ndarray, pools: list[list[int]], number: int
) -> np.ndarray:
    """(n,) the threshold of each class, from the calibration samples (S,) of its pool."""
    thresholds = np.empty(number)
    for pool in pools:
        thresholds[pool] = bound.threshold(outcomes.take(np.flatnonzero(np.isin(label, pool))))
    return thresholds


def answers_within_classes(scores: Scores, thresholds: np.ndarray) -> Decisions:
    """The deepest nodes on the walk down that are above every class that its own threshold (n,) does not exclude."""
    parts = [_answers(block, thresholds) for _, block in scores.blocks()]
    return Decisions.joined(parts) if parts else _answers(scores, thresholds)


def _answers(scores: Scores, thresholds: np.ndarray) -> Decisions:
    """The answers: for each sample the deepest rung that is true of, or silent about, all classes still possible."""
    h = scores.hierarchy
    ladder = ladder_of(scores)
    rows = len(ladder)
    of_each = [ladder.true(np.full(rows, leaf)) | ~ladder.says for leaf in h.leaf_nodes]
    true = np.stack(of_each, axis=2)  # (B, L, n)
    rungs = np.stack([ladder.rung(t) for t in thresholds], axis=1)  # (B, n)
    possible = np.take_along_axis(true, rungs[:, None, :], axis=1)[:, 0]
    above_all = np.asarray((true | ~possible[:, None, :]).all(axis=2))
    last = above_all.shape[1] - 1 - above_all[:, ::-1].argmax(axis=1)
    nodes = torch.from_numpy(ladder.nodes[np.arange(rows), last])
    masses = scores.log_q().exp().gather(1, nodes.clamp(min=0)[:, None])[:, 0]
    return Decisions(h, nodes, masses.masked_fill(nodes < 0, 1.0))
