"""Rules of the literature that are only here for comparison, as functions of log q*.

With i(v) = I(v) / log2 n, the information of a node from 0 at the root to 1 at a leaf:

    most_probable_informative   argmax q*[v] over the nodes with i(v) >= a floor
    plurality                   the most informative node that is more probable than every node it excludes; on a tree such
                                nodes are on the walk down, so it is enough to compare with the siblings passed (Valmadre 2022)
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from hace.decisions import Decisions
from hace.decisions.threshold_rules import children_of, information_of, last_passing, walk_down
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import layout


def most_probable_informative(log_q: Tensor, hierarchy: Hierarchy, information: float) -> Decisions:
    """The most probable of the nodes with a floor of information, from 0 (any node below the root) to 1 (leaves)."""
    if not 0 <= information <= 1:
        raise ConfigError(f"information must be a number from 0 to 1. Got {information!r}.")
    enough = information_of(hierarchy, log_q.device) >= information - 1e-12
    below = layout(hierarchy, log_q.device).depths[:-1] > 0
    allowed = (enough & below) if bool((enough & below).any()) else enough
    choices = allowed.nonzero().squeeze(1)
    best = log_q[:, choices].max(dim=1)
    return Decisions(hierarchy, choices[best.indices], best.values.exp())


def plurality(log_q: Tensor, hierarchy: Hierarchy) -> Decisions:
    """The most informative node that is more probable than every node it excludes. Trees and forests only."""
    if not hierarchy.is_tree:
        raise HierarchyError("Plurality needs a tree or forest: on a DAG siblings do not exclude each other.")
    nodes, masses = walk_down(log_q, hierarchy)
    rivals = torch.full_like(masses, -torch.inf)
    for step, (here, there) in enumerate(pairwise(nodes.unbind(dim=1)), start=1):
        walking, row, choice, value = children_of(log_q, hierarchy, here)
        others = value.masked_fill(choice == there[walking][row], -torch.inf)
        rivals[walking, step] = rivals.new_full((len(walking),), -torch.inf).scatter_reduce(
            0, row, others, "amax"
        )
    passing = masses > rivals.cummax(dim=1).values
    passing[:, 0] = True
    column = last_passing(passing, constrained=True)
    return Decisions(hierarchy, nodes.gather(1, column).squeeze(1), masses.gather(1, column).exp().squeeze(1))
