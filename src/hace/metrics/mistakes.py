"""Where mistakes go: which classes are taken for which, at which level they meet, and accuracy by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import level_choices
from hace.hierarchy.distances import relations
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack


@dataclass(frozen=True, eq=False)
class Confusion:
    """A summary of mistakes, without an n x n matrix.

    Attributes:
        hierarchy: the hierarchy.
        samples: number of samples.
        mistakes: number of mistakes.
        pairs: (K, 3) truth, answer (node indices, -1 no answer) and how often, most frequent first.
        by_level: (H + 1,) mistakes by the depth of the lowest common ancestor (LCA) of truth and answer: at 0 they share
            only the root, at the deepest level they are siblings.
        meeting: (K, 2) LCA (node index, -1 virtual root) and how many mistakes meet there, most frequent first.
    """

    hierarchy: Hierarchy
    samples: int
    mistakes: int
    pairs: IntArray
    by_level: IntArray
    meeting: IntArray

    def pair_columns(self, most: int | None = None) -> dict[str, list]:
        """The pairs as a table: truth, answer, their names, count, share of mistakes, the LCA and its level.

        Args:
            most: how many pairs, the most frequent first. Default: all.
        """
        h = self.hierarchy
        truth, answer, count = self.pairs[:most].T
        lca = relations(h).lca(answer, truth)
        return {
            "truth": _ids(truth, h.nodes),
            "truth_name": _ids(truth, h.names),
            "answer": _ids(answer, h.nodes),
            "answer_name": _ids(answer, h.names),
            "count": count.tolist(),
            "share_of_mistakes": (count / max(self.mistakes, 1)).tolist(),
            "lca": _ids(lca, h.nodes),
            "lca_level": np.append(h.depths, 0)[lca].tolist(),
        }

    def to_frame(self) -> pd.DataFrame:
        """:meth:`pair_columns` as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.pair_columns())


def confusion(preds: Any, target: Any, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> Confusion:
    """Where mistakes go.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> c = confusion([1, 1, 2, 0], [0, 0, 0, 0], h)
        >>> c.by_level.tolist(), c.pair_columns()["answer"], c.pair_columns()["count"]
        ([1, 2, 0], ['beagle', 'cat'], [2, 1])
    """
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    return summarise_mistakes(hierarchy, batch.answers, batch.truth)


def summarise_mistakes(hierarchy: Hierarchy, answers: IntArray, truth: IntArray) -> Confusion:
    """:func:`confusion` of node indices."""
    wrong = answers != truth
    pairs, count = np.unique(np.stack([truth[wrong], answers[wrong]], axis=1), axis=0, return_counts=True)
    lca = relations(hierarchy).lca(pairs[:, 1], pairs[:, 0])
    depth = np.append(hierarchy.depths, 0)[lca]
    by_level = np.bincount(depth, weights=count, minlength=hierarchy.max_depth + 1).astype(np.int64)
    places, at = np.unique(lca, return_inverse=True)
    meeting = np.column_stack(
        [places, np.bincount(at, weights=count, minlength=len(places)).astype(np.int64)]
    )
    pairs = np.column_stack([pairs, count])
    pairs, meeting = (table[np.argsort(-table[:, -1], kind="stable")] for table in (pairs, meeting))
    return Confusion(hierarchy, len(truth), int(wrong.sum()), pairs, by_level, meeting)


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Accuracy of every node of a level.

    Attributes:
        hierarchy: the hierarchy.
        level: the level.
        nodes: (C,) the nodes of the level and the leaves above it, in node order.
        counts: (C,) samples whose truth is at or below the node.
        correct: (C,) how many of their answers are, too.
    """

    hierarchy: Hierarchy
    level: int
    nodes: IntArray
    counts: IntArray
    correct: IntArray

    @property
    def accuracy(self) -> np.ndarray:
        """(C,) share of right answers; nan without samples."""
        out = np.full(len(self.nodes), np.nan)
        return np.divide(self.correct, self.counts, out=out, where=self.counts > 0)

    def columns(self) -> dict[str, list]:
        """A table: id, name, level, samples, accuracy."""
        h = self.hierarchy
        return {
            "id": _ids(self.nodes, h.nodes),
            "name": _ids(self.nodes, h.names),
            "level": h.depths[self.nodes].tolist(),
            "samples": self.counts.tolist(),
            "accuracy": self.accuracy.tolist(),
        }

    def to_frame(self) -> pd.DataFrame:
        """:meth:`columns` as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.columns())


def class_accuracy(
    preds: Any, target: Any, hierarchy: Hierarchy, level: int | str, **forms: Unpack[ScoreForms]
) -> ClassTable:
    """Accuracy of every node of a level, over the samples whose truth is at or below it. Trees and forests only.

    Args:
        level: a depth or a level's name.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> class_accuracy([1, 1, 2], [0, 2, 2], h, level=1).columns()["accuracy"]
        [1.0, 0.5]
    """
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    return class_table(batch, hierarchy.level_index(level))


def class_table(batch: MetricBatch, level: int) -> ClassTable:
    """:func:`class_accuracy` of a batch."""
    h = batch.hierarchy
    counts, correct = class_counts(batch, level)
    nodes = level_choices(h, level)
    return ClassTable(h, level, nodes, counts[nodes], correct[nodes])


def class_counts(batch: MetricBatch, level: int) -> tuple[IntArray, IntArray]:
    """(N,) samples and right answers by the truth's node at a level."""
    h = batch.hierarchy
    level_numbers(h)
    carried = batch.relations.levels[level]
    truth, hit = carried[batch.truth], carried[batch.answers] == carried[batch.truth]
    return np.bincount(truth, minlength=h.num_nodes), np.bincount(truth[hit], minlength=h.num_nodes)


def _ids(nodes: IntArray, values: Sequence[str]) -> list:
    """The ids or names of nodes; None for no answer."""
    return [None if v < 0 else values[v] for v in nodes.tolist()]
