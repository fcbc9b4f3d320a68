"""Speed and memory of the losses, as ratios to `F.cross_entropy` over the same number of logits.

    python benchmarks/losses.py                  # the whole table beside its bars, with peers: some minutes
    python benchmarks/losses.py --quick          # small sizes only
    python benchmarks/losses.py --two-threads    # and two threads, which only a quiet machine can measure
    python benchmarks/losses.py --device cuda    # on a GPU, with and without the Triton kernels

`loss_bars.py` says how the table is measured.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import hace
from hace import Hierarchy
from hace.losses import kernels

Step = Callable[[], object]


def random_tree(num_nodes: int, seed: int = 0) -> Hierarchy:
    """A ragged tree: each node below one of those before it, wide at the top as taxonomies are."""
    rng = np.random.default_rng(seed)
    parents = (rng.random(num_nodes - 1) * np.arange(1, num_nodes) ** 0.8).astype(np.int64)
    return Hierarchy.from_parents(np.concatenate([[-1], parents]))


def random_dag(num_nodes: int, seed: int = 0) -> Hierarchy:
    """A DAG in which every third node has a second parent."""
    rng = np.random.default_rng(seed)
    edges = set()
    for child in range(1, num_nodes):
        for _ in range(2 if child % 3 == 0 else 1):
            edges.add((int(rng.random() * child**0.8), child))
    return Hierarchy.from_edges(sorted(edges))


def medians(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median seconds of each step, interleaved, after one warm-up each."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}


def train_step(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, target: Tensor) -> Step:
    def step() -> None:
        z.grad = None
        loss(z, target).backward()

    return step


def without_kernel(step: Step) -> Step:
    def run() -> None:
        with kernels.disabled():
            step()

    return run


def memory(num_nodes: int, batch: int, smoothing: float) -> None:
    """Peak memory of one step, the gradient included, in buffers of the logits' size, measured in a separate process."""
    h = random_tree(num_nodes)
    loss = hace.HACELoss(h, 0.5, smoothing)
    z = torch.randn(batch, num_nodes, requires_grad=True)
    target = torch.randint(h.num_leaves, (batch,))
    loss(z[:1], target[:1])  # what is loaded once is not the step's
    start_peak()
    before = proc_status("VmRSS")
    began = time.perf_counter()
    loss(z, target).backward()
    seconds = time.perf_counter() - began
    buffers = (proc_status("VmHWM") - before) / (z.numel() * 4)
    print(
        f"{num_nodes:,} nodes, B={batch}, smoothing {smoothing}: {seconds * 1e3:.0f} ms, peak {buffers:.2f} buffers"
    )


def start_peak() -> None:
    """The peak of memory starts anew (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def proc_status(field: str) -> int:
    """A line of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument(
        "--two-threads", action="store_true", help="rows of two threads too, on a quiet machine"
    )
    parser.add_argument("--memory", nargs=3, metavar=("NODES", "BATCH", "SMOOTHING"), help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help="a device other than the CPU, such as cuda")
    args = parser.parse_args()
    if args.device != "cpu":
        from losses_on_device import device_table

        device_table(args.device)
        return
    if args.memory:
        memory(int(args.memory[0]), int(args.memory[1]), float(args.memory[2]))
        return
    from loss_bars import table

    print(f"{kernels.status()}; torch {torch.__version__}\n")
    table((1, 2) if args.two_threads else (1,), quick=args.quick)
    print(flush=True)
    print("Memory of a step beyond the logits, its gradient included:", flush=True)
    for nodes, batch in [(100_000, 64)] if args.quick else [(100_000, 64), (1_000_000, 8)]:
        for smoothing in ("0", "0.1"):
            subprocess.run(
                [sys.executable, __file__, "--memory", str(nodes), str(batch), smoothing], check=True
            )


if __name__ == "__main__":
    main()
