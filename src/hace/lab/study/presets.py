"""What a study compares, as data: methods, datasets, models, seeds and rates.

`PRESETS` holds the studies that need nothing but hace. Others are values of the same class, kept where they belong and
passed to :func:`hace.lab.study.plan.make_plan`; the command line offers those of `hace.paper` too.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from hace.checks import check_choice
from hace.data.feature_files import feature_model
from hace.errors import ConfigError, HaceError, nearest
from hace.lab.runs.config import DataConfig, HeadConfig, LabelsConfig, LossConfig, RunConfig, TrainConfig
from hace.lab.study.configurations import FAIR_RATES
from hace.losses.registry import LOSSES, loss_parameters

DINOV2 = "dinov2_large"  # what tables call timm's vit_large_patch14_dinov2


@dataclass(frozen=True)
class Method:
    """A loss with its parameters, as tables name it."""

    key: str  # short and stable; results, and the paper's printed numbers, are joined by it
    title: str  # for people
    loss: LossConfig  # the loss; a diluted method takes its d from the configuration
    diluted: bool = False  # whether it has a dilution d
    tuned: tuple[float, ...] = ()  # dilutions dealt out to the rates in turn: as many candidates as any other
    shuffled: bool = False  # whether it trains on the shuffled tree
    induced: int | None = None  # levels of groups of a tree made from the training samples, if it has one
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


def _read_methods() -> Iterator[tuple[str, Method]]:
    """The rows of methods.csv, each with its group: paper, control or other. What is empty has the default."""
    with Path(__file__).with_name("methods.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            method = Method(
                row["key"],
                row["title"],
                LossConfig.parse(row["loss"]),
                diluted=row["diluted"] == "yes",
                tuned=tuple(map(float, row["tuned"].split())),
                shuffled=row["shuffled"] == "yes",
                induced=int(row["induced"]) if row["induced"] else None,
                drops=row["drops"] == "yes",
                head=HeadConfig(cast(Any, row["head"])) if row["head"] else None,
                rate_factor=float(row["rate_factor"] or 1),
                control=row["control"],
            )
            yield row["group"], method


_ROWS = tuple(_read_methods())
METHODS: dict[str, Method] = {method.key: method for _, method in _ROWS}
PAPER_METHODS = tuple(method.key for group, method in _ROWS if group == "paper")
CONTROLS = tuple(method.key for group, method in _ROWS if group == "control")
DROPPING = tuple(key for key, method in METHODS.items() if method.drops)
_LABEL_METHODS = ("cross_entropy", "hace", "cross_entropy_paths", "cross_entropy_paths_0.5")
# Whether coarse labels are worth using: with them, and cross-entropy without them. Path sums gain most where labels are few.
_MIXED_LABEL_METHODS = (*_LABEL_METHODS, "cross_entropy_drop")


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
    return Method(text, text, LossConfig.parse(text))


def run_title(config: RunConfig) -> str:
    """A run by name."""
    tree = "" if config.data.shuffle is None else ", shuffled tree"
    tree += "" if config.data.induce is None else ", induced tree"
    seed = f", seed {config.seed}" if config.seed else ""
    return f"{_loss_title(config.loss)}{tree}, lr {config.lr:g}{seed}"


def without_common_end(names: Sequence[str]) -> list[str]:
    """Names of runs without the settings at their end that all of them share; as they are where that leaves them alike."""
    parts = [name.split(", ") for name in names]
    while min(map(len, parts)) > 1 and len({words[-1] for words in parts}) == 1:
        parts = [words[:-1] for words in parts]
    short = [", ".join(words) for words in parts]
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
    texts = {k: f"{v:g}" if isinstance(v, float) else v for k, v in changed.items()}
    return " ".join([loss.name, *(f"{k}={text}" for k, text in texts.items())])


def behind(data: DataConfig) -> str:
    """The model behind features, as tables name it; "features" where they do not say."""
    if data.name != "features":
        return "features"
    if data.root is None:
        return DINOV2
    model = "features"
    with suppress(HaceError):  # the survey of the data says what is wrong with them
        model = _model_of(Path(data.root)) or "features"
    is_dinov2 = model.lower().replace("-", "_").startswith((DINOV2, "vit_large_patch14_dinov2"))
    return DINOV2 if is_dinov2 else model


def _model_of(path: Path) -> str | None:
    """The model that a folder or a file of features names."""
    if path.is_dir():
        from hace.lab.features.store import FeatureStore

        return FeatureStore(path).manifest["model"]["name"]
    return feature_model(path) if path.is_file() else None


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
        states = [] if self.coarse else [LabelsConfig()]
        for share in self.coarse:
            states.append(LabelsConfig(coarse=share, to=to) if share else LabelsConfig())
        for known in self.fine:
            states += [LabelsConfig(fine=known, to=to, drop=drop) for drop in (True, False)]
        for share in self.wrong:
            where = ("parent", "anywhere") if share else ("parent",)
            states += [LabelsConfig(wrong=share, within=within) for within in where]
        return tuple({state.text: state for state in states}.values())


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
    (*_LABEL_METHODS, "conditional_softmax"),  # one per way of using the taxonomy; --methods takes others
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
    "animals": Preset(
        "a taxonomy of animals, with all labels and with 80% labelled only to family, in two minutes",
        "probe",
        ("cross_entropy", "hace", "cross_entropy_paths", "hace_shuffled", "cross_entropy_drop"),
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
        methods=("cross_entropy", "hace", "hace_uniform", "hace_linear", "hace_tuned"),
    ),
    "mixed-labels": replace(
        _LABELS,
        title="some training samples labelled only to the parent: use or drop them, and which method",
        methods=_MIXED_LABEL_METHODS,
        labels=LabelGrid(coarse=(0.0, 0.5, 0.8, 0.95)),
    ),
    "low-shot": replace(
        _LABELS,
        title="a few training labels per class, with and without coarse labels for the other samples",
        labels=LabelGrid(fine=(1, 5, 10, 20)),
    ),
    "noisy-labels": replace(
        _LABELS,
        title="wrong training labels, within the parent or anywhere",
        labels=LabelGrid(wrong=(0.0, 0.2, 0.4)),
    ),
}


def find_presets(names: str | Iterable[str], known: Mapping[str, Preset] = PRESETS) -> dict[str, Preset]:
    """Presets by name."""
    presets = {}
    for name in [names] if isinstance(names, str) else names:
        check_choice("A study", name, known)
        presets[name] = known[name]
    return presets
