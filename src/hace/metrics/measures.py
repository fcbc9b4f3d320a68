"""The equations: a metric is a ratio of two sums over samples.

    value = sum_i numerator_i / sum_i denominator_i

A measure turns a batch into the two columns. Plain functions, streaming classes, evaluations and intervals add columns up
and divide once, so no sample is dropped and the split into batches does not matter.

A metric is a row of :data:`METRICS`: a function here that makes its measure, registered with :func:`metric`. The row says how
its plain function and its streaming class are called, which :mod:`hace.metrics` makes from it, and where evaluations show it.
The row, and its card in `docs/metrics.md`, is all there is to write; `python tools/metrics_stub.py` tells type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, check_count
from hace.decisions import Decisions, GuaranteedThreshold
from hace.decisions.node_sets import true_answers
from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above, leaf_counts
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


class PRF(NamedTuple):
    """Precision, recall and F1."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


class GuaranteedShares(NamedTuple):
    """How specific answers are that keep a guarantee, and how the guarantee turns out."""

    specificity: Tensor  # mean information of the answers over log2 n; 0 at the root, 1 at a leaf
    false: Tensor  # share of all samples with a false answer: neither the truth nor above it
    answered: Tensor  # share of samples with an answer below the root
    true_answers: Tensor  # share of true ones among these; nan without any


@dataclass(frozen=True)
class Metric:
    """A row of the table of metrics.

    Attributes:
        make: makes the measure, from the hierarchy and arguments of its own; its docstring is that of the plain function.
        function: the name of the plain function; None for a measure that only evaluations show.
        streaming: the name of the streaming class, likewise.
        result: what the plain function returns: a tuple of named values; None: a tensor, of one value or one for each level.
        choice: what picks one of several values of the streaming class: "level", or "value" by the names of ``result``.
        higher_is_better: whether it is.
        heading: the heading of evaluations that it is under; None: evaluations do not have it.
        variants: the arguments that evaluations give it, by name, where they show several.
        levels: whether it needs a tree or forest.
        shares: whether it needs probabilities that sum to 1.
    """

    make: Callable[..., Measure]
    function: str | None = None
    streaming: str | None = None
    result: Any = None
    choice: str | None = None
    higher_is_better: bool = True
    heading: str | None = None
    variants: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    levels: bool = False
    shares: bool = False

    @property
    def keys(self) -> tuple[str, ...] | None:
        """Names of the values, where those of the measure are long."""
        return None if self.result is None else self.result._fields

    def evaluated(self, hierarchy: Hierarchy, distance: str, choices: int) -> Iterator[Measure]:
        """The measures that evaluations show, of so many leaves to choose from."""
        names = [name for name, _ in self.variants]
        for values in product(*(values for _, values in self.variants)):
            given = dict(zip(names, values, strict=True))
            if given.get("k", 1) > choices:
                continue
            if "distance" in given:
                given["distance"] = distance
            yield self.make(hierarchy, **given)


METRICS: list[Metric] = []
Make = TypeVar("Make", bound=Callable[..., Measure])


def metric(**row: Any) -> Callable[[Make], Make]:
    """Register a measure as a metric; arguments as of :class:`Metric`."""

    def register(make: Make) -> Make:
        METRICS.append(Metric(make, **row))
        return make

    return register


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


@metric(function="top_k_accuracy", streaming="TopKAccuracy", heading=LEAVES, variants=(("k", (1, 5)),))
def top_k_measure(hierarchy: Hierarchy, k: int = 1) -> Measure:
    """Share of samples whose truth is among the k most probable leaves. Equal scores rank in label order.

    Args:
        k: how many leaves count; for k = 1 ``preds`` may also be answers.
    """
    return Measure((f"top-{_rank(hierarchy, k)}",), partial(_top_k, k=k))


def _top_k(batch: MetricBatch, k: int) -> Ratios:
    if k == 1:
        return mean_of(batch.answers == batch.truth)
    return mean_of((batch.ranking(k) == batch.truth[:, None]).any(axis=1))


