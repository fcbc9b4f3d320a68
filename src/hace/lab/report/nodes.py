"""Accuracy of methods at every node of a hierarchy, and where sure answers stop, for the interactive drawing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hace.draw import drawable, lay_out
from hace.errors import HaceError
from hace.hierarchy import Hierarchy
from hace.lab.report.comparisons import BEST_NODE_BY_LEVEL, BY_LEVEL, level_names
from hace.lab.report.document import Entry, ReportTable
from hace.lab.report.results import MethodScores
from hace.lab.report.sure_answers import detail, ladder_of, sure_places
from hace.metrics.evaluation import wilson
from hace.metrics.intervals import Interval
from hace.metrics.measures import node_of_level

DESTINATIONS = 5
_MOST_BINS = 1 << 22  # counted in place; more are sorted
SHOWN_PROMISES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)


@dataclass(frozen=True, eq=False)
class NodeCounts:
    """Sums over a method's seeds and samples.

    Attributes:
        seeds: How many.
        right: (N,) samples whose truth and answer are both at or below a node.
        went: For each node where its mistakes went, the most frequent first: (node, count). For a class these are classes;
            for an inner node, nodes of the same depth (classes, where the tree ends above it).
    """

    seeds: int
    right: np.ndarray
    went: tuple[tuple[tuple[int, int], ...], ...]


def ancestors_at(parent: np.ndarray) -> np.ndarray:
    """(N, D) the node at each depth of the drawn tree on the way to a node, and the node itself below its own depth.

    Example:
        >>> ancestors_at(np.array([-1, 0, 1, 0])).tolist()
        [[0, 0, 0], [0, 1, 1], [0, 1, 2], [0, 3, 3]]
    """
    depth = np.zeros(len(parent), dtype=np.int64)
    for v, above in enumerate(parent.tolist()):
        depth[v] = depth[above] + 1 if above >= 0 else 0
    table = np.repeat(np.arange(len(parent))[:, None], depth.max() + 1, axis=1)
    for v, above in enumerate(parent.tolist()):
        if above >= 0:
            table[v, : depth[v]] = table[above, : depth[v]]
    return table


def samples_at(table: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(N,) the samples whose truth is at or below each node; `table` is that of :func:`ancestors_at`."""
    count = np.zeros(len(table), dtype=np.int64)
    for k in range(table.shape[1]):
        here = _at_depth(table, k)
        count[here] += np.bincount(table[truth, k], minlength=len(table))[here]
    return count


def node_counts(table: np.ndarray, truth: np.ndarray, answers: Sequence[np.ndarray]) -> NodeCounts:
    """Sums over the seeds of a method."""
    nodes = len(table)
    pairs, count = _tallied(
        [truth.astype(np.int64) * (nodes + 1) + a + 1 for a in answers], nodes * (nodes + 1)
    )
    label, answer = pairs // (nodes + 1), pairs % (nodes + 1) - 1
    right = np.zeros(nodes, dtype=np.int64)
    went: list[tuple[tuple[int, int], ...]] = [()] * nodes
    for k in range(table.shape[1]):
        here = _at_depth(table, k)
        start = table[label, k]
        end = np.where(answer < 0, -1, table[answer, k])
        own = here[start]  # a class above this depth has been counted at its own
        same = own & (start == end)
        right += np.bincount(start[same], weights=count[same], minlength=nodes).astype(np.int64)
        missed = own & (start != end) & (end >= 0)
        moves, which = np.unique(start[missed] * nodes + end[missed], return_inverse=True)
        total = np.bincount(which, weights=count[missed], minlength=len(moves)).astype(np.int64)
        origin = moves // nodes
        order = np.lexsort((moves, -total, origin))  # by node, the most frequent first
        first = np.searchsorted(origin[order], np.arange(nodes))
        kept = order[np.arange(len(order)) - first[origin[order]] < DESTINATIONS]
        for v, to, n in zip(
            origin[kept].tolist(), (moves[kept] % nodes).tolist(), total[kept].tolist(), strict=True
        ):
            went[v] += ((to, n),)
    return NodeCounts(len(answers), right, tuple(went))


