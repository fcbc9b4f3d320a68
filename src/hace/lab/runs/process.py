"""The process a run lives in: its device, memory and loader processes, its progress, and how a signal stops it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import torch

from hace.errors import ConfigError

MOST_WORKERS = 8
KEEP_MEMORY = "HACE_KEEP_MEMORY"  # environment variable: 0 leaves the allocator as it is
# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """A device by its name."""
    if name == "auto":
        has_mps = torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name} cannot be used here: {reason} Try cpu.") from error
    if name == "cuda":
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device(name)


def fallback_note(name: str, device: torch.device) -> str:
    """A note for when device="auto" found no accelerator; "" otherwise."""
    if name != "auto" or device.type != "cpu":
        return ""
    if "SLURM_JOB_ID" in os.environ:
        return "device=auto: this job has no GPU, so it trains on the CPU. Ask for one, as with --gpus 1 of hace study."
    return "device=auto: no GPU here, so it trains on the CPU."


def keep_freed_memory() -> bool:
    """Keep memory that tensors free for the next ones, in this process; whether that was possible.

    By default glibc maps every large tensor anew and unmaps it when it is freed, so that the system clears each of its pages
    again: most of the time that a small model takes on a CPU. Memory that is kept is reused as it is, and results have the same
    bits. The price is that the process holds the most it ever used. Only commands that run models ask for it; the library never
    does, since the allocator belongs to whoever owns the process. HACE_KEEP_MEMORY=0 leaves the allocator as it is.
    """
    if os.environ.get(KEEP_MEMORY, "1") == "0" or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def fast_settings(device: str) -> dict[str, Any]:
    """Settings that make a training faster on this device: bf16 and channels last on a CPU with instructions for bf16."""
    name = choose_device(device).type if device == "auto" else device
    return {"precision": "bf16", "channels_last": True} if name == "cpu" and _multiplies_bf16() else {}


def _multiplies_bf16() -> bool:
    """Whether the CPU has AVX-512 or AMX instructions for bf16; False where this torch cannot tell."""
    known = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def choose_workers(asked: int | None, device: torch.device) -> int:
    """How many processes read images."""
    if asked is not None:
        return asked
    return 0 if device.type == "cpu" else min(MOST_WORKERS, processors())


def processes() -> tuple[int, int, int]:
    """Rank, world size and local rank as torchrun sets them; 0, 1, 0 without it."""
    defaults = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    try:
        rank, world, local = (int(os.environ.get(name, default)) for name, default in defaults.items())
        return rank, world, local
    except ValueError:
        raise ConfigError("RANK, WORLD_SIZE and LOCAL_RANK must be numbers, as torchrun sets them.") from None


def processors() -> int:
    """The processors that this process may use: of its job, not of the machine."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(allowed, int(slurm)) if slurm.isdecimal() and int(slurm) else allowed


SECONDS_BETWEEN_LINES = 30.0
SECONDS_TO_JUDGE = 3.0

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
    """Show how far long work is, how fast it goes and when it will end."""
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
    """Progress as lines, for logs."""
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
        how = f"{done:,}/{total:,} {unit}, {rate:,.1f} {unit}/s"
        if now - begun > SECONDS_TO_JUDGE:  # the first step includes what happens only once
            how += f", {duration((total - done) / rate)} left"
        print(f"{title}: {note + ', ' if note else ''}{how}", file=stream, flush=True)

    return step


@contextmanager
def _bar(title: str, unit: str, stream: TextIO) -> Iterator[Start]:
    """Progress as a bar, for terminals."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    # Also when narrow.
    left = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=7))
    texts = [TextColumn(text) for text in ("{task.description}", "{task.fields[rate]},", "left")]
    columns = (texts[0], BarColumn(bar_width=20), MofNCompleteColumn(), texts[1], left, texts[2])
    with Progress(*columns, console=Console(file=stream)) as bar:

        def start(total: int, done: int) -> Step:
            task = bar.add_task(title, total=total, completed=done, rate=f"? {unit}/s")
            begun = time.monotonic()
            counted = 0

            def step(count: int, note: str = "") -> None:
                nonlocal counted
                counted += count
                rate = counted / max(time.monotonic() - begun, 1e-9)
                bar.update(task, advance=count, description=note or title, rate=f"{rate:,.1f} {unit}/s")

            return step

        yield start


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


SIGNAL_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
if hasattr(signal, "SIGUSR2"):  # SLURM sends it shortly before the time limit: `sbatch --signal=USR2@120`
    SIGNAL_NAMES[signal.SIGUSR2] = "SIGUSR2"


class Stopped(KeyboardInterrupt):
    """A signal stopped a training, after its step was finished and saved; 128 + `number` is the usual exit code."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> tuple[type[Stopped], tuple[str, int]]:  # executors send it from their processes
        return type(self), (str(self), self.number)


class DivergedError(Exception):
    """The loss of a step is infinite or NaN."""

    def __init__(self, epoch: int, step: int, lr: float) -> None:
        super().__init__(f"The loss is not finite at step {step} (epoch {epoch}, rate {lr:g}).")
        self.where = {"epoch": epoch, "step": step, "lr": lr}


class SignalFlag:
    """The last signal."""

    signal: int = 0  # its number


@contextmanager
def catch_signals(interrupt: bool = False) -> Iterator[SignalFlag]:
    """Record the first Ctrl-C, SIGTERM or SIGUSR2; the second one acts as before.

    With `interrupt`, SIGTERM and SIGUSR2 raise Stopped at once, so that the block cleans up as it does on Ctrl-C: workers end,
    jobs are cancelled. The flag knows the signal even where a library turns Stopped into a plain KeyboardInterrupt, as Ray
    does. Only the main thread of a process gets signals; elsewhere this does nothing.
    """
    flag = SignalFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def caught(number: int, _: Any) -> None:
        flag.signal = number
        if interrupt:
            raise Stopped(f"Stopped by {SIGNAL_NAMES[number]}.", number)
        signal.signal(number, before[number])

    numbers = [number for number in SIGNAL_NAMES if not (interrupt and number == signal.SIGINT)]
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}
    for number in numbers:
        signal.signal(number, caught)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
