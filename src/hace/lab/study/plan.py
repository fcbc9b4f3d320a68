"""From presets, a user's choices and the data to the configurations of a study."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hace.data import DATASETS
from hace.errors import ConfigError, nearest
from hace.lab.models import check_model_name
from hace.lab.runs.config import DataConfig, ProbeConfig, RunConfig, TrainConfig
from hace.lab.study.configurations import (
    Candidate,
    Configuration,
    ConfigurationKey,
    dealt_candidates,
    only,
    rate_candidates,
)
from hace.lab.study.presets import LabelGrid, Method, Preset, behind, find_method
from hace.settings import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, Config, Rule, from_dict, setting

GIVEN_BY = {"probe": "features", "train": "data_root"}  # the choice that has the data of a kind of runs
_DATA = ("features", "data_root", "hierarchy", "options")
_FLAGS = {"options": "-o", "settings": "--set"}  # other flags are named as the choice
_PERCENT = Rule("0 or from 1 to less than 100, in percent", lambda v: v == 0 or 1 <= v < 100)
_OF_THE_GRID = {
    "data": "Use features, data_root, hierarchy and options.",
    "loss": "Use methods or only.",
    "seed": "Use seeds or only.",
    "lr": "Use rates, base_rate or only.",
    "epochs": "Use epochs_scale.",
    "model": "Use models.",
    "validation": "The data's validation split chooses, or 10% of the training samples.",
    "evaluate": "Searches are judged on held-out samples, final runs on the test samples.",
    "keep": "Final runs keep their weights.",
}


@dataclass(frozen=True, kw_only=True)
class Choices(Config):
    """The data of a study, and what a user changes of its preset.

    Attributes:
        features: Features by dataset: a folder of `hace features`, or a file.
        data_root: Images by dataset: a folder or a manifest.
        hierarchy: Hierarchies to use in place of a dataset's own.
        options: Options of the data: test=0.2 for every dataset that has the option, birds.test=0.2 for one.
        only: Part of the study to run: method=hace,cross_entropy dataset=cifar100; also model, dilution, pairing, seed, labels.
        methods: Methods, instead of the preset's: their keys, or losses with parameters such as hace:dilution=0.3.
        models: Architectures to train, instead of the preset's: any timm name.
        rates: Learning rates, instead of a fair study's.
        decays: Weight decays to search with every rate, instead of a fair study's.
        widen: Most rates to add on each side, for all methods, while any of them picks the edge; 0 keeps the grid.
        search_once: Search at the first seed only (default: every seed searches); at least halves the runs.
        choose_by: Labels by which held-out samples choose a probe's rate: truth (default), or labels, the coarse and wrong
            ones of training.
        base_rate: Base rate of the paper's pairings, or factor of a fair study's rates.
        seeds: Number of seeds, instead of the preset's.
        epochs_scale: Factor for the epochs of every run.
        settings: Other settings of all runs: batch_size=64 precision=bf16.
        shares: Percent of coarse labels (mixed-labels) or wrong labels (noisy-labels).
        fine: Labels per class (low-shot).
        coarse_to: Level of the coarse labels: parent (default), top, or a level by number or name.
    """

    features: Mapping[str, str] = setting({})
    data_root: Mapping[str, str] = setting({})
    hierarchy: Mapping[str, str] = setting({})
    options: Mapping[str, Any] = setting({})
    only: Mapping[str, str] = setting({})
    methods: tuple[str, ...] | None = setting(None)
    models: tuple[str, ...] | None = setting(None)
    rates: tuple[float, ...] | None = setting(None, POSITIVE)
    decays: tuple[float, ...] | None = setting(None, AT_LEAST_ZERO)
    widen: int | None = setting(None, AT_LEAST_ZERO)
    search_once: bool = setting(False)
    choose_by: Literal["truth", "labels"] = setting("truth")
    base_rate: float | None = setting(None, POSITIVE)
    seeds: int | None = setting(None, AT_LEAST_ONE)
    epochs_scale: float = setting(1.0, POSITIVE)
    settings: Mapping[str, Any] = setting({})
    shares: tuple[float, ...] | None = setting(None, _PERCENT)
    fine: tuple[int, ...] | None = setting(None, AT_LEAST_ONE)
    coarse_to: int | str | None = setting(None)

    def conflicts(self) -> list[str]:
        """Settings that the grid has."""
        remedies = {name: _OF_THE_GRID.get(name.split(".")[0]) for name in self.settings}
        return [f"settings: {name} is set by the study grid. {r}" for name, r in remedies.items() if r]

    def labels(self, preset: Preset) -> LabelGrid:
        """What is known of the labels in each part of a preset."""
        grid = preset.labels
        if self.shares is not None:
            shares = tuple(share / 100 for share in self.shares)
            grid = replace(grid, coarse=grid.coarse and shares, wrong=grid.wrong and shares)
        if self.fine is not None:
            grid = replace(grid, fine=grid.fine and self.fine)
        return grid if self.coarse_to is None else replace(grid, to=self.coarse_to)

    def changed(self) -> dict[str, Any]:
        """What differs from the defaults, but for the data: the "choices" of study.json."""
        document = self.to_dict()
        defaults = Choices().to_dict()
        return {k: document[k] for k, v in defaults.items() if k not in _DATA and document[k] != v}

    def command(self, preset: str) -> str:
        """The command that makes a study, with PATH for the data."""
        words = ["hace", "study", *preset.split()]
        paths = {name: dict.fromkeys(getattr(self, name), "PATH") for name in ("features", "data_root")}
        trees = {d: "PATH" if Path(tree).exists() else tree for d, tree in self.hierarchy.items()}
        given = {**paths, "hierarchy": trees, "options": self.options, **self.changed()}
        for name, value in given.items():
            if isinstance(value, Mapping):
                words += [word for k, v in value.items() for word in (_flag(name), f"{k}={_written(v)}")]
            else:
                words += [_flag(name)] if value is True else [_flag(name), _written(value)]
        return shlex.join([*words, "--out", "STUDY"])

    def data(self, name: str, kind: str) -> DataConfig | None:
        """The data of a dataset; None without a path."""
        root = getattr(self, GIVEN_BY[kind]).get(name)
        if root is None:
            return None
        if kind == "probe":
            what = "features"
        elif name in DATASETS:
            what = name
        else:
            what = "folders" if Path(root).is_dir() else "manifest"
        hierarchy = self.hierarchy.get(name)
        if hierarchy is not None and Path(hierarchy).exists():  # otherwise a name that comes with hace
            hierarchy = str(Path(hierarchy).resolve())
        own = {}
        for key in sorted(self.options, key=lambda key: "." in key):  # those that name the dataset come last
            owner, _, option = key.rpartition(".")
            if owner in ("", name) and option in DATASETS[what].options:
                own[option] = self.options[key]
        return DataConfig(what, root=str(Path(root).resolve()), hierarchy=hierarchy, options=own)


def _flag(choice: str) -> str:
    return _FLAGS.get(choice, f"--{choice.replace('_', '-')}")


def _written(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_written, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


class StudyPlan(NamedTuple):
    """A study before it starts."""

    preset: str  # the names of its presets
    configurations: list[Configuration]
    data: dict[tuple[str, str], DataConfig]  # by name and kind of runs
    missing: tuple[str, ...] = ()  # the options that would name the datasets without a path


def make_plan(
    presets: Mapping[str, Preset], choices: Choices | None = None, *, absent: bool = False
) -> StudyPlan:
    """The configurations of a preset, or of several in one study.

    Args:
        presets: By name.
        choices: The data, and what a user changes.
        absent: Whether public data without a path count, at their published size.
    """
    choices = choices or Choices()
    _reject_unused_options(choices, presets)
    by_key: dict[ConfigurationKey, Configuration] = {}
    data: dict[tuple[str, str], DataConfig] = {}
    missing: list[str] = []
    named = {dataset for preset in presets.values() for dataset in (*preset.datasets, *preset.reserved)}
    for name, preset in presets.items():
        sources, lacking = _data(name, preset, choices, named, absent)
        missing += lacking
        for dataset, source in sources.items():
            data[dataset, preset.kind] = source
            for configuration in _configurations(preset, choices, dataset, source):
                by_key.setdefault(configuration.key, configuration)  # presets may have it in common
    _reject_unknown_datasets(choices, {preset.kind for preset in presets.values()}, data)
    configurations = only(list(by_key.values()), choices.only)
    if not configurations:
        raise ConfigError(
            "A study must have at least one run. Got none. `hace study --list` shows what can be selected."
        )
    used = {(configuration.key.dataset, configuration.config.kind) for configuration in configurations}
    data = {place: source for place, source in data.items() if place in used}
    return StudyPlan(" ".join(presets), configurations, data, tuple(dict.fromkeys(missing)))


def _data(
    name: str, preset: Preset, choices: Choices, named: Collection[str], absent: bool
) -> tuple[dict[str, DataConfig], list[str]]:
    """The datasets of a preset and of the user that have a path; and the options that would give the others.

    Datasets that presets name belong to those presets alone; all others are the user's and belong to every preset. They
    replace synthetic ones.
    """
    option = _flag(GIVEN_BY[preset.kind])
    own = [dataset for dataset in getattr(choices, GIVEN_BY[preset.kind]) if dataset not in named]
    listed = [dataset for dataset in preset.datasets if not own or dataset not in preset.data]
    wanted = {d: preset.data.get(d) or choices.data(d, preset.kind) for d in [*listed, *own]}
    lacking = [f"{option} {dataset}=" for dataset, source in wanted.items() if source is None]
    sources = {dataset: source for dataset, source in wanted.items() if source is not None}
    if absent and not sources:
        sources = {d: DataConfig("features" if preset.kind == "probe" else d) for d in wanted}
    if not sources:
        raise ConfigError(
            f"{name} has no data. Give {GIVEN_BY[preset.kind]} of {', '.join(preset.datasets)} or of your own data: "
            f"`{option} NAME=PATH`."
        )
    return sources, lacking


def _reject_unused_options(choices: Choices, presets: Mapping[str, Preset]) -> None:
    """Refuse a choice that none of the presets has a use for, and names that timm does not know."""
    grids = [preset.labels for preset in presets.values()]
    coarse = any(grid.coarse for grid in grids)
    few = any(grid.fine for grid in grids)
    wrong = any(grid.wrong for grid in grids)
    fair = [preset for preset in presets.values() if preset.fixed is None]
    trained = any(preset.kind == "train" for preset in presets.values())
    probed = all(preset.kind == "probe" for preset in fair)
    for name, is_used, studies in (
        ("shares", coarse or wrong, "mixed-labels or noisy-labels"),
        ("fine", few, "low-shot"),
        ("coarse_to", coarse or few, "mixed-labels or low-shot"),
        ("models", trained, "paper-train, fair-end-to-end or another study that trains"),
        ("rates", fair or not presets, "a fair study: the paper's follow from base_rate"),
        ("choose_by", probed, "a study of probes"),
    ):
        if getattr(choices, name) not in (None, "truth") and not is_used:
            raise ConfigError(f"{name} must come with {studies}. Got {', '.join(presets)}.")
    for model in choices.models or ():
        check_model_name(model)


def _reject_unknown_datasets(
    choices: Choices, kinds: Collection[str], data: Mapping[tuple[str, str], DataConfig]
) -> None:
    """Refuse a hierarchy or an option of data that the study does not have."""
    given = {(name, kind) for kind in kinds for name in getattr(choices, GIVEN_BY[kind])}
    names = sorted({name for name, _ in given})
    options = [(place[0], DATASETS[config.name].options) for place, config in data.items() if place in given]
    owners = [("hierarchy", name, name) for name in choices.hierarchy]
    owners += [("options", key, key.rpartition(".")[0]) for key in choices.options]
    for what, key, owner in owners:
        if owner not in names and (owner or not options):
            ways = " or ".join(f"`{_flag(GIVEN_BY[kind])} {owner or 'NAME'}=PATH`" for kind in sorted(kinds))
            likely = nearest(owner, names)
            raise ConfigError(f"{what} must name data that the study has. Got {key!r}.{likely} Give {ways}.")
    for key in choices.options:
        _reject_unknown_option(key, options)


def _reject_unknown_option(key: str, options: Sequence[tuple[str, Collection[str]]]) -> None:
    """Refuse an option that no dataset has; `options` has those of each."""
    owner, _, option = key.rpartition(".")
    known = [(name, own) for name, own in options if owner in ("", name)]
    if any(option in own for _, own in known):
        return
    words = "; ".join(f"{name} has {', '.join(own) or 'none'}" for name, own in known)
    likely = nearest(option, {other for _, own in known for other in own})
    raise ConfigError(f"options must be options of the study's data. Got {option!r}: {words}.{likely}")


def _configurations(
    preset: Preset, choices: Choices, dataset: str, source: DataConfig
) -> Iterator[Configuration]:
    """The configurations of a preset on a dataset."""
    methods = [find_method(text) for text in choices.methods or preset.methods]
    models = (choices.models or preset.models) if preset.kind == "train" else (behind(source),)
    seeds = range(choices.seeds or preset.seeds_on(dataset))
    for model in models:
        grid = _Grid(preset, choices, dataset, model)
        base = grid.base(source)
        for labels in choices.labels(preset).situations():
            known = replace(base, data=replace(source, labels=labels))
            for method, seed in product(methods, seeds):
                yield from grid.configurations(method, seed, known)


@dataclass(frozen=True)
class _Grid:
    """A preset on one dataset with one model, with what a user changes of it."""

    preset: Preset
    choices: Choices
    dataset: str
    model: str

    def base(self, data: DataConfig) -> RunConfig:
        """What all runs share, at the base rate."""
        base = self._probe(data) if self.preset.kind == "probe" else self._training(data)
        settings = self.choices.settings
        return from_dict(type(base), {**base.to_dict(), **settings}) if settings else base

    def _probe(self, data: DataConfig) -> ProbeConfig:
        """The configuration of a probe."""
        preset = self.preset
        choices = self.choices
        return ProbeConfig(
            data=data,
            lr=choices.base_rate or preset.lr,
            epochs=max(1, round(preset.epochs * choices.epochs_scale)),
            optimizer=preset.optimizer,
            start=preset.start,
        )

    def _training(self, data: DataConfig) -> TrainConfig:
        """The configuration of a training, from the recipe of the preset."""
        preset = self.preset
        choices = self.choices
        if preset.recipe is None:
            raise ConfigError(
                f"A preset of end-to-end training must have a recipe. Got none: {preset.title!r}."
            )
        recipe = preset.recipe(self.dataset, self.model)
        epochs = max(1, round(recipe.epochs * choices.epochs_scale))
        return replace(
            recipe,
            data=data,
            lr=choices.base_rate or recipe.lr,
            epochs=epochs,
            warmup_epochs=min(round(recipe.warmup_epochs * choices.epochs_scale), epochs - 1),
        )

    def configurations(self, method: Method, seed: int, base: RunConfig) -> Iterator[Configuration]:
        """Those of a method at a seed: one per dilution, or one per fixed run. `base` says what is known of the labels."""
        preset = self.preset
        choices = self.choices
        config = _with_method(base, method, seed)
        for dilution, pairing, rates in self._rows(method, base.lr):
            candidates = self._candidates(method, rates)
            shares_search = len(candidates) > 1 and (preset.search_once or choices.search_once)
            yield Configuration(
                key=ConfigurationKey(
                    preset.protocol,
                    self.dataset,
                    self.model,
                    method.key,
                    dilution,
                    pairing,
                    seed,
                    base.data.labels.text,
                ),
                config=replace(config, loss=method.loss_at(dilution if method.diluted else None)),
                candidates=candidates,
                widen=self._widen(rates),
                search_seed=0 if shares_search else None,
                choose_by=choices.choose_by,
            )

    def _rows(self, method: Method, lr: float) -> list[tuple[float | None, str | None, tuple[float, ...]]]:
        """Dilution, pairing and rates of each configuration."""
        preset = self.preset
        if preset.fixed is not None:
            return [(run.dilution, run.pairing, (run.lr,)) for run in preset.fixed(method.diluted, lr)]
        rates = self.choices.rates or [lr * rate for rate in preset.rates]
        scaled = tuple(rate * method.rate_factor for rate in rates)
        dilutions = preset.dilutions if method.diluted else (None,)
        return [(dilution, None, scaled) for dilution in dilutions]

    def _candidates(self, method: Method, rates: tuple[float, ...]) -> tuple[Candidate, ...]:
        if self.preset.fixed is not None:
            return rate_candidates(rates)
        candidates = rate_candidates(rates, self.choices.decays or self.preset.decays)
        return dealt_candidates(candidates, method.tuned) if method.tuned else candidates

    def _widen(self, rates: tuple[float, ...]) -> tuple[int, int]:
        """How many rates a search may add on each side."""
        if self.preset.fixed is not None or len(set(rates)) <= 2:
            return 0, 0
        steps = self.choices.widen
        if steps is None:
            steps = self.preset.widens_on(self.dataset)
        return steps, steps


def _with_method(base: RunConfig, method: Method, seed: int) -> RunConfig:
    """A run of a method at a seed, all but its loss."""
    labels = base.data.labels
    data = replace(
        base.data,
        shuffle=seed if method.shuffled else base.data.shuffle,
        induce=method.induced or base.data.induce,
        labels=replace(labels, drop=labels.drop or method.drops),
    )
    config = replace(base, data=data, seed=seed)
    if method.head is None:
        return config
    if isinstance(config, ProbeConfig):
        return replace(config, head=method.head, start="auto")  # a hyperbolic layer cannot start from zeros
    return replace(config, head=method.head)