def _tallied(parts: Sequence[np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """The different numbers below `size` in all parts, sorted, and how often each is there."""
    every = np.concatenate(parts)
    if size > _MOST_BINS:
        return np.unique(every, return_counts=True)
    total = np.bincount(every, minlength=size)
    there = np.flatnonzero(total)
    return there, total[there]


def _at_depth(table: np.ndarray, k: int) -> np.ndarray:
    """(N,) whether a node is at depth k: the first column that holds the node itself."""
    own = table[:, k] == np.arange(len(table))
    return own if k == 0 else own & (table[:, k - 1] != np.arange(len(table)))


def below(h: Hierarchy, truth: np.ndarray, answer: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(N,) sums of `count` over the pairs whose truth and answer are both at or below a node, by any way; for DAGs.

    An answer of -1 is none.
    """
    node, under = h.reachability()  # every node is under itself
    order = np.argsort(under, kind="stable")
    first = np.searchsorted(under[order], np.arange(h.num_nodes + 1))
    above = [node[order[a:b]] for a, b in itertools.pairwise(first.tolist())]
    total = np.zeros(h.num_nodes, dtype=np.int64)
    for t, a, c in zip(truth.tolist(), answer.tolist(), count.tolist(), strict=True):
        if a >= 0:
            total[np.intersect1d(above[t], above[a], assume_unique=True)] += c
    return total


def node_data(arrays: MethodScores, compared: Sequence[str] = ()) -> dict[str, Any] | None:
    """What the interactive drawing shows of a comparison: samples at each node, the sums of each method, and where the
    answers of the compared ones stop under promises.
    """
    h = arrays.hierarchy
    if h is None:
        return None
    table = ancestors_at(lay_out(h).parent)
    methods: dict[str, Any] = {}
    samples = None
    for method in arrays.choices:
        read = arrays.predictions(method)
        if not read:
            continue
        truth = next(iter(read.values()))["truth"].astype(np.int64)
        if samples is None:
            samples = samples_at(table, truth) if h.is_tree else below(h, *_counted(truth, [truth]))
        answers = [run["answer"] for run in read.values()]
        counts = node_counts(table, truth, answers)
        right = counts.right if h.is_tree else below(h, *_counted(truth, answers))
        # Where a node has several parents, its mistakes have no one level to go to; those of classes are clear.
        shown = [pairs if h.is_tree or h.labels[v] >= 0 else () for v, pairs in enumerate(counts.went)]
        went = [[number for pair in pairs for number in pair] for pairs in shown]
        top1 = float(np.mean([(run["answer"] == truth).mean() for run in read.values()]))
        methods[method] = {"seeds": counts.seeds, "top1": top1, "right": right.tolist(), "went": went}
    if samples is None:
        return None
    sure = {m: found for m in compared if (found := sure_data(arrays, m)) is not None}
    return {"samples": samples.tolist(), "methods": methods, "sure": sure, "promises": list(SHOWN_PROMISES)}


def _counted(truth: np.ndarray, answers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of truth and answer of all seeds, each once, and how often there are."""
    both = np.concatenate([np.stack([truth, a.astype(np.int64)]) for a in answers], axis=1)
    pairs, count = np.unique(both, axis=1, return_counts=True)
    return pairs[0], pairs[1], count


def sure_data(arrays: MethodScores, method: str) -> list[dict[str, Any]] | None:
    """For each promise where a method's answers stop: (node, count) pairs over all seeds, how many are wrong, and the detail.

    None where a run kept too little, or on a DAG.
    """
    h, choice = arrays.hierarchy, arrays.choices.get(method)
    if h is None or choice is None or not choice.finished:
        return None
    share, total = detail(h), 0
    stops = np.zeros((len(SHOWN_PROMISES), h.num_nodes + 1), dtype=np.int64)
    wrong = np.zeros(len(SHOWN_PROMISES), dtype=np.int64)
    for record in choice.finished:
        try:
            ladder = None if record.run is None else ladder_of(record.run.predictions(), h)
        except HaceError:  # the scores have said so
            return None
        if ladder is None:
            return None
        samples = len(ladder.nodes)
        nodes, true, every = ladder.nodes.T.ravel(), ladder.true.T.ravel(), np.arange(samples)
        total += samples
        for i, place in enumerate(sure_places(ladder, SHOWN_PROMISES)):
            at = place * samples + every
            last = h.num_nodes + 1  # where no answer is counted
            stops[i] += np.bincount(nodes[at] % last, minlength=last)
            wrong[i] += samples - np.count_nonzero(true[at])
    found = []
    for stopped, missed in zip(stops, wrong.tolist(), strict=True):
        there = np.flatnonzero(stopped[:-1])
        pairs = np.stack([there, stopped[there]], axis=1).ravel().tolist()
        counts = {"silent": int(stopped[-1]), "total": total, "wrong": missed}
        found.append({"stops": pairs, **counts, "detail": round(float(stopped @ share) / total, 4)})
    return found


@dataclass(frozen=True, eq=False)
class NodeAccuracies:
    """Accuracy of two methods at the nodes of a level that have test samples, by a rule.

    The paper's rule takes the node of the level with the highest accumulated mass, `BEST_NODE_BY_LEVEL`; the other one carries
    the best class up, `BY_LEVEL`.
    """

    level: str
    rule: str
    names: list[str]
    samples: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @cached_property
    def gaps(self) -> list[Interval]:
        """First minus second at each node."""
        both = zip(self.first.tolist(), self.second.tolist(), self.samples.tolist(), strict=True)
        return [newcombe(a, b, n) for a, b, n in both]

    def summary(self, first: str, second: str) -> str:
        """In how many nodes the first matches or beats the second, and the mean gain over nodes."""
        node = node_of_level(self.level)
        right = {
            BEST_NODE_BY_LEVEL: f"How often the most probable {node} is right.",
            BY_LEVEL: f"How often the best class is below the right {node}.",
        }[self.rule]
        gains = [gap.value for gap in self.gaps]
        held = f"{sum(gain >= 0 for gain in gains):,} of {len(gains):,}"
        mean = f"the mean gain over them is {100 * sum(gains) / len(gains):+.2f} points"
        return f"{right} {first} matches or beats {second} in {held}; {mean}."

    def table(self, slug: str, first: str, second: str) -> ReportTable:
        """All nodes, the largest gain first."""
        order = sorted(range(len(self.names)), key=lambda i: -self.gaps[i].value)
        rows = []
        for i in order:
            gap = self.gaps[i]
            ends = f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
            values = (self.samples[i], f"{100 * self.first[i]:.1f}", f"{100 * self.second[i]:.1f}")
            change = Entry(f"{100 * gap.value:+.1f}", ends, soft=not gap.excludes_zero)
            rows.append((Entry(self.names[i]), *(Entry(str(value)) for value in values), change))
        heads = ("node", "samples", f"{first}, %", f"{second}, %", "difference")
        remarks = (self.summary(first, second), "Newcombe's 95% intervals; in italics where they include 0.")
        return ReportTable(f"nodes-{slug}", self.level, (heads,), tuple(rows), remarks=remarks)


def node_accuracies(
    arrays: MethodScores, first: str, second: str, level: int, rule: str = BEST_NODE_BY_LEVEL
) -> NodeAccuracies | None:
    """Mean over seeds of the share of each node's samples that are right at a level, counted from 0, the top.

    None where predictions are missing.
    """
    h = arrays.hierarchy
    runs = [list(arrays.predictions(method).values()) for method in (first, second)]
    if h is None or not all(runs):
        return None
    carried = h.level_nodes(level + 1)
    node = carried[runs[0][0]["truth"]]
    samples = np.bincount(node, minlength=h.num_nodes)
    seen = np.flatnonzero(samples)
    share = []
    for kept in runs:
        best_node = rule == BEST_NODE_BY_LEVEL
        each = [
            run["level_correct"][:, level] if best_node else carried[run["answer"]] == node for run in kept
        ]
        right = np.stack(each).mean(axis=0)
        share.append(np.bincount(node, weights=right, minlength=h.num_nodes)[seen] / samples[seen])
    names = [drawable(h.names[v]) for v in seen]
    return NodeAccuracies(level_names(h)[level], rule, names, samples[seen], share[0], share[1])


def newcombe(first: float, second: float, samples: float) -> Interval:
    """The difference of two shares of so many samples, with its 95% interval (Newcombe 1998, method 10).

    It takes both methods to have samples of their own, and seeds not to add samples, so it is wider than a paired interval.

    Example:
        >>> found = newcombe(0.8, 0.6, 50)
        >>> round(found.value, 2), round(found.low, 3), round(found.high, 3)
        (0.2, 0.02, 0.364)
    """
    (low_a, high_a), (low_b, high_b) = (wilson(share * samples, samples) for share in (first, second))
    gap = first - second
    low = gap - math.hypot(first - low_a, high_b - second)
    return Interval(gap, low, gap + math.hypot(high_a - first, second - low_b))
