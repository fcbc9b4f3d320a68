"""The equations: a metric is a ratio of two sums over samples.

    value = sum_i numerator_i / sum_i denominator_i

A measure turns a batch into the two columns. Plain functions, streaming classes, evaluations and bootstraps add columns up
and divide once, so no sample is dropped and the split into batches does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from hace.checks import check_choice, check_count
from hace.decisions import GuaranteedThreshold
from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.hierarchy.distances import check_distance
from hace.metrics.metric_batch import MetricBatch

Ratios = tuple[np.ndarray, np.ndarray]  # numerators and denominators, (B, M) each
AVERAGES = ("micro", "macro")
RANKS = (1, 5, 20)
LEAVES = "leaves"  # the heading of the metrics that follow from the ranking of the classes alone
CARRIED_UP = "accuracy by level, answer carried up"


@dataclass(frozen=True)
class Measure:
    """One or more ratios of sums.

    Attributes:
        names: (M,) what each ratio is called.
        columns: from a batch to numerators and denominators, (B, M) each.
        empty: the value of 0 / 0. Without samples every value is nan.
    """

    names: tuple[str, ...]
    columns: Callable[[MetricBatch], Ratios]
    empty: float = np.nan

    def divide(self, numerator: np.ndarray, denominator: np.ndarray, samples: int) -> np.ndarray:
        """(..., M) values from sums."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value = np.where(denominator == 0, self.empty, numerator / denominator)
        return value if samples else np.full_like(value, np.nan)

    def value(self, batch: MetricBatch) -> np.ndarray:
        """(M,) values of one batch."""
        numerator, denominator = self.columns(batch)
        return self.divide(numerator.sum(axis=0), denominator.sum(axis=0), len(batch))


def mean_of(column: np.ndarray) -> Ratios:
    """Columns of a plain mean; (B,) becomes (B, 1)."""
    column = (column[:, None] if column.ndim == 1 else column).astype(np.float64)
    return column, np.ones_like(column)


def level_titles(hierarchy: Hierarchy) -> tuple[str, ...]:
    """Names of the levels 1 to the deepest."""
    return hierarchy.level_names or tuple(f"level {k}" for k in level_numbers(hierarchy))


def node_of_level(title: str) -> str:
    """What a node of a level is called in a sentence: "family", or "node at level 3"."""
    return f"node at {title}" if title.startswith("level ") else title


def top_k_measure(hierarchy: Hierarchy, k: int = 1) -> Measure:
    """Share of samples whose truth is among the k most probable leaves."""
    return Measure((f"top-{_rank(hierarchy, k)}",), partial(_top_k, k=k))


def _top_k(batch: MetricBatch, k: int) -> Ratios:
    if k == 1:
        return mean_of(batch.answers == batch.truth)
    return mean_of((batch.ranking(k) == batch.truth[:, None]).any(axis=1))


def severity_measure(hierarchy: Hierarchy, distance: str = "lca_height") -> Measure:
    """Mean distance of answer and truth over the mistakes alone; nan without mistakes."""
    check_distance(distance)
    return Measure(("severity",), partial(_severity, distance=distance))


def _severity(batch: MetricBatch, distance: str) -> Ratios:
    wrong = (batch.answers != batch.truth)[:, None].astype(np.float64)
    return batch.distance(distance)[:, None] * wrong, wrong


def distance_measure(hierarchy: Hierarchy, k: int = 1, distance: str = "lca_height") -> Measure:
    """HD@k: mean distance of the truth to each of the k best leaves, over all samples and all k."""
    check_distance(distance)
    return Measure((f"HD@{_rank(hierarchy, k)}",), partial(_distance_at, k=k, distance=distance))


def _distance_at(batch: MetricBatch, k: int, distance: str) -> Ratios:
    if k == 1:
        return mean_of(batch.distance(distance))
    far = batch.ranked_distances(k, distance)
    total = far.sum(axis=1, keepdims=True).astype(np.float64)
    return total, np.full_like(total, k)


