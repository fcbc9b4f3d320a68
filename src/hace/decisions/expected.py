"""The answer of least expected cost or greatest expected metric.

**Costs.** A distance, with a discount for answers that are true but vague. With p over the leaves, P(v) the mass of the leaves
at or below v, and the sums over the nodes b from v up to its top:

    lca_height   E(v) = height(root) - sum_b [height(parent of b) - height(b)] P(b)
    lca_depth    E(v) = H - sum_b P(b)                                               (b below the root)
    edges        E(v) = E[depth of the leaf] + depth(v) - 2 sum_b P(b)               (b below the root)

An answer at an inner node is vague about the leaves below it, which costs only a share of their distance, the *price*; a true
answer at a leaf costs nothing. Both are one more term in the masses below v.

**Metrics** of what answer and truth have in common. With a the lowest common ancestor of the answer v and the true leaf c, d
the depth, beta the weight of recall, and I(v) = -log2(share of the leaves under v):

    hierarchical_f    (1 + beta^2) d(a) / (beta^2 d(c) + d(v))        F-beta of the ancestors without the root
    wu_palmer         2 (d(a) + 1) / (d(v) + d(c) + 2)                Wu and Palmer 1994, the root at depth 1
    zhao              (d(a) + 1) / (max(d(v), d(c)) + 1)              Zhao, Fei-Fei and Xing 2011: shared part of a path
    information_f1    2 I(a) / (I(v) + I(c))                          F1 of information
    hamming           -(d(v) + d(c) - 2 d(a))                         how many nodes are an ancestor of only one of the two

d(a) counts the nodes b below the root that are above both, so each is a sum over the path of v of the mass below b, weighted by
the depths of v and c.

**On a tree** every answer is looked at in one pass down, without a table of answers by truths. With G(v, k) the mass of the
leaves of depth k at or below v, and S(v, k) the sum of gain(b) G(b, k) over the path of v, the answer v is worth

    E(v) = scale(v) sum_k weight[d(v), k] S(v, k) + sum_k inside(v, k) G(v, k) + constant(v) + a term of the sample alone

Running sums over the leaves give each G in two look-ups: O(N) per sample and depth of leaves. Where the depth of the true leaf
does not matter (K = 1), the compiled kernel serves. On a DAG every answer is compared with every truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number
from hace.decisions.decisions import Decisions
from hace.decisions.scores import leaf_log_probs
from hace.errors import ConfigError, DataError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import check_distance, virtual_height
from hace.hierarchy.index import derived, is_above, layout, leaf_counts, leaf_ranges, preorder_labels
from hace.losses.kernels import answers

ANSWER_METRICS = ("hierarchical_f", "wu_palmer", "zhao", "information_f1", "hamming")
TIE = 1e-12  # values this close, relative to the larger of 1 and the best, are equal
_DENSE = 1 << 22  # entries of the distance table held at once on a DAG


def least_cost(
    log_q: Tensor,
    hierarchy: Hierarchy,
    candidates: str = "leaves",
    distance: str = "lca_height",
    price: float = 0.5,
) -> Decisions:
    """The answer of least expected cost under the leaf probabilities, with ``costs``. A DAG takes O(n N) per sample.

    cost(c, v) for the true leaf c: the distance of c and v if v is wrong, ``price`` times their distance if v is an
    ancestor of c (true but vague), 0 if v is c. At price 0 the root always wins, 1 is plain distance; with ``lca_height``,
    a leaf beats its parent when its share of the parent's mass is above 1 - price. Of equal costs the most probable
    answer, then the first.
    """
    check_distance(distance)
    check_choice("candidates", candidates, ("leaves", "nodes"))
    if not is_number(price) or not 0 <= price <= 1:
        raise ConfigError(f"price must be a number from 0 (vague answers are free) to 1. Got {price!r}.")
    if hierarchy.is_tree:
        measure = cost_measure(
            hierarchy, distance, 1.0 if candidates == "leaves" else float(price), log_q.device
        )
        answers, values = best_answers(log_q, hierarchy, measure, candidates)
        return Decisions(hierarchy, answers.nodes, answers.probabilities, -values)
    p = leaf_log_probs(log_q.double(), hierarchy).exp()
    costs, probabilities = _dag_costs(p, hierarchy, candidates, distance, price)
    best = _least(costs, probabilities)[:, None]
    nodes = best.squeeze(1)
    if candidates == "leaves":
        nodes = layout(hierarchy, log_q.device).leaf_nodes[nodes]
    return Decisions(
        hierarchy, nodes, probabilities.gather(1, best).squeeze(1), costs.gather(1, best).squeeze(1)
    )


@derived
def cost_measure(h: Hierarchy, distance: str, price: float, device: torch.device) -> Worth:
    """-cost as what an answer is worth."""
    where = places(h, torch.device("cpu"))
    depths, heights = np.append(h.depths, 0), np.append(h.heights, virtual_height(h))
    leaf, below = np.append(h.labels >= 0, False), depths > 0
    vague = heights if distance == "lca_height" else h.max_depth - depths
    inside = (vague * np.where(leaf, 1.0, 1 - price))[:, None]
    if distance == "lca_height":
        gain, constant = np.where(below, heights[np.append(h.parent_nodes, -1)] - heights, 0), -heights[-1]
    elif distance == "lca_depth":
        gain, constant = 1 * below, -h.max_depth
    else:
        gain, constant = 2 * below, -depths
        leaf_depths = where.depths.numpy()[None, :] if price < 1 else depths[:, None]
        inside = (1 - price) * (leaf_depths - depths[:, None])

    ones = np.ones(h.num_nodes + 1)
    parts = (gain, ones[:1, None], ones, inside, constant * ones)
    sample = _numbers(-h.depths[where.columns.numpy()], device) if distance == "edges" else None
    return Worth(0.0, *(_numbers(x, device) for x in parts), sample=sample)


def _least(costs: Tensor, probabilities: Tensor) -> Tensor:
    """(B,) position of the least cost in each row; of equal ones the most probable, then the first."""
    low = costs.amin(dim=1, keepdim=True)
    tied = costs <= low + TIE * low.abs().clamp(min=1.0)
    return probabilities.masked_fill(~tied, -1.0).argmax(dim=1)


def _dag_costs(
    p: Tensor, h: Hierarchy, candidates: str, distance: str, price: float
) -> tuple[Tensor, Tensor]:
    """The definition itself, one block of answers at a time."""
    answers = h.leaf_nodes if candidates == "leaves" else np.arange(h.num_nodes)
    costs, masses = [], []
    for block in np.array_split(answers, max(1, len(answers) * h.num_leaves // _DENSE)):
        cost = h.distances(block[:, None], h.leaf_nodes[None, :], distance, labels="nodes").astype(float)
        above = is_above(h, block[:, None], h.leaf_nodes[None, :]).astype(float)
        cost *= 1.0 - (1.0 - price) * above
        costs.append(p @ torch.from_numpy(cost.T).to(p.device))
        masses.append(p @ torch.from_numpy(above.T).to(p.device))
    return torch.cat(costs, dim=1), torch.cat(masses, dim=1)


def best_expected(
    log_q: Tensor, hierarchy: Hierarchy, metric: str, beta: float = 1.0, candidates: str = "nodes"
) -> Decisions:
    """The answer of greatest expected metric under the leaf probabilities, which should be calibrated. Trees and forests.

    ``costs`` are 1 - expected metric, or the expected Hamming loss. Of equal ones the most probable answer, then the first.
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
    """The metric as what an answer is worth."""
    depths, log2 = np.append(h.depths, 0).astype(float), np.log2(h.num_leaves)
    leaf, answer = places(h, torch.device("cpu")).depths.numpy()[None, :], np.arange(h.max_depth + 1)[:, None]
    gain, scale, start = 1.0 * (depths > 0), np.ones(h.num_nodes + 1), float(metric in ("wu_palmer", "zhao"))
    with np.errstate(divide="ignore", invalid="ignore"):
        if metric == "hierarchical_f":
            square = beta**2
            weight = (1 + square) / (square * leaf + answer)
        elif metric == "wu_palmer":
            weight = 2 / (leaf + answer + 2)
        elif metric == "zhao":
            weight = 1 / (np.maximum(leaf, answer) + 1)
        else:
            information = np.append(log2 - np.log2(leaf_counts(h)), 0.0)
            gain = information - information[np.append(h.parent_nodes, -1)]
            weight, scale = np.ones((1, 1)), 2 / (information + log2)

    if weight.shape[1] == 1:  # all leaves have one depth, so the kernel serves
        scale, weight = scale * weight[np.append(h.depths, 0) if len(weight) > 1 else 0, 0], np.ones((1, 1))

    nothing = np.zeros(h.num_nodes + 1)
    inside = np.broadcast_to(nothing[:, None], (len(nothing), weight.shape[1]))
    return Worth(start, *(_numbers(x, device) for x in (gain, weight, scale, inside, nothing)), sample=None)


