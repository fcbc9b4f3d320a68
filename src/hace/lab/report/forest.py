"""All methods against a reference, aspect by aspect: a table with a drawn interval in each row."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from hace.lab.report.arenas import HEADLINES, Arena, Metric, method_title
from hace.lab.report.aspects import Aspect, Finding, aspects, certainties, other_rule
from hace.lab.report.blocks import Switch
from hace.lab.report.render import Entry, ReportTable
from hace.lab.report.results import Results
from hace.lab.study.methods import METHODS

_DISTANCE = Aspect(
    "distance of answers",
    Metric(HEADLINES[3].key, "distance of answers", percent=False, higher=False),
    "levels from the answer up to where it meets the truth, 0 for right answers",
    unit="levels",
)


_HEADS = (("difference", ""), ("how certain", "wide"), ("candidates", "wide"), ("chosen", "wide stub"))


@dataclass(frozen=True)
class ForestRow:
    """A method in a forest plot."""

    method: str
    finding: Finding
    candidates: str
    settings: str


@dataclass(frozen=True)
class Forest:
    """All methods minus a reference in one aspect.

    Attributes:
        id: For files.
        where: Title of the arena.
        aspect: What is compared.
        reference: The method that all are compared with.
        first: The method in colour.
        value: The reference's own mean.
        rows: The best first.
    """

    id: str
    where: str
    aspect: Aspect
    reference: str
    first: str
    value: float
    rows: tuple[ForestRow, ...]

    @property
    def title(self) -> str:
        """Its caption."""
        unit = f" in {self.aspect.unit}" if self.aspect.unit else ""
        return f"{self.aspect.name} minus {method_title(self.reference)}{unit}"

    def table(self) -> ReportTable:
        """The same without the drawing."""
        rows = tuple(
            (
                Entry(method_title(r.method)),
                Entry(self.aspect.gap(r.finding.gap.value), r.finding.interval),
                Entry(self.aspect.value(r.finding.ours)),
                Entry(r.finding.word),
                Entry(r.candidates),
                Entry(r.settings or "-"),
            )
            for r in self.rows
        )
        heads = ("method", "difference", self.aspect.metric.title, "how certain", "candidates", "chosen")
        reference = f"{method_title(self.reference)}: {self.aspect.value(self.value)}."
        return ReportTable(
            self.id, f"{self.where}: {self.title}", (heads,), rows, remarks=(reference, self.note)
        )

    @property
    def note(self) -> str:
        """How to read it."""
        way = "more" if self.aspect.metric.higher else "less"
        return (
            f"{self.aspect.name[0].upper()}{self.aspect.name[1:]}: {self.aspect.meaning}; {way} is better. Lines are 95 % "
            f"intervals, paired over seeds and test samples, faint where they include 0; a ring lies beyond the axis. Clear: "
            f"it remains after Holm's correction for all {len(self.rows)} comparisons. Candidates: settings tried per seed."
            + "".join(f" {method_title(m)} is a control: {METHODS[m].control}." for m in self.controls)
        )

    @property
    def controls(self) -> list[str]:
        """The methods that are there to compare with, not to be used."""
        return [r.method for r in self.rows if r.method in METHODS and METHODS[r.method].control]


def forests(results: Results, arena: Arena) -> Switch | None:
    """One plot for each aspect; None where there is nothing to compare."""
    arrays, reference = results.arrays[arena], results.second
    found = []
    for aspect in (*aspects(arrays), _DISTANCE, *other_rule(arrays)):
        value = arrays.score(reference, aspect.metric.key).value
        rows = _rows(results, arena, aspect)
        if rows and value is not None:
            slug = "".join(c if c.isalnum() else "_" for c in aspect.name)
            plot = Forest(
                f"against-{arena.slug}-{slug}", arena.title, aspect, reference, results.first, value, rows
            )
            found.append((aspect.name[0].upper() + aspect.name[1:], plot))
    return Switch("Compare in", tuple(found)) if found else None


def _rows(results: Results, arena: Arena, aspect: Aspect) -> tuple[ForestRow, ...]:
    arrays, reference = results.arrays[arena], results.second
    gaps = {}
    for method in arrays.choices:
        ours = arrays.score(method, aspect.metric.key).value
        gap = None if method == reference else arrays.difference(method, reference, aspect.metric.key)
        if gap is not None and ours is not None:
            gaps[method] = (ours, *gap)
    theirs = arrays.score(reference, aspect.metric.key).value or 0.0
    sign = -1 if aspect.metric.higher else 1
    sure = certainties({method: (gap, seeds) for method, (_, gap, seeds) in gaps.items()})
    rows = []
    for method, (ours, gap, _) in sorted(gaps.items(), key=lambda item: sign * item[1][1].value):
        finding = Finding(aspect, ours, theirs, gap, sure[method])
        rows.append(
            ForestRow(method, finding, arrays.choices[method].budget, arrays.choices[method].settings)
        )
    return tuple(rows)


def limits(intervals: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The ends of the axis: of all intervals and 0, but for a few that are far off and would squeeze the others.

    Example:
        >>> limits([(-1.0, 0.0, 1.0)] * 9 + [(-90.0, -80.0, -70.0)])
        (-6.35, 1.35)
    """
    ends = [x for interval in intervals for x in interval if x == x]
    far = (6 * median(abs(x) for x in ends) if ends else 0.0) or inf
    low, high = max(min([*ends, 0.0]), -far), min(max([*ends, 0.0]), far)
    margin = 0.05 * (high - low) or 1.0
    return round(low - margin, 6), round(high + margin, 6)


