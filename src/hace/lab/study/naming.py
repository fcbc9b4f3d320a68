"""What people call a run, its method, its learning rate, and a seed if it is not the first; and the model behind features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hace.data.feature_files import feature_model
from hace.errors import HaceError
from hace.lab.runs.config import DataConfig, LossConfig, RunConfig
from hace.lab.study.methods import METHODS
from hace.losses.registry import loss_parameters

DINOV2 = "dinov2_large"  # what tables call timm's vit_large_patch14_dinov2


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
