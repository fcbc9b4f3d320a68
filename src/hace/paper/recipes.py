"""The paper's recipes for end-to-end training: its table of hyperparameters, learning rates and run rule, as configurations.

Values are as printed. Where the paper says nothing, `hace.paper.ASSUMPTIONS` says what we assume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hace.checks import check_choice, require
from hace.errors import ConfigError
from hace.lab.models import ARCHITECTURES
from hace.lab.runs.config import DataConfig, LabelsConfig, TrainConfig
from hace.lab.study.presets import (
    CONTROLS,
    METHODS,
    PAPER_METHODS,
    PRESETS,
    FixedRun,
    Preset,
)
from hace.lab.study.prices import GMACS, SUSTAINED
from hace.lab.study.survey import SIZES
from hace.paper.printed import paper_tables

PAPER_DATASETS = ("cifar100", "aircraft", "nabirds")  # the table's C / F / N; the paper calls the second FGVC
IMAGE_SIZES = {"cifar100": 32, "aircraft": 224, "nabirds": 224}
DILUTIONS = (0.2, 0.5, 0.7)
PAIRINGS = ("standard", "adjusted")
_PAIR = ("hace", "cross_entropy")


@dataclass(frozen=True)
class Recipe:
    """A row of the paper's table of hyperparameters."""

    model: str  # a key of `hace.lab.models.ARCHITECTURES`
    batch_size: int
    lr: float  # the base rate l, before `learning_rates`
    weight_decay: float
    momentum: float  # of SGD; AdamW's first beta
    dropout: float  # 0 where the table has a dash
    epochs: Mapping[str, int]  # by dataset
    schedule: str  # "cosine" for the table's CosineAnnealing, "warmup_cosine" for its Lambda
    warmup_epochs: int  # not in the table, see `ASSUMPTIONS`
    optimizer: str


def _epochs(*values: int) -> Mapping[str, int]:
    return MappingProxyType(dict(zip(PAPER_DATASETS, values, strict=True)))


# fmt: off
_ROWS = (
    #      model            batch  rate     decay  mom. drop  epochs C / F / N         schedule    warm-up  optimiser
    Recipe("resnet18",      128,   0.1,     1e-4,  0.9, 0.0, _epochs(450, 750, 750), "cosine",        0,  "sgd"),
    Recipe("resnet34",      128,   0.1,     1e-4,  0.9, 0.0, _epochs(450, 750, 750), "cosine",        0,  "sgd"),
    Recipe("resnet50",      128,   0.1,     1e-4,  0.9, 0.0, _epochs(450, 750, 750), "cosine",        0,  "sgd"),
    Recipe("convnext_tiny", 128,   1.25e-4, 0.05,  0.9, 0.0, _epochs(400, 400, 500), "cosine",        0,  "adamw"),
    Recipe("swin_tiny",     128,   1.25e-4, 0.05,  0.9, 0.0, _epochs(500, 500, 500), "warmup_cosine", 20, "adamw"),
    Recipe("vit_base",      64,    3e-3,    0.3,   0.9, 0.1, _epochs(300, 300, 300), "warmup_cosine", 32, "adamw"),
)
# fmt: on
RECIPES: Mapping[str, Recipe] = MappingProxyType({row.model: row for row in _ROWS})
TRAIN_PRESETS = tuple(f"{dataset}/{model}" for dataset in PAPER_DATASETS for model in RECIPES)


def learning_rates(loss: str, base_lr: float, dilution: float, pairing: str) -> float:
    """The learning rate of a loss in a pairing: the paper's table of learning rates.

    | pairing | HACE | cross-entropy |
    | --- | --- | --- |
    | "standard", anchored at HACE | l | l d |
    | "adjusted", anchored at cross-entropy | l / d | l |
    """
    check_choice("loss", loss, _PAIR)
    check_choice("pairing", pairing, PAIRINGS)
    require("dilution", dilution, "above 0 and at most 1", 0 < dilution <= 1)
    if pairing == "standard":
        return base_lr if loss == "hace" else base_lr * dilution
    return base_lr / dilution if loss == "hace" else base_lr


