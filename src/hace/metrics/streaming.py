"""Streaming metrics with torchmetrics' contract: update / compute / reset, MetricCollection, sync under DDP.

A metric that is a ratio of sums is made from its measure in :mod:`hace.metrics.measures`: it takes the measure's arguments,
adds up its columns and divides once, so any split into batches and any number of processes gives the value of the plain
function on all samples. Every class takes ``update(preds, target)`` in the same forms as the functions, and besides its own
arguments the keywords of :class:`MetricOptions`. Needs torchmetrics, the extra `metrics`.
"""

from __future__ import annotations

import inspect
import zlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hace.errors import HierarchyError, install

try:
    from torchmetrics import Metric
except ImportError as error:  # pragma: no cover - the test hides torchmetrics in another process
    raise ImportError(
        f"Streaming metrics need torchmetrics. {install('metrics')} The functions of hace.metrics work without it."
    ) from error

from hace.checks import MOST_BINS, check_choice, check_count
from hace.decisions.scores import level_numbers
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import level_choices
from hace.hierarchy.distances import check_distance
from hace.metrics import curves, measures
from hace.metrics.answers import (
    OVER,
    ClassTable,
    Confusion,
    class_counts,
    f1_counts,
    f1_of,
    label_counts,
    mean_recall,
    summarise_mistakes,
)
from hace.metrics.curves import HierarchicalRiskCoverage, OperatingCurve, Reliability, RiskCoverage
from hace.metrics.measures import METRICS, Measure, level_titles
from hace.metrics.metric_batch import MetricBatch, ScoreForms, as_metric_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MetricOptions(ScoreForms, total=False):
    """The keywords of every streaming metric: :class:`hace.metrics.ScoreForms`, and those of :class:`torchmetrics.Metric`."""

    compute_on_cpu: bool
    dist_sync_on_step: bool
    process_group: Any
    dist_sync_fn: Any
    distributed_available_fn: Any
    sync_on_compute: bool
    compute_with_cache: bool


class HierarchicalMetric(Metric):
    """Checks a batch and keeps what it adds: sums of the shape ``sums``, or, where that is None, rows of samples.

    ``options``: what else distinguishes this metric from others of its class.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        hierarchy: Hierarchy,
        *options: object,
        sums: tuple[int, ...] | None,
        **forms: Unpack[MetricOptions],
    ) -> None:
        stray = [name for name in forms if name not in MetricOptions.__annotations__]
        if stray:
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {stray[0]!r}")
        read = {name: value for name, value in forms.items() if name in ScoreForms.__annotations__}
        super().__init__(**{name: value for name, value in forms.items() if name not in read})
        self.hierarchy = hierarchy
        self.forms: Any = read
        # A MetricCollection lets metrics share their states when the first batch left the same numbers under the same
        # names. Equal numbers may be chance, so the name says what is counted.
        counted = zlib.crc32(repr((hierarchy.fingerprint, sorted(read.items()), options)).encode())
        self._state_name = f"{type(self).__name__}_{counted:08x}"
        empty = [] if sums is None else torch.zeros(sums, dtype=torch.float64)
        self.add_state(self._state_name, empty, dist_reduce_fx="cat" if sums is None else "sum")

    def update(self, preds: Any, target: Any) -> None:
        """Add a batch."""
        batch = as_metric_batch(preds, target, self.hierarchy, **self.forms)
        state = getattr(self, self._state_name)
        added = np.asarray(self._of(batch), dtype=np.float64)
        values = torch.from_numpy(added).to(self.device)
        if isinstance(state, Tensor):
            setattr(self, self._state_name, state + values)
        else:
            state.append(values)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """A figure and its axes, as torchmetrics draws them: the value so far, or given values over steps."""
        return self._plot(val, ax)

    @abstractmethod
    def _of(self, batch: MetricBatch) -> Any:
        """The sums of a batch, or its rows."""

    def _all(self, *shape: int) -> np.ndarray:
        """The sums so far, or all rows, of this shape each."""
        state = getattr(self, self._state_name)
        if not isinstance(state, Tensor):  # a sync joins rows, too
            state = torch.cat(state) if state else torch.zeros(0)
        sums = state.cpu().numpy()
        return sums.reshape(-1, *shape) if shape else sums


class RatioMetric(HierarchicalMetric):
    """A measure, added up: it takes the hierarchy, the arguments of its measure, then the choice of one value.

    ``measure_of`` makes the measure; ``choice``, "level" or "value", is the argument that picks one of several values, as a
    scalar; ``keys`` are names of the values, where those of the measure are long.
    """

    measure_of: ClassVar[Callable[..., Measure]]
    choice: ClassVar[str | None] = None
    keys: ClassVar[Sequence[str] | None] = None

    def __init_subclass__(cls) -> None:
        cls.__signature__ = arguments_of(cls)  # type: ignore[attr-defined]

    def __init__(self, hierarchy: Hierarchy, *arguments: Any, **options: Any) -> None:
        bound = arguments_of(type(self)).bind(hierarchy, *arguments, **options)
        bound.apply_defaults()
        given = dict(bound.arguments)
        rest = given.pop("options")
        chosen = given.pop(self.choice, None) if self.choice else None
        self.measure = measure = type(self).measure_of(**given)
        del given["hierarchy"]
        self.names = tuple(self.keys or measure.names)
        super().__init__(hierarchy, given, sums=(3, len(self.names)), **rest)
        if chosen is not None:
            chosen = level_key(hierarchy, chosen) if self.choice == "level" else chosen
            check_choice(str(self.choice), chosen, self.names)
        self.chosen: str | None = chosen

    def _of(self, batch: MetricBatch) -> list[Any]:
        above, below = self.measure.columns(batch)
        return [above.sum(axis=0), below.sum(axis=0), [len(batch)] * len(self.names)]

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The value so far."""
        above, below, samples = self._all()
        values = torch.as_tensor(self.measure.divide(above, below, int(samples.sum())), device=self.device)
        if self.choice is None:
            return values[0]
        by_name = dict(zip(self.names, values, strict=True))
        return by_name if self.chosen is None else by_name[self.chosen]


