"""The base of the streaming metrics: checks a batch, adds up its columns, divides once. Needs torchmetrics."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

try:
    from torchmetrics import Metric
except ImportError as error:  # pragma: no cover - the test hides torchmetrics in another process
    raise ImportError(
        'Streaming metrics need torchmetrics. Install it with: pip install "hace[metrics]". '
        "The functions of hace.metrics work without it."
    ) from error

from hace.hierarchy import Hierarchy
from hace.metrics.measures import Measure
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack


class HierarchicalMetric(Metric):
    """Checks a batch and adds it up.

    Args:
        hierarchy: the hierarchy.
        *options: what else distinguishes this metric from others of its class.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(self, hierarchy: Hierarchy, *options: object, **forms: Unpack[ScoreForms]) -> None:
        super().__init__()
        stray = [name for name in forms if name not in ScoreForms.__annotations__]
        if stray:
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {stray[0]!r}")
        self.hierarchy = hierarchy
        self.forms = forms
        # A MetricCollection lets metrics share their states when the first batch left the same numbers under the same
        # names. Equal numbers may be chance, so the names say what is counted.
        parts = (type(self).__name__, hierarchy.fingerprint[:8], *sorted(forms.items()), *options)
        self._tag = re.sub(r"\W+", "_", "_".join(map(str, parts)))

    def update(self, preds: Any, target: Any) -> None:
        """Add a batch."""
        self._add(as_metric_batch(preds, target, self.hierarchy, **self.forms))

    @abstractmethod
    def _add(self, batch: MetricBatch) -> None:
        """Add the sums of a batch."""

    def _sums(self, name: str, *shape: int) -> None:
        """Declare a state that adds up, over batches and processes."""
        self.add_state(f"{name}_{self._tag}", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _rows(self, name: str) -> None:
        """Declare a state that keeps one number per sample, for values that are not ratios of sums."""
        self.add_state(f"{name}_{self._tag}", [], dist_reduce_fx="cat")

    def _state(self, name: str) -> Any:
        return getattr(self, f"{name}_{self._tag}")

    def _plus(self, name: str, values: Any) -> None:
        state = self._state(name)
        added = torch.as_tensor(np.asarray(values, dtype=np.float64)).to(state.device)
        setattr(self, f"{name}_{self._tag}", state + added)

    def _append(self, name: str, values: np.ndarray) -> None:
        self._state(name).append(torch.as_tensor(values, dtype=torch.float64, device=self.device))

    def _array(self, name: str) -> np.ndarray:
        state = self._state(name)
        if isinstance(state, Tensor):  # sums, or rows that a sync has joined
            return state.cpu().numpy()
        return torch.cat(state).cpu().numpy() if state else np.empty(0)


class RatioMetric(HierarchicalMetric):
    """A measure, added up. ``compute`` gives a scalar, or a dict of scalars for a measure with several values.

    Args:
        hierarchy: the hierarchy.
        measure: the measure.
        *options: what else distinguishes this metric from others of its class.
        keys: names of the values; None for a scalar.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        measure: Measure,
        *options: object,
        keys: Sequence[str] | None = None,
        **forms: Unpack[ScoreForms],
    ) -> None:
        super().__init__(hierarchy, *options, **forms)
        self.measure = measure
        self.keys_of_values = None if keys is None else tuple(keys)
        self._sums("numerator", len(measure.names))
        self._sums("denominator", len(measure.names))
        self._sums("samples")

    def _add(self, batch: MetricBatch) -> None:
        numerator, denominator = self.measure.columns(batch)
        self._plus("numerator", numerator.sum(axis=0))
        self._plus("denominator", denominator.sum(axis=0))
        self._plus("samples", len(batch))

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The value so far."""
        values = self.measure.divide(
            self._array("numerator"), self._array("denominator"), int(self._array("samples"))
        )
        tensors = torch.as_tensor(values, device=self.device)
        if self.keys_of_values is None:
            return tensors[0]
        return dict(zip(self.keys_of_values, tensors, strict=True))
