"""Jobs on a cluster: Ray, and SLURM through submitit.

The study's folder and the data must lie where every machine sees them, at the same path. Whoever may use the cluster is the
cluster's business: addresses are passed on, refusals are shown, no token is read or kept.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import Any

from hace.errors import ConfigError, HaceError
from hace.lab.study.executors import Resources
from hace.lab.study.jobs import Job, JobResult, run_job, told

CONNECT_SECONDS = 5.0
RAY_SECONDS = 20.0  # for Ray to connect
POLL_SECONDS = 0.2
IN_FLIGHT = 64  # jobs in SLURM's queue, unless --workers says otherwise


_TRIAL = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


class RayCluster:
    """Jobs as Ray tasks, on a cluster that runs already or on one that this starts on this machine.

    Args:
        resources: `address` of the cluster, `workers`, `cpus` and `gpus`.

    Raises:
        HaceError: The cluster does not answer, or refuses; with Ray's own words.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._ray: Any = _needed("ray", "ray", "--executor ray")
        self._jobs: dict[Any, Job] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.capacity = 1

    def __enter__(self) -> RayCluster:
        ray, resources = self._ray, self._resources
        if resources.address is None:
            jobs = resources.workers or max(1, (os.cpu_count() or 1) // resources.cpus)
            # Sockets lie in this folder, and their paths must be short.
            self._temporary = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            self._connect(
                address="local",
                num_cpus=jobs * resources.cpus,
                include_dashboard=False,
                _temp_dir=self._temporary.name,
            )
            self.capacity = jobs
        else:
            _answers(resources.address)
            self._connect(address=resources.address)
            there = ray.cluster_resources().get("CPU", 1)
            self.capacity = resources.workers or max(1, int(there // resources.cpus))
        self._task = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0)(run_job)
        return self

    def _connect(self, **options: Any) -> None:
        try:
            self._ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except (Exception, SystemExit) as error:
            raise HaceError(f"--executor ray: Ray cannot be started: {told(error)}") from error

    def submit(self, job: Job) -> None:
        """Hand it to Ray, which queues it."""
        self._jobs[self._task.remote(job)] = job

    def next(self) -> JobResult:
        """Wait for Ray."""
        (done, *_), _ = self._ray.wait(list(self._jobs), num_returns=1)
        job = self._jobs.pop(done)
        try:
            return self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            return JobResult(job, lost=f"Ray lost it: {type(error).__name__}: {_first_line(error)}")

    def __exit__(self, *_: object) -> None:
        for task in self._jobs:
            self._ray.cancel(task, force=True)
        self._jobs.clear()
        self._ray.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()


class Submitit:
    """Jobs as SLURM jobs.

    Args:
        resources: `partition`, `cpus`, `gpus` and `hours` of a job, and how many `workers` may be in the queue.
        cluster: "slurm", or "local" for processes that submitit starts here: for tests.
    """

    def __init__(self, resources: Resources, cluster: str = "slurm") -> None:
        submitit = _needed("submitit", "slurm", "--executor slurm")
        self.capacity = resources.workers or IN_FLIGHT
        self._jobs: deque[tuple[Any, Job]] = deque()
        try:
            self._executor: Any = submitit.AutoExecutor(folder=resources.logs, cluster=cluster)
        except RuntimeError as error:
            raise HaceError(
                f"--executor slurm: {error} Run it where `sbatch` is, or use another one."
            ) from error
        self._executor.update_parameters(
            name="hace",
            timeout_min=max(1, round(resources.hours * 60)),
            cpus_per_task=resources.cpus,
            gpus_per_node=math.ceil(resources.gpus),
            **({} if resources.partition is None else {"slurm_partition": resources.partition}),
        )

    def submit(self, job: Job) -> None:
        """Hand it to SLURM."""
        self._jobs.append((self._executor.submit(run_job, job), job))

    def next(self) -> JobResult:
        """Ask after the jobs until one has ended."""
        while True:
            for _ in range(len(self._jobs)):
                handle, job = self._jobs.popleft()
                if handle.done():
                    return self._result(handle, job)
                self._jobs.append((handle, job))
            time.sleep(POLL_SECONDS)

    def _result(self, handle: Any, job: Job) -> JobResult:
        try:
            return handle.result()
        except Exception as error:  # submitit raises several kinds, and whatever unpickling does
            return JobResult(
                job, lost=f"SLURM job {handle.job_id}: {_first_line(error)} Its log is {handle.paths.stderr}."
            )

    def __enter__(self) -> Submitit:
        return self

    def __exit__(self, *_: object) -> None:
        for handle, _job in self._jobs:
            handle.cancel()
        self._jobs.clear()


def _answers(address: str) -> None:
    """Refuse an address where no cluster answers, or one that will not have us.

    Ray itself waits minutes, and ends the process in some cases; so another process tries first.

    Raises:
        HaceError: With Ray's own words.
    """
    found = re.fullmatch(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d+)", address)
    try:
        if found is not None:  # otherwise "auto", or something that Ray knows better
            place = (found["host"].strip("[]"), int(found["port"]))
            socket.create_connection(place, CONNECT_SECONDS).close()
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
            "correct the address, or leave --address away to start a cluster on this machine. Ray takes its settings, its "
            "token included, from its own environment."
        )


def _ray_words(said: str) -> str:
    """The reason in what Ray prints: a refusal if there is one, else the last words."""
    lines = [re.sub(r"^\[[^]]*\] \S+: ", "", line).strip() for line in said.splitlines() if line.strip()]
    refusals = [line for line in lines if "nauthenticated" in line or "oken" in line]
    return (refusals or lines or ["it gave no reason"])[-1].rstrip(".")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _needed(module: str, extra: str, option: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'{option} needs the package {module}. Install it with: pip install "hace[{extra}]".'
        ) from error
