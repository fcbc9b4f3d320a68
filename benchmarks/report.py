"""How long a report takes: 1,000 runs over 1,011 nodes and 24,633 samples aimed at 6 s of processor time and 3 MB.

The aim is missed. Of a run that took 16.6 s on busy cores, opening the runs, hashes and reading of their predictions
took 3.6, answers at a guarantee with their bootstrap 4.6, columns and intervals of metrics 2.8, figures with the import of
matplotlib 2.2, answers of two methods under 14 guarantees 1.0, and the counts of mistakes by node 0.9.

    python benchmarks/report.py [--runs 1000] [--profile]

The runs are made up, in the real format, with predictions of every sample.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import pstats
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hace import Hierarchy, build_loss
from hace.lab.report import About, write_records
from hace.lab.report.nodes import ancestors_at
from hace.lab.report.results import Results
from hace.lab.runs.config import ProbeConfig
from hace.lab.runs.result import evaluate_outputs
from hace.lab.runs.run import DataPrint, read_run, start_run
from hace.lab.study.configurations import ConfigurationKey
from hace.lab.study.presets import METHODS, PAPER_METHODS
from hace.lab.study.records import Record

SIZES = (1, 22, 130, 303, 555)  # nodes of each level: those of NABirds, all in all
SAMPLES = 24_633


def large_hierarchy(sizes: tuple[int, ...] = SIZES) -> Hierarchy:
    """A tree with so many nodes at each level."""
    edges, above = [], ["v0.0"]
    for level, size in enumerate(sizes[1:], 1):
        below = [f"v{level}.{i}" for i in range(size)]
        edges += [(above[i % len(above)], node) for i, node in enumerate(below)]
        above = below
    return Hierarchy.from_edges(edges)


def large_records(
    folder: Path, runs: int, samples: int = SAMPLES, methods: tuple[str, ...] = PAPER_METHODS
) -> list[Record]:
    """Final runs of the fair protocol, with predictions drawn at random."""
    h = large_hierarchy()
    data = DataPrint("birds", "made up", h.fingerprint)
    table = ancestors_at(h.parent_nodes)
    truth = h.leaf_nodes[np.arange(samples) % h.num_leaves]
    few = h.leaf_nodes[np.arange(40)]
    loss = build_loss("cross_entropy", h)
    template = evaluate_outputs(loss, [torch.randn(40, h.num_leaves)], few, h).result("test", {}, 1.0)
    records = []
    for i in range(runs):
        method, seed = methods[i % len(methods)], i // len(methods)
        rng = np.random.default_rng([i, seed])
        dilution = 0.5 if METHODS[method].diluted else None
        config = ProbeConfig(loss=METHODS[method].loss_at(dilution), seed=seed)
        predictions = drawn_predictions(rng, h, table, truth, 0.7 + 0.01 * (i % len(methods)))
        result = copy.deepcopy(template)
        right = predictions["answer"] == predictions["truth"]
        result["metrics"]["leaves"]["top-1"] = float(right.mean())
        with start_run(folder / config.identity(data.fingerprint), config, data, h) as writer:
            run = writer.finish(result, predictions=predictions)
        records.append(
            Record(
                ConfigurationKey("fair", "birds", "backbone", method, dilution, None, seed), "final", 1.0, run
            )
        )
    return records


def drawn_predictions(
    rng: np.random.Generator, h: Hierarchy, table: np.ndarray, truth: np.ndarray, skill: float
) -> dict[str, np.ndarray]:
    """What a run keeps, of answers that are right with a chance of `skill`."""
    right = rng.random(len(truth)) < skill
    answer = np.where(right, truth, rng.choice(h.leaf_nodes, len(truth)))
    same = table[truth] == table[answer]
    path = np.sort(rng.random((len(truth), same.shape[1]), dtype=np.float32), axis=1)[:, ::-1]
    confidence = path[:, -1]
    return {
        "truth": truth.astype(np.int16),
        "answer": answer.astype(np.int16),
        "confidence": confidence,
        "distance": (table.shape[1] - same.sum(axis=1)).astype(np.float32),
        "top5": right | (rng.random(len(truth)) < 0.5),
        "level_correct": np.ascontiguousarray(same[:, 1:]),
        "level_confidence": np.repeat(confidence[:, None], same.shape[1] - 1, axis=1).astype(np.float16),
        "path_confidence": np.ascontiguousarray(path),  # from the root down
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        records = large_records(Path(folder) / "runs", args.runs, args.samples)
        print(f"{len(records):,} runs made in {time.monotonic() - start:.0f} s", file=sys.stderr)
        profile = cProfile.Profile()
        start = time.process_time()
        if args.profile:
            profile.enable()
        opened = [replace(r, run=read_run(r.run.folder)) for r in records if r.run is not None]
        page = write_records(Results(opened), About("benchmark"), Path(folder) / "report")
        profile.disable()
        megabytes = page.stat().st_size / 1e6
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        seconds = time.process_time() - start
        print(
            "| runs | samples | processor time: s | goal: s | page: MB | goal: MB | peak memory: GB |\n"
            + "| --- " * 7
            + "|"
        )
        print(
            f"| {args.runs:,} | {args.samples:,} | {seconds:.1f} | 6 | {megabytes:.1f} | 3 | {memory:.2f} |"
        )
        if args.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(35)


if __name__ == "__main__":
    main()
