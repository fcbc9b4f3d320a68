"""Processor time of `hace evaluate`, as ratios to a numpy argmax over the same file, and of a probe's evaluation.

    python benchmarks/evaluate.py                                  # 20,000 x 10,000 scores: 800 MB on disk, some minutes
    python benchmarks/evaluate.py --samples 2000 --classes 10000   # any other size

The argmax reads every byte once, so that its time is the limit of any evaluation.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from losses import random_tree

from hace import build_loss
from hace.cli import main as hace
from hace.formats import write_hierarchy
from hace.linear import Optimization, Trial, fit_heads, head_scores
from hace.metrics.evaluator import evaluate

ARGMAX = "numpy argmax over the file"
BARS = {"`hace evaluate`, all metrics": 15, "`hace evaluate --metrics leaves`": 4}


def processor_time(step) -> float:  # type: ignore[no-untyped-def]
    began = time.process_time()
    step()
    return time.process_time() - began


def command(folder: Path, *options: str) -> None:
    given = ["--hierarchy", folder / "h.json", "--scores", folder / "z.npy", "--labels", folder / "y.npy"]
    with contextlib.redirect_stdout(io.StringIO()):
        code = hace(["evaluate", *map(str, given), "--label-kind", "index", *options])
    if code:
        raise SystemExit(f"hace evaluate ended with code {code}")


def files(samples: int, classes: int, folder: Path) -> None:
    h = random_tree(int(1.16 * classes))
    rng = np.random.default_rng(0)
    y = rng.integers(0, h.num_leaves, samples)
    z = np.lib.format.open_memmap(folder / "z.npy", "w+", np.float32, (samples, h.num_leaves))
    for first in range(0, samples, 1000):
        rows = y[first : first + 1000]
        z[first : first + 1000] = 2 * rng.standard_normal((len(rows), h.num_leaves), dtype=np.float32)
        z[np.arange(first, first + len(rows)), rows] += 6
    np.save(folder / "y.npy", y)
    write_hierarchy(h, folder / "h.json")
    print(f"{samples:,} samples, {h}")


def probe() -> float:
    """Time of evaluating a probe's test set over that of training it: 200 classes, 20 epochs."""
    h = random_tree(230)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(h.num_leaves, 256, generator=generator)
    y = torch.randint(h.num_leaves, (8000,), generator=generator)
    x = centres[y] + 4 * torch.randn(8000, 256, generator=generator)
    loss = build_loss("hace", h)
    heads = []
    train = processor_time(
        lambda: heads.extend(fit_heads(x[:6000], y[:6000], [Trial(loss, 1.0)], Optimization(epochs=20)))
    )
    scores = head_scores(x[6000:], heads[0])
    return processor_time(lambda: evaluate(scores, y[6000:], h).values) / train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000, help="rows of scores")
    parser.add_argument("--classes", type=int, default=10_000, help="classes, about")
    args = parser.parse_args()
    cases = {"`hace evaluate`, all metrics": (), "`hace evaluate --metrics leaves`": ("--metrics", "leaves")}
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files(args.samples, args.classes, folder)
        command(folder, "--metrics", "leaves")  # imports and the hierarchy's tables are made once
        for _ in range(2):
            spent = {
                ARGMAX: min(
                    processor_time(lambda: np.load(folder / "z.npy").argmax(axis=1)) for _ in range(3)
                )
            }
            for case, options in cases.items():
                spent[case] = processor_time(lambda chosen=options: command(folder, *chosen))
            runs.append(spent)
    print("| measured | run 1: s | run 1: ratio | run 2: s | run 2: ratio | bar |\n" + "| --- " * 6 + "|")
    for case in (ARGMAX, *cases):
        shown = " | ".join(f"{run[case]:.2f} | {run[case] / run[ARGMAX]:.1f}" for run in runs)
        print(f"| {case} | {shown} | {BARS.get(case, '')} |")
    print(f"| a probe's test set, over its training |  | {probe():.2f} |  | {probe():.2f} | 0.2 |")


if __name__ == "__main__":
    main()
