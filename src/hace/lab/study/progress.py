"""How far a study is: its runs counted, a bar on a terminal or occasional lines elsewhere, and what is left to do."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TextIO

from hace.lab.runs.config import RunConfig, TrainConfig
from hace.lab.runs.process import SECONDS_BETWEEN_LINES, duration, kind
from hace.lab.study.cells import Record, each_run
from hace.lab.study.folder import StudyFolder

# Billions of multiply-adds per image, forward, as counted by torch: (at 32 px, at 224 px).
GMACS = {
    "resnet18": (0.556, 1.81),
    "resnet34": (1.16, 3.66),
    "resnet50": (1.30, 4.09),
    "convnext_tiny": (0.364, 4.46),
    "swin_tiny": (0.359, 4.49),
    "vit_base": (5.60, 17.6),
}
SUSTAINED = 50e12  # operations per second, of an ordinary accelerator
PROBE_SPEED = 50e9  # operations per second, of one thread of an ordinary processor
RULE = (
    f"by rule of thumb: training at {SUSTAINED / 1e12:.0f} TFLOP/s, an ordinary accelerator; probes at "
    f"{PROBE_SPEED / 1e9:.0f} GFLOP/s, one thread"
)


@dataclass
class Tally:
    """The runs of a study, counted; `fresh` finished since this start, `notes` are what people should know."""

    total: int = 0
    done: int = 0
    diverged: int = 0
    failed: int = 0
    running: int = 0
    fresh: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """In one line."""
        words = [f"{self.done:,} of {self.total:,} runs are done"]
        counts = {"diverged": self.diverged, "failed": self.failed, "running": self.running}
        return ", ".join(words + [f"{count:,} {what}" for what, count in counts.items() if count])


def count(records: Iterable[Record], running: Collection[str] = ()) -> Tally:
    """The runs counted; one that cells share counts once, and a cell for which no run can be chosen as failed."""
    tally = Tally()
    for record in each_run(records):
        tally.total += 1
        tally.running += record.id in running
        tally.done += bool(record.id) and record.status in ("finished", "diverged")
        tally.diverged += bool(record.id) and record.status == "diverged"
        tally.failed += record.status == "failed" or (not record.id and record.status == "diverged")
    return tally


Watch = Callable[[Tally], None]  # called whenever something changes


@contextmanager
def watching(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Watch]:
    """Show a study while it runs: a bar on a terminal, elsewhere a line now and then; and every note once."""
    output, begun = stream or sys.stderr, clock()
    shown, noted, bar, task = -SECONDS_BETWEEN_LINES, 0, None, None
    if kind(output) == "terminal" and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(file=output), transient=True)
        task = bar.add_task("study")

    def changed(tally: Tally) -> None:
        nonlocal shown, noted
        for note in tally.notes[noted:]:
            if bar is not None:
                bar.console.print(f"study: {note}", markup=False, highlight=False)
            else:
                print(f"study: {note}", file=output, flush=True)
        noted, line = len(tally.notes), str(tally)
        missing = tally.total - tally.done - tally.failed
        if tally.fresh and missing:
            line += f", about {duration(missing * (clock() - begun) / tally.fresh)} left"
        if bar is not None and task is not None:
            bar.update(task, description=line, completed=tally.done + tally.failed, total=tally.total)
        elif clock() - shown >= SECONDS_BETWEEN_LINES:
            shown = clock()
            print(f"study: {line}", file=output, flush=True)

    with bar or nullcontext():
        yield changed


@dataclass
class Left:
    """A part of a study: all its runs, finished ones, and the seconds of the others; measured on runs of this study or not."""

    runs: int = 0
    done: int = 0
    seconds: float = 0.0
    measured: bool = True


def whats_left(study: StudyFolder) -> dict[tuple[str, str, str], Left]:
    """What is left of a study, by data set, model and method."""
    configs = {(cell.key.dataset, cell.key.model, cell.key.method): cell.config for cell in study.cells}
    records = each_run(study.records())
    speeds: dict[tuple[str, str], list[float]] = {}  # seconds per sample and epoch of finished runs
    for record in records:
        if record.run is not None and record.run.result is not None and record.status == "finished":
            about = record.run.result.get("train", {})
            work = about.get("samples", 0) * about.get("epochs", 0)
            speed = record.run.result.get("seconds", 0.0) / max(work, 1)
            speeds.setdefault((record.key.dataset, record.key.model), []).append(speed)
    found: dict[tuple[str, str, str], Left] = {}
    for record in records:
        part = (record.key.dataset, record.key.model, record.key.method)
        left = found.setdefault(part, Left())
        left.runs += 1
        if record.run is not None:
            left.done += 1
            continue
        config, measured = configs[part], speeds.get(part[:2])
        about = study.sets[record.key.dataset, config.kind]
        left.measured &= measured is not None
        each = _seconds_a_sample(config, about) if measured is None else sum(measured) / len(measured)
        left.seconds += config.epochs * about["samples"].get("train", 0) * each
    return found


def _seconds_a_sample(config: RunConfig, about: Mapping[str, Any]) -> float:
    if isinstance(config, TrainConfig):
        small = config.data.name in ("cifar100", "synthetic") or (config.image_size or 224) < 64
        gmacs = GMACS.get(config.model, GMACS["resnet50"])  # a model that is not listed counts as a ResNet-50
        return 6e9 * gmacs[0 if small else 1] / SUSTAINED
    # Forward and the gradient of the weights, two operations each; features need no gradient.
    return 4 * (about["features"] or 0) * about["nodes"] / PROBE_SPEED
