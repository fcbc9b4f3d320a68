"""What a report measures: every metric with its title, its unit, and how it follows from what runs keep of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import cached_on_hierarchy
from hace.lab.report.conformal import CONFIDENCE_ERROR, DERIVED, GUARANTEE, SIBLINGS, SURE_DETAIL
from hace.lab.runs.samples import has_siblings
from hace.metrics import measures
from hace.metrics.evaluation import CALIBRATED
from hace.metrics.measures import Measure, node_of_level
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.sample_statistics import MetricKey

BY_LEVEL = "accuracy by level, answer carried up"
BEST_NODE_BY_LEVEL = "accuracy by level, best node of the level"
ECE_BY_LEVEL = "calibration error (ECE) by level"
ANCESTORS = "ancestors and information"
TOP1: MetricKey = ("leaves", "top-1")
TOP5: MetricKey = ("leaves", "top-5")
_MOST_PAIRS = 1 << 20  # of classes, computed once and looked up

Samples = Mapping[str, np.ndarray]  # what a run keeps of each test sample
# (S,) numerators and denominators; without these, a plain mean.
Columns = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric, and how it is shown. Two are the same if their key is."""

    key: MetricKey  # its heading and name in results
    title: str  # short, for a column
    percent: bool = True  # a share, shown in percent
    higher: bool = True  # is better
    # Numerators and denominators from the samples of a run; None where only a run's own result has the metric.
    columns: Callable[[Samples, Hierarchy], Columns | None] | None = None
    resampled: bool = False  # its columns are values on bootstrap draws of the samples
    meaning: str = ""  # what it says, in a clause
    unit: str = "points"  # of differences

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metric) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def text(self, value: float, sign: bool = False) -> str:
        """A value as tables show it: "72.57"."""
        scale, digits = (100, 2) if self.percent else (1, 3)
        shown = round(scale * value, digits) + 0.0  # never -0.00
        return f"{shown:{'+' if sign else ''}.{digits}f}"

    def interval(self, low: float | None, high: float | None, sign: bool = False) -> str:
        """An interval as tables show it: "[71.20, 73.00]"; "" where it is not known."""
        if low is None or high is None or low != low:
            return ""
        if self.percent and not sign:  # an interval over few groups may leave 0 to 100%
            low = max(low, 0.0)
            high = min(high, 1.0)
        return f"[{self.text(low, sign)}, {self.text(high, sign)}]"

    def short(self, value: float) -> str:
        """A value as cards show it: "72.6%"."""
        return f"{100 * value:.1f}%" if self.percent else f"{value:.3f}"

    def gap(self, value: float) -> str:
        """A difference as cards show it: "+1.3"."""
        return signed(100 * value, 1) if self.percent else signed(value, 3)

    def gap_interval(self, low: float, high: float) -> str:
        """The interval of a difference as cards show it: "[+0.3, +2.1]"."""
        if low != low:
            return "without an interval"
        scale, digits = (100, 1) if self.percent else (1, 3)
        return bracketed(scale * low, scale * high, digits)

    def column(self) -> str:
        """Its column in the table of runs."""
        return run_column(self.key)


def run_column(key: MetricKey) -> str:
    """The column of a metric in the table of runs."""
    return ": ".join(key)


