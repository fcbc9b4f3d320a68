"""Progress: a bar on a terminal, a line every 30 seconds in a log file, nothing in a pipe."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

SECONDS_BETWEEN_LINES = 30.0

Step = Callable[..., None]  # step(count, note="")
Start = Callable[[int, int], Step]


def kind(stream: TextIO) -> str:
    """What a stream writes to: "terminal", "log" (a file on disk) or "pipe"."""
    try:
        if stream.isatty():
            return "terminal"
        return "log" if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else "pipe"
    except (OSError, ValueError):  # a stream without a file behind it
        return "pipe"


@contextmanager
def progress(
    title: str, unit: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Start]:
    """Show how far long work is, how fast it goes and when it will end.

    Args:
        title: What is going on.
        unit: What is counted: "images".
        stream: Where to show it, by default stderr.
        clock: Seconds; for tests.

    Yields:
        start(total, done): call it once, with what was done before. It returns step(count, note=""), to be called as work is
            done; the note, such as the loss, is shown beside the numbers.
    """
    output = stream or sys.stderr
    behind = kind(output) if output else "pipe"  # a program without a console has no stderr
    if output is None or behind == "pipe":
        yield lambda total, done: lambda count, note="": None
    elif behind == "terminal" and importlib.util.find_spec("rich"):
        with _bar(title, unit, output) as start:
            yield start
    else:
        yield lambda total, done: _lines(title, unit, total, done, output, clock)


def _lines(title: str, unit: str, total: int, done: int, stream: TextIO, clock: Callable[[], float]) -> Step:
    begun = clock()
    shown: float | None = None  # the first step is shown at once, as a sign of life and of speed
    before = done

    def step(count: int, note: str = "") -> None:
        nonlocal done, shown
        done += count
        now = clock()
        if shown is not None and now - shown < SECONDS_BETWEEN_LINES and done < total:
            return
        shown = now
        rate = (done - before) / max(now - begun, 1e-9)
        left = duration((total - done) / rate)
        print(
            f"{title}: {note + ', ' if note else ''}{done:,}/{total:,} {unit}, {rate:,.1f} {unit}/s, {left} left",
            file=stream,
            flush=True,
        )

    return step


@contextmanager
def _bar(title: str, unit: str, stream: TextIO) -> Iterator[Start]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]},"),
        TimeRemainingColumn(
            compact=True, table_column=Column(no_wrap=True, min_width=7)
        ),  # wins on narrow screens
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(file=stream)) as bar:

        def start(total: int, done: int) -> Step:
            task = bar.add_task(title, total=total, completed=done, rate=f"? {unit}/s")
            begun, counted = time.monotonic(), 0

            def step(count: int, note: str = "") -> None:
                nonlocal counted
                counted += count
                rate = counted / max(time.monotonic() - begun, 1e-9)
                bar.update(task, advance=count, description=note or title, rate=f"{rate:,.1f} {unit}/s")

            return step

        yield start


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss.

    Example:
        >>> duration(3725.4)
        '1:02:05'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
