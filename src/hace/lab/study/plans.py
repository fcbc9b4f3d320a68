"""From a preset and a user's choices to the cells of a study."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hace.errors import ConfigError
from hace.lab.models import check_model_name
from hace.lab.runs.config import DataConfig, ProbeConfig, RunConfig
from hace.lab.runs.settings import from_dict
from hace.lab.study.cells import Cell, CellKey, dealt_candidates, only, rate_candidates
from hace.lab.study.locations import OPTIONS, Locations, refuse_stray
from hace.lab.study.methods import Method, methods
from hace.lab.study.naming import behind
from hace.lab.study.presets import LabelGrid, Preset

_OF_THE_GRID = {
    "data": "Use --features, --data-root, --hierarchy and -o.",
    "loss": "Use --methods or --only.",
    "seed": "Use --seeds or --only.",
    "lr": "Use --rates or --only.",
    "epochs": "Use --epochs-scale.",
    "model": "Use --models.",
    "validation": "The data's validation split chooses, or 10 % of the training samples.",
    "evaluate": "Searches are judged on held-out samples, final runs on the test samples.",
    "keep": "Final runs keep their weights.",
}


@dataclass(frozen=True)
class Choices:
    """What a user changes of a preset, and the paths of the data.

    Attributes:
        locations: Paths of the data.
        only: Values of parts of the cells to keep: {"method": "hace,sce"}.
        methods: Instead of the preset's.
        models: Architectures of end-to-end training, instead of the preset's.
        rates: Instead of the preset's.
        decays: Weight decays, instead of the preset's.
        widen: How many rates a search may add on each side while one chooses the edge, instead of the preset's.
        search_once: Whether the search of seed 0 chooses for all seeds, also where the preset does not say so.
        shares: Shares of coarse or wrong labels, instead of the preset's.
        fine: Known labels per class, instead of the preset's.
        coarse_to: What coarse labels are known to, instead of their parent.
        seeds: Instead of the preset's.
        epochs_scale: Multiplies the epochs of every run.
        settings: Other settings of every run, such as {"batch_size": 64} or {"precision": "bf16"}.
    """

    locations: Locations = field(default_factory=Locations)
    only: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    rates: tuple[float, ...] | None = None
    decays: tuple[float, ...] | None = None
    widen: int | None = None
    search_once: bool = False
    shares: tuple[float, ...] | None = None
    fine: tuple[int, ...] | None = None
    coarse_to: int | str | None = None
    seeds: int | None = None
    epochs_scale: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.settings:
            if remedy := _OF_THE_GRID.get(name.split(".")[0]):
                raise ConfigError(f"--set {name} is set by the study grid. {remedy}")
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"--seeds must be at least 1. Got {self.seeds}.")
        if not 0 < self.epochs_scale < float("inf"):
            raise ConfigError(f"--epochs-scale must be more than 0. Got {self.epochs_scale:g}.")
        if self.rates is not None and not all(rate > 0 for rate in self.rates):
            raise ConfigError(f"--rates must be more than 0. Got {', '.join(f'{r:g}' for r in self.rates)}.")
        if self.decays is not None and not all(decay >= 0 for decay in self.decays):
            raise ConfigError(f"--decays must be 0 or more. Got {', '.join(f'{d:g}' for d in self.decays)}.")
        if self.widen is not None and self.widen < 0:
            raise ConfigError(f"--widen must be 0 or more. Got {self.widen}.")
        for percent in (100 * share for share in self.shares or ()):
            if percent != 0 and not 1 <= percent < 100:
                meant = f": did you mean {100 * percent:g}?" if 0 < percent < 1 else "."
                raise ConfigError(
                    f"--shares must be percentages, 0 or from 1 to less than 100. Got {percent:g}{meant}"
                )
        if not all(isinstance(k, int) and k >= 1 for k in self.fine or ()):
            raise ConfigError(f"--fine must be whole numbers of at least 1. Got {str(self.fine)[1:-1]}.")

    def grid(self, preset: Preset) -> LabelGrid:
        """What is known of the labels in each part of a preset."""
        grid = preset.labels
        if self.shares is not None:
            grid = replace(grid, coarse=grid.coarse and self.shares, wrong=grid.wrong and self.shares)
        if self.fine is not None:
            grid = replace(grid, fine=grid.fine and self.fine)
        return grid if self.coarse_to is None else replace(grid, to=self.coarse_to)


class StudyPlan(NamedTuple):
    """A study before it starts.

    Attributes:
        preset: The names of its presets.
        cells: Its cells.
        data: Its data, by name and kind of runs.
        missing: The options that would name the data sets without a path.
    """

    preset: str
    cells: list[Cell]
    data: dict[tuple[str, str], DataConfig]
    missing: tuple[str, ...]


def make_plan(
    presets: Mapping[str, Preset], choices: Choices | None = None, *, absent: bool = False
) -> StudyPlan:
    """The cells of a preset, or of several in one study.

    Args:
        presets: By name: `PRESETS`, `hace.paper.STUDIES`, parts of them, or your own.
        choices: What to change, and where the data are.
        absent: Whether to plan a preset without data all the same, to see what it would cost.

    Raises:
        ConfigError: No such method or part, no data, or nothing selected.

    Example:
        >>> from hace.lab.study.presets import find_presets
        >>> plan = make_plan(find_presets("demo"), Choices(only={"method": "hace,sce"}, seeds=2))
        >>> len(plan.cells), plan.cells[0].key.method, len(plan.cells[0].rates)
        (8, 'sce', 3)
    """
    choices = choices or Choices()
    if choices.rates is not None and all(preset.fixed is not None for preset in presets.values()):
        raise ConfigError(
            f"--rates must be left out: {next(iter(presets))} has fixed rates. Use a fair study to choose others."
        )
    _refuse_idle(choices, presets)
    found: dict[CellKey, Cell] = {}
    data: dict[tuple[str, str], DataConfig] = {}
    missing: list[str] = []
    named = {dataset for preset in presets.values() for dataset in (*preset.datasets, *preset.reserved)}
    for name, preset in presets.items():
        there, lacking = _data(name, preset, choices.locations, named, absent)
        missing += lacking
        for dataset, source in there.items():
            data[dataset, preset.kind] = source
            for cell in _grid(preset, choices, dataset, source):
                found.setdefault(cell.key, cell)  # what two presets have in common is one cell
    refuse_stray(choices.locations, {preset.kind for preset in presets.values()}, data)
    cells = only(list(found.values()), choices.only)
    if not cells:
        raise ConfigError(
            "A study must have at least one run. Got none. `hace study --list` shows what can be selected."
        )
    used = {(cell.key.dataset, cell.config.kind) for cell in cells}
    kept = {key: source for key, source in data.items() if key in used}
    return StudyPlan(" ".join(presets), cells, kept, tuple(dict.fromkeys(missing)))


def _grid(preset: Preset, choices: Choices, dataset: str, source: DataConfig) -> Iterator[Cell]:
    """The cells of a preset on a data set."""
    rows = methods(choices.methods or preset.methods)
    models = preset.models if choices.models is None or preset.fixed is not None else choices.models
    for model in models if preset.kind == "train" else (behind(source),):
        base = _base(preset, dataset, model, source, choices)
        for labels in choices.grid(preset).situations():
            known = replace(base, data=replace(source, labels=labels))
            for method in rows:
                for seed in range(choices.seeds or preset.seeds_on(dataset)):
                    yield from method_cells(preset, choices, dataset, model, method, seed, known)


def _data(
    name: str, preset: Preset, locations: Locations, named: Collection[str], absent: bool
) -> tuple[dict[str, DataConfig], list[str]]:
    """The data sets of a preset and of the user that have a path; and the options that would give the others.

    Data sets that presets name belong to those presets alone; all others are the user's and belong to every preset. They
    replace synthetic ones.
    """
    option = OPTIONS[preset.kind]
    own = [d for d in locations.given(preset.kind) if d not in named]
    listed = [d for d in preset.datasets if not own or d not in preset.data]
    found = {d: preset.data.get(d) or locations.data(d, preset.kind) for d in [*listed, *own]}
    lacking = [f"{option} {d}=" for d, source in found.items() if source is None]
    there = {d: source for d, source in found.items() if source is not None}
    if absent and not there:
        there = {d: DataConfig("features" if preset.kind == "probe" else d) for d in found}
    if not there:
        raise ConfigError(
            f"{name} has no data. Give {' '.join(f'{option} {d}=PATH' for d in preset.datasets)}, or {option} NAME=PATH for "
            "your own."
        )
    return there, lacking


def _refuse_idle(choices: Choices, presets: Mapping[str, Preset]) -> None:
    """Refuse an option that none of the presets has a use for, and names that timm does not know."""
    grids = [preset.labels for preset in presets.values()]
    for option, value, fits, studies in (
        ("--shares", choices.shares, any(g.coarse or g.wrong for g in grids), "mixed-labels or noisy-labels"),
        ("--fine", choices.fine, any(g.fine for g in grids), "low-shot"),
        (
            "--coarse-to",
            choices.coarse_to,
            any(g.coarse or g.fine for g in grids),
            "mixed-labels or low-shot",
        ),
        (
            "--models",
            choices.models,
            any(p.kind == "train" and p.fixed is None for p in presets.values()),
            "fair-end-to-end or another study that trains and chooses its rates",
        ),
    ):
        if value is not None and not fits:
            raise ConfigError(f"{option} must come with {studies}. Got {', '.join(presets)}.")
    for model in choices.models or ():
        check_model_name(model)


def _base(preset: Preset, dataset: str, model: str, data: DataConfig, choices: Choices) -> RunConfig:
    """The configuration that all runs of a data set and model share, at the base rate."""
    scale = choices.epochs_scale
    if preset.kind == "probe":
        base = ProbeConfig(data=data, lr=preset.lr, epochs=_scaled(preset.epochs, scale), start=preset.start)
    else:
        if preset.recipe is None:
            raise ConfigError(
                f"A preset of end-to-end training must have a recipe. Got none for {preset.title!r}."
            )
        base = preset.recipe(dataset, model)
        epochs = _scaled(base.epochs, scale)
        warmup = min(round(base.warmup_epochs * scale), epochs - 1)
        base = replace(base, data=data, epochs=epochs, warmup_epochs=warmup)
    return from_dict(type(base), {**base.to_dict(), **choices.settings}) if choices.settings else base


def _scaled(epochs: int, scale: float) -> int:
    return max(1, round(epochs * scale))


def method_cells(
    preset: Preset,
    choices: Choices,
    dataset: str,
    model: str,
    method: Method,
    seed: int,
    base: RunConfig,
) -> Iterator[Cell]:
    """The cells of a method at a seed: one per dilution, or one per fixed run. `base` says what is known of the labels."""
    if preset.fixed is None:
        grid = tuple(r * method.rate_factor for r in choices.rates or [base.lr * r for r in preset.rates])
        rows = [(d, None, grid) for d in (preset.dilutions if method.diluted else (None,))]
    else:
        rows = [(run.dilution, run.pairing, (run.lr,)) for run in preset.fixed(method.diluted, base.lr)]
    for dilution, pairing, rates in rows:
        labels = base.data.labels
        key = CellKey(preset.protocol, dataset, model, method.key, dilution, pairing, seed, labels.text)
        loss = method.loss_at(dilution if method.diluted else None)
        shuffle = seed if method.shuffled else base.data.shuffle
        data = replace(base.data, shuffle=shuffle, induce=method.induced or base.data.induce)
        data = replace(data, labels=replace(labels, drop=True)) if method.drops else data
        decays = (choices.decays or preset.decays) if preset.fixed is None else ()
        candidates = rate_candidates(rates, decays)
        if method.tuned and preset.fixed is None:
            candidates = dealt_candidates(candidates, method.tuned)
        steps = preset.widens_on(dataset) if choices.widen is None else choices.widen
        widen = (steps, steps) if preset.fixed is None and len(set(rates)) > 2 else (0, 0)
        own = method.last_layer(base.kind)
        config = replace(base, data=data, loss=loss, seed=seed, **own)
        shared = 0 if len(candidates) > 1 and (preset.search_once or choices.search_once) else None
        yield Cell(key, config, candidates, widen=widen, search_seed=shared)
