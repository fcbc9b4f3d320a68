"""The jobs of a study as SLURM jobs, which submitit submits.

The study's folder and the data must be visible to every machine, at the same path. A training saves its state shortly before
the time limit; the study then submits it again, and it continues from there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hace.errors import ConfigError, HaceError
from hace.files.reading import optional
from hace.lab.runs.process import SIGNAL_NAMES, Stopped, catch_signals
from hace.lab.study.executors import Cluster
from hace.lab.study.jobs import Job, SubmissionError
from hace.lab.study.processes import STOP_SECONDS

IN_FLIGHT = 64  # jobs in the queue, unless --workers says otherwise
SIGNAL_SECONDS = 120  # before the time limit: for a step, and for the state to be saved
POLL_SECONDS = 0.5  # between two looks for results
QUEUE_SECONDS = 15.0  # between two calls of squeue
RESULT_SECONDS = 15.0  # for a shared file system to show the result of a job that has left the queue
COMMAND_SECONDS = 60.0

# Why jobs end without a result, by their state.
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

T = TypeVar("T")


@dataclass
class _Submitted:
    """A SLURM job that somebody waits for."""

    future: Future[Any]
    task: Any  # submitit's handle of its first task, which writes the result
    left_queue: float | None = None  # when it was first seen to be no longer in the queue


class SlurmExecutor(Executor):
    """Calls as SLURM jobs, one each.

    Args:
        cluster: What each call gets.
        logs: The folder for submitit's files and for what jobs print.
        workers: How many jobs to have in the queue.
    """

    def __init__(self, cluster: Cluster, logs: Path, workers: int | None = None) -> None:
        self._submitit = optional("submitit", "Executor slurm", "slurm")
        if cluster.gpus % 1:
            raise ConfigError(
                f"gpus must be a whole number with executor slurm. Got {cluster.gpus:g}. To share a GPU, run the study with "
                "--workers inside a job that has one."
            )
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise HaceError(
                "Executor slurm must run where `sbatch` and `srun` are. Got neither on PATH. "
                "Log in to the cluster, or use executor local."
            )
        self.workers = workers or IN_FLIGHT
        self._cluster = cluster
        self._logs = logs
        self._submitted: list[_Submitted] = []
        self._asked = time.monotonic()  # when squeue was asked last
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="hace slurm", daemon=True)
        self._watcher.start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Hand a call to SLURM.

        Raises:
            SubmissionError: sbatch refuses it; other jobs go on.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        job = args[0] if args and isinstance(args[0], Job) else None
        name = fn.__name__ if job is None else job.name
        label = re.sub(r"[^\w.=-]+", "-", name)
        folder = self._logs / (label if job is None else f"{label}-{job.runs[0][:8]}")
        executor = self._submitit.AutoExecutor(folder=folder, cluster="slurm")
        executor.update_parameters(name=f"hace-{label}", **_parameters(self._cluster, job))
        try:
            number = executor.submit(run_in_slurm, fn, *args, **kwargs).job_id
        except Exception as error:  # submitit's own kinds, with what sbatch said
            raise SubmissionError(f"sbatch refused it: {_last_words(str(error))}") from error
        self._submitted.append(_Submitted(future, self._submitit.SlurmJob(folder.resolve(), number)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all jobs; or, with `cancel_futures`, cancel them: SLURM asks a training to end, and it saves its state."""
        if wait and not cancel_futures:
            wait_for([submitted.future for submitted in self._submitted])
        self._closed.set()
        self._watcher.join()
        if cancel_futures and self._submitted:
            _ask(["scancel", *(submitted.task.job_id for submitted in self._submitted)])

    def _watch(self) -> None:
        """Collect what has ended, until the executor is closed."""
        while not self._closed.wait(POLL_SECONDS):
            queue = self._queue()
            for submitted in list(self._submitted):
                try:
                    self._collect(submitted, queue)
                except Exception as error:  # of the file system, or of what it holds
                    submitted.future.set_exception(error)
                if submitted.future.done():
                    self._submitted.remove(submitted)

    def _queue(self) -> set[str] | None:
        """The ids of this user's jobs that wait or run; None if it is too early to ask again, or SLURM does not answer."""
        if time.monotonic() - self._asked < QUEUE_SECONDS:
            return None
        self._asked = time.monotonic()
        lines = _ask(["squeue", "--me", "--noheader", "--format=%i"])
        return None if lines is None else set(lines)

    def _collect(self, submitted: _Submitted, queue: set[str] | None) -> None:
        """Take a result that is there, or give up a job that left the queue without one."""
        future = submitted.future
        task = submitted.task
        if task.paths.result_pickle.exists():
            try:
                result = task.result()
            except self._submitit.core.utils.FailedJobError as error:
                result = _lost(task, _last_words(str(error)))
            if isinstance(result, HaceError):
                future.set_exception(result)
            else:
                future.set_result(result)
        elif queue is not None and task.job_id not in queue:
            state = _state(task.job_id)
            submitted.left_queue = submitted.left_queue or time.monotonic()
            if state in ENDS or time.monotonic() - submitted.left_queue > RESULT_SECONDS:
                future.set_exception(_lost(task, f"{state}, {ENDS.get(state, 'and it left no result')}"))


