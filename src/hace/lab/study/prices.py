"""What a study costs, before it runs: by its own finished runs, or else by a rule of thumb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from hace.data import DATASETS
from hace.lab.models import SMALL_IMAGE
from hace.lab.runs.config import RunConfig, TrainConfig
from hace.lab.study.folder import StudyFolder
from hace.lab.study.records import Record, each_run

# Billions of multiply-adds per image, forward, as counted by torch: (at 32 px, at 224 px).
GMACS = {
    "resnet18": (0.556, 1.81),
    "resnet34": (1.16, 3.66),
    "resnet50": (1.30, 4.09),
    "convnext_tiny": (0.364, 4.46),
    "swin_tiny": (0.359, 4.49),
    "vit_base": (5.60, 17.6),
}
SUSTAINED = 50e12  # operations per second, of an ordinary accelerator
# Operations per second, of one core with instructions for bf16: ResNet-18 at 64 px, measured.
TRAIN_SPEED = 280e9
PROBE_SPEED = 50e9  # operations per second, of one thread of an ordinary processor
SECONDS_A_RUN = 0.3  # to read the data, evaluate the model and write the result
RULE = (
    f"by rule of thumb: training at {SUSTAINED / 1e12:.0f} TFLOP/s, an ordinary accelerator, or with device=cpu at "
    f"{TRAIN_SPEED / 1e9:.0f} GFLOP/s, one core with instructions for bf16; probes at "
    f"{PROBE_SPEED / 1e9:.0f} GFLOP/s, one thread; {SECONDS_A_RUN:g} s for what surrounds a run"
)


class Price(NamedTuple):
    """What the runs of a method cost, on one dataset with one model."""

    dataset: str
    model: str
    method: str
    runs: int
    done: int
    seconds: float  # of those that are left, one after another
    measured: bool  # whether finished runs tell; a rule of thumb otherwise


def prices(study: StudyFolder) -> list[Price]:
    """The prices of a study, by dataset, model and method."""
    configs = {}
    for configuration in study.configurations:
        key = configuration.key
        configs[key.dataset, key.model, key.method] = configuration.config
    records = each_run(study.records())
    speeds = _measured_speeds(records)
    rows = []
    for (dataset, model, method), config in configs.items():
        own = [r for r in records if (r.key.dataset, r.key.model, r.key.method) == (dataset, model, method)]
        missing = Counter((dataset, model, record.stage) for record in own if record.run is None)
        about = study.sets[dataset, config.kind]
        work = config.epochs * about["samples"].get("train", 0)
        rough = SECONDS_A_RUN + work * seconds_a_sample(config, about)
        each = {kind: work * speeds[kind] if kind in speeds else rough for kind in missing}
        seconds = sum(runs * each[kind] for kind, runs in missing.items())
        measured = all(kind in speeds for kind in missing)
        rows.append(Price(dataset, model, method, len(own), len(own) - missing.total(), seconds, measured))
    return rows


def _measured_speeds(records: Sequence[Record]) -> dict[tuple[str, ...], float]:
    """Seconds per sample and epoch of finished runs, by dataset, model and stage."""
    speeds: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        if record.status == "finished":
            about = record.result.get("train", {})
            work = about.get("samples", 0) * about.get("epochs", 0)
            kind = (record.key.dataset, record.key.model, record.stage)
            speeds.setdefault(kind, []).append(record.result.get("seconds", 0.0) / max(work, 1))
    return {kind: mean(values) for kind, values in speeds.items()}


def seconds_a_sample(config: RunConfig, about: Mapping[str, Any]) -> float:
    """Seconds per sample and epoch, by rule of thumb."""
    if isinstance(config, TrainConfig):
        side = config.image_size or DATASETS[config.data.name].size or 224
        at_32, at_224 = GMACS.get(config.model, GMACS["resnet50"])  # others count as a ResNet-50
        gmacs = at_32 * (side / 32) ** 2 if side <= SMALL_IMAGE else at_224 * (side / 224) ** 2
        return 6e9 * gmacs / (TRAIN_SPEED if config.device == "cpu" else SUSTAINED)
    # Forward and the gradient of the weights, two operations each; features need no gradient.
    return 4 * (about["features"] or 0) * about["nodes"] / PROBE_SPEED
