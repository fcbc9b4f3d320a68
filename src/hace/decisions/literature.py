"""Rules of the literature, for comparison: information against truth, a floor of information, plurality.

With i(v) = I(v) / log2 n, the information of a node from 0 at the root to 1 at a leaf:

    hedge         argmax_v q*[v] ((1 - t) i(v) + t)                      Deng et al. 2012, "Hedging Your Bets": their
                                                                          reward I(v) + lambda has lambda = log2 n t / (1 - t)
    information   argmax q*[v] over the nodes with i(v) >= a floor        the most probable of the informative nodes
    plurality     the most informative node that is more probable than every node it excludes; on a tree such nodes are on
                  the walk down, so it is enough to compare with the siblings passed (Valmadre 2022)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.checks import is_number
from hace.decisions.decisions import Decisions
from hace.decisions.ladders import families, last_passing, walk_down
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.index import derived, layout, leaf_counts

_MARGIN = 1e-9  # of thresholds, above the rounding of the products that they compare


@derived
def _informations(h: Hierarchy, device: torch.device) -> Tensor:
    """(N,) i(v), from 0 to 1; 1 where there is only one leaf."""
    counts = leaf_counts(h)
    most = np.log2(h.num_leaves)
    values = (most - np.log2(counts)) / most if most else np.ones(h.num_nodes)
    return torch.from_numpy(np.where(h.depths > 0, values, 0.0)).to(device)


def hedge(log_q: Tensor, hierarchy: Hierarchy, threshold: float) -> Decisions:
    """The answer of greatest expected information, with a bonus for being true.

    Args:
        log_q: (B, N).
        hierarchy: a tree, a forest or a DAG.
        threshold: t, from 0 (information alone) to 1 (truth alone: the root).

    Returns:
        Decisions; of equal ones the root or no answer, then the first in node order.
    """
    if not is_number(threshold) or not 0 <= threshold <= 1:
        raise ConfigError(f"threshold must be one number from 0 to 1 for rule='hedge'. Got {threshold!r}.")
    weight = (1 - threshold) * _informations(hierarchy, log_q.device) + threshold
    best = log_q.double().exp_().mul_(weight).max(dim=1)
    nodes, masses = best.indices, log_q.gather(1, best.indices[:, None]).squeeze(1).exp()
    if not hierarchy.rooted:
        nothing = best.values <= threshold
        nodes, masses = nodes.masked_fill(nothing, -1), masses.masked_fill(nothing, 1.0)
    return Decisions(hierarchy, nodes, masses)


def hedge_ladder(log_q: Tensor, hierarchy: Hierarchy) -> tuple[np.ndarray, np.ndarray]:
    """The answers of :func:`hedge` as the threshold falls from 1: (B, L) nodes and the greatest threshold of each.

    Every node is a line in t, and the answers are the upper envelope of these lines. The thresholds have a margin for
    rounding, so that above them the node is not the answer.
    """
    q = torch.nn.functional.pad(log_q.double().exp(), (0, 1), value=1.0)
    info = torch.nn.functional.pad(_informations(hierarchy, log_q.device), (0, 1))
    start = layout(hierarchy).walk_start
    gain = q * info  # the value at t = 0
    rows = torch.arange(len(q), device=q.device)
    at = torch.full_like(rows, start if start >= 0 else q.shape[1] - 1)
    reached = torch.ones(len(q), dtype=torch.float64, device=q.device)
    nodes, thresholds = [at], [reached]
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


def most_probable_informative(log_q: Tensor, hierarchy: Hierarchy, information: float) -> Decisions:
    """The most probable of the nodes with a floor of information.

    Args:
        log_q: (B, N).
        hierarchy: a tree, a forest or a DAG.
        information: the least i(v) of an answer, from 0 (any node below the root) to 1 (leaves).

    Returns:
        Decisions; of equal masses the first in node order.
    """
    if not is_number(information) or not 0 <= information <= 1:
        raise ConfigError(
            f"information must be a number from 0 to 1, the share of log2 n. Got {information!r}."
        )
    enough = _informations(hierarchy, log_q.device) >= information - 1e-12
    below = layout(hierarchy, log_q.device).depths[:-1] > 0
    allowed = (enough & below) if bool((enough & below).any()) else enough
    choices = allowed.nonzero().squeeze(1)
    best = log_q[:, choices].max(dim=1)
    return Decisions(hierarchy, choices[best.indices], best.values.exp())


def plurality(log_q: Tensor, hierarchy: Hierarchy) -> Decisions:
    """The most informative node that is more probable than every node it excludes.

    Args:
        log_q: (B, N).
        hierarchy: a tree or a forest.

    Returns:
        Decisions; node -1 (no answer, level 0, probability 1) if nothing below a virtual root passes.
    """
    if not hierarchy.is_tree:
        raise HierarchyError("Plurality needs a tree or forest: on a DAG siblings do not exclude each other.")
    nodes, masses = walk_down(log_q, hierarchy)
    rivals = torch.full_like(masses, -torch.inf)
    for step, (walking, row, value, chosen) in enumerate(families(log_q, hierarchy, nodes), start=1):
        others = value.masked_fill(chosen, -torch.inf)
        rivals[walking, step] = rivals.new_full((len(walking),), -torch.inf).scatter_reduce(
            0, row, others, "amax"
        )
    passing = masses > rivals.cummax(dim=1).values
    passing[:, 0] = True
    column = last_passing(passing, constrained=True)
    return Decisions(hierarchy, nodes.gather(1, column).squeeze(1), masses.gather(1, column).exp().squeeze(1))
