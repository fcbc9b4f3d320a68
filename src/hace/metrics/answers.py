"""What follows from answers and truths alone: where mistakes go, and how good answers without scores are.

Such answers, at any node, are final taxa of a tool, or labels of a person or of a language model.

An answer that is the label or below it counts as right: a husky is a dog. So F1 and balanced accuracy are those of
classification after such answers are replaced by the label, as published for cell types (Fischer et al. 2024, scTab; Cultrera
di Montesano et al. 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from hace.checks import check_choice
from hace.decisions.scores import as_nodes, level_numbers
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above, level_choices
from hace.hierarchy.distances import relations
from hace.metrics.measures import answer_measure, level_accuracy_measure
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack

_MOST_PAIRS = 1 << 22  # counted in place; more are sorted
OVER = ("labels", "nodes")
RARE = 10  # samples of a class up to which it is rare
SLICED = ("samples", "right or below", "true (right or above)", "balanced accuracy", "macro-F1")


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
    both = np.stack([truth[wrong], answers[wrong]], axis=1)
    pairs, count = np.unique(both, axis=0, return_counts=True)
    lca = relations(hierarchy).lca(pairs[:, 1], pairs[:, 0])
    depth = np.append(hierarchy.depths, 0)[lca]  # the virtual root, -1, has depth 0
    by_level = np.bincount(depth, weights=count, minlength=hierarchy.max_depth + 1)
    ancestors, place = np.unique(lca, return_inverse=True)
    by_ancestor = np.bincount(place, weights=count, minlength=len(ancestors))
    return Confusion(
        hierarchy,
        len(truth),
        int(wrong.sum()),
        _most_frequent_first(pairs, count),
        by_level.astype(np.int64),
        _most_frequent_first(ancestors, by_ancestor.astype(np.int64)),
    )


def _most_frequent_first(values: IntArray, count: IntArray) -> IntArray:
    """Values and counts as one table, sorted by falling count."""
    return np.column_stack([values, count])[np.argsort(-count, kind="stable")]


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
    truth = carried[batch.truth]
    hit = carried[batch.answers] == carried[batch.truth]
    return np.bincount(truth, minlength=h.num_nodes), np.bincount(truth[hit], minlength=h.num_nodes)


def _ids(nodes: IntArray, values: Sequence[str]) -> list:
    """The ids or names of nodes; None for no answer."""
    return [None if v < 0 else values[v] for v in nodes.tolist()]


def label_scores(h: Hierarchy, answers: IntArray, truth: IntArray) -> dict[str, float]:
    """What a slice of the samples shows, of answers (nodes, -1 for none); classes are the labels that occur."""
    if not len(truth):
        return dict.fromkeys(SLICED, float("nan")) | {"samples": 0.0}
    counts = label_counts(h, answers, truth)
    below = counts[2].sum() / len(truth)
    above = is_above(h, answers, truth).mean()
    means = below, above, mean_recall(counts), mean_f1(counts[:2].sum(axis=0), counts[2], counts[0] > 0)
    return dict(zip(SLICED, (float(len(truth)), *map(float, means)), strict=True))


def label_counts(h: Hierarchy, answers: IntArray, truth: IntArray) -> IntArray:
    """(3, N) by label: how many samples have it, how many answers say it, how many of these are right.

    An answer below its sample's label says the label.
    """
    below = (answers >= 0) & is_above(h, truth, np.maximum(answers, 0))
    refined = np.where(below, truth, answers)
    lists = truth, refined[refined >= 0], truth[below]
    return np.stack([np.bincount(nodes, minlength=h.num_nodes) for nodes in lists])


def node_counts(h: Hierarchy, answers: IntArray, truth: IntArray) -> IntArray:
    """(2, N) by node: how many truths and answers are in its branch, together, and how many pairs of them are."""
    given = answers[answers >= 0]
    total = shared_counts(h, truth, [truth]) + shared_counts(h, given, [given])
    return np.stack([total, shared_counts(h, truth, [answers])])


def mean_recall(counts: np.ndarray) -> float:
    """Balanced accuracy from :func:`label_counts`: the mean over labels that occur of the share that is right."""
    seen = counts[0] > 0
    return float((counts[2][seen] / counts[0][seen]).mean()) if seen.any() else float("nan")


def mean_f1(total: np.ndarray, right: np.ndarray, used: np.ndarray) -> float:
    """The mean over the nodes ``used`` of 2 right / (samples + answers)."""
    return float((2 * right[used] / total[used]).mean()) if used.any() else float("nan")


def used_nodes(h: Hierarchy, total: np.ndarray) -> np.ndarray:
    """(N,) the nodes that truths or answers are in, the root apart."""
    return (total > 0) & ((h.depths > 0) | (h.num_nodes == 1))


def balanced_accuracy(preds: Any, target: Any, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> Tensor:
    """Mean over the labels that occur of the share of their samples that are right; an answer below its label is right.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> balanced_accuracy(["husky", "husky", "dog", "cat"], ["husky", "husky", "beagle", "cat"], h).item()
        0.6666666666666666
    """
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    value = mean_recall(label_counts(hierarchy, batch.answers, batch.truth))
    return torch.tensor(value, dtype=torch.float64)


def macro_f1(
    preds: Any, target: Any, hierarchy: Hierarchy, *, over: str = "labels", **forms: Unpack[ScoreForms]
) -> Tensor:
    """Mean over classes of F1 = 2 right / (samples + answers), so that rare classes count as much as common ones.

    Args:
        over: ``"labels"``: the labels that occur; an answer below its sample's label counts as the label. ``"nodes"``: all
            nodes but the root, each as "it is in this branch".

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> round(macro_f1(["husky", "husky", "cat"], ["husky", "beagle", "cat"], h).item(), 3)
        0.556
        >>> round(macro_f1(["husky", "husky", "cat"], ["husky", "beagle", "cat"], h, over="nodes").item(), 3)
        0.667
    """
    check_choice("over", over, OVER)
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    value = f1_of(hierarchy, over, f1_counts(hierarchy, over, batch))
    return torch.tensor(value, dtype=torch.float64)


def f1_counts(h: Hierarchy, over: str, batch: MetricBatch) -> IntArray:
    """What a batch adds to :func:`macro_f1`: counts by label or by node."""
    count = label_counts if over == "labels" else node_counts
    return count(h, batch.answers, batch.truth)


def f1_of(h: Hierarchy, over: str, counts: np.ndarray) -> float:
    """:func:`macro_f1` from counts that were added up."""
    if over == "labels":
        return mean_f1(counts[0] + counts[1], counts[2], counts[0] > 0)
    return mean_f1(counts[0], counts[1], used_nodes(h, counts[0]))


def class_scores(h: Hierarchy, answers: IntArray, truth: IntArray) -> dict[str, float]:
    """Balanced accuracy and macro-F1 of answers (nodes, -1 for none), over labels that occur and over nodes."""
    scores = label_scores(h, answers, truth)
    scores = {name: scores[name] for name in ("balanced accuracy", "macro-F1")}
    return {**scores, "macro-F1 over nodes": f1_of(h, "nodes", node_counts(h, answers, truth))}


def shared_counts(h: Hierarchy, truth: np.ndarray, answers: Sequence[np.ndarray]) -> np.ndarray:
    """(N,) how many pairs of truth and answer are both at or below a node, by any way; for DAGs. An answer of -1 is none."""
    node, under = h.reachability()  # every node is under itself
    above = sparse.csr_array((np.ones(len(node), np.int64), (under, node)), shape=(h.num_nodes,) * 2)
    first, second, count = counted_pairs(h.num_nodes, truth, answers)
    given = second >= 0
    return count[given] @ above[first[given]].multiply(above[second[given]])


def counted_pairs(nodes: int, truth: np.ndarray, answers: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The pairs of truth and answer of all seeds, each once and sorted, and how often there are; an answer of -1 is none."""
    start = truth.astype(np.int64) * (nodes + 1) + 1
    pairs, count = counted(np.concatenate([start + answer for answer in answers]), nodes * (nodes + 1))
    return pairs // (nodes + 1), pairs % (nodes + 1) - 1, count