def _numbers(values: np.ndarray, device: torch.device) -> Tensor:
    """Numbers as a tensor; what is not finite, such as 0 / 0 at the root, counts as 0."""
    return torch.from_numpy(np.where(np.isfinite(values), values, 0.0)).to(device)


@dataclass(frozen=True, eq=False)
class Worth:
    """What an answer is worth; see the head of this file. Node N is the virtual root.

    K is the number of depths of leaves, or 1 for a measure that does not depend on them.

    Attributes:
        start: S at the top, as a multiple of G: 1 where the root counts as a common ancestor, else 0.
        gain: (N + 1,), 0 at the root.
        weight: (D + 1, K), or (1, 1) where it is 1 throughout.
        scale: (N + 1,).
        inside: (N + 1, K).
        constant: (N + 1,).
        sample: (n,) weights of the leaves, in preorder, in the term of the sample alone; None without such a term.
    """

    start: float
    gain: Tensor
    weight: Tensor
    scale: Tensor
    inside: Tensor
    constant: Tensor
    sample: Tensor | None


class TreePlaces(NamedTuple):
    """Where the leaves of a tree are: columns of log q*, and ranges of running sums.

    Attributes:
        columns: (n,) the leaves in preorder.
        low: (N + 1,) the leaves below v are those from low[v] up to high[v] of the preorder.
        high: (N + 1,).
        by_depth: (n,) the preorder sorted by depth.
        first: (N + 1, K) the leaves of depth k below v are those from first[v, k] up to last[v, k] of ``by_depth``.
        last: (N + 1, K).
        depths: (K,) the depths of leaves.
        node_depths: (N + 1,).
        top: the root, or N, the virtual root.
        levels: the nodes below it by depth, and their parents.
    """

    columns: Tensor
    low: Tensor
    high: Tensor
    by_depth: Tensor
    first: Tensor
    last: Tensor
    depths: Tensor
    node_depths: Tensor
    top: int
    levels: list[tuple[Tensor, Tensor]]


