"""Accuracy of methods at every node of a hierarchy, for the interactive drawing and the bars of a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.draw import drawable, lay_out
from hace.lab.report.scores import ArenaScores

DESTINATIONS = 5


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
    """Sums over the seeds of a method.

    Args:
        table: Of :func:`ancestors_at`.
        truth: (S,) nodes.
        answers: (S,) nodes, for each seed; -1: no answer.
    """
    nodes = len(table)
    both = np.concatenate([truth.astype(np.int64) * (nodes + 1) + a.astype(np.int64) + 1 for a in answers])
    pairs, count = np.unique(both, return_counts=True)
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
        for i in np.lexsort((moves, -total)):
            v = int(moves[i] // nodes)
            if len(went[v]) < DESTINATIONS:
                went[v] += ((int(moves[i] % nodes), int(total[i])),)
    return NodeCounts(len(answers), right, tuple(went))


def _at_depth(table: np.ndarray, k: int) -> np.ndarray:
    """(N,) whether a node is at depth k: the first column that holds the node itself."""
    own = table[:, k] == np.arange(len(table))
    return own if k == 0 else own & (table[:, k - 1] != np.arange(len(table)))


@dataclass(frozen=True, eq=False)
class LevelBars:
    """Accuracy of two methods at the nodes of a level."""

    level: str
    names: list[str]
    samples: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """First minus second."""
        return self.first - self.second


def level_bars(arrays: ArenaScores, first: str, second: str, level: int, name: str) -> LevelBars | None:
    """Mean over seeds of the share of each node's samples whose answer, the best class, is below the same node.

    Args:
        arrays: The scores of an arena.
        first: A method.
        second: The method it is compared with.
        level: From 0, the top.
        name: Of the level.

    Returns:
        Nodes in descending order of the second method's accuracy; None where predictions are missing.
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
        right = np.stack([carried[run["answer"]] == node for run in kept]).mean(axis=0)
        share.append((np.bincount(node, weights=right, minlength=h.num_nodes)[seen]) / samples[seen])
    order = np.lexsort((seen, -share[1]))
    names = [drawable(h.names[v]) for v in seen[order]]
    return LevelBars(name, names, samples[seen][order], share[0][order], share[1][order])


def arena_data(arrays: ArenaScores) -> dict[str, Any] | None:
    """What the interactive drawing shows of an arena: samples at each node, and the sums of each method."""
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
            samples = samples_at(table, truth)
        counts = node_counts(table, truth, [run["answer"] for run in read.values()])
        went = [[number for pair in pairs for number in pair] for pairs in counts.went]
        top1 = float(np.mean([(run["answer"] == truth).mean() for run in read.values()]))
        methods[method] = {"seeds": counts.seeds, "top1": top1, "right": counts.right.tolist(), "went": went}
    return None if samples is None else {"samples": samples.tolist(), "methods": methods}
