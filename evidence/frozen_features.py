"""What did the loss teach the network below its last layer? python evidence/frozen_features.py --work FOLDER

The features that the runs of from_scratch.py ended with, frozen: what enters the last layer, of the training, held-out and test
photos as tests see them. Every network gets the same new last layer, cross-entropy fitted to convergence on the training
photos, with a decay chosen on the held-out ones. Results go to results/from-scratch/frozen; they need the runs' weights, which
stay in --work.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from from_scratch import RECORDS, Planned, planned

from hace.data import Samples
from hace.data.batches import make_batches
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.runs.samples import data_of, make_task
from hace.lab.serve.load_run import Trained, load_trained

TARGET = RECORDS.parent / "frozen"
DECAYS = (1e-4, 1e-3, 1e-2)
METHODS_PROBED = ("cross_entropy", "hace", "hace_shuffled")


def main() -> None:
    """Probe every finished run of the three methods that has no result yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("from-scratch-work"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    TARGET.mkdir(parents=True, exist_ok=True)
    for run in planned():
        target = TARGET / f"{run.name}.json"
        folder = args.work / run.name
        if run.method in METHODS_PROBED and not target.exists() and (folder / "weights.safetensors").exists():
            result = probed(run, folder, args.work / "frozen" / run.name)
            target.write_text(json.dumps(result) + "\n", encoding="utf-8")
            print(f"{run.name}: top-1 {100 * result['top-1']:.2f} with decay {result['decay']:g}", flush=True)


def probed(run: Planned, folder: Path, work: Path) -> dict[str, Any]:
    """Top-1 of a new last layer on the frozen features of a run."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "features.npz"
    trained = load_trained(folder)
    task = make_task(data_of(trained.config.data), trained.config)
    assert task.val is not None
    arrays: dict[str, Any] = {}
    for split, samples in {"train": task.train, "val": task.val, "test": task.evaluated}.items():
        arrays[f"x_{split}"] = features(trained, samples)
        arrays[f"y_{split}"] = np.array([task.hierarchy.nodes[node] for node in samples.nodes])
    np.savez(file, **arrays)
    data = DataConfig("features", root=str(file), hierarchy=str(folder / "hierarchy.json"))
    layers = [
        ProbeConfig(
            data=data,
            loss=LossConfig("cross_entropy"),
            optimizer="lbfgs",
            start="zeros",
            normalize="standard",
            weight_decay=decay,
            validation="split",
        )
        for decay in DECAYS
    ]
    searched = probe([_judged(layer, "val") for layer in layers], work)
    held_out = [result(one)["top-1"] for one in searched]
    best = max(range(len(DECAYS)), key=lambda i: held_out[i])
    final = result(probe(_judged(layers[best], "test"), work))
    file.unlink()
    return {
        **vars(run),
        "id": trained.run.id,
        "decay": DECAYS[best],
        "held out": held_out,
        "top-1": final["top-1"],
    }


def _judged(layer: ProbeConfig, split: Any) -> ProbeConfig:
    return replace(layer, evaluate=split, keep=split == "test")


def result(run: Any) -> dict[str, float]:
    """The metrics of the most probable leaf."""
    return run.result["metrics"]["leaves"]


@torch.no_grad()
def features(trained: Trained, samples: Samples) -> np.ndarray:
    """float32 (M, d): what enters the last layer."""
    model: Any = trained.model
    rows = []
    for x, _ in make_batches(samples, 128, trained.preprocessing).epoch(0):
        laid_out = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=trained.config.precision == "bf16"):
            rows.append(model.forward_head(model.forward_features(laid_out), pre_logits=True).float())
    return torch.cat(rows).numpy()


if __name__ == "__main__":
    main()
