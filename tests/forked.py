"""Processes of a test, forked from it: torch is loaded already, so a real process costs milliseconds."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch.multiprocessing

FORK = multiprocessing.get_context("fork")
# Python 3.12 and later warn of threads, of which the test's process has none that hold a lock.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_ranks(function: Callable[..., None], *arguments: Any, ranks: int = 2) -> None:
    """Run `function(rank, *arguments)` in so many processes, and raise what one of them raises."""
    torch.multiprocessing.start_processes(function, arguments, nprocs=ranks, start_method="fork")  # type: ignore[attr-defined]
