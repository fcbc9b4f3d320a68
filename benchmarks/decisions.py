"""Every decision rule on 10,000 nodes x 10,000 samples, as ratios to the best leaf: python benchmarks/decisions.py

    python benchmarks/decisions.py                 both trees, some minutes on one core
    python benchmarks/decisions.py --samples 1000  a quick look

Two trees of 10,000 nodes: one with all leaves at depth 3, one with leaves at depths 1 to 11. Scores over nodes are written to a
file and read in chunks; each chunk goes through every rule in turn, so that other work on the machine falls on all alike.
Seconds are those of the processor, on one thread. A ratio is (reading + rule) / (reading + `leaf`); the bar is 3. Scores are
normal with deviation 3, and 12 more for the true class. With --unsure they are normal with deviation 0.01: all answers are
worth nearly the same, which is the worst case of a search.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hace import Hierarchy, predict

NODES, CHUNK, BAR = 10_000, 400, 3.0
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "leaf": ("leaf", {}),
    "level": ("level", {"level": 2}),
    "threshold": ("threshold", {"threshold": 0.5}),
    "threshold, most informative": ("threshold", {"threshold": 0.3, "constrained": False}),
    "climb": ("climb", {"threshold": 0.5}),
    "hedge": ("hedge", {"threshold": 0.5}),
    "cost, leaves": ("cost", {}),
    "cost, nodes": ("cost", {"candidates": "nodes"}),
    "cost, nodes, edges": ("cost", {"candidates": "nodes", "distance": "edges"}),
} | {
    f"expected {metric}": ("expected", {"metric": metric})
    for metric in ("hierarchical_f", "wu_palmer", "zhao", "information_f1", "hamming")
}


def trees() -> dict[str, Hierarchy]:
    """One level tree, one ragged."""
    level = [-1] + [0] * 20 + [1 + i % 20 for i in range(400)] + [21 + i % 400 for i in range(NODES - 421)]
    rng, ragged, depth = np.random.default_rng(0), [-1], [0]
    while len(ragged) < NODES:
        size = len(ragged)
        parent = int(rng.integers(size // 20, size) if rng.random() < 0.5 else rng.integers(0, size // 8 + 1))
        if depth[parent] < 11:
            ragged.append(parent)
            depth.append(depth[parent] + 1)
    return {"level": Hierarchy.from_parents(level), "ragged": Hierarchy.from_parents(ragged)}


def write(path: Path, h: Hierarchy, samples: int, unsure: bool) -> None:
    """Scores over the nodes, chunk by chunk."""
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(samples, h.num_nodes))
    rng = np.random.default_rng(0)
    for start in range(0, samples, CHUNK):
        size = min(CHUNK, samples - start), h.num_nodes
        z = (0.01 if unsure else 3) * rng.standard_normal(size, dtype=np.float32)
        if not unsure:
            z[np.arange(len(z)), h.leaf_nodes[rng.integers(0, h.num_leaves, len(z))]] += 12
        file[start : start + CHUNK] = z
    file.flush()


def measure(path: Path, h: Hierarchy) -> dict[str, float]:
    """Processor seconds of reading and of each rule."""
    spent = dict.fromkeys(("reading", *RULES), 0.0)
    file = np.load(path, mmap_mode="r")
    for start in range(0, len(file), CHUNK):
        clock = time.process_time()
        z = torch.from_numpy(np.array(file[start : start + CHUNK]))
        spent["reading"] += time.process_time() - clock
        for name, (rule, options) in RULES.items():
            clock = time.process_time()
            predict(z, h, rule, outputs="nodes", **options)
            spent[name] += time.process_time() - clock
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--unsure", action="store_true", help="scores without a true class")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, h in trees().items():
        predict(torch.zeros(2, h.num_nodes), h, "cost", outputs="nodes")  # what is derived once per hierarchy
        for rule, given in RULES.values():
            predict(torch.zeros(2, h.num_nodes), h, rule, outputs="nodes", **given)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scores.npy"
            write(path, h, options.samples, options.unsure)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            spent = measure(path, h)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        base = spent["reading"] + spent["leaf"]
        print(f"\n{name}: {h}, {options.samples:,} samples; memory grew by {grown:,.0f} MiB")
        for rule in RULES:
            ratio = (spent["reading"] + spent[rule]) / base
            print(
                f"  {rule:<30} {spent[rule]:8.2f} s   {ratio:5.2f}{'' if ratio <= BAR else '  above the bar'}"
            )


if __name__ == "__main__":
    main()
