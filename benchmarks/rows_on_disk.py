"""Probes on features that stay on disk: python benchmarks/rows_on_disk.py [--rows 2700000] [--folder FOLDER]

Writes a .safetensors file of random float16 features (2.7 million x 1,024, as iNat21 has: 5.5 GB; it is deleted at the end)
and prints

1. how fast a head trains on rows from disk, in random order, relative to what limits it: the matrix products of a step (logits
   and gradient, on rows in memory), or the same rows read by eight threads that do nothing else. Every round takes other rows,
   which the system has not cached, and times all cases in turn: medians of wall-clock time, one thread for products. "Probe in
   memory" is the same training on rows in memory. "Processor": by processor time, which other work on the machine changes
   little; of the probe from disk it includes reading.
2. a probe on the whole file, one epoch: time and peak memory, without pages of the file, which the system may drop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from hace import Hierarchy, build_loss
from hace.files.weights import read_safetensors_arrays
from hace.formats import render_hierarchy
from hace.lab.probe import Scaling, load_sources, run_pass
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.linear import Optimization, Trial, fit_heads
from hace.linear.features import RowsOnDisk

BATCH, BLOCK, TEST = 256, 8192, 10_000


def tree_of(nodes: int) -> Hierarchy:
    """A tree with so many nodes, about ten leaves below each inner one."""
    inner = max(1, nodes // 11)
    return Hierarchy.from_edges([("root", f"g{i}") for i in range(inner)] +
                                [(f"g{i % inner}", f"c{i}") for i in range(nodes - 1 - inner)])  # fmt: skip


def write_features(path: Path, rows: int, width: int, labels: int) -> None:
    """Random blocks, scaled at random, without holding more than one."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((BLOCK, width), np.float32)
    counts = {"train": rows, "test": TEST}
    header, end = {}, 0
    for split, count in counts.items():
        for name, dtype, shape, size in (("x", "F16", [count, width], 2 * width), ("y", "I64", [count], 8)):
            start, end = end, end + count * size
            header[f"{name}_{split}"] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for count in counts.values():
            for first in range(0, count, BLOCK):
                part = block[: min(BLOCK, count - first)] * rng.uniform(0.5, 2)
                file.write(part.astype(np.float16).tobytes())
            file.write(rng.integers(0, labels, count).tobytes())


def training_rows(path: Path) -> np.ndarray:
    return read_safetensors_arrays(path)[0]["x_train"]


