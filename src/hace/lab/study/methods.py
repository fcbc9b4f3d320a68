"""The methods that studies compare, and what people call a run. To add a method, add a row to methods.csv: studies, tables
and figures find it by its key.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hace.data.feature_files import feature_model
from hace.errors import ConfigError, HaceError, nearest
from hace.lab.runs.config import DataConfig, HeadConfig, LossConfig, RunConfig
from hace.losses.registry import LOSSES, loss_parameters

DINOV2 = "dinov2_large"  # what tables call timm's vit_large_patch14_dinov2


@dataclass(frozen=True)
class Method:
    """A loss with its parameters, as tables name it."""

    key: str  # short and stable; results, and the paper's printed numbers, are joined by it
    title: str  # for people
    loss: LossConfig  # the loss; a diluted method takes its d from the cell
    diluted: bool = False  # whether it has a dilution d
    tuned: tuple[float, ...] = ()  # dilutions dealt out to the rates in turn: as many candidates as any other
    shuffled: bool = False  # whether it trains on the shuffled tree
    induced: int | None = (
        None  # levels of groups of a tree made from the training samples; None: the given tree
    )
    drops: bool = False  # whether it trains only on samples known to a leaf
    head: HeadConfig | None = None  # its last layer; None: that of the study
    rate_factor: float = 1.0  # of the rates of a search, for a loss on another scale
    control: str = ""  # what comparing with it shows; empty for a method that is not a control

    def loss_at(self, dilution: float | None) -> LossConfig:
        """The loss with a dilution; None keeps the default of 0.5."""
        if dilution is None:
            return self.loss
        if not self.diluted:
            raise ConfigError(f"dilution must be None for the method {self.key!r}. Got {dilution}.")
        return LossConfig(self.loss.name, {**self.loss.options, "dilution": dilution})


def spelled_loss(text: str) -> LossConfig:
    """A loss from its name and parameters: "hxe:alpha=0.2:decay=height"."""
    name, *parameters = text.split(":")
    options: dict[str, Any] = {}
    for key, _, value in (parameter.partition("=") for parameter in parameters):
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = value
    return LossConfig(name, options)


def _read_methods() -> Iterator[tuple[str, Method]]:
    """The rows of methods.csv, each with its group: paper, control or other. What is empty has the default."""
    with Path(__file__).with_name("methods.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            flags = {name: row[name] == "yes" for name in ("diluted", "shuffled", "drops")}
            yield (
                row["group"],
                Method(
                    row["key"],
                    row["title"],
                    spelled_loss(row["loss"]),
                    **flags,
                    tuned=tuple(map(float, row["tuned"].split())),
                    induced=int(row["induced"]) if row["induced"] else None,
                    head=HeadConfig(cast(Any, row["head"])) if row["head"] else None,
                    rate_factor=float(row["rate_factor"] or 1),
                    control=row["control"],
                ),
            )


_ROWS = tuple(_read_methods())
METHODS: dict[str, Method] = {method.key: method for _, method in _ROWS}
PAPER_METHODS, CONTROLS = (tuple(m.key for group, m in _ROWS if group == g) for g in ("paper", "control"))
DROPPING = tuple(key for key, method in METHODS.items() if method.drops)


def _one_of_each_loss() -> Iterator[str]:
    """The first method of every loss that takes labels at any level; trees of its own have none above the leaves."""
    seen = set()
    for key, method in METHODS.items():
        loss, plain = method.loss.name, not (method.shuffled or method.induced or method.drops)
        if plain and loss not in seen and "labels" in loss_parameters(loss):
            seen.add(loss)
            yield key


NODE_METHODS = tuple(_one_of_each_loss())


def find_method(text: str) -> Method:
    """A method by its key, or any loss with its parameters."""
    if text in METHODS:
        return METHODS[text]
    name = text.split(":")[0]
    if name not in LOSSES:
        known = (*METHODS, *LOSSES)
        raise ConfigError(
            f"A method must be one of {', '.join(METHODS)}, or a loss with its parameters, as in hace:dilution=0.3. "
            f"Got {text!r}.{nearest(name, known)}"
        )
    return Method(text, text, spelled_loss(text))


def run_title(config: RunConfig) -> str:
    """A run by name."""
    tree = "" if config.data.shuffle is None else ", shuffled tree"
    tree += "" if config.data.induce is None else ", induced tree"
    seed = f", seed {config.seed}" if config.seed else ""
    return f"{_loss_title(config.loss)}{tree}, lr {config.lr:g}{seed}"


def without_common_end(names: Sequence[str]) -> list[str]:
    """Names of runs without the settings at their end that all of them share; as they are where that leaves them alike."""
    parts = [name.split(", ") for name in names]
    while min(map(len, parts)) > 1 and len({found[-1] for found in parts}) == 1:
        parts = [found[:-1] for found in parts]
    short = [", ".join(found) for found in parts]
    return short if len(set(short)) == len(short) else list(names)


def _loss_title(loss: LossConfig) -> str:
    """The title of the method with this loss, and its dilution; a loss of no method by its name and options."""
    dilution = loss.options.get("dilution") if "dilution" in loss_parameters(loss.name) else None
    shown = "" if dilution is None else f" d={dilution:g}"
    for method in METHODS.values():
        if method.shuffled or method.induced or method.drops or method.tuned:
            continue
        if method.loss_at(dilution if method.diluted else None) == loss:
            head, comma, rest = method.title.partition(",")
            return f"{head}{shown}{comma}{rest}"
    default = LossConfig(loss.name).options
    changed = {k: v for k, v in loss.options.items() if k not in default or default[k] != v}
    return " ".join(
        [loss.name, *(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in changed.items())]
    )


def behind(data: DataConfig) -> str:
    """The model behind features, as tables name it; "features" where they do not say."""
    if data.name != "features":
        return "features"
    if data.root is None:
        return DINOV2
    path, model = Path(data.root), None
    with suppress(HaceError):  # the survey of the data says what is wrong with them
        if path.is_dir():
            from hace.lab.features.store import FeatureStore

            model = FeatureStore(path).manifest["model"]["name"]
        elif path.is_file():
            model = feature_model(path)
    model = model or "features"
    known = model.lower().replace("-", "_").startswith((DINOV2, "vit_large_patch14_dinov2"))
    return DINOV2 if known else model
