"""Speed of linear probes, as ratios within one run: python benchmarks/probe.py [--data FOLDER] [--quick] [--all]

    python benchmarks/probe.py --quick     # a few rows of the data, half a minute
    python benchmarks/probe.py             # whole epochs, some minutes
    python benchmarks/probe.py --all       # and the 400 runs: ten methods x 8 rates x 5 seeds, 30 epochs on CUB-200

Every round times each case once, so that whatever else the machine does falls on all alike; a ratio is that of the medians.
Seconds are those of the processor, so that other work on the machine counts little, and of the second epoch, so that what is
done once does not count. One thread. "bar" is what a ratio must stay below. Features are read from --data or HACE_TEST_DATA
(the folders cub200_features_lite0, cub200_hierarchy and cifar100_features_lite0); without them, random ones of the same
shapes serve.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import os
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import hace
from hace import Hierarchy, build_loss
from hace.lab.runs.process import duration, progress
from hace.lab.study.presets import METHODS, PAPER_METHODS
from hace.linear import Optimization, Trial, fit_heads, head_scores
from hace.losses import kernels
from hace.losses.base import HierarchicalLoss

Case = Callable[[], float]  # does its work and says how long the part took that counts
RATES = [2.0**k for k in range(-2, 6)]  # 0.25 to 32, the fair protocol's
SEEDS, EPOCHS, BATCH = 5, 30, 256
MINUTES = 45


@dataclass
class Data:
    """Unit-normalised features, training and test."""

    name: str
    h: Hierarchy
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def head(self, rows: int) -> Data:
        """The first training samples only."""
        return Data(self.name, self.h, self.x[:rows], self.y[:rows], self.x_test, self.y_test)


def cub(folder: Path | None) -> Data:
    if folder is None or not (folder / "cub200_features_lite0").exists():
        rng = np.random.default_rng(0)  # 200 leaves below 168 nodes, as the taxonomy has them
        parents = {f"n{i}": f"n{rng.integers(0, i)}" if i else None for i in range(168)}
        bare = set(parents) - {p for p in parents.values() if p}
        places = [*sorted(bare), *(f"n{rng.integers(0, 168)}" for _ in range(200 - len(bare)))]
        tree = Hierarchy.from_parents(parents | {f"leaf {i}": place for i, place in enumerate(places)})
        return synthetic("CUB-200 (random features)", tree, 5994, 5794, 1280)
    tree = hace.read_hierarchy(folder / "cub200_hierarchy" / "cub_flat.parent-child.txt")
    return read("CUB-200", folder / "cub200_features_lite0" / "cub200_lite0_224px_fp16.npz", tree)


def cifar(folder: Path | None) -> Data:
    tree = hace.cifar100_hierarchy()
    if folder is None or not (folder / "cifar100_features_lite0").exists():
        return synthetic("CIFAR-100 (random features)", tree, 50_000, 10_000, 256)
    path = folder / "cifar100_features_lite0" / "cifar100_lite0_128px_pca256_fp16.npz"
    return read("CIFAR-100", path, tree)


def synthetic(name: str, h: Hierarchy, train: int, test: int, width: int) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(train + test, width, generator=generator), dim=1)
    y = torch.randint(h.num_leaves, (train + test,), generator=generator)
    return Data(name, h, x[:train], y[:train], x[train:], y[train:])


def read(name: str, path: Path, h: Hierarchy) -> Data:
    data = hace.load_dataset("features", path, hierarchy=h, label_kind="index")
    parts: list[Tensor] = []
    for split in ("train", "test"):
        x = torch.from_numpy(np.asarray(data[split].x, dtype=np.float32))
        parts += [F.normalize(x, dim=1), torch.from_numpy(np.array(data[split].labels))]
    return Data(name, h, *parts)


def medians(cases: dict[str, Case], rounds: int) -> dict[str, float]:
    """Median of each case's own seconds, in turns, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            seconds = case()
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(t) for name, t in times.items()}


