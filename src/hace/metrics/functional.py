"""Metrics of one batch as plain functions.

All take predictions, truths and a hierarchy in the same forms; :class:`hace.metrics.ScoreForms` says which. A mean over no
samples is nan. The streaming classes of :mod:`hace.metrics.streaming` add up the same columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.decisions import GuaranteedThreshold
from hace.hierarchy import Hierarchy
from hace.metrics import measures
from hace.metrics.measures import Measure
from hace.metrics.metric_batch import ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Severity(NamedTuple):
    """Mean distance over mistakes, and the number of mistakes."""

    value: Tensor
    mistakes: Tensor


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


def distances(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    distance: str = "lca_height",
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """(B,) distance from each answer to its truth; the answer is the most probable leaf if ``preds`` are scores.

    Args:
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> distances([0, 1, 2], [0, 0, 0], h)
        tensor([0, 1, 2])
    """
    return torch.from_numpy(as_metric_batch(preds, target, hierarchy, **forms).distance(distance))


def top_k_accuracy(
    preds: Any, target: Any, hierarchy: Hierarchy, k: int = 1, **forms: Unpack[ScoreForms]
) -> Tensor:
    """Share of samples whose truth is among the k most probable leaves. Equal scores rank in label order.

    Args:
        preds: scores; for k = 1 also answers.
        k: how many leaves count.
    """
    return _values(measures.top_k_measure(hierarchy, k), preds, target, hierarchy, forms)[0]


def mistake_severity(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    distance: str = "lca_height",
    **forms: Unpack[ScoreForms],
) -> Severity:
    """Mean distance over the mistakes alone, and their number; nan and 0 without mistakes.

    Args:
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> mistake_severity([0, 1, 2], [0, 0, 0], h)
        Severity(value=tensor(1.5000, dtype=torch.float64), mistakes=tensor(2))
    """
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    mistakes = torch.tensor(int((batch.answers != batch.truth).sum()))
    value = measures.severity_measure(hierarchy, distance).value(batch)
    return Severity(torch.from_numpy(value)[0], mistakes)


def hierarchical_distance_at(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    k: int = 1,
    *,
    distance: str = "lca_height",
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """HD@k: mean distance from the truth to each of the k best leaves, over all samples and all k.

    HD@1 is severity times error rate.

    Args:
        preds: scores; for k = 1 also answers.
        k: how many leaves count.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
    """
    return _values(measures.distance_measure(hierarchy, k, distance), preds, target, hierarchy, forms)[0]


def level_accuracy(preds: Any, target: Any, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> Tensor:
    """(H,) for each level 1 to the deepest, the share of samples whose answer and truth have the same node there.

    A leaf above a level represents itself there. The ranks of ``hierarchy.rank_names`` follow, each over the truths that have
    one. Trees and forests only.
    """
    return _values(measures.level_accuracy_measure(hierarchy), preds, target, hierarchy, forms)


def brier_score(preds: Any, target: Any, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> Tensor:
    """(H,) for each level 1 to the deepest, the mean over samples of the sum over its nodes v of (q*[v] - 1[v is true])^2.

    From 0, certain and right, to 2, certain and wrong. Samples whose truth is an inner node above the level do not count
    there. Trees and forests only.

    Example:
        >>> h = Hierarchy.flat(["cat", "dog"])
        >>> round(brier_score(np.array([[0.8, 0.2]]), [0], h, kind="probs").item(), 4)
        0.08
    """
    return _values(measures.brier_measure(hierarchy), preds, target, hierarchy, forms)


def log_likelihood(preds: Any, target: Any, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> Tensor:
    """(H,) for each level 1 to the deepest, the mean of log q*[the truth's node]; at most 0, and better when higher.

    Samples whose truth is an inner node above the level do not count there. Trees and forests only.
    """
    return _values(measures.log_likelihood_measure(hierarchy), preds, target, hierarchy, forms)


def guaranteed_answers(
    preds: Any, target: Any, hierarchy: Hierarchy, guarantee: GuaranteedThreshold, **forms: Unpack[ScoreForms]
) -> GuaranteedShares:
    """Specificity at a guaranteed accuracy: the answers that a calibrated threshold gives on other samples.

    Args:
        preds: scores, prepared as those of the calibration were: divided by the same temperature.
        hierarchy: the hierarchy of the calibration.
        guarantee: what :func:`hace.guaranteed_threshold` found on calibration samples.

    Example:
        >>> from hace import guaranteed_threshold
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> p = np.array([[0.5, 0.3, 0.2]] * 10 + [[0.1, 0.1, 0.8]] * 29)
        >>> sure = guaranteed_threshold(p, [1] * 10 + [2] * 29, h, accuracy=0.9, kind="probs")
        >>> found = guaranteed_answers(p[9:11], [1, 2], h, sure, kind="probs")  # dog, cat
        >>> round(found.specificity.item(), 3), found.false.item()
        (0.685, 0.0)
    """
    measure = measures.guarantee_measure(hierarchy, guarantee)
    return GuaranteedShares(*_values(measure, preds, target, hierarchy, forms))


def hierarchical_prf(
    preds: Any, target: Any, hierarchy: Hierarchy, *, average: str = "micro", **forms: Unpack[ScoreForms]
) -> PRF:
    """Precision, recall and F1 of ancestor sets A (answer) and B (truth), including the nodes and excluding the root.

    P = |A and B| / |A|, R = |A and B| / |B|. An answer at the root, or none: precision 1, recall 0.

    Args:
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples, of F1 too.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> hierarchical_prf([1], [0], h).precision.item()
        0.5
    """
    measure = measures.hierarchical_prf_measure(hierarchy, average)
    return PRF(*_values(measure, preds, target, hierarchy, forms))


def information_prf(
    preds: Any, target: Any, hierarchy: Hierarchy, *, average: str = "macro", **forms: Unpack[ScoreForms]
) -> PRF:
    """Precision, recall and F1 in bits, with I(v) = -log2(share of the leaves under v).

    P = I(best common ancestor) / I(answer), R = the same over I(truth); 0 / 0 counts as 1.

    Args:
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples, of F1 too.
    """
    measure = measures.information_prf_measure(hierarchy, average)
    return PRF(*_values(measure, preds, target, hierarchy, forms))


def full_path_accuracy(preds: Any, target: Any, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> Tensor:
    """Share of samples whose answers match the truth at every level.

    Args:
        preds: scores, which answer with the most probable node of each level; or (B, H) answers, one per level.
    """
    return _values(measures.full_path_measure(hierarchy), preds, target, hierarchy, forms)[0]


def tree_inconsistency(preds: Any, target: Any, hierarchy: Hierarchy, **forms: Unpack[ScoreForms]) -> Tensor:
    """Share of samples whose answers at the levels are not on one path.

    Args:
        preds: as in :func:`full_path_accuracy`.
        target: (B,) truths. They do not affect the value; every metric takes them.
    """
    return _values(measures.inconsistency_measure(hierarchy), preds, target, hierarchy, forms)[0]


def _values(measure: Measure, preds: Any, target: Any, hierarchy: Hierarchy, forms: Any) -> Tensor:
    batch = as_metric_batch(preds, target, hierarchy, **forms)
    return torch.from_numpy(np.asarray(measure.value(batch), dtype=np.float64))
