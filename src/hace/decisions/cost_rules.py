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

**The search** on a tree is branch and bound: exact, and without a table of all answers. With G(v, k) the mass of the leaves of
depth k at or below v, and S(v, k) the sum of gain(b) G(b, k) over the path of v, the expected value of the answer v is

    E(v) = scale(v) sum_k weight[d(v), k] S(v, k) + sum_k inside(v, k) G(v, k) + constant(v) + a term of the sample alone

Below a child v of u no answer x has more than E(u) + reach(u) P(v): a leaf outside v has the same ancestors in common with
x as with u, so the deeper x scores no more for it than u does, and for a leaf inside v it scores at most reach(u) more.
Branches that cannot reach the best answer known are dropped; the path of the most probable leaf has a good one to begin
with. Running sums over the leaves give each G in two look-ups. A sample takes O(n) to read its scores and O(depth) for each
node that is looked at: at worst O(N x depth), in practice a few dozen nodes. Where the depth of the true leaf does not matter
(K = 1), the compiled kernel searches eight samples side by side. On a DAG every answer is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number, require
from hace.decisions.decisions import Decisions
from hace.decisions.scores import leaf_log_probs
from hace.errors import DataError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import cached_on_hierarchy, is_above, layout, leaf_ranges, preorder_labels
from hace.hierarchy.distances import check_distance, relations, virtual_height
from hace.losses import kernels

ANSWER_METRICS = ("hierarchical_f", "wu_palmer", "zhao", "information_f1", "hamming")
TIE = 1e-12  # values this close, relative to the larger of 1 and the best, are equal
_ENTRIES = 1 << 24  # (node, depth) entries looked at together
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
    fits = is_number(price) and 0 <= price <= 1
    require("price", price, "a number from 0 (vague answers are free) to 1", fits)
    if hierarchy.is_tree:
        full = 1.0 if candidates == "leaves" else float(price)  # no leaf is vague
        measure = cost_measure(hierarchy, distance, full, log_q.device)
        answers, values = best_answers(log_q, hierarchy, measure, candidates)
        return Decisions(hierarchy, answers.nodes, answers.probabilities, -values)
    p = leaf_log_probs(log_q.double(), hierarchy).exp()
    costs, probabilities = _dag_costs(p, hierarchy, candidates, distance, price)
    best = _least(costs, probabilities)
    nodes = layout(hierarchy, log_q.device).leaf_nodes[best] if candidates == "leaves" else best
    rows = torch.arange(len(best), device=best.device)
    return Decisions(hierarchy, nodes, probabilities[rows, best], costs[rows, best])


@cached_on_hierarchy
def cost_measure(h: Hierarchy, distance: str, price: float, device: torch.device) -> Worth:
    """-cost in the terms of the search.

    An answer at u costs ``price`` times its distance to the leaves below u; that is all a branch below u can save.
    """
    where = places(h, torch.device("cpu"))
    depths = np.append(h.depths, 0)
    heights = np.append(h.heights, virtual_height(h))
    below_root = depths > 0
    # Distance of a node to the leaves below it.
    vague = heights if distance == "lca_height" else h.max_depth - depths
    is_leaf = np.append(h.labels >= 0, False)
    inside = (vague * np.where(is_leaf, 1.0, 1 - price))[:, None]
    sample = None
    if distance == "lca_height":
        gain = np.where(below_root, heights[np.append(h.parent_nodes, -1)] - heights, 0)
        constant = np.full(h.num_nodes + 1, -heights[-1])
    elif distance == "lca_depth":
        gain = np.where(below_root, 1, 0)
        constant = np.full(h.num_nodes + 1, -h.max_depth)
    else:
        gain = np.where(below_root, 2, 0)
        constant = -depths
        # At price 1 the depth of a leaf no longer matters, and one column is enough.
        leaf_depths = where.depths.numpy()[None, :] if price < 1 else depths[:, None]
        inside = (1 - price) * (leaf_depths - depths[:, None])
        sample = _numbers(-h.depths[where.columns.numpy()], device)
    return Worth(
        start=0.0,
        gain=_numbers(gain, device),
        weight=_numbers(np.ones((1, 1)), device),
        scale=_numbers(np.ones(h.num_nodes + 1), device),
        inside=_numbers(inside, device),
        constant=_numbers(constant, device),
        reach=_numbers(price * vague, device),
        sample=sample,
    )


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
    costs = []
    masses = []
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
    fits = is_number(beta) and beta > 0 and (metric == "hierarchical_f" or beta == 1)
    require("beta", beta, "a number above 0, and 1 but for hierarchical_f", fits)
    if not hierarchy.is_tree:
        raise HierarchyError(
            "The best answer for a metric needs a tree or forest: on a DAG the common ancestors are not a path. "
            "Use rule='cost'."
        )
    if metric == "hamming":
        measure = cost_measure(hierarchy, "edges", 1.0, log_q.device)
        best = 0.0
    else:
        measure = _measure(hierarchy, metric, float(beta), log_q.device)
        best = 1.0
    answers, values = best_answers(log_q, hierarchy, measure, candidates)
    return Decisions(hierarchy, answers.nodes, answers.probabilities, best - values)


