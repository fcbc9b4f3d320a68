"""The studies that `hace study` knows, as data: which methods, data sets, models, seeds and rates.

To add a study, add a row to `PRESETS`; to add a method, an entry to `hace.lab.study.methods.METHODS`; to add an architecture,
its row in `hace.paper.recipes`; to add a data set, `--features NAME=PATH` or `--data-root NAME=PATH`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hace.errors import ConfigError, nearest
from hace.lab.runs.config import DataConfig
from hace.lab.study.methods import CONTROLS, PAPER_METHODS
from hace.lab.study.protocol import FAIR_RATES
from hace.paper.recipes import DATASETS, DILUTIONS, RECIPES

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
