"""Comparisons, where methods compete, and the run that represents a method at a seed.

A seed repeats the whole procedure, including its choice. The paper's protocol takes each seed's best run on the test set, as
the paper does. In the fair one the rate is already chosen on held-out samples; it takes the dilution that was best there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hace.data import DATASETS
from hace.hierarchy import Hierarchy
from hace.lab.models import ARCHITECTURES
from hace.lab.study.cells import NO_RESULT, CellKey, Record, best_record
from hace.lab.study.methods import DINOV2, METHODS
from hace.metrics.evaluation import MetricKey

BY_LEVEL = "accuracy by level, answer carried up"
BEST_NODE_BY_LEVEL = "accuracy by level, best node of the level"
ECE_BY_LEVEL = "calibration error (ECE) by level"
TOP1: MetricKey = ("leaves", "top-1")
TOP5: MetricKey = ("leaves", "top-5")
PROTOCOLS = {"fair": "fair protocol", "paper": "paper's protocol", "single": "as given"}


@dataclass(frozen=True)
class Metric:
    """How a metric is shown."""

    key: MetricKey  # its heading and name in results
    title: str  # short, for a column
    percent: bool = True  # a share, shown in percent
    higher: bool = True  # is better

    def text(self, value: float, sign: bool = False) -> str:
        """A value as tables show it."""
        shown = 100 * value if self.percent else value
        digits = 2 if self.percent else 3
        shown = round(shown, digits) + 0.0  # never -0.00
        return f"{shown:+.{digits}f}" if sign else f"{shown:.{digits}f}"


HEADLINES = (
    Metric(TOP1, "top-1"),
    Metric(TOP5, "top-5"),
    Metric(("leaves", "severity"), "severity", percent=False, higher=False),
    Metric(("leaves", "HD@1"), "HD@1", percent=False, higher=False),
    Metric(("leaves", "HD@5"), "HD@5", percent=False, higher=False),
    Metric(("leaves", "HD@20"), "HD@20", percent=False, higher=False),
    Metric(("ancestors and information", "hF1 (micro)"), "hF1"),
    Metric(("ancestors and information", "iF1 (macro)"), "iF1"),
    Metric(("levels together", "full-path accuracy"), "full path"),
    Metric(("selection", "AURC"), "AURC", higher=False),
)


class Comparison(NamedTuple):
    """Where methods compete: a protocol, a data set, a model and what is known of the training labels."""

    protocol: str
    dataset: str
    model: str
    labels: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """Data set and model; features that do not say where they come from have no model."""
        return (shown(self.dataset), *([shown(self.model)] if self.model != "features" else []))

    @property
    def title(self) -> str:
        """For headings; only the paper's protocol needs a word."""
        protocol = [PROTOCOLS[self.protocol]] if self.protocol == "paper" else []
        return ", ".join([*self.place, *protocol, *([self.labels] if self.labels else [])])

    @property
    def column(self) -> str:
        """Its model and labels, in tables by data set."""
        return f"{shown(self.model)}, {self.labels}" if self.labels else shown(self.model)

    @property
    def slug(self) -> str:
        """For file names."""
        return "-".join(
            "".join(c if c.isalnum() or c in "._" else "_" for c in part)
            for part in (self.dataset, self.model, self.protocol, self.labels)
            if part
        )


@dataclass(frozen=True, eq=False)
class Choice:
    """The runs that represent a method in a comparison, one per seed."""

    comparison: Comparison
    method: str
    records: tuple[Record, ...]
    candidates: tuple[int, ...] = ()  # how many candidates each of them was chosen from

    @property
    def budget(self) -> str:
        """How many candidates each seed had: "8", or "8 to 10" where seeds differ; "" where nothing is chosen."""
        return budget_of([self])

    @cached_property
    def finished(self) -> tuple[Record, ...]:
        """The runs with a result."""
        return tuple(r for r in self.records if r.status == "finished")

    @property
    def state(self) -> str:
        """Shown instead of a number, or after it: "", "diverged", "1 of 3 diverged" ..."""
        count = Counter(r.status for r in self.records)
        missing = [(count[s], s) for s in NO_RESULT if count[s]]
        if not self.finished:
            return missing[0][1] if missing else "not run"
        return ", ".join(f"{n} of {len(self.records)} {s}" for n, s in missing)

    @property
    def settings(self) -> str:
        """The chosen settings: "d 0.5, rate 8 to 16"."""
        method = METHODS.get(self.method)
        diluted = method is None or method.diluted or bool(method.tuned)
        dilutions = sorted({d for r in self.finished if (d := _dilution(r)) is not None})
        rates = sorted({r.lr for r in self.finished})
        decays = sorted({r.run.config.weight_decay for r in self.finished if r.run is not None})
        parts = [f"d {_range(dilutions)}"] if diluted and dilutions else []
        parts += [f"rate {_range(rates)}"] if rates else []
        return ", ".join([*parts, f"decay {_range(decays)}"] if len(decays) > 1 else parts)

    def values(self, key: MetricKey) -> list[float]:
        """The metric of every finished seed that has it."""
        found = [r.metric(*key) for r in self.finished]
        return [v for v in found if v is not None]


