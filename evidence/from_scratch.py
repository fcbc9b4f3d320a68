"""Networks from random weights: python evidence/from_scratch.py COMMAND --photos FOLDER --data FOLDER --work FOLDER

    python evidence/from_scratch.py run --photos photos --data data --work work       # what is missing, in the protocol's order
    python evidence/from_scratch.py status --work work                                # finished, running, missing
    python evidence/from_scratch.py collect --work work                               # finished runs, into results/from-scratch
    python evidence/from_scratch.py repeat NAME --photos photos --data data --work work   # a finished run anew, compared

PROTOCOL.md says what is run and why. Several processes with the same --work share the list. A run that is killed resumes from
its last checkpoint with the same command; finished runs need no --work any more once their records are in results/from-scratch,
so another machine goes on where this one stopped. PHOTOS holds cub200/ and cars/, each with train/ and test/ and a folder for
each class; DATA holds cub200_hierarchy/, cars_resnet50/ and cifar100/.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from end_to_end import from_sheets

from hace import environment, read_hierarchy
from hace.errors import HaceError
from hace.files.weights import read_state_dict
from hace.files.writing import is_held
from hace.lab.runs.config import DataConfig, TrainConfig
from hace.lab.runs.run import MANIFEST, Run, read_run
from hace.lab.study.presets import METHODS
from hace.lab.train.train import saved_step, train

RECORDS = Path(__file__).parent / "results" / "from-scratch" / "runs"
TREES = {"cub200": "cub200_hierarchy/cub_flat.parent-child.txt", "cars": "cars_resnet50/cars_make_line.csv"}
EPOCHS = {"cub200": 40, "cars": 40, "cifar100": 20}
# What methods are called in the names of runs, and were called in records, where that is not their key.
RECORDED = {"cross_entropy": "sce", "cross_entropy_smooth": "sce_smooth"}
KEYS = {recorded: key for key, recorded in RECORDED.items()}
SHOWN = ("leaves", "accuracy by level, best node of the level", "accuracy by level, answer carried up")


@dataclass(frozen=True)
class Planned:
    """A run of the protocol."""

    dataset: str
    method: str  # a key of METHODS
    dilution: float | None
    lr: float
    seed: int
    model: str = "resnet18"

    @property
    def name(self) -> str:
        """What its folder and its record are called."""
        method = RECORDED.get(self.method, self.method)
        method += "" if self.dilution is None else f"-d{self.dilution:g}"
        return f"{self.dataset}-{self.model}-{method}-lr{self.lr:.3g}-seed{self.seed}"

    def config(self, photos: Path, data: Path, work: Path) -> TrainConfig:
        """Its settings; those that all runs share are the protocol's."""
        method = METHODS[self.method]
        small = self.dataset == "cifar100"
        root = work / "cifar100" if small else photos / self.dataset
        source = DataConfig(
            self.dataset,
            root=str(root),
            hierarchy=None if small else str(data / TREES[self.dataset]),
            options={} if small else {"pixels": 73},
            shuffle=self.seed if method.shuffled else None,
        )
        return TrainConfig(
            data=source,
            loss=method.loss_at(self.dilution),
            model=self.model,
            image_size=32 if small else 64,
            seed=self.seed,
            validation=0.1,
            epochs=EPOCHS[self.dataset],
            batch_size=128,
            lr=self.lr,
            weight_decay=5e-4,
            schedule="warmup_cosine",
            warmup_epochs=5,
            precision="bf16",
            channels_last=True,
            curve_epochs=4,
            workers=0,
            checkpoint_seconds=120.0,
        )


def planned() -> list[Planned]:
    """All runs, in the order of the protocol, each once."""
    results = [*_equal_rates("cub200", (0, 1, 2))]
    for seed in (0, 1, 2):
        results += _pairings("cub200", seed)
    for seed in (0, 1, 2):
        results += _search("cub200", seed)
    for dataset in ("cars", "cifar100"):
        results += _equal_rates(dataset, (0, 1, 2))
        for seed in (0, 1, 2):
            results += [*_pairings(dataset, seed), *_search(dataset, seed)]
    return list(dict.fromkeys(results))


