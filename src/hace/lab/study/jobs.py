"""The unit of work of a study: runs for one process to make.

:func:`run_job` is a plain function, so any :class:`concurrent.futures.Executor` can call it. What it makes is on the disk,
in the run directories; it returns only why runs failed. Whoever carries out a job, the bits are the same.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hace.errors import HaceError
from hace.lab import probe
from hace.lab.runs.config import ProbeConfig, RunConfig, TrainConfig

Errors = dict[str, str]  # why runs failed, by their ids


@dataclass(frozen=True)
class Job:
    """Runs for one process to make: probes that share a pass, or one training."""

    runs: tuple[str, ...]  # their ids
    configs: tuple[RunConfig, ...]  # their configurations, of one kind
    out: str  # the folder of run directories
    threads: int = 1  # threads of the process; bits are guaranteed to repeat at 1
    name: str = "hace"  # for people: in the queue of a cluster, and in the names of logs

    @property
    def probes(self) -> list[ProbeConfig]:
        """The configurations of its probes."""
        return [config for config in self.configs if isinstance(config, ProbeConfig)]

    @property
    def trainings(self) -> list[TrainConfig]:
        """The configurations of its trainings."""
        return [config for config in self.configs if isinstance(config, TrainConfig)]

    def alone(self) -> list[Job]:
        """A job for each of its runs."""
        pairs = zip(self.runs, self.configs, strict=True)
        return [replace(self, runs=(run,), configs=(config,)) for run, config in pairs]

    def saved_steps(self) -> dict[str, int]:
        """How far its trainings have come, by run: the step of the newest checkpoint."""
        if not self.trainings:
            return {}
        from hace.lab.train.train import saved_step

        return {run: saved_step(Path(self.out) / run) for run in self.runs}


class SubmissionError(HaceError):
    """An executor did not take a job."""


def run_job(job: Job, sources: probe.Sources | None = None) -> Errors:
    """Make the runs of a job, in this process.

    If one run spoils a pass for the others, each is made alone.

    Args:
        job: What to make.
        sources: The features of its probes; by default they are loaded, and stay loaded for the next job.

    Returns:
        Why runs failed, by their ids.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        _make_runs(job, sources)
        return {}
    except Exception as error:
        if len(job.runs) == 1:
            return {job.runs[0]: error_text(error)}
    finally:
        torch.set_num_threads(threads)
    errors: Errors = {}
    for single in job.alone():
        errors |= run_job(single, sources)
    return errors


def _make_runs(job: Job, sources: probe.Sources | None) -> None:
    if job.probes:
        loaded = loaded_sources(job.probes) if sources is None else sources
        for work in probe.passes(job.probes, loaded):
            probe.run_pass(work, job.out, loaded)
    if job.trainings:
        from hace.lab.train.train import train  # loads timm and torchvision

        for run, config in zip(job.runs, job.trainings, strict=True):
            train(config, Path(job.out) / run, say=lambda _: None)  # lines of several runs would mix


_loaded: probe.Sources = {}  # the features of the last job of this process


def loaded_sources(configs: Sequence[ProbeConfig]) -> probe.Sources:
    """The features of probes, loaded once by each process. One dataset at a time: features can be large."""
    global _loaded
    if any(probe.data_key(config) not in _loaded for config in configs):
        _loaded = {}  # before the next ones are loaded
        _loaded = probe.load_sources(configs)
    return _loaded


def forget_sources() -> None:
    """Let go of the features that this process has loaded."""
    global _loaded
    _loaded = {}


def error_text(error: BaseException) -> str:
    """The message of an error; unexpected errors include file and line."""
    if isinstance(error, HaceError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return f"{type(error).__name__}: {error}{where}"