@metric(heading=LEAVES, variants=(("distance", ("lca_height",)),))
def severity_measure(hierarchy: Hierarchy, distance: str = "lca_height") -> Measure:
    """Mean distance of answer and truth over the mistakes alone; nan without mistakes."""
    check_distance(distance)
    return Measure(("severity",), partial(_severity, distance=distance))


def _severity(batch: MetricBatch, distance: str) -> Ratios:
    wrong = (batch.answers != batch.truth)[:, None].astype(np.float64)
    return batch.distance(distance)[:, None] * wrong, wrong


@metric(
    function="hierarchical_distance_at",
    streaming="HierarchicalDistance",
    higher_is_better=False,
    heading=LEAVES,
    variants=(("k", RANKS), ("distance", ("lca_height",))),
)
def distance_measure(hierarchy: Hierarchy, k: int = 1, distance: str = "lca_height") -> Measure:
    """HD@k: mean distance from the truth to each of the k best leaves, over all samples and all k.

    HD@1 is severity times error rate.

    Args:
        k: how many leaves count; for k = 1 ``preds`` may also be answers.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
    """
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


@metric(function="level_accuracy", streaming="LevelAccuracy", choice="level", heading=CARRIED_UP, levels=True)
def level_accuracy_measure(hierarchy: Hierarchy) -> Measure:
    """(H,) for each level 1 to the deepest, the share of samples whose answer and truth have the same node there.

    A leaf above a level represents itself there. The ranks of ``hierarchy.rank_names`` follow, each over the truths that have
    one. Trees and forests only.
    """
    return Measure((*level_titles(hierarchy), *hierarchy.rank_names), _level_accuracy)


def _level_accuracy(batch: MetricBatch) -> Ratios:
    truth = batch.carried(batch.truth, ranks=True)
    h = batch.hierarchy
    hit, counted = mean_of(batch.carried(batch.answers, ranks=True) == truth)
    for column, rank in enumerate(h.rank_names, h.max_depth):  # only truths that have this rank count
        counted[:, column] = np.array(h.ranks)[truth[:, column]] == rank
    return hit * counted, counted


@metric(heading="accuracy by level, best node of the level", levels=True)
def level_choice_measure(hierarchy: Hierarchy) -> Measure:
    """Share of samples whose most probable node of a level is the truth's, for every level."""
    return Measure(level_titles(hierarchy), _level_choice)


def _level_choice(batch: MetricBatch) -> Ratios:
    return mean_of(batch.correct_at_levels)


@metric(
    function="hierarchical_prf",
    streaming="HierarchicalPRF",
    result=PRF,
    choice="value",
    heading="ancestors and information",
    variants=(("average", AVERAGES),),
)
def hierarchical_prf_measure(hierarchy: Hierarchy, average: str = "micro") -> Measure:
    """Precision, recall and F1 of ancestor sets A (answer) and B (truth), including the nodes and excluding the root.

    P = |A and B| / |A|, R = |A and B| / |B|. An answer at the root, or none: precision 1, recall 0.

    Args:
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples, of F1 too.

    Example:
        >>> from hace import metrics
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> metrics.hierarchical_prf([1], [0], h).precision.item()
        0.5
    """
    return Measure(_prf_names("h", average), partial(_hierarchical_prf, average=average), empty=1.0)


def _hierarchical_prf(batch: MetricBatch, average: str) -> Ratios:
    counts = batch.relations.ancestor_counts
    shared = batch.relations.shared_ancestors(batch.answers, batch.truth)
    return prf_columns(shared, counts[batch.answers], counts[batch.truth], average)


