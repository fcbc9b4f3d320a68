"""Answers without scores, at any node: final taxa of a tool, labels of a person or of a language model.

An answer that is the label or below it counts as right: a husky is a dog. So F1 and balanced accuracy are those of
classification after such answers are replaced by the label, as published for cell types (Fischer et al. 2024, scTab; Cultrera
di Montesano et al. 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hace.checks import check_choice
from hace.decisions.scores import as_nodes
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above
from hace.metrics.measures import level_accuracy_measure
from hace.metrics.metric_batch import MetricBatch

_MOST_PAIRS = 1 << 22  # counted in place; more are sorted
RARE = 10  # samples of a class up to which it is rare
SLICED = ("samples", "right or below", "true (right or above)", "balanced accuracy", "macro-F1")


def label_scores(h: Hierarchy, answers: IntArray, truth: IntArray) -> dict[str, float]:
    """What a slice of the samples shows, of answers (nodes, -1 for none); classes are the labels that occur."""
    if not len(truth):
        return dict.fromkeys(SLICED, float("nan")) | {"samples": 0.0}
    below = (answers >= 0) & is_above(h, truth, np.maximum(answers, 0))
    refined = np.where(below, truth, answers)
    lists = truth, refined[refined >= 0], truth[below]
    actual, said, right = (np.bincount(nodes, minlength=h.num_nodes) for nodes in lists)
    seen = actual > 0
    f1 = 2 * right[seen] / (actual + said)[seen]
    means = below.mean(), is_above(h, answers, truth).mean(), (right[seen] / actual[seen]).mean(), f1.mean()
    return dict(zip(SLICED, (float(len(truth)), *map(float, means)), strict=True))


def class_scores(h: Hierarchy, answers: IntArray, truth: IntArray) -> dict[str, float]:
    """Balanced accuracy and macro-F1 of answers (nodes, -1 for none), over labels that occur and over nodes."""
    found = label_scores(h, answers, truth)
    found = {name: found[name] for name in ("balanced accuracy", "macro-F1")}
    return {**found, "macro-F1 over nodes": _node_f1(h, answers, truth)}


def _node_f1(h: Hierarchy, answers: IntArray, truth: IntArray) -> float:
    """Mean F1 of "it is in this branch" over the nodes that truths or answers are in, the root apart."""
    given = answers[answers >= 0]
    total = shared_counts(h, truth, [truth]) + shared_counts(h, given, [given])
    used = (total > 0) & ((h.depths > 0) | (h.num_nodes == 1))
    right = shared_counts(h, truth, [answers])
    return float((2 * right[used] / total[used]).mean()) if used.any() else float("nan")


def shared_counts(h: Hierarchy, truth: np.ndarray, answers: Sequence[np.ndarray]) -> np.ndarray:
    """(N,) how many pairs of truth and answer are both at or below a node, by any way; for DAGs. An answer of -1 is none."""
    node, under = h.reachability()  # every node is under itself
    order = np.argsort(under, kind="stable")
    first = np.searchsorted(under[order], np.arange(h.num_nodes + 1))
    above = [node[order[a:b]] for a, b in pairwise(first.tolist())]
    total = np.zeros(h.num_nodes, dtype=np.int64)
    for t, a, c in np.stack(counted_pairs(h.num_nodes, truth, answers), axis=1).tolist():
        if a >= 0:
            total[np.intersect1d(above[t], above[a], assume_unique=True)] += c
    return total


def counted_pairs(nodes: int, truth: np.ndarray, answers: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The pairs of truth and answer of all seeds, each once and sorted, and how often there are; an answer of -1 is none."""
    every = np.concatenate([truth.astype(np.int64) * (nodes + 1) + answer + 1 for answer in answers])
    if nodes * (nodes + 1) > _MOST_PAIRS:
        pairs, count = np.unique(every, return_counts=True)
    else:
        total = np.bincount(every, minlength=nodes * (nodes + 1))
        pairs = np.flatnonzero(total)
        count = total[pairs]
    return pairs // (nodes + 1), pairs % (nodes + 1) - 1, count


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
        return {
            "samples": self.samples,
            "metrics": dict(self.values),
            "slices": {k: dict(v) for k, v in self.slices.items()},
        }

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
    """All metrics of answers that come without scores. Both sides may be labels of people.

    Args:
        answers: (S,) ids or names of nodes at any level, or indices; -1 or None is no answer.
        target: (S,) truths in the same forms.
        hierarchy: the hierarchy.
        labels: what integers are: ``"nodes"`` or ``"leaves"``.
        groups: (S,) a group for each sample, to show each as a slice.
        distance: distance of mistakes, as in :meth:`hace.Hierarchy.distances`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)])
        >>> found = evaluate_answers(["husky", "dog", "cat"], ["dog", "beagle", "cat"], h)
        >>> found.values["exactly right"], found.values["right or below"], found.values["true (right or above)"]
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
    from hace.metrics.evaluation import answer_measure

    batch = MetricBatch(h, truth, answers=answers)
    measure = answer_measure(h, distance)
    found = dict(zip(measure.names, measure.value(batch).tolist(), strict=True))
    sliced = label_scores(h, answers, truth)
    values = {"samples": sliced["samples"], "exactly right": found.pop("exactly right")}
    values |= {"right or below": sliced["right or below"], **found}
    values |= class_scores(h, answers, truth) | {"kappa": _kappa(answers, truth)}
    if h.is_tree:
        levels = level_accuracy_measure(h)
        values |= {
            f"accuracy at {name}": v
            for name, v in zip(levels.names, levels.value(batch).tolist(), strict=True)
        }
    return values


def _kappa(answers: IntArray, truth: IntArray) -> float:
    """Cohen's kappa: agreement beyond what the two lists of labels would have by chance."""
    if not len(truth):
        return float("nan")
    size = int(max(answers.max(), truth.max())) + 2
    a, t = (np.bincount(nodes + 1, minlength=size) / len(truth) for nodes in (answers, truth))
    chance = float(a @ t)
    return float("nan") if chance == 1 else (float((answers == truth).mean()) - chance) / (1 - chance)
