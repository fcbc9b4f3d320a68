"""The paper's recipes as configurations of `hace train`.

TRAIN_PRESETS["cifar100/resnet18"](method="hace")    help() on the function says what to expect
train_preset("cifar100/resnet18/hace")               the same by one name, as on the command line
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hace.errors import ConfigError, nearest
from hace.lab.runs.config import DataConfig
from hace.lab.runs.labels import LabelsConfig
from hace.lab.runs.train_config import TrainConfig
from hace.lab.study.methods import METHODS
from hace.paper.recipes import PAPER_DATASETS, RECIPES, describe, learning_rates, recipe


def paper_config(
    dataset: str,
    model: str,
    method: str = "hace",
    *,
    dilution: float | None = None,
    pairing: str | None = None,
    root: str | None = None,
    seed: int = 0,
) -> TrainConfig:
    """A cell of the paper's end-to-end tables.

    Args:
        dataset: "cifar100", "aircraft" or "nabirds".
        model: One of the paper's six.
        method: A key of `hace.lab.study.methods.METHODS`.
        dilution: d, of a method that has one; by default 0.5.
        pairing: "standard" or "adjusted", for the rates of the paper's pairs; by default the recipe's base rate.
        root: Where the data set is.
        seed: Of the run.

    Raises:
        ConfigError: An unknown name, or a pairing for a method that is neither HACE nor SCE.

    Example:
        >>> config = paper_config("cifar100", "resnet18", "hace", dilution=0.2, pairing="adjusted")
        >>> config.lr, config.epochs, config.loss.options["dilution"]
        (0.5, 450, 0.2)
    """
    row = recipe(model)
    for option, value, known in (("dataset", dataset, PAPER_DATASETS), ("method", method, METHODS)):
        if value not in known:
            raise ConfigError(
                f"{option} must be one of {', '.join(known)}. Got {value!r}.{nearest(value, known)}"
            )
    chosen = METHODS[method]
    if dilution is not None and not chosen.diluted and pairing is None:
        raise ConfigError(
            f"dilution must be left out for the method {method!r}, which has none. Got {dilution}."
        )
    lr = row.lr
    if pairing is not None:  # SCE's rate follows from the dilution of the HACE run it is paired with
        lr = learning_rates(method, row.lr, 0.5 if dilution is None else dilution, pairing)
    return TrainConfig(
        data=DataConfig(
            dataset, root, shuffle=seed if chosen.shuffled else None, labels=LabelsConfig(drop=chosen.drops)
        ),
        loss=chosen.loss_at(dilution) if chosen.diluted else chosen.loss,
        seed=seed,
        epochs=row.epochs[dataset],
        batch_size=row.batch_size,
        lr=lr,
        weight_decay=row.weight_decay,
        momentum=row.momentum,
        model=row.model,
        dropout=row.dropout,
        optimizer=row.optimizer,  # pyright: ignore[reportArgumentType]
        schedule=row.schedule,  # pyright: ignore[reportArgumentType]
        warmup_epochs=row.warmup_epochs,
    )


def study_recipe(dataset: str, model: str) -> TrainConfig:
    """What all runs of a study share on a data set.

    One that the paper does not have takes the recipe for NABirds, such a model that of ResNet-18.
    """
    known = model if model in RECIPES else "resnet18"
    config = paper_config(dataset if dataset in PAPER_DATASETS else "nabirds", known, "sce")
    return replace(config, model=model)


def _preset(dataset: str, model: str) -> Callable[..., TrainConfig]:
    def build(
        method: str = "hace",
        *,
        dilution: float | None = None,
        pairing: str | None = None,
        root: str | None = None,
        seed: int = 0,
    ) -> TrainConfig:
        return paper_config(dataset, model, method, dilution=dilution, pairing=pairing, root=root, seed=seed)

    build.__name__ = build.__qualname__ = f"{dataset}_{model}"
    build.__doc__ = f"{describe(model, dataset)}\n\nTakes the other arguments of `paper_config`.\n"
    return build


TRAIN_PRESETS: Mapping[str, Callable[..., TrainConfig]] = MappingProxyType(
    {f"{dataset}/{model}": _preset(dataset, model) for dataset in PAPER_DATASETS for model in RECIPES}
)
"""The paper's 18 recipes by data set and model; each function's docstring gives its table, its cost and what to expect."""


def train_preset(name: str, root: str | None = None) -> TrainConfig:
    """A recipe by one name: "cifar100/resnet18/hace", or without the method, which is then HACE.

    Args:
        name: Data set, model and method.
        root: Where the data set is.

    Raises:
        ConfigError: An unknown name, with the nearest known one.

    Example:
        >>> train_preset("nabirds/vit_base/sce").warmup_epochs
        32
    """
    found, method = (name, "hace") if name.count("/") < 2 else name.rsplit("/", 1)
    if found not in TRAIN_PRESETS:
        raise ConfigError(
            f"preset must be one of {', '.join(TRAIN_PRESETS)}, with or without /METHOD. Got {name!r}."
            f"{nearest(found, TRAIN_PRESETS)}"
        )
    return TRAIN_PRESETS[found](method, root=root)