@derived
def places(h: Hierarchy, device: torch.device) -> TreePlaces:
    """The places of a tree or forest."""
    columns = h.leaf_nodes[preorder_labels(h)]
    depth = h.depths[columns]
    by_depth = np.argsort(depth, kind="stable")
    depths, start = np.unique(depth[by_depth], return_index=True)
    low, high = (np.append(x, end) for x, end in zip(leaf_ranges(h), (0, h.num_leaves), strict=True))
    before = np.stack([np.concatenate([[0], np.cumsum(depth == k)]) for k in depths], axis=1)  # (n + 1, K)
    first, last = start + before[low], start + before[high]
    parts = (columns, low, high, by_depth, first, last, depths, np.append(h.depths, 0))
    levels = [np.flatnonzero(h.depths == d) for d in range(1, h.max_depth + 1)]
    up = np.where(h.parent_nodes < 0, h.num_nodes, h.parent_nodes)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values)).to(device)

    pairs = [(tensor(nodes), tensor(up[nodes])) for nodes in levels]
    return TreePlaces(*map(tensor, parts), top=0 if h.rooted else h.num_nodes, levels=pairs)


def _refuse_silent(silent: Tensor) -> None:
    if bool(silent.any()):
        raise DataError(
            f"scores must have some mass on the leaves. {int(silent.sum())} of {len(silent)} rows break this rule; the first "
            f"is row {int(silent.nonzero()[0, 0])}. Decide among nodes by a threshold."
        )


