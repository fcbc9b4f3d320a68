"""Metrics of one batch as plain functions.

All take predictions and truths in the same forms, see :class:`hace.metrics.metric_batch.ScoreForms`. A mean over no samples is
nan. The streaming classes of :mod:`hace.metrics.streaming` add up the same columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.metrics import measures
from hace.metrics.metric_batch import as_metric_batch


class Severity(NamedTuple):
    """Mean distance over mistakes, and the number of mistakes."""

    value: Tensor
    mistakes: Tensor


class PRF(NamedTuple):
    """Precision, recall and F1."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


def distances(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    distance: str = "lca_height",
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Tensor:
    """(B,) distance of each answer to its truth; the most probable leaf where ``preds`` are scores.

    Args:
        preds, target, hierarchy, labels, kind, outputs: see :func:`hace.metrics.metric_batch.as_metric_batch`.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> distances([0, 1, 2], [0, 0, 0], h)
        tensor([0, 1, 2])
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return torch.from_numpy(batch.distance(distance))


def top_k_accuracy(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    k: int = 1,
    *,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Tensor:
    """Share of samples whose truth is among the k most probable leaves. Equal scores count in label order."""
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return _tensor(measures.top_k_measure(hierarchy, k).value(batch))[0]


def mistake_severity(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    distance: str = "lca_height",
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Severity:
    """Mean distance over the mistakes alone, and their number; nan and 0 without mistakes.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> mistake_severity([0, 1, 2], [0, 0, 0], h)
        Severity(value=tensor(1.5000, dtype=torch.float64), mistakes=tensor(2))
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    numerator, wrong = measures.severity_measure(hierarchy, distance).columns(batch)
    mistakes = wrong.sum()
    value = numerator.sum() / mistakes if mistakes else np.nan
    return Severity(torch.tensor(value, dtype=torch.float64), torch.tensor(int(mistakes)))


def hierarchical_distance_at(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    k: int = 1,
    *,
    distance: str = "lca_height",
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Tensor:
    """HD@k: mean distance of the truth to each of the k best leaves, over all samples and all k.

    HD@1 is severity times error rate.
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return _tensor(measures.distance_measure(hierarchy, k, distance).value(batch))[0]


def level_accuracy(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Tensor:
    """(H,) for each level 1 to the deepest, the share of samples whose answer and truth are carried to the same node.

    A leaf of a ragged tree that ends above a level stands for itself there. Trees and forests only.
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return _tensor(measures.level_accuracy_measure(hierarchy).value(batch))


def hierarchical_prf(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    average: str = "micro",
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> PRF:
    """Precision, recall and F1 of ancestor sets A (answer) and B (truth), themselves included, the root excluded.

    P = |A and B| / |A|, R = |A and B| / |B|. ``"micro"`` divides sums over samples, ``"macro"`` is the mean over samples, of
    F1 too. An answer at the root, or none: precision 1, recall 0.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> hierarchical_prf([1], [0], h).precision.item()
        0.5
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return PRF(*_tensor(measures.hierarchical_prf_measure(hierarchy, average).value(batch)))


def information_prf(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    average: str = "macro",
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> PRF:
    """Precision, recall and F1 in bits, with I(v) = -log2(share of the leaves under v).

    P = I(best common ancestor) / I(answer), R = the same over I(truth); 0 / 0 counts 1.
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return PRF(*_tensor(measures.information_prf_measure(hierarchy, average).value(batch)))


def full_path_accuracy(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Tensor:
    """Share of samples whose answers at all levels are the truth's.

    ``preds`` are scores (the most probable node of each level is the answer), or (B, H) answers, one a level.
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return _tensor(measures.full_path_measure(hierarchy).value(batch))[0]


def tree_inconsistency(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> Tensor:
    """Share of samples whose answers at the levels do not lie on one path; ``preds`` as in :func:`full_path_accuracy`.

    The truth plays no part; ``target`` is there so that all metrics are called alike.
    """
    batch = as_metric_batch(preds, target, hierarchy, labels=labels, kind=kind, outputs=outputs)
    return _tensor(measures.inconsistency_measure(hierarchy).value(batch))[0]


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))
