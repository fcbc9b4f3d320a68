"""What a study compares, as data: methods, data sets, models, seeds and rates.

`PRESETS` holds the studies that need nothing but hace. Others are values of the same class, kept where they belong and
passed to :func:`hace.lab.study.plans.make_plan`; the command line offers those of `hace.paper` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hace.errors import ConfigError, nearest
from hace.lab.runs.config import DataConfig
from hace.lab.runs.train_config import TrainConfig
from hace.lab.study.cells import FAIR_RATES
from hace.lab.study.methods import CONTROLS, PAPER_METHODS


class FixedRun(NamedTuple):
    """A run whose rate is given, not searched."""

    dilution: float | None
    pairing: str | None
    lr: float


@dataclass(frozen=True)
class Preset:
    """A study.

    Attributes:
        title: What it is about, for `hace study --list`.
        kind: "probe" on frozen features, or "train" end to end.
        methods: Keys of METHODS.
        datasets: Data sets it is about; users add others with `--features` and `--data-root`.
        reserved: Data sets of related studies, which are never taken as the user's own.
        models: Architectures of end-to-end training.
        seeds: How many: 0, 1, ...
        dilutions: Of methods that have one.
        rates: Searched by the fair protocol; times the recipe's rate in end-to-end training.
        data: Data sets that need no path because they are synthetic.
        epochs: Of probes.
        lr: The base rate of probes.
        recipe: From data set and model to the configuration of a training run; required for "train".
        fixed: The runs of a method, from whether it has a dilution and the base rate. Without it every method searches
            `rates` on held-out samples: the fair protocol. With it nothing is searched, and the best run on the test set
            counts: the paper's protocol.
    """

    title: str
    kind: Literal["probe", "train"]
    methods: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    seeds: int = 1
    dilutions: tuple[float, ...] = (0.5,)
    rates: tuple[float, ...] = FAIR_RATES
    data: Mapping[str, DataConfig] = field(default_factory=dict)
    epochs: int = 30
    lr: float = 1.0
    recipe: Callable[[str, str], TrainConfig] | None = None
    fixed: Callable[[bool, float], Iterable[FixedRun]] | None = None

    @property
    def protocol(self) -> Literal["paper", "fair"]:
        """What results call the way its rates are chosen."""
        return "fair" if self.fixed is None else "paper"


PRESETS: Mapping[str, Preset] = {
    "demo": Preset(
        "synthetic features, fairly: the paper's methods and the controls, in two minutes",
        "probe",
        (*PAPER_METHODS, *CONTROLS),
        ("synthetic",),
        seeds=3,
        data={
            "synthetic": DataConfig(
                "synthetic-features", options={"classes": 60, "signal": 0.8, "train": 20, "test": 30}
            )
        },
        epochs=15,
    ),
}


def find_presets(names: str | Iterable[str], known: Mapping[str, Preset] = PRESETS) -> dict[str, Preset]:
    """Presets by name.

    Args:
        names: One name or several.
        known: Where to look.

    Raises:
        ConfigError: An unknown name, with the nearest known one.
    """
    found = {}
    for name in [names] if isinstance(names, str) else names:
        if name not in known:
            raise ConfigError(
                f"A study must be one of {', '.join(known)}. Got {name!r}.{nearest(name, known)}"
            )
        found[name] = known[name]
    return found
