"""The progress of a study, counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class Row:
    """The runs of a method on a data set and model, counted."""

    total: int = 0
    done: int = 0
    diverged: int = 0
    failed: int = 0
    running: int = 0


@dataclass
class Tally:
    """The progress of a study.

    Attributes:
        rows: Counts by data set, model and method.
        fresh: Runs finished since this start.
        searches: Choices among three or more candidates.
        edges: How many of these are at the edge of the grid, after it was widened.
        notes: What people should know, such as an error; the last ones are shown.
    """

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)
    fresh: int = 0
    searches: int = 0
    edges: int = 0
    notes: list[str] = field(default_factory=list)

    def sum(self, what: str) -> int:
        """A count over all rows."""
        return sum(getattr(row, what) for row in self.rows.values())


class Watch(Protocol):
    """Shows the progress of a study."""

    def changed(self, tally: Tally) -> None:
        """Called whenever something changes."""
        ...
