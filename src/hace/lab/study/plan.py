"""From presets, a user's choices and the data to the configurations of a study."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hace.data import DATASETS, Dataset, Features
from hace.errors import ConfigError, DataError, HaceError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import leaf_counts
from hace.lab.models import SMALL_IMAGE, check_model_name
from hace.lab.runs.config import DataConfig, ProbeConfig, RunConfig, TrainConfig
from hace.lab.runs.samples import coarse_nodes, data_of, has_siblings, known_labels
from hace.lab.study.configurations import (
    HELD_OUT,
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
        only: A part of the study: method=hace,sce dataset=cifar100; also model, dilution, pairing, seed, labels.
        methods: Methods, instead of the preset's: their keys, or losses with parameters such as hace:dilution=0.3.
        models: Architectures to train, instead of the preset's: any timm name.
        rates: Learning rates, instead of a fair study's.
        decays: Weight decays to search with every rate, instead of a fair study's.
        widen: Rates to add on each side, for all methods, while any of them picks the edge; 0 keeps the grid.
        search_once: One search for all seeds, at the first (default: every seed chooses); half the runs, or less.
        choose_by: What held-out samples are judged by when a probe's rate is chosen: truth (default), or labels: those known
            in training, wrong and coarse ones too.
        base_rate: Base rate of the paper's pairings, or factor of a fair study's rates.
        seeds: Number of seeds, instead of the preset's.
        epochs_scale: Factor for the epochs of every run.
        settings: Other settings of all runs: batch_size=64 precision=bf16.
        shares: Of mixed-labels, percent known only coarsely; of noisy-labels, percent wrong.
        fine: Of low-shot, known labels per class.
        coarse_to: Level of coarse labels: parent (default), top, or a level by number or name.
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
        document, defaults = self.to_dict(), Choices().to_dict()
        return {k: document[k] for k, v in defaults.items() if k not in _DATA and document[k] != v}

    def command(self, preset: str) -> str:
        """The command that makes a study, with PATH for the data."""
        words = ["hace", "study", *preset.split()]
        paths = {name: dict.fromkeys(getattr(self, name), "PATH") for name in ("features", "data_root")}
        trees = {d: "PATH" if Path(tree).exists() else tree for d, tree in self.hierarchy.items()}
        given = {**paths, "hierarchy": trees, "options": self.options, **self.changed()}
        for name, value in given.items():
            words += [_flag(name)] if value != {} else []
            if isinstance(value, Mapping):
                words += [f"{k}={_written(v)}" for k, v in value.items()]
            elif value is not True:
                words.append(_written(value))
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
    """The configurations of a preset, or of several in one study."""
    choices = choices or Choices()
    _refuse_idle(choices, presets)
    found: dict[ConfigurationKey, Configuration] = {}
    data: dict[tuple[str, str], DataConfig] = {}
    missing: list[str] = []
    named = {dataset for preset in presets.values() for dataset in (*preset.datasets, *preset.reserved)}
    for name, preset in presets.items():
        there, lacking = _data(name, preset, choices, named, absent)
        missing += lacking
        for dataset, source in there.items():
            data[dataset, preset.kind] = source
            for configuration in _grid(preset, choices, dataset, source):
                found.setdefault(
                    configuration.key, configuration
                )  # what two presets have in common is one configuration
    _refuse_stray(choices, {preset.kind for preset in presets.values()}, data)
    configurations = only(list(found.values()), choices.only)
    if not configurations:
        raise ConfigError(
            "A study must have at least one run. Got none. `hace study --list` shows what can be selected."
        )
    used = {(configuration.key.dataset, configuration.config.kind) for configuration in configurations}
    kept = {key: source for key, source in data.items() if key in used}
    return StudyPlan(" ".join(presets), configurations, kept, tuple(dict.fromkeys(missing)))


def _data(
    name: str, preset: Preset, choices: Choices, named: Collection[str], absent: bool
) -> tuple[dict[str, DataConfig], list[str]]:
    """The datasets of a preset and of the user that have a path; and the options that would give the others.

    Datasets that presets name belong to those presets alone; all others are the user's and belong to every preset. They
    replace synthetic ones.
    """
    option = _flag(GIVEN_BY[preset.kind])
    own = [d for d in getattr(choices, GIVEN_BY[preset.kind]) if d not in named]
    listed = [d for d in preset.datasets if not own or d not in preset.data]
    found = {d: preset.data.get(d) or choices.data(d, preset.kind) for d in [*listed, *own]}
    lacking = [f"{option} {d}=" for d, source in found.items() if source is None]
    there = {d: source for d, source in found.items() if source is not None}
    if absent and not there:
        there = {d: DataConfig("features" if preset.kind == "probe" else d) for d in found}
    if not there:
        raise ConfigError(
            f"{name} has no data. Give {GIVEN_BY[preset.kind]} of {', '.join(preset.datasets)} or of your own data: "
            f"`{option} NAME=PATH`."
        )
    return there, lacking


def _refuse_idle(choices: Choices, presets: Mapping[str, Preset]) -> None:
    """Refuse a choice that none of the presets has a use for, and names that timm does not know."""
    grids = [preset.labels for preset in presets.values()]
    fair = [preset for preset in presets.values() if preset.fixed is None]
    trained = any(preset.kind == "train" for preset in presets.values())
    coarse, few, wrong = (any(getattr(grid, part) for grid in grids) for part in ("coarse", "fine", "wrong"))
    for name, fits, studies in (
        ("shares", coarse or wrong, "mixed-labels or noisy-labels"),
        ("fine", few, "low-shot"),
        ("coarse_to", coarse or few, "mixed-labels or low-shot"),
        ("models", trained, "paper-train, fair-end-to-end or another study that trains"),
        ("rates", fair or not presets, "a fair study: the paper's follow from base_rate"),
        ("choose_by", all(preset.kind == "probe" for preset in fair), "a study of probes"),
    ):
        if getattr(choices, name) not in (None, "truth") and not fits:
            raise ConfigError(f"{name} must come with {studies}. Got {', '.join(presets)}.")
    for model in choices.models or ():
        check_model_name(model)


def _refuse_stray(
    choices: Choices, kinds: Collection[str], data: Mapping[tuple[str, str], DataConfig]
) -> None:
    """Refuse a hierarchy or an option of data that the study does not have."""
    given = {(d, kind) for kind in kinds for d in getattr(choices, GIVEN_BY[kind])}
    own = [(place[0], DATASETS[config.name].options) for place, config in data.items() if place in given]
    names = sorted({name for name, _ in given})
    owners = [("hierarchy", name, name) for name in choices.hierarchy]
    owners += [("options", key, key.rpartition(".")[0]) for key in choices.options]
    for what, key, owner in owners:
        if owner not in names and (owner or not own):
            ways = " or ".join(f"`{_flag(GIVEN_BY[kind])} {owner or 'NAME'}=PATH`" for kind in sorted(kinds))
            likely = nearest(owner, names)
            raise ConfigError(f"{what} must name data that the study has. Got {key!r}.{likely} Give {ways}.")
    for key in choices.options:
        owner, _, option = key.rpartition(".")
        known = [(name, options) for name, options in own if owner in ("", name)]
        if not any(option in options for _, options in known):
            words = "; ".join(f"{name} has {', '.join(options) or 'none'}" for name, options in known)
            likely = nearest(option, {o for _, options in known for o in options})
            raise ConfigError(
                f"options must be options of the study's data. Got {option!r}: {words}.{likely}"
            )


def _grid(preset: Preset, choices: Choices, dataset: str, source: DataConfig) -> Iterator[Configuration]:
    """The configurations of a preset on a dataset."""
    rows = [find_method(text) for text in choices.methods or preset.methods]
    models = choices.models or preset.models
    for model in models if preset.kind == "train" else (behind(source),):
        base = _base(preset, dataset, model, source, choices)
        for labels in choices.labels(preset).situations():
            known = replace(base, data=replace(source, labels=labels))
            for method in rows:
                for seed in range(choices.seeds or preset.seeds_on(dataset)):
                    yield from _method_configurations(preset, choices, dataset, model, method, seed, known)


def _base(preset: Preset, dataset: str, model: str, data: DataConfig, choices: Choices) -> RunConfig:
    """The configuration that all runs of a dataset and model share, at the base rate."""
    scale = choices.epochs_scale
    if preset.kind == "probe":
        epochs = max(1, round(preset.epochs * scale))
        base = ProbeConfig(data=data, lr=choices.base_rate or preset.lr, epochs=epochs)
        base = replace(base, optimizer=preset.optimizer, start=preset.start)
    else:
        if preset.recipe is None:
            raise ConfigError(
                f"A preset of end-to-end training must have a recipe. Got none: {preset.title!r}."
            )
        base = preset.recipe(dataset, model)
        base = replace(base, lr=choices.base_rate or base.lr)
        epochs = max(1, round(base.epochs * scale))
        warmup = min(round(base.warmup_epochs * scale), epochs - 1)
        base = replace(base, data=data, epochs=epochs, warmup_epochs=warmup)
    return from_dict(type(base), {**base.to_dict(), **choices.settings}) if choices.settings else base


def _method_configurations(
    preset: Preset, choices: Choices, dataset: str, model: str, method: Method, seed: int, base: RunConfig
) -> Iterator[Configuration]:
    """The configurations of a method at a seed: one per dilution, or one per fixed run. `base` says what is known of the labels."""
    if preset.fixed is None:
        grid = tuple(r * method.rate_factor for r in choices.rates or [base.lr * r for r in preset.rates])
        rows = [(d, None, grid) for d in (preset.dilutions if method.diluted else (None,))]
    else:
        rows = [(run.dilution, run.pairing, (run.lr,)) for run in preset.fixed(method.diluted, base.lr)]
    labels = base.data.labels
    data = replace(
        base.data,
        shuffle=seed if method.shuffled else base.data.shuffle,
        induce=method.induced or base.data.induce,
        labels=replace(labels, drop=labels.drop or method.drops),
    )
    for dilution, pairing, rates in rows:
        key = ConfigurationKey(
            preset.protocol, dataset, model, method.key, dilution, pairing, seed, labels.text
        )
        decays = (choices.decays or preset.decays) if preset.fixed is None else ()
        candidates = rate_candidates(rates, decays)
        if method.tuned and preset.fixed is None:
            candidates = dealt_candidates(candidates, method.tuned)
        steps = preset.widens_on(dataset) if choices.widen is None else choices.widen
        widen = (steps, steps) if preset.fixed is None and len(set(rates)) > 2 else (0, 0)
        loss = method.loss_at(dilution if method.diluted else None)
        config = replace(base, data=data, loss=loss, seed=seed)
        if method.head is not None:  # a hyperbolic layer cannot start from zeros
            auto = {"start": "auto"} if preset.kind == "probe" else {}
            config = replace(config, head=method.head, **auto)
        shared = 0 if len(candidates) > 1 and (preset.search_once or choices.search_once) else None
        yield Configuration(key, config, candidates, None, widen, shared, choices.choose_by)


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
TRAIN_SPEED = (
    280e9  # operations per second, of one core with instructions for bf16: ResNet-18 at 64 px, measured
)
PROBE_SPEED = 50e9  # operations per second, of one thread of an ordinary processor
SECONDS_A_RUN = 0.3  # to read the data, evaluate the model and write the result
RULE = (
    f"by rule of thumb: training at {SUSTAINED / 1e12:.0f} TFLOP/s, an ordinary accelerator, or with device=cpu at "
    f"{TRAIN_SPEED / 1e9:.0f} GFLOP/s, one core with instructions for bf16; probes at "
    f"{PROBE_SPEED / 1e9:.0f} GFLOP/s, one thread; {SECONDS_A_RUN:g} s for what surrounds a run"
)
# Public datasets by classes, nodes and training samples: enough to price a study of them.
SIZES = {"cifar100": (100, 120, 50_000), "aircraft": (100, 201, 6_667), "nabirds": (555, 1_011, 23_929)}
DINOV2_FEATURES = 1024


class Survey:
    """The data of a plan: what a study records of each dataset, and why others cannot be used."""

    def __init__(self, data: Mapping[tuple[str, str], DataConfig]) -> None:
        self.usable: dict[tuple[str, str], dict[str, Any]] = {}  # for study.json, by name and kind of runs
        # Of features, the data with one sample per split: enough to see which runs share a pass.
        self.sources: dict[str, Dataset[Any]] = {}
        self.trees: dict[str, Hierarchy] = {}
        self.problems: dict[str, str] = {}  # why a dataset cannot be used
        # Labels to train on, and how many are those of the split "train".
        self._truth: dict[tuple[str, str], tuple[np.ndarray, int]] = {}
        for (name, kind), config in data.items():
            try:
                self.usable[name, kind] = self._look(name, kind, config)
            except HaceError as error:
                self.problems[name] = str(error)

    def document(self) -> dict[str, dict[str, Any]]:
        """The "data" of study.json: by name; the second kind of a dataset that has both is "also" there."""
        found: dict[str, dict[str, Any]] = {}
        for (name, _), about in self.usable.items():
            found[name] = {**found[name], "also": about} if name in found else about
        return found

    def resolved(self, configuration: Configuration) -> Configuration:
        """A configuration that says what its search holds out: the data's validation split if there is one, else a share."""
        if configuration.validation is not None:
            return configuration
        about = self.usable[configuration.key.dataset, configuration.config.kind]
        return replace(configuration, validation="split" if "val" in about["samples"] else HELD_OUT)

    def asked(self, plan: StudyPlan) -> StudyPlan:
        """The plan with the questions that its data leave open.

        Where training labels are at mixed levels already, it is whether to use or drop those, as they are. Elsewhere there is
        nothing to drop while all labels are known, and another tree, shuffled or induced, has no place for coarse labels.
        """
        for configuration in plan.configurations:
            if (tree := self.trees.get(configuration.key.dataset)) is not None:
                coarse_nodes(tree, configuration.config.data.labels.to)
        for (name, _), about in self.usable.items():
            if about.get("coarse") and about["coarse"] == about["samples"]["train"]:
                raise DataError(
                    f"{name} must have training samples labelled with a class. All are above the leaves."
                )
        configurations = [
            configuration for configuration in plan.configurations if self._is_open(configuration)
        ]
        left = {configuration.key.dataset for configuration in configurations}
        for configuration in plan.configurations:
            if configuration.key.dataset not in left and self._mixed(configuration):
                raise ConfigError(
                    f"shares must hold 0, the labels as they are: some training samples of {configuration.key.dataset} are labelled "
                    f"above the leaves already, and the study asks whether to use or drop those. Got no 0."
                )
        if not configurations:
            raise ConfigError(
                "A study must have at least one run. Got none: with all labels known there is nothing to drop, and labels "
                "that are coarse already are not made coarser. Change methods, shares or only."
            )
        self._count_changes(configurations)
        return plan._replace(configurations=configurations)

    def _count_changes(self, configurations: Iterable[Configuration]) -> None:
        """Note in `usable`, by the state of the labels, the share of training labels that it really changes, at seed 0: to
        another class, or to a node above several. A class alone under its parent keeps its labels.
        """
        for configuration in configurations:
            place, labels = (
                (configuration.key.dataset, configuration.config.kind),
                configuration.config.data.labels,
            )
            if place in self._truth and labels.text and not labels.drop:
                shares = self.usable[place].setdefault("changed", {})
                if labels.text not in shares:
                    h, (true, first) = self.trees[configuration.key.dataset], self._truth[place]
                    known = known_labels(true, h, labels, 0, first)
                    changed = known != true if labels.wrong else leaf_counts(h)[known] > 1
                    shares[labels.text] = float(changed.mean())

    def _is_open(self, configuration: Configuration) -> bool:
        """Whether a configuration asks something of its data."""
        data = configuration.config.data
        labels, other = data.labels, data.shuffle is not None or data.induce is not None
        known = not (labels.coarse or labels.fine is not None)
        idle = labels.coarse if self._mixed(configuration) else known and labels.drop
        return not idle and (not other or known or labels.drop)

    def _mixed(self, configuration: Configuration) -> bool:
        """Whether some training samples of a configuration's data are labelled above the leaves."""
        return bool(self.usable.get((configuration.key.dataset, configuration.config.kind), {}).get("coarse"))

    def notes(self) -> Iterable[str]:
        """The datasets whose validation split chooses, labels at mixed levels, and what made labels really change."""
        for (name, _), about in self.usable.items():
            samples = about["samples"]
            if samples.get("val"):
                yield f"{name}: its validation split ({samples['val']:,} samples) chooses under the fair protocol"
            if about.get("coarse"):
                yield f"{name}: {about['coarse']:,} of {samples['train']:,} training samples are labelled above the leaves"
            for state, share in about.get("changed", {}).items():
                what = "are wrong" if "wrong" in state else "leave the class open"
                note = f"{name}, {state}: {100 * share:.0f}% of the training labels {what}"
                alone = about["classes"] - about["siblings"] if "parent" in state else 0
                if alone:
                    note += f"; {alone:,} of {about['classes']:,} classes have no sibling and keep theirs"
                yield note

    def _look(self, name: str, kind: str, config: DataConfig) -> dict[str, Any]:
        about: dict[str, Any] = {"kind": kind, "config": config.to_dict()}
        if config.root is None and name in SIZES:  # a public dataset that is not here
            classes, nodes, train = SIZES[name]
            about |= {"fingerprint": "", "hierarchy": "", "classes": classes, "nodes": nodes}
            features = DINOV2_FEATURES if kind == "probe" else None
            return {**about, "samples": {"train": train}, "features": features}
        data = data_of(config)
        data["test"]  # refused here rather than after the search
        h = self.trees[name] = data.hierarchy
        first = next(iter(data.splits.values()))
        parts = [data[split].nodes for split in ("train", "val") if split in data.splits]
        self._truth[name, kind] = np.concatenate(parts), len(parts[0])
        if kind == "probe":
            small = {split: samples.select([0]) for split, samples in data.splits.items()}
            self.sources[name] = Dataset(data.name, h, small, source=data.source)
        about |= {"fingerprint": data.fingerprint, "hierarchy": h.fingerprint}
        about |= {"classes": h.num_leaves, "nodes": h.num_nodes}
        return {
            **about,
            "samples": {split: len(samples) for split, samples in data.splits.items()},
            "coarse": len(data["train"]) - len(data["train"].leaf_only()),
            "siblings": int(has_siblings(h)[h.leaf_nodes].sum()),
            "features": int(first.x.shape[1]) if isinstance(first, Features) else None,
        }


def seconds_a_sample(config: RunConfig, about: Mapping[str, Any]) -> float:
    """Seconds per sample and epoch, by rule of thumb."""
    if isinstance(config, TrainConfig):
        side = config.image_size or DATASETS[config.data.name].size or 224
        small_form = side <= SMALL_IMAGE
        gmacs = GMACS.get(config.model, GMACS["resnet50"])  # a model that is not listed counts as a ResNet-50
        at_side = gmacs[0] * (side / 32) ** 2 if small_form else gmacs[1] * (side / 224) ** 2
        return 6e9 * at_side / (TRAIN_SPEED if config.device == "cpu" else SUSTAINED)
    # Forward and the gradient of the weights, two operations each; features need no gradient.
    return 4 * (about["features"] or 0) * about["nodes"] / PROBE_SPEED