@cached_on_hierarchy
def _measure(h: Hierarchy, metric: str, beta: float, device: torch.device) -> Worth:
    """The metric in the terms of the search. Below u no answer has more than 1, where u itself has 1 - reach(u) or more."""
    depths = np.append(h.depths, 0)
    gain = np.where(depths > 0, 1.0, 0.0)
    scale = np.ones(h.num_nodes + 1)
    weight = np.ones((1, 1))
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 at the root
        if metric == "information_f1":
            information = relations(h).information
            gain = information - information[np.append(h.parent_nodes, -1)]
            scale = 2 / (information + np.log2(h.num_leaves))
            own = information * scale
        else:
            weight = _depth_weights(h, metric, beta)
            own = _value_for_deepest_leaf(h, metric, beta)

    if len(weight) > 1 and weight.shape[1] == 1:
        # All leaves have one depth: the weight depends on the answer alone, and so the kernel can search.
        scale = scale * weight[depths, 0]
        weight = np.ones((1, 1))
    zeros = np.zeros(h.num_nodes + 1)
    return Worth(
        start=1.0 if metric in ("wu_palmer", "zhao") else 0.0,
        gain=_numbers(gain, device),
        weight=_numbers(weight, device),
        scale=_numbers(scale, device),
        inside=_numbers(np.tile(zeros[:, None], weight.shape[1]), device),
        constant=_numbers(zeros, device),
        reach=_numbers(1 - np.where(np.isfinite(own), own, 0.0), device),
        sample=None,
    )


def _depth_weights(h: Hierarchy, metric: str, beta: float) -> np.ndarray:
    """(D + 1, K) what the metric multiplies d(a) or d(a) + 1 by, for an answer of depth 0..D and a leaf of each depth."""
    answer = np.arange(h.max_depth + 1)[:, None]
    leaf = places(h, torch.device("cpu")).depths.numpy()[None, :]
    if metric == "hierarchical_f":
        return (1 + beta**2) / (beta**2 * leaf + answer)
    if metric == "wu_palmer":
        return 2 / (leaf + answer + 2)
    return 1 / (np.maximum(leaf, answer) + 1)


def _value_for_deepest_leaf(h: Hierarchy, metric: str, beta: float) -> np.ndarray:
    """(N + 1,) the metric of the answer v where the truth is the deepest leaf below v: no leaf below v gives less."""
    depths = np.append(h.depths, 0).astype(float)
    deepest = depths + np.append(h.heights, h.max_depth)
    if metric == "hierarchical_f":
        return (1 + beta**2) * depths / (beta**2 * deepest + depths)
    if metric == "wu_palmer":
        return 2 * (depths + 1) / (depths + deepest + 2)
    return (depths + 1) / (deepest + 1)


