"""How far a study is: its runs counted, how long the others take, and a bar on a terminal or occasional lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TextIO

from hace.lab.runs.process import SECONDS_BETWEEN_LINES, duration, kind
from hace.lab.study.records import Record, each_run


@dataclass
class Tally:
    """The runs of a study, counted; `left` says how long the others take, `notes` are what people should know."""

    total: int = 0
    done: int = 0
    diverged: int = 0
    failed: int = 0
    running: int = 0
    left: str = ""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """In one line."""
        words = [f"{self.done:,} of {self.total:,} runs are done"]
        counts = {"diverged": self.diverged, "failed": self.failed, "running": self.running}
        words += [f"{count:,} {what}" for what, count in counts.items() if count]
        return ", ".join(filter(None, (*words, self.left)))


def count(records: Iterable[Record], running: Collection[str] = ()) -> Tally:
    """The runs counted; one that configurations share counts once, one that cannot be chosen as failed."""
    tally = Tally()
    for record in each_run(records):
        tally.total += 1
        tally.running += record.id in running
        tally.done += bool(record.id) and record.status in ("finished", "diverged")
        tally.diverged += bool(record.id) and record.status == "diverged"
        tally.failed += record.status == "failed" or (not record.id and record.status == "diverged")
    return tally


class Pace:
    """How long the rest of a study takes, by the last finished jobs of each kind of run.

    Searches share passes and final runs hardly do, so a mean over both would guarantee too much. While searches are going on,
    which may widen their grids, or where a kind of run is still unknown, it says "at least".
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._jobs = 0
        self._spent: dict[tuple[str, ...], deque[tuple[float, int]]] = {}  # by kind: seconds and runs of jobs

    def ended(self, records: Sequence[Record], seconds: float) -> None:
        """A job has finished these runs."""
        for which, runs in Counter(map(_kind_of_run, records)).items():
            jobs = self._spent.setdefault(which, deque(maxlen=max(8, 2 * self._workers)))
            jobs.append((seconds * runs / len(records), runs))
        self._jobs += 1

    def left(self, records: Iterable[Record]) -> str:
        """The time that these runs take, in words; nothing before every worker has finished a job."""
        missing = Counter(map(_kind_of_run, records))
        if self._jobs < min(self._workers, 8) or not missing or not self._spent:
            return ""
        seconds_each = {
            which: sum(seconds for seconds, _ in jobs) / sum(runs for _, runs in jobs)
            for which, jobs in self._spent.items()
        }
        least = min(seconds_each.values())
        seconds = sum(runs * seconds_each.get(which, least) for which, runs in missing.items())
        known = all(which in seconds_each and which[-1] == "final" for which in missing)
        return f"{'about' if known else 'at least'} {duration(seconds / self._workers)} left"


def _kind_of_run(record: Record) -> tuple[str, ...]:
    return record.key.dataset, record.key.model, record.stage


Watch = Callable[[Tally], None]  # called whenever something changes


@contextmanager
def watching(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Watch]:
    """Show a study while it runs: a bar on a terminal, elsewhere a line now and then; and every note once."""
    output = stream or sys.stderr
    shown = -SECONDS_BETWEEN_LINES
    noted = 0
    bar = task = None
    if kind(output) == "terminal" and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(file=output), transient=True)
        task = bar.add_task("study")

    def changed(tally: Tally) -> None:
        """Show what is new."""
        nonlocal shown, noted
        for note in tally.notes[noted:]:
            if bar is not None:
                bar.console.print(f"study: {note}", markup=False, highlight=False)
            else:
                print(f"study: {note}", file=output, flush=True)
        noted = len(tally.notes)
        if bar is not None and task is not None:
            bar.update(task, description=str(tally), completed=tally.done + tally.failed, total=tally.total)
        elif clock() - shown >= SECONDS_BETWEEN_LINES:
            shown = clock()
            print(f"study: {tally}", file=output, flush=True)

    with bar or nullcontext():
        yield changed
