"""A training that takes a second, and how two of them are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hace.lab.runs.config import DataConfig, LossConfig, TrainConfig

OPTIONS = {"classes": 5, "train": 8, "test": 4}


def tiny(**changes: Any) -> TrainConfig:
    """Three steps an epoch, the last of 8 images; a small transformer, without batch norm."""
    values: dict[str, Any] = {
        "data": DataConfig("synthetic", options=OPTIONS),
        "loss": LossConfig("hace"),
        "model": "test_vit",
        "epochs": 2,
        "batch_size": 16,
        "lr": 0.05,
        "device": "cpu",
    }
    return TrainConfig(**{**values, **changes})


def arguments(**changes: Any) -> list[str]:
    """The same for the command line."""
    values = {"model": "test_vit", "epochs": 2, "batch_size": 16, "lr": 0.05, "device": "cpu", **changes}
    options = {name: values.pop(name, value) for name, value in OPTIONS.items()}
    given = ["--data=synthetic", *(f"--option={name}={value}" for name, value in options.items())]
    return [*given, *(f"--{name.replace('_', '-')}={value}" for name, value in values.items())]


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The log without what the clock says."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["time"]
    return lines


def end_state(folder: Path) -> dict[str, Any]:
    """All that two runs of one configuration must have in common, byte for byte."""
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"]
    binary = {
        name: (folder / name).read_bytes() for name in ("weights.safetensors", "predictions.safetensors")
    }
    names = sorted(p.name for p in folder.iterdir() if p.name not in (".lock", "tensorboard"))
    return {"log": log_of(folder), "result": result, "files": names, **binary}
