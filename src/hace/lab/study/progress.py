"""How far a study is: its runs counted, a live table on a terminal or occasional lines elsewhere, and what is left to do."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TextIO

from hace.lab.runs.config import RunConfig, TrainConfig
from hace.lab.runs.process import SECONDS_BETWEEN_LINES, duration, kind
from hace.lab.study.cells import Record, each_run

_NOTES = 4  # the last ones, below a live table
_TABLE_ROWS = 30  # a table longer than the screen cannot be redrawn
Part = tuple[str, str, str]  # data set, model, method

# Billions of multiply-adds per image, forward, as counted by torch: (at 32 px, at 224 px).
GMACS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "resnet18": (0.556, 1.81),
        "resnet34": (1.16, 3.66),
        "resnet50": (1.30, 4.09),
        "convnext_tiny": (0.364, 4.46),
        "swin_tiny": (0.359, 4.49),
        "vit_base": (5.60, 17.6),
    }
)
SUSTAINED = 50e12  # operations per second, of an ordinary accelerator
PROBE_SPEED = 50e9  # operations per second, of one thread of an ordinary processor
RULE = (
    f"by rule of thumb: training at {SUSTAINED / 1e12:.0f} TFLOP/s, an ordinary accelerator; probes at "
    f"{PROBE_SPEED / 1e9:.0f} GFLOP/s, one thread"
)


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
        notes: What people should know, such as an error; the last ones are shown.
    """

    rows: dict[Part, Row] = field(default_factory=dict)
    fresh: int = 0
    notes: list[str] = field(default_factory=list)

    def sum(self, what: str) -> int:
        """A count over all rows."""
        return sum(getattr(row, what) for row in self.rows.values())

    def __str__(self) -> str:
        """In one line.

        Example:
            >>> str(Tally({("birds", "features", "hace"): Row(total=9, done=7, failed=1)}))
            '7 of 9 runs are done, 1 failed'
        """
        words = [f"{self.sum('done'):,} of {self.sum('total'):,} runs are done"]
        words += [
            f"{self.sum(what):,} {what}" for what in ("diverged", "failed", "running") if self.sum(what)
        ]
        return ", ".join(words)


class Watch(Protocol):
    """Shows the progress of a study."""

    def changed(self, tally: Tally) -> None:
        """Called whenever something changes."""
        ...


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

    def line(self, tally: Tally) -> str:
        """What is done and, once that is known, how long the rest takes."""
        missing = tally.sum("total") - tally.sum("done") - tally.sum("failed")
        if not tally.fresh or not missing:
            return str(tally)
        return f"{tally}, about {duration(missing * (self.clock() - self.begun) / tally.fresh)} left"


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
        if now - self._shown >= SECONDS_BETWEEN_LINES:
            self._shown = now
            print(f"study: {self._pace.line(tally)}", file=self._stream, flush=True)


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
            failed = Text(str(row.failed), "red") if row.failed else ""
            table.add_row(dataset, model, method, f"{row.done}/{row.total}", _progress_bar(row), failed)
        notes = [Text(note.split("\n")[0], "yellow", overflow="ellipsis") for note in tally.notes[-_NOTES:]]
        self._live.update(Group(table, Text(self._pace.line(tally)), *notes))


def _progress_bar(row: Row, width: int = 24) -> Any:
    from rich.text import Text

    bar, start = Text(), 0
    for count, style in ((row.done, "green"), (row.failed, "red"), (row.running, "yellow")):
        stop = min(width, start + round(width * count / row.total))
        bar.append("━" * (stop - start), style)
        start = stop
    return bar.append("─" * (width - start), "dim")


@dataclass
class Left:
    """What is left of a part of a study.

    Attributes:
        runs: All its runs.
        done: Finished runs.
        seconds: Time of the others, one after another.
        measured: Whether the time comes from runs of this study.
    """

    runs: int = 0
    done: int = 0
    seconds: float = 0.0
    measured: bool = True


def whats_left(
    records: Iterable[Record],
    configs: Mapping[Part, RunConfig],
    data: Mapping[tuple[str, str], Mapping[str, Any]],
) -> dict[Part, Left]:
    """Runs, finished ones, and the seconds of the others: measured on finished runs of the study, or by a rule of thumb.

    Args:
        records: Of the study.
        configs: A configuration by data set, model and method.
        data: Facts about the study's data sets, by name and kind of runs.
    """
    records = each_run(records)
    speeds = _speeds(records)
    found: dict[Part, Left] = {}
    for record in records:
        key = record.key
        part = (key.dataset, key.model, key.method)
        left = found.setdefault(part, Left())
        left.runs += 1
        if record.run is not None:
            left.done += 1
            continue
        config = configs[part]
        about = data[key.dataset, config.kind]
        speed = speeds.get(part[:2])
        left.measured &= speed is not None
        work = config.epochs * about["samples"].get("train", 0)
        left.seconds += work * (_seconds_a_sample(config, about) if speed is None else speed)
    return found


def _speeds(records: Iterable[Record]) -> dict[tuple[str, str], float]:
    """Seconds per sample and epoch of finished runs, by data set and model."""
    sums: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record.run is None or record.run.result is None or record.run.status != "finished":
            continue
        about = record.run.result.get("train", {})
        work = about.get("samples", 0) * about.get("epochs", 0)
        if work:
            speed = record.run.result.get("seconds", 0.0) / work
            sums.setdefault((record.key.dataset, record.key.model), []).append(speed)
    return {part: sum(found) / len(found) for part, found in sums.items()}


def _seconds_a_sample(config: RunConfig, about: Mapping[str, Any]) -> float:
    if isinstance(config, TrainConfig):
        small = config.data.name in ("cifar100", "synthetic") or (config.image_size or 224) < 64
        gmacs = GMACS.get(config.model, GMACS["resnet50"])  # a model that is not listed counts as a ResNet-50
        return 6e9 * gmacs[0 if small else 1] / SUSTAINED
    # Forward and the gradient of the weights, two operations each; features need no gradient.
    return 4 * (about["features"] or 0) * about["nodes"] / PROBE_SPEED
