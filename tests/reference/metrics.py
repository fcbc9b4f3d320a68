"""Metrics by loops over samples. Predictions and truths are node ids; `None` is the virtual root, no answer.

A mean over nothing is nan. Distances default to the height of the LCA.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log, nan

from tests.hierarchies import Plain

from . import structure
from .decisions import climb, information, top_k
from .targets import Row

Answers = Sequence["str | None"]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else nan


def top_k_accuracy(scores: Sequence[Row], truths: Sequence[str], k: int, order: Sequence[str]) -> float:
    """Share of samples whose truth is among the k leaves of greatest score."""
    return _mean([float(y in top_k(p, k, order)) for p, y in zip(scores, truths, strict=True)])


def mistake_severity(
    h: Plain, preds: Sequence[str], truths: Sequence[str], distance: str = "lca_height"
) -> tuple[float, int]:
    """Mean distance over the mistakes alone, and their number; (nan, 0) when there are none."""
    wrong = [(a, y) for a, y in zip(preds, truths, strict=True) if a != y]
    return _mean([structure.pair_distance(h, a, y, distance) for a, y in wrong]), len(wrong)


def hierarchical_distance_at(
    h: Plain,
    scores: Sequence[Row],
    truths: Sequence[str],
    k: int,
    order: Sequence[str],
    distance: str = "lca_height",
) -> float:
    """HD@k: mean distance of the truth to each of the k best leaves, over all samples and all k."""
    return _mean(
        [
            structure.pair_distance(h, c, y, distance)
            for p, y in zip(scores, truths, strict=True)
            for c in top_k(p, k, order)
        ]
    )


def level_accuracy(h: Plain, preds: Answers, truths: Sequence[str], level: int) -> float:
    """Share of samples whose prediction and truth are carried to the same node of the level."""
    return _mean([float(_same_at(h, a, y, level)) for a, y in zip(preds, truths, strict=True)])


def _same_at(h: Plain, a: str | None, y: str, level: int) -> bool:
    return structure.carried(h, a, level) == structure.carried(h, y, level)


def class_accuracy(
    h: Plain, preds: Answers, truths: Sequence[str], level: int
) -> dict[str, tuple[float, int]]:
    """For each node of the level: accuracy over the samples whose truth it is, and their number."""
    table = {}
    for v in structure.level_choices(h, level):
        mine = [
            float(_same_at(h, a, y, level))
            for a, y in zip(preds, truths, strict=True)
            if structure.carried(h, y, level) == v
        ]
        table[v] = (_mean(mine), len(mine))
    return table


def _below_root(h: Plain, v: str | None) -> set[str]:
    """Ancestors and self without the root."""
    if v is None:
        return set()
    return structure.ancestors(h, v) - (set(h.tops) if h.rooted else set())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0  # nothing claimed, nothing wrong


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _averaged(triples: Sequence[tuple[float, float, float]], average: str) -> tuple[float, float, float]:
    """(shared, claimed, true) of every sample to precision, recall and F1."""
    if not triples:
        return nan, nan, nan
    if average == "micro":
        shared, claimed, true = (sum(triple[i] for triple in triples) for i in range(3))
        precision, recall = _ratio(shared, claimed), _ratio(shared, true)
        return precision, recall, _f1(precision, recall)
    each = [(_ratio(shared, claimed), _ratio(shared, true)) for shared, claimed, true in triples]
    return (
        _mean([precision for precision, _ in each]),
        _mean([recall for _, recall in each]),
        _mean([_f1(precision, recall) for precision, recall in each]),
    )


def hierarchical_prf(
    h: Plain, preds: Answers, truths: Sequence[str], average: str = "micro"
) -> tuple[float, float, float]:
    """Precision, recall, F1 of the ancestor sets (self included, root excluded).

    micro divides the sums; macro is the mean over samples, of F1 too. Root answer: precision 1, recall 0.
    """
    triples = []
    for a, y in zip(preds, truths, strict=True):
        claimed, true = _below_root(h, a), _below_root(h, y)
        triples.append((float(len(claimed & true)), float(len(claimed)), float(len(true))))
    return _averaged(triples, average)


def information_prf(
    h: Plain, preds: Answers, truths: Sequence[str], average: str = "macro"
) -> tuple[float, float, float]:
    """Precision, recall, F1 in bits: I of the best common ancestor over I(prediction) and over I(truth)."""
    triples = []
    for a, y in zip(preds, truths, strict=True):
        common = structure.ancestors(h, a) & structure.ancestors(h, y) if a is not None else set()
        shared = max((information(h, v) for v in common), default=0.0)
        triples.append((shared, information(h, a), information(h, y)))
    return _averaged(triples, average)


def full_path_accuracy(h: Plain, per_level: Sequence[Sequence[str]], truths: Sequence[str]) -> float:
    """Share of samples whose answers at all levels 1..max are the truth's; per_level[i][k-1] is an answer."""
    return _mean(
        [
            float(all(a == structure.carried(h, y, k) for k, a in enumerate(answers, start=1)))
            for answers, y in zip(per_level, truths, strict=True)
        ]
    )


