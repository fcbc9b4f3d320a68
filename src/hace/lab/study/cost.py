"""What is left of a study and about how long it takes, from its finished runs or else by a rule of thumb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hace.lab.runs.config import RunConfig
from hace.lab.runs.train_config import TrainConfig
from hace.lab.study.cells import Record
from hace.lab.study.searches import each_run

# Billions of multiply-adds per image, forward, as counted by torch: (at 32 px, at 224 px).
GMACS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "resnet18": (0.556, 1.81),
        "resnet34": (1.16, 3.66),
        "resnet50": (1.30, 4.09),
        "convnext_tiny": (0.364, 4.46),
        "swin_tiny": (0.359, 4.49),
        "vit_base": (5.60, 17.6),
    }
)
SUSTAINED = 50e12  # operations per second, of an ordinary accelerator
PROBE_SPEED = 50e9  # operations per second, of one thread of an ordinary processor
RULE = (
    f"by rule of thumb: training at {SUSTAINED / 1e12:.0f} TFLOP/s, an ordinary accelerator; probes at "
    f"{PROBE_SPEED / 1e9:.0f} GFLOP/s, one thread"
)


@dataclass
class Left:
    """What is left of a part of a study.

    Attributes:
        runs: All its runs.
        done: Finished runs.
        seconds: Time of the others, one after another.
        measured: Whether the time comes from runs of this study.
    """

    runs: int = 0
    done: int = 0
    seconds: float = 0.0
    measured: bool = True


def whats_left(
    records: Iterable[Record],
    configs: Mapping[tuple[str, str, str], RunConfig],
    data: Mapping[tuple[str, str], Mapping[str, Any]],
) -> dict[tuple[str, str, str], Left]:
    """Runs, finished ones, and the seconds of the others, by data set, model and method; a run that cells share is one.

    Args:
        records: Of the study.
        configs: A configuration by data set, model and method.
        data: Facts about the study's data sets, by name and kind of runs.
    """
    records = each_run(records)
    speeds = _speeds(records)
    found: dict[tuple[str, str, str], Left] = {}
    for record in records:
        key = record.key
        part = (key.dataset, key.model, key.method)
        left = found.setdefault(part, Left())
        left.runs += 1
        if record.run is not None:
            left.done += 1
            continue
        config = configs[part]
        about = data[key.dataset, config.kind]
        speed = speeds.get(part[:2])
        left.measured &= speed is not None
        work = config.epochs * about["samples"].get("train", 0)
        left.seconds += work * (_seconds_a_sample(config, about) if speed is None else speed)
    return found


def _speeds(records: Iterable[Record]) -> dict[tuple[str, str], float]:
    """Seconds per sample and epoch of finished runs, by data set and model."""
    sums: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record.run is None or record.run.result is None or record.run.status != "finished":
            continue
        about = record.run.result.get("train", {})
        work = about.get("samples", 0) * about.get("epochs", 0)
        if work:
            sums.setdefault((record.key.dataset, record.key.model), []).append(
                record.run.result.get("seconds", 0.0) / work
            )
    return {part: sum(found) / len(found) for part, found in sums.items()}


def _seconds_a_sample(config: RunConfig, about: Mapping[str, Any]) -> float:
    if isinstance(config, TrainConfig):
        small = config.data.name in ("cifar100", "synthetic") or (config.image_size or 224) < 64
        gmacs = GMACS.get(config.model, GMACS["resnet50"])  # a model that is not listed counts as a ResNet-50
        return 6e9 * gmacs[0 if small else 1] / SUSTAINED
    # Forward and the gradient of the weights, two operations each; features need no gradient.
    return 4 * (about["features"] or 0) * about["nodes"] / PROBE_SPEED
