"""The studies that `hace study` knows, as data: which methods, data sets, models, seeds and rates.

To add a study, add a row to `PRESETS`; to add a method, an entry to `hace.experiments.methods.METHODS`; to add an architecture,
its row in `hace.experiments.recipes`; to add a data set, `--features NAME=PATH` or `--data-root NAME=PATH`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from hace.errors import ConfigError, nearest
from hace.experiments.config import DataConfig, ProbeConfig, RunConfig
from hace.experiments.grid import Cell, Place, only
from hace.experiments.methods import CONTROLS, PAPER_METHODS, Method, methods
from hace.experiments.protocol import FAIR_RATES
from hace.experiments.recipes import DATASETS, DILUTIONS, PAIRINGS, RECIPES, learning_rates
from hace.experiments.records import CellKey
from hace.experiments.train_config import paper_config

NABIRDS_METHODS = tuple(key for key in PAPER_METHODS if key not in ("hace_soft10", "hace_soft30"))
TRAIN_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the recipe's: about the range that the paper's pairings span
PAPER_PROBE_RATE = 8.0
DINOV2 = "dinov2_large"  # as the paper's printed numbers call it

ASSUMPTIONS = (
    "Linear probes: the paper gives neither optimiser nor base rate nor epochs. Assumed: SGD with momentum 0.9, a cosine to "
    f"0, 30 epochs in batches of 256, and a base rate of {PAPER_PROBE_RATE:g}, where cross-entropy on unit vectors does well.",
    "Methods other than plain HACE and SCE: the paper does not say at which rates they ran. Assumed: every HACE variant has "
    "HACE's six runs (three dilutions, two pairings), every other method SCE's four.",
    "Fair protocol: each dilution is a row of its own with the full grid of rates; the report says which one was best on "
    "held-out samples.",
    "Shuffled tree: every seed has a permutation of its own.",
    "End-to-end training on data sets that the paper does not have takes the paper's recipe for NABirds.",
)


@dataclass(frozen=True)
class Preset:
    """A study.

    Attributes:
        title: What it is about, for `hace study --list`.
        kind: "probe" on frozen features, or "train" end to end.
        protocol: "paper" or "fair".
        methods: Keys of METHODS.
        datasets: Data sets; others come by `--features` and `--data-root`.
        models: Architectures of end-to-end training.
        seeds: How many: 0, 1, ...
        dilutions: Of methods that have one.
        rates: Of the fair protocol; times the recipe's in end-to-end training.
        data: Data sets that need no place, because they are made up.
        epochs: Of probes.
    """

    title: str
    kind: Literal["probe", "train"]
    protocol: Literal["paper", "fair"]
    methods: tuple[str, ...]
    datasets: tuple[str, ...] = DATASETS
    models: tuple[str, ...] = tuple(RECIPES)
    seeds: int = 1
    dilutions: tuple[float, ...] = DILUTIONS
    rates: tuple[float, ...] = FAIR_RATES
    data: Mapping[str, DataConfig] = field(default_factory=dict)
    epochs: int = 30


_DEMO = DataConfig("synthetic-features", options={"classes": 60, "signal": 0.8, "train": 20, "test": 30})
_PAIR = ("hace", "sce")

PRESETS: dict[str, Preset] = {
    "paper-end-to-end": Preset(
        "end to end, best to best: ten runs for each of 18 pairs of model and data set",
        "train",
        "paper",
        _PAIR,
    ),
    "paper-fgvc": Preset(
        "end to end on FGVC-Aircraft: HACE against SCE at each dilution and pairing of rates",
        "train",
        "paper",
        _PAIR,
        ("aircraft",),
    ),
    "paper-family": Preset(
        "families and manufacturers: ResNet-50 on FGVC-Aircraft, ten runs",
        "train",
        "paper",
        _PAIR,
        ("aircraft",),
        ("resnet50",),
    ),
    "paper-nabirds": Preset(
        "end to end on NABirds: eight methods", "train", "paper", NABIRDS_METHODS, ("nabirds",)
    ),
    "paper-probe": Preset(
        "linear probes: ten methods at each dilution and pairing of rates", "probe", "paper", PAPER_METHODS
    ),
    "fair-end-to-end": Preset(
        "end to end, fairly: HACE and SCE, the same rates, chosen on held-out samples",
        "train",
        "fair",
        _PAIR,
        seeds=3,
        rates=TRAIN_RATES,
    ),
    "fair-nabirds": Preset(
        "end to end on NABirds, fairly: eight methods",
        "train",
        "fair",
        NABIRDS_METHODS,
        ("nabirds",),
        seeds=3,
        rates=TRAIN_RATES,
    ),
    "fair-probe": Preset("linear probes, fairly: ten methods", "probe", "fair", PAPER_METHODS, seeds=5),
    "controls": Preset(
        "linear probes, fairly: HACE, SCE and the controls", "probe", "fair", (*_PAIR, *CONTROLS), seeds=5
    ),
    "demo": Preset(
        "made-up features, fairly: the paper's methods and the controls, in two minutes",
        "probe",
        "fair",
        (*PAPER_METHODS, *CONTROLS),
        ("synthetic",),
        seeds=3,
        dilutions=(0.5,),
        data={"synthetic": _DEMO},
        epochs=15,
    ),
}


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


def find_preset(name: str) -> Preset:
    """A preset by name.

    Raises:
        ConfigError: With the nearest one.
    """
    if name not in PRESETS:
        raise ConfigError(
            f"There is no study {name!r}. There are {', '.join(PRESETS)}.{nearest(name, PRESETS)}"
        )
    return PRESETS[name]


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