def tree_inconsistency(h: Plain, per_level: Sequence[Sequence[str]]) -> float:
    """Share of samples whose answers are not on one path: some answer is not above the next one."""
    return _mean(
        [
            float(
                any(
                    structure.carried(h, deeper, k) != answer
                    for k, (answer, deeper) in enumerate(pairwise(answers), start=1)
                )
            )
            for answers in per_level
        ]
    )


def mass_ece(confidences: Sequence[float], correct: Sequence[bool], bins: int = 15) -> float:
    """Expected calibration error over M bins of equally many samples; a sample's bin is that of the first equal one."""
    count = len(confidences)
    places = [bins * sum(other < c for other in confidences) // count for c in confidences]
    total = 0.0
    for i in set(places):
        inside = [j for j in range(count) if places[j] == i]
        total += abs(sum(correct[j] - confidences[j] for j in inside)) / count
    return total if count else nan


def brier_score(h: Plain, masses: Sequence[Row], truths: Sequence[str], level: int) -> float:
    """Mean over samples, whose truth has a node at the level, of the squared errors of all nodes to choose from."""
    choices = structure.level_choices(h, level)
    each = []
    for q, y in zip(masses, truths, strict=True):
        right = structure.carried(h, y, level)
        if right in choices:
            each.append(sum((q[v] - (v == right)) ** 2 for v in choices))
    return _mean(each)


def log_likelihood(h: Plain, masses: Sequence[Row], truths: Sequence[str], level: int) -> float:
    """Mean over samples, whose truth has a node at the level, of the log of that node's mass."""
    nodes = [(q, structure.carried(h, y, level)) for q, y in zip(masses, truths, strict=True)]
    choices = structure.level_choices(h, level)
    return _mean([log(q[v]) for q, v in nodes if v is not None and v in choices])


def hierarchical_risk_area(
    h: Plain, leaf_masses: Sequence[Row], masses: Sequence[Row], truths: Sequence[str], order: Sequence[str]
) -> float:
    """hAURC of Goren et al. (2024): climb at every mass there is, then trapezoids under risk over coverage."""
    most = max(information(h, v) for v in order)
    points = []
    for t in sorted({0.0, 2.0} | {mass for q in masses for mass in q.values()}):
        answers = [climb(h, p, q, t, order) for p, q in zip(leaf_masses, masses, strict=True)]
        true = [
            a is None or a == y or a in structure.ancestors(h, y)
            for a, y in zip(answers, truths, strict=True)
        ]
        coverage = _mean([information(h, a) / most if most else 1.0 for a in answers])
        points.append((coverage, 1 - _mean([float(x) for x in true])))
    return sum((a[0] - b[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))


def ece(confidences: Sequence[float], correct: Sequence[bool], bins: int = 15) -> float:
    """Expected calibration error: sum over bins of share * |accuracy - mean confidence|.

    Bins are [i/M, (i+1)/M); a confidence of exactly 1 has its own bin, as in torchmetrics.
    """
    total = 0.0
    for i in range(bins + 1):
        low, high = i / bins, (i + 1) / bins
        inside = [j for j, c in enumerate(confidences) if low <= c < high]
        if inside:
            accuracy = _mean([float(correct[j]) for j in inside])
            confidence = _mean([confidences[j] for j in inside])
            total += len(inside) / len(confidences) * abs(accuracy - confidence)
    return total if len(confidences) else nan
