"""Several processes on this machine, as an executor in which a process that dies costs only its own call.

A :class:`concurrent.futures.ProcessPoolExecutor` gives up all its calls when one of its processes is killed, for lack of
memory, say. Here each process is a pool of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, TypeVar

from hace.errors import HaceError

STOP_SECONDS = 30.0  # for a process to save and end: a step of a large model takes its time

T = TypeVar("T")


@dataclass
class _Worker:
    """A process, and the pool that hands calls to it."""

    pool: ProcessPoolExecutor
    process: BaseProcess


class Processes(Executor):
    """Calls in `workers` processes, started when they are needed; another one replaces a process that dies.

    Args:
        workers: How many calls run at the same time.
        threads: Threads of the numerical libraries in each process.
    """

    def __init__(self, workers: int, threads: int = 1) -> None:
        self.workers = workers
        self._threads = threads
        self._callers = ThreadPoolExecutor(workers)  # each waits for one process
        self._numbers: SimpleQueue[int] = SimpleQueue()  # of the processes that are free
        for number in range(workers):
            self._numbers.put(number)
        self._started: dict[int, _Worker] = {}
        self._starting = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call a function in the next free process."""
        return self._callers.submit(self._call, fn, *args, **kwargs)

    def _call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """The result of a call in a free process; an error if the process dies."""
        number = self._numbers.get()
        try:
            worker = self._worker(number)
            try:
                return worker.pool.submit(fn, *args, **kwargs).result()
            except BrokenProcessPool as error:
                self._started.pop(number, None)
                worker.pool.shutdown(wait=False)
                raise HaceError(f"its process {_ending(worker.process)}.") from error
        finally:
            self._numbers.put(number)

    def _worker(self, number: int) -> _Worker:
        with self._starting:  # the environment belongs to all threads
            if self._closed:
                raise HaceError("The executor has ended.")
            if number not in self._started:
                self._started[number] = _start(number, self._threads)
            return self._started[number]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all calls; or, with `cancel_futures`, drop those that wait and ask the others to save and end."""
        self._callers.shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        with self._starting:
            self._closed = True
            workers = list(self._started.values())
        if cancel_futures:
            _end(workers)
        for worker in workers:
            worker.pool.shutdown(wait=wait)


def _start(number: int, threads: int) -> _Worker:
    """Start a process. Its number, as the local rank of a torchrun process, says which GPU it takes."""
    # A fork of a process with torch's threads may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=_prepare)
    # Libraries read their number of threads when they load, so a new process must find it in its environment.
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    with _environment({**dict.fromkeys(names, str(threads)), "LOCAL_RANK": str(number)}), _blocked_signals():
        pid = pool.submit(os.getpid).result()
    process = next(child for child in multiprocessing.active_children() if child.pid == pid)
    return _Worker(pool, process)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# These reach the whole group of processes, but the parent ends its own itself.
_OF_THE_GROUP = [getattr(signal, name) for name in ("SIGINT", "SIGUSR2") if hasattr(signal, name)]


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Start processes that do not hear the signals of the group, not even while they load."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_GROUP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    """Make a new process end with its parent, and by the parent alone."""
    for number in _OF_THE_GROUP:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot end its processes, and they would hold the locks of their runs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _end(workers: Sequence[_Worker]) -> None:
    """Ask processes to end: a training saves its state at the first signal, and dies of the second."""
    try:
        for worker in workers:
            worker.process.terminate()
            worker.pool.shutdown(wait=False)  # so that the process ends with its call
        alive = {worker.process.sentinel for worker in workers}
        end = time.monotonic() + STOP_SECONDS
        while alive and time.monotonic() < end:
            alive -= set(wait(alive, end - time.monotonic()))
    finally:  # those that take too long; all of them where nobody wants to wait
        for worker in workers:
            worker.process.kill()


def _ending(process: BaseProcess) -> str:
    """How a process ended, in words."""
    wait([process.sentinel])
    for _ in range(100):
        if process.exitcode is not None:
            break
        time.sleep(0.01)  # the pool's own thread has waited for it too, and is about to note its exit code
    code = process.exitcode
    if code is None or code >= 0:
        return f"ended by itself, with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
