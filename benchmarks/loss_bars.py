"""Every loss's step beside its bar, in one interleaved run: what `losses.py` prints and docs/performance.md shows.

    python benchmarks/loss_bars.py                 # the table; evidence/keep.py keeps it for the page
    python benchmarks/loss_bars.py --two-threads   # and two threads, which only a quiet machine can measure
    python benchmarks/loss_bars.py --levels        # the kernel alone, with each kind of vectors this processor has

A step is forward and backward, float32. Its time is divided by that of `F.cross_entropy` over the same logits in the same
round, and the median of those ratios is shown. One thread: processor time. Two threads: wall-clock time. Peers, which have no
bar, are in `published_losses.py`.

Both steps work on memory that the process holds already. Otherwise the allocator decides: at 100,000 nodes it may give all
buffers of cross-entropy back and take 18,750 new pages per step, which the operating system clears; such a step takes 65 ms
instead of 18, in some runs and not in others.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from losses import Step, random_dag, random_tree, train_step, without_kernel
from published_losses import Published, dense_hace, dense_hce, dense_hxe, hierarchicalsoftmax_loss
from torch import Tensor

import hace
from hace import Hierarchy
from hace.losses import kernels
from hace.losses.base import HierarchicalLoss
from hace.losses.kernels import extension
from hace.losses.kernels.torch_internals import SingleLevelFunction

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
        40,
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
        21,
        (*path_rows(1.0, 1.2, 1.3), *distance_rows(2.0, 2.0), plain_row(4.0), *peer_rows()),
    ),
    Place(
        "10,000 nodes",
        lambda: random_tree(10_000),
        128,
        7,
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
        "100,000 nodes", lambda: random_tree(100_000), 64, 5, (*path_rows(0.45, 0.45, 1.0), plain_row(3.0))
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


def steps_of(h: Hierarchy, batch: int, loss: HierarchicalLoss | Published | None) -> tuple[Step, Step]:
    """A step of this loss, and one of cross-entropy over the same logits."""
    assert loss is not None
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(batch, loss.num_outputs, generator=generator, requires_grad=True)
    target = torch.randint(loss.num_labels, (batch,), generator=generator)
    column = target if loss.num_outputs == loss.num_labels else torch.tensor(h.leaf_nodes)[target]
    return train_step(loss, z, target), train_step(F.cross_entropy, z, column)


def keep_memory() -> None:
    """Freed memory stays with this process (glibc), whatever its size."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_mmap_threshold, 1 << 30)
        mallopt(m_trim_threshold, (1 << 31) - 1)


def new_pages() -> int:
    """Pages of memory that this process has got so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def ratio(h: Hierarchy, place: Place, row: Row) -> float:
    """Median of a step's time divided by what it is measured against, of the rounds that took the fewest new pages."""
    torch.set_num_threads(row.threads)
    step, base = steps_of(h, place.batch, row.build(h))
    if row.over is not None:
        base = steps_of(h, place.batch, row.over(h))[0]
    step = without_kernel(step) if row.pure else step
    clock = time.process_time if row.threads == 1 else time.perf_counter
    repeats = max(1, 300_000 // (place.batch * h.num_nodes))
    keep_memory()
    rounds: list[tuple[int, float]] = []
    for _ in range(place.rounds + 4):  # the first is to warm up; memory grows in those after it
        times, pages = [], new_pages()
        for run in (step, base):
            began = clock()
            for _ in range(repeats):
                run()
            times.append(clock() - began)
        rounds.append((new_pages() - pages, times[0] / max(times[1], 1e-9)))
    settled = sorted(rounds[1:], key=lambda r: r[0])[: place.rounds]
    return statistics.median(value for _, value in settled)


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


def level_table() -> None:
    """Prints microseconds of forward and backward by kind of vectors, the least of some rounds of processor time."""
    levels = extension.module.levels()
    keep_memory()
    print(f"| loss | nodes | {' | '.join(levels)} |\n| --- | --- |{' --- |' * len(levels)}")
    for nodes, (name, build) in itertools.product((120, 1_000, 10_000), LEVEL_ROWS):
        h = hace.cifar100_hierarchy() if nodes == 120 else random_tree(nodes)
        step, _ = steps_of(h, 128, build(h))
        repeats = max(1, 1_000_000 // (128 * nodes))
        least = dict.fromkeys(levels, math.inf)
        for _, (place, level) in itertools.product(range(15), enumerate(levels)):
            extension.module.use_level(place)
            step()
            began = time.process_time()
            for _ in range(repeats):
                step()
            least[level] = min(least[level], (time.process_time() - began) / repeats)
        extension.module.use_level(0)
        print(f"| {name} | {nodes:,} | {' | '.join(f'{1e6 * t:,.0f}' for t in least.values())} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--two-threads", action="store_true", help="rows of two threads too, on a quiet machine"
    )
    parser.add_argument(
        "--levels", action="store_true", help="the kernel with each kind of vectors this processor has"
    )
    args = parser.parse_args()
    if args.levels:
        level_table()
        return
    print(f"{kernels.status()}, torch {torch.__version__}, random logits (seed 0)\n")
    table((1, 2) if args.two_threads else (1,))


if __name__ == "__main__":
    main()