@metric(
    function="information_prf",
    streaming="InformationPRF",
    result=PRF,
    choice="value",
    heading="ancestors and information",
    variants=(("average", AVERAGES),),
)
def information_prf_measure(hierarchy: Hierarchy, average: str = "macro") -> Measure:
    """Precision, recall and F1 in bits, with I(v) = -log2(share of the leaves under v).

    P = I(best common ancestor) / I(answer), R = the same over I(truth); 0 / 0 counts as 1.

    Args:
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples, of F1 too.
    """
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


@metric(function="full_path_accuracy", streaming="FullPathAccuracy", heading="levels together", levels=True)
def full_path_measure(hierarchy: Hierarchy) -> Measure:
    """Share of samples whose answers match the truth at every level.

    ``preds`` are scores, which answer with the most probable node of each level, or (B, H) answers, one per level.
    """
    level_numbers(hierarchy)
    return Measure(("full-path accuracy",), _full_path)


def _full_path(batch: MetricBatch) -> Ratios:
    return mean_of(np.all(batch.correct_at_levels, axis=1))


@metric(
    function="tree_inconsistency",
    streaming="TreeInconsistency",
    higher_is_better=False,
    heading="levels together",
    levels=True,
)
def inconsistency_measure(hierarchy: Hierarchy) -> Measure:
    """Share of samples whose answers at the levels are not on one path; ``preds`` as of :func:`full_path_accuracy`.

    The truths do not affect the value; every metric takes them.
    """
    level_numbers(hierarchy)
    return Measure(("tree inconsistency",), _inconsistency)


def _inconsistency(batch: MetricBatch) -> Ratios:
    answers = batch.answers_at_levels
    broken = np.zeros(len(answers), dtype=bool)
    for k in range(1, answers.shape[1]):
        broken |= batch.relations.levels[k][answers[:, k]] != answers[:, k - 1]
    return mean_of(broken)


@metric(
    function="brier_score",
    streaming="BrierScore",
    choice="level",
    higher_is_better=False,
    heading="Brier score by level",
    levels=True,
    shares=True,
)
def brier_measure(hierarchy: Hierarchy) -> Measure:
    """(H,) for each level 1 to the deepest, the mean over samples of the sum over its nodes v of (q*[v] - 1[v is true])^2.

    From 0, certain and right, to 2, certain and wrong. Samples whose truth is an inner node above the level do not count
    there. Trees and forests only.

    Example:
        >>> from hace import metrics
        >>> h = Hierarchy.flat(["cat", "dog"])
        >>> round(metrics.brier_score(np.array([[0.8, 0.2]]), [0], h, kind="probs").item(), 4)
        0.08
    """
    return Measure(level_titles(hierarchy), _brier)


def _brier(batch: MetricBatch) -> Ratios:
    known, right, squares = batch.level_masses
    return np.where(known, squares - 2 * np.exp(right) + 1, 0.0), known.astype(np.float64)


@metric(
    function="log_likelihood",
    streaming="LogLikelihood",
    choice="level",
    heading="log-likelihood by level",
    levels=True,
    shares=True,
)
def log_likelihood_measure(hierarchy: Hierarchy) -> Measure:
    """(H,) for each level 1 to the deepest, the mean of log q*[the truth's node]; at most 0, and better when higher.

    Samples whose truth is an inner node above the level do not count there. Trees and forests only.
    """
    return Measure(level_titles(hierarchy), _log_likelihood)


def _log_likelihood(batch: MetricBatch) -> Ratios:
    known, right, _ = batch.level_masses
    return np.where(known, right, 0.0), known.astype(np.float64)


