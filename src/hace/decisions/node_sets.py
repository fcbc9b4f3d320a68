"""A few nodes in place of one: "the truth is under one of these three".

For each sample, of all sets of at most K nodes none of which is above another, whose mass is at least a threshold, the one with
the fewest leaves below it: the least information lost, I(S) = -log2(share of the leaves under S). Of equally many leaves the
greatest mass counts. Trees and forests only: on a DAG two nodes share what is below both, and masses do not add up.

Let F_v[k, s] be the greatest mass of at most k nodes at or below v with s leaves in all. Then

    F_v[k, s] = max( q*[v] if s = leaves(v) and k >= 1,  max over ways to share k and s among the children of the sum of theirs
    )

Children are merged one by one, so a pair of leaves is looked at once, where their subtrees meet: O(K^2 n^2) per sample for
n leaves, exact at all thresholds at once. Sets at a greater threshold need not hold those at a smaller one; a guarantee
therefore counts a sample with its worst answer at t or any greater threshold, as :mod:`hace.decisions.ladders` explains.

Mortier et al. 2022, "Set-Valued Prediction in Hierarchical Classification with Constrained Representation Complexity", choose
sets of few nodes by expected utility; here a threshold with a guarantee takes the place of the utility.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_count
from hace.decisions.decisions import Decisions
from hace.decisions.ladders import Ladder, Outcomes
from hace.decisions.scores import Scores
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above, layout, leaf_counts

MOST_NODES = 8
_MOST_LEAVES = 3000
_TIED = 1e-12  # relative: masses this close are equal
_ENTRIES = 1 << 21  # of tables at once


@dataclass(frozen=True, eq=False)
class SetLadder(Ladder):
    """The sets of nodes that answer as the threshold falls; ``nodes`` (B, L) are their first ones."""

    sets: np.ndarray  # (B, L, K), -1 where a set has fewer nodes; the first rung is the root or no answer

    def true(self, truth: np.ndarray) -> np.ndarray:
        """(B, L) whether the truth (B,) is at or below one of the nodes of each rung."""
        each = np.broadcast_to(truth[:, None, None], self.sets.shape).ravel()
        above = is_above(self.hierarchy, self.sets.ravel(), each) & (self.sets.ravel() >= 0)
        return np.asarray(above.reshape(self.sets.shape).any(axis=2))

    def outcomes(self, truth: np.ndarray, distance: str | None = None) -> Outcomes:
        """As of one node; a set has no distance to the truth."""
        if distance is not None:
            raise ConfigError("distance must come with a rule of one node. Got rule='set'.")
        return super().outcomes(truth)


def node_sets(log_q: Tensor, hierarchy: Hierarchy, nodes: int, threshold: float) -> Decisions:
    """(B, nodes) the set of at most so many nodes that reaches the threshold with the fewest leaves; -1 for no further node.

    The root, or -1 alone, where no other set reaches it. Probabilities are those of the nodes, 0 for no further node.
    """
    ladder = set_ladder(log_q, hierarchy, nodes)
    chosen = ladder.sets[np.arange(len(ladder)), ladder.rung(threshold)]
    answers = torch.from_numpy(chosen).to(log_q.device)
    masses = log_q.gather(1, answers.clamp(min=0)).exp().masked_fill(answers < 0, 0.0)
    masses[(answers < 0).all(dim=1), 0] = 1.0  # no answer at all is certain
    return Decisions(hierarchy, answers, masses)


def common_ancestors(sets: Decisions) -> Decisions:
    """(B,) the deepest node above all of each set (B, K), or -1, with the probability that the truth is under the set."""
    h = sets.hierarchy
    up = torch.from_numpy(np.append(h.parent_nodes, -1))
    depths = torch.from_numpy(np.append(h.depths, 0))
    at = sets.nodes[:, 0].cpu().clone()
    for other in sets.nodes.cpu().unbind(1)[1:]:
        other = torch.where(other < 0, at, other)
        while bool((at != other).any()):
            apart = at != other
            climbs = apart & (depths[at] >= depths[other])
            follows = apart & (depths[other] >= depths[at])
            at = torch.where(climbs, up[at], at)
            other = torch.where(follows, up[other], other)
    return Decisions(h, at.to(sets.nodes.device), sets.probabilities.sum(dim=1).clamp(max=1.0))


def true_answers(decided: Decisions, truth: np.ndarray) -> np.ndarray:
    """(B,) whether the truth (B,) is at or below the answer, or below one of the nodes of a set; no answer is true."""
    nodes = decided.nodes.cpu().numpy().reshape(len(decided), -1)
    above = is_above(decided.hierarchy, nodes.ravel(), np.repeat(truth, nodes.shape[1])).reshape(nodes.shape)
    says = nodes >= 0
    return np.asarray((above & says).any(axis=1) | ~says.any(axis=1))


def ladder_of_sets(scores: Scores, nodes: int) -> SetLadder:
    """The sets of all samples, in blocks that bound the memory."""
    h = scores.hierarchy
    parts = [set_ladder(block.log_q(), h, nodes) for _, block in scores.blocks()]
    if not parts:
        return set_ladder(scores.log_q(), h, nodes)
    first, reached, sets = (
        np.concatenate([getattr(p, n) for p in parts]) for n in ("nodes", "reached", "sets")
    )
    return SetLadder(h, first, reached, sets)


def set_ladder(log_q: Tensor, hierarchy: Hierarchy, nodes: int) -> SetLadder:
    """The sets of at most so many nodes for each number of leaves, falling."""
    check_count("nodes", nodes, MOST_NODES)
    if not hierarchy.is_tree:
        raise HierarchyError(
            "rule 'set' needs a tree or forest: on a DAG nodes share what is below them. Use rule='threshold'."
        )
    n = hierarchy.num_leaves
    if n > _MOST_LEAVES:
        raise ConfigError(
            f"rule 'set' takes at most {_MOST_LEAVES:,} leaves: its work grows with their square. Got {n:,}."
        )
    q = log_q.double().exp().cpu().numpy()
    step = max(1, _ENTRIES // ((n + 1) * (nodes + 1) * (nodes + 1)))
    parts = [_best_sets(q[i : i + step], hierarchy, nodes) for i in range(0, max(1, len(q)), step)]
    mass = np.concatenate([part[0] for part in parts])
    sets = np.concatenate([part[1] for part in parts])
    # From n leaves, the root or no answer, down to one.
    mass = mass[:, :0:-1]
    sets = -np.sort(-sets[:, :0:-1], axis=2)
    sets[:, 0] = -1
    sets[:, 0, 0] = layout(hierarchy).walk_start
    mass = np.minimum(mass, 1.0)  # rounding aside, no mass is above 1
    mass[:, 0] = np.inf
    reached = np.maximum.accumulate(mass[:, ::-1], axis=1)[:, ::-1]
    return SetLadder(hierarchy, sets[:, :, 0], reached, sets)


def _best_sets(q: np.ndarray, hierarchy: Hierarchy, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(B, n + 1) the greatest mass of a set with so many leaves, -inf where there is none, and (B, n + 1, K) its nodes."""
    counts = leaf_counts(hierarchy)
    rows = len(q)
    waiting: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for v in range(hierarchy.num_nodes - 1, -1, -1):  # children before parents
        parent = int(hierarchy.parent_nodes[v])
        mass, sets = _merged(waiting.pop(v, []), rows, nodes, int(counts[v]))
        below = mass[:, 1:, counts[v]]
        several = (sets[:, 1:, counts[v]] >= 0).sum(axis=2) > 1
        # One node beats several of the same mass, but an only child, which is deeper, beats its parent.
        better = q[:, v, None] * np.where(several, 1 + _TIED, 1 - _TIED) > below
        mass[:, 1:, counts[v]] = np.where(better, q[:, v, None], mass[:, 1:, counts[v]])
        alone = np.full(nodes, -1)
        alone[0] = v
        sets[:, 1:, counts[v]] = np.where(better[..., None], alone, sets[:, 1:, counts[v]])
        waiting.setdefault(parent, []).append((mass, sets))
    mass, sets = _merged(waiting.pop(-1), rows, nodes, hierarchy.num_leaves)
    return mass[:, nodes], sets[:, nodes]