def _equal_rates(dataset: str, seeds: tuple[int, ...]) -> Iterator[Planned]:
    """Part A: cross-entropy beside HACE at equal rates, and the shuffled tree."""
    for seed in seeds:
        for lr in (0.2, 0.1):
            yield Planned(dataset, "cross_entropy", None, lr, seed)
            yield Planned(dataset, "hace", 0.5, lr, seed)
    for seed in seeds:
        yield Planned(dataset, "hace_shuffled", 0.5, 0.2, seed)


def _pairings(dataset: str, seed: int, base: float = 0.1) -> Iterator[Planned]:
    """Part B: the paper's ten runs at its base rate."""
    for d in (0.5, 0.2, 0.7):
        yield Planned(dataset, "hace", d, base, seed)
        yield Planned(dataset, "hace", d, base / d, seed)
        yield Planned(dataset, "cross_entropy", None, base * d, seed)
    yield Planned(dataset, "cross_entropy", None, base, seed)


def _search(dataset: str, seed: int) -> Iterator[Planned]:
    """Part C: the same rates, in steps of two, for every method."""
    methods = (
        ("cross_entropy", None),
        ("hace", 0.5),
        ("hace", 0.2),
        ("hace_shuffled", 0.5),
        ("cross_entropy_smooth", None),
        ("hxe_0.2", None),
        ("soft_margin", None),
        ("hace", 0.7),
    )
    for lr in (0.2, 0.1, 0.4, 0.05):
        for method, dilution in methods:
            yield Planned(dataset, method, dilution, lr, seed)


def run(args: argparse.Namespace) -> None:
    """Train what is missing, in order."""
    torch.set_num_threads(1)
    left = [p for p in planned() if not _recorded(p)]
    for planned_run in left[: args.most]:
        folder = args.work / planned_run.name
        folder.mkdir(parents=True, exist_ok=True)
        if is_held(folder):
            print(f"{planned_run.name}: another process trains it", flush=True)
            continue
        if planned_run.dataset == "cifar100":
            _unpack_sheets(args.data / "cifar100", args.work / "cifar100" / "cifar-100-binary")
        config = planned_run.config(args.photos, args.data, args.work)
        print(f"{planned_run.name}: from step {saved_step(folder)}", flush=True)
        try:
            finished = train(config, folder, report=lambda entry: print(json.dumps(entry), flush=True))
        except HaceError as error:
            if not is_held(folder):  # else another process began it in the meantime
                raise
            print(f"{planned_run.name}: {error}", flush=True)
            continue
        print(f"{planned_run.name}: {finished.status}", flush=True)
        collect(args)


def _unpack_sheets(sheets: Path, target: Path) -> None:
    if not (target / "test.bin").exists():
        from_sheets(sheets, target)


def _recorded(planned_run: Planned) -> bool:
    return (RECORDS / f"{planned_run.name}.json").exists()


def collect(args: argparse.Namespace) -> None:
    """Write a record of every finished run that has none."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    for planned_run in planned():
        folder = args.work / planned_run.name
        if _recorded(planned_run) or not (folder / MANIFEST).exists():
            continue
        document = record(planned_run, read_run(folder))
        target = RECORDS / f"{planned_run.name}.json"
        target.write_text(json.dumps(document, separators=(", ", ": ")) + "\n", encoding="utf-8")
        print(f"recorded {target.name}", flush=True)
        about = RECORDS.parent / f"test-{planned_run.dataset}.json"
        if not about.exists() and document["status"] == "finished":
            about.write_text(json.dumps({"ancestors": ancestors(folder)}) + "\n", encoding="utf-8")


def record(planned_run: Planned, finished: Run) -> dict[str, Any]:
    """What is kept of a run: settings, result, curve, and for each test sample whether it is right at every level."""
    result, made_with = finished.result, environment.config()
    assert result is not None
    document: dict[str, Any] = {
        **vars(planned_run),
        "id": finished.id,
        "status": result["status"],
        "config": finished.config.deciding(),
        "seconds": result["seconds"],
        "made_with": {name: made_with[name] for name in ("hace", "python", "torch", "numpy")},
    }
    log = finished.log()
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        document[name] = [_short(entry.get(name)) for entry in log]
    document["curve"] = {entry["epoch"]: _short(entry["curve"]) for entry in log if "curve" in entry}
    if result["metrics"] is None:
        return {**document, "diverged": result["diverged"]}
    document["metrics"] = {heading: _short(result["metrics"][heading]) for heading in SHOWN}
    document["temperature"] = _short(result["temperature"]["value"])
    predictions = read_state_dict(finished.folder / "predictions.safetensors")
    right = predictions["answer"].numpy() == predictions["truth"].numpy()
    document["samples"] = len(right)
    document["right"] = _bits(right)
    document["right_at_levels"] = [_bits(column) for column in predictions["level_correct"].numpy().T]
    return document


def ancestors(folder: Path) -> list[str]:
    """At every level the node above each test sample's label, packed: int16, deflated, base64."""
    h = read_hierarchy(folder / "hierarchy.json")
    truth = read_state_dict(folder / "predictions.safetensors")["truth"].numpy()
    above = np.arange(h.num_nodes)
    results = []
    for level in range(h.max_depth, 0, -1):
        for node in np.flatnonzero(h.depths[above] > level):
            above[node] = h.parent_nodes[above[node]]
        packed = zlib.compress(above[truth].astype("<i2").tobytes())
        results.insert(0, base64.b64encode(packed).decode())
    return results