def fixed_runs(diluted: bool, base_lr: float) -> tuple[FixedRun, ...]:
    """The paper's run rule: six runs of a method with a dilution, four of any other, on every dataset.

    A method without a dilution carries that of the HACE run it is paired with; its run at the base rate l is paired with all.
    """
    loss, pairings = ("hace", PAIRINGS) if diluted else ("cross_entropy", PAIRINGS[:1])
    runs = [FixedRun(d, p, learning_rates(loss, base_lr, d, p)) for p in pairings for d in DILUTIONS]
    return tuple(runs) if diluted else (*runs, FixedRun(None, PAIRINGS[1], base_lr))


def train_preset(
    name: str,
    *,
    dilution: float | None = None,
    pairing: str | None = None,
    root: str | None = None,
    seed: int = 0,
) -> TrainConfig:
    """A cell of the paper's end-to-end tables: "cifar100/resnet18/hace", or without the method, which is then HACE.

    `dilution` is for a method that has one, `pairing` ("standard" or "adjusted") for HACE and cross-entropy; without it the
    rate is the recipe's.

    Example:
        >>> config = train_preset("cifar100/resnet18/hace", dilution=0.2, pairing="adjusted")
        >>> config.lr, config.epochs, config.loss.options["dilution"]
        (0.5, 450, 0.2)
    """
    base, key = (name, "hace") if name.count("/") < 2 else name.rsplit("/", 1)
    check_choice("preset", base, TRAIN_PRESETS)
    check_choice("method", key, METHODS)
    dataset, model = base.split("/")
    row = RECIPES[model]
    method = METHODS[key]
    if dilution is not None and not method.diluted and pairing is None:
        raise ConfigError(
            f"dilution must be left out for the method {key!r}, which has none. Got {dilution}."
        )
    lr = row.lr
    # Cross-entropy's rate follows from the dilution of the HACE run it is paired with.
    if pairing is not None:
        lr = learning_rates(key, row.lr, 0.5 if dilution is None else dilution, pairing)
    labels = LabelsConfig(drop=method.drops)
    return TrainConfig(
        data=DataConfig(dataset, root, shuffle=seed if method.shuffled else None, labels=labels),
        loss=method.loss_at(dilution) if method.diluted else method.loss,
        seed=seed,
        **{**vars(row), "epochs": row.epochs[dataset], "lr": lr},
    )


def study_recipe(dataset: str, model: str) -> TrainConfig:
    """What a study's runs share; a dataset that the paper lacks takes NABirds' recipe, such a model that of ResNet-18."""
    known = dataset if dataset in PAPER_DATASETS else "nabirds"
    return replace(
        train_preset(f"{known}/{model if model in RECIPES else 'resnet18'}/cross_entropy"), model=model
    )


def training_cost(dataset: str, model: str) -> float:
    """Floating-point operations of one run: 2 per multiply-add, 3 passes per image and epoch."""
    gmacs = GMACS[model][0 if IMAGE_SIZES[dataset] == 32 else 1]
    return 6 * gmacs * 1e9 * SIZES[dataset][2] * RECIPES[model].epochs[dataset]


def describe(model: str, dataset: str) -> str:
    """A recipe in words: the paper's values, the cost of a run, and the accuracy that the paper prints."""
    row = RECIPES[model]
    cost = training_cost(dataset, model)
    warmup = f" with {row.warmup_epochs} epochs of warm-up" if row.warmup_epochs else ""
    printed = paper_tables()["best_to_best"]
    hace, cross_entropy = (printed.value(model=model, dataset=dataset, method=method) for method in _PAIR)
    return (
        f"{ARCHITECTURES[model].title} on {dataset}, as the paper's table of hyperparameters has it: "
        f"{row.epochs[dataset]} epochs at {IMAGE_SIZES[dataset]} px, batches of {row.batch_size}, {row.optimizer} with\n"
        f"rate {row.lr:g}, decay {row.weight_decay:g}, momentum {row.momentum:g}, dropout {row.dropout:g}, "
        f"schedule {row.schedule}{warmup}.\n"
        f"Cost: {cost:.1e} operations per run, {cost / SUSTAINED / 3600:.1f} hours at {SUSTAINED / 1e12:.0f} TFLOP/s; "
        "ten runs make the paper's cell.\n"
        f"Expect: top-1 {hace:.2f}% with HACE (best of 6 runs, chosen on the test set), "
        f"{cross_entropy:.2f}% with cross-entropy (best of 4)."
    )


