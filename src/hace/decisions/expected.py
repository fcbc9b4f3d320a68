"""The answer of greatest expected score, for metrics of what answer and truth have in common. Trees and forests.

With p over the leaves c, d the depth, beta the weight of recall, I(v) = -log2(share of the leaves under v), and the sums over
the nodes b below the root on the path of the answer v:

    hierarchical_f    E(v) = (1 + beta^2) sum_b sum_{c under b} p(c) / (beta^2 d(c) + d(v))
    wu_palmer         E(v) = 2 (p(all) + sum_b ...) with depths counted from 1 at the root and beta = 1
    information_f1    E(v) = 2 sum_b [I(b) - I(parent of b)] P(b) / (I(v) + log2 n)

since the common ancestors of v and c are the b above c. For each depth of v one running sum over the leaves in preorder gives
all inner sums, so a sample takes O(N x depth) and no n x n table.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.decisions.costs import least
from hace.decisions.decisions import Decisions
from hace.decisions.scores import leaf_log_probs
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.index import derived, leaf_counts, leaf_ranges, preorder_labels
from hace.hierarchy.tensors import layout
from hace.losses.checks import is_number

ANSWER_METRICS = ("hierarchical_f", "wu_palmer", "information_f1")


def best_expected(
    log_q: Tensor, hierarchy: Hierarchy, metric: str, beta: float = 1.0, candidates: str = "nodes"
) -> Decisions:
    """The answer of greatest expected metric under the leaf probabilities.

    Args:
        log_q: (B, N); calibrate it first, see :func:`hace.fit_temperature`.
        hierarchy: a tree or a forest.
        metric: ``"hierarchical_f"``: F-beta of the ancestors without the root; ``"wu_palmer"``: Wu-Palmer similarity, twice
            the depth of the common ancestor over the sum of depths, the root at 1; ``"information_f1"``: F1 of information.
        beta: the weight of recall in ``"hierarchical_f"``, above 0.
        candidates: answer with ``"leaves"`` or any ``"nodes"``.

    Returns:
        Decisions with ``costs`` = 1 - expected metric; of equal ones the most probable answer, then the first.
    """
    p = leaf_log_probs(log_q.double(), hierarchy).exp()
    values, masses = expected_scores(p, hierarchy, metric, beta)
    place = layout(hierarchy, log_q.device)
    if candidates == "leaves":
        values, masses = values[:, place.leaf_nodes], masses[:, place.leaf_nodes]
    elif candidates != "nodes":
        raise ConfigError(f"candidates must be 'leaves' or 'nodes'. Got {candidates!r}.")
    best = least(1 - values, masses)[:, None]
    nodes = best.squeeze(1) if candidates == "nodes" else place.leaf_nodes[best.squeeze(1)]
    return Decisions(
        hierarchy, nodes, masses.gather(1, best).squeeze(1), (1 - values).gather(1, best).squeeze(1)
    )


def expected_scores(
    leaf_probs: Tensor, hierarchy: Hierarchy, metric: str, beta: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Expected metric and probability of every node as the answer.

    Args:
        leaf_probs: (B, n) probabilities in label order.
        hierarchy: a tree or a forest.
        metric: one of :data:`ANSWER_METRICS`.
        beta: the weight of recall in ``"hierarchical_f"``.

    Returns:
        values, probabilities: (B, N) in node order, float64.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> values, _ = expected_scores(torch.tensor([[0.5, 0.4, 0.1]]), h, "hierarchical_f")
        >>> [(v, round(x, 2)) for v, x in zip(h.nodes, values[0].tolist())]
        [('dog', 0.6), ('husky', 0.7), ('beagle', 0.65), ('cat', 0.1)]
    """
    if metric not in ANSWER_METRICS:
        raise ConfigError(f"metric must be one of {', '.join(ANSWER_METRICS)}. Got {metric!r}.")
    if not is_number(beta) or beta <= 0 or (metric != "hierarchical_f" and beta != 1):
        raise ConfigError(f"beta must be a number above 0, and 1 but for hierarchical_f. Got {beta!r}.")
    if not hierarchy.is_tree:
        raise HierarchyError(
            "The best answer for a metric needs a tree or forest: on a DAG the common ancestors are no path. "
            "Use rule='cost'."
        )
    tree = _paths(hierarchy, leaf_probs.device)
    p = leaf_probs.detach().double()[:, tree.preorder]
    masses = tree.sums(p, tree.every)
    values = torch.zeros_like(masses)
    if metric == "information_f1":
        gained = masses * tree.gain
        for nodes, above, path in tree.levels:
            values[:, nodes] = _along(gained[:, above], path)
        return values * (2 / tree.together), masses
    root = int(metric == "wu_palmer")  # whether the root counts as a common ancestor
    square = beta * beta
    for depth, (nodes, above, path) in enumerate(tree.levels, start=tree.first_level):
        weighted = p / (square * (tree.leaf_depth + root) + depth + root).clamp(min=1e-300)
        common = _along(tree.sums(weighted, above), path)
        if root:
            common = common + weighted.sum(dim=1, keepdim=True)
        values[:, nodes] = (1 + square) * common
    return values, masses


def _along(values: Tensor, path: Tensor) -> Tensor:
    """(B, k) sums of values (B, m) over k paths (depth, k); one step of the paths at a time, to bound the memory."""
    total = values.new_zeros(len(values), path.shape[1])
    for nodes in path:
        total += values[:, nodes]
    return total


class _Paths:
    """The nodes of each depth with the path above each, and the leaves in preorder."""

    def __init__(self, h: Hierarchy, device: torch.device) -> None:
        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.array(values)).to(device)

        labels = preorder_labels(h)
        self.preorder = tensor(labels)
        self.leaf_depth = tensor(h.depths[h.leaf_nodes[labels]])
        self.low, self.high = (tensor(x) for x in leaf_ranges(h))
        information = np.append(np.log2(h.num_leaves) - np.log2(leaf_counts(h)), 0.0)
        self.gain = tensor(information[:-1] - information[h.parent_nodes])
        self.together = tensor(information[:-1] + np.log2(h.num_leaves)).clamp(min=1e-300)
        self.first_level = int(h.depths.min())
        self.every = tensor(np.arange(h.num_nodes))
        # (k,) nodes, all nodes above them below the root, and (depth, k) the path of each among these.
        self.levels: list[tuple[Tensor, Tensor, Tensor]] = []
        for depth in range(self.first_level, h.max_depth + 1):
            nodes = np.flatnonzero(h.depths == depth)
            path = np.empty((depth, len(nodes)), dtype=np.int64)
            at = nodes
            for step in range(depth):
                path[step] = at
                at = h.parent_nodes[at]
            above, place = np.unique(path, return_inverse=True)
            self.levels.append((tensor(nodes), tensor(above), tensor(place.reshape(path.shape))))

    def sums(self, leaves: Tensor, nodes: Tensor) -> Tensor:
        """(B, k) sums of the leaves (B, n), in preorder, at or below each of k nodes."""
        running = torch.nn.functional.pad(leaves.cumsum(dim=1), (1, 0))
        return (running[:, self.high[nodes]] - running[:, self.low[nodes]]).clamp_(min=0.0)


@derived
def _paths(h: Hierarchy, device: torch.device) -> _Paths:
    return _Paths(h, device)