def _numbers(values: np.ndarray, device: torch.device) -> Tensor:
    """Numbers as a tensor; what is not finite, such as 0 / 0 at the root, counts as 0."""
    return torch.from_numpy(np.where(np.isfinite(values), values, 0.0)).to(device)


@dataclass(frozen=True, eq=False)
class Worth:
    """What an answer is worth; see the head of this file. Node N is the virtual root.

    K is the number of depths of leaves, or 1 for a measure that does not depend on them.
    """

    start: float  # S at the top, as a multiple of G: 1 where the root counts as a common ancestor, else 0
    gain: Tensor  # (N + 1,), 0 at the root
    weight: Tensor  # (D + 1, K), or (1, 1) where it is 1 throughout
    scale: Tensor  # (N + 1,)
    inside: Tensor  # (N + 1, K)
    constant: Tensor  # (N + 1,)
    reach: Tensor  # (N + 1,)
    # (n,) weights of the leaves, in preorder, in the term of the sample alone; None without such a term
    sample: Tensor | None


class TreePlaces(NamedTuple):
    """Where the leaves of a tree are: columns of log q*, and ranges of running sums."""

    columns: Tensor  # (n,) the leaves in preorder
    low: Tensor  # (N + 1,) the leaves below v are those from low[v] up to high[v] of the preorder
    high: Tensor  # (N + 1,)
    by_depth: Tensor  # (n,) the preorder sorted by depth
    first: Tensor  # (N + 1, K) the leaves of depth k below v are those from first[v, k] up to last[v, k] of `by_depth`
    last: Tensor  # (N + 1, K)
    depths: Tensor  # (K,) the depths of leaves
    node_depths: Tensor  # (N + 1,)


@cached_on_hierarchy
def places(h: Hierarchy, device: torch.device) -> TreePlaces:
    """The places of a tree or forest."""

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values)).to(device)

    columns = h.leaf_nodes[preorder_labels(h)]
    leaf_depth = h.depths[columns]
    by_depth = np.argsort(leaf_depth, kind="stable")
    depths, start = np.unique(leaf_depth[by_depth], return_index=True)
    low, high = leaf_ranges(h)
    low = np.append(low, 0)  # all leaves are below the virtual root
    high = np.append(high, h.num_leaves)
    is_of_depth = leaf_depth[:, None] == depths  # (n, K)
    before = np.concatenate([np.zeros((1, len(depths)), dtype=np.int64), is_of_depth.cumsum(axis=0)])
    return TreePlaces(
        columns=tensor(columns),
        low=tensor(low),
        high=tensor(high),
        by_depth=tensor(by_depth),
        first=tensor(start + before[low]),
        last=tensor(start + before[high]),
        depths=tensor(depths),
        node_depths=tensor(np.append(h.depths, 0)),
    )


def _refuse_silent(silent: Tensor) -> None:
    if bool(silent.any()):
        raise DataError(
            f"scores must have some mass on the leaves. {int(silent.sum())} of {len(silent)} rows break this rule; the first "
            f"is row {int(silent.nonzero()[0, 0])}. Decide among nodes by a threshold."
        )


def _running(x: Tensor) -> Tensor:
    """(B, n + 1) running sums of the rows of (B, n), from 0."""
    out = x.new_zeros(len(x), x.shape[1] + 1)
    torch.cumsum(x, dim=1, out=out[:, 1:])
    return out


