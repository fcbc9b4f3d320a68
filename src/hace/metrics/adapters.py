"""Metrics in the form that other libraries call: scikit-learn's scorers of ids, and the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hace.checks import check_choice
from hace.decisions.scores import as_nodes, holds_ids
from hace.errors import ConfigError
from hace.files.reading import optional
from hace.hierarchy import Hierarchy
from hace.hierarchy.hierarchy import check_hierarchy
from hace.losses.base import HierarchicalLoss
from hace.metrics import measures
from hace.metrics.measures import Measure, level_titles
from hace.metrics.metric_batch import MetricBatch, as_metric_batch

_PRF = ("precision", "recall", "f1")
_SMALLER_IS_BETTER = ("distance", "severity")
ID_METRICS = ("accuracy", "level_accuracy", *_SMALLER_IS_BETTER, *_PRF)


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
        check_choice("name", self.name, ID_METRICS)
        check_hierarchy(self.hierarchy)
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
        titles = (*level_titles(self.hierarchy), *self.hierarchy.rank_names)
        if self.level in titles:
            return titles.index(str(self.level))
        if isinstance(self.level, (int, np.integer)) and 1 <= self.level <= len(titles):
            return int(self.level) - 1
        raise ConfigError(f"level must be from 1 to {len(titles)}, or one of {titles}. Got {self.level!r}.")

    def __call__(self, y_true: Any, y_pred: Any) -> float:
        """The metric."""
        truth = as_nodes(_as_ids(y_true), self.hierarchy, "y_true")
        answers = as_nodes(_as_ids(y_pred), self.hierarchy, "y_pred", abstain=True)
        batch = MetricBatch(self.hierarchy, truth.numpy(), answers=answers.numpy())
        measure, place = self._measure()
        return float(measure.value(batch)[place])

    def _measure(self) -> tuple[Measure, int]:
        """The measure, and which of its values is meant."""
        h = self.hierarchy
        if self.name in _PRF:
            return measures.hierarchical_prf_measure(h), _PRF.index(self.name)
        if self.name == "level_accuracy":
            return measures.level_accuracy_measure(h), self.level_index
        if self.name == "accuracy":
            return measures.top_k_measure(h), 0
        if self.name == "severity":
            return measures.severity_measure(h, self.distance), 0
        return measures.distance_measure(h, 1, self.distance), 0

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
        >>> values = trainer_metrics(HACELoss(h))(SimpleNamespace(predictions=logits.numpy(), label_ids=[0, 1]))
        >>> values["accuracy"], values["accuracy_level_1"], values["mistake_severity"]
        (0.5, 1.0, 1.0)
    """
    h = loss.hierarchy

    def compute_metrics(prediction: Any) -> dict[str, float]:
        """The metrics of predictions, by the names the Trainer logs."""
        scores = prediction.predictions
        truth = torch.as_tensor(prediction.label_ids)
        labelled = truth != loss.ignore_index
        # Hidden states may follow.
        logits = torch.as_tensor(scores[0] if isinstance(scores, tuple) else scores)
        answers = loss.leaf_logits(logits[labelled]).argmax(dim=1)
        truth = truth[labelled]
        if loss.labels == "nodes":
            answers = torch.as_tensor(h.leaf_nodes)[answers]
        batch = as_metric_batch(answers, truth, h, labels=loss.labels)
        values = {
            "accuracy": measures.top_k_measure(h).value(batch)[0],
            "mistake_severity": measures.severity_measure(h, distance).value(batch)[0],
            "hierarchical_distance": measures.distance_measure(h, 1, distance).value(batch)[0],
            "hierarchical_f1": measures.hierarchical_prf_measure(h).value(batch)[2],
        }
        if h.is_tree:
            by_level = measures.level_accuracy_measure(h)
            names = [f"accuracy_{title.replace(' ', '_')}" for title in by_level.names]
            values |= dict(zip(names, by_level.value(batch), strict=True))
        return {name: float(value) for name, value in values.items()}

    return compute_metrics