def signed(value: float, digits: int) -> str:
    """A difference with its sign; what rounds to 0 has none."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def bracketed(low: float, high: float, digits: int) -> str:
    """An interval with signs; one that excludes 0 has as many digits as show it."""
    while low * high > 0 and not float(f"{min(abs(low), abs(high)):.{digits}f}") and digits < 6:
        digits += 1
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def level_names(hierarchy: Hierarchy | None) -> tuple[str, ...]:
    """The names of levels in results; a DAG has none."""
    return measures.level_titles(hierarchy) if hierarchy is not None and hierarchy.is_tree else ()


# --- columns


def _right(samples: Samples, h: Hierarchy) -> Columns:
    return samples["answer"] == samples["truth"], None


def _in_top5(samples: Samples, h: Hierarchy) -> Columns:
    return samples["top5"], None


def _levels_off(samples: Samples, h: Hierarchy) -> Columns:
    wrong = samples["answer"] != samples["truth"]
    return samples["distance"] * wrong, wrong


def _distance(samples: Samples, h: Hierarchy) -> Columns:
    return samples["distance"], None


def _right_below(samples: Samples, h: Hierarchy, level: int) -> Columns:
    return samples["met"] > level, None


def _best_node_right(samples: Samples, h: Hierarchy, level: int) -> Columns:
    return samples["level_correct"][:, level], None


def _right_with_siblings(samples: Samples, h: Hierarchy) -> Columns:
    counted = has_siblings(h)[samples["truth"]]
    return (samples["answer"] == samples["truth"]) & counted, counted


def _as_stored(samples: Samples, h: Hierarchy, name: str) -> Columns | None:
    """Computed when the samples were read; on a DAG it is not."""
    return (samples[name], None) if name in samples else None


def _by_ancestors(samples: Samples, h: Hierarchy, name: str) -> Columns:
    """A metric of the ancestors of answer and truth; of few classes, all pairs are computed once and looked up."""
    truth = h.labels.take(samples["truth"])
    answer = h.labels.take(samples["answer"])
    some_above = min(truth.min(initial=0), answer.min(initial=0)) < 0
    if some_above or h.num_leaves**2 > _MOST_PAIRS:
        return _ancestor_columns(h, name, samples["truth"], samples["answer"])
    above, below = _ancestor_pairs(h, name)
    pair = truth.astype(np.int64) * h.num_leaves + answer
    return above.take(pair), None if below is None else below.take(pair)


@cached_on_hierarchy
def _ancestor_pairs(h: Hierarchy, name: str) -> Columns:
    """The columns of all pairs of a true class and an answer."""
    truth, answer = np.divmod(np.arange(h.num_leaves**2), h.num_leaves)
    above, below = _ancestor_columns(h, name, h.leaf_nodes[truth], h.leaf_nodes[answer])
    return in_two_bytes(above), None if below is None or (below == 1).all() else in_two_bytes(below)


def _ancestor_columns(h: Hierarchy, name: str, truth: np.ndarray, answer: np.ndarray) -> Columns:
    measure: Measure = _ANCESTOR_MEASURES[name](h)
    above, below = measure.columns(MetricBatch(h, truth.astype(np.int64), answers=answer.astype(np.int64)))
    place = measure.names.index(name)
    return above[:, place], below[:, place]


_ANCESTOR_MEASURES: Mapping[str, Callable[[Hierarchy], Measure]] = {
    "hF1 (micro)": partial(measures.hierarchical_prf_measure, average="micro"),
    "iF1 (macro)": partial(measures.information_prf_measure, average="macro"),
}


def in_two_bytes(values: np.ndarray) -> np.ndarray:
    """The same values, in two bytes where these are enough, so that a thousand runs stay in memory at once."""
    whole = values.astype(np.int16)
    return whole if np.array_equal(whole, values) else np.ascontiguousarray(values)


# --- the metrics

ACCURACY = Metric(TOP1, "accuracy", columns=_right, meaning="the best class is right")
TOP5_ACCURACY = Metric(TOP5, "top-5", columns=_in_top5)
LEVELS_OFF = Metric(
    ("leaves", "severity"),
    "mistakes",
    percent=False,
    higher=False,
    columns=_levels_off,
    meaning="how many levels up the tree a mistake meets the truth",
    unit="levels",
)
DISTANCE = Metric(
    ("leaves", "HD@1"),
    "distance of answers",
    percent=False,
    higher=False,
    columns=_distance,
    meaning="levels from the answer up to where it meets the truth, 0 for right answers",
    unit="levels",
)
CONFIDENCE = Metric(
    CONFIDENCE_ERROR,
    "confidence",
    percent=False,
    higher=False,
    columns=partial(_as_stored, name=CONFIDENCE_ERROR[1]),
    meaning="mean squared error of the stated confidence, after one temperature",
    unit="error",
)
SPECIFICITY = Metric(
    SURE_DETAIL,
    "specificity",
    columns=partial(_as_stored, name=SURE_DETAIL[1]),
    resampled=True,
    meaning=f"how specific answers stay when at most {100 * (1 - GUARANTEE):.0f}% may be wrong; 100%: all are classes",
)
WITH_SIBLINGS = Metric((DERIVED, SIBLINGS), "top-1", columns=_right_with_siblings)

HEADLINES = (
    Metric(TOP1, "top-1", columns=_right),
    TOP5_ACCURACY,
    Metric(LEVELS_OFF.key, "levels off", percent=False, higher=False, columns=_levels_off),
    Metric(DISTANCE.key, "HD@1", percent=False, higher=False, columns=_distance),
    Metric(("leaves", "HD@5"), "HD@5", percent=False, higher=False),
    Metric(("leaves", "HD@20"), "HD@20", percent=False, higher=False),
    Metric((ANCESTORS, "hF1 (micro)"), "hF1", columns=partial(_by_ancestors, name="hF1 (micro)")),
    Metric((ANCESTORS, "iF1 (macro)"), "iF1", columns=partial(_by_ancestors, name="iF1 (macro)")),
    Metric(("levels together", "full-path accuracy"), "full path"),
    Metric(("selection", "AURC"), "AURC", higher=False),
)


def accuracy_by_level(hierarchy: Hierarchy | None) -> list[Metric]:
    """The best class carried up to each level, from the top; none on a DAG."""
    return [
        Metric(
            (BY_LEVEL, name),
            name,
            columns=partial(_right_below, level=level),
            meaning=f"the best class is below the right {node_of_level(name)}",
        )
        for level, name in enumerate(level_names(hierarchy))
    ]


def best_node_by_level(hierarchy: Hierarchy | None) -> list[Metric]:
    """The most probable node of each level, from the top; none on a DAG."""
    return [
        Metric(
            (BEST_NODE_BY_LEVEL, name),
            name,
            columns=partial(_best_node_right, level=level),
            meaning="the most probable node of the level is right",
        )
        for level, name in enumerate(level_names(hierarchy))
    ]


def ece_by_level(hierarchy: Hierarchy | None) -> list[Metric]:
    """The calibration error at each level, from the top; none on a DAG."""
    return [Metric((ECE_BY_LEVEL, name), f"{name} ECE", higher=False) for name in level_names(hierarchy)]


def calibrated(metric: Metric) -> Metric:
    """The same metric of calibrated scores."""
    heading, name = metric.key
    return Metric((CALIBRATED + heading, name), f"{metric.title}, calibrated", metric.percent, metric.higher)


def aspects(hierarchy: Hierarchy | None) -> list[Metric]:
    """In what a method can be better, the most important first. A DAG has no levels and no single way up."""
    above_classes = accuracy_by_level(hierarchy)[-2:-1]
    coarse = [replace(metric, title="coarse answers") for metric in above_classes]
    on_trees = [SPECIFICITY] if level_names(hierarchy) else []
    return [ACCURACY, LEVELS_OFF, *coarse, CONFIDENCE, *on_trees]
