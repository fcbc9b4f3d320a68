"""The answer of greatest expected score, for metrics of what answer and truth have in common. Trees and forests.

With a the lowest common ancestor of the answer v and the true leaf c, d the depth, beta the weight of recall, and
I(v) = -log2(share of the leaves under v):

    hierarchical_f    (1 + beta^2) d(a) / (beta^2 d(c) + d(v))        F-beta of the ancestors without the root
    wu_palmer         2 (d(a) + 1) / (d(v) + d(c) + 2)                Wu and Palmer 1994, the root at depth 1
    zhao              (d(a) + 1) / (max(d(v), d(c)) + 1)              Zhao, Fei-Fei and Xing 2011: shared part of a path
    information_f1    2 I(a) / (I(v) + I(c))                          F1 of information
    hamming           -(d(v) + d(c) - 2 d(a))                         how many nodes are an ancestor of only one of the two

d(a) counts the nodes b below the root that are above both, so each is a sum over the path of v of the mass below b, weighted by
the depths of v and c; see `search`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number
from hace.decisions.costs import cost_measure
from hace.decisions.decisions import Decisions
from hace.decisions.search import Worth, best_answers, places
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.index import derived, leaf_counts

ANSWER_METRICS = ("hierarchical_f", "wu_palmer", "zhao", "information_f1", "hamming")


def best_expected(
    log_q: Tensor, hierarchy: Hierarchy, metric: str, beta: float = 1.0, candidates: str = "nodes"
) -> Decisions:
    """The answer of greatest expected metric under the leaf probabilities.

    Args:
        log_q: (B, N); calibrate it first, see :func:`hace.fit_temperature`.
        hierarchy: a tree or a forest.
        metric: one of :data:`ANSWER_METRICS`.
        beta: the weight of recall in ``"hierarchical_f"``, above 0.
        candidates: answer with ``"leaves"`` or any ``"nodes"``.

    Returns:
        Decisions with ``costs`` = 1 - expected metric, or the expected Hamming loss; of equal ones the most probable answer,
        then the first.
    """
    check_choice("metric", metric, ANSWER_METRICS)
    check_choice("candidates", candidates, ("leaves", "nodes"))
    if not is_number(beta) or beta <= 0 or (metric != "hierarchical_f" and beta != 1):
        raise ConfigError(f"beta must be a number above 0, and 1 but for hierarchical_f. Got {beta!r}.")
    if not hierarchy.is_tree:
        raise HierarchyError(
            "The best answer for a metric needs a tree or forest: on a DAG the common ancestors are not a path. "
            "Use rule='cost'."
        )
    if metric == "hamming":
        measure, best = cost_measure(hierarchy, "edges", 1.0, log_q.device), 0.0
    else:
        measure, best = _measure(hierarchy, metric, float(beta), log_q.device), 1.0
    answers, values = best_answers(log_q, hierarchy, measure, candidates)
    return Decisions(hierarchy, answers.nodes, answers.probabilities, best - values)


@derived
def _measure(h: Hierarchy, metric: str, beta: float, device: torch.device) -> Worth:
    """The metric in the terms of `search`. Below u no answer has more than 1, where u itself has 1 - reach(u) or more."""
    depths, log2 = np.append(h.depths, 0).astype(float), np.log2(h.num_leaves)
    leaf, answer = places(h, torch.device("cpu")).depths.numpy()[None, :], np.arange(h.max_depth + 1)[:, None]
    deepest = depths + np.append(h.heights, h.max_depth)  # of the leaves below each node
    gain, scale, start = 1.0 * (depths > 0), np.ones(h.num_nodes + 1), float(metric in ("wu_palmer", "zhao"))
    with np.errstate(divide="ignore", invalid="ignore"):
        if metric == "hierarchical_f":
            square = beta**2
            weight = (1 + square) / (square * leaf + answer)
            own = (1 + square) * depths / (square * deepest + depths)
        elif metric == "wu_palmer":
            weight, own = 2 / (leaf + answer + 2), 2 * (depths + 1) / (depths + deepest + 2)
        elif metric == "zhao":
            weight, own = 1 / (np.maximum(leaf, answer) + 1), (depths + 1) / (deepest + 1)
        else:
            information = np.append(log2 - np.log2(leaf_counts(h)), 0.0)
            gain = information - information[np.append(h.parent_nodes, -1)]
            weight, scale = np.ones((1, 1)), 2 / (information + log2)
            own = information * scale

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.where(np.isfinite(values), values, 0.0)).to(device)

    inside = tensor(np.zeros((1, weight.shape[1]))).expand(h.num_nodes + 1, -1)
    constant = tensor(np.zeros(h.num_nodes + 1))
    return Worth(start, tensor(gain), tensor(weight), tensor(scale), inside, constant, None, 1 - tensor(own))