def _merged(
    parts: list[tuple[np.ndarray, np.ndarray]], rows: int, nodes: int, leaves: int
) -> tuple[np.ndarray, np.ndarray]:
    """The tables of disjoint subtrees as one: masses (B, K + 1, leaves + 1) and nodes (B, K + 1, leaves + 1, K)."""
    mass = np.full((rows, nodes + 1, leaves + 1), -np.inf)
    sets = np.full((rows, nodes + 1, leaves + 1, nodes), -1)
    mass[:, :, 0] = 0.0
    size = 0
    for other, theirs in sorted(parts, key=lambda part: -part[0].shape[2]):
        width = other.shape[2] - 1
        ours = mass[:, :, : size + 1].copy()
        our_sets = sets[:, :, : size + 1].copy()
        for k in range(1, nodes + 1):
            for taken in range(1, k + 1):
                left = k - taken
                for s in range(1, width + 1):
                    total = ours[:, left] + other[:, taken, s, None]
                    place = slice(s, s + size + 1)
                    better = total > mass[:, k, place]
                    if not better.any():
                        continue
                    mass[:, k, place] = np.where(better, total, mass[:, k, place])
                    # At most `left` nodes come first, so there is room for those that are taken.
                    both = our_sets[:, left].copy()
                    both[..., left:k] = theirs[:, taken, s, None, :taken]
                    sets[:, k, place] = np.where(better[..., None], both, sets[:, k, place])
        size += width
    return mass, sets
