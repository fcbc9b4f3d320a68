"""Processes of a test, started afresh: a fork of a test's process may hang on a lock that one of its threads held."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

import torch.multiprocessing

SPAWN = multiprocessing.get_context("spawn")


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_ranks(function: Callable[..., None], *arguments: Any, ranks: int = 2) -> None:
    """Run `function(rank, *arguments)` in so many processes, and raise what one of them raises."""
    torch.multiprocessing.start_processes(function, arguments, nprocs=ranks, start_method="spawn")  # type: ignore[attr-defined]
