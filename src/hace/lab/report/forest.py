"""All methods against the reference, an interval each: one plot for each metric."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from statistics import median
from typing import ClassVar

import pandas as pd

from hace.lab.report.compare import compare
from hace.lab.report.document import Entry, Switch, Table
from hace.lab.report.metric import DISTANCE, Metric, aspects, best_node_by_level
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition, control_of, method_title
from hace.lab.report.sentences import say


@dataclass(frozen=True, eq=False)
class Forest:
    """All methods minus the reference in one metric: a table with a drawn interval in each row."""

    condition: Condition
    metric: Metric
    reference: str
    first: str  # the method in colour
    rows: pd.DataFrame  # of `compare`, the best first, with what was tried and chosen
    kind: ClassVar[str] = "forest"

    @property
    def title(self) -> str:
        """Its caption."""
        return f"{self.metric.title} minus {self.reference_title} in {self.metric.unit}"

    @property
    def reference_title(self) -> str:
        """Of the method that others are compared with."""
        return method_title(self.reference)

    @property
    def value(self) -> str:
        """The reference's own mean."""
        return self.metric.short(self.rows["theirs"].iloc[0])

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis."""
        return limits(self.rows[["low", "difference", "high"]].to_numpy().ravel().tolist())

    def at(self, x: float) -> float:
        """Where a difference is drawn, in percent of the axis; beyond its ends, at them."""
        low, high = self.limits
        return round(100 * min(max((x - low) / (high - low), 0.0), 1.0), 2)

    @property
    def lines(self) -> list[dict[str, object]]:
        """What the drawing needs of each row."""
        return [self._line(row) for _, row in self.rows.iterrows()]

    def _line(self, row: pd.Series) -> dict[str, object]:
        """What the page draws of a difference."""
        has_interval = row.low == row.low
        return {
            "method": method_title(row["first"]),
            "is_first": row["first"] == self.first,
            "includes_zero": not (row.low > 0 or row.high < 0),
            "at": self.at(row.difference),
            "beyond": not self.limits[0] <= row.difference <= self.limits[1],
            "start": self.at(row.low) if has_interval else None,
            "width": round(self.at(row.high) - self.at(row.low), 2) if has_interval else None,
            "difference": self.metric.gap(row.difference),
            "interval": self.metric.gap_interval(row.low, row.high),
            "mean": self.metric.short(row.ours),
            "p": p_text(row.holm),
            "tried": row.tried,
            "settings": row.settings or "-",
        }

    def table(self) -> Table:
        """The same without the drawing."""
        lines = self.lines
        frame = pd.DataFrame(
            {
                "method": [line["method"] for line in lines],
                "difference": [Entry(str(line["difference"]), str(line["interval"])) for line in lines],
                self.metric.title: [line["mean"] for line in lines],
                "p": [line["p"] for line in lines],
                "settings tried": [line["tried"] for line in lines],
                "chosen": [line["settings"] for line in lines],
            }
        )
        remarks = (f"{self.reference_title}: {self.value}.", self.note)
        name = f"against-{self.condition.slug}-{re.sub(r'[^0-9A-Za-z]', '_', self.metric.title)}"
        return Table(name, f"{self.condition.title}: {self.title}", frame, remarks=remarks)

    @property
    def note(self) -> str:
        """How to read it."""
        controls = {method_title(m): control for m in self.rows["first"] if (control := control_of(m))}
        way = "more" if self.metric.higher else "less"
        return say("forest", metric=self.metric, way=way, methods=len(self.rows), controls=controls)


def p_text(p: float) -> str:
    """A p-value in two digits: "0.013"; "-" where it is not known."""
    if p != p:
        return "-"
    return "<0.0001" if p < 1e-4 else f"{p:.2g}"


def forests(results: Results, condition: Condition) -> Switch | None:
    """One plot for each metric; None where there is nothing to compare."""
    scores = results.scores[condition]
    # The other rule above the classes.
    best_nodes = [
        replace(metric, title=f"best {metric.title}")
        for metric in best_node_by_level(scores.hierarchy)[-2:-1]
    ]
    plots = [
        forest(results, condition, metric) for metric in (*aspects(scores.hierarchy), DISTANCE, *best_nodes)
    ]
    options = [(_capital(plot.metric.title), plot) for plot in plots if plot is not None]
    return Switch("Compare in", tuple(options)) if options else None


def forest(results: Results, condition: Condition, metric: Metric) -> Forest | None:
    """All methods of a condition against the reference in a metric; None where no method has it."""
    methods = results.scores[condition].methods
    rows = compare(results.pairs(condition, methods.index, [metric]))
    if rows.empty:
        return None
    rows = rows.sort_values("difference", ascending=not metric.higher, kind="stable")
    rows = rows.join(methods[["tried", "settings"]], on="first")
    return Forest(condition, metric, results.second, results.first, rows)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def limits(ends: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis: of all intervals and 0, but for a few that are far off and would squeeze the others."""
    ends = [end for end in ends if end == end]
    far = (6 * median(abs(end) for end in ends) if ends else 0.0) or inf
    low = max(min([*ends, 0.0]), -far)
    high = min(max([*ends, 0.0]), far)
    margin = 0.05 * (high - low) or 1.0
    return round(low - margin, 6), round(high + margin, 6)
