"""A study on Ray over two local nodes: python benchmarks/ray_study.py [--passes 8] [--rows 20000] [--rounds 3]

Starts two nodes with one processor each on this machine and does the same passes of probes with one worker and with two, in
turns, after a round that does not count. "Speed-up" is that of wall-clock time, which other work on the machine spoils;
"corrected" is what it would be if every worker had a processor of its own: processor time of all passes with one worker,
divided by that of the busier worker of two. "Loads" counts how often features were read from the disk: once, by the process
that submits the jobs; Ray's object store has them for all workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from pathlib import Path

import numpy as np

from hace import Hierarchy
from hace.formats import render_hierarchy
from hace.lab.probe import Sources, load_sources, run_folder
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.study.executors import Cluster
from hace.lab.study.jobs import Job, run_job
from hace.lab.study.ray_tasks import RayExecutor


def timed_job(job: Job, sources: Sources | None) -> tuple[int, float, bool]:
    """A job in a worker: the process, its processor time, and whether it had to read the features itself."""
    began = time.process_time()
    errors = run_job(job, sources)
    assert not errors, errors
    return os.getpid(), time.process_time() - began, sources is None


def study(address: str, workers: int, jobs: list[Job]) -> tuple[float, list[tuple[int, float, bool]]]:
    """Wall-clock seconds and what each job says."""
    executor = RayExecutor(Cluster(address=address), workers)
    began = time.monotonic()
    waiting, running = list(jobs), set()
    reports = []
    while waiting or running:
        while waiting and len(running) < workers:
            running.add(executor.submit(timed_job, waiting.pop(0)))
        done, running = wait(running, return_when=FIRST_COMPLETED)
        reports += [future.result() for future in done]
    seconds = time.monotonic() - began
    executor.shutdown()
    return seconds, reports


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"})
    from ray.cluster_utils import Cluster as Nodes

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        h = Hierarchy.from_edges([(f"g{i % 20}", f"c{i}") for i in range(100)])
        tree, features = Path(folder) / "tree.json", Path(folder) / "features.npz"
        tree.write_text(render_hierarchy(h, "json"))
        rng = np.random.default_rng(0)
        x = rng.standard_normal((args.rows, 512), np.float32)
        y = rng.integers(0, h.num_leaves, args.rows)
        np.savez(features, x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000])
        data = DataConfig("features", str(features), hierarchy=str(tree), options={"label_kind": "index"})
        config = ProbeConfig(data, LossConfig("hace"), epochs=args.epochs)
        sources = load_sources([config])
        nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
        seconds: dict[int, list[float]] = {1: [], 2: []}
        processor: dict[int, list[float]] = {1: [], 2: []}
        loads = 1  # by the process that submits the jobs
        for turn in range(args.rounds + 1):
            for workers in (1, 2):
                out = Path(folder) / f"{turn}-{workers}"
                configs = [replace(config, seed=seed) for seed in range(args.passes)]
                jobs = [Job((run_folder(c, out, sources).name,), (c,), str(out)) for c in configs]
                wall, result = study(nodes.address, workers, jobs)
                each: dict[int, float] = {}
                for process, busy, reads in result:
                    each[process] = each.get(process, 0.0) + busy
                    loads += reads if turn == args.rounds and workers == 2 else 0
                if turn:
                    seconds[workers].append(wall)
                    processor[workers].append(max(each.values()))
        nodes.shutdown()
    speed = statistics.median(seconds[1]) / statistics.median(seconds[2])
    corrected = statistics.median(processor[1]) / statistics.median(processor[2])
    print("| passes | workers | speed-up | corrected | goal | loads of the features |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(f"| {args.passes} | 2 | {speed:.2f} | {corrected:.2f} | 1.8 | {loads} |")


if __name__ == "__main__":
    main()
