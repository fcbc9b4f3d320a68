"""A guarantee within each class, not only on average over them.

Every class c has a threshold t_c of its own, from the calibration samples of that class. Which one to use is unknown without
the truth, so all are used: c is excluded at a sample if the answer at t_c would be false for c, and the answer is the
deepest node on the walk down that is above every class not excluded. If the truth is c, the answer is false only if the one
at t_c is, which has probability at most 1 - accuracy among samples of class c (class-conditional conformal prediction, Vovk
2012, on a path of nodes).

A class with too few samples is pooled: what is left over under one parent becomes one pool if there are enough, else it goes
on up; what is left at the top joins the smallest pool. The guarantee is then within the pool; ``pools`` says which.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hace.decisions.bounds import RiskBound
from hace.decisions.decisions import Decisions
from hace.decisions.ladders import ladder_of
from hace.decisions.scores import Scores
from hace.errors import DataError, HierarchyError
from hace.hierarchy import Hierarchy


@dataclass(frozen=True)
class ClassThresholds:
    """Thresholds that keep a guarantee within each class, or pool of classes.

    Attributes:
        accuracy: within each pool at most 1 - accuracy of the samples get a false answer.
        confidence: the probability with which it holds in each pool; None: on average over calibrations.
        thresholds: (n,) one for each class, in label order.
        pools: the classes of each pool; a pool of one class is a class with enough samples.
        samples: how many samples each pool has.
        hierarchy: the fingerprint of the hierarchy.
    """

    accuracy: float
    confidence: float | None
    thresholds: tuple[float, ...]
    pools: tuple[tuple[str, ...], ...]
    samples: tuple[int, ...]
    hierarchy: str

    def predict(
        self, scores: Any, hierarchy: Hierarchy, *, kind: str = "logits", outputs: str = "auto"
    ) -> Decisions:
        """Answers that keep the guarantee."""
        if hierarchy.fingerprint != self.hierarchy:
            raise DataError(
                "hierarchy must be the one of the calibration. Calibrate again with this hierarchy."
            )
        given = Scores(scores, hierarchy, kind, outputs)
        ladder = ladder_of(given)
        rows, leaves = len(ladder), hierarchy.leaf_nodes
        true = np.stack(
            [ladder.true(np.full(rows, leaf)) | ~ladder.says for leaf in leaves], axis=2
        )  # (B, L, n)
        rungs = np.stack([ladder.rung(t) for t in self.thresholds], axis=1)  # (B, n)
        possible = np.take_along_axis(true, rungs[:, None, :], axis=1)[:, 0]
        above_all = np.asarray((true | ~possible[:, None, :]).all(axis=2))
        last = above_all.shape[1] - 1 - above_all[:, ::-1].argmax(axis=1)
        nodes = torch.from_numpy(ladder.nodes[np.arange(rows), last])
        masses = given.log_q().exp().gather(1, nodes.clamp(min=0)[:, None])[:, 0]
        return Decisions(hierarchy, nodes, masses.masked_fill(nodes < 0, 1.0))


def class_thresholds(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    accuracy: float = 0.95,
    confidence: float | None = None,
    *,
    rank: int | str | None = None,
    kind: str = "logits",
    outputs: str = "auto",
) -> ClassThresholds:
    """A guarantee within each class, or within each node of a rank.

    Args:
        scores: (S, n) or (S, N), of held-out samples.
        target: (S,) labels of leaves.
        hierarchy: A tree or forest.
        accuracy: Within each class at most 1 - accuracy of the samples get a false answer.
        confidence: None: on average over calibrations; else with this probability in each pool.
        rank: A level, or its name: the guarantee is within each of its nodes. None: within each class.
        kind: See :func:`hace.predict`.
        outputs: See :func:`hace.predict`.
    """
    if not hierarchy.is_tree:
        raise HierarchyError(
            "Guarantees within classes need a tree or forest: on a DAG a class has several ways up."
        )
    bound = RiskBound.of_accuracy(accuracy, confidence, "samples")
    given = Scores(scores, hierarchy, kind, outputs)
    truth = given.truths(target)
    outcomes = ladder_of(given).outcomes(truth)
    cells = _pools(hierarchy, hierarchy.labels[truth], bound.needed(), rank)
    thresholds, samples = np.empty(hierarchy.num_leaves), []
    for cell in cells:
        rows = np.flatnonzero(np.isin(hierarchy.labels[truth], cell))
        thresholds[cell] = bound.threshold(outcomes.take(rows))
        samples.append(len(rows))
    named = tuple(tuple(hierarchy.leaves[c] for c in cell) for cell in cells)
    return ClassThresholds(
        float(accuracy), confidence, tuple(thresholds.tolist()), named, tuple(samples), hierarchy.fingerprint
    )


def _pools(h: Hierarchy, label: np.ndarray, needed: int, rank: int | str | None) -> list[list[int]]:
    """The labels of each pool."""
    counts = np.bincount(label, minlength=h.num_leaves)
    waiting: dict[int, list[int]] = defaultdict(list)
    deepest = h.max_depth if rank is None else h.level_index(rank)
    for leaf, node in enumerate(h.leaf_nodes.tolist()):
        while h.depths[node] > deepest:
            node = int(h.parent_nodes[node])
        waiting[node].append(leaf)
    cells: list[list[int]] = []
    for node in range(h.num_nodes - 1, -1, -1):  # children before parents
        here = waiting.pop(node, [])
        if here and counts[here].sum() >= needed:
            cells.append(sorted(here))
        elif here:
            waiting[int(h.parent_nodes[node])].extend(here)
    left = waiting.pop(-1, [])
    if left and cells:
        smallest = min(cells, key=lambda cell: counts[cell].sum())
        smallest.extend(left)
    elif left:
        cells.append(left)
    return [sorted(cell) for cell in cells]
