"""Speed and memory of the losses, as ratios to `F.cross_entropy` over the same logits, beside their bars.

    python evidence/keep.py loss-bars/table benchmarks/losses.py    # the table of docs/performance.md; --two-threads for more
    python benchmarks/losses.py --quick          # small sizes
    python evidence/keep.py loss-bars/growth benchmarks/losses.py --growth    # milliseconds from 100 to a million nodes
    python evidence/keep.py loss-bars/levels benchmarks/losses.py --levels    # the kernel's call, by kind of vectors
    python benchmarks/losses.py --memory         # the peak of a step with 100,000 and a million nodes
    python benchmarks/losses.py --device cuda    # on a GPU, with and without the Triton kernels

A step is forward and backward, float32. Its time is divided by that of `F.cross_entropy` over the same logits: the least of the
rounds of each, taken in turn, since other work on the machine only adds. One thread: processor time. Two threads: wall-clock
time, which says nothing on a busy machine. Peers, which have no bar, are in `published_losses.py`.

Both steps work on memory that the process holds already. Otherwise the allocator decides: at 100,000 nodes it may give all
buffers of cross-entropy back and take 18,750 new pages per step, which the operating system clears; such a step takes 65 ms
instead of 18, in some runs and not in others.
"""

from __future__ import annotations

import argparse
import itertools
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from published_losses import Published, dense_hace, dense_hce, dense_hxe, hierarchicalsoftmax_loss
from torch import Tensor

import hace
from hace import Hierarchy
from hace.lab.runs.process import keep_freed_memory
from hace.losses import kernels
from hace.losses.base import HierarchicalLoss
from hace.losses.kernels import extension, on_cuda
from hace.losses.kernels.torch_internals import SingleLevelFunction

Step = Callable[[], object]
QUICK_NODES = 2_000
Build = Callable[[Hierarchy], HierarchicalLoss | Published | None]
PEERS = (("HACE as published", dense_hace), ("HCE as published", dense_hce), ("HXE as published", dense_hxe))


@dataclass(frozen=True)
class Row:
    """A line of the table: a loss on a hierarchy, and its bar; a peer has none."""

    name: str
    build: Build
    bar: float | None = None
    threads: int = 1
    pure: bool = False
    over: Build | None = None  # what it is divided by, where that is not cross-entropy


@dataclass(frozen=True)
class Place:
    """A hierarchy and a batch."""

    name: str
    make: Callable[[], Hierarchy]
    batch: int
    rounds: int
    rows: tuple[Row, ...]


def over_nodes(h: Hierarchy) -> HierarchicalLoss:
    return hace.HACELoss(h, 0.5)


def path_rows(one: float, two: float, smoothing: float, sums: bool = True) -> tuple[Row, ...]:
    """The losses along a path at one size, with one and two threads."""
    rows = [
        Row(name, build, bar, threads)
        for threads, bar in ((1, one), (2, two))
        for name, build in (("HACE", over_nodes), ("HCE", hace.HCELoss), ("HXE", hace.HXELoss))
    ]
    rows.append(Row("HACE + smoothing", lambda h: hace.HACELoss(h, 0.5, 0.1), smoothing))
    if sums:
        build = lambda h: hace.HACELoss(h, 0.5, outputs="paths")  # noqa: E731
        rows.append(Row("HACE over path sums / HACE", build, 1.4, over=over_nodes))
        unseen = lambda h: hace.HACELoss(h, 0.5, unseen=0.3)  # noqa: E731
        rows.append(Row("HACE with the leave-one-out term / HACE", unseen, over=over_nodes))
    return tuple(rows)


def distance_rows(soft: float, others: float | None) -> tuple[Row, ...]:
    rows = [Row("soft labels", hace.SoftLabelLoss, soft)]
    if others is not None:
        rows += [
            Row("SimLoss", hace.SimLoss, others),
            Row("expected distance", hace.ExpectedDistanceLoss, others),
        ]
    return tuple(rows)


def peer_rows() -> tuple[Row, ...]:
    return tuple(Row(name, build) for name, build in PEERS)


