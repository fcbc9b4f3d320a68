"""From a preset and a user's choices to the cells of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hace.errors import ConfigError, nearest
from hace.experiments.config import DataConfig, ProbeConfig, RunConfig
from hace.experiments.grid import Cell, Place, only
from hace.experiments.methods import Method, methods
from hace.experiments.presets import DINOV2, PAPER_PROBE_RATE, Preset, find_preset
from hace.experiments.recipes import DATASETS, PAIRINGS, learning_rates
from hace.experiments.records import CellKey
from hace.experiments.train_config import paper_config


@dataclass(frozen=True)
class Choices:
    """What a user changes of a preset, and where the data lie.

    Attributes:
        place: Where the data lie.
        only: Parts of the grid, by part of a cell: {"method": "hace,sce"}.
        methods: In place of the preset's.
        rates: In place of the preset's.
        seeds: In place of the preset's.
        epochs_scale: Times the epochs of every run.
    """

    place: Place = field(default_factory=Place)
    only: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] | None = None
    rates: tuple[float, ...] | None = None
    seeds: int | None = None
    epochs_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"--seeds must be at least 1, got {self.seeds}.")
        if not 0 < self.epochs_scale < float("inf"):
            raise ConfigError(f"--epochs-scale must be more than 0, got {self.epochs_scale:g}.")
        if self.rates is not None and not all(rate > 0 for rate in self.rates):
            raise ConfigError(f"--rates must be more than 0, got {', '.join(f'{r:g}' for r in self.rates)}.")


class Plan(NamedTuple):
    """The cells of a study, its data by name, and the preset's data sets that nobody gave a place for."""

    preset: str
    cells: list[Cell]
    data: dict[str, DataConfig]
    missing: tuple[str, ...]


def make_plan(name: str, choices: Choices | None = None) -> Plan:
    """The cells of a preset.

    Args:
        name: A key of PRESETS.
        choices: What to change of it, and where the data lie.

    Raises:
        ConfigError: There is no such preset, method or part, or no data.

    Example:
        >>> plan = make_plan("demo", Choices(only={"method": "hace,sce"}, seeds=2))
        >>> len(plan.cells), plan.cells[0].key.method, len(plan.cells[0].rates)
        (4, 'sce', 8)
    """
    preset, choices = find_preset(name), choices or Choices()
    data, missing = _data(name, preset, choices.place)
    rows = methods(choices.methods or preset.methods)
    if choices.rates is not None and preset.protocol == "paper":
        raise ConfigError(f"--rates: {name} has the paper's rates. Take a fair study to choose others.")
    cells: list[Cell] = []
    for dataset, source in data.items():
        models = preset.models if preset.kind == "train" else (behind(source),)
        for model in models:
            base = _base(preset, dataset, model, source, choices.epochs_scale)
            for method in rows:
                for seed in range(choices.seeds or preset.seeds):
                    cells += _cells(preset, choices, dataset, model, method, seed, base)
    cells = only(cells, choices.only)
    return Plan(
        name, cells, {k: v for k, v in data.items() if any(c.key.dataset == k for c in cells)}, missing
    )


def _data(name: str, preset: Preset, place: Place) -> tuple[dict[str, DataConfig], tuple[str, ...]]:
    """The data sets of a study: those of the preset and of the user for which there is a place."""
    option = "--features" if preset.kind == "probe" else "--data-root"
    own = [
        d for d in place.given(preset.kind) if d not in DATASETS
    ]  # the paper's others are not this study's
    asked = [*preset.datasets, *own]
    found = {d: preset.data.get(d) or place.data(d, preset.kind) for d in asked}
    there = {d: source for d, source in found.items() if source is not None}
    if not there:
        raise ConfigError(
            f"{name} has no data: say where they lie, with {' '.join(f'{option} {d}=PATH' for d in preset.datasets)}, or "
            f"with {option} NAME=PATH for data of your own."
        )
    stray = [d for d in place.hierarchies if d not in place.given(preset.kind)]
    if stray:
        raise ConfigError(
            f"--hierarchy {stray[0]}=...: there is no {option} {stray[0]}=PATH.{nearest(stray[0], there)}"
        )
    return there, tuple(d for d, source in found.items() if source is None)


def behind(data: DataConfig) -> str:
    """The model behind features, as tables name it."""
    if data.name == "features" and data.root is not None and Path(data.root).is_dir():
        from hace.experiments.feature_store import FeatureStore

        model = FeatureStore(data.root).manifest["model"]["name"]
        return DINOV2 if model.startswith("vit_large_patch14_dinov2") else model
    return "features"


def _base(preset: Preset, dataset: str, model: str, data: DataConfig, scale: float) -> RunConfig:
    """The configuration that all runs of a data set and model share; its rate is the base rate."""
    if preset.kind == "probe":
        rate = PAPER_PROBE_RATE if preset.protocol == "paper" else 1.0
        return ProbeConfig(data=data, lr=rate, epochs=_scaled(preset.epochs, scale))
    base = paper_config(dataset if dataset in DATASETS else "nabirds", model, "sce")
    epochs = _scaled(base.epochs, scale)
    warmup = min(round(base.warmup_epochs * scale), epochs - 1)
    return replace(base, data=data, epochs=epochs, warmup_epochs=warmup)


def _scaled(epochs: int, scale: float) -> int:
    return max(1, round(epochs * scale))


def _cells(
    preset: Preset,
    choices: Choices,
    dataset: str,
    model: str,
    method: Method,
    seed: int,
    base: RunConfig,
) -> Iterator[Cell]:
    """The cells of a method and a seed."""
    if preset.protocol == "fair":
        grid = choices.rates or tuple(rate * base.lr for rate in preset.rates)
        rows = [(d, None, grid) for d in (preset.dilutions if method.diluted else (None,))]
    else:
        rows = _paper_rows(method, preset.dilutions, base.lr)
    for dilution, pairing, rates in rows:
        key = CellKey(preset.protocol, dataset, model, method.key, dilution, pairing, seed)
        loss = method.loss_at(dilution if method.diluted else None)
        data = replace(base.data, shuffle=seed) if method.shuffled else base.data
        yield Cell(key, replace(base, data=data, loss=loss, seed=seed), tuple(rates))


def _paper_rows(
    method: Method, dilutions: Sequence[float], base: float
) -> list[tuple[float | None, str | None, tuple[float, ...]]]:
    """Dilution, pairing and rate of the paper's runs: six of a method with a dilution, four of others.

    Where a method has none, the dilution is that of the HACE run it is paired with; the run at the base rate belongs to all.
    """
    like = "hace" if method.diluted else "sce"
    rows: list[tuple[float | None, str | None, tuple[float, ...]]] = [
        (d, pairing, (learning_rates(like, base, d, pairing),))
        for pairing in (PAIRINGS if method.diluted else PAIRINGS[:1])
        for d in dilutions
    ]
    return rows if method.diluted else [*rows, (None, "adjusted", (base,))]
