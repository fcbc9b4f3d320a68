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

from hace.checks import check_choice
from hace.errors import HierarchyError
from hace.hierarchy import Hierarchy
from hace.metrics.measures import Measure, level_titles
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MetricOptions(ScoreForms, total=False):
    """The keywords of every streaming metric: those of :class:`hace.metrics.ScoreForms`, and torchmetrics' own.

    Attributes:
        compute_on_cpu: see :class:`torchmetrics.Metric`, as for all others.
        dist_sync_on_step: whether to synchronise processes at every step.
        process_group: the processes to synchronise; all by default.
        dist_sync_fn: gathers states.
        distributed_available_fn: says whether there are several processes.
        sync_on_compute: whether to synchronise processes before the value.
        compute_with_cache: whether to keep the value until the next update.
    """

    compute_on_cpu: bool
    dist_sync_on_step: bool
    process_group: Any
    dist_sync_fn: Any
    distributed_available_fn: Any
    sync_on_compute: bool
    compute_with_cache: bool


class HierarchicalMetric(Metric):
    """Checks a batch and adds it up.

    Args:
        hierarchy: the hierarchy.
        *options: what else distinguishes this metric from others of its class.
        **forms: ``labels``, ``kind`` and ``outputs``, and torchmetrics' own; see :class:`MetricOptions`.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(self, hierarchy: Hierarchy, *options: object, **forms: Unpack[MetricOptions]) -> None:
        stray = [name for name in forms if name not in MetricOptions.__annotations__]
        if stray:
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {stray[0]!r}")
        read = {name: value for name, value in forms.items() if name in ScoreForms.__annotations__}
        super().__init__(**{name: value for name, value in forms.items() if name not in read})
        self.hierarchy = hierarchy
        self.forms: Any = read
        # A MetricCollection lets metrics share their states when the first batch left the same numbers under the same
        # names. Equal numbers may be chance, so the names say what is counted.
        parts = (type(self).__name__, hierarchy.fingerprint[:8], *sorted(read.items()), *options)
        self._tag = re.sub(r"\W+", "_", "_".join(map(str, parts)))

    def update(self, preds: Any, target: Any) -> None:
        """Add a batch."""
        self._add(as_metric_batch(preds, target, self.hierarchy, **self.forms))

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """A figure and its axes, as torchmetrics draws them: the value so far, or given values over steps.

        Args:
            val: values of ``compute`` or ``forward``, one or several; by default the value so far.
            ax: matplotlib's axes to draw on.
        """
        return self._plot(val, ax)

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
    """A measure, added up. ``compute`` gives a scalar, or a dict of scalars for a measure with several values and no choice.

    Args:
        hierarchy: the hierarchy.
        measure: the measure.
        *options: what else distinguishes this metric from others of its class.
        keys: names of the values; None for a scalar.
        value: one of the keys, to have that value alone, as a scalar.
        **forms: ``labels``, ``kind`` and ``outputs``; see :class:`hace.metrics.ScoreForms`.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        measure: Measure,
        *options: object,
        keys: Sequence[str] | None = None,
        value: str | None = None,
        **forms: Unpack[MetricOptions],
    ) -> None:
        super().__init__(hierarchy, *options, **forms)
        self.measure = measure
        self.keys_of_values = None if keys is None else tuple(keys)
        if value is not None:
            check_choice("value", value, keys or ())
        self.value = value
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
        found = dict(zip(self.keys_of_values, tensors, strict=True))
        return found if self.value is None else found[self.value]


def level_key(hierarchy: Hierarchy, level: int | str | None) -> str | None:
    """The title of a level, by which measures of levels name their values.

    Args:
        hierarchy: a tree or forest.
        level: a depth from 1, or a level's name; None: none.
    """
    if level is None:
        return None
    depth = hierarchy.level_index(level)
    if depth == 0:
        raise HierarchyError("level must be at least 1: every answer is right at the root. Got 0.")
    return level_titles(hierarchy)[depth - 1]