def chosen_runs(records: Iterable[Record], by: MetricKey = TOP1) -> dict[Comparison, dict[str, Choice]]:
    """For each comparison and method, the run of each seed that tables show."""
    found: dict[Comparison, dict[str, dict[int, list[Record]]]] = {}
    validation: dict[tuple[object, ...], float] = {}
    for record in records:
        key = record.key
        if record.stage == "search":
            if record.top1 is not None:
                cell = (*comparison_of(key), key.method, key.seed, key.dilution)
                validation[cell] = max(validation.get(cell, 0.0), record.top1)
            continue
        comparison = comparison_of(key)
        found.setdefault(comparison, {}).setdefault(key.method, {}).setdefault(key.seed, []).append(record)

    def merit(record: Record) -> float | None:
        key = record.key
        if key.protocol == "paper":
            return record.metric(*by)
        return validation.get((*comparison_of(key), key.method, key.seed, key.dilution))

    order = {method: i for i, method in enumerate(METHODS)}
    chosen: dict[Comparison, dict[str, Choice]] = {}
    first_seen = {pair: i for i, pair in reversed([*enumerate((p.dataset, p.model) for p in found)])}
    in_order = sorted(found, key=lambda p: (first_seen[p.dataset, p.model], p.protocol))  # fair beside paper
    for comparison in in_order:
        methods, chosen[comparison] = found[comparison], {}
        for method in sorted(methods, key=lambda m: (order.get(m, len(order)), m)):
            by_seed = [methods[method][seed] for seed in sorted(methods[method])]
            best = tuple(best_record(records, merit) for records in by_seed)
            tried = tuple(sum(r.candidates for r in records) for records in by_seed)
            chosen[comparison][method] = Choice(comparison, method, best, tried)
    return chosen


def _dilution(record: Record) -> float | None:
    """The dilution of a run: its cell's, or the one that its search chose."""
    if record.key.dilution is not None or record.run is None:
        return record.key.dilution
    return record.run.config.loss.options.get("dilution")


def comparison_of(key: CellKey) -> Comparison:
    """The comparison of a cell."""
    return Comparison(key.protocol, key.dataset, key.model, key.labels)


def level_names(hierarchy: Hierarchy) -> tuple[str, ...]:
    """The names of levels in results."""
    from hace.metrics.measures import level_titles

    return level_titles(hierarchy) if hierarchy.is_tree else ()


def method_title(key: str) -> str:
    """The title of a method."""
    return METHODS[key].title if key in METHODS else key


def control_of(method: str) -> str:
    """What a method is a control of; "" if it may be used."""
    return METHODS[method].control if method in METHODS else ""


def may_be_used(method: str) -> bool:
    """Whether a verdict may recommend a method: controls and methods that drop labels are there to compare with."""
    known = METHODS.get(method)
    return known is None or not (known.control or known.drops)


def shown(key: str) -> str:
    """The title of a data set or model."""
    if key in ARCHITECTURES:
        return ARCHITECTURES[key].title
    if key in DATASETS and DATASETS[key].official:
        return DATASETS[key].title
    return "DINOv2-Large" if key == DINOV2 else key


def budget_of(choices: Iterable[Choice]) -> str:
    """How many candidates the seeds of several choices had, from the fewest to the most."""
    counts = sorted(n for c in choices if c.comparison.protocol != "single" for n in c.candidates)
    return _range(counts) if counts else ""


def _range(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if values[0] == values[-1] else f"{values[0]:g} to {values[-1]:g}"


def unseen_classes(records: Iterable[Record]) -> str:
    """Which classes had no training sample in some runs: "2 classes have no training sample: lynx, owl"; "" if none."""
    trained = [(r.run.result.get("train") or {}) for r in records if r.run is not None and r.run.result]
    names = sorted({name for train in trained for name in train.get("unseen_classes", ())})
    words = "1 class has" if len(names) == 1 else f"{len(names):,} classes have"
    return (
        f"{words} no training sample: {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}"
        if names
        else ""
    )
