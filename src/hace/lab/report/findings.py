"""In what a method can be better: right answers, milder mistakes, coarse answers, confidence, and detail at a guarantee.

Each aspect is one metric with an interval over the same seeds and samples, and one word for how certain it is. A forest plot
shows an aspect of all methods against a reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import median
from typing import ClassVar, Literal

from hace.lab.report.conformal import CONFIDENCE_ERROR, GUARANTEE, SURE_DETAIL
from hace.lab.report.document import Entry, ReportTable, Switch
from hace.lab.report.results import (
    BEST_NODE_BY_LEVEL,
    BY_LEVEL,
    HEADLINES,
    TOP1,
    Choice,
    Comparison,
    MethodScores,
    Metric,
    Results,
    control_of,
    level_names,
    method_title,
)
from hace.metrics.intervals import Interval, Key, compared_together
from hace.metrics.measures import node_of_level

Certainty = Literal["clear", "likely", "open"]
ENOUGH_SEEDS = 3  # with fewer, nothing is clear


@dataclass(frozen=True)
class Aspect:
    """A way to be better."""

    name: str  # for people: "accuracy"
    metric: Metric  # what is measured
    meaning: str  # what it says, in a clause
    unit: str = "points"  # of differences

    def gap(self, value: float) -> str:
        """A difference as cards show it: one digit of points, or three of a number."""
        return signed(100 * value, 1) if self.metric.percent else signed(value, 3)

    def value(self, value: float) -> str:
        """A value as cards show it."""
        return f"{100 * value:.1f}%" if self.metric.percent else f"{value:.3f}"


def signed(value: float, digits: int) -> str:
    """A difference with its sign; what rounds to 0 has none."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def bracketed(low: float, high: float, digits: int) -> str:
    """An interval with signs; one that excludes 0 has as many digits as show it."""
    while low * high > 0 and not float(f"{min(abs(low), abs(high)):.{digits}f}") and digits < 6:
        digits += 1
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


@dataclass(frozen=True)
class Finding:
    """What a study says of one aspect of two methods: their means, and first minus second."""

    aspect: Aspect
    ours: float
    theirs: float
    gap: Interval
    # "clear": the difference remains after Holm's correction for all comparisons made at once, over three or more seeds;
    # "likely": its own 95% interval excludes 0; "open": it includes 0
    certainty: Certainty

    @property
    def better(self) -> bool:
        """Whether the first is better, as far as the study shows."""
        return self.certainty != "open" and (self.gap.value > 0) == self.aspect.metric.higher

    @property
    def worse(self) -> bool:
        """Whether the first is worse, as far as the study shows."""
        return self.certainty != "open" and not self.better

    @property
    def word(self) -> str:
        """How certain it is, and which way: "clear gain"."""
        return certainty_word(self.certainty, self.better)

    @property
    def interval(self) -> str:
        """The interval: "[+0.3, +2.1]"."""
        if self.gap.low != self.gap.low:
            return "without an interval"
        scale, digits = (100, 1) if self.aspect.metric.percent else (1, 3)
        return bracketed(scale * self.gap.low, scale * self.gap.high, digits)


def certainty_word(certainty: Certainty, better: bool) -> str:
    """How certain a difference is, and which way: "clear gain", "likely loss", "unclear"."""
    return "unclear" if certainty == "open" else f"{certainty} {'gain' if better else 'loss'}"


def points(gap: Interval) -> str:
    """A difference of accuracies: "+6.0 points [+4.4, +7.5]"."""
    ends = "" if gap.low != gap.low else f" {bracketed(100 * gap.low, 100 * gap.high, 1)}"
    return f"{signed(100 * gap.value, 1)} points{ends}"


def aspects(arrays: MethodScores) -> list[Aspect]:
    """The aspects of a comparison, the most important first. A DAG has no levels and no single way up."""
    names = level_names(arrays.hierarchy)
    severity = Metric(("leaves", "severity"), "severity of mistakes", percent=False, higher=False)
    how_far = "how far up the tree a mistake meets the truth, in levels"
    error = Metric(CONFIDENCE_ERROR, "confidence error", percent=False, higher=False)
    squared = "mean squared error of the stated confidence, after one temperature"
    left = f"how specific answers stay when at most {100 * (1 - GUARANTEE):.0f}% may be wrong; 100%: all are classes"
    detail = Aspect(f"detail at {100 * GUARANTEE:.0f}%", Metric(SURE_DETAIL, "detail at a guarantee"), left)
    below = [
        Aspect("coarse answers", Metric((BY_LEVEL, n), f"right {n}"), f"the best class is below the right {node_of_level(n)}")
        for n in names[-2:-1]
    ]  # fmt: skip
    return [
        Aspect("accuracy", Metric(TOP1, "accuracy"), "the best class is right"),
        Aspect("mistakes", severity, how_far, unit="levels"),
        *below,
        Aspect("confidence", error, squared, unit="error"),
        *([detail] if names else []),
    ]


def findings(arrays: MethodScores, first: str, second: str) -> list[Finding]:
    """First minus second in every aspect that both have."""
    return [found for _, found in _judged(arrays, [(first, second, aspect) for aspect in aspects(arrays)])]