def _lost(task: Any, reason: str) -> HaceError:
    return HaceError(f"SLURM job {task.job_id}: {reason.rstrip('.')}. Its log is {task.paths.stderr}.")


def _parameters(cluster: Cluster, job: Job | None) -> dict[str, Any]:
    """The parameters for submitit. A training has one process per GPU; anything else has one."""
    trains = job is not None and bool(job.trainings)
    tasks = max(1, int(cluster.gpus)) if trains else 1
    parameters: dict[str, Any] = {
        "timeout_min": max(1, round(cluster.hours * 60)),
        "nodes": cluster.nodes if trains else 1,
        "tasks_per_node": tasks,
        "gpus_per_node": tasks if cluster.gpus else None,
        "cpus_per_task": cluster.cpus,
        "mem_gb": cluster.memory,
        "slurm_partition": cluster.partition,
        "slurm_account": cluster.account,
        "slurm_qos": cluster.qos,
        "slurm_constraint": cluster.constraint,
        "slurm_setup": list(cluster.setup) or None,
        "slurm_signal_delay_s": SIGNAL_SECONDS,
        # Where one process of a training fails, the others wait in vain.
        "slurm_srun_args": ["--kill-on-bad-exit=1"],
        # The study itself submits again, and records why.
        "slurm_additional_parameters": {"no-requeue": True},
    }
    return {name: value for name, value in parameters.items() if value is not None}


def run_in_slurm(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T | HaceError:
    """What each process of a SLURM job does: a call. If a signal stops it, that is its result: as an error, it would end the
    other processes of a training, which are still saving.
    """
    rank = _join_processes()
    try:
        # In place of submitit's handlers, which would start the job again by themselves.
        with catch_signals(interrupt=True):
            result = fn(*args, **kwargs)
    except Stopped as stop:
        name = SIGNAL_NAMES[stop.number]
        return HaceError(f"stopped by {name}: the time limit was near, or the job was cancelled")
    # Only the first process writes the result. The errors of another one end it, unless it fails by itself and says why.
    if rank and result:
        time.sleep(STOP_SECONDS)
        raise HaceError(f"process {rank}: {result}")
    return result


def _join_processes() -> int:
    """Tell torch of the other processes of this job, as torchrun does; the rank of this one."""
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    environment = JobEnvironment()
    if environment.num_tasks > 1:
        TorchDistributedEnvironment().export(overwrite=True)
    return environment.global_rank


def _state(number: str) -> str:
    """How a job that left the queue ended; "UNKNOWN" where the cluster keeps no accounts."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State", "--jobs", number]
    lines = _ask(command) or []
    words = lines[0].split() if lines else []
    return words[0] if words else "UNKNOWN"


def _ask(command: Sequence[str]) -> list[str] | None:
    """The lines that a command of SLURM prints; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def _last_words(text: str) -> str:
    """The last line of the trace in submitit's message, or of the message itself."""
    trace = re.search(r"^-{10,}\n(.*?)\n-{10,}", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in (trace[1] if trace else text).splitlines() if line.strip()]
    return lines[-1] if lines else ""
