"""The grid of a study: its cells, the runs that fill them, and where its data lie.

A cell is one number of a table: data set, model, method, dilution, pairing, seed. The paper's protocol has one run a cell, at
a fixed rate. The fair one has a search, a run for each rate on part of the training samples, and a final run at the rate
that the search chose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hace.errors import ConfigError, nearest
from hace.lab.runs.config import DataConfig, RunConfig
from hace.lab.runs.run import KINDS
from hace.lab.runs.settings import from_dict
from hace.lab.runs.train_config import TrainConfig
from hace.lab.study.protocol import final_config, search_configs
from hace.lab.study.records import CellKey

KEYS = tuple(field.name for field in fields(CellKey))


@dataclass(frozen=True)
class Cell:
    """A cell and the runs that fill it.

    Attributes:
        key: What it is about.
        config: The final run, but for its rate.
        rates: One: the final run is made at it. Several: they are searched first.
    """

    key: CellKey
    config: RunConfig
    rates: tuple[float, ...]

    def search(self) -> list[RunConfig]:
        """The runs that choose the rate; none where it is given."""
        if len(self.rates) == 1:
            return []
        lean = (
            dataclasses.replace(self.config, keep=False)
            if isinstance(self.config, TrainConfig)
            else self.config
        )
        return search_configs(lean, self.rates)

    def final(self, lr: float) -> RunConfig:
        """The run that tables show."""
        return final_config(self.config, lr)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; :func:`cell_from_dict` reads them back."""
        return {
            "key": self.key.to_dict(),
            "kind": self.config.kind,
            "config": self.config.to_dict(),
            "rates": list(self.rates),
        }

    def deciding(self) -> dict[str, Any]:
        """The same without what does not decide results, such as places of data."""
        return {**self.to_dict(), "config": self.config.deciding()}


def cell_from_dict(document: Mapping[str, Any]) -> Cell:
    """A cell from plain values.

    Raises:
        ConfigError: They do not fit this version.
    """
    try:
        key, kind = CellKey(**document["key"]), KINDS[document["kind"]]
        return Cell(key, from_dict(kind, document["config"]), tuple(document["rates"]))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"a cell of the study does not fit this version: {error!r}.") from error


def name_of(key: CellKey) -> str:
    """A cell in words, but for its seed.

    Example:
        >>> name_of(CellKey("paper", "aircraft", "resnet18", "hace", 0.2, "adjusted", 0))
        'aircraft resnet18 hace d=0.2 adjusted'
    """
    dilution = None if key.dilution is None else f"d={key.dilution:g}"
    return " ".join(part for part in (key.dataset, key.model, key.method, dilution, key.pairing) if part)


@dataclass(frozen=True)
class Place:
    """Where the data of a study lie, as the command line says it.

    Attributes:
        features: A folder of `hace features` or a file of features, by data set.
        images: The folder or manifest of a data set of images, by data set.
        hierarchies: Another hierarchy than the data set's own, by data set.
    """

    features: Mapping[str, str] = dataclasses.field(default_factory=dict)
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hierarchies: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def given(self, kind: str) -> Mapping[str, str]:
        """The data sets that serve a kind of runs."""
        return self.features if kind == "probe" else self.images

    def data(self, name: str, kind: str) -> DataConfig | None:
        """The data of a data set; None where nobody said where they lie."""
        from pathlib import Path

        from hace.data import DATASETS

        root = self.given(kind).get(name)
        if root is None:
            return None
        if kind == "probe":
            what = "features"
        elif name in DATASETS:
            what = name
        else:
            what = "folders" if Path(root).is_dir() else "manifest"
        hierarchy = self.hierarchies.get(name)
        if hierarchy is not None and Path(hierarchy).exists():  # otherwise a name that comes with hace
            hierarchy = str(Path(hierarchy).resolve())
        return DataConfig(what, root=str(Path(root).resolve()), hierarchy=hierarchy)


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE texts as a mapping.

    Example:
        >>> pairs(["birds=/data/birds.npz"], "--features")
        {'birds': '/data/birds.npz'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"{option} must be NAME=VALUE, got {text!r}.")
        if name in found:
            raise ConfigError(f"{option} names {name!r} twice: {found[name]!r} and {value!r}.")
        found[name] = value
    return found


def only(cells: Sequence[Cell], wanted: Mapping[str, str]) -> list[Cell]:
    """The cells that match: method="hace,sce" and dataset="cifar100", say.

    Raises:
        ConfigError: A key or a value that no cell has, with the nearest one.
    """
    for key, text in wanted.items():
        if key not in KEYS:
            raise ConfigError(
                f"--only: {key!r} is no part of a cell. There are {', '.join(KEYS)}.{nearest(key, KEYS)}"
            )
        known = list(dict.fromkeys(_shown(getattr(cell.key, key)) for cell in cells))
        values = text.split(",")
        for value in values:
            if value not in known:
                raise ConfigError(
                    f"--only: there is no {key} {value!r}. There are {', '.join(known)}.{nearest(value, known)}"
                )
        cells = [cell for cell in cells if _shown(getattr(cell.key, key)) in values]
    return list(cells)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
