"""A piece of work for one process: runs that share a pass, or one training. Executors carry it; none of them changes bits."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from hace.errors import HaceError
from hace.files.locks import is_held
from hace.lab.probe import probe
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.train_config import TrainConfig


@dataclass(frozen=True)
class Job:
    """Runs to be made by one process.

    Attributes:
        runs: Their ids.
        configs: Their configurations, of one kind; several share a pass.
        out: The folder of run directories.
        threads: Threads of each process; bits are promised to repeat at 1.
        delay: Seconds to wait first, before another attempt.
    """

    runs: tuple[str, ...]
    configs: tuple[RunConfig, ...]
    out: str
    threads: int = 1
    delay: float = 0.0


@dataclass(frozen=True)
class JobResult:
    """How a job ended. What it made lies on the disk.

    Attributes:
        job: The job.
        errors: Why runs failed, by their ids.
        busy: Of these, the runs that another process is at work on.
        lost: Why nothing is known of any of them, such as a process that was killed; "" otherwise.
    """

    job: Job
    errors: Mapping[str, str] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    lost: str = ""


def run_job(job: Job, sources: probe.Sources | None = None) -> JobResult:
    """Do a job in this process. Whatever goes wrong is in the result, so that a study can go on.

    Where one run spoils a pass for all, each is made by itself.

    Args:
        job: What to do.
        sources: Data that this process has loaded before; what is loaded now is added.
    """
    sources = {} if sources is None else sources
    errors: dict[str, str] = {}
    try:
        time.sleep(job.delay)
        with _threads(job.threads):
            _KINDS[job.configs[0].kind](job, sources)
    except Exception as failure:
        if len(job.runs) == 1:
            errors = {job.runs[0]: told(failure)}
        else:
            for run, config in zip(job.runs, job.configs, strict=True):
                errors |= run_job(replace(job, runs=(run,), configs=(config,), delay=0.0), sources).errors
    return JobResult(job, errors, frozenset(run for run in errors if is_held(Path(job.out) / run)))


def told(failure: BaseException) -> str:
    """An error for people; one that nobody foresaw with the place where it happened."""
    if isinstance(failure, HaceError):
        return str(failure)
    last = traceback.extract_tb(failure.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return f"{type(failure).__name__}: {failure}{where}"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _probes(job: Job, sources: probe.Sources) -> None:
    configs: Sequence[ProbeConfig] = [c for c in job.configs if isinstance(c, ProbeConfig)]
    if any(probe.data_key(config) not in sources for config in configs):
        sources.clear()  # one data set at a time: features can be large
        sources.update(probe.load_sources(configs))
    for work in probe.passes(configs, sources):
        probe.run_pass(work, job.out, sources)


def _train(job: Job, sources: probe.Sources) -> None:
    from hace.lab.train.train import run_train  # timm and torchvision load with it

    for run, config in zip(job.runs, job.configs, strict=True):
        assert isinstance(config, TrainConfig)
        run_train(config, Path(job.out) / run, say=_nobody)


def _nobody(_: str) -> None:
    """Several runs at once would talk into each other, and into the table."""


_KINDS: dict[str, Callable[[Job, probe.Sources], None]] = {"probe": _probes, "train": _train}
