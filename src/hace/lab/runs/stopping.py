"""Stopping early: on a signal, or a non-finite loss."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WORDS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
if hasattr(signal, "SIGUSR2"):  # SLURM sends it shortly before the time limit: `sbatch --signal=USR2@120`
    WORDS[signal.SIGUSR2] = "SIGUSR2"


class Stopped(KeyboardInterrupt):
    """A signal stopped a training, after its step was finished and saved.

    Args:
        message: What to tell the user.
        number: Of the signal; 128 + number is the usual exit code.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class DivergedError(Exception):
    """The loss of a step is infinite or NaN."""

    def __init__(self, epoch: int, step: int, lr: float) -> None:
        super().__init__(f"The loss is not finite at step {step} (epoch {epoch}, rate {lr:g}).")
        self.where = {"epoch": epoch, "step": step, "lr": lr}


class Ear:
    """The last signal.

    Attributes:
        heard: Its number, or 0.
    """

    heard: int = 0


@contextmanager
def listening() -> Iterator[Ear]:
    """Record the first Ctrl-C, SIGTERM or SIGUSR2; the second one acts as before.

    Only the main thread of a process gets signals; elsewhere this does nothing.
    """
    ear = Ear()
    if threading.current_thread() is not threading.main_thread():
        yield ear
        return

    def hear(number: int, _: Any) -> None:
        ear.heard = number
        signal.signal(number, before[number])

    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in WORDS}
    for number in WORDS:
        signal.signal(number, hear)
    try:
        yield ear
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending() -> Iterator[Ear]:
    """Raise Stopped on SIGTERM and SIGUSR2, so that the block cleans up as it does on Ctrl-C: workers end, jobs are cancelled.

    Only in the main thread, as :func:`listening`. The ear knows the signal even where a library turns Stopped into a plain
    KeyboardInterrupt, as Ray does.
    """
    ear = Ear()
    if threading.current_thread() is not threading.main_thread():
        yield ear
        return

    def end(number: int, _: Any) -> None:
        ear.heard = number
        raise Stopped(f"Stopped by {WORDS[number]}.", number)

    before = {
        number: signal.signal(number, end) or signal.SIG_DFL for number in WORDS if number != signal.SIGINT
    }
    try:
        yield ear
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
