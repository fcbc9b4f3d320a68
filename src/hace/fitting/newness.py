"""What happens to classes that a model has never seen: a few are left out, in turn, and asked about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hace.errors import DataError, HaceError
from hace.fitting.inputs import in_memory
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above
from hace.linear.estimator import HACEClassifier
from hace.linear.unseen_classes import draw_classes, leave_out

LEAST = 12  # classes with a relative, from which on some are left out
_MOST = 20  # classes left out in each of two turns
_SHARE = 0.1

Train = Callable[[Hierarchy, np.ndarray, np.ndarray], "HACEClassifier | None"]


def left_out_turns(h: Hierarchy, nodes: IntArray, seed: int) -> list[list[str]]:
    """Two lists of classes with samples to leave out, disjoint; none where there are too few."""
    related = [leaf for leaf in h.leaves if h.parents(leaf) and len(h.descendants(h.parents(leaf)[0])) > 1]
    if h.num_nodes == h.num_leaves or len(related) < LEAST:
        return []
    count = max(1, min(_MOST, round(_SHARE * len(related))))
    seen = {h.nodes[v] for v in np.unique(nodes).tolist()}
    turns: list[list[str]] = []
    for turn in range(2):
        gone = {name for others in turns for name in others}
        try:
            drawn = draw_classes(h, count, seed + 10 * turn)
        except HaceError:
            return turns
        fresh = [name for name in drawn if name in seen and name not in gone]
        if fresh:
            turns.append(fresh)
    return turns


def ask_about_new(
    x: Any, nodes: IntArray, h: Hierarchy, turns: list[list[str]], train: Train, accuracy: float
) -> dict[str, Any] | None:
    """Shares of the answers about samples of classes that were left out: a wrong class or group, a true group, or nothing.

    Args:
        x: (M, d) features of samples that may be left out.
        nodes: (M,) node indices of their labels.
        h: the hierarchy.
        turns: the classes to leave out, turn by turn.
        train: a calibrated classifier over a smaller hierarchy, trained without samples of some labels: from the hierarchy, the
            ids of its nodes by the index in `h` (None: gone), and which nodes of `h` are left out.
        accuracy: the guarantee of the answers, about known classes.
    """
    counts = {"wrong": 0, "group": 0, "nothing": 0}
    classes = 0
    for gone in turns:
        try:
            listed = leave_out(h, gone)
        except HaceError:
            continue
        out = np.zeros(h.num_nodes, dtype=bool)
        out[[h.index(name) for name in gone]] = True
        here = np.flatnonzero(out[nodes])
        known = set(listed.hierarchy.nodes)
        ids = np.array([node if node in known else None for node in h.nodes], dtype=object)
        clf = train(listed.hierarchy, ids, out) if len(here) else None
        if clf is None:
            continue
        truth = listed.truths[h.labels[nodes[here]]]
        try:
            answer = clf.decide(in_memory(x[here]), accuracy=accuracy).nodes.numpy()
        except DataError:  # without those classes, too few samples or groups are left for this guarantee
            continue
        depth = np.append(listed.hierarchy.depths, 0)[answer]
        answers = (answer >= 0) & (depth > 0)
        true = answers & is_above(listed.hierarchy, answer, truth)
        counts["group"] += int(true.sum())
        counts["wrong"] += int((answers & ~true).sum())
        counts["nothing"] += int((~answers).sum())
        classes += len(gone)
    total = sum(counts.values())
    if not total:
        return None
    return {**{name: count / total for name, count in counts.items()}, "classes": classes, "samples": total}