class Nothing(SingleLevelFunction):
    """Hands over a gradient that nobody has computed: what PyTorch's calls alone cost a loss of this kind."""

    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:  # type: ignore[override]  # noqa: D102
        ctx.grad = torch.empty_like(z)
        return z.new_empty(())

    @staticmethod
    def backward(ctx, outer: Tensor) -> Tensor:  # type: ignore[override]  # noqa: D102
        return ctx.grad


def no_loss(h: Hierarchy) -> Published:
    return Published(lambda z, y: Nothing.apply(z), h.num_nodes, h.num_leaves)  # type: ignore[attr-defined]


def plain_row(bar: float) -> Row:
    return Row("HACE in plain PyTorch", over_nodes, bar, pure=True)


PLACES = (
    Place(
        "CIFAR-100, 120 nodes",
        hace.cifar100_hierarchy,
        128,
        100,
        (*path_rows(1.0, 1.2, 1.15), Row("an autograd function that does nothing", no_loss), *peer_rows()),
    ),
    Place(
        "CIFAR-100, 120 nodes",
        hace.cifar100_hierarchy,
        1024,
        20,
        (
            Row("conditional softmax", hace.ConditionalSoftmaxLoss, 3.0),
            Row("hierarchicalsoftmax (PyPI)", hierarchicalsoftmax_loss),
        ),
    ),
    Place(
        "1,000 nodes",
        lambda: random_tree(1000),
        128,
        60,
        (*path_rows(1.0, 1.2, 1.3), *distance_rows(2.0, 2.0), plain_row(4.0), *peer_rows()),
    ),
    Place(
        "10,000 nodes",
        lambda: random_tree(10_000),
        128,
        15,
        (*path_rows(0.6, 0.7, 1.0), *distance_rows(2.0, None), plain_row(3.0)),
    ),
    Place(
        "16,344 nodes",
        lambda: random_tree(16_344),
        128,
        5,
        (Row("conditional softmax", hace.ConditionalSoftmaxLoss, 2.0),),
    ),
    Place(
        "100,000 nodes", lambda: random_tree(100_000), 64, 9, (*path_rows(0.45, 0.45, 1.0), plain_row(3.0))
    ),
    Place("DAG, 20,000 nodes", lambda: random_dag(20_000), 128, 5, (Row("HACE", over_nodes, 2.5),)),
    Place(
        "DAG, 2,000 nodes",
        lambda: random_dag(2_000),
        128,
        9,
        (
            Row("HACE", over_nodes, 2.5),
            Row("HCE, labels at any level", lambda h: hace.HCELoss(h, labels="nodes"), 2.5),
        ),
    ),
)


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


def steps_of(h: Hierarchy, batch: int, loss: HierarchicalLoss | Published | None) -> tuple[Step, Step]:
    """A step of this loss, and one of cross-entropy over the same logits."""
    assert loss is not None
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(batch, loss.num_outputs, generator=generator, requires_grad=True)
    target = torch.randint(loss.num_labels, (batch,), generator=generator)
    column = target if loss.num_outputs == loss.num_labels else torch.tensor(h.leaf_nodes)[target]
    return train_step(loss, z, target), train_step(F.cross_entropy, z, column)


