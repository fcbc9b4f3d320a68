"""Jobs as Ray tasks, or as SLURM jobs that submitit submits.

The study's folder and the data must be visible to every machine, at the same path. Ray runs on a cluster or on this machine;
its authentication is its own: addresses are passed on, refusals are shown, no token is read or kept. On SLURM, a training
saves its state shortly before the time limit, and the next job continues from there. The ids of jobs in the queue are in
`jobs/submitted.json`: a study that was killed and is started again waits for them and submits nothing twice.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hace.errors import ConfigError, HaceError
from hace.files.reading import optional
from hace.files.writing import json_bytes, write_whole
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.process import SIGNAL_NAMES, Stopped, catch_signals
from hace.lab.study.executors import (
    STOP_SECONDS,
    Cluster,
    Executor,
    Job,
    JobResult,
    Processes,
    error_text,
    run_job,
)

CONNECT_SECONDS = 5.0
RAY_SECONDS = 60.0  # for Ray to connect; a busy machine takes its time
_TRIAL = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


_sources: dict[str, Any] = {}  # the data of a worker, which Ray gives one job after another


def worker_job(job: Job) -> JobResult:
    """Do a job in a worker of Ray; its data stay loaded for the next one."""
    return run_job(job, _sources)


class RayCluster(Executor):
    """Jobs as Ray tasks, `workers` at the same time; None: as many as the cluster's processors allow."""

    def __init__(self, cluster: Cluster, workers: int | None = None) -> None:
        if cluster.gpus > 1:
            raise ConfigError(
                f"gpus must be at most 1 with executor ray, where a run is one process. Got {cluster.gpus:g}. "
                "Executor slurm trains one model on several GPUs."
            )
        self._cluster, self._workers = cluster, workers
        self._ray: Any = optional("ray", "Executor ray", "ray")
        self._jobs: dict[Any, Job] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> RayCluster:
        ray, cluster, workers = self._ray, self._cluster, self._workers
        if cluster.address is None:
            jobs = workers or max(1, (os.cpu_count() or 1) // cluster.cpus)
            # Ray puts its sockets here, and their paths must be short.
            self._temporary = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            where: dict[str, Any] = {"address": "local", "_temp_dir": self._temporary.name}
            self._connect(num_cpus=jobs * cluster.cpus, include_dashboard=False, **where)
            self.capacity = jobs
        else:
            _answers(cluster.address)
            self._connect(address=cluster.address)
            there = ray.cluster_resources().get("CPU", 1)
            self.capacity = workers or max(1, int(there // cluster.cpus))
        self._task = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=0)(worker_job)
        return self

    def _connect(self, **options: Any) -> None:
        try:
            with _own_handlers():
                self._ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except (Exception, SystemExit) as error:
            raise HaceError(f"Executor ray: Ray cannot be started: {error_text(error)}") from error

    def submit(self, job: Job) -> None:
        """Hand it to Ray, which queues it."""
        self._jobs[self._task.options(name=job.name).remote(job)] = job

    def next(self, timeout: float | None = None) -> JobResult | None:
        """Wait for Ray."""
        done, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=timeout)
        if not done:
            return None
        job = self._jobs.pop(done[0])
        try:
            return self._ray.get(done[0])
        except self._ray.exceptions.RayError as error:
            words = next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")
            return JobResult(job, lost=f"Ray lost it: {type(error).__name__}: {words}")

    def __exit__(self, *_: object) -> None:
        tasks = list(self._jobs)
        for task in tasks:
            self._ray.cancel(task)  # as Ctrl-C does: a training finishes its step and saves its state
        if tasks:
            _, running = self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)
            for task in running:
                self._ray.cancel(task, force=True)
        self._jobs.clear()
        self._ray.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's signal handlers: `ray.init` installs its own, which abort on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNAL_NAMES}
    came = 0
    try:
        yield
    except SystemExit as error:  # Ray's handler raises it for a signal that comes during `ray.init`
        if error.code not in before:
            raise
        came = int(error.code)
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if came:
        signal.raise_signal(came)
        raise KeyboardInterrupt


def _answers(address: str) -> None:
    """Refuse an address where no cluster answers. Another process tries: Ray waits for minutes, or ends its process."""
    found = re.fullmatch(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d+)", address)
    try:
        if found is not None:  # otherwise "auto", or an address only Ray can resolve
            target = (found["host"].strip("[]"), int(found["port"]))
            socket.create_connection(target, CONNECT_SECONDS).close()
        trial = [sys.executable, "-c", _TRIAL, address]
        done = subprocess.run(trial, capture_output=True, text=True, timeout=RAY_SECONDS)
        said = done.stderr if done.returncode else None
    except (OSError, OverflowError) as error:
        said = str(error)
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode() + f"\nno answer within {RAY_SECONDS:g} s"
    if said is not None:
        raise HaceError(
            f"--address {address}: no Ray cluster can be used there: {_ray_words(said)}. Start it (`ray start --head`), "
            "correct the address, or omit --address to start a cluster on this machine. Ray takes its settings, including "
            "its token, from its own environment."
        )


def _ray_words(said: str) -> str:
    """The reason in what Ray prints: a refusal if there is one, else the last line."""
    lines = [re.sub(r"^\[[^]]*\] \S+: ", "", line).strip() for line in said.splitlines() if line.strip()]
    refusals = [line for line in lines if "nauthenticated" in line or "oken" in line]
    return (refusals or lines or ["it gave no reason"])[-1].rstrip(".")


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
        for number in [number for number in remembered if number in queue]:
            about = remembered[number]
            jobs = [adopt(runs) for runs in about["runs"]]
            if any(jobs):
                folder = (self._logs / about["folder"]).resolve()
                self._under_way.append(Submission(number, folder, about["runs"], jobs))
            else:
                _ask(["scancel", number])
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
            if submission.task.paths.result_pickle.exists():
                results = submission.results()
            elif (state := gone.get(submission.id)) is not None:
                submission.gone = submission.gone or time.monotonic()
                if state not in ENDS and time.monotonic() - submission.gone <= RESULT_SECONDS:
                    continue
                results = submission.lost(f"{state}, {ENDS.get(state, 'and it left no result')}")
            else:
                continue
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
        if self._under_way:
            _ask(["scancel", *(submission.id for submission in self._under_way)])
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
        stop = f"stopped by {SIGNAL_NAMES[error.number]}: {stop}"
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


def _last_words(text: str) -> str:
    """The last line of the trace in submitit's message, or of the message itself."""
    trace = re.search(r"^-{10,}\n(.*?)\n-{10,}", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in (trace[1] if trace else text).splitlines() if line.strip()]
    return lines[-1] if lines else ""
