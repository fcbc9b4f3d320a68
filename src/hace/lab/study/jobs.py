"""A piece of work for one process: runs that share a pass, or one training. Whoever carries it out, the bits are the same.

An executor takes jobs and returns their results as they end, in any order: see :mod:`hace.lab.study.executors`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from hace.errors import ConfigError, HaceError
from hace.files.locks import only_process
from hace.lab.probe import probe
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.train_config import TrainConfig

STOP_SECONDS = 30.0  # for a process to save and end: a step of a large model takes its time


@dataclass(frozen=True)
class Job:
    """Runs for one process to make.

    Attributes:
        runs: Their ids.
        configs: Their configurations, of one kind; several share a pass.
        out: The folder of run directories.
        threads: Threads of each process; bits are promised to repeat at 1.
        name: For people: in the queue of a cluster, and in the names of logs.
    """

    runs: tuple[str, ...]
    configs: tuple[RunConfig, ...]
    out: str
    threads: int = 1
    name: str = "hace"

    def saved_steps(self) -> dict[str, int]:
        """How far its trainings have come, by run: the step of the newest checkpoint."""
        if not isinstance(self.configs[0], TrainConfig):
            return {}
        from hace.lab.train.state import saved_step

        return {run: saved_step(Path(self.out) / run) for run in self.runs}


@dataclass(frozen=True)
class JobResult:
    """How a job ended. What it made is on the disk.

    Attributes:
        job: The job.
        errors: Why runs failed, by their ids.
        busy: Runs among these that another process is working on.
        lost: Why the job ended before its runs did, such as a process that was killed; "" otherwise.
    """

    job: Job
    errors: Mapping[str, str] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    lost: str = ""


class Executor(Protocol):
    """Takes jobs, returns results as they end. A context manager; leaving it stops whatever is still running."""

    @property
    def capacity(self) -> int:
        """How many jobs to have under way."""
        ...

    def resume(self, adopt: Callable[[Sequence[str]], Job | None]) -> list[Job]:
        """Find the jobs that an earlier process left running; :meth:`next` returns their results too.

        Args:
            adopt: Called with the run ids of each; returns the job, or None if it is no longer wanted.
        """
        ...

    def submit(self, job: Job) -> None:
        """Start a job, or queue it."""
        ...

    def next(self, timeout: float | None = None) -> JobResult | None:
        """Wait for a job to end. At least one must be under way.

        Args:
            timeout: Seconds after which to return None; None waits as long as it takes.
        """
        ...

    def __enter__(self) -> Executor: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Resources:
    """What an executor may use.

    Attributes:
        workers: Jobs at the same time; None is the executor's choice, 0 and 1 are this process.
        cpus: Processors per run, on a cluster.
        gpus: GPUs per run, on a cluster. Below 1, several runs share one; above 1, SLURM gives a training several processes.
        address: Address of a running Ray cluster; None starts one on this machine.
        partition: SLURM partition.
        account: SLURM account.
        qos: SLURM quality of service.
        constraint: Features that a SLURM node must have.
        memory: Gigabytes per run, on SLURM.
        nodes: SLURM nodes per training; each has `gpus` GPUs.
        hours: Time limit of a SLURM job. A training saves before it, and goes on in the next job.
        setup: Shell lines that a SLURM job runs first.
        logs: Folder for what the jobs of a cluster print.

    Raises:
        ConfigError: A value is out of range.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    address: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    memory: float | None = None
    nodes: int = 1
    hours: float = 24.0
    setup: tuple[str, ...] = ()
    logs: Path = Path("jobs")

    def __post_init__(self) -> None:
        rules = (
            ("workers", "0 or more", self.workers is None or self.workers >= 0),
            ("cpus", "at least 1", self.cpus >= 1),
            ("gpus", "a whole number, or between 0 and 1", 0 <= self.gpus < 1 or self.gpus % 1 == 0),
            ("memory", "more than 0", self.memory is None or self.memory > 0),
            ("nodes", "at least 1", self.nodes >= 1),
            ("hours", "more than 0", self.hours > 0),
        )
        for name, rule, holds in rules:
            if not holds:
                raise ConfigError(f"--{name} must be {rule}. Got {getattr(self, name):g}.")
        if self.nodes > 1 and self.gpus < 1:
            raise ConfigError(
                f"--nodes must be 1 without whole GPUs. Got --nodes {self.nodes} --gpus {self.gpus:g}. "
                "Give --gpus the number of GPUs per node."
            )


def run_job(job: Job, sources: probe.Sources | None = None) -> JobResult:
    """Do a job in this process. Errors are part of the result, so that a study can continue.

    If one run spoils a pass for the others, each is made alone.

    Args:
        job: What to do.
        sources: Data that this process has loaded before; what is loaded now is added.
    """
    sources = {} if sources is None else sources
    errors: dict[str, str] = {}
    try:
        with _threads(job.threads):
            _KINDS[job.configs[0].kind](job, sources)
    except Exception as failure:
        if len(job.runs) == 1:
            errors = {job.runs[0]: error_text(failure)}
        else:
            for run, config in zip(job.runs, job.configs, strict=True):
                errors |= run_job(replace(job, runs=(run,), configs=(config,)), sources).errors
    return JobResult(job, errors, frozenset(run for run in errors if is_busy(Path(job.out) / run)))


def error_text(failure: BaseException) -> str:
    """The message of an error; unexpected errors include file and line."""
    if isinstance(failure, HaceError):
        return str(failure)
    last = traceback.extract_tb(failure.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return f"{type(failure).__name__}: {failure}{where}"


def is_busy(folder: Path) -> bool:
    """Whether a process is working in a run directory."""
    if not folder.is_dir():
        return False
    try:
        with only_process(folder):
            return False
    except HaceError:
        return True


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _make_probes(job: Job, sources: probe.Sources) -> None:
    configs: Sequence[ProbeConfig] = [c for c in job.configs if isinstance(c, ProbeConfig)]
    if any(probe.data_key(config) not in sources for config in configs):
        sources.clear()  # one data set at a time: features can be large
        sources.update(probe.load_sources(configs))
    for work in probe.passes(configs, sources):
        probe.run_pass(work, job.out, sources)


def _make_training(job: Job, sources: probe.Sources) -> None:
    from hace.lab.train.train import run_train  # loads timm and torchvision

    for run, config in zip(job.runs, job.configs, strict=True):
        assert isinstance(config, TrainConfig)
        run_train(config, Path(job.out) / run, say=_silent)


def _silent(_: str) -> None:
    """Runs at the same time would mix their lines, and break the table."""


_KINDS: dict[str, Callable[[Job, probe.Sources], None]] = {"probe": _make_probes, "train": _make_training}
