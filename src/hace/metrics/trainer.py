"""Metrics for the Trainer of transformers: ``Trainer(..., compute_loss_func=loss, compute_metrics=trainer_metrics(loss))``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hace.losses.base import HierarchicalLoss
from hace.metrics.functional import (
    hierarchical_distance_at,
    hierarchical_prf,
    level_accuracy,
    mistake_severity,
    top_k_accuracy,
)
from hace.metrics.measures import level_titles


def trainer_metrics(
    loss: HierarchicalLoss, *, distance: str = "lca_height"
) -> Callable[[Any], dict[str, float]]:
    """A ``compute_metrics`` for the Trainer of transformers.

    Args:
        loss: the loss of the training: it knows what the head's columns and the labels are.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.

    Returns:
        A function of an ``EvalPrediction`` that gives accuracy, mistake_severity, hierarchical_distance, hierarchical_f1 and,
        on trees, the accuracy of every level, such as accuracy_family or accuracy_level_1. Samples with the label
        ``loss.ignore_index`` do not count.

    Example:
        >>> from types import SimpleNamespace
        >>> from hace import HACELoss, Hierarchy
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> logits = torch.tensor([[0.0, 3.0, 1.0, 0.0], [0.0, 2.0, 1.0, 0.0]])  # dog, husky, beagle, cat
        >>> found = trainer_metrics(HACELoss(h))(SimpleNamespace(predictions=logits.numpy(), label_ids=[0, 1]))
        >>> found["accuracy"], found["accuracy_level_1"], found["mistake_severity"]
        (0.5, 1.0, 1.0)
    """
    h = loss.hierarchy

    def compute_metrics(prediction: Any) -> dict[str, float]:
        scores, truth = prediction.predictions, torch.as_tensor(prediction.label_ids)
        kept = truth != loss.ignore_index
        logits = scores[0] if isinstance(scores, tuple) else scores  # hidden states may follow
        scores = torch.as_tensor(logits)
        answers, truth = loss.leaf_logits(scores[kept]).argmax(dim=1), truth[kept]
        if loss.labels == "nodes":
            answers = torch.as_tensor(h.leaf_nodes)[answers]
        pairs = (answers, truth, h)
        found = {
            "accuracy": top_k_accuracy(*pairs, labels=loss.labels),
            "mistake_severity": mistake_severity(*pairs, distance=distance, labels=loss.labels).value,
            "hierarchical_distance": hierarchical_distance_at(*pairs, distance=distance, labels=loss.labels),
            "hierarchical_f1": hierarchical_prf(*pairs, labels=loss.labels).f1,
        }
        if h.is_tree:
            names = [f"accuracy_{title.replace(' ', '_')}" for title in level_titles(h)]
            found |= dict(zip(names, level_accuracy(*pairs, labels=loss.labels), strict=True))
        return {name: float(value) for name, value in found.items()}

    return compute_metrics