def level_key(hierarchy: Hierarchy, level: int | str) -> str:
    """The title of a level, by which measures of levels name their values."""
    depth = hierarchy.level_index(level)
    if depth == 0:
        raise HierarchyError("level must be at least 1: every answer is right at the root. Got 0.")
    return (*level_titles(hierarchy), *hierarchy.rank_names)[depth - 1]


def arguments_of(metric: type[RatioMetric]) -> inspect.Signature:
    """The arguments of a streaming class: those of its measure, then the choice of one value."""
    word = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = list(inspect.signature(metric.measure_of).parameters.values())
    picked = [] if metric.choice is None else [inspect.Parameter(metric.choice, word, default=None)]
    rest = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD, annotation="Unpack[MetricOptions]")
    return inspect.Signature([*own, *picked, rest])


def class_of(name: str) -> type[RatioMetric]:
    """The streaming class of a metric, by its name."""
    row = next(row for row in METRICS if row.streaming == name)
    about = f":func:`hace.metrics.{row.function}`, streaming."
    if row.choice == "level":
        about += "\n\nA dict by level; with ``level``, a depth or name, its value, as Lightning's ``log_dict`` needs it."
    elif row.choice == "value":
        names = ", ".join(row.keys or ())
        about += f"\n\nA dict of {names}; with ``value``, one of these names, that value alone."
    attributes = {
        "__doc__": about,
        "__module__": "hace.metrics",
        "measure_of": staticmethod(row.make),
        "choice": row.choice,
        "keys": row.keys,
        "higher_is_better": row.higher_is_better,
    }
    return type(name, (RatioMetric,), attributes)


class MistakeSeverity(RatioMetric):
    """:func:`hace.metrics.mistake_severity`, streaming: ``MistakeSeverity(hierarchy, distance="lca_height")``."""

    measure_of = staticmethod(measures.severity_measure)
    higher_is_better = False

    @property
    def mistakes(self) -> int:
        """The number of mistakes seen by this process."""
        return int(self._all()[1].sum())


