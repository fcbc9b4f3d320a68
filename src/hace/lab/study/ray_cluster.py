"""Jobs as Ray tasks, on a running cluster or one started on this machine.

The study's folder and the data must be visible to every machine, at the same path. Authentication is Ray's: addresses are
passed on, refusals are shown, no token is read or kept.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hace.errors import ConfigError, HaceError
from hace.files.reading import optional
from hace.lab.runs.process import WORDS
from hace.lab.study.executors import STOP_SECONDS, Cluster, Executor, Job, JobResult, error_text, run_job

CONNECT_SECONDS = 5.0
RAY_SECONDS = 60.0  # for Ray to connect; a busy machine takes its time
_TRIAL = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


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
            self._connect(
                address="local",
                num_cpus=jobs * cluster.cpus,
                include_dashboard=False,
                _temp_dir=self._temporary.name,
            )
            self.capacity = jobs
        else:
            _answers(cluster.address)
            self._connect(address=cluster.address)
            there = ray.cluster_resources().get("CPU", 1)
            self.capacity = workers or max(1, int(there // cluster.cpus))
        self._task = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=0)(run_job)
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
            words = next(
                (line.strip() for line in str(error).splitlines() if line.strip()), "no reason given"
            )
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
    before = {number: signal.getsignal(number) for number in WORDS}
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