@cached_on_hierarchy
def _answer_table(h: Hierarchy, measure: Worth, leaves_only: bool) -> kernels.AnswerTable:
    """A measure that does not depend on the depths of leaves, as the kernel takes it."""
    sample = None
    if measure.sample is not None:
        columns = places(h, measure.sample.device).columns
        sample = measure.sample.new_zeros(h.num_nodes).index_copy(0, columns, measure.sample)
    return kernels.AnswerTable(
        level=torch.from_numpy((h.depths - h.depths.min()).astype(np.int32)).to(measure.gain.device),
        gain=measure.gain,
        scale=measure.scale,
        inside=measure.inside[:, 0].contiguous(),
        constant=measure.constant,
        reach=measure.reach,
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
        answers = kernels.best_answers(log_q, table, TIE)
        if answers is not None:
            nodes, probabilities, values = answers
            _refuse_silent(nodes < 0)
            nodes = layout(hierarchy).leaf_nodes[nodes] if candidates == "leaves" else nodes
            return Decisions(hierarchy, nodes, probabilities), values
    search = _Search(log_q, hierarchy, measure, candidates)
    search.follow_best_leaf()
    search.descend()
    nodes, probabilities, values = search.best()
    return Decisions(hierarchy, nodes, probabilities), values


class _Frontier(NamedTuple):
    """Nodes to go on from: (F,) rows, nodes and values, and (F, K) sums along their paths."""

    row: Tensor
    node: Tensor
    value: Tensor
    sums: Tensor

    def take(self, chosen: Tensor) -> _Frontier:
        return _Frontier(*(part[chosen] for part in self))


class _Search:
    """One block of samples: the best value of each so far, and the answers that may be it."""

    def __init__(self, log_q: Tensor, h: Hierarchy, measure: Worth, candidates: str) -> None:
        self.places = places(h, log_q.device)
        self.layout = layout(h, log_q.device)
        p = log_q.index_select(1, self.places.columns).softmax(dim=1).double()  # (B, n), in preorder
        _refuse_silent(p[:, 0].isnan())
        p.div_(p.sum(dim=1, keepdim=True))
        self.p = p
        self.running = _running(p)
        self.h = h
        self.measure = measure
        self.leaves_only = candidates == "leaves"
        self.labels = torch.from_numpy(np.append(h.labels, -1)).to(p.device)
        self.split = measure.inside.shape[1] > 1  # whether the depth of a leaf matters
        if self.split:
            self.by_depth = _running(p.index_select(1, self.places.by_depth))
        self.offset = p.new_zeros(len(p)) if measure.sample is None else p @ measure.sample
        self.value = p.new_full((len(p),), -torch.inf)
        none = self.labels[:0]
        self.best_answers: list[tuple[Tensor, Tensor, Tensor, Tensor]] = [(none, none, p[:0, 0], p[:0, 0])]

    def masses(self, row: Tensor, node: Tensor) -> Tensor:
        """P(v); that of a leaf is its own probability, without the rounding of sums."""
        low = self.places.low[node]
        sums = (self.running[row, self.places.high[node]] - self.running[row, low]).clamp_(min=0.0)
        leaf = (self.labels[node] >= 0).nonzero().squeeze(1)
        sums[leaf] = self.p[row[leaf], low[leaf]]
        return sums

    def parts(self, row: Tensor, node: Tensor, mass: Tensor) -> Tensor:
        """G(v, k); P(v) where the depth of a leaf does not matter."""
        if not self.split:
            return mass[:, None]
        each = row[:, None]
        where = self.places
        parts = self.by_depth[each, where.last[node]] - self.by_depth[each, where.first[node]]
        return parts.clamp_(min=0.0)

    def evaluate(self, row: Tensor, node: Tensor, mass: Tensor, sums: Tensor) -> _Frontier:
        """The nodes with their values and sums, from the sums of their parents."""
        measure = self.measure
        parts = self.parts(row, node, mass)
        sums = sums + measure.gain[node][:, None] * parts
        weight = measure.weight
        if len(weight) > 1:
            weight = weight[self.places.node_depths[node]]
        value = (sums * weight).sum(dim=1) * measure.scale[node] + measure.constant[node]
        value += (measure.inside[node] * parts).sum(dim=1)
        return _Frontier(row, node, value, sums)

    def top(self) -> _Frontier:
        """The root, or the virtual root."""
        row = torch.arange(len(self.p), device=self.p.device)
        node = torch.full_like(row, 0 if self.h.rooted else self.h.num_nodes)
        mass = self.running[:, -1]
        frontier = self.evaluate(row, node, mass, self.measure.start * self.parts(row, node, mass))
        if self.h.rooted:
            self.note(frontier, mass)
        return frontier

    def follow_best_leaf(self) -> None:
        """Look at the path of the most probable leaf, for an answer to beat."""
        up = torch.from_numpy(np.append(self.h.parent_nodes, -1)).to(self.p.device)
        chain = [self.places.columns[self.p.argmax(dim=1)]]
        for _ in range(self.h.max_depth - 1):
            chain.append(up[chain[-1]])
        row = torch.arange(len(self.p), device=self.p.device)
        sums = self.top().sums
        for nodes in reversed(chain):
            some = (self.places.node_depths[nodes] > 0).nonzero().squeeze(1)  # -1 is the virtual root, too
            mass = self.masses(row[some], nodes[some])
            frontier = self.evaluate(row[some], nodes[some], mass, sums[some])
            self.note(frontier, mass)
            sums[some] = frontier.sums

    def note(self, answers: _Frontier, mass: Tensor) -> None:
        """Add the answers that are the best so far, or as good, to the list."""
        if self.leaves_only:
            leaf = (self.labels[answers.node] >= 0).nonzero().squeeze(1)
            answers = answers.take(leaf)
            mass = mass[leaf]
        self.value.scatter_reduce_(0, answers.row, answers.value, "amax")
        good = (answers.value >= self.least(answers.row)).nonzero().squeeze(1)
        self.best_answers.append((answers.row[good], answers.node[good], answers.value[good], mass[good]))

    def least(self, row: Tensor) -> Tensor:
        """What an answer must be worth to count."""
        best = self.value[row]
        slack = TIE * (best + self.offset[row]).abs().clamp(min=1.0)
        return torch.where(best > -torch.inf, best - slack, best)

    def descend(self, frontier: _Frontier | None = None) -> None:
        """Look at all nodes below a frontier, or below the top, that may be best."""
        frontier = self.top() if frontier is None else frontier
        while len(frontier.row):
            parent, node = self.children(frontier)
            row = frontier.row[parent]
            mass = self.masses(row, node)
            bound = frontier.value[parent] + self.measure.reach[frontier.node][parent] * mass
            promising = (bound >= self.least(frontier.row)[parent]).nonzero().squeeze(1)
            too_many = len(promising) * frontier.sums.shape[1] > _ENTRIES
            if too_many and len(frontier.row) > 1:
                for half in torch.arange(len(frontier.row), device=row.device).tensor_split(2):
                    self.descend(frontier.take(half))
                return
            mass = mass[promising]
            frontier = self.evaluate(row[promising], node[promising], mass, frontier.sums[parent[promising]])
            self.note(frontier, mass)
            inner = self.labels[frontier.node] < 0
            frontier = frontier.take(inner.nonzero().squeeze(1))

    def children(self, frontier: _Frontier) -> tuple[Tensor, Tensor]:
        """The children of all nodes of a frontier: the place of each one's parent in the frontier, and the child."""
        start, count, child = self.layout.children
        number = count[frontier.node]
        parent = torch.repeat_interleave(torch.arange(len(number), device=number.device), number)
        before = number.cumsum(0) - number  # children of the nodes before
        which = torch.arange(len(parent), device=number.device) - before[parent]
        return parent, child[start[frontier.node][parent] + which]

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """(B,) nodes, masses and values of the best answers."""
        row, node, value, mass = (torch.cat(parts) for parts in zip(*self.best_answers, strict=True))
        # What was best when it was noted may have been beaten since.
        good = (value >= self.least(row)).nonzero().squeeze(1)
        row = row[good]
        node = node[good]
        mass = mass[good]
        # Of equal values the most probable answers,
        most = torch.full_like(self.value, -1.0).scatter_reduce(0, row, mass, "amax")
        good = (mass >= most[row]).nonzero().squeeze(1)
        row = row[good]
        node = node[good]
        # and of these the first.
        order = self.labels[node] if self.leaves_only else node
        first = order.new_full((len(self.p),), len(self.labels)).scatter_reduce(0, row, order, "amin")
        nodes = self.layout.leaf_nodes[first] if self.leaves_only else first
        return nodes, most, self.value + self.offset