def to_forest_html(plot: Forest) -> str:
    """The plot as a table; its drawing is hidden from screen readers, which have the numbers."""
    e = html.escape
    low, high = limits([(r.finding.gap.low, r.finding.gap.value, r.finding.gap.high) for r in plot.rows])

    def at(x: float) -> float:
        return round(100 * min(max((x - low) / (high - low), 0.0), 1.0), 2)

    title = plot.title[0].upper() + plot.title[1:]
    zero = f"{method_title(plot.reference)} {plot.aspect.value(plot.value)}"
    heads = "".join(f'<th scope="col" class="{look}">{head}</th>' for head, look in _HEADS)
    lines = [
        f'<figure class="table forest"><p class="title" aria-hidden="true">{e(title)}</p>',
        f'<table><caption class="heard">{e(plot.where)}: {e(plot.title)}</caption>',
        f'<thead><tr><th scope="col" class="stub">method</th><td class="plot"><span class="zero" '
        f'style="left:{at(0)}%;transform:translateX(-{at(0)}%)">',
        f"{e(zero)}</span></td>{heads}</tr></thead><tbody>",
    ]
    for r in plot.rows:
        gap = r.finding.gap
        known = gap.low == gap.low
        line = (
            f'<i style="left:{at(gap.low)}%;width:{round(at(gap.high) - at(gap.low), 2)}%"></i>'
            if known
            else ""
        )
        look = " ".join(
            filter(
                None,
                ("first" if r.method == plot.first else "", "faint" if r.finding.certainty == "open" else ""),
            )
        )
        dot = "dot" if low <= gap.value <= high else "dot beyond"
        drawn = f'<s style="left:{at(0)}%"></s>{line}<i class="{dot}" style="left:{at(gap.value)}%"></i>'
        lines += [
            f'<tr class="{look}"><th scope="row">{e(method_title(r.method))}</th>',
            f'<td class="plot" aria-hidden="true">{drawn}</td>',
            f"<td>{plot.aspect.gap(gap.value)} <small>{e(r.finding.interval)}</small></td>",
            f'<td class="wide">{r.finding.word}</td><td class="wide">{r.candidates}</td>',
            f'<td class="wide stub">{e(r.settings or "-")}</td></tr>',
        ]
    return (
        "\n".join([*lines, f"</tbody></table><figcaption><p>{e(plot.note)}</p></figcaption></figure>"]) + "\n"
    )
