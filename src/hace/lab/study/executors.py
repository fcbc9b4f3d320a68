"""Where the jobs of a study run: in this process, in several on this machine, or on a cluster.

To add an executor, write the class (:class:`hace.lab.study.jobs.Executor`) and add an entry to `EXECUTORS`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from hace.errors import ConfigError, nearest
from hace.lab.study.jobs import STOP_SECONDS, Executor, Job, JobResult, Resources, run_job


class InProcess:
    """One job after another, in this process."""

    capacity = 1

    def __init__(self) -> None:
        self._queue: deque[Job] = deque()
        self._sources: dict[str, Any] = {}

    def resume(self, adopt: Callable[[Sequence[str]], Job | None]) -> list[Job]:
        """Nothing: jobs end with their process."""
        return []

    def submit(self, job: Job) -> None:
        """Queue it; :meth:`next` does it."""
        self._queue.append(job)

    def next(self, timeout: float | None = None) -> JobResult:
        """Do the first job of the queue, however long it takes."""
        return run_job(self._queue.popleft(), self._sources)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.clear()
        self._sources.clear()


class _Worker:
    """A process with a pipe to it. Its number, as the local rank of a torchrun process, says which GPU it takes."""

    def __init__(self, threads: int, number: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
        self.pipe, end = context.Pipe()
        self.job: Job | None = None
        self.number = number
        self._asked = False
        with _environment(threads, number):
            self.process = context.Process(target=_serve, args=(end,), name="hace worker")
            self.process.start()
        end.close()

    def ask(self) -> None:
        """Ask the process to end. Once: a training saves its state at the first signal, and dies of the second."""
        if not self._asked:
            self.process.terminate()
        self._asked = True

    def stop(self) -> None:
        """End the process, gently first."""
        self.pipe.close()
        self.ask()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Processes:
    """Several processes on this machine. One that crashes or is killed fails only its job; another replaces it.

    Args:
        workers: How many.
    """

    def __init__(self, workers: int) -> None:
        self.capacity = workers
        self._queue: deque[Job] = deque()
        self._workers: list[_Worker] = []

    def resume(self, adopt: Callable[[Sequence[str]], Job | None]) -> list[Job]:
        """Nothing: workers end with the process that started them."""
        return []

    def submit(self, job: Job) -> None:
        """Give it to an idle process, or queue it."""
        self._queue.append(job)
        self._assign()

    def next(self, timeout: float | None = None) -> JobResult | None:
        """Wait for a process to answer, or to die."""
        busy = [worker for worker in self._workers if worker.job is not None]
        # Children of a worker may keep its end of the pipe open after its death: watch the process, too.
        ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout)
        worker = next((w for w in busy if w.pipe in ready or w.process.sentinel in ready), None)
        if worker is None:
            return None
        job, worker.job = worker.job, None
        assert job is not None
        try:
            if not worker.pipe.poll():
                raise EOFError
            result = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._workers.remove(worker)
            worker.process.join()
            result = JobResult(job, lost=f"its process {_ending(worker.process.exitcode)}.")
            worker.stop()
        self._assign()
        return result

    def _assign(self) -> None:
        while self._queue:
            worker = next((w for w in self._workers if w.job is None), None)
            if worker is None:
                if len(self._workers) >= self.capacity:
                    return
                free = set(range(self.capacity)) - {w.number for w in self._workers}
                worker = _Worker(self._queue[0].threads, min(free))
                self._workers.append(worker)
            worker.job = self._queue.popleft()
            try:
                worker.pipe.send(worker.job)
            except BrokenPipeError:  # it died while it was idle
                self._queue.appendleft(worker.job)
                self._workers.remove(worker)
                worker.stop()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.clear()
        for worker in self._workers:
            worker.ask()  # all at once: a training finishes its step and saves its state first
        for worker in self._workers:
            worker.stop()
        self._workers.clear()


def _serve(pipe: Connection) -> None:
    """The life of a worker: jobs in, results out, until the pipe is closed."""
    for name in ("SIGINT", "SIGUSR2"):  # these reach the whole group; the parent ends its workers itself
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sources: dict[str, Any] = {}
    while True:
        try:
            pipe.send(run_job(pipe.recv(), sources))
        except (EOFError, OSError, KeyboardInterrupt):  # the last from a training that a signal stopped
            return


def _end_with_parent() -> None:
    """A killed study cannot end its workers, and they would keep the locks of their runs: so they end themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _ending(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        why = " (out of memory?)" if name == "SIGKILL" else ""
        return f"was ended by {name}{why}"
    return f"ended by itself, with exit code {exitcode}"


@contextmanager
def _environment(threads: int, number: int) -> Iterator[None]:
    """Set what a new process must find in its environment: libraries read their number of threads when they load."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    values = {**dict.fromkeys(names, str(threads)), "LOCAL_RANK": str(number)}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _local(resources: Resources) -> Executor:
    workers = 1 if resources.workers is None else resources.workers
    return InProcess() if workers <= 1 else Processes(workers)


def _ray(resources: Resources) -> Executor:
    from hace.lab.study.ray_cluster import RayCluster

    return RayCluster(resources)


def _slurm(resources: Resources) -> Executor:
    from hace.lab.study.slurm import Slurm

    return Slurm(resources)


class ExecutorEntry(NamedTuple):
    """An executor, and the fields of Resources it uses."""

    make: Callable[[Resources], Executor]
    options: tuple[str, ...]


EXECUTORS = {
    "local": ExecutorEntry(_local, ("workers",)),
    "ray": ExecutorEntry(_ray, ("workers", "address", "cpus", "gpus")),
    "slurm": ExecutorEntry(
        _slurm, tuple(f.name for f in fields(Resources) if f.name not in ("address", "logs"))
    ),
}


def find_executor(name: str) -> ExecutorEntry:
    """An executor by its name.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in EXECUTORS:
        raise ConfigError(
            f"--executor must be one of {', '.join(EXECUTORS)}. Got {name!r}.{nearest(name, EXECUTORS)}"
        )
    return EXECUTORS[name]


def resources_for(executor: str, given: Mapping[str, Any], logs: Path) -> Resources:
    """The resources of an executor, from the options that a user gave.

    Args:
        executor: A key of `EXECUTORS`.
        given: Values by option; None where the user did not give it.
        logs: Folder for what the jobs of a cluster print.

    Raises:
        ConfigError: There is no such executor, it has no such option, or a value is out of range.
    """
    entry = find_executor(executor)
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in entry.options:
            users = " or ".join(f"--executor {key}" for key, e in EXECUTORS.items() if name in e.options)
            raise ConfigError(f"--{name} must be given with {users}. Got --executor {executor}.")
    return Resources(**values, logs=logs)
