"""Metrics of one batch as plain functions, made from the rows of :data:`hace.metrics.measures.METRICS`.

All take predictions, truths and a hierarchy in the same forms; :class:`hace.metrics.ScoreForms` says which. A mean over no
samples is nan. The streaming classes of :mod:`hace.metrics.streaming` add up the same columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.metrics import measures
from hace.metrics.measures import METRICS, Metric
from hace.metrics.metric_batch import ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack

_WORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
_SHARED = [inspect.Parameter(name, _WORD, annotation="Any") for name in ("preds", "target")]
_FORMS = inspect.Parameter("forms", inspect.Parameter.VAR_KEYWORD, annotation="Unpack[ScoreForms]")


def function_of(name: str) -> Callable[..., Any]:
    """The plain function of a metric, by its name."""
    row = next(row for row in METRICS if row.function == name)
    own = list(inspect.signature(row.make).parameters.values())  # the hierarchy first
    signature = inspect.Signature([*_SHARED, *own, _FORMS], return_annotation=returned(row))

    def face(*arguments: Any, **options: Any) -> Any:
        """The metric of predictions and targets: a scalar, or a value per level."""
        bound = signature.bind(*arguments, **options)
        given = dict(bound.arguments)
        forms = given.pop("forms", {})
        preds = given.pop("preds")
        target = given.pop("target")
        batch = as_metric_batch(preds, target, given["hierarchy"], **forms)
        measure = row.make(**given)
        values = torch.from_numpy(np.asarray(measure.value(batch), dtype=np.float64))
        if row.result is not None:
            return row.result(*values)
        return values if row.choice == "level" else values[0]

    face.__name__ = face.__qualname__ = name
    face.__module__ = "hace.metrics"
    face.__doc__ = row.make.__doc__
    face.__signature__ = signature  # type: ignore[attr-defined]
    return face


def returned(row: Metric) -> str:
    """What a plain function returns, as an annotation."""
    return "Tensor" if row.result is None else row.result.__name__


class Severity(NamedTuple):
    """Mean distance over mistakes, and the number of mistakes."""

    value: Tensor
    mistakes: Tensor


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