def counted(values: np.ndarray, most: int, weights: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The values, from 0 to below `most`, each once and in order, and how often it occurs, or the sum of its weights."""
    distinct, which = np.unique(values, return_inverse=True) if most > _MOST_PAIRS else (None, values)
    total = np.bincount(which, weights)
    there = np.flatnonzero(total)
    return there if distinct is None else distinct[there], total[there].astype(np.int64)


def slices_of(
    truth: IntArray, groups: np.ndarray | None, measured: Callable[[np.ndarray], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """What is measured on the samples of rare and of other classes, and of each group."""
    rare = np.bincount(truth)[truth] <= RARE
    parts = {f"classes with up to {RARE} samples": rare, "other classes": ~rare}
    parts = parts if rare.any() and not rare.all() else {}
    if groups is not None:
        parts |= {name: groups == name for name in dict.fromkeys(groups.tolist())}
    return {name: measured(part) for name, part in parts.items()}


def slice_lines(slices: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The slices as a table for the terminal."""
    lines = [f"  {'slice':34}" + "".join(f"{name:>22}" for name in SLICED)] if slices else []
    for name, values in slices.items():
        cells = [f"{values[key]:>22{',.0f' if key == 'samples' else '.4f'}}" for key in SLICED]
        lines.append(f"  {name[:34]:34}" + "".join(cells))
    return lines


@dataclass(frozen=True)
class AnswerReport:
    """How good answers without scores are.

    Attributes:
        hierarchy: The classes.
        samples: The number of samples.
        values: Every metric by name.
        slices: The same for parts of the samples: rare and other classes, and each group.
    """

    hierarchy: Hierarchy
    samples: int
    values: Mapping[str, float]
    slices: Mapping[str, Mapping[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        slices = {name: dict(values) for name, values in self.slices.items()}
        return {"samples": self.samples, "metrics": dict(self.values), "slices": slices}

    def to_text(self) -> str:
        """A table for the terminal."""
        lines = [f"{self.samples:,} answers", ""]
        lines += [f"  {name:42} {value:8.4f}" for name, value in self.values.items()]
        return "\n".join([*lines, "", *slice_lines(self.slices)]).rstrip()


def evaluate_answers(
    answers: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    labels: str = "nodes",
    groups: Sequence[Any] | None = None,
    distance: str = "lca_height",
) -> AnswerReport:
    """All metrics of answers that come without scores, also for rare classes alone. Both sides may be labels of people.

    Args:
        answers: (S,) ids or names of nodes at any level, or indices; -1 or None is no answer.
        target: (S,) truths in the same forms.
        hierarchy: the hierarchy.
        labels: what integers are: ``"nodes"`` or ``"leaves"``.
        groups: (S,) a group for each sample, to show each as a slice.
        distance: distance of mistakes, as in :meth:`hace.Hierarchy.distances`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)])
        >>> report = evaluate_answers(["husky", "dog", "cat"], ["dog", "beagle", "cat"], h)
        >>> report.values["exactly right"], report.values["right or below"], report.values["true (right or above)"]
        (0.3333333333333333, 0.6666666666666666, 0.6666666666666666)
    """
    check_choice("labels", labels, ("nodes", "leaves"))
    truth = as_nodes(target, hierarchy, "target", of=labels).numpy()
    given = as_nodes(answers, hierarchy, "answers", of=labels, abstain=True).numpy()
    if given.shape != truth.shape or truth.ndim != 1:
        raise DataError(f"answers must have one entry per target. Got {given.shape} and {truth.shape}.")
    names = None if groups is None else np.array([str(group) for group in groups])
    if names is not None and names.shape != truth.shape:
        raise DataError(f"groups must have one entry per sample. Got {names.shape} for {truth.shape}.")
    slices = slices_of(truth, names, lambda part: _values(hierarchy, given[part], truth[part], distance))
    return AnswerReport(hierarchy, len(truth), _values(hierarchy, given, truth, distance), slices)


def _values(h: Hierarchy, answers: IntArray, truth: IntArray, distance: str) -> dict[str, float]:
    """Every metric of single answers, by name."""
    batch = MetricBatch(h, truth, answers=answers)
    measure = answer_measure(h, distance)
    measured = dict(zip(measure.names, measure.value(batch).tolist(), strict=True))
    sliced = label_scores(h, answers, truth)
    values = {"samples": sliced["samples"], "exactly right": measured.pop("exactly right")}
    values |= {"right or below": sliced["right or below"], **measured}
    values |= class_scores(h, answers, truth) | {"kappa": _kappa(answers, truth)}
    if h.is_tree:
        levels = level_accuracy_measure(h)
        each = zip(levels.names, levels.value(batch).tolist(), strict=True)
        values |= {f"accuracy at {name}": value for name, value in each}
    return values


def _kappa(answers: IntArray, truth: IntArray) -> float:
    """Cohen's kappa: agreement beyond what the two lists of labels would have by chance."""
    if not len(truth):
        return float("nan")
    size = int(max(answers.max(), truth.max())) + 2
    a = np.bincount(answers + 1, minlength=size) / len(truth)
    t = np.bincount(truth + 1, minlength=size) / len(truth)
    chance = float(a @ t)
    return float("nan") if chance == 1 else (float((answers == truth).mean()) - chance) / (1 - chance)
