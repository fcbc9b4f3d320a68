"""Metrics in the form that other libraries call: scikit-learn's scorers of ids, and the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hace.decisions.scores import as_nodes, holds_ids
from hace.errors import ConfigError, nearest
from hace.files.reading import optional
from hace.hierarchy import Hierarchy
from hace.losses.base import HierarchicalLoss
from hace.metrics import functional
from hace.metrics.measures import level_titles

_Metric = Callable[[Any, Any, "AnswerMetric"], Any]

_METRICS: dict[str, _Metric] = {
    "accuracy": lambda answers, truth, m: functional.top_k_accuracy(
        answers, truth, m.hierarchy, labels="nodes"
    ),
    "level_accuracy": lambda answers, truth, m: functional.level_accuracy(
        answers, truth, m.hierarchy, labels="nodes"
    )[m.level_index],
    "distance": lambda answers, truth, m: functional.hierarchical_distance_at(
        answers, truth, m.hierarchy, distance=m.distance, labels="nodes"
    ),
    "severity": lambda answers, truth, m: (
        functional.mistake_severity(answers, truth, m.hierarchy, distance=m.distance, labels="nodes").value
    ),
    **{
        name: lambda answers, truth, m, name=name: getattr(
            functional.hierarchical_prf(answers, truth, m.hierarchy, labels="nodes"), name
        )
        for name in ("precision", "recall", "f1")
    },
}
ID_METRICS = tuple(_METRICS)
_SMALLER_IS_BETTER = ("distance", "severity")


@dataclass(frozen=True)
class AnswerMetric:
    """A metric of answers as scikit-learn calls them: ``metric(y_true, y_pred)``, both ids.

    It can be pickled, so that searches may use it in several processes.

    Args:
        name: "accuracy"; "level_accuracy", of ``level``; "distance", the mean over all samples; "severity", the mean over
            mistakes, nan without any; hierarchical "precision", "recall" or "f1".
        hierarchy: the hierarchy.
        level: the level of "level_accuracy": a depth from 1, or its name.
        distance: of "distance" and "severity": "lca_height", "lca_depth" or "edges".

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)])
        >>> y_true, y_pred = ["husky", "beagle", "cat", "cat"], ["husky", "husky", "cat", "husky"]
        >>> AnswerMetric("accuracy", h)(y_true, y_pred), AnswerMetric("level_accuracy", h, level=1)(y_true, y_pred)
        (0.5, 0.75)
        >>> AnswerMetric("severity", h)(y_true, y_pred)
        1.5
    """

    name: str
    hierarchy: Hierarchy
    level: int | str | None = None
    distance: str = "lca_height"

    def __post_init__(self) -> None:
        if self.name not in _METRICS:
            choices = ", ".join(map(repr, ID_METRICS))
            raise ConfigError(
                f"name must be one of {choices}. Got {self.name!r}.{nearest(self.name, ID_METRICS)}"
            )
        if not isinstance(self.hierarchy, Hierarchy):
            raise ConfigError(f"hierarchy must be a Hierarchy. Got {type(self.hierarchy).__name__}.")
        if (self.level is None) == (self.name == "level_accuracy"):
            raise ConfigError(
                f"level must be given for 'level_accuracy', and for it alone. Got {self.level!r} for {self.name!r}."
            )
        if self.level is not None:
            _ = self.level_index

    @property
    def __name__(self) -> str:
        """What scikit-learn shows of it."""
        return self.name

    @property
    def greater_is_better(self) -> bool:
        """What ``sklearn.metrics.make_scorer`` asks for."""
        return self.name not in _SMALLER_IS_BETTER

    @property
    def level_index(self) -> int:
        """The position of the level among those that ``level_accuracy`` gives."""
        titles = level_titles(self.hierarchy)
        if self.level in titles:
            return titles.index(str(self.level))
        if isinstance(self.level, (int, np.integer)) and 1 <= self.level <= len(titles):
            return int(self.level) - 1
        raise ConfigError(f"level must be from 1 to {len(titles)}, or one of {titles}. Got {self.level!r}.")

    def __call__(self, y_true: Any, y_pred: Any) -> float:
        """The metric."""
        truth = as_nodes(_as_ids(y_true), self.hierarchy, "y_true")
        answers = as_nodes(_as_ids(y_pred), self.hierarchy, "y_pred", abstain=True)
        return float(_METRICS[self.name](answers, truth, self))

    def scorer(self) -> Any:
        """A scorer for ``scoring=``; one of distances has its sign turned, as scikit-learn does."""
        make_scorer = optional("sklearn.metrics", "A scorer", "sklearn").make_scorer
        return make_scorer(self, greater_is_better=self.greater_is_better)


def _as_ids(y: Any) -> Any:
    """Labels as strings, where they are integers; None stays None."""
    if holds_ids(y):
        return y
    return [None if label is None else str(label) for label in np.asarray(y).tolist()]


def trainer_metrics(
    loss: HierarchicalLoss, *, distance: str = "lca_height"
) -> Callable[[Any], dict[str, float]]:
    """A ``compute_metrics`` for the Trainer of transformers.

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
            "accuracy": functional.top_k_accuracy(*pairs, labels=loss.labels),
            "mistake_severity": functional.mistake_severity(
                *pairs, distance=distance, labels=loss.labels
            ).value,
            "hierarchical_distance": functional.hierarchical_distance_at(
                *pairs, distance=distance, labels=loss.labels
            ),
            "hierarchical_f1": functional.hierarchical_prf(*pairs, labels=loss.labels).f1,
        }
        if h.is_tree:
            names = [f"accuracy_{title.replace(' ', '_')}" for title in level_titles(h)]
            found |= dict(zip(names, functional.level_accuracy(*pairs, labels=loss.labels), strict=True))
        return {name: float(value) for name, value in found.items()}

    return compute_metrics
