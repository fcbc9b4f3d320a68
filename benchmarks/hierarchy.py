"""How long large hierarchies take, and how much memory: run as `python benchmarks/hierarchy.py`.

Every case runs in its own process, so that peak memory is per case. Seconds are those of the
processor (one thread), so that other work on the machine counts little; memory is what the case adds at its peak.
"bar" is the time and the memory that the case must stay below.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse.csgraph  # noqa: F401  so that its import counts for no case

from hace import Hierarchy


class Case(NamedTuple):
    """What is measured: `prepare` gives the input, `work` is timed and says what it made."""

    title: str
    prepare: Callable[[], object]
    work: Callable[..., str]
    seconds: float | None = None
    mebibytes: float | None = None


def random_parents(size: int) -> np.ndarray:
    """A tree in which every node hangs below a random earlier one."""
    rng = np.random.default_rng(0)
    return np.concatenate([[-1], (rng.random(size - 1) * np.arange(1, size)).astype(np.int64)])


def build_tree(parents: np.ndarray) -> str:
    h = Hierarchy.from_parents(parents)
    return f"{h.num_nodes:,} nodes, {h.num_leaves:,} leaves"


def string_edges(size: int, shuffled: bool = False) -> list[tuple[str, str]]:
    parents, children = random_parents(size).tolist(), np.arange(1, size)
    if shuffled:
        np.random.default_rng(1).shuffle(children)
    return [(f"node {parents[v]}", f"node {v}") for v in children.tolist()]


def build_edges(edges: list[tuple[str, str]]) -> str:
    h = Hierarchy.from_edges(edges)
    return f"{h.num_nodes:,} nodes, {h.num_leaves:,} leaves"


def chain(size: int) -> np.ndarray:
    return np.arange(-1, size - 1)


def build_chain(parents: np.ndarray) -> str:
    h = Hierarchy.from_parents(parents)
    return f"{h!r}, path of {len(h.path(h.leaves[0])):,}"


def dag(size: int = 20_000) -> Hierarchy:
    """About 14 layers, each twice as wide; most nodes have one parent in the layer above, some two or three."""
    rng = np.random.default_rng(0)
    parents: dict[int, list[int]] = {}
    for v in range(size):
        depth = int(np.log2(v + 1))
        first, last = 2 ** (depth - 1) - 1, 2**depth - 1
        several = int(rng.choice([1, 2, 3], p=[0.65, 0.27, 0.08]))
        parents[v] = sorted(set(rng.integers(max(first, 0), last, several).tolist())) if depth else []
    return Hierarchy.from_parents({v: above or None for v, above in parents.items()})


def reach(h: Hierarchy) -> str:
    return f"{h!r}, {len(h.reachability()[0]):,} pairs"


def leaf_pairs() -> tuple[Hierarchy, np.ndarray, np.ndarray]:
    size = 10_000
    rng = np.random.default_rng(0)
    rows = [(f"{i // 1000}", f"{i // 100}.", f"{i // 10}..", f"leaf {i}") for i in range(size)]
    a, b = rng.integers(0, size, (2, 1_000_000))
    return Hierarchy.from_paths(rows), a, b


def measure_pairs(inputs: tuple[Hierarchy, np.ndarray, np.ndarray]) -> str:
    h, a, b = inputs
    return f"{h!r}, mean distance {h.distances(a, b).mean():.3f}"


def dag_pairs() -> tuple[Hierarchy, np.ndarray, np.ndarray]:
    h = dag()
    a, b = np.random.default_rng(0).integers(0, h.num_leaves, (2, 100_000))
    return h, a, b


def class_features() -> tuple[np.ndarray, np.ndarray]:
    means = np.random.default_rng(0).normal(size=(20_000, 256)).astype(np.float32)
    return means, np.arange(len(means))


def induce(inputs: tuple[np.ndarray, np.ndarray]) -> str:
    return repr(Hierarchy.from_features(*inputs, levels=2))


CASES = {
    "tree": Case("tree of 1,000,000 nodes", lambda: random_parents(1_000_000), build_tree, 5, 1024),
    "edges": Case(
        "tree of 1,000,000 nodes from string edges", lambda: string_edges(1_000_000), build_edges, 3, 1024
    ),
    "shuffled": Case(
        "the same, edges in random order", lambda: string_edges(1_000_000, True), build_edges, 3, 1024
    ),
    "chain": Case("chain of 100,000 nodes", lambda: chain(100_000), build_chain),
    "reach": Case("reachability of a 20,000-node DAG", dag, reach, 2),
    "pairs": Case("1,000,000 leaf pairs of a tree", leaf_pairs, measure_pairs, 2),
    "induce": Case("tree from 20,000 classes of 256 features", class_features, induce),
    "dag_pairs": Case("100,000 leaf pairs of a 20,000-node DAG", dag_pairs, measure_pairs),
}


def peak() -> float:
    """The largest memory of this process so far, in MiB (Linux counts in KiB, macOS in bytes)."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def run(name: str) -> dict[str, float | str]:
    case = CASES[name]
    inputs = case.prepare()
    before = peak()
    start = time.process_time()
    made = case.work(inputs)
    return {"seconds": time.process_time() - start, "mebibytes": peak() - before, "made": made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "case", nargs="?", choices=CASES, help="one case in this process, as JSON (default: all)"
    )
    only = parser.parse_args().case
    if only:
        print(json.dumps(run(only)))
        return
    print("| what | CPU s | bar | MiB | bar (MiB) | made |\n| --- | --- | --- | --- | --- | --- |")
    for name, case in CASES.items():
        command = [sys.executable, __file__, name]
        out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        bars = (case.seconds, case.mebibytes)
        over = any(bar and out[key] > bar for key, bar in zip(("seconds", "mebibytes"), bars, strict=True))
        shown = [f"{bar:,g}" if bar else "" for bar in bars]
        print(
            f"| {case.title} | {out['seconds']:.2f} | {shown[0]} | {out['mebibytes']:,.0f} | {shown[1]} | {out['made']}"
            f"{' (over the bar)' if over else ''} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