def _rank(hierarchy: Hierarchy, k: int) -> int:
    check_count("k", k, hierarchy.num_leaves)
    return k


def level_accuracy_measure(hierarchy: Hierarchy) -> Measure:
    """Share of samples whose answer and truth are carried to the same node, for every level and rank."""
    return Measure((*level_titles(hierarchy), *hierarchy.rank_names), _level_accuracy)


def _level_accuracy(batch: MetricBatch) -> Ratios:
    truth, h = batch.carried(batch.truth, ranks=True), batch.hierarchy
    hit, counted = mean_of(batch.carried(batch.answers, ranks=True) == truth)
    for column, rank in enumerate(h.rank_names, h.max_depth):  # only truths that have this rank count
        counted[:, column] = np.array(h.ranks)[truth[:, column]] == rank
    return hit * counted, counted


def level_choice_measure(hierarchy: Hierarchy) -> Measure:
    """Share of samples whose most probable node of a level is the truth's, for every level."""
    return Measure(level_titles(hierarchy), _level_choice)


def _level_choice(batch: MetricBatch) -> Ratios:
    return mean_of(batch.correct_at_levels)


def brier_measure(hierarchy: Hierarchy) -> Measure:
    """Sum over the nodes of a level of (q* - 1[the truth's node])^2, mean over samples, for every level."""
    return Measure(level_titles(hierarchy), _brier)


def _brier(batch: MetricBatch) -> Ratios:
    known, right, squares = batch.level_masses
    return np.where(known, squares - 2 * np.exp(right) + 1, 0.0), known.astype(np.float64)


def log_likelihood_measure(hierarchy: Hierarchy) -> Measure:
    """Mean log q* of the truth's node, for every level."""
    return Measure(level_titles(hierarchy), _log_likelihood)


def _log_likelihood(batch: MetricBatch) -> Ratios:
    known, right, _ = batch.level_masses
    return np.where(known, right, 0.0), known.astype(np.float64)


def full_path_measure(hierarchy: Hierarchy) -> Measure:
    """Share of samples whose answers at all levels are the truth's."""
    level_numbers(hierarchy)
    return Measure(("full-path accuracy",), _full_path)


def _full_path(batch: MetricBatch) -> Ratios:
    return mean_of(np.all(batch.correct_at_levels, axis=1))


def inconsistency_measure(hierarchy: Hierarchy) -> Measure:
    """Share of samples whose answers at the levels are not on one path."""
    level_numbers(hierarchy)
    return Measure(("tree inconsistency",), _inconsistency)


def _inconsistency(batch: MetricBatch) -> Ratios:
    answers = batch.answers_at_levels
    broken = np.zeros(len(answers), dtype=bool)
    for k in range(1, answers.shape[1]):
        broken |= batch.relations.levels[k][answers[:, k]] != answers[:, k - 1]
    return mean_of(broken)


def guarantee_measure(hierarchy: Hierarchy, guarantee: GuaranteedThreshold) -> Measure:
    """How specific answers are that keep a guarantee, and how the guarantee turns out."""
    names = ("specificity", "false", "answered", "true_answers")
    return Measure(names, partial(_guarantee, guarantee=guarantee))


def _guarantee(batch: MetricBatch, guarantee: GuaranteedThreshold) -> Ratios:
    h = batch.hierarchy
    answers = guarantee.predict(batch.log_q, h, kind="node_log_probs").nodes.cpu().numpy()
    below = np.append(h.depths, 0)[answers] > 0  # -1 is the virtual root
    true = is_above(h, answers, batch.truth)
    specific = batch.relations.specificity[answers]
    above = np.stack([specific, ~true, below, below & true], axis=1).astype(np.float64)
    every = np.ones(len(answers))
    return above, np.stack([every, every, every, below], axis=1).astype(np.float64)


def hierarchical_prf_measure(hierarchy: Hierarchy, average: str = "micro") -> Measure:
    """Precision, recall and F1 of ancestor sets, the node itself included and the root excluded."""
    return Measure(_prf_names("h", average), partial(_hierarchical_prf, average=average), empty=1.0)


