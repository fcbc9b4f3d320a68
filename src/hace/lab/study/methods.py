"""The methods that studies compare, and what people call a run. To add a method, add an entry: studies, tables and figures
find it by its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hace.data.feature_files import feature_model
from hace.errors import ConfigError, HaceError, nearest
from hace.lab.runs.config import DataConfig, HeadConfig, LossConfig, RunConfig
from hace.losses.registry import LOSSES, loss_parameters

DINOV2 = "dinov2_large"  # what tables call timm's vit_large_patch14_dinov2


@dataclass(frozen=True)
class Method:
    """A loss with its parameters, as tables name it.

    Attributes:
        key: Short and stable; results, and the paper's printed numbers, are joined by it.
        title: For people.
        loss: The loss; a diluted method takes its d from the cell.
        diluted: Whether it has a dilution d.
        tuned: Dilutions that its search deals out to the rates in turn, so that it has as many candidates as any other.
        shuffled: Whether it trains on the shuffled tree.
        induced: How many levels of groups the tree has that it makes from its training samples; None: the given tree.
        drops: Whether it trains only on samples known to a leaf.
        head: Its last layer; None: that of the study.
        rate_factor: What the rates of a search are multiplied by, for a loss on another scale; their number stays the same.
        control: What comparing with it shows; empty for a method that is not a control.
    """

    key: str
    title: str
    loss: LossConfig
    diluted: bool = False
    tuned: tuple[float, ...] = ()
    shuffled: bool = False
    induced: int | None = None
    drops: bool = False
    head: HeadConfig | None = None
    rate_factor: float = 1.0
    control: str = ""

    def loss_at(self, dilution: float | None) -> LossConfig:
        """The loss with a dilution; None keeps the default of 0.5."""
        if dilution is None:
            return self.loss
        if not self.diluted:
            raise ConfigError(f"dilution must be None for the method {self.key!r}. Got {dilution}.")
        return LossConfig(self.loss.name, {**self.loss.options, "dilution": dilution})

    def last_layer(self, kind: str) -> dict[str, Any]:
        """The settings of its own last layer in a probe or a training; a hyperbolic one cannot start from zeros."""
        if self.head is None:
            return {}
        return {"head": self.head, **({"start": "auto"} if kind == "probe" else {})}


def _loss(name: str, **options: float | str) -> LossConfig:
    return LossConfig(name, options)


_PAPER = (
    Method("sce", "SCE", _loss("cross_entropy")),
    Method("sce_smooth", "SCE, label smoothing 0.1", _loss("cross_entropy", label_smoothing=0.1)),
    Method("sce_soft10", "SCE, soft labels β=10", _loss("soft_label", beta=10.0)),
    Method("sce_soft30", "SCE, soft labels β=30", _loss("soft_label", beta=30.0)),
    Method("hace", "HACE", _loss("hace"), diluted=True),
    Method("hace_smooth", "HACE, label smoothing 0.1", _loss("hace", label_smoothing=0.1), diluted=True),
    Method("hace_soft10", "HACE, soft labels β=10", _loss("hace", soft_label_beta=10.0), diluted=True),
    Method("hace_soft30", "HACE, soft labels β=30", _loss("hace", soft_label_beta=30.0), diluted=True),
    Method("hxe_0.2", "HXE α=0.2", _loss("hxe", alpha=0.2)),
    Method("hxe_0.5", "HXE α=0.5", _loss("hxe", alpha=0.5)),
)
_CONTROLS = (
    Method(
        "hce",
        "CE over all N outputs (HACE d=1)",
        _loss("hce"),
        control="more outputs, no hierarchy in the target",
    ),
    Method(
        "hace_shuffled",
        "HACE, shuffled tree",
        _loss("hace"),
        diluted=True,
        shuffled=True,
        control="a tree of the same shape without meaning; above the leaves it is judged by its leaves alone",
    ),
    Method(
        "ancestral",
        "ancestral smoothing, no aggregation",
        _loss("ancestral_smoothing"),
        diluted=True,
        control="the target without the aggregation",
    ),
    Method(
        "hace_leaves",
        "HACE's table on leaf outputs",
        _loss("hace_leaves"),
        diluted=True,
        control="the same target without outputs for inner nodes",
    ),
)
_OTHERS = (
    # A tree made from the training samples in place of the given one.
    Method("hace_induced", "HACE, induced tree", _loss("hace"), diluted=True, induced=2),
    Method("sce_paths_induced", "SCE, path sums, induced tree", _loss("cross_entropy_paths"), induced=2),
    Method("soft_margin_induced", "soft margin τ=1, induced tree", _loss("soft_margin"), induced=2),
    # The dilution chosen with the rate, among as many candidates as every other method has; and one near cross-entropy.
    Method("hace_tuned", "HACE, tuned d", _loss("hace"), tuned=(0.2, 0.5, 0.7)),
    Method("hace_0.9", "HACE d=0.9", _loss("hace", dilution=0.9)),
    # Other profiles of HACE's mass along the path, and its soft labels read literally.
    Method("hace_uniform", "HACE, uniform profile", _loss("hace", level_weights="uniform")),
    Method("hace_linear", "HACE, linear profile", _loss("hace", level_weights="linear")),
    Method(
        "hace_mixed10",
        "HACE, 0.9 one-hot + 0.1 soft labels β=10",
        _loss("hace", label_smoothing=0.1, soft_label_beta=10.0),
        diluted=True,
    ),
    Method(
        "hace_mixed30",
        "HACE, 0.9 one-hot + 0.1 soft labels β=30",
        _loss("hace", label_smoothing=0.1, soft_label_beta=30.0),
        diluted=True,
    ),
    # HXE as its paper's words have it, and as its published code divides it.
    Method("hxe_height_0.2", "HXE α=0.2, decay by height", _loss("hxe", alpha=0.2, decay="height")),
    Method("hxe_height_0.5", "HXE α=0.5, decay by height", _loss("hxe", alpha=0.5, decay="height")),
    Method(
        "hxe_tree_0.2",
        "HXE α=0.2, normalised",
        _loss("hxe", alpha=0.2, normalize="tree"),
        rate_factor=128.0,
    ),
    Method(
        "hxe_tree_0.5",
        "HXE α=0.5, normalised",
        _loss("hxe", alpha=0.5, normalize="tree"),
        rate_factor=128.0,
    ),
    # Path sums: relatives share their ancestors' outputs.
    Method("sce_paths", "SCE, path sums", _loss("cross_entropy_paths", sharing=1.0)),
    Method("hace_paths", "HACE, path sums", _loss("hace_paths", sharing=1.0), diluted=True),
    Method("sce_paths_0.5", "SCE, path sums s=0.5", _loss("cross_entropy_paths", sharing=0.5)),
    Method(
        "sce_paths_shuffled",
        "SCE, path sums, shuffled tree",
        _loss("cross_entropy_paths", sharing=1.0),
        shuffled=True,
    ),
    Method("hace_paths_0.5", "HACE, path sums s=0.5", _loss("hace_paths", sharing=0.5), diluted=True),
    # Other baselines.
    Method("conditional", "conditional softmax", _loss("conditional_softmax")),
    Method("simloss_0.1", "SimLoss r=0.1", _loss("simloss", reduction_factor=0.1)),
    Method("simloss", "SimLoss r=0.5", _loss("simloss")),
    Method("expected_distance", "expected distance", _loss("expected_distance")),
    Method("soft_margin", "soft margin τ=1", _loss("soft_margin")),
    Method("soft_margin_5", "soft margin τ=5", _loss("soft_margin", margin=5.0)),
    Method("levelwise", "one classifier per level, product", _loss("levelwise")),
    Method("levelwise_leaf", "one classifier per level, best leaf", _loss("levelwise", answers="leaf")),
    Method(
        "levelwise_top_down", "one classifier per level, top-down", _loss("levelwise", answers="top_down")
    ),
    Method("embedding", "class embeddings", _loss("class_embedding"), rate_factor=1 / 16),
    Method("embedding_ce0.1", "class embeddings + 0.1 CE", _loss("class_embedding", cross_entropy=0.1)),
    Method("embedding_ce1", "class embeddings + CE", _loss("class_embedding", cross_entropy=1.0)),
    # Hyperplanes in the Poincare ball in place of a linear layer.
    Method("sce_poincare", "SCE, hyperbolic head", _loss("cross_entropy"), head=HeadConfig("poincare")),
    Method(
        "hace_poincare", "HACE, hyperbolic head", _loss("hace"), diluted=True, head=HeadConfig("poincare")
    ),
    # What coarse labels are worth.
    Method("sce_drop", "SCE, coarse labels dropped", _loss("cross_entropy"), drops=True),
    Method(
        "paths_drop",
        "path sums, coarse labels dropped",
        _loss("cross_entropy_paths", sharing=1.0),
        drops=True,
    ),
)
METHODS: dict[str, Method] = {method.key: method for method in (*_PAPER, *_CONTROLS, *_OTHERS)}
PAPER_METHODS = tuple(method.key for method in _PAPER)
CONTROLS = tuple(method.key for method in _CONTROLS)
PROFILES = ("hace", "hace_uniform", "hace_linear")
DROPPING = tuple(key for key, method in METHODS.items() if method.drops)


def _one_of_each_loss() -> Iterator[str]:
    """The first method of every loss that takes labels at any level; trees of its own have none above the leaves."""
    seen = set()
    for key, method in METHODS.items():
        loss = method.loss.name
        if not (
            method.shuffled or method.induced or method.drops or loss in seen
        ) and "labels" in loss_parameters(loss):
            seen.add(loss)
            yield key


NODE_METHODS = tuple(_one_of_each_loss())


def find_method(text: str) -> Method:
    """A method by its key, or any loss with its parameters.

    Raises:
        ConfigError: With the nearest known key, or what is wrong with a parameter.

    Example:
        >>> find_method("hxe_0.2").title, find_method("hace:dilution=0.3:label_smoothing=0.1").loss.options["dilution"]
        ('HXE α=0.2', 0.3)
    """
    if text in METHODS:
        return METHODS[text]
    name, *parameters = text.split(":")
    if name not in LOSSES:
        known = (*METHODS, *LOSSES)
        raise ConfigError(
            f"A method must be one of {', '.join(METHODS)}, or a loss with its parameters, as in hace:dilution=0.3. "
            f"Got {text!r}.{nearest(name, known)}"
        )
    options: dict[str, Any] = {}
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = value
    return Method(text, text, LossConfig(name, options))


def run_title(config: RunConfig) -> str:
    """A run by name.

    Example:
        >>> from hace.lab.runs.config import ProbeConfig
        >>> run_title(ProbeConfig(loss=LossConfig("hace", {"dilution": 0.5}), lr=16.0))
        'HACE d=0.5, lr 16'
        >>> run_title(ProbeConfig(loss=LossConfig("soft_label", {"beta": 4.0}), lr=0.5, seed=2))
        'soft_label beta=4, lr 0.5, seed 2'
    """
    tree = "" if config.data.shuffle is None else ", shuffled tree"
    tree += "" if config.data.induce is None else ", induced tree"
    seed = f", seed {config.seed}" if config.seed else ""
    return f"{_loss_title(config.loss)}{tree}, lr {config.lr:g}{seed}"


def without_common_end(names: Sequence[str]) -> list[str]:
    """Names of runs without the settings at their end that all of them share; as they are where that leaves them alike.

    Example:
        >>> without_common_end(["SCE, path sums, lr 8, seed 2", "SCE, lr 8, seed 2"])
        ['SCE, path sums', 'SCE']
        >>> without_common_end(["SCE, lr 8", "SCE, lr 8, seed 2"])
        ['SCE, lr 8', 'SCE, lr 8, seed 2']
    """
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
    path = Path(data.root)
    try:
        if path.is_dir():
            from hace.lab.features.store import FeatureStore

            model = FeatureStore(path).manifest["model"]["name"]
        else:
            model = feature_model(path) if path.is_file() else None
    except HaceError:  # the survey of the data says what is wrong with them
        model = None
    known = model is not None and model.lower().replace("-", "_").startswith(
        (DINOV2, "vit_large_patch14_dinov2")
    )
    return DINOV2 if known else model or "features"
