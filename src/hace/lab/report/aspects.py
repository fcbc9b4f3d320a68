"""In what a method can be better: right answers, milder mistakes, coarse answers, confidence, and detail at a promise.

Each aspect is one metric with an interval from the same draws of seeds and samples, and one word for how certain it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hace.lab.report.arenas import BEST_NODE_BY_LEVEL, BY_LEVEL, TOP1, Metric, level_names
from hace.lab.report.scores import ArenaScores
from hace.lab.report.sure_answers import CONFIDENCE_ERROR, PROMISE, SURE_DETAIL
from hace.metrics.intervals import Interval, Key, compared_together
from hace.metrics.measures import node_of_level

Certainty = Literal["clear", "likely", "open"]
ENOUGH_SEEDS = 3  # with fewer, nothing is clear


@dataclass(frozen=True)
class Aspect:
    """A way to be better.

    Attributes:
        name: For people: "accuracy".
        metric: What is measured.
        meaning: What it says, in a clause.
        unit: Of differences.
    """

    name: str
    metric: Metric
    meaning: str
    unit: str = "points"

    def gap(self, value: float) -> str:
        """A difference as cards show it: one digit of points, or three of a number."""
        return signed(100 * value, 1) if self.metric.percent else signed(value, 3)

    def value(self, value: float) -> str:
        """A value as cards show it."""
        return f"{100 * value:.1f} %" if self.metric.percent else f"{value:.3f}"


def signed(value: float, digits: int) -> str:
    """A difference with its sign; what rounds to 0 has none.

    Example:
        >>> signed(1.26, 1), signed(-0.04, 1)
        ('+1.3', '0.0')
    """
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def bracketed(low: float, high: float, digits: int) -> str:
    """An interval with signs; one that excludes 0 has as many digits as show it.

    Example:
        >>> bracketed(-0.04, 1.26, 1), bracketed(0.04, 1.26, 1)
        ('[0.0, +1.3]', '[+0.04, +1.26]')
    """
    while low * high > 0 and not float(f"{min(abs(low), abs(high)):.{digits}f}") and digits < 6:
        digits += 1
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


@dataclass(frozen=True)
class Finding:
    """What a study says of one aspect of two methods.

    Attributes:
        aspect: Which.
        ours: Mean of the first method.
        theirs: Mean of the second.
        gap: First minus second.
        certainty: "clear": the difference remains after Holm's correction for all comparisons made at once, over three or
            more seeds. "likely": its own 95 % interval excludes 0. "open": it includes 0.
    """

    aspect: Aspect
    ours: float
    theirs: float
    gap: Interval
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


def aspects(arrays: ArenaScores) -> list[Aspect]:
    """The aspects of an arena, the most important first. A DAG has no levels and no single way up."""
    names = level_names(arrays.hierarchy) if arrays.hierarchy is not None else ()
    found = [
        Aspect("accuracy", Metric(TOP1, "accuracy"), "the best class is right"),
        Aspect(
            "mistakes",
            Metric(("leaves", "severity"), "severity of mistakes", percent=False, higher=False),
            "how far up the tree a mistake meets the truth, in levels",
            unit="levels",
        ),
    ]
    if len(names) > 1:
        title = names[-2]
        found.append(
            Aspect(
                "coarse answers",
                Metric((BY_LEVEL, title), f"right {title}"),
                f"the best class is below the right {node_of_level(title)}",
            )
        )
    found.append(
        Aspect(
            "confidence",
            Metric(CONFIDENCE_ERROR, "confidence error", percent=False, higher=False),
            "mean squared error of the stated confidence, after one temperature",
            unit="error",
        )
    )
    if names:
        found.append(
            Aspect(
                f"detail at {100 * PROMISE:.0f} %",
                Metric(SURE_DETAIL, "detail at a promise"),
                f"how specific answers stay when at most {100 * (1 - PROMISE):.0f} % may be wrong; 100 %: all are classes",
            )
        )
    return found


def other_rule(arrays: ArenaScores) -> list[Aspect]:
    """Accuracy at inner levels by the other rule: the most probable node of the level."""
    names = level_names(arrays.hierarchy)[:-1] if arrays.hierarchy is not None else ()
    meaning = "the most probable node of the level is right"
    return [
        Aspect(f"best {name}", Metric((BEST_NODE_BY_LEVEL, name), f"best {name}"), meaning)
        for name in names[-1:]
    ]


def findings(
    arrays: ArenaScores, first: str, second: str, of: Sequence[Aspect] | None = None
) -> list[Finding]:
    """First minus second in every aspect that both have."""
    found = []
    wanted = aspects(arrays) if of is None else of
    for aspect in wanted:
        ours, theirs = (arrays.score(m, aspect.metric.key).value for m in (first, second))
        gap = arrays.difference(first, second, aspect.metric.key)
        if gap is not None and ours is not None and theirs is not None:
            found.append((aspect, ours, theirs, *gap))
    sure = certainties({aspect.name: (gap, seeds) for aspect, _, _, gap, seeds in found})
    return [Finding(aspect, ours, theirs, gap, sure[aspect.name]) for aspect, ours, theirs, gap, _ in found]


def certainties(gaps: Mapping[Key, tuple[Interval, int]]) -> dict[Key, Certainty]:
    """How certain each of several differences is, judged together.

    Args:
        gaps: Differences by name, with the number of seeds behind each.

    Example:
        >>> gap = Interval(2.0, 0.5, 3.5, 0.8)
        >>> certainties({"a": (gap, 5)}), certainties({name: (gap, 5) for name in "abcdef"})["a"]
        ({'a': 'clear'}, 'likely')
    """
    together = compared_together({name: gap for name, (gap, _) in gaps.items()})
    found: dict[Key, Certainty] = {}
    for name, (gap, seeds) in gaps.items():
        sure = together[name].holds and seeds >= ENOUGH_SEEDS
        found[name] = "open" if not gap.excludes_zero else "clear" if sure else "likely"
    return found
