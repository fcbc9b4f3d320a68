"""The jobs of a study as Ray tasks, on a cluster or on this machine.

The study's folder must be visible to every machine, at the same path. Features are read once, here, and Ray's object store
holds them once on each node. Ray's authentication is its own: addresses are passed on, refusals are shown, no token is read or
kept.
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
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hace.data import Dataset, Features
from hace.errors import ConfigError, HaceError
from hace.files.reading import optional
from hace.lab import probe
from hace.lab.runs.process import Stopped
from hace.lab.study.executors import Cluster
from hace.lab.study.jobs import Job, error_text
from hace.lab.study.processes import STOP_SECONDS
from hace.linear.features import RowsOnDisk

CONNECT_SECONDS = 5.0
RAY_SECONDS = 60.0  # for Ray to connect; a busy machine takes its time
_TRIAL = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"

T = TypeVar("T")


class RayExecutor(Executor):
    """Calls as Ray tasks.

    Args:
        cluster: The address of a running cluster, and what each call gets; without an address, one starts on this machine.
        workers: How many calls to have under way; None: as many as the cluster's processors allow.
    """

    def __init__(self, cluster: Cluster, workers: int | None = None) -> None:
        if cluster.gpus > 1:
            raise ConfigError(
                f"gpus must be at most 1 with executor ray, where a run is one process. Got {cluster.gpus:g}. "
                "Executor slurm trains one model on several GPUs."
            )
        self._ray: Any = optional("ray", "Executor ray", "ray")
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.workers = (
            self._start(cluster, workers) if cluster.address is None else self._join(cluster, workers)
        )
        self._call = self._ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=0)(_call)
        self._tasks: dict[Future[Any], Any] = {}  # those that are not done
        self._shipped: dict[str, Any] = {}  # features in the object store, by their key

    def _start(self, cluster: Cluster, workers: int | None) -> int:
        """Start a cluster on this machine."""
        workers = workers or max(1, (os.cpu_count() or 1) // cluster.cpus)
        # Ray puts its sockets here, and their paths must be short.
        self._temporary = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        where: dict[str, Any] = {"address": "local", "_temp_dir": self._temporary.name}
        self._connect(num_cpus=workers * cluster.cpus, include_dashboard=False, **where)
        return workers

    def _join(self, cluster: Cluster, workers: int | None) -> int:
        """Join a cluster that runs already."""
        _check_address(str(cluster.address))
        self._connect(address=cluster.address)
        return workers or max(1, int(self._ray.cluster_resources().get("CPU", 1) // cluster.cpus))

    def _connect(self, **options: Any) -> None:
        try:
            with _own_handler_of_sigterm():
                self._ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except Exception as error:
            raise HaceError(f"Executor ray: Ray cannot be started: {error_text(error)}") from error

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Hand a call to Ray, which queues it; a job goes with its features."""
        if len(args) == 1 and isinstance(args[0], Job):
            args = (*args, self._features(args[0]))
        task = self._call.remote(fn, *args, **kwargs)
        future: Future[T] = task.future()
        future.set_running_or_notify_cancel()  # a future of Ray's that is cancelled leaves its task running
        self._tasks[future] = task
        future.add_done_callback(lambda done: self._tasks.pop(done, None))
        return future

    def ship(self, value: Any) -> Any:
        """A reference to a value in the object store: it takes the value's place among the arguments of any number of calls."""
        return self._ray.put(value)

    def _features(self, job: Job) -> Any:
        """A reference to the features of a job, in the object store; None where each worker reads them from the disk."""
        if not job.probes:
            return None
        key = probe.data_key(job.probes[0])  # probes that share a pass have the same data
        if key not in self._shipped:
            sources = {name: _in_memory(data) for name, data in probe.load_sources(job.probes).items()}
            complete = all(data is not None for data in sources.values())
            self._shipped[key] = self._ray.put(sources) if complete else None
        return self._shipped[key]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all calls; or, with `cancel_futures`, interrupt them as Ctrl-C does, so that trainings save and end."""
        if cancel_futures:
            self._interrupt(list(self._tasks.values()))
        elif wait:
            wait_for(list(self._tasks))
        self._ray.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _interrupt(self, tasks: list[Any]) -> None:
        for task in tasks:
            self._ray.cancel(task)
        if tasks:
            _, running = self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)
            for task in running:
                self._ray.cancel(task, force=True)


def _call(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What a task does; Ray has put what references refer to in their place."""
    return fn(*args, **kwargs)


def _in_memory(data: Dataset[Features]) -> Dataset[Features] | None:
    """Data as Ray can share it between processes: with plain arrays. None if its features are too large for the memory."""
    if any(isinstance(split.x, RowsOnDisk) for split in data.splits.values()):
        return None
    splits = {name: replace(split, x=np.asarray(split.x)) for name, split in data.splits.items()}
    data = replace(data, splits=splits)
    assert data.fingerprint  # computed once, and shipped with the data
    return data


@contextmanager
def _own_handler_of_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM: that of `ray.init` exits the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:  # the signal came during `ray.init`
        raise Stopped("Stopped by SIGTERM.", signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_address(address: str) -> None:
    """Refuse an address where no cluster answers. Another process tries: Ray waits for minutes, or ends its process."""
    reason = _why_not(address)
    if reason:
        raise HaceError(
            f"--address {address}: no Ray cluster can be used there: {reason}. Start it (`ray start --head`), "
            "correct the address, or omit --address to start a cluster on this machine. Ray takes its settings, including "
            "its token, from its own environment."
        )


def _why_not(address: str) -> str:
    """Why an address cannot be used; "" if it can."""
    place = re.fullmatch(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d+)", address)
    try:
        if place is not None:  # otherwise "auto", or an address only Ray can resolve
            target = (place["host"].strip("[]"), int(place["port"]))
            socket.create_connection(target, CONNECT_SECONDS).close()
        trial = [sys.executable, "-c", _TRIAL, address]
        done = subprocess.run(trial, capture_output=True, text=True, timeout=RAY_SECONDS)
    except (OSError, OverflowError) as error:
        return _reason(str(error))
    except subprocess.TimeoutExpired:
        return f"no answer within {RAY_SECONDS:g} s"
    return _reason(done.stderr) if done.returncode else ""


def _reason(printed: str) -> str:
    """The reason in what Ray prints: a refusal if there is one, else the last line."""
    lines = [re.sub(r"^\[[^]]*\] \S+: ", "", line).strip() for line in printed.splitlines() if line.strip()]
    refusals = [line for line in lines if "nauthenticated" in line or "oken" in line]
    return (refusals or lines or ["it gave no reason"])[-1].rstrip(".")