PROBE_RATE = 3e-3  # the base rate of probes under the paper's protocol: with AdamW, its pattern appears
TRAIN_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the recipe's: about the range that the paper's pairings span
_NABIRDS = tuple(key for key in PAPER_METHODS if key not in ("hace_soft10", "hace_soft30"))
_DATA: dict[str, Any] = {"datasets": PAPER_DATASETS, "reserved": PAPER_DATASETS}
_TRAIN: dict[str, Any] = {**_DATA, "models": tuple(RECIPES), "recipe": study_recipe}


def _paper_train(title: str, methods: tuple[str, ...] = _PAIR, **changes: Any) -> Preset:
    options = {**_TRAIN, "dilutions": DILUTIONS, "fixed": fixed_runs, **changes}
    return Preset(title, "train", methods, **options)


def _fair_train(title: str, methods: tuple[str, ...] = (*_PAIR, "hace_tuned"), **changes: Any) -> Preset:
    return Preset(title, "train", methods, seeds=3, rates=TRAIN_RATES, **{**_TRAIN, **changes})


def _end_to_end(labels: Preset) -> Preset:
    """A study of labels, trained end to end."""
    return _fair_train(
        f"end to end: {labels.title}", labels.methods, models=("resnet18",), labels=labels.labels
    )


_BEST = "end to end, best to best: ten runs for each of 18 pairs of model and dataset"
_BIRDS = "end to end on NABirds: eight methods"
_FGVC = "end to end on FGVC-Aircraft: HACE against cross-entropy at each dilution and pairing of rates"
_FAMILY = "families and manufacturers: ResNet-50 on FGVC-Aircraft, ten runs"
_PROBES = "linear probes: ten methods at each dilution and pairing of rates"
_FAIR = "end to end, fairly: HACE and cross-entropy, the same rates, chosen on held-out samples"
_FAIR_NABIRDS = "end to end on NABirds, fairly: eight methods"
_FAIR_PROBES = "linear probes, fairly: ten methods, and HACE with a tuned dilution"
_CONTROLS = "linear probes, fairly: HACE, cross-entropy and the controls"

STUDIES: Mapping[str, Preset] = MappingProxyType(
    {
        "paper-train": _paper_train(_BEST),
        "paper-fgvc": _paper_train(_FGVC, datasets=("aircraft",)),
        "paper-family": _paper_train(_FAMILY, datasets=("aircraft",), models=("resnet50",)),
        "paper-nabirds": _paper_train(_BIRDS, _NABIRDS, datasets=("nabirds",)),
        "paper-probe": Preset(
            _PROBES, "probe", PAPER_METHODS, lr=PROBE_RATE, optimizer="adamw", fixed=fixed_runs, **_DATA
        ),
        "fair-end-to-end": _fair_train(_FAIR),
        "fair-nabirds": _fair_train(_FAIR_NABIRDS, (*_NABIRDS, "hace_tuned"), datasets=("nabirds",)),
        "fair-probe": Preset(_FAIR_PROBES, "probe", (*PAPER_METHODS, "hace_tuned"), seeds=5, **_DATA),
        "controls": Preset(_CONTROLS, "probe", (*_PAIR, "hace_tuned", *CONTROLS), seeds=5, **_DATA),
        "mixed-labels-end-to-end": _end_to_end(PRESETS["mixed-labels"]),
        "low-shot-end-to-end": _end_to_end(PRESETS["low-shot"]),
        "noisy-labels-end-to-end": _end_to_end(PRESETS["noisy-labels"]),
    }
)
