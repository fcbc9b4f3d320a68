"""The progress of a study: a live table on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from hace.lab.runs.progress import SECONDS_BETWEEN_LINES, duration, kind
from hace.lab.study.tally import Tally, Watch

_NOTES = 4  # the last ones, below a live table
_TABLE_ROWS = 30  # a table longer than the screen cannot be redrawn


@contextmanager
def watching(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Watch]:
    """Show a study while it runs.

    Args:
        stream: Where to show it; stderr by default.
        clock: Returns seconds.
    """
    output = stream or sys.stderr
    if kind(output) == "terminal" and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(file=output), refresh_per_second=4, transient=True) as live:
            yield _LiveTable(live, clock)
    else:
        yield _Lines(output, clock)


class _Pace:
    """How fast a study goes, and how long the rest takes at that pace."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.begun = clock, clock()

    def left(self, tally: Tally) -> str:
        """The time left, in words; "" while nothing is known."""
        missing = tally.sum("total") - tally.sum("done") - tally.sum("failed")
        if not tally.fresh or not missing:
            return ""
        return f"about {duration(missing * (self.clock() - self.begun) / tally.fresh)} left"


class _Lines:
    """One line at the start, one now and then, and every note once."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._pace = stream, _Pace(clock)
        self._shown = -SECONDS_BETWEEN_LINES
        self._noted = 0

    def changed(self, tally: Tally) -> None:
        """Print new events."""
        for note in tally.notes[self._noted :]:
            print(f"study: {note}", file=self._stream, flush=True)
        self._noted = len(tally.notes)
        now = self._pace.clock()
        if now - self._shown < SECONDS_BETWEEN_LINES:
            return
        self._shown = now
        print(f"study: {summary(tally)}{_after(self._pace.left(tally))}", file=self._stream, flush=True)


class _LiveTable:
    """A live table."""

    def __init__(self, live: Any, clock: Callable[[], float]) -> None:
        self._live, self._pace = live, _Pace(clock)

    def changed(self, tally: Tally) -> None:
        """Redraw it."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("data set", "model", "method", "runs", "", "failed"):
            table.add_column(title, justify="right" if title in ("runs", "failed") else "left")
        rows = list(tally.rows.items())
        if len(rows) > _TABLE_ROWS:  # show those where something happens
            rows.sort(key=lambda item: not (item[1].running or item[1].failed))
        for (dataset, model, method), row in rows[:_TABLE_ROWS]:
            bar = _progress_bar(row.done, row.failed, row.running, row.total)
            failed = Text(str(row.failed), "red") if row.failed else ""
            table.add_row(dataset, model, method, f"{row.done}/{row.total}", bar, failed)
        notes = [Text(note.split("\n")[0], "yellow", overflow="ellipsis") for note in tally.notes[-_NOTES:]]
        self._live.update(Group(table, Text(summary(tally) + _after(self._pace.left(tally))), *notes))


def _progress_bar(done: int, failed: int, running: int, total: int, width: int = 24) -> Any:
    from rich.text import Text

    bar, start = Text(), 0
    for count, style in ((done, "green"), (failed, "red"), (running, "yellow")):
        stop = min(width, start + round(width * count / total))
        bar.append("━" * (stop - start), style)
        start = stop
    return bar.append("─" * (width - start), "dim")


def summary(tally: Tally) -> str:
    """The progress of a study, in one line.

    Example:
        >>> from hace.lab.study.tally import Row
        >>> summary(Tally({("birds", "features", "hace"): Row(total=9, done=7, failed=1)}))
        '7 of 9 runs are done, 1 failed'
    """
    words = [f"{tally.sum('done'):,} of {tally.sum('total'):,} runs are done"]
    words += [f"{tally.sum(what):,} {what}" for what in ("diverged", "failed", "running") if tally.sum(what)]
    return ", ".join(words)


def _after(text: str) -> str:
    return f", {text}" if text else ""
