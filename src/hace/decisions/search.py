"""The answer of greatest expected value on a tree, by branch and bound: exact, and without a table of all answers.

With G(v, k) the mass of the leaves of depth k at or below v, S(v, k) the sum of gain(b) G(b, k) over the path of v, and P(v)
the mass at or below v, the expected value of the answer v is

    E(v) = scale(v) sum_k weight[d(v), k] S(v, k) + sum_k inside(v, k) G(v, k) + constant(v) + a term of the sample alone

Below a child v of u no answer x has more than E(u) + reach(u) P(v): a leaf outside v has the same ancestors in common with
x as with u, so the deeper x scores no more for it than u does, and for a leaf inside v it scores at most reach(u) more.
Branches that cannot reach the best answer known are dropped; the path of the most probable leaf has a good one to begin
with. Running sums over the leaves give each G in two look-ups. A sample takes O(n) to read its scores and O(depth) for each
node that is looked at: at worst O(N x depth), in practice a few dozen nodes.

Where the depth of the true leaf does not matter (K = 1), the compiled kernel looks at every answer instead, which is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.decisions.decisions import Decisions
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.index import derived, layout, leaf_ranges, preorder_labels
from hace.losses.kernels import answers

TIE = 1e-12  # values this close, relative to the larger of 1 and the best, are equal
_ENTRIES = 1 << 24  # (node, depth) entries looked at together


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
        reach: (N + 1,).
    """

    start: float
    gain: Tensor
    weight: Tensor
    scale: Tensor
    inside: Tensor
    constant: Tensor
    sample: Tensor | None
    reach: Tensor


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
    """

    columns: Tensor
    low: Tensor
    high: Tensor
    by_depth: Tensor
    first: Tensor
    last: Tensor
    depths: Tensor
    node_depths: Tensor


@derived
def places(h: Hierarchy, device: torch.device) -> TreePlaces:
    """The places of a tree or forest."""
    columns = h.leaf_nodes[preorder_labels(h)]
    depth = h.depths[columns]
    by_depth = np.argsort(depth, kind="stable")
    depths, start = np.unique(depth[by_depth], return_index=True)
    low, high = (np.append(x, end) for x, end in zip(leaf_ranges(h), (0, h.num_leaves), strict=True))
    before = np.stack([np.concatenate([[0], np.cumsum(depth == k)]) for k in depths], axis=1)  # (n + 1, K)
    parts = (
        columns,
        low,
        high,
        by_depth,
        start + before[low],
        start + before[high],
        depths,
        np.append(h.depths, 0),
    )
    return TreePlaces(*(torch.from_numpy(np.array(x)).to(device) for x in parts))


class LeafMasses(NamedTuple):
    """What every search over the same scores needs: (B, n) probabilities in preorder and their running sums (B, n + 1)."""

    p: Tensor
    running: Tensor


def leaf_masses(log_q: Tensor, hierarchy: Hierarchy) -> LeafMasses:
    """The leaf outputs renormalised, float64, in preorder, and their running sums."""
    p = log_q.index_select(1, places(hierarchy, log_q.device).columns).softmax(dim=1).double()
    _refuse_silent(p[:, 0].isnan())
    p.div_(p.sum(dim=1, keepdim=True))
    return LeafMasses(p, _running(p))


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
    """The answers of greatest expected value, and these values.

    Args:
        log_q: (B, N).
        hierarchy: a tree or a forest.
        measure: what an answer is worth.
        candidates: ``"leaves"`` or ``"nodes"``.

    Returns:
        Decisions and (B,) values; of equal ones the most probable, then the first in label order (leaves) or node order.
    """
    if measure.inside.shape[1] == measure.weight.numel() == 1:
        table = _answer_table(hierarchy, measure, candidates == "leaves")
        if answers.best_served(log_q, table):
            nodes, probabilities, values = answers.best(log_q, table, TIE)
            _refuse_silent(nodes < 0)
            nodes = layout(hierarchy).leaf_nodes[nodes] if candidates == "leaves" else nodes
            return Decisions(hierarchy, nodes, probabilities), values
    search = _Search(leaf_masses(log_q, hierarchy), hierarchy, measure, candidates)
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

    def __init__(self, masses: LeafMasses, h: Hierarchy, measure: Worth, candidates: str) -> None:
        p, self.running = masses
        self.p, self.h, self.measure, self.leaves_only = p, h, measure, candidates == "leaves"
        self.places, self.layout = places(h, p.device), layout(h, p.device)
        self.labels = torch.from_numpy(np.append(h.labels, -1)).to(p.device)
        self.split = measure.inside.shape[1] > 1  # whether the depth of a leaf matters
        if self.split:
            self.by_depth = _running(p.index_select(1, self.places.by_depth))
        self.offset = p.new_zeros(len(p)) if measure.sample is None else p @ measure.sample
        self.value = p.new_full((len(p),), -torch.inf)
        none = self.labels[:0]
        self.found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = [(none, none, p[:0, 0], p[:0, 0])]

    def masses(self, row: Tensor, node: Tensor) -> Tensor:
        """P(v); that of a leaf is its own probability, without the rounding of sums."""
        low = self.places.low[node]
        sums = (self.running[row, self.places.high[node]] - self.running[row, low]).clamp_(min=0.0)
        leaf = (self.labels[node] >= 0).nonzero().squeeze(1)
        sums[leaf] = self.p[row[leaf], low[leaf]]
        return sums

    def evaluate(self, row: Tensor, node: Tensor, mass: Tensor, sums: Tensor) -> _Frontier:
        """The nodes with their values and sums, from the sums of their parents."""
        measure, where = self.measure, self.places
        parts = mass[:, None]
        if self.split:
            each = row[:, None]
            parts = self.by_depth[each, where.last[node]] - self.by_depth[each, where.first[node]]
            parts = parts.clamp_(min=0.0)
        sums = sums + measure.gain[node][:, None] * parts
        weight = measure.weight[where.node_depths[node]] if len(measure.weight) > 1 else measure.weight
        value = (sums * weight).sum(dim=1) * measure.scale[node] + measure.constant[node]
        value += (measure.inside[node] * parts).sum(dim=1)
        return _Frontier(row, node, value, sums)

    def top(self) -> _Frontier:
        """The root, or the virtual root."""
        row = torch.arange(len(self.p), device=self.p.device)
        node = torch.full_like(row, 0 if self.h.rooted else self.h.num_nodes)
        mass, where = self.running[:, -1], self.places
        parts = mass[:, None]
        if self.split:
            parts = self.by_depth[:, where.last[-1]] - self.by_depth[:, where.first[-1]]
        found = self.evaluate(row, node, mass, self.measure.start * parts)
        if self.h.rooted:
            self.keep(found, mass)
        return found

    def follow_best_leaf(self) -> None:
        """Look at the path of the most probable leaf, for an answer to beat."""
        up = torch.from_numpy(np.append(self.h.parent_nodes, -1)).to(self.p.device)
        chain = [self.places.columns[self.p.argmax(dim=1)]]
        for _ in range(self.h.max_depth - 1):
            chain.append(up[chain[-1]])
        row, sums = torch.arange(len(self.p), device=self.p.device), self.top().sums
        for nodes in reversed(chain):
            some = (self.places.node_depths[nodes] > 0).nonzero().squeeze(1)  # -1 is the virtual root, too
            mass = self.masses(row[some], nodes[some])
            found = self.evaluate(row[some], nodes[some], mass, sums[some])
            self.keep(found, mass)
            sums[some] = found.sums

    def keep(self, found: _Frontier, mass: Tensor) -> None:
        """Note the answers that are the best so far, or as good."""
        if self.leaves_only:
            leaf = (self.labels[found.node] >= 0).nonzero().squeeze(1)
            found, mass = found.take(leaf), mass[leaf]
        self.value.scatter_reduce_(0, found.row, found.value, "amax")
        good = (found.value >= self.least(found.row)).nonzero().squeeze(1)
        self.found.append((found.row[good], found.node[good], found.value[good], mass[good]))

    def least(self, row: Tensor) -> Tensor:
        """What an answer must be worth to count."""
        best = self.value[row]
        slack = TIE * (best + self.offset[row]).abs().clamp(min=1.0)
        return torch.where(best > -torch.inf, best - slack, best)

    def descend(self, frontier: _Frontier | None = None) -> None:
        """Look at all nodes below a frontier, or below the top, that may be best."""
        start, count, child = self.layout.children
        frontier = self.top() if frontier is None else frontier
        while len(frontier.row):
            number = count[frontier.node]
            parent = torch.repeat_interleave(torch.arange(len(number), device=number.device), number)
            first = start[frontier.node] - (number.cumsum(0) - number)
            node = child[first[parent] + torch.arange(len(parent), device=number.device)]
            row = frontier.row[parent]
            mass = self.masses(row, node)
            bound = frontier.value[parent] + self.measure.reach[frontier.node][parent] * mass
            kept = (bound >= self.least(frontier.row)[parent]).nonzero().squeeze(1)
            if len(kept) * frontier.sums.shape[1] > _ENTRIES and len(number) > 1:
                for half in torch.arange(len(number), device=number.device).tensor_split(2):
                    self.descend(frontier.take(half))
                return
            mass = mass[kept]
            frontier = self.evaluate(row[kept], node[kept], mass, frontier.sums[parent[kept]])
            self.keep(frontier, mass)
            frontier = frontier.take((self.labels[frontier.node] < 0).nonzero().squeeze(1))

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """(B,) nodes, masses and values of the best answers."""
        row, node, value, mass = (torch.cat(parts) for parts in zip(*self.found, strict=True))
        good = (value >= self.least(row)).nonzero().squeeze(1)
        row, node, mass = row[good], node[good], mass[good]
        most = torch.full_like(self.value, -1.0).scatter_reduce(0, row, mass, "amax")
        good = (mass >= most[row]).nonzero().squeeze(1)
        row, node = row[good], node[good]
        order = self.labels[node] if self.leaves_only else node
        first = order.new_full((len(self.p),), len(self.labels)).scatter_reduce(0, row, order, "amin")
        nodes = self.layout.leaf_nodes[first] if self.leaves_only else first
        return nodes, most, self.value + self.offset
