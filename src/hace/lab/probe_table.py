"""The table of `hace probe`: means over seeds with their intervals, and differences from the first loss that has a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.lab.runs.run import Run
from hace.metrics.intervals import Interval, headline_columns, interval, paired_interval

METRICS = ("top-1", "top-5", "severity", "HD@1")
COMPARED = ("top-1", "severity")
LEVELS_OFF = "levels off"  # what tables call the severity
_SHOWN_CLASSES = 4


@dataclass(frozen=True, eq=False)
class Row:
    """What became of a loss, at a rate."""

    title: str
    runs: tuple[Run, ...]  # one for each seed
    metrics: Mapping[str, Interval]  # means over seeds; none without a finished run
    changes: Mapping[str, Interval]  # minus the reference; none of the reference itself

    @property
    def state(self) -> str:
        """Why it has no result; "" if it has."""
        return "" if self.metrics else self.runs[0].status


class ProbeTable:
    """Finished runs of several losses or rates, by title. All have the same test samples.

    Attributes:
        rows: One for each title.
        reference: The title that others are compared with: the first that has a result.
        groups: (S,) of the samples, where they have groups; intervals are then over groups.
    """

    def __init__(self, runs: Mapping[str, Sequence[Run]]) -> None:
        self.groups: np.ndarray | None = None
        self._columns: dict[str, dict[int, Mapping[str, Any]]] = {}  # by title and seed
        for title, own in runs.items():
            self._columns[title] = {
                run.config.seed: self._read(run) for run in own if run.status == "finished"
            }
        self.reference = next(
            (title for title, columns in self._columns.items() if columns), next(iter(runs))
        )
        self.rows = [
            Row(title, tuple(own), self._means(title), self._changes(title)) for title, own in runs.items()
        ]

    def _read(self, run: Run) -> Mapping[str, Any]:
        predictions = run.predictions()
        self.groups = predictions.get("group", self.groups)
        return headline_columns(predictions)

    def _means(self, title: str) -> dict[str, Interval]:
        seeds = self._columns[title]
        if not seeds:
            return {}
        return {name: interval(*_stacked(seeds, list(seeds), name), groups=self.groups) for name in METRICS}

    def _changes(self, title: str) -> dict[str, Interval]:
        """The differences from the reference by metric, over the seeds that both have."""
        ours = self._columns[title]
        theirs = self._columns[self.reference]
        shared = [seed for seed in ours if seed in theirs]
        if title == self.reference or not shared:
            return {}
        changes = {}
        for name in METRICS:
            first, below_first = _stacked(ours, shared, name)
            second, below_second = _stacked(theirs, shared, name)
            below = None if below_first is None or below_second is None else (below_first, below_second)
            changes[name] = paired_interval(first, second, below, groups=self.groups)
        return changes

    def text(self) -> str:
        """For a terminal."""
        lines = [["loss", "top-1", "top-5", LEVELS_OFF]]
        for row in self.rows:
            if row.metrics:
                top1, top5, severity = (row.metrics[name] for name in ("top-1", "top-5", "severity"))
                ends = f"[{100 * max(top1.low, 0):.2f}, {100 * min(top1.high, 1):.2f}]"
                shown = [f"{100 * top1.value:.2f} {ends}", f"{100 * top5.value:.2f}", _number(severity.value)]
            else:
                shown = [row.state, "", ""]
            lines.append([row.title, *shown])
        text = _aligned(lines)
        compared = [row for row in self.rows if row.changes]
        if compared:
            lines = [[f"minus {self.reference}", COMPARED[0], LEVELS_OFF]]
            lines += [
                [row.title, *(_change(row.changes[name], name) for name in COMPARED)] for row in compared
            ]
            text += f"\n\n{_aligned(lines)}"
        return text

    def documents(self) -> list[dict[str, Any]]:
        """For programs: a mapping for each row."""
        return [
            {
                "loss": row.title,
                "seeds": len(row.runs),
                "rates": sorted({run.config.lr for run in row.runs if run.status == "finished"}),
                "diverged": sum(run.status == "diverged" for run in row.runs),
                "metrics": {name: _document(mean) for name, mean in row.metrics.items()},
                "changes": {name: _document(change) for name, change in row.changes.items()},
                "runs": [run.id for run in row.runs],
            }
            for row in self.rows
        ]

    def notes(self) -> Iterator[str]:
        """What a reader should know: classes without samples, and L-BFGS that stopped early."""
        trained = [run.result["train"] for row in self.rows for run in row.runs if run.result]
        unseen = sorted({name for train in trained for name in train.get("unseen_classes", ())})
        if unseen:
            words = "1 class has" if len(unseen) == 1 else f"{len(unseen):,} classes have"
            more = " ..." if len(unseen) > _SHOWN_CLASSES else ""
            yield f"{words} no training sample: {', '.join(unseen[:_SHOWN_CLASSES])}{more}"
        short = sum(train.get("converged") is False for train in trained)
        if short:
            yield f"{short} of {len(trained)} L-BFGS runs did not converge: raise max_iter or tolerance in a --config."


def _stacked(
    seeds: Mapping[int, Mapping[str, Any]], chosen: Sequence[int], name: str
) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """(S,) numerators and denominators of a metric, for each of the seeds."""
    pairs = [seeds[seed][name] for seed in chosen]
    above = [numerator for numerator, _ in pairs]
    below = [denominator for _, denominator in pairs]
    return above, None if below[0] is None else below


def _change(change: Interval, name: str) -> str:
    """A difference with its interval, marked where that excludes 0."""
    scale, digits = (100, 2) if name.startswith("top") else (1, 3)
    value, low, high = (f"{scale * v:+.{digits}f}" for v in (change.value, change.low, change.high))
    return f"{value} [{low}, {high}]{'*' if change.excludes_zero else ''}"


def _number(value: float) -> str:
    """Nothing for the severity of a model without mistakes."""
    return "" if np.isnan(value) else f"{value:.3f}"


def _document(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    )
