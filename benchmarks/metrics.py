"""Decisions and metrics at scale: 50,000 samples x 10,000 leaves (16,000 nodes), scores in chunks, no n x n matrix.

    python benchmarks/metrics.py                 all of it, a few minutes on one core
    python benchmarks/metrics.py --samples 2000  a quick look

Times are processor time of one thread, so that a busy machine does not blur them.

First table: time and memory of each metric over all samples. The peak counts what the process holds above its state after
set-up, one chunk of scores included. Second table: the leaf of least expected cost by search over the tree against the dense
n x n matmul, at 2,000 leaves; medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from hace import Hierarchy
from hace.decisions.cost_rules import least_cost as decide
from hace.decisions.scores import Scores, row_blocks
from hace.metrics import measures
from hace.metrics.metric_batch import MetricBatch, as_metric_batch

CHUNK = 500  # rows of scores that arrive together


def taxonomy(leaves: int, inner: int, depth: int, seed: int = 0) -> Hierarchy:
    """A random tree of a given size: inner nodes on `depth` - 1 levels, each leaf below one of the lowest."""
    rng = np.random.default_rng(seed)
    widths = np.geomspace(8, inner * 0.55, depth - 1).round().astype(int)
    widths[-1] += inner - 1 - widths.sum()
    parents, above = [-1], np.array([0])
    for width in [*widths.tolist(), leaves]:
        # every node above gets a child first, so that none is a leaf
        below = np.concatenate([above, rng.choice(above, width - len(above))])
        above = np.arange(len(parents), len(parents) + width)
        parents += below.tolist()
    return Hierarchy.from_parents(parents)


def chunks(h: Hierarchy, samples: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for start in range(0, samples, CHUNK):
        rows = min(CHUNK, samples - start)
        y = torch.randint(h.num_leaves, (rows,), generator=generator)
        z = torch.randn(rows, h.num_leaves, generator=generator)
        z[torch.arange(rows), y] += 4.0
        yield z, y


def peak() -> float:
    """The most memory the process ever held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def least_cost(batch: MetricBatch, candidates: str) -> None:
    for rows in row_blocks(len(batch), batch.hierarchy.num_nodes):
        decide(batch.log_q[rows], batch.hierarchy, candidates=candidates)


def work(h: Hierarchy) -> dict[str, Callable[[MetricBatch], object]]:
    return {
        "log q* of all nodes": lambda batch: batch.log_q,
        "top-1 and the 20 best leaves": lambda batch: batch.ranking(20),
        "HD@20": measures.distance_measure(h, 20).value,
        "severity": measures.severity_measure(h).value,
        "accuracy by level": measures.level_accuracy_measure(h).value,
        "hF1 (micro)": measures.hierarchical_prf_measure(h).value,
        "best node of every level": measures.level_choice_measure(h).value,
        "least expected cost, leaves": lambda batch: least_cost(batch, "leaves"),
        "least expected cost, nodes": lambda batch: least_cost(batch, "nodes"),
    }


def scale(samples: int) -> None:
    h = taxonomy(10_000, 6_000, 7)
    print(f"{h!r}, {samples:,} samples in chunks of {CHUNK}, {torch.get_num_threads()} thread")
    tasks = work(h)
    z, y = next(chunks(h, 2))
    for task in tasks.values():  # tables of the hierarchy are made once, ahead of the clock
        task(as_metric_batch(z, y, h))
    before = peak()
    spent = dict.fromkeys(tasks, 0.0)
    for z, y in chunks(h, samples):
        start = time.process_time()
        batch = as_metric_batch(z, y, h)
        for name, task in tasks.items():
            task(batch)
            now = time.process_time()
            spent[name] += now - start
            start = now
    for name, seconds in spent.items():
        print(f"  {name:<30} {seconds:8.1f} s {1e6 * seconds / samples:10.1f} us a sample")
    print(f"  {'together':<30} {sum(spent.values()):8.1f} s")
    chunk = CHUNK * h.num_leaves * 4 / 2**20
    matrix = h.num_leaves**2 * 8 / 2**20
    print(
        f"  peak above set-up {peak() - before:,.0f} MiB (a chunk of scores is {chunk:,.0f} MiB; limit 2,048 MiB beside it; "
        f"an n x n matrix would be {matrix:,.0f} MiB)"
    )
    assert peak() - before < 2048 + chunk, "more than 2 GiB beside one chunk"


def against_the_matrix(rounds: int = 9, rows: int = 256) -> None:
    h = taxonomy(2_000, 1_200, 6)
    z = 3 * torch.randn(rows, h.num_leaves, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p, q = z.softmax(1), Scores(z, h).log_q()
    matrix = torch.from_numpy(h.distance_matrix()).double()
    torch.testing.assert_close(decide(q, h).costs, (p @ matrix).amin(dim=1))
    times: dict[str, list[float]] = {"tree": [], "matrix in float64": [], "matrix in float32": []}
    single, small = p.float(), matrix.float()
    for _ in range(rounds):
        for name, run in (
            ("tree", lambda: decide(q, h)),
            ("matrix in float64", lambda: (p @ matrix).argmin(1)),
            ("matrix in float32", lambda: (single @ small).argmin(1)),
        ):
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    tree = statistics.median(times["tree"])
    print(
        f"\nleaf of least expected cost of {h.num_leaves:,}, {rows} samples, median of {rounds} interleaved rounds"
    )
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"  {name:<20} {1e3 * middle:8.2f} ms {middle / tree:8.1f} x the tree")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=50_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    scale(args.samples)
    against_the_matrix()


if __name__ == "__main__":
    main()
