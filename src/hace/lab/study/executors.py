"""Where the jobs of a study are done: in this process, in several on this machine, or on a cluster.

An executor takes jobs and gives their results as they end, in any order. To add one, write the class and add an entry to
`EXECUTORS`: nothing else knows how many there are.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from hace.errors import ConfigError, nearest
from hace.lab.study.jobs import Job, JobResult, run_job

STOP_SECONDS = 30.0  # for a process to go away by itself: a step of a large model takes its time


class Executor(Protocol):
    """Takes jobs, gives results as they end. Used as a context manager; leaving it stops whatever is still at work."""

    @property
    def capacity(self) -> int:
        """How many jobs it is worth to have under way."""
        ...

    def submit(self, job: Job) -> None:
        """Start a job, or put it in a queue."""
        ...

    def next(self) -> JobResult:
        """Wait for a job to end. There must be one under way."""
        ...

    def __enter__(self) -> Executor: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Resources:
    """What an executor may use.

    Attributes:
        workers: Jobs at the same time; 0 and 1 are this process itself, None is the executor's own choice.
        cpus, gpus: Of each job, on a cluster.
        address: Of a running Ray cluster; None starts one on this machine.
        partition: Of SLURM.
        hours: After which SLURM may stop a job.
        logs: A folder for what a cluster's jobs print.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    address: str | None = None
    partition: str | None = None
    hours: float = 24.0
    logs: Path = Path("jobs")

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise ConfigError(f"--workers must be 0 or more, got {self.workers}.")
        if self.cpus < 1 or self.gpus < 0 or not self.hours > 0:
            raise ConfigError(
                "--cpus must be at least 1, --gpus at least 0 and --hours more than 0, got "
                f"{self.cpus}, {self.gpus:g} and {self.hours:g}."
            )


class InProcess:
    """One job after another, in this process."""

    capacity = 1

    def __init__(self) -> None:
        self._queue: deque[Job] = deque()
        self._sources: dict[str, Any] = {}

    def submit(self, job: Job) -> None:
        """Put it in the queue; :meth:`next` does it."""
        self._queue.append(job)

    def next(self) -> JobResult:
        """Do the first job of the queue."""
        return run_job(self._queue.popleft(), self._sources)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.clear()
        self._sources.clear()


class _Worker:
    """A process with a line to it. Its place, as of a process that torchrun has started, says which accelerator it takes."""

    def __init__(self, threads: int, place: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
        self.line, end = context.Pipe()
        self.job: Job | None = None
        self.place = place
        self._asked = False
        with _environment(threads, place):
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
        self.line.close()
        self.ask()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Processes:
    """Several processes on this machine. One that crashes or is killed fails its job only, and another takes its place.

    Args:
        workers: How many.
    """

    def __init__(self, workers: int) -> None:
        self.capacity = workers
        self._queue: deque[Job] = deque()
        self._workers: list[_Worker] = []

    def submit(self, job: Job) -> None:
        """Give it to a process that has none, or put it in the queue."""
        self._queue.append(job)
        self._assign()

    def next(self) -> JobResult:
        """Wait for a process to answer, or to die."""
        busy = [worker for worker in self._workers if worker.job is not None]
        # A worker's own children may hold its end of the line open after its death: so watch the process, too.
        ready = wait([w.line for w in busy] + [w.process.sentinel for w in busy])
        worker = next(w for w in busy if w.line in ready or w.process.sentinel in ready)
        job, worker.job = worker.job, None
        assert job is not None
        try:
            if not worker.line.poll():
                raise EOFError
            result = worker.line.recv()
        except (EOFError, ConnectionResetError):
            self._workers.remove(worker)
            worker.process.join()
            result = JobResult(job, lost=f"the process that made it {_ending(worker.process.exitcode)}.")
            worker.stop()
        self._assign()
        return result

    def _assign(self) -> None:
        while self._queue:
            worker = next((w for w in self._workers if w.job is None), None)
            if worker is None:
                if len(self._workers) >= self.capacity:
                    return
                places = set(range(self.capacity)) - {w.place for w in self._workers}
                worker = _Worker(self._queue[0].threads, min(places))
                self._workers.append(worker)
            worker.job = self._queue.popleft()
            try:
                worker.line.send(worker.job)
            except BrokenPipeError:  # it died while it had nothing to do
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


def _serve(line: Connection) -> None:
    """The life of a worker: jobs in, results out, until the line is closed."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the study ends its workers itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sources: dict[str, Any] = {}
    while True:
        try:
            line.send(run_job(line.recv(), sources))
        except (EOFError, OSError, KeyboardInterrupt):  # the last from a training that a signal has stopped
            return


def _end_with_parent() -> None:
    """A study that is killed cannot end its workers, and they would hold the locks of their runs: so they end themselves."""
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
def _environment(threads: int, place: int) -> Iterator[None]:
    """Libraries read their number of threads when they load: it has to stand in the environment of a new process."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    values = {**dict.fromkeys(names, str(threads)), "LOCAL_RANK": str(place)}
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
    from hace.lab.study.clusters import RayCluster

    return RayCluster(resources)


def _slurm(resources: Resources) -> Executor:
    from hace.lab.study.clusters import Submitit

    return Submitit(resources)


EXECUTORS: dict[str, Callable[[Resources], Executor]] = {"local": _local, "ray": _ray, "slurm": _slurm}


def make_executor(name: str, resources: Resources) -> Executor:
    """An executor by its name.

    Raises:
        ConfigError: There is none of that name, or it cannot be had.
    """
    if name not in EXECUTORS:
        raise ConfigError(
            f"--executor must be one of {', '.join(EXECUTORS)}, got {name!r}.{nearest(name, EXECUTORS)}"
        )
    return EXECUTORS[name](resources)