class ClassAccuracy(HierarchicalMetric):
    """:func:`hace.metrics.class_accuracy` at a level, streaming. ``table()`` names the classes.

    Args:
        level: a depth or a level's name.
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, level: int | str, **forms: Unpack[MetricOptions]) -> None:
        super().__init__(hierarchy, level, sums=(2, hierarchy.num_nodes), **forms)
        level_numbers(hierarchy)
        self.level = hierarchy.level_index(level)

    def _of(self, batch: MetricBatch) -> Any:
        return class_counts(batch, self.level)

    def table(self) -> ClassTable:
        """Classes, counts and accuracies."""
        nodes = level_choices(self.hierarchy, self.level)
        return ClassTable(self.hierarchy, self.level, nodes, *self._all()[:, nodes].astype(np.int64))

    def compute(self) -> Tensor:
        """(C,) accuracy of each node of the level, nan where it has no samples."""
        return torch.as_tensor(self.table().accuracy, device=self.device)


class BalancedAccuracy(HierarchicalMetric):
    """:func:`hace.metrics.balanced_accuracy`, streaming."""

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[MetricOptions]) -> None:
        super().__init__(hierarchy, sums=(3, hierarchy.num_nodes), **forms)

    def _of(self, batch: MetricBatch) -> Any:
        return label_counts(self.hierarchy, batch.answers, batch.truth)

    def compute(self) -> Tensor:
        """The value so far."""
        return torch.tensor(mean_recall(self._all()), dtype=torch.float64, device=self.device)


class MacroF1(HierarchicalMetric):
    """:func:`hace.metrics.macro_f1`, streaming.

    Args:
        over: ``"labels"``: the labels that occur; ``"nodes"``: all nodes but the root, each as "it is in this branch".
    """

    higher_is_better = True

    def __init__(self, hierarchy: Hierarchy, over: str = "labels", **forms: Unpack[MetricOptions]) -> None:
        check_choice("over", over, OVER)
        counts = 3 if over == "labels" else 2
        super().__init__(hierarchy, over, sums=(counts, hierarchy.num_nodes), **forms)
        self.over = over

    def _of(self, batch: MetricBatch) -> Any:
        return f1_counts(self.hierarchy, self.over, batch)

    def compute(self) -> Tensor:
        """The value so far."""
        value = f1_of(self.hierarchy, self.over, self._all())
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class Mistakes(HierarchicalMetric):
    """:func:`hace.metrics.confusion`, streaming: ``summary()`` says where mistakes go. Keeps two integers per sample."""

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[MetricOptions]) -> None:
        super().__init__(hierarchy, sums=None, **forms)

    def _of(self, batch: MetricBatch) -> np.ndarray:
        return np.stack([batch.answers, batch.truth], axis=1)

    def summary(self) -> Confusion:
        """Pairs, and the levels where they meet."""
        return summarise_mistakes(self.hierarchy, *self._all(2).astype(np.int64).T)

    def compute(self) -> Tensor:
        """(H + 1,) mistakes by the depth of the lowest common ancestor of truth and answer."""
        return torch.as_tensor(self.summary().by_level, device=self.device)


class LevelCalibration(HierarchicalMetric):
    """Expected calibration error of every level, streaming: a dict by level, or one level's value.

    ``diagrams()`` gives the data to plot.

    Args:
        bins: number of bins.
        binning: ``"width"`` or ``"mass"``; see :func:`hace.metrics.reliability`. Bins of equal mass take two numbers per sample
            and level.
        level: a depth or a level's name, to have its value alone, as a scalar; ``log_dict`` of Lightning needs that.
    """

    higher_is_better = False

    def __init__(
        self,
        hierarchy: Hierarchy,
        bins: int = 15,
        binning: str = "width",
        level: int | str | None = None,
        **forms: Unpack[MetricOptions],
    ) -> None:
        check_count("bins", bins, MOST_BINS)
        curves.bin_of(np.zeros(0), bins, binning)  # refuses what is not a way to make bins
        self.titles = level_titles(hierarchy)
        sums = (len(self.titles), 3, bins + 1) if binning == "width" else None
        super().__init__(hierarchy, bins, binning, sums=sums, **forms)
        self.bins = bins
        self.binning = binning
        self.key = None if level is None else level_key(hierarchy, level)

    def _of(self, batch: MetricBatch) -> Any:
        if self.binning == "mass":
            confidence = batch.levels.probabilities.double().cpu().numpy()
            return np.stack([confidence, batch.correct_at_levels], axis=1)
        each = curves.level_diagrams(batch, self.bins)
        return [(r.counts, r.confidence_sums, r.correct_sums) for r in each]

    def diagrams(self) -> list[Reliability]:
        """The reliability diagram of each level."""
        if self.binning == "width":
            return [Reliability(*sums) for sums in self._all()]
        seen = self._all(2, len(self.titles))
        each = (seen[:, :, k].T for k in range(len(self.titles)))
        return [curves.reliability(*columns, bins=self.bins, binning="mass") for columns in each]

    def compute(self) -> Tensor | dict[str, Tensor]:
        """ECE by level."""
        values = torch.tensor([r.ece for r in self.diagrams()], dtype=torch.float64, device=self.device)
        by_level = dict(zip(self.titles, values, strict=True))
        return by_level if self.key is None else by_level[self.key]


class CurveArea(HierarchicalMetric):
    """The area of a curve, streaming. ``curve()`` gives the data to plot."""

    @abstractmethod
    def curve(self) -> OperatingCurve | RiskCoverage | HierarchicalRiskCoverage:
        """The curve itself."""

    def compute(self) -> Tensor:
        """Its area."""
        return torch.tensor(self.curve().area, dtype=torch.float64, device=self.device)


class OperatingArea(CurveArea):
    """Area under the operating curve, streaming. ``curve()`` gives the data to plot.

    Args:
        thresholds: probabilities.
        constrained: True to walk down from the root; False to take the most informative of all nodes that pass.
    """

    higher_is_better = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        thresholds: Sequence[float] = curves.THRESHOLDS,
        constrained: bool = True,
        **forms: Unpack[MetricOptions],
    ) -> None:
        self.thresholds = tuple(thresholds)
        self.constrained = constrained
        shape = (4, len(self.thresholds))
        super().__init__(hierarchy, self.thresholds, constrained, sums=shape, **forms)

    def _of(self, batch: MetricBatch) -> list[Any]:
        columns = curves.operating_columns(batch, self.thresholds, self.constrained)
        return [*(column.sum(axis=0) for column in columns), [len(batch)] * len(self.thresholds)]

    def curve(self) -> OperatingCurve:
        """The curve itself."""
        *sums, samples = self._all()
        return curves.curve_of(self.thresholds, sums, int(samples[0]))


class RiskCoverageArea(CurveArea):
    """AURC, streaming. Keeps two numbers per sample.

    Args:
        distance: the risk of an answer: a named distance, or None for 0/1 mistakes.
    """

    higher_is_better = False

    def __init__(
        self, hierarchy: Hierarchy, distance: str | None = None, **forms: Unpack[MetricOptions]
    ) -> None:
        if distance is not None:
            check_distance(distance)
        super().__init__(hierarchy, distance, sums=None, **forms)
        self.distance = distance

    def _of(self, batch: MetricBatch) -> np.ndarray:
        risk = batch.answers != batch.truth if self.distance is None else batch.distance(self.distance)
        return np.stack([batch.confidence, risk], axis=1)

    def curve(self) -> RiskCoverage:
        """The curve itself."""
        return curves.risk_coverage(*self._all(2).T)


class HierarchicalRiskArea(CurveArea):
    """hAURC of :func:`hace.metrics.hierarchical_risk_coverage`, streaming. Keeps three numbers per sample and level."""

    higher_is_better = False

    def __init__(self, hierarchy: Hierarchy, **forms: Unpack[MetricOptions]) -> None:
        level_numbers(hierarchy)
        super().__init__(hierarchy, sums=None, **forms)

    def _of(self, batch: MetricBatch) -> np.ndarray:
        return np.stack(curves.ladder_columns(batch), axis=1)

    def curve(self) -> HierarchicalRiskCoverage:
        """The curve itself."""
        reached, specific, true = self._all(3, self.hierarchy.max_depth + 1).swapaxes(0, 1)
        return curves.ladder_curve((reached, specific, true))
