"""Jobs as SLURM jobs, submitted by submitit.

The study's folder and the data must be visible to every node, at the same path. A training saves its state shortly before the
time limit, and the next job continues from there. The ids of jobs in the queue are in `jobs/submitted.json`: a study that was
killed and is started again waits for them and submits nothing twice.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hace.errors import HaceError
from hace.files.reading import optional
from hace.files.writing import json_bytes, write_whole
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.process import WORDS, Stopped, catch_signals
from hace.lab.study.executors import STOP_SECONDS, Cluster, Executor, Job, JobResult, Processes, run_job

IN_FLIGHT = 64  # jobs in the queue, unless --workers says otherwise
SIGNAL_SECONDS = 120  # before the time limit: for a step, and for the state to be saved
POLL_SECONDS = 0.5  # between two looks for results
QUEUE_SECONDS = (1.0, 30.0)  # between two calls of squeue: at first, and after a while without news
RESULT_SECONDS = 15.0  # for a shared file system to show the result of a job that has left the queue
SUBMITTED = "submitted.json"
COMMAND_SECONDS = 60.0

ENDS = {
    "OUT_OF_MEMORY": "it needs more memory: give --memory more gigabytes, or lower batch_size",
    "TIMEOUT": "it ran into its time limit: give --hours more",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not start",
    "PREEMPTED": "SLURM gave its place to another job",
    "CANCELLED": "someone cancelled it",
    "DEADLINE": "it missed its deadline",
    "FAILED": "it crashed; the log says why",
}


@dataclass
class Submission:
    """A SLURM job."""

    id: str
    folder: Path  # of its logs and its result
    runs: list[list[str]]  # what it was submitted for: the runs of each job; several jobs share its GPU
    jobs: list[Job | None]  # the same jobs; None where one is no longer wanted
    gone: float | None = None  # when it was first seen to have left the queue

    @cached_property
    def task(self) -> Any:
        """The handle of its first task, which writes the result."""
        return optional("submitit", "Executor slurm", "slurm").SlurmJob(self.folder, self.id)

    def ended(self) -> bool:
        """Whether its result is there."""
        return self.task.paths.result_pickle.exists()

    def results(self) -> list[JobResult]:
        """What it returned."""
        try:
            found: list[JobResult] = self.task.result()
            pairs = zip(found, self.jobs, strict=True)
            return [replace(result, job=job) for result, job in pairs if job is not None]
        except Exception as error:  # submitit raises several kinds, and unpickling raises anything
            return self.lost(_last_words(str(error)) or type(error).__name__)

    def lost(self, reason: str) -> list[JobResult]:
        """The results of a job that returned none."""
        words = f"SLURM job {self.id}: {reason.rstrip('.')}. Its log is {self.task.paths.stderr}."
        return [JobResult(job, lost=words) for job in self.jobs if job is not None]


class Slurm(Executor):
    """Jobs as SLURM jobs, at most `workers` of them in the queue; what they print is in the folder `logs`."""

    def __init__(self, cluster: Cluster, logs: Path, workers: int | None = None) -> None:
        self._submitit = optional("submitit", "Executor slurm", "slurm")
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise HaceError(
                "Executor slurm must run where `sbatch` and `srun` are. Got neither on PATH. "
                "Log in to the cluster, or use executor local."
            )
        self._cluster, self._logs = cluster, logs
        self._shared = math.floor(1 / cluster.gpus) if 0 < cluster.gpus < 1 else 1  # runs per GPU
        self.capacity = (workers or IN_FLIGHT) * self._shared
        self._unsent: list[Job] = []
        self._under_way: list[Submission] = []
        self._results: deque[JobResult] = deque()
        self._news = self._asked = time.monotonic()

    def resume(self, adopt: Callable[[Sequence[str]], Job | None]) -> list[Job]:
        """The jobs of an earlier start that are still in the queue; unwanted ones are cancelled."""
        path = self._logs / SUBMITTED
        remembered: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        queue = _queue() if remembered else set()
        if queue is None:
            raise HaceError(
                f"Executor slurm: squeue does not answer, and {path} has jobs that may be in the queue. Try again later."
            )
        unwanted = []
        for number, about in remembered.items():
            if number not in queue:
                continue
            jobs = [adopt(runs) for runs in about["runs"]]
            if any(jobs):
                folder = (self._logs / about["folder"]).resolve()
                self._under_way.append(Submission(number, folder, about["runs"], jobs))
            else:
                unwanted.append(number)
        _cancel(unwanted)
        self._remember()
        return [job for submission in self._under_way for job in submission.jobs if job is not None]

    def submit(self, job: Job) -> None:
        """Hand it to SLURM, as soon as there are enough jobs to fill a GPU."""
        self._unsent.append(job)
        if len(self._unsent) == self._shared:
            self._send()

    def next(self, timeout: float | None = None) -> JobResult | None:
        """Ask for results until there is one."""
        self._send()
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._collect()
            if self._results:
                return self._results.popleft()
            if time.monotonic() >= end:
                return None
            time.sleep(POLL_SECONDS)

    def _send(self) -> None:
        if not self._unsent:
            return
        jobs, self._unsent = self._unsent, []
        label = re.sub(r"[^\w.=-]+", "-", jobs[0].name)
        folder = self._logs / f"{label}-{jobs[0].runs[0][:8]}"
        executor = self._submitit.AutoExecutor(folder=folder, cluster="slurm")
        executor.update_parameters(**_parameters(self._cluster, jobs, label))
        try:
            handle = executor.submit(work_in_slurm, jobs)
        except Exception as error:  # submitit's own kinds, with what sbatch said
            raise HaceError(f"Executor slurm: sbatch refused {label}: {_last_words(str(error))}") from error
        runs = [list(job.runs) for job in jobs]
        self._under_way.append(Submission(handle.job_id, folder.resolve(), runs, [*jobs]))
        self._remember()
        self._news = time.monotonic()

    def _collect(self) -> None:
        """Take the results that are there, and those of jobs that left the queue without one."""
        gone = self._gone()
        for submission in list(self._under_way):
            if submission.ended():
                self._take(submission, submission.results())
            elif submission.id in gone:
                state = gone[submission.id]
                submission.gone = submission.gone or time.monotonic()
                if state in ENDS or time.monotonic() - submission.gone > RESULT_SECONDS:
                    reason = f"{state}, {ENDS.get(state, 'and it left no result')}"
                    self._take(submission, submission.lost(reason))

    def _take(self, submission: Submission, results: list[JobResult]) -> None:
        self._under_way.remove(submission)
        self._remember()
        self._results.extend(results)
        self._news = time.monotonic()

    def _gone(self) -> dict[str, str]:
        """The jobs that have left the queue, with their states; polled less and less often while nothing happens."""
        now = time.monotonic()
        least, most = QUEUE_SECONDS
        if now - self._asked < min(most, max(least, (now - self._news) / 4)):
            return {}
        self._asked = now
        queue = _queue()
        ids = [s.id for s in self._under_way if queue is not None and s.id not in queue]
        return _states(ids) if ids else {}

    def _remember(self) -> None:
        entries = {s.id: {"folder": s.folder.name, "runs": s.runs} for s in self._under_way}
        self._logs.mkdir(parents=True, exist_ok=True)
        write_whole(self._logs / SUBMITTED, json_bytes(entries))

    def __exit__(self, *_: object) -> None:
        _cancel([submission.id for submission in self._under_way])
        self._under_way.clear()
        self._unsent.clear()
        self._remember()


def _parameters(cluster: Cluster, jobs: Sequence[Job], label: str) -> dict[str, Any]:
    """The parameters for submitit. A training has one process per GPU; a probe always has one."""
    trains = all(isinstance(config, TrainConfig) for job in jobs for config in job.configs)
    nodes, each = (cluster.nodes, max(1, int(cluster.gpus))) if trains else (1, 1)
    runs = len(jobs)
    found: dict[str, Any] = {
        "name": f"hace-{label}" + (f"-and-{runs - 1}-more" if runs > 1 else ""),
        "timeout_min": max(1, round(cluster.hours * 60)),
        "nodes": nodes,
        "tasks_per_node": each,
        "cpus_per_task": cluster.cpus * runs,
        "slurm_signal_delay_s": SIGNAL_SECONDS,
        # Where one process of a training fails, the others wait in vain.
        "slurm_srun_args": ["--kill-on-bad-exit=1"],
        "slurm_additional_parameters": {"no-requeue": True},  # the study itself resubmits, and records why
        **{f"slurm_{name}": getattr(cluster, name) for name in ("partition", "account", "qos", "constraint")},
        "slurm_setup": list(cluster.setup) or None,
        "mem_gb": None if cluster.memory is None else cluster.memory * runs,
        "gpus_per_node": each if cluster.gpus else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def work_in_slurm(jobs: Sequence[Job]) -> list[JobResult]:
    """What a SLURM job does: one job, by one process or several; or several jobs at once, which share a GPU."""
    results: dict[tuple[str, ...], JobResult] = {}
    stop = "the time limit was near, or the job was cancelled"
    try:
        # In place of submitit's handlers, which would start the job again by themselves.
        with catch_signals(interrupt=True):
            if len(jobs) > 1:
                with Processes(len(jobs)) as executor:
                    for job in jobs:
                        executor.submit(job)
                    while len(results) < len(jobs) and (result := executor.next()) is not None:
                        results[result.job.runs] = result
            else:
                rank = _join()
                results[jobs[0].runs] = result = run_job(jobs[0])
                # This exit code ends the first process, unless it has failed too and said why.
                if rank and result.errors:
                    time.sleep(STOP_SECONDS)
                    raise HaceError("; ".join(result.errors.values()))
    except Stopped as error:
        stop = f"stopped by {WORDS[error.number]}: {stop}"
    return [results.get(job.runs) or JobResult(job, lost=stop) for job in jobs]


def _join() -> int:
    """Tell torch of the other processes of this job, as torchrun does; the rank of this one."""
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    job = JobEnvironment()
    if job.num_tasks > 1:
        TorchDistributedEnvironment().export(overwrite=True)
    return job.global_rank


def _queue() -> set[str] | None:
    """The ids of all jobs of this user that wait or run; None if SLURM does not answer."""
    lines = _ask(["squeue", "--me", "--noheader", "--format=%i|%T"])
    return None if lines is None else {line.partition("|")[0] for line in lines}


def _states(ids: Sequence[str]) -> dict[str, str]:
    """How jobs that left the queue ended; "UNKNOWN" where the cluster keeps no accounts."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
    lines = _ask([*command, "--jobs", ",".join(ids)]) or []
    found: Mapping[str, str] = dict(line.split("|")[:2] for line in lines if "|" in line)
    return {number: (found.get(number) or "UNKNOWN").split()[0] for number in ids}


def _ask(command: Sequence[str]) -> list[str] | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n") if done.returncode == 0 else None


def _cancel(ids: Sequence[str]) -> None:
    if ids:
        _ask(["scancel", *ids])


def _last_words(text: str) -> str:
    """The last line of the trace in submitit's message, or of the message itself."""
    trace = re.search(r"^-{10,}\n(.*?)\n-{10,}", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in (trace[1] if trace else text).splitlines() if line.strip()]
    return lines[-1] if lines else ""