def _judged(arrays: MethodScores, asked: Iterable[tuple[str, str, Aspect]]) -> list[tuple[str, Finding]]:
    """First minus second in an aspect, for all triples that have it, judged together; each with its first method."""
    found = []
    for first, second, aspect in asked:
        ours, theirs = (arrays.score(m, aspect.metric.key).value for m in (first, second))
        gap = arrays.difference(first, second, aspect.metric.key)
        if gap is not None and ours is not None and theirs is not None:
            found.append((first, aspect, ours, theirs, *gap))
    sure = certainties({i: (gap, seeds) for i, (*_, gap, seeds) in enumerate(found)})
    each = enumerate(found)
    return [(m, Finding(a, ours, theirs, gap, sure[i])) for i, (m, a, ours, theirs, gap, _) in each]


def certainties(gaps: Mapping[Key, tuple[Interval, int]]) -> dict[Key, Certainty]:
    """How certain each of several differences is, judged together."""
    together = compared_together({name: gap for name, (gap, _) in gaps.items()})
    found: dict[Key, Certainty] = {}
    for name, (gap, seeds) in gaps.items():
        sure = together[name].holds and seeds >= ENOUGH_SEEDS
        found[name] = "open" if not gap.excludes_zero else "clear" if sure else "likely"
    return found


_HD1 = Metric(HEADLINES[3].key, "distance of answers", percent=False, higher=False)
_MEETS = "levels from the answer up to where it meets the truth, 0 for right answers"
_DISTANCE = Aspect("distance of answers", _HD1, _MEETS, unit="levels")


@dataclass(frozen=True)
class Forest:
    """All methods minus a reference in one aspect: a table with a drawn interval in each row."""

    comparison: Comparison
    aspect: Aspect
    reference: str
    first: str  # the method in colour
    value: float  # the reference's own mean
    rows: list[tuple[Choice, Finding]]  # the best first
    kind: ClassVar[str] = "forest"

    @property
    def title(self) -> str:
        """Its caption."""
        return f"{self.aspect.name} minus {method_title(self.reference)} in {self.aspect.unit}"

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis."""
        return limits([(f.gap.low, f.gap.value, f.gap.high) for _, f in self.rows])

    def at(self, x: float) -> float:
        """Where a difference is drawn, in percent of the axis; beyond its ends, at them."""
        low, high = self.limits
        return round(100 * min(max((x - low) / (high - low), 0.0), 1.0), 2)

    def table(self) -> ReportTable:
        """The same without the drawing."""
        rows = []
        for choice, found in self.rows:
            gap = Entry(self.aspect.gap(found.gap.value), found.interval)
            more = (self.aspect.value(found.ours), found.word, choice.budget, choice.settings or "-")
            rows.append((Entry(method_title(choice.method)), gap, *map(Entry, more)))
        heads = ("method", "difference", self.aspect.metric.title, "how certain", "candidates", "chosen")
        remarks = (f"{method_title(self.reference)}: {self.aspect.value(self.value)}.", self.note)
        name = f"against-{self.comparison.slug}-{re.sub(r'[^0-9A-Za-z]', '_', self.aspect.name)}"
        title = f"{self.comparison.title}: {self.title}"
        return ReportTable(name, title, (heads,), tuple(rows), remarks=remarks)

    @property
    def note(self) -> str:
        """How to read it."""
        way, methods = "more" if self.aspect.metric.higher else "less", [c.method for c, _ in self.rows]
        return (
            f"{self.aspect.name[0].upper()}{self.aspect.name[1:]}: {self.aspect.meaning}; {way} is better. Lines are 95% "
            f"intervals, paired over seeds and test samples, faint where they include 0; a ring lies beyond the axis. Clear: "
            f"it remains after Holm's correction for {len(self.rows)} methods. Candidates: settings tried per seed."
            + "".join(f" {method_title(m)} is a control: {c}." for m in methods if (c := control_of(m)))
        )


def forests(results: Results, comparison: Comparison) -> Switch | None:
    """One plot for each aspect; None where there is nothing to compare."""
    arrays, reference = results.arrays[comparison], results.second
    found, meaning = [], "the most probable node of the level is right"  # the other rule, above the classes
    names = level_names(arrays.hierarchy)[-2:-1]
    other = [Aspect(f"best {n}", Metric((BEST_NODE_BY_LEVEL, n), f"best {n}"), meaning) for n in names]
    for aspect in (*aspects(arrays), _DISTANCE, *other):
        judged = _judged(arrays, [(m, reference, aspect) for m in arrays.choices if m != reference])
        judged.sort(key=lambda item: item[1].gap.value, reverse=aspect.metric.higher)
        if judged:
            rows = [(arrays.choices[method], finding) for method, finding in judged]
            plot = Forest(comparison, aspect, reference, results.first, judged[0][1].theirs, rows)
            found.append((aspect.name[0].upper() + aspect.name[1:], plot))
    return Switch("Compare in", tuple(found)) if found else None


def limits(intervals: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The ends of the axis: of all intervals and 0, but for a few that are far off and would squeeze the others."""
    ends = [x for interval in intervals for x in interval if x == x]
    far = (6 * median(abs(x) for x in ends) if ends else 0.0) or inf
    low, high = max(min([*ends, 0.0]), -far), min(max([*ends, 0.0]), far)
    margin = 0.05 * (high - low) or 1.0
    return round(low - margin, 6), round(high + margin, 6)
