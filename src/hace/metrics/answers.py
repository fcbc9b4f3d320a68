"""Answers without scores, at any node: final taxa of a tool, labels of a person or of a language model.

An answer that is the label or below it counts as right: a husky is a dog. So F1 and balanced accuracy are those of
classification after such answers are replaced by the label, as published for cell types (Fischer et al. 2024, scTab; Cultrera
di Montesano et al. 2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

RARE = 10  # samples of a class up to which it is rare


def class_scores(h: Hierarchy, answers: IntArray, truth: IntArray) -> dict[str, float]:
    """Balanced accuracy and macro-F1 of answers (nodes, -1 for none), over labels that occur and over nodes."""
    if not len(truth):
        return dict.fromkeys(("balanced accuracy", "macro-F1", "macro-F1 over nodes"), float("nan"))
    refined = np.where((answers >= 0) & is_above(h, truth, np.maximum(answers, 0)), truth, answers)
    hit = refined == truth
    lists = truth, refined[refined >= 0], truth[hit]
    actual, said, right = (np.bincount(nodes, minlength=h.num_nodes) for nodes in lists)
    seen = actual > 0
    f1 = 2 * right[seen] / (actual + said)[seen]
    return {
        "balanced accuracy": float((right[seen] / actual[seen]).mean()),
        "macro-F1": float(f1.mean()),
        "macro-F1 over nodes": _node_f1(h, answers, truth),
    }


def _node_f1(h: Hierarchy, answers: IntArray, truth: IntArray) -> float:
    """Mean F1 of "it is in this branch" over the nodes that truths or answers are in, the root apart."""
    ancestor, descendant = h.reachability()
    pairs = (
        np.bincount(truth, minlength=h.num_nodes),
        np.bincount(answers[answers >= 0], minlength=h.num_nodes),
    )
    actual, said = (np.bincount(ancestor, n[descendant], h.num_nodes) for n in pairs)
    right = np.zeros(h.num_nodes)
    known = answers >= 0
    both, counts = np.unique(np.stack([answers[known], truth[known]], axis=1), axis=0, return_counts=True)
    above: dict[int, set[int]] = {}
    start = np.searchsorted(np.sort(descendant), np.arange(h.num_nodes + 1))
    by_node = ancestor[np.argsort(descendant, kind="stable")]
    for (a, t), count in zip(both.tolist(), counts.tolist(), strict=True):
        for v in (a, t):
            if v not in above:
                above[v] = set(by_node[start[v] : start[v + 1]].tolist())
        right[list(above[a] & above[t])] += count
    used = (actual + said > 0) & ((h.depths > 0) | (h.num_nodes == 1))
    return float((2 * right[used] / (actual + said)[used]).mean()) if used.any() else float("nan")


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
        shown = ("samples", "right or below", "true (right or above)", "balanced accuracy", "macro-F1")
        if self.slices:
            lines += ["", f"  {'slice':34}" + "".join(f"{name:>22}" for name in shown)]
        for name, values in self.slices.items():
            cells = [
                f"{values[key]:>22,.0f}" if key == "samples" else f"{values[key]:>22.4f}" for key in shown
            ]
            lines.append(f"  {name[:34]:34}" + "".join(cells))
        return "\n".join(lines)


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
        raise DataError(
            f"answers and target must have one entry per sample. Got {given.shape} and {truth.shape}."
        )
    counts = np.bincount(truth, minlength=hierarchy.num_nodes)
    rare = counts[truth] <= RARE
    parts: dict[str, np.ndarray] = {}
    if rare.any() and not rare.all():
        parts = {f"classes with up to {RARE} samples": rare, "other classes": ~rare}
    if groups is not None:
        named = np.array([str(group) for group in groups])
        if named.shape != truth.shape:
            raise DataError(f"groups must have one entry per sample. Got {named.shape} for {truth.shape}.")
        parts |= {group: named == group for group in dict.fromkeys(named.tolist())}
    slices = {name: _values(hierarchy, given[part], truth[part], distance) for name, part in parts.items()}
    return AnswerReport(hierarchy, len(truth), _values(hierarchy, given, truth, distance), slices)


def _values(h: Hierarchy, answers: IntArray, truth: IntArray, distance: str) -> dict[str, float]:
    from hace.metrics.evaluation import answer_measure

    batch = MetricBatch(h, truth, answers=answers)
    measure = answer_measure(h, distance)
    found = {
        "samples": float(len(truth)),
        **dict(zip(measure.names, measure.value(batch).tolist(), strict=True)),
    }
    below = (answers >= 0) & is_above(h, truth, np.maximum(answers, 0))
    values = {"samples": found.pop("samples"), "exactly right": found.pop("exactly right")}
    values |= {"right or below": float(below.mean()) if len(truth) else float("nan"), **found}
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
