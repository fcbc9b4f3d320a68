"""Where the data of a study are, and how to read them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hace.errors import ConfigError, nearest
from hace.lab.runs.config import DataConfig

OPTIONS = {"probe": "--features", "train": "--data-root"}


@dataclass(frozen=True)
class Locations:
    """Paths of a study's data, by data set.

    Attributes:
        features: A folder of `hace features`, or a file of features.
        images: The folder or manifest of a data set of images.
        hierarchies: A hierarchy in place of the data set's own.
        options: Options of the data: {"test": 0.2} for every data set that has such an option, {"birds.test": 0.2} for one.
    """

    features: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    hierarchies: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def given(self, kind: str) -> Mapping[str, str]:
        """The data sets that have a path for a kind of runs."""
        return self.features if kind == "probe" else self.images

    def data(self, name: str, kind: str) -> DataConfig | None:
        """The data of a data set; None without a path."""
        from hace.data import DATASETS as KNOWN

        root = self.given(kind).get(name)
        if root is None:
            return None
        if kind == "probe":
            what = "features"
        elif name in KNOWN:
            what = name
        else:
            what = "folders" if Path(root).is_dir() else "manifest"
        hierarchy = self.hierarchies.get(name)
        if hierarchy is not None and Path(hierarchy).exists():  # otherwise a name that comes with hace
            hierarchy = str(Path(hierarchy).resolve())
        options = self._options(name, KNOWN[what].options)
        return DataConfig(what, root=str(Path(root).resolve()), hierarchy=hierarchy, options=options)

    def _options(self, name: str, known: Collection[str]) -> dict[str, Any]:
        """The options of a data set among those it knows; what names it counts more than what does not."""
        found = {}
        for key in sorted(self.options, key=lambda key: "." in key):
            owner, _, option = key.rpartition(".")
            if owner in ("", name) and option in known:
                found[option] = self.options[key]
        return found


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
            raise ConfigError(f"{option} must be NAME=VALUE. Got {text!r}.")
        if name in found:
            raise ConfigError(f"{option} must name {name!r} once. Got {found[name]!r} and {value!r}.")
        found[name] = value
    return found


def refuse_stray(
    locations: Locations, kinds: Collection[str], data: Mapping[tuple[str, str], DataConfig]
) -> None:
    """Refuse a hierarchy or an option of data that the study does not have.

    Args:
        locations: What the user gave.
        kinds: The kinds of runs of the study.
        data: Its data, by name and kind of runs.

    Raises:
        ConfigError: Names the option that would give the data, or the options that the data have.
    """
    from hace.data import DATASETS

    def missing(what: str, name: str, there: Collection[str]) -> ConfigError:
        options = " or ".join(f"{OPTIONS[kind]} {name or 'NAME'}=PATH" for kind in sorted(kinds))
        return ConfigError(f"{what} must come with {options}.{nearest(name, there)}")

    given = [d for kind in sorted(kinds) for d in locations.given(kind)]
    for name in locations.hierarchies:
        if name not in given:
            raise missing(f"--hierarchy {name}=", name, given)
    own = [(d, DATASETS[c.name].options) for (d, kind), c in data.items() if d in locations.given(kind)]
    for key in locations.options:
        owner, _, option = key.rpartition(".")
        known = [(d, options) for d, options in own if owner in ("", d)]
        if not known:
            raise missing(f"-o {key}=", owner, [d for d, _ in own])
        if not any(option in options for _, options in known):
            words = "; ".join(f"{d} has {', '.join(options) or 'none'}" for d, options in known)
            likely = nearest(option, {o for _, options in known for o in options})
            raise ConfigError(f"-o must be an option of the study's data. Got {option!r}: {words}.{likely}")