def forget(path: Path) -> None:
    """Have the system drop the file's pages from its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def products(width: int, nodes: int, steps: int) -> Callable[[], None]:
    x, weight = torch.randn(BATCH, width), torch.randn(width, nodes)
    momentum = torch.zeros_like(weight)

    def run() -> None:
        for _ in range(steps):
            momentum.addmm_(x.T, torch.mm(x, weight), beta=0.9, alpha=1e-3)

    return run


def bare_reads(path: Path, rows: np.ndarray) -> Callable[[], None]:
    """The same rows, batch by batch in the order of the file."""
    size = training_rows(path).strides[0]
    with path.open("rb") as file:
        offset = 8 + int.from_bytes(file.read(8), "little")  # x_train comes first

    def read(part: np.ndarray) -> None:
        for row in np.sort(part).tolist():
            os.pread(descriptor, size, offset + row * size)

    def run() -> None:
        with ThreadPoolExecutor(8) as readers:
            list(readers.map(read, np.array_split(rows, -(-len(rows) // BATCH))))

    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return run


def opened(path: Path, rows: np.ndarray) -> RowsOnDisk:
    return RowsOnDisk([training_rows(path)])[rows].scaled(Scaling("unit"))


def rates(path: Path, nodes: int, steps: int, rounds: int) -> str:
    """A line of the table."""
    total, width = training_rows(path).shape
    h = tree_of(nodes)
    how = [Trial(build_loss("hace", h))], Optimization(epochs=1, batch_size=BATCH)
    multiply = products(width, nodes, steps)
    seconds: dict[str, list[float]] = {"product": [], "disk": [], "probe": [], "memory": []}
    processor: dict[str, list[float]] = {name: [] for name in seconds}
    for turn in range(rounds):
        rng = np.random.default_rng([1, turn])
        rows = np.sort(rng.choice(total, steps * BATCH, replace=False))
        y = rng.integers(0, h.num_leaves, steps * BATCH)
        in_memory = Scaling("unit")(np.asarray(training_rows(path)[rows]))
        cases: dict[str, Callable[[], object]] = {
            "product": multiply,
            "disk": bare_reads(path, rng.permutation(rows)),
            "probe": lambda rows=rows, y=y: fit_heads(opened(path, rows), y, *how),
            "memory": lambda x=in_memory, y=y: fit_heads(x, y, *how),
        }
        for name, case in cases.items():
            forget(path)
            began, busy = time.monotonic(), time.process_time()
            case()
            seconds[name].append(time.monotonic() - began)
            processor[name].append(time.process_time() - busy)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    limit = max("product", "disk", key=median.__getitem__)
    per_second = {name: steps * BATCH / s for name, s in median.items()}
    shown = " | ".join(f"{per_second[name]:,.0f}" for name in ("disk", "product", "memory", "probe"))
    word = {"product": "matrix product", "disk": "disk"}[limit]
    shares = [f"{median[name] / median['probe']:.2f}" for name in (limit, "memory")]
    shares += [
        f"{statistics.median(processor[n]) / statistics.median(processor['probe']):.2f}"
        for n in ("product", "memory")
    ]
    return f"| {nodes:,} | {shown} | {word} | {' | '.join(shares)} |"


def whole_probe(path: Path, folder: Path, tree: Path) -> str:
    """A line of the second table."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            status = Path("/proc/self/status").read_text()
            peak = max(peak, int(status.split("RssAnon:")[1].split()[0]) * 1024)

    watcher = threading.Thread(target=watch)
    before = int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
    watcher.start()
    data = DataConfig("features", str(path), hierarchy=str(tree))
    config = ProbeConfig(data, LossConfig("hace"), epochs=1, batch_size=BATCH)
    began = time.monotonic()
    sources = load_sources([config])
    _ = next(iter(sources.values())).fingerprint
    opened = time.monotonic()
    run_pass((config,), folder / "runs", sources)
    ended = time.monotonic()
    done.set()
    watcher.join()
    x = training_rows(path)
    size = x.nbytes
    return (f"| {len(x):,} x {x.shape[1]:,} | {size / 1e9:.2f} | {opened - began:.0f} | {ended - opened:.0f} | "
            f"{(peak - before) / 1e9:.2f} | {(peak - before) / size:.2f} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_700_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument(
        "--seconds", type=float, default=10, help="of processor time of each case in a round, about"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write the file; there must be room")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path, tree = Path(folder) / "features.safetensors", Path(folder) / "tree.json"
        h = tree_of(args.nodes[0])
        tree.write_text(render_hierarchy(h, "json"))
        write_features(path, args.rows, args.width, h.num_leaves)
        print(f"{args.rows:,} x {args.width:,} float16: rows per second, and ratios of rates\n")
        print("| nodes | disk | product | probe in memory | probe from disk | limit | probe / limit | probe / in memory "
              "| probe / product by processor time | probe / in memory by processor time |")  # fmt: skip
        print("| --- " * 10 + "|")
        for nodes in args.nodes:
            step = products(args.width, nodes, 1)
            step()
            began = time.process_time()
            step()
            once = max(time.process_time() - began, BATCH / 20_000)
            steps = min(max(4, round(args.seconds / once)), args.rows // BATCH // 2)
            print(rates(path, nodes, steps, args.rounds), flush=True)
        print("\n| features | GB | opening: s | probe: s | peak memory: GB | share of the file |")
        print("| --- | --- | --- | --- | --- | --- |")
        os.environ.setdefault("HACE_MAX_MEMORY", str(args.rows * args.width))  # small files stream, too
        print(whole_probe(path, Path(folder), tree))


if __name__ == "__main__":
    main()
