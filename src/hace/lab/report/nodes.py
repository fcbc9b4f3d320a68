"""Accuracy of methods at every node of a hierarchy, and where sure answers stop, for the interactive drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hace.draw import drawable, lay_out
from hace.errors import HaceError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import cached_on_hierarchy
from hace.hierarchy.distances import relations
from hace.lab.report.conformal import run_ladder, sure_places
from hace.lab.report.document import Entry, ReportTable
from hace.lab.report.results import BEST_NODE_BY_LEVEL, BY_LEVEL, MethodScores, level_names
from hace.metrics.answers import counted, counted_pairs, shared_counts
from hace.metrics.intervals import Interval, share_difference
from hace.metrics.measures import node_of_level

DESTINATIONS = 5
SHOWN_GUARANTEES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)


def ancestors_at(parent: np.ndarray) -> np.ndarray:
    """(N, D) the node at each depth of the drawn tree on the way to a node, and the node itself below its own depth."""
    depth = np.zeros(len(parent), dtype=np.int64)
    for v, above in enumerate(parent.tolist()):
        depth[v] = depth[above] + 1 if above >= 0 else 0
    table = np.repeat(np.arange(len(parent))[:, None], depth.max() + 1, axis=1)
    for v, above in enumerate(parent.tolist()):
        if above >= 0:
            table[v, : depth[v]] = table[above, : depth[v]]
    return table


def node_counts(
    table: np.ndarray, truth: np.ndarray, answers: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[list[int]]]:
    """Sums over the seeds of a method: (N,) samples whose truth and answer are both at or below a node, and for each node
    where its mistakes went, the most frequent first: node, count, node, count ...

    For a class these are classes; for an inner node, nodes of the same depth (classes, where the tree ends above it).
    `table` is that of :func:`ancestors_at`.
    """
    nodes = len(table)
    label, answer, count = counted_pairs(nodes, truth, answers)
    right, all_nodes = np.zeros(nodes, dtype=np.int64), np.arange(len(table))
    went: list[list[int]] = [[] for _ in range(nodes)]
    for k in range(table.shape[1]):
        # Nodes at depth k: k is the first column that holds the node itself.
        here = (table[:, k] == all_nodes) & ((table[:, k - 1] != all_nodes) if k else True)
        start = table[label, k]
        end = np.where(answer < 0, -1, table[answer, k])
        own = here[start]  # a class above this depth has been counted at its own
        same = own & (start == end)
        right += np.bincount(start[same], weights=count[same], minlength=nodes).astype(np.int64)
        missed = own & (start != end) & (end >= 0)
        moves, total = counted(start[missed] * nodes + end[missed], nodes * nodes, count[missed])
        origin = moves // nodes
        order = np.lexsort((-total, origin))  # by node, the most frequent first; equals stay in order
        first = np.searchsorted(origin[order], np.arange(nodes))
        kept = order[np.arange(len(order)) - first[origin[order]] < DESTINATIONS]
        for v, to, n in np.stack([origin, moves % nodes, total], axis=1)[kept].tolist():
            went[v] += [to, n]
    return right, went


@cached_on_hierarchy
def _drawn(h: Hierarchy) -> np.ndarray:
    return ancestors_at(lay_out(h).parent)


def drawn_counts(
    h: Hierarchy, truth: np.ndarray, answers: Sequence[np.ndarray]
) -> tuple[list[int], list[list[int]]]:
    """:func:`node_counts` for the drawing of a hierarchy. On a DAG a sample counts at a node by any way down to it."""
    right, went = node_counts(_drawn(h), truth, answers)
    if not h.is_tree:
        # Where a node has several parents, its mistakes have no one level to go to; those of classes are clear.
        right = shared_counts(h, truth, answers)
        went = [pairs if h.labels[v] >= 0 else [] for v, pairs in enumerate(went)]
    return right.tolist(), went


def node_data(arrays: MethodScores, compared: Sequence[str] = ()) -> dict[str, Any] | None:
    """What the drawing shows: samples at each node, sums of each method, where answers of compared ones stop under guarantees."""
    h = arrays.hierarchy
    if h is None:
        return None
    methods: dict[str, Any] = {}
    samples = None
    for method in arrays.choices:
        read = arrays.predictions(method)
        if not read:
            continue
        truth = next(iter(read.values()))["truth"].astype(np.int64)
        if samples is None:
            samples, _ = drawn_counts(h, truth, [truth])
        answers = [run["answer"] for run in read.values()]
        right, went = drawn_counts(h, truth, answers)
        top1 = float(np.mean([(answer == truth).mean() for answer in answers]))
        methods[method] = {"seeds": len(answers), "top1": top1, "right": right, "went": went}
    if samples is None:
        return None
    sure = {m: found for m in compared if (found := sure_data(arrays, m)) is not None}
    return {"samples": samples, "methods": methods, "sure": sure, "guarantees": list(SHOWN_GUARANTEES)}


def sure_data(arrays: MethodScores, method: str) -> list[dict[str, Any]] | None:
    """For each guarantee where a method's answers stop: (node, count) pairs over all seeds, how many are wrong, and the detail.

    None where a run kept too little, or on a DAG.
    """
    h, choice = arrays.hierarchy, arrays.choices.get(method)
    if h is None or choice is None or not choice.finished:
        return None
    share, total = relations(h).specificity, 0
    stops = np.zeros((len(SHOWN_GUARANTEES), h.num_nodes + 1), dtype=np.int64)
    wrong = np.zeros(len(SHOWN_GUARANTEES), dtype=np.int64)
    for record in choice.finished:
        try:
            ladder = None if record.run is None else run_ladder(record.run.predictions(), h)
        except HaceError:  # the scores have said so
            return None
        if ladder is None:
            return None
        samples, last = len(ladder.nodes), h.num_nodes + 1  # the last is where no answer is counted
        nodes, true, every = ladder.nodes.T.ravel() % last, ladder.is_true.T.ravel(), np.arange(samples)
        total += samples
        for i, place in enumerate(sure_places(ladder, SHOWN_GUARANTEES)):
            at = place * samples + every
            stops[i] += np.bincount(nodes.take(at), minlength=last)
            wrong[i] += samples - np.count_nonzero(true.take(at))
    found = []
    for stopped, missed in zip(stops, wrong.tolist(), strict=True):
        there = np.flatnonzero(stopped[:-1])
        pairs = np.stack([there, stopped[there]], axis=1).ravel().tolist()
        counts = {"silent": int(stopped[-1]), "total": total, "wrong": missed}
        found.append({"stops": pairs, **counts, "detail": round(float(stopped @ share) / total, 4)})
    return found


@dataclass(frozen=True, eq=False)
class NodeAccuracies:
    """Accuracy of two methods at the nodes of a level that have test samples."""

    level: str
    rule: str  # the paper's, the node of the level with the most mass: BEST_NODE_BY_LEVEL; the best class carried up: BY_LEVEL
    names: list[str]
    samples: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @cached_property
    def gaps(self) -> list[Interval]:
        """First minus second at each node."""
        both = zip(self.first.tolist(), self.second.tolist(), self.samples.tolist(), strict=True)
        return [share_difference(a, b, n) for a, b, n in both]

    def summary(self, first: str, second: str) -> str:
        """In how many nodes the first matches or beats the second, and the mean gain over nodes."""
        right = "best class is below the right {}" if self.rule == BY_LEVEL else "most probable {} is right"
        gains = [gap.value for gap in self.gaps]
        held = f"{sum(gain >= 0 for gain in gains):,} of {len(gains):,}"
        mean = f"the mean gain over them is {100 * sum(gains) / len(gains):+.2f} points"
        said = f"How often the {right.format(node_of_level(self.level))}."
        return f"{said} {first} matches or beats {second} in {held}; {mean}."

    def table(self, slug: str, first: str, second: str) -> ReportTable:
        """All nodes, the largest gain first."""
        order = sorted(range(len(self.names)), key=lambda i: -self.gaps[i].value)
        rows = []
        for i, gap in ((i, self.gaps[i]) for i in order):
            ends = f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
            change = Entry(f"{100 * gap.value:+.1f}", ends, soft=not gap.excludes_zero)
            shares = (Entry(f"{100 * share[i]:.1f}") for share in (self.first, self.second))
            rows.append((Entry(self.names[i]), Entry(str(self.samples[i])), *shares, change))
        heads = ("node", "samples", f"{first}, %", f"{second}, %", "difference")
        remarks = (self.summary(first, second), "Newcombe's 95% intervals; in italics where they include 0.")
        return ReportTable(f"nodes-{slug}", self.level, (heads,), tuple(rows), remarks=remarks)


def node_accuracies(
    arrays: MethodScores, first: str, second: str, level: int, rule: str = BEST_NODE_BY_LEVEL
) -> NodeAccuracies | None:
    """Mean over seeds of the share of each node's samples that are right at a level; None without predictions."""
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
        if rule == BEST_NODE_BY_LEVEL:
            each = [run["level_correct"][:, level] for run in kept]
        else:
            each = [carried[run["answer"]] == node for run in kept]
        right = np.stack(each).mean(axis=0)
        share.append(np.bincount(node, weights=right, minlength=h.num_nodes)[seen] / samples[seen])
    names = [drawable(h.names[v]) for v in seen]
    return NodeAccuracies(level_names(h)[level], rule, names, samples[seen], share[0], share[1])
