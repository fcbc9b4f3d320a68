"""Where the jobs of a study run: in this process, in several on this machine, or on a cluster.

A job is a piece of work for one process: runs that share a pass, or one training. Whoever carries it out, the bits are the
same. An executor takes jobs and returns their results as they end, in any order. To add one, write a class with the methods
of :class:`Executor`, and add it to `EXECUTORS` and :func:`make_executor`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hace.checks import check_choice, check_number
from hace.errors import ConfigError, HaceError
from hace.files.writing import is_held
from hace.lab import probe
from hace.lab.runs.config import ProbeConfig, RunConfig, TrainConfig
from hace.settings import AT_LEAST_ONE, POSITIVE, Config, Rule, setting

if TYPE_CHECKING:
    from typing_extensions import Self

STOP_SECONDS = 30.0  # for a process to save and end: a step of a large model takes its time


@dataclass(frozen=True)
class Job:
    """Runs for one process to make."""

    runs: tuple[str, ...]  # their ids
    configs: tuple[RunConfig, ...]  # their configurations, of one kind; several share a pass
    out: str  # the folder of run directories
    threads: int = 1  # threads of each process; bits are guaranteed to repeat at 1
    name: str = "hace"  # for people: in the queue of a cluster, and in the names of logs

    def saved_steps(self) -> dict[str, int]:
        """How far its trainings have come, by run: the step of the newest checkpoint."""
        if not isinstance(self.configs[0], TrainConfig):
            return {}
        from hace.lab.train.train import saved_step

        return {run: saved_step(Path(self.out) / run) for run in self.runs}


@dataclass(frozen=True)
class JobResult:
    """How a job ended. What it made is on the disk."""

    job: Job  # the job
    errors: Mapping[str, str] = field(default_factory=dict)  # why runs failed, by their ids
    busy: frozenset[str] = frozenset()  # runs among these that another process is working on
    lost: str = ""  # why the job ended before its runs did, such as a process that was killed; "" otherwise


class Executor(ABC):
    """Takes jobs, returns results as they end. A context manager; leaving it stops whatever is still running."""

    capacity = 1  # how many jobs to have under way

    def resume(self, adopt: Callable[[Sequence[str]], Job | None]) -> list[Job]:
        """The jobs that an earlier process left running; `adopt` makes one from its run ids, or None if it is not wanted."""
        return []

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Start a job, or queue it."""

    @abstractmethod
    def next(self, timeout: float | None = None) -> JobResult | None:
        """Wait for one of the jobs under way to end; None after `timeout` seconds."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


_GPUS = Rule("a whole number, or between 0 and 1", lambda v: 0 <= v < 1 or v % 1 == 0)


@dataclass(frozen=True)
class Cluster(Config):
    """What each run gets on a cluster.

    Attributes:
        cpus: Processors per run.
        gpus: GPUs per run. 0.5: two runs share one; on SLURM, 4 trains one model on four.
        address: Ray: address of a running cluster; None starts one on this machine.
        partition: SLURM: partition.
        account: SLURM: account.
        qos: SLURM: quality of service.
        constraint: SLURM: features that a node must have.
        memory: SLURM: gigabytes per run.
        nodes: SLURM: nodes per training, each with `gpus` GPUs.
        hours: SLURM: time limit of a job. A training saves before it, and goes on in the next job.
        setup: SLURM: shell lines that a job runs first.
    """

    cpus: int = setting(1, AT_LEAST_ONE)
    gpus: float = setting(0.0, _GPUS)
    address: str | None = setting(None)
    partition: str | None = setting(None)
    account: str | None = setting(None)
    qos: str | None = setting(None)
    constraint: str | None = setting(None)
    memory: float | None = setting(None, POSITIVE)
    nodes: int = setting(1, AT_LEAST_ONE)
    hours: float = setting(24.0, POSITIVE)
    setup: tuple[str, ...] = setting(())

    def conflicts(self) -> list[str]:
        """Several nodes for a part of a GPU."""
        if self.nodes > 1 and self.gpus < 1:
            return [
                f"nodes must be 1 without whole GPUs. Got nodes={self.nodes} and gpus={self.gpus:g}. "
                "Give gpus the number of GPUs per node."
            ]
        return []


def run_job(job: Job, sources: probe.Sources | None = None) -> JobResult:
    """Do a job in this process. Errors are part of the result, so that a study can continue.

    If one run spoils a pass for the others, each is made alone. Data that are loaded are added to `sources`.
    """
    sources = {} if sources is None else sources
    errors: dict[str, str] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        _make_runs(job, sources)
    except Exception as failure:
        if len(job.runs) == 1:
            errors = {job.runs[0]: error_text(failure)}
        else:
            for run, config in zip(job.runs, job.configs, strict=True):
                errors |= run_job(replace(job, runs=(run,), configs=(config,)), sources).errors
    finally:
        torch.set_num_threads(before)
    return JobResult(job, errors, frozenset(run for run in errors if is_held(Path(job.out) / run)))


def error_text(failure: BaseException) -> str:
    """The message of an error; unexpected errors include file and line."""
    if isinstance(failure, HaceError):
        return str(failure)
    last = traceback.extract_tb(failure.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return f"{type(failure).__name__}: {failure}{where}"


def _make_runs(job: Job, sources: probe.Sources) -> None:
    probes: Sequence[ProbeConfig] = [c for c in job.configs if isinstance(c, ProbeConfig)]
    if any(probe.data_key(config) not in sources for config in probes):
        sources.clear()  # one dataset at a time: features can be large
        sources.update(probe.load_sources(probes))
    for work in probe.passes(probes, sources):
        probe.run_pass(work, job.out, sources)
    for run, config in zip(job.runs, job.configs, strict=True):
        if isinstance(config, TrainConfig):
            from hace.lab.train.train import train  # loads timm and torchvision

            train(config, Path(job.out) / run, say=lambda _: None)  # lines of several runs would mix


class InProcess(Executor):
    """One job after another, in this process."""

    def __init__(self) -> None:
        self._queue: deque[Job] = deque()
        self._sources: dict[str, Any] = {}

    def submit(self, job: Job) -> None:
        """Queue it; :meth:`next` does it."""
        self._queue.append(job)

    def next(self, timeout: float | None = None) -> JobResult:
        """Do the first job of the queue, however long it takes."""
        return run_job(self._queue.popleft(), self._sources)

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
        # Libraries read their number of threads when they load, so a new process must find it in its environment.
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        before = dict(os.environ)
        os.environ.update({**dict.fromkeys(names, str(threads)), "LOCAL_RANK": str(number)})
        try:
            self.process = context.Process(target=_serve, args=(end,), name="hace worker")
            self.process.start()
        finally:
            for name in (*names, "LOCAL_RANK"):
                os.environ.pop(name)
            os.environ.update(before)
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


class Processes(Executor):
    """Several processes on this machine. One that crashes or is killed fails only its job; another replaces it."""

    def __init__(self, workers: int) -> None:
        self.capacity = workers
        self._queue: deque[Job] = deque()
        self._workers: list[_Worker] = []

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


# What each executor takes of a cluster.
EXECUTORS = {
    "local": (),
    "ray": ("address", "cpus", "gpus"),
    "slurm": tuple(f.name for f in fields(Cluster) if f.name != "address"),
}


def check_executor(name: str, workers: int | None, cluster: Cluster) -> None:
    """Refuse an executor that does not exist, or settings that it does not take."""
    check_choice("executor", name, EXECUTORS)
    check_number("workers", workers, "0 or more", workers is None or workers >= 0)
    for option in (own.name for own in fields(cluster) if getattr(cluster, own.name) != own.default):
        if option not in EXECUTORS[name]:
            users = " or ".join(key for key, options in EXECUTORS.items() if option in options)
            raise ConfigError(f"{option} must come with executor {users}. Got executor {name}.")


def make_executor(name: str, workers: int | None, cluster: Cluster, logs: Path) -> Executor:
    """An executor by its name; a cluster keeps what its jobs print in the folder `logs`."""
    if name != "local":
        from hace.lab.study.clusters import RayCluster, Slurm

        return RayCluster(cluster, workers) if name == "ray" else Slurm(cluster, logs, workers)
    return Processes(workers) if workers is not None and workers > 1 else InProcess()
