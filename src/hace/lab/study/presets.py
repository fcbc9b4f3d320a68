"""What a study compares, as data: methods, datasets, models, seeds and rates.

`PRESETS` holds the studies that need nothing but hace. Others are values of the same class, kept where they belong and
passed to :func:`hace.lab.study.plan.make_plan`; the command line offers those of `hace.paper` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from hace.checks import check_choice
from hace.lab.runs.config import DataConfig, LabelsConfig, TrainConfig
from hace.lab.study.cells import FAIR_RATES
from hace.lab.study.methods import CONTROLS, DROPPING, METHODS, NODE_METHODS, PAPER_METHODS

WIDEN = 2  # rates that a search may add on each side


@dataclass(frozen=True)
class LabelGrid:
    """What is known of the training labels, in each part of a study; what is not known is coarse, missing or wrong."""

    coarse: tuple[float, ...] = ()  # shares of labels known only to an ancestor; 0 is all labels as they are
    fine: tuple[int, ...] = ()  # known labels per class: once with coarse labels for the others, once without
    wrong: tuple[float, ...] = ()  # shares of wrong labels: once within the parent, once anywhere
    to: int | str = "parent"  # what coarse labels are known to, as in `LabelsConfig`

    def situations(self) -> tuple[LabelsConfig, ...]:
        """In the order of tables, each once."""
        to = self.to
        found = [LabelsConfig()] if not self.coarse else []
        found += [LabelsConfig(coarse=share, to=to) if share else LabelsConfig() for share in self.coarse]
        found += [LabelsConfig(fine=k, to=to, drop=drop) for k in self.fine for drop in (True, False)]
        for share in self.wrong:
            where = ("parent", "anywhere") if share else ("parent",)
            found += [LabelsConfig(wrong=share, within=within) for within in where]
        return tuple({situation.text: situation for situation in found}.values())


class FixedRun(NamedTuple):
    """A run whose rate is given, not searched."""

    dilution: float | None
    pairing: str | None
    lr: float


@dataclass(frozen=True)
class Preset:
    """A study."""

    title: str  # what it is about, for `hace study --list`
    kind: Literal["probe", "train"]  # "probe" on frozen features, or "train" end to end
    methods: tuple[str, ...]  # keys of METHODS
    datasets: tuple[str, ...] = ()  # that it is about; users add others
    reserved: tuple[str, ...] = ()  # datasets of related studies, which are never taken as the user's own
    models: tuple[str, ...] = ()  # architectures of end-to-end training
    seeds: int = 1  # how many: 0, 1, ...
    dilutions: tuple[float, ...] = (0.5,)  # of methods that have one
    rates: tuple[float, ...] = FAIR_RATES  # of the fair protocol; times the recipe's rate in training
    decays: tuple[float, ...] = ()  # searched with every rate; by default that of the base configuration
    search_once: bool = False  # whether the search of seed 0 chooses for all seeds
    labels: LabelGrid = LabelGrid()  # what is known of the training labels, in each part of the study
    data: Mapping[str, DataConfig] = field(default_factory=dict)  # synthetic; a user's data replace them
    brief: bool = False  # whether a study of those has one seed and a grid that does not widen
    epochs: int = 30  # of probes
    lr: float = 1.0  # the base rate of probes
    optimizer: Literal["sgd", "adamw"] = "sgd"  # of probes
    start: Literal["auto", "random", "zeros"] = "auto"  # initial weights of probes, as in `ProbeConfig`
    recipe: Callable[[str, str], TrainConfig] | None = None  # of a training, by dataset and model
    # The runs of a method, from whether it has a dilution and the base rate: nothing is searched, and the best run on the
    # test set counts, which is the paper's protocol. None is the fair protocol: held-out samples choose among `rates`.
    fixed: Callable[[bool, float], Iterable[FixedRun]] | None = None

    def seeds_on(self, dataset: str) -> int:
        """How many seeds a dataset gets."""
        return 1 if self.brief and dataset in self.data else self.seeds

    def widens_on(self, dataset: str) -> int:
        """How many rates a search on a dataset may add on each side."""
        return 0 if self.brief and dataset in self.data else WIDEN

    @property
    def protocol(self) -> Literal["paper", "fair"]:
        """What results call the way its rates are chosen."""
        return "fair" if self.fixed is None else "paper"


def _synthetic(classes: int, train: int, test: int) -> dict[str, DataConfig]:
    options = {"classes": classes, "signal": 0.8, "train": train, "test": test}
    return {"synthetic": DataConfig("synthetic-features", options=options)}


_LABELS = Preset(
    "",
    "probe",
    (*NODE_METHODS, *DROPPING),
    ("synthetic",),
    seeds=5,
    rates=(4.0, 8.0, 16.0, 32.0, 64.0),
    decays=(0.0, 1e-4),
    data=_synthetic(24, 40, 40),
    brief=True,
    epochs=30,
    start="zeros",  # for all methods alike, those that drop samples too
)
_FAIR = Preset(
    "", "probe", (*PAPER_METHODS, *CONTROLS), ("synthetic",), seeds=5, data=_synthetic(60, 20, 30), brief=True
)
PRESETS: Mapping[str, Preset] = {
    "demo": Preset(
        "a taxonomy of animals, with all labels and with 80% known only to their family, in two minutes",
        "probe",
        ("sce", "hace", "hxe_0.2", "sce_paths", "hace_shuffled", "sce_drop"),
        ("animals",),
        seeds=5,
        rates=(8.0, 16.0, 32.0, 64.0),
        labels=LabelGrid(coarse=(0.0, 0.8)),
        data={
            "animals": DataConfig(
                "synthetic-features",
                hierarchy="animals",
                options={"nuisance": 8.0, "dim": 20, "train": 80, "test": 30},
            )
        },
        epochs=40,
        start="zeros",
    ),
    "methods": replace(
        _FAIR,
        title="every method and control, fairly; on your features with --features NAME=F",
        methods=tuple(key for key in METHODS if key not in DROPPING),
    ),
    "profiles": replace(
        _FAIR,
        title="HACE's mass along the path: geometric (d = 0.5, and d tuned), uniform and linear",
        methods=("sce", "hace", "hace_uniform", "hace_linear", "hace_tuned"),
    ),
    "mixed-labels": replace(
        _LABELS,
        title="some training labels known only to their parent: use or drop them, and which method",
        labels=LabelGrid(coarse=(0.0, 0.5, 0.8, 0.95)),
    ),
    "low-shot": replace(
        _LABELS,
        title="a few training labels per class, with and without coarse labels for the other samples",
        methods=NODE_METHODS,
        labels=LabelGrid(fine=(1, 5, 10, 20)),
    ),
    "noisy-labels": replace(
        _LABELS,
        title="wrong training labels, within the parent or anywhere",
        methods=NODE_METHODS,
        labels=LabelGrid(wrong=(0.0, 0.2, 0.4)),
    ),
}


def find_presets(names: str | Iterable[str], known: Mapping[str, Preset] = PRESETS) -> dict[str, Preset]:
    """Presets by name."""
    found = {}
    for name in [names] if isinstance(names, str) else names:
        check_choice("A study", name, known)
        found[name] = known[name]
    return found
