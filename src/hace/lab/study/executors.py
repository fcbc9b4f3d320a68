"""Where the jobs of a study run: in this process, in several on this machine, or on a cluster.

Every executor is a :class:`concurrent.futures.Executor`, so a study takes anybody's: Dask's, mpi4py's, or a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from hace.checks import check_choice, require
from hace.errors import ConfigError
from hace.lab.study.processes import Processes
from hace.settings import AT_LEAST_ONE, POSITIVE, Config, Rule, setting

T = TypeVar("T")
_GPUS = Rule("a whole number, or between 0 and 1", lambda v: 0 <= v < 1 or v % 1 == 0)


@dataclass(frozen=True)
class Cluster(Config):
    """What each run gets on a cluster.

    Attributes:
        cpus: Processors per run.
        gpus: GPUs per run. Ray: 0.5 lets two runs share one. SLURM: 4 trains one model on four.
        address: Ray: address of a running cluster; None starts one on this machine.
        partition: SLURM: partition.
        account: SLURM: account.
        qos: SLURM: quality of service.
        constraint: SLURM: features that a node must have.
        memory: SLURM: gigabytes per run.
        nodes: SLURM: nodes per training, each with `gpus` GPUs.
        hours: SLURM: time limit of a job. A training saves before it, and the next job resumes it.
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


# What each executor takes of a cluster.
EXECUTORS = {
    "local": (),
    "ray": ("address", "cpus", "gpus"),
    "slurm": tuple(f.name for f in fields(Cluster) if f.name != "address"),
}


class InProcess(Executor):
    """Calls in this process, each at once."""

    workers = 1

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call a function; a signal that stops it stops the caller."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def check_executor(executor: str | Executor, workers: int | None, cluster: Cluster) -> None:
    """Refuse an executor that does not exist or does not fit, and settings that it does not take."""
    require("workers", workers, "0 or more", workers is None or workers >= 0)
    given = [own.name for own in fields(cluster) if getattr(cluster, own.name) != own.default]
    if isinstance(executor, Executor):
        if isinstance(executor, ThreadPoolExecutor):
            raise ConfigError(
                "executor must run its calls in processes, since each run has the random numbers of its process to itself. "
                "Got a ThreadPoolExecutor. Give a ProcessPoolExecutor, or executor='local' with workers."
            )
        if given:
            raise ConfigError(
                f"{given[0]} must come with executor ray or slurm. Got an executor of your own."
            )
        return
    check_choice("executor", executor, EXECUTORS)
    for option in given:
        if option not in EXECUTORS[executor]:
            users = " or ".join(name for name, options in EXECUTORS.items() if option in options)
            raise ConfigError(f"{option} must come with executor {users}. Got executor {executor}.")


@contextmanager
def open_executor(
    name: str, workers: int | None, cluster: Cluster, logs: Path, threads: int = 1
) -> Iterator[tuple[Executor, int]]:
    """An executor by its name, and how many calls it does at the same time.

    Leaving by an error, such as Ctrl-C, drops the calls that wait and asks the others to save and end.

    Args:
        name: A key of `EXECUTORS`.
        workers: Processes (local, ray), or jobs in SLURM's queue.
        cluster: What each run gets on a cluster.
        logs: The folder for what the jobs of a cluster print.
        threads: Threads of each process on this machine.
    """
    executor: Any  # an Executor with the number of its workers
    if name == "ray":
        from hace.lab.study.ray_tasks import RayExecutor

        executor = RayExecutor(cluster, workers)
    elif name == "slurm":
        from hace.lab.study.slurm import SlurmExecutor

        executor = SlurmExecutor(cluster, logs, workers)
    elif workers is not None and workers > 1:
        executor = Processes(workers, threads)
    else:
        executor = InProcess()
    try:
        yield executor, executor.workers
    except BaseException:
        executor.shutdown(cancel_futures=True)
        raise
    executor.shutdown()
