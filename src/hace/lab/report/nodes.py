"""Accuracy of methods at every node of a hierarchy, and where sure answers stop, for the interactive drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from hace.draw import drawable, lay_out
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import cached_on_hierarchy
from hace.hierarchy.distances import relations
from hace.lab.report.conformal import run_ladder, sure_places
from hace.lab.report.document import Entry, Table
from hace.lab.report.metric import BEST_NODE_BY_LEVEL, BY_LEVEL, level_names, signed
from hace.lab.report.scores import MethodScores
from hace.lab.report.sentences import say
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
    where its mistakes lead, the most frequent first: node, count, node, count ...

    For a class these are classes; for an inner node, nodes of the same depth (classes, where the tree ends above it).
    `table` is that of :func:`ancestors_at`.
    """
    nodes = len(table)
    label, answer, count = counted_pairs(nodes, truth, answers)
    right = np.zeros(nodes, dtype=np.int64)
    mistakes: list[list[int]] = [[] for _ in range(nodes)]
    for depth in range(table.shape[1]):
        start = table[label, depth]
        end = np.where(answer < 0, -1, table[answer, depth])
        own = _at_depth(table, depth)[start]  # a class above this depth has been counted at its own
        same = own & (start == end)
        right += np.bincount(start[same], weights=count[same], minlength=nodes).astype(np.int64)
        missed = own & (start != end) & (end >= 0)
        moves, total = counted(start[missed] * nodes + end[missed], nodes * nodes, count[missed])
        for origin, destination, samples in _most_frequent(moves // nodes, moves % nodes, total, nodes):
            mistakes[origin] += [destination, samples]
    return right, mistakes


def _at_depth(table: np.ndarray, depth: int) -> np.ndarray:
    """(N,) whether a node is at a depth: the first column of its row that holds the node itself."""
    nodes = np.arange(len(table))
    at_or_above = table[:, depth] == nodes
    return at_or_above if depth == 0 else at_or_above & (table[:, depth - 1] != nodes)


def _most_frequent(
    origins: np.ndarray, destinations: np.ndarray, counts: np.ndarray, nodes: int
) -> list[list[int]]:
    """Of each origin its most frequent destinations: origin, destination, count; equals stay in order."""
    order = np.lexsort((-counts, origins))
    sorted_origins = origins[order]
    first = np.searchsorted(sorted_origins, np.arange(nodes))
    shown = order[np.arange(len(order)) - first[sorted_origins] < DESTINATIONS]
    return np.stack([origins, destinations, counts], axis=1)[shown].tolist()


@cached_on_hierarchy
def _drawn(h: Hierarchy) -> np.ndarray:
    return ancestors_at(lay_out(h).parent)


def drawn_counts(
    h: Hierarchy, truth: np.ndarray, answers: Sequence[np.ndarray]
) -> tuple[list[int], list[list[int]]]:
    """:func:`node_counts` for the drawing of a hierarchy. On a DAG a sample counts at a node by any way down to it."""
    right, mistakes = node_counts(_drawn(h), truth, answers)
    if not h.is_tree:
        # Where a node has several parents, its mistakes have no one level to go to; those of classes are clear.
        right = shared_counts(h, truth, answers)
        mistakes = [pairs if h.labels[v] >= 0 else [] for v, pairs in enumerate(mistakes)]
    return right.tolist(), mistakes


def node_data(scores: MethodScores, compared: Sequence[str] = ()) -> dict[str, Any] | None:
    """What the drawing shows: samples at each node, sums of each method, where answers stop under guarantees."""
    h = scores.hierarchy
    if h is None:
        return None
    methods: dict[str, Any] = {}
    truth = np.zeros(0, dtype=np.int64)
    for method in scores.methods.index:
        read = list(scores.predictions(method).values())
        if not read:
            continue
        truth = read[0]["truth"].astype(np.int64)
        answers = [run["answer"] for run in read]
        right, mistakes = drawn_counts(h, truth, answers)
        top1 = float(np.mean([(answer == truth).mean() for answer in answers]))
        methods[method] = {"seeds": len(answers), "top1": top1, "right": right, "mistakes": mistakes}
    if not methods:
        return None
    samples, _ = drawn_counts(h, truth, [truth])
    sure = {method: stops for method in compared if (stops := sure_data(scores, method)) is not None}
    return {"samples": samples, "methods": methods, "sure": sure, "guarantees": list(SHOWN_GUARANTEES)}


def sure_data(scores: MethodScores, method: str) -> list[dict[str, Any]] | None:
    """For each guarantee where a method's answers stop: (node, count) pairs over all seeds, how many are wrong, how specific
    they are.

    None where a run kept too little, or on a DAG.
    """
    h = scores.hierarchy
    read = scores.predictions(method)
    if h is None or not read or len(read) < len(scores.finished(method)):
        return None
    total = 0
    nowhere = h.num_nodes  # the column behind the nodes counts samples without an answer
    stops = np.zeros((len(SHOWN_GUARANTEES), h.num_nodes + 1), dtype=np.int64)
    wrong = np.zeros(len(SHOWN_GUARANTEES), dtype=np.int64)
    for samples in read.values():
        ladder = run_ladder(samples, h)
        if ladder is None:
            return None
        total += len(ladder.nodes)
        every_sample = np.arange(len(ladder.nodes))
        for i, rungs in enumerate(sure_places(ladder, SHOWN_GUARANTEES)):
            answers = ladder.nodes[every_sample, rungs]
            answers = np.where(answers < 0, nowhere, answers)
            stops[i] += np.bincount(answers, minlength=nowhere + 1)
            wrong[i] += np.count_nonzero(~ladder.is_true[every_sample, rungs])
    return [
        _stops(counts, int(missed), total, relations(h).specificity)
        for counts, missed in zip(stops, wrong, strict=True)
    ]


def _stops(counts: np.ndarray, wrong: int, total: int, specificity: np.ndarray) -> dict[str, Any]:
    """Where the answers under one guarantee stop, for the page."""
    nodes = np.flatnonzero(counts[:-1])
    pairs = np.stack([nodes, counts[nodes]], axis=1).ravel().tolist()
    specific = round(float(counts @ specificity) / total, 4)
    return {
        "stops": pairs,
        "silent": int(counts[-1]),
        "total": total,
        "wrong": wrong,
        "specificity": specific,
    }


@dataclass(frozen=True, eq=False)
class NodeAccuracies:
    """Accuracy of two methods at the nodes of a level that have test samples."""

    level: str
    rule: str  # BEST_NODE_BY_LEVEL, the paper's: the most probable node of the level; BY_LEVEL: the best class carried up
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
        return say(
            "nodes",
            first=first,
            second=second,
            held=sum(gain >= 0 for gain in gains),
            of=len(gains),
            mean=signed(100 * sum(gains) / len(gains), 1),
            right=right.format(node_of_level(self.level)),
        )

    def table(self, slug: str, first: str, second: str) -> Table:
        """All nodes, the largest gain first."""
        order = sorted(range(len(self.names)), key=lambda i: -self.gaps[i].value)
        frame = pd.DataFrame(
            {
                "node": [self.names[i] for i in order],
                "samples": [str(self.samples[i]) for i in order],
                f"{first}, %": [f"{100 * self.first[i]:.1f}" for i in order],
                f"{second}, %": [f"{100 * self.second[i]:.1f}" for i in order],
                "difference": [_gap_entry(self.gaps[i]) for i in order],
            }
        )
        remarks = (self.summary(first, second), "Newcombe's 95% intervals; in italics where they include 0.")
        return Table(f"nodes-{slug}", self.level, frame, remarks=remarks)


def _gap_entry(gap: Interval) -> Entry:
    ends = f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    return Entry(f"{100 * gap.value:+.1f}", ends, soft=not gap.excludes_zero)


def node_accuracies(
    scores: MethodScores, first: str, second: str, level: int, rule: str = BEST_NODE_BY_LEVEL
) -> NodeAccuracies | None:
    """Mean over seeds of the share of each node's samples that are right at a level; None without predictions."""
    h = scores.hierarchy
    runs = [list(scores.predictions(method).values()) for method in (first, second)]
    if h is None or not all(runs):
        return None
    carried = h.level_nodes(level + 1)
    node = carried[runs[0][0]["truth"]]
    samples = np.bincount(node, minlength=h.num_nodes)
    seen = np.flatnonzero(samples)
    shares = []
    for of_method in runs:
        if rule == BEST_NODE_BY_LEVEL:
            each = [run["level_correct"][:, level] for run in of_method]
        else:
            each = [carried[run["answer"]] == node for run in of_method]
        right = np.stack(each).mean(axis=0)
        shares.append(np.bincount(node, weights=right, minlength=h.num_nodes)[seen] / samples[seen])
    names = [drawable(h.names[v]) for v in seen]
    return NodeAccuracies(level_names(h)[level], rule, names, samples[seen], *shares)