def _hierarchical_prf(batch: MetricBatch, average: str) -> Ratios:
    counts = batch.relations.ancestor_counts
    shared = batch.relations.shared_ancestors(batch.answers, batch.truth)
    return prf_columns(shared, counts[batch.answers], counts[batch.truth], average)


def information_prf_measure(hierarchy: Hierarchy, average: str = "macro") -> Measure:
    """Precision, recall and F1 in bits: information of the best common ancestor over that of answer and truth."""
    return Measure(_prf_names("i", average), partial(_information_prf, average=average), empty=1.0)


def _information_prf(batch: MetricBatch, average: str) -> Ratios:
    bits = batch.relations.information
    shared = batch.relations.shared_information(batch.answers, batch.truth)
    return prf_columns(shared, bits[batch.answers], bits[batch.truth], average)


def prf_columns(shared: np.ndarray, claimed: np.ndarray, true: np.ndarray, average: str) -> Ratios:
    """Columns of precision, recall and F1 from each sample's shared, claimed and true amount.

    micro: shared / claimed, shared / true and F1 = 2PR / (P + R) = 2 shared / (claimed + true), each a ratio of sums.
    macro: the mean of the samples' ratios; a sample that claims nothing has precision 1, F1 of two zeros is 0.
    """
    parts = np.stack([shared, shared, 2 * shared], axis=1).astype(np.float64)
    wholes = np.stack([claimed, true, claimed + true], axis=1).astype(np.float64)
    if average == "micro":
        return parts, wholes
    each = np.ones_like(parts)
    np.divide(parts, wholes, out=each, where=wholes > 0)
    return mean_of(each)


def _prf_names(letter: str, average: str) -> tuple[str, ...]:
    check_choice("average", average, AVERAGES)
    return tuple(f"{letter}{what} ({average})" for what in ("Precision", "Recall", "F1"))


def standard_measures(h: Hierarchy, distance: str, choices: int) -> list[tuple[str, Measure]]:
    """The measures of the best leaf, of so many, and of the levels, each with its heading."""
    ranks = [k for k in RANKS if k <= choices]
    found = [(LEAVES, top_k_measure(h, k)) for k in ranks if k != 20]
    found.append((LEAVES, severity_measure(h, distance)))
    found += [(LEAVES, distance_measure(h, k, distance)) for k in ranks]
    if h.is_tree:
        found.append((CARRIED_UP, level_accuracy_measure(h)))
        found.append(("accuracy by level, best node of the level", level_choice_measure(h)))
    for make in (hierarchical_prf_measure, information_prf_measure):
        found += [("ancestors and information", make(h, average)) for average in AVERAGES]
    if h.is_tree:
        found += [
            ("levels together", full_path_measure(h)),
            ("levels together", inconsistency_measure(h)),
            ("Brier score by level", brier_measure(h)),
            ("log-likelihood by level", log_likelihood_measure(h)),
        ]
    return found


def answer_measure(h: Hierarchy, distance: str) -> Measure:
    """The measures of any rule's answers, which may be inner nodes or none."""

    def columns(batch: MetricBatch) -> tuple[np.ndarray, np.ndarray]:
        answers, truth = batch.answers, batch.truth
        below = np.append(h.depths, 0)[answers] > 0  # -1 is the virtual root
        right, specific = is_above(h, answers, truth), batch.relations.specificity[answers]
        each = [answers == truth, right, below, specific, batch.distance(distance)]
        means = mean_of(np.stack(each, axis=1))
        f1 = hierarchical_prf_measure(h, "micro").columns(batch)
        return np.concatenate([means[0], f1[0]], axis=1), np.concatenate([means[1], f1[1]], axis=1)

    means = ("exactly right", "true (right or above)", "answered below the root", "specificity", "distance")
    return Measure((*means, "hPrecision", "hRecall", "hF1"), columns, empty=1.0)