@metric(function="guaranteed_answers", streaming="GuaranteedAnswers", result=GuaranteedShares, choice="value")
def guarantee_measure(hierarchy: Hierarchy, guarantee: GuaranteedThreshold) -> Measure:
    """Specificity at a guaranteed accuracy: the answers that a calibrated threshold gives on other samples.

    ``preds`` are scores, prepared as in the calibration: divided by the same temperature.

    Args:
        guarantee: what :func:`hace.guaranteed_threshold` returned for calibration samples.

    Example:
        >>> from hace import guaranteed_threshold, metrics
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> p = np.array([[0.5, 0.3, 0.2]] * 10 + [[0.1, 0.1, 0.8]] * 29)
        >>> sure = guaranteed_threshold(p, [1] * 10 + [2] * 29, h, accuracy=0.9, kind="probs")
        >>> measured = metrics.guaranteed_answers(p[9:11], [1, 2], h, sure, kind="probs")  # dog, cat
        >>> round(measured.specificity.item(), 3), measured.false.item()
        (0.685, 0.0)
    """
    names = ("specificity", "false", "answered", "true_answers")
    return Measure(names, partial(_guarantee, guarantee=guarantee))


def _guarantee(batch: MetricBatch, guarantee: GuaranteedThreshold) -> Ratios:
    answers = guarantee.predict(batch.log_q, batch.hierarchy, kind="node_log_probs").nodes.cpu().numpy()
    true, below, specific = _what_they_say(batch, answers)
    above = np.stack([specific, ~true, below, below & true], axis=1).astype(np.float64)
    every = np.ones(len(answers))
    return above, np.stack([every, every, every, below], axis=1).astype(np.float64)


def standard_measures(
    h: Hierarchy, distance: str, choices: int, independent: bool = False
) -> list[tuple[str, Measure]]:
    """The measures that evaluations show, of so many leaves to choose from, each with its heading.

    ``independent``: no probabilities sum to 1.
    """
    rows = [row for row in METRICS if row.heading is not None and (h.is_tree or not row.levels)]
    rows = [row for row in rows if not (independent and row.shares)]
    return [(str(row.heading), measure) for row in rows for measure in row.evaluated(h, distance, choices)]


def _what_they_say(batch: MetricBatch, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(B,) whether answers (B,) or sets of nodes (B, K) are true, whether they say anything, and their specificity."""
    h = batch.hierarchy
    below = np.append(h.depths, 0)[answers] > 0  # -1 is the virtual root
    if answers.ndim == 1:
        return is_above(h, answers, batch.truth), below, batch.relations.specificity[answers]
    true = true_answers(Decisions(h, torch.from_numpy(answers), torch.empty(answers.shape)), batch.truth)
    leaves = np.append(leaf_counts(h), 0)[answers].sum(axis=1)
    share = np.where(leaves > 0, leaves, h.num_leaves) / h.num_leaves
    most = np.log2(h.num_leaves)
    specific = np.asarray(-np.log2(share) / most if most else np.ones(len(share)))
    return true, np.asarray(below.any(axis=1)), specific


def set_measure(h: Hierarchy) -> Measure:
    """The measures of answers of several nodes, (B, K)."""

    def columns(batch: MetricBatch) -> Ratios:
        return mean_of(np.stack(_what_they_say(batch, batch.sets), axis=1).astype(np.float64))

    return Measure(("true (right or above)", "answered below the root", "specificity"), columns, empty=1.0)


def answer_measure(h: Hierarchy, distance: str) -> Measure:
    """The measures of any rule's answers, which may be inner nodes or none."""

    def columns(batch: MetricBatch) -> tuple[np.ndarray, np.ndarray]:
        answers = batch.answers
        truth = batch.truth
        below = np.append(h.depths, 0)[answers] > 0  # -1 is the virtual root
        right = is_above(h, answers, truth)
        specific = batch.relations.specificity[answers]
        each = [answers == truth, right, below, specific, batch.distance(distance)]
        means = mean_of(np.stack(each, axis=1))
        f1 = hierarchical_prf_measure(h, "micro").columns(batch)
        return np.concatenate([means[0], f1[0]], axis=1), np.concatenate([means[1], f1[1]], axis=1)

    means = ("exactly right", "true (right or above)", "answered below the root", "specificity", "distance")
    return Measure((*means, "hPrecision", "hRecall", "hF1"), columns, empty=1.0)