def report(what: str, ratio: float, bar: float | None) -> None:
    verdict = "" if bar is None else f"   bar {bar:.2f}x{'' if ratio <= bar else '   ABOVE THE BAR'}"
    print(f"  {what:66} {ratio:5.2f}x{verdict}", flush=True)


def trained(data: Data, trials: Sequence[Trial], target: Tensor | None = None) -> Case:
    """Seconds of an epoch: the second of two, without what is done once (checks, first weights)."""
    options = Optimization(epochs=2, batch_size=BATCH)

    def epoch() -> float:
        ends: list[float] = []
        labels = data.y if target is None else target
        fit_heads(data.x, labels, trials, options, on_epoch=lambda *_: ends.append(time.process_time()))
        return ends[1] - ends[0]

    return epoch


def torch_loop(data: Data, columns: int, target: Tensor) -> Case:
    """What a person writes."""

    def epoch() -> float:
        model = torch.nn.Linear(data.x.shape[1], columns)
        optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=0.9)
        began = time.process_time()
        for rows in torch.randperm(len(data.x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(data.x[rows]), target[rows]).backward()
            optimizer.step()
        return time.process_time() - began

    return epoch


def one_head(data: Data, rounds: int) -> None:
    """An epoch of HACE against an epoch of cross-entropy over the same outputs."""
    h = data.h
    nodes = torch.from_numpy(np.array(h.leaf_nodes))[data.y]
    flat = build_loss("cross_entropy", Hierarchy.flat(h.nodes))
    cases = {
        "cross-entropy": trained(data, [Trial(flat)], nodes),
        "HACE": trained(data, [Trial(build_loss("hace", h))]),
        "HACE + smoothing": trained(data, [Trial(build_loss("hace", h, label_smoothing=0.1))]),
        "torch loop": torch_loop(data, h.num_nodes, nodes),
    }
    times = medians(cases, rounds)
    base = times["cross-entropy"]
    print(f"\n{data.name}: one head, {len(data.x):,} x {data.x.shape[1]} to {h.num_nodes} outputs")
    print(f"  an epoch of cross-entropy takes {base * 1e3:.0f} ms, in a plain torch loop "
          f"{times['torch loop'] * 1e3:.0f} ms")  # fmt: skip
    report("HACE / cross-entropy over the same outputs", times["HACE"] / base, 1.1)
    report("HACE with label smoothing / the same", times["HACE + smoothing"] / base, None)


def sixteen_heads(data: Data, rounds: int, bar: float) -> None:
    """16 heads side by side against the same 16 one after the other."""
    h = data.h
    print(f"\n{data.name}: 16 heads, {len(data.x):,} x {data.x.shape[1]} to {h.num_nodes} outputs")
    grids = {
        "4 dilutions x 4 rates": ((0.2, 0.5, 0.7, 1.0), RATES[::2]),
        "16 rates": ((0.5,), [*RATES, *RATES]),
    }
    for name, (dilutions, rates) in grids.items():
        losses: list[HierarchicalLoss] = [build_loss("hace", h, dilution=d) for d in dilutions]
        trials = [Trial(loss, rate) for loss in losses for rate in rates]
        singles = [trained(data, [trial]) for trial in trials]
        cases: dict[str, Case] = {
            "together": trained(data, trials),
            "alone": lambda singles=singles: sum(single() for single in singles),
        }
        times = medians(cases, rounds)
        report(
            f"{name}: side by side {times['together']:.2f} s / one by one {times['alone']:.2f} s",
            times["together"] / times["alone"],
            bar,
        )


def shares(data: Data) -> None:
    """Where the time of 16 heads goes."""
    trials = [Trial(build_loss("hace", data.h), rate) for rate in (*RATES, *RATES)]
    work = trained(data, trials)
    work()
    profile = cProfile.Profile()
    profile.runcall(work)
    seconds = {  # by the name of the function: with what it calls, and without
        name: (cumulative, own)
        for (_, _, name), (_, _, own, cumulative, _) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    }
    whole = seconds["run"][0]
    product = next(v[0] for k, v in seconds.items() if "'baddbmm_'" in k)
    parts = {
        "logits (matrix product)": next(v[0] for k, v in seconds.items() if "baddbmm>" in k),
        "losses and their gradients": seconds["_loss_gradient"][0],
        "gradients (matrix product, into the momentum)": product,
        "update": seconds["_update"][0] - product,
        "fetching batches": seconds["batch"][0],
    }
    print(f"\n{data.name}: where the time of 16 heads goes")
    for name, part in {**parts, "the rest": whole - sum(parts.values())}.items():
        print(f"  {name:48} {part / whole:6.1%}")


# ---------------------------------------------------------------------- the 400 runs

_data: Data


def prepare(folder: Path | None) -> None:
    global _data
    torch.set_num_threads(1)
    _data = cub(folder)


def one_pass(work: tuple[str, int]) -> tuple[str, list[float], float]:
    """All rates of one method under one seed: test top-1 of each, and the processor's seconds."""
    method, seed = work
    began = time.process_time()
    config = METHODS[method].loss
    loss = build_loss(config.name, _data.h, **config.options)
    options = Optimization(epochs=EPOCHS, batch_size=BATCH)
    heads = fit_heads(_data.x, _data.y, [Trial(loss, rate) for rate in RATES], options, seed=seed)
    right = [
        loss.leaf_logits(head_scores(_data.x_test, head)).argmax(dim=1) == _data.y_test for head in heads
    ]
    return method, [float(r.double().mean()) for r in right], time.process_time() - began


def four_hundred(folder: Path | None, processes: int) -> None:
    jobs = [(method, seed) for seed in range(SEEDS) for method in PAPER_METHODS]
    runs = len(jobs) * len(RATES)
    print(f"\n{runs} runs of {EPOCHS} epochs on CUB-200, {processes} processes of one thread", flush=True)
    result: dict[str, list[list[float]]] = {}
    processor: dict[str, float] = dict.fromkeys(PAPER_METHODS, 0.0)
    began = time.monotonic()
    with (
        progress("probes", "runs") as start,
        multiprocessing.get_context("spawn").Pool(processes, prepare, (folder,)) as pool,
    ):
        step = start(runs, 0)
        for method, tops, cost in pool.imap_unordered(one_pass, jobs):
            result.setdefault(method, []).append(tops)
            processor[method] += cost
            step(len(RATES))
    seconds = time.monotonic() - began
    print(f"  {'':14} {'CPU s a run':>11}   test top-1 of the best rate, chosen on the test set")
    for method in PAPER_METHODS:
        mean = np.mean(result[method], axis=0)
        cost = processor[method] / SEEDS / len(RATES)
        print(f"  {method:14} {cost:11.2f}   {mean.max():.1%} at {RATES[mean.argmax()]:g}")
    late = "" if seconds <= MINUTES * 60 else "   ABOVE THE BAR"
    busy = duration(sum(processor.values()) / processes)
    print(
        f"  {duration(seconds)} for {runs} runs ({busy} on processors of their own)   bar {MINUTES} minutes{late}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HACE_TEST_DATA"), help="the folder of feature files"
    )
    parser.add_argument("--quick", action="store_true", help="some rows of the data only")
    parser.add_argument("--all", action="store_true", help="the 400 runs, too")
    parser.add_argument("--processes", type=int, default=2, help="of the 400 runs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="(default: %(default)s)")
    args = parser.parse_args()
    folder = Path(args.data) if args.data else None
    torch.set_num_threads(1)
    print(f"{kernels.status()}; torch {torch.__version__}; one thread")
    birds, images = cub(folder), cifar(folder)
    if args.quick:
        birds, images = birds.head(8 * BATCH), images.head(16 * BATCH)
    one_head(birds, 2 * args.rounds)
    sixteen_heads(images, max(1, args.rounds // 2), 0.75)
    sixteen_heads(birds, max(1, args.rounds // 2), 1.15)
    shares(birds)
    shares(images)
    if args.all:
        four_hundred(folder, args.processes)


if __name__ == "__main__":
    main()