def new_pages() -> int:
    """Pages of memory that this process has got so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def ratio(h: Hierarchy, place: Place, row: Row) -> float:
    """A step's time divided by what it is measured against, from the rounds that took the fewest new pages."""
    torch.set_num_threads(row.threads)
    step, base = steps_of(h, place.batch, row.build(h))
    if row.over is not None:
        base = steps_of(h, place.batch, row.over(h))[0]
    step = without_kernel(step) if row.pure else step
    clock = time.process_time if row.threads == 1 else time.perf_counter
    repeats = max(1, 300_000 // (place.batch * h.num_nodes))
    keep_freed_memory()
    rounds: list[tuple[int, float, float]] = []
    for _ in range(place.rounds + 4):  # the first is to warm up; memory grows in those after it
        times, pages = [], new_pages()
        for run in (step, base):
            began = clock()
            for _ in range(repeats):
                run()
            times.append(clock() - began)
        rounds.append((new_pages() - pages, times[0], max(times[1], 1e-9)))
    settled = sorted(rounds[1:], key=lambda r: r[0])[: place.rounds]
    return min(own for _, own, _ in settled) / min(other for _, _, other in settled)


def table(threads: tuple[int, ...], *, quick: bool = False) -> str:
    """Measures and prints the table line by line; only small hierarchies if ``quick``."""
    lines = ["| loss | hierarchy | batch | threads | ratio | bar |", "| --- | --- | --- | --- | --- | --- |"]
    print("\n".join(lines))
    for place in PLACES:
        h = place.make()
        if quick and h.num_nodes > QUICK_NODES:
            continue
        for row in (r for r in place.rows if r.threads in threads):
            if row.bar is None and row.build(h) is None:  # a peer that is not installed
                continue
            value = ratio(h, place, row)
            bar = "" if row.bar is None else f"{row.bar:g}" + ("" if value <= row.bar else " (missed)")
            cells = (row.name, place.name, place.batch, row.threads, f"{value:.2f}", bar)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
            print(lines[-1], flush=True)
    torch.set_num_threads(1)
    return "\n".join(lines)


LEVEL_ROWS = (
    ("HACE", over_nodes),
    ("HACE + smoothing", lambda h: hace.HACELoss(h, 0.5, 0.1)),
    ("HXE", hace.HXELoss),
    ("HACE over path sums", lambda h: hace.HACELoss(h, 0.5, outputs="paths")),
    ("soft labels", hace.SoftLabelLoss),
)


def kernel_call(h: Hierarchy, batch: int, loss: HierarchicalLoss) -> Step:
    """The kernel's call alone, with the gradient, as `hace.losses.kernels.loss_calls` makes it."""
    call = loss.kernel_call()
    assert call is not None
    z = torch.randn(batch, loss.num_outputs)
    target = torch.randint(h.num_leaves, (batch,))
    value, grad = torch.empty(()), torch.empty_like(z)
    sizes = z.data_ptr(), batch, loss.num_outputs, value.data_ptr(), True, grad.data_ptr(), target.data_ptr()
    arguments = *sizes, loss.ignore_index, call.weight_address, 1, call.labels, *call.arguments, 1

    def run(memory: tuple[object, ...] = (loss, call, z, target, value, grad)) -> None:  # kept alive
        getattr(extension.module, call.function)(*arguments)

    return run


def level_table() -> None:
    """Prints microseconds of the kernel's call by kind of vectors: the least of some rounds of processor time."""
    levels = extension.module.levels()
    print(f"| loss | nodes | {', µs | '.join(levels)}, µs |\n| --- | --- |{' --- |' * len(levels)}")
    for nodes, (name, build) in itertools.product((120, 1_000, 10_000), LEVEL_ROWS):
        h = hace.cifar100_hierarchy() if nodes == 120 else random_tree(nodes)
        run = kernel_call(h, 128, build(h))
        repeats = max(1, 1_000_000 // (128 * nodes))
        least = dict.fromkeys(levels, math.inf)
        for _, (place, level) in itertools.product(range(15), enumerate(levels)):
            extension.module.use_level(place)
            run()
            began = time.process_time()
            for _ in range(repeats):
                run()
            least[level] = min(least[level], (time.process_time() - began) / repeats)
        extension.module.use_level(0)
        print(f"| {name} | {nodes:,} | {' | '.join(f'{1e6 * t:,.0f}' for t in least.values())} |", flush=True)


GROWTH_BATCH = 8
GROWTH_SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
MOST_DENSE = 10_000  # nodes of which a matrix of all pairs fits into memory
PLAIN = "HACE in plain PyTorch"


def growth_table() -> None:
    """Prints milliseconds of forward and backward by number of nodes: the least of some rounds of processor time, in turn."""
    torch.set_num_threads(1)
    keep_freed_memory()
    names = ("cross-entropy", "HACE", "HACE + smoothing", PLAIN, "HACE as published")
    print(f"| nodes | {' | '.join(names)} |\n{'| --- ' * (len(names) + 1)}|")
    for nodes in GROWTH_SIZES:
        h = random_tree(nodes)
        step, base = steps_of(h, GROWTH_BATCH, over_nodes(h))
        steps = {"cross-entropy": base, "HACE": step, PLAIN: without_kernel(step)}
        steps["HACE + smoothing"] = steps_of(h, GROWTH_BATCH, hace.HACELoss(h, 0.5, 0.1))[0]
        if nodes <= MOST_DENSE:
            steps["HACE as published"] = steps_of(h, GROWTH_BATCH, dense_hace(h))[0]
        times = growth_times(steps, repeats=max(1, 300_000 // (GROWTH_BATCH * nodes)))
        cells = (f"{1e3 * times[name]:.3g}" if name in times else "" for name in names)
        print(f"| {nodes:,} | {' | '.join(cells)} |", flush=True)


def growth_times(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Processor seconds of each step: the least of seven rounds in turn, after one to warm up."""
    least = dict.fromkeys(steps, math.inf)
    for turn in range(8):
        for name, step in steps.items():
            began = time.process_time()
            for _ in range(repeats):
                step()
            seconds = (time.process_time() - began) / repeats
            least[name] = min(least[name], seconds) if turn else math.inf
    return least


SIZES = ((120, 128), (1_000, 128), (10_000, 128), (100_000, 64))  # nodes, batch


def device_table(device: str) -> None:
    """Ratios to `F.cross_entropy` over the same logits, forward and backward, with and without the Triton kernels."""
    where = torch.device(device)
    module = getattr(torch, where.type)
    name = module.get_device_name(where) if hasattr(module, "get_device_name") else device
    print(
        f"{name}; torch {torch.__version__}; Triton {'found' if on_cuda.installed() else 'not installed'}\n"
    )
    print(f"{'':24}{'cross-entropy':>15}{'HACE':>10}{'pure':>10}{'HXE':>10}{'peak, buffers':>16}{'pure':>10}")
    for nodes, batch in SIZES:
        h = random_tree(nodes)
        z = torch.randn(batch, nodes, device=where, requires_grad=True)
        leaves = torch.randn(batch, h.num_leaves, device=where, requires_grad=True)
        y = torch.randint(h.num_leaves, (batch,), device=where)
        losses = hace.HACELoss(h, 0.5).to(where), hace.HXELoss(h, 0.2).to(where)

        def step(loss: Callable, x: torch.Tensor, y: torch.Tensor = y) -> Callable[[], None]:
            def run() -> None:
                x.grad = None
                loss(x, y).backward()
                module.synchronize()

            return run

        at_node = torch.as_tensor(h.leaf_nodes, device=where)[y]
        steps = {
            "cross-entropy": step(F.cross_entropy, z, at_node),
            "HACE": step(losses[0], z),
            "pure": without_kernel(step(losses[0], z)),
            "HXE": step(losses[1], leaves),
        }
        times = medians(steps, 50)
        base = times["cross-entropy"]
        peaks = []
        for form in ("HACE", "pure"):
            z.grad = None
            module.reset_peak_memory_stats()
            before = module.memory_allocated()
            steps[form]()
            peaks.append((module.max_memory_allocated() - before) / (4 * z.numel()))
        ratios = "".join(f"{times[n] / base:>9.2f}x" for n in ("HACE", "pure", "HXE"))
        print(
            f"{nodes:>12,} nodes, B={batch:<4}{base * 1e3:>12.3f} ms{ratios}{peaks[0]:>16.2f}{peaks[1]:>10.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--two-threads", action="store_true", help="rows of two threads too")
    parser.add_argument(
        "--levels", action="store_true", help="the kernel with each kind of vectors this processor has"
    )
    parser.add_argument("--growth", action="store_true", help="milliseconds from 100 to a million nodes")
    parser.add_argument("--memory", nargs="*", help="memory of a step; NODES BATCH SMOOTHING: of this one")
    parser.add_argument("--device", default="cpu", help="a device other than the CPU, such as cuda")
    args = parser.parse_args()
    if args.device != "cpu":
        device_table(args.device)
    elif args.levels:
        level_table()
    elif args.growth:
        growth_table()
    elif args.memory:
        memory(int(args.memory[0]), int(args.memory[1]), float(args.memory[2]))
    elif args.memory is not None:
        for nodes, batch, smoothing in itertools.product(("100000", "1000000"), ("8",), ("0", "0.1")):
            subprocess.run([sys.executable, __file__, "--memory", nodes, batch, smoothing], check=True)
    else:
        print(f"{kernels.status()}, torch {torch.__version__}, random logits (seed 0)\n")
        table((1, 2) if args.two_threads else (1,), quick=args.quick)


if __name__ == "__main__":
    main()
