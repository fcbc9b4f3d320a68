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
    """A loss with its parameters, as tables name it."""

    key: str  # short and stable; results, and the paper's printed numbers, are joined by it
    title: str  # for people
    loss: LossConfig  # the loss; a diluted method takes its d from the cell
    diluted: bool = False  # whether it has a dilution d
    # dilutions that its search deals out to the rates in turn, so that it has as many candidates as any other
    tuned: tuple[float, ...] = ()
    shuffled: bool = False  # whether it trains on the shuffled tree
    # how many levels of groups the tree has that it makes from its training samples; None: the given tree
    induced: int | None = None
    drops: bool = False  # whether it trains only on samples known to a leaf
    head: HeadConfig | None = None  # its last layer; None: that of the study
    # what the rates of a search are multiplied by, for a loss on another scale; their number stays the same
    rate_factor: float = 1.0
    control: str = ""  # what comparing with it shows; empty for a method that is not a control

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


def _method(key: str, title: str, loss: str, **more: Any) -> Method:
    return Method(key, title, spelled_loss(loss), **more)


_PAPER = (
    _method("sce", "SCE", "cross_entropy"),
    _method("sce_smooth", "SCE, label smoothing 0.1", "cross_entropy:label_smoothing=0.1"),
    _method("sce_soft10", "SCE, soft labels β=10", "soft_label:beta=10"),
    _method("sce_soft30", "SCE, soft labels β=30", "soft_label:beta=30"),
    _method("hace", "HACE", "hace", diluted=True),
    _method("hace_smooth", "HACE, label smoothing 0.1", "hace:label_smoothing=0.1", diluted=True),
    _method("hace_soft10", "HACE, soft labels β=10", "hace:soft_label_beta=10", diluted=True),
    _method("hace_soft30", "HACE, soft labels β=30", "hace:soft_label_beta=30", diluted=True),
    _method("hxe_0.2", "HXE α=0.2", "hxe:alpha=0.2"),
    _method("hxe_0.5", "HXE α=0.5", "hxe:alpha=0.5"),
)
_CONTROLS = (
    _method(
        "hce", "CE over all N outputs (HACE d=1)", "hce", control="more outputs, no hierarchy in the target"
    ),
    _method(
        "hace_shuffled",
        "HACE, shuffled tree",
        "hace",
        diluted=True,
        shuffled=True,
        control="a tree of the same shape without meaning; above the leaves it is judged by its leaves alone",
    ),
    _method(
        "ancestral",
        "ancestral smoothing, no aggregation",
        "ancestral_smoothing",
        diluted=True,
        control="the target without the aggregation",
    ),
    _method(
        "hace_leaves",
        "HACE's table on leaf outputs",
        "hace_leaves",
        diluted=True,
        control="the same target without outputs for inner nodes",
    ),
)
_OTHERS = (
    # A tree made from the training samples in place of the given one.
    _method("hace_induced", "HACE, induced tree", "hace", diluted=True, induced=2),
    _method("sce_paths_induced", "SCE, path sums, induced tree", "cross_entropy_paths", induced=2),
    _method("soft_margin_induced", "soft margin τ=1, induced tree", "soft_margin", induced=2),
    # The dilution chosen with the rate, among as many candidates as every other method has; and one near cross-entropy.
    _method("hace_tuned", "HACE, tuned d", "hace", tuned=(0.2, 0.5, 0.7)),
    _method("hace_0.9", "HACE d=0.9", "hace:dilution=0.9"),
    # Other profiles of HACE's mass along the path, and its soft labels read literally.
    _method("hace_uniform", "HACE, uniform profile", "hace:level_weights=uniform"),
    _method("hace_linear", "HACE, linear profile", "hace:level_weights=linear"),
    _method(
        "hace_mixed10",
        "HACE, 0.9 one-hot + 0.1 soft labels β=10",
        "hace:label_smoothing=0.1:soft_label_beta=10",
        diluted=True,
    ),
    _method(
        "hace_mixed30",
        "HACE, 0.9 one-hot + 0.1 soft labels β=30",
        "hace:label_smoothing=0.1:soft_label_beta=30",
        diluted=True,
    ),
    # HXE as its paper's words have it, and as its published code divides it.
    _method("hxe_height_0.2", "HXE α=0.2, decay by height", "hxe:alpha=0.2:decay=height"),
    _method("hxe_height_0.5", "HXE α=0.5, decay by height", "hxe:alpha=0.5:decay=height"),
    _method("hxe_tree_0.2", "HXE α=0.2, normalised", "hxe:alpha=0.2:normalize=tree", rate_factor=128.0),
    _method("hxe_tree_0.5", "HXE α=0.5, normalised", "hxe:alpha=0.5:normalize=tree", rate_factor=128.0),
    # Path sums: relatives share their ancestors' outputs.
    _method("sce_paths", "SCE, path sums", "cross_entropy_paths:sharing=1"),
    _method("hace_paths", "HACE, path sums", "hace_paths:sharing=1", diluted=True),
    _method("sce_paths_0.5", "SCE, path sums s=0.5", "cross_entropy_paths:sharing=0.5"),
    _method("sce_paths_shuffled", "SCE, path sums, shuffled tree", "cross_entropy_paths", shuffled=True),
    _method("hace_paths_0.5", "HACE, path sums s=0.5", "hace_paths:sharing=0.5", diluted=True),
    # Other baselines.
    _method("conditional", "conditional softmax", "conditional_softmax"),
    _method("simloss_0.1", "SimLoss r=0.1", "simloss:reduction_factor=0.1"),
    _method("simloss", "SimLoss r=0.5", "simloss"),
    _method("expected_distance", "expected distance", "expected_distance"),
    _method("soft_margin", "soft margin τ=1", "soft_margin:margin=1"),
    _method("soft_margin_5", "soft margin τ=5", "soft_margin:margin=5"),
    _method("levelwise", "one classifier per level, product", "levelwise"),
    _method("levelwise_leaf", "one classifier per level, best leaf", "levelwise:answers=leaf"),
    _method("levelwise_top_down", "one classifier per level, top-down", "levelwise:answers=top_down"),
    _method("embedding", "class embeddings", "class_embedding", rate_factor=1 / 16),
    _method("embedding_ce0.1", "class embeddings + 0.1 CE", "class_embedding:cross_entropy=0.1"),
    _method("embedding_ce1", "class embeddings + CE", "class_embedding:cross_entropy=1"),
    # Hyperplanes in the Poincare ball in place of a linear layer.
    _method("sce_poincare", "SCE, hyperbolic head", "cross_entropy", head=HeadConfig("poincare")),
    _method("hace_poincare", "HACE, hyperbolic head", "hace", diluted=True, head=HeadConfig("poincare")),
    # What coarse labels are worth.
    _method("sce_drop", "SCE, coarse labels dropped", "cross_entropy", drops=True),
    _method("paths_drop", "path sums, coarse labels dropped", "cross_entropy_paths", drops=True),
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

    Example:
        >>> find_method("hxe_0.2").title, find_method("hace:dilution=0.3:label_smoothing=0.1").loss.options["dilution"]
        ('HXE α=0.2', 0.3)
    """
    if text in METHODS:
        return METHODS[text]
    name = text.split(":")[0]
    if name not in LOSSES:
        known = (*METHODS, *LOSSES)
        raise ConfigError(
            f"A method must be one of {', '.join(METHODS)}, or a loss with its parameters, as in hace:dilution=0.3. "
            f"Got {text!r}.{nearest(name, known)}"
        )
    return _method(text, text, text)


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
