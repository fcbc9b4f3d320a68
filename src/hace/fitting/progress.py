"""One line that says what a fit is doing."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_EVERY = 0.2  # seconds between two changes of the line
_QUIET = 10.0  # seconds between two lines where they cannot change: in a log


class Display:
    """A line on a terminal that changes; in a log, a line now and then.

    Args:
        stream: where it goes; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._begun = self._last = time.monotonic()
        self._step = ""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._step:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def show(self, step: str, done: int) -> None:
        """What is being done, and how many parts of it are."""
        now = time.monotonic()
        fresh = step != self._step
        if not fresh and now - self._last < (_EVERY if self._terminal else _QUIET):
            return
        self._step = step
        self._last = now
        count = f" {done:,}" if done else ""
        line = f"{step}{count} ({now - self._begun:.0f} s)"
        self._stream.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        self._stream.flush()