def _bits(right: np.ndarray) -> str:
    """Yes or no for every sample, eight to a byte."""
    return base64.b64encode(np.packbits(right).tobytes()).decode()


def _short(value: Any) -> Any:
    """Numbers with six digits."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


COMPARED = (
    "loss",
    "accuracy",
    "val_loss",
    "val_accuracy",
    "curve",
    "metrics",
    "temperature",
    "right",
    "right_at_levels",
)


def repeat(args: argparse.Namespace) -> None:
    """Train a recorded run anew, from its first step, and say which of its numbers come out the same.

    A repetition that was killed goes on where it stopped, with the same command.
    """
    torch.set_num_threads(1)
    planned_run = next((p for p in planned() if p.name == args.name), None)
    if planned_run is None or not _recorded(planned_run):
        raise HaceError(f"NAME must be a recorded run, a file of {RECORDS}. Got {args.name!r}.")
    folder = args.work / "repeated" / planned_run.name
    folder.mkdir(parents=True, exist_ok=True)
    if planned_run.dataset == "cifar100":
        _unpack_sheets(args.data / "cifar100", args.work / "cifar100" / "cifar-100-binary")
    config = planned_run.config(args.photos, args.data, args.work)
    train(config, folder, report=lambda entry: print(json.dumps(entry), flush=True))
    before = json.loads((RECORDS / f"{planned_run.name}.json").read_text(encoding="utf-8"))
    after = json.loads(json.dumps(record(planned_run, read_run(folder))))
    differing = [name for name in COMPARED if before.get(name) != after.get(name)]
    numbers = sum(_count(before.get(name)) for name in COMPARED)
    if differing:
        print(f"{planned_run.name}: not the same: {', '.join(differing)}")
        sys.exit(1)
    print(f"{planned_run.name}: all {numbers:,} values of the record are the same")


def _count(value: Any) -> int:
    """How many values a part of a record holds."""
    if isinstance(value, dict):
        return sum(_count(part) for part in value.values())
    if isinstance(value, list):
        return sum(_count(part) for part in value)
    return int(value is not None)


def status(args: argparse.Namespace) -> None:
    """One line for every run that is finished, begun, or next."""
    missing = 0
    for planned_run in planned():
        folder = args.work / planned_run.name
        path = RECORDS / f"{planned_run.name}.json"
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            value = known["metrics"]["leaves"]["top-1"] if "metrics" in known else float("nan")
            print(f"{planned_run.name:<48} top-1 {value:.4f}, held out {known['val_accuracy'][-1]:.4f}")
        elif (folder / "log.jsonl").exists():
            lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
            state = "running" if is_held(folder) else "begun"
            print(f"{planned_run.name:<48} {state}: {len(lines)} of {EPOCHS[planned_run.dataset]} epochs")
        else:
            missing += 1
    print(f"{missing} of {len(planned())} runs are not begun")


def main() -> None:
    """Run, show or collect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = {"run": run, "status": status, "collect": collect, "repeat": repeat}
    parser.add_argument("command", choices=commands)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the run to repeat")
    parser.add_argument("--photos", type=Path, default=Path("photos"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--work", type=Path, default=Path("from-scratch-work"))
    parser.add_argument("--most", type=int, metavar="N", help="stop after this many runs")
    args = parser.parse_args()
    try:
        commands[args.command](args)
    except HaceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