def _running(x: Tensor) -> Tensor:
    """(n + 1, B) running sums of the columns of (n, B), from 0."""
    out = x.new_zeros(len(x) + 1, x.shape[1])
    torch.cumsum(x, dim=0, out=out[1:])
    return out


@derived
def _answer_table(h: Hierarchy, measure: Worth, leaves_only: bool) -> answers.AnswerTable:
    """A measure that does not depend on the depths of leaves, as the kernel takes it."""
    sample = None
    if measure.sample is not None:
        sample = measure.sample.new_zeros(h.num_nodes).index_copy(
            0, places(h, measure.sample.device).columns, measure.sample
        )
    return answers.AnswerTable(
        level=torch.from_numpy((h.depths - h.depths.min()).astype(np.int32)).to(measure.gain.device),
        gain=measure.gain,
        scale=measure.scale,
        inside=measure.inside[:, 0].contiguous(),
        constant=measure.constant,
        sample=sample,
        order=torch.from_numpy(np.array(h.labels, dtype=np.int64)) if leaves_only else None,
        start=measure.start,
        factor=float(measure.weight[0, 0]),
    )


def best_answers(
    log_q: Tensor, hierarchy: Hierarchy, measure: Worth, candidates: str
) -> tuple[Decisions, Tensor]:
    """The answers of greatest expected value on a tree, and these values (B,).

    Of equal ones the most probable, then the first in label order (leaves) or node order.
    """
    if measure.inside.shape[1] == measure.weight.numel() == 1:
        table = _answer_table(hierarchy, measure, candidates == "leaves")
        if answers.served(log_q, *table[:7]):
            nodes, probabilities, values = answers.best(log_q, table, TIE)
            _refuse_silent(nodes < 0)
            nodes = layout(hierarchy).leaf_nodes[nodes] if candidates == "leaves" else nodes
            return Decisions(hierarchy, nodes, probabilities), values
    nodes, probabilities, values = _best_of_all(log_q, hierarchy, measure, candidates == "leaves")
    return Decisions(hierarchy, nodes, probabilities), values


def _best_of_all(
    log_q: Tensor, h: Hierarchy, measure: Worth, leaves_only: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) nodes, masses and values of the best answers."""
    where = places(h, log_q.device)
    p = log_q.index_select(1, where.columns).softmax(dim=1).double()  # (B, n), in preorder
    _refuse_silent(p[:, 0].isnan())
    p = p.div_(p.sum(dim=1, keepdim=True)).T.contiguous()  # (n, B): rows are read at once
    offset = 0.0 if measure.sample is None else measure.sample @ p
    running = _running(p)
    mass = (running[where.high] - running[where.low]).clamp_(min=0.0)  # (N + 1, B), the virtual root last
    mass[where.columns] = p  # without the rounding of sums
    split = measure.inside.shape[1] > 1  # whether the depth of a leaf matters
    by_depth = _running(p[where.by_depth]) if split else running
    value = measure.constant[:, None].repeat(1, p.shape[1])
    for k in range(measure.inside.shape[1]):
        below = mass
        if split:
            below = (by_depth[where.last[:, k]] - by_depth[where.first[:, k]]).clamp_(min=0.0)
        sums = measure.gain[:, None] * below
        sums[where.top] += measure.start * below[where.top]
        for nodes, parents in where.levels:
            sums[nodes] += sums[parents]
        weight = measure.weight[where.node_depths, k] if len(measure.weight) > 1 else measure.weight[0, 0]
        value.addcmul_(sums, (weight * measure.scale)[:, None])
        value.addcmul_(below, measure.inside[:, k, None])
    some = layout(h, p.device).leaf_nodes if leaves_only else torch.arange(h.num_nodes, device=p.device)
    value, mass = value[some] + offset, mass[some]
    best = value.amax(dim=0)
    tied = value >= best - TIE * best.abs().clamp(min=1.0)
    mass = mass.masked_fill_(~tied, -1.0)
    most = mass.amax(dim=0)
    order = torch.arange(len(some), device=p.device)[:, None]  # of labels, or of nodes
    first = torch.where(mass == most, order, len(some)).amin(dim=0)
    return some[first], most, best
