"""Speed and memory of the losses, as ratios to `F.cross_entropy` over the same number of logits.

    python benchmarks/losses.py            # the whole table, a few minutes
    python benchmarks/losses.py --quick    # small sizes only
    python benchmarks/losses.py --device cuda    # on a GPU, with and without the Triton kernels

Forward and backward, float32, medians of interleaved runs: each round times every method once, so that whatever else the
machine does falls on all of them alike. Ratios within a line are what to look at; milliseconds are of this machine.
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
import torch.nn.functional as F
from torch import Tensor

import hace
from hace import Hierarchy
from hace.losses import kernels

Step = Callable[[], object]
DENSE_LIMIT = 10_000  # nodes up to which the paper's dense matrices are tried: R alone is N * N * 4 bytes


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


def paper_form(h: Hierarchy, dilution: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The dense form of the paper's appendix: -T[y] log(R softmax(z)), R and T as dense matrices."""
    reach = hace.reachability_matrix(h, dense=True).float()
    table = hace.HACELoss(h, dilution).table(dense=True).float()
    return lambda z, y: -(table[y] * (z.softmax(dim=1) @ reach.T + 1e-12).log()).sum(dim=1).mean()


def dense_ratio(h: Hierarchy, batch: int) -> str:
    """The paper's dense form against cross-entropy, in three rounds of their own: it is slow."""
    gigabytes = h.num_nodes**2 * 4 / 1e9
    if h.num_nodes > DENSE_LIMIT:
        return f"R: {gigabytes:.0f} GB"
    z = torch.randn(batch, h.num_nodes, requires_grad=True)
    target = torch.randint(h.num_leaves, (batch,))
    steps = {
        "cross-entropy": train_step(F.cross_entropy, z, torch.tensor(h.leaf_nodes)[target]),
        "dense": train_step(paper_form(h, 0.5), z, target),
    }
    times = medians(steps, 3)
    return f"{times['dense'] / times['cross-entropy']:.1f}x"


def methods(h: Hierarchy, batch: int) -> dict[str, Step]:
    generator = torch.Generator().manual_seed(0)
    n_logits = torch.randn(batch, h.num_nodes, generator=generator, requires_grad=True)
    leaf_logits = torch.randn(batch, h.num_leaves, generator=generator, requires_grad=True)
    target = torch.randint(h.num_leaves, (batch,), generator=generator)
    node_target = torch.tensor(h.leaf_nodes)[target]
    base = train_step(F.cross_entropy, n_logits, node_target)
    hace_step = train_step(hace.HACELoss(h, 0.5), n_logits, target)
    smooth_step = train_step(hace.HACELoss(h, 0.5, 0.1), n_logits, target)
    steps = {
        "cross-entropy": base,
        "HACE": hace_step,
        "HACE pure": without_kernel(hace_step),
        "HACE + smoothing": smooth_step,
        "smoothing pure": without_kernel(smooth_step),
        "HCE": train_step(hace.HCELoss(h), n_logits, target),
        "HXE": train_step(hace.HXELoss(h, 0.2), leaf_logits, target),
        "HACE, path sums": train_step(hace.HACELoss(h, 0.5, outputs="paths"), n_logits, target),
    }
    return steps


def table_of_trees(sizes: list[tuple[str, Hierarchy, int, int]]) -> None:
    names = [*methods(sizes[0][1], 2), "paper's dense form"]
    print(f"{'':34}" + "".join(f"{n:>19}" for n in names))
    for label, h, batch, rounds in sizes:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            times = medians(methods(h, batch), rounds)
            base = times["cross-entropy"]
            cells = [
                f"{base * 1e3:.2f} ms",
                *(f"{times[n] / base:.2f}x" for n in names[1:-1]),
                dense_ratio(h, batch),
            ]
            print(f"{label:>20}, B={batch:<4} {threads} thr" + "".join(f"{c:>19}" for c in cells), flush=True)
    torch.set_num_threads(1)


def peer(rounds: int) -> None:
    """PyPI's hierarchicalsoftmax on its own terms: a star of stars with 120 nodes, B = 1024."""
    try:
        from hierarchicalsoftmax import HierarchicalSoftmaxLoss, SoftmaxNode
    except ImportError:
        print("hierarchicalsoftmax is not installed: pip install hierarchicalsoftmax")
        return
    h = hace.cifar100_hierarchy()
    root = SoftmaxNode("root")
    nodes = {}
    for node in h.nodes:
        parents = h.parents(node)
        nodes[node] = SoftmaxNode(node, parent=nodes[parents[0]] if parents else root)
    root.set_indexes()
    own_ids = torch.tensor([root.node_to_id[nodes[leaf]] for leaf in h.leaves])
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(h.num_leaves, (1024,), generator=generator)
    wide = torch.randn(1024, h.num_nodes, generator=generator, requires_grad=True)
    theirs = torch.randn(1024, root.layer_size, generator=generator, requires_grad=True)
    times = medians(
        {
            "cross-entropy": train_step(F.cross_entropy, wide, torch.tensor(h.leaf_nodes)[target]),
            "HACE": train_step(hace.HACELoss(h, 0.5), wide, target),
            "conditional softmax": train_step(hace.ConditionalSoftmaxLoss(h), wide, target),
            "hierarchicalsoftmax": train_step(HierarchicalSoftmaxLoss(root=root), theirs, own_ids[target]),
        },
        rounds,
    )
    base = times["cross-entropy"]
    print("\nCIFAR-100's 120 nodes, B=1024, 1 thread, beside the peer on PyPI:")
    for name, seconds in times.items():
        print(f"  {name:22} {seconds * 1e3:8.2f} ms  {seconds / base:7.2f}x")


def dag(num_nodes: int, batch: int, rounds: int) -> None:
    h = random_dag(num_nodes)
    z = torch.randn(batch, h.num_nodes, requires_grad=True)
    target = torch.randint(h.num_leaves, (batch,))
    times = medians(
        {
            "cross-entropy": train_step(F.cross_entropy, z, torch.tensor(h.leaf_nodes)[target]),
            "HACE": train_step(hace.HACELoss(h, 0.5), z, target),
        },
        rounds,
    )
    pairs = len(h.reachability()[0])
    ratio = times["HACE"] / times["cross-entropy"]
    print(f"\n{h} with {pairs:,} (ancestor, descendant) pairs, B={batch}: HACE {ratio:.1f}x cross-entropy")


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
    print(f"{kernels.status()}; torch {torch.__version__}\n")
    sizes = [
        ("CIFAR-100, N=120", hace.cifar100_hierarchy(), 128, 200),
        ("N=1,000", random_tree(1000), 128, 60),
    ]
    if not args.quick:
        sizes += [("N=10,000", random_tree(10_000), 128, 21), ("N=100,000", random_tree(100_000), 64, 9)]
    table_of_trees(sizes)
    peer(40)
    dag(2_000 if args.quick else 20_000, 128, 3)
    print(flush=True)
    print("Memory of a step beyond the logits, its gradient included:", flush=True)
    for nodes, batch in [(100_000, 64)] if args.quick else [(100_000, 64), (1_000_000, 8)]:
        for smoothing in ("0", "0.1"):
            subprocess.run(
                [sys.executable, __file__, "--memory", str(nodes), str(batch), smoothing], check=True
            )


if __name__ == "__main__":
    main()
