"""The configuration of end-to-end training, and presets: the paper's recipes as functions that return one.

TrainConfig(model="resnet18", lr=0.1)          everything else has a default
PRESETS["cifar100/resnet18"](method="hace")    the paper's recipe; help() on the function says what to expect of it
preset("cifar100/resnet18/hace")               the same by one name, as the command line has it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from hace.data import DATASETS
from hace.errors import ConfigError, HaceError, nearest
from hace.files.writing import sha256
from hace.lab.runs.config import DataConfig, RunConfig
from hace.lab.runs.settings import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, SHARE, setting
from hace.lab.study.methods import METHODS
from hace.lab.train.models import check_model_name
from hace.paper import recipes


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """A model trained end to end on images.

    Attributes:
        data: The images and their hierarchy.
        epochs: Passes over the training samples.
        batch_size: Images of a step, over all processes.
        lr: The highest learning rate.
        weight_decay: Added to the gradient by SGD, apart from it by AdamW.
        model: One of the paper's six (resnet18, resnet34, resnet50, convnext_tiny, swin_tiny, vit_base), or any timm name.
        image_size: The side of the images in pixels; by default the data set's own: 32 for CIFAR-100, 224 for images on disk.
        dropout: The dropout rate.
        drop_path: The rate of stochastic depth.
        init_from: A file of weights to start from (.safetensors, or a torch file of tensors), for fine-tuning.
        init_head: "fit" takes the file's head too, which must have the loss's size; "drop" starts with a new one.
        init_hash: sha256 of that file: it decides the result, wherever the file lies. Filled in by itself.
        per_class: Train on so many samples of every class, chosen by the seed; by default on all.
        optimizer: "sgd" with momentum, or "adamw".
        schedule: "cosine" to 0 over all steps, "warmup_cosine" with a linear start before it, or "constant".
        warmup_epochs: The length of that start.
        accumulate: Parts in which a batch goes through the model, to save memory. Batch norms see one part at a time.
        clip_norm: The largest norm of the gradient.
        augment: "standard": at 32 px a crop of the image with a border of zeros, and a flip; on disk a random part, and a
            flip. "none" leaves training images as they are.
        mixup_alpha: Of mixup; 0 for none.
        cutmix_alpha: Of CutMix; 0 for none. With both, each batch gets one of them.
        precision: "bf16" and "fp16" compute under autocast; the loss is in float32 anyway.
        ema_decay: Evaluate and keep an average of the weights that decays by this factor a step; 0 for none.
        channels_last: Memory in the order that convolutions like on some devices.
        device: cpu, cuda, cuda:1, mps; "auto" takes an accelerator if there is one.
        workers: Processes that read images from disk; by default 0 on a CPU and up to 8 elsewhere.
        checkpoint_seconds: A checkpoint at least this often.
        checkpoint_steps: And after so many steps.
        tensorboard: Whether to write the log for TensorBoard too.
        keep: Whether weights and predictions stay beside the result.
        timeout: Seconds to wait for the other processes of a job before it is given up.
    """

    kind: ClassVar[str] = "train"

    data: DataConfig = field(default_factory=lambda: DataConfig("synthetic"))
    epochs: int = setting(30, AT_LEAST_ONE)
    batch_size: int = setting(128, AT_LEAST_ONE)
    lr: float = setting(0.1, POSITIVE)
    weight_decay: float = setting(1e-4, AT_LEAST_ZERO)
    model: str = setting("resnet18")
    image_size: int | None = setting(None, AT_LEAST_ONE)
    dropout: float = setting(0.0, SHARE)
    drop_path: float = setting(0.0, SHARE)
    init_from: str | None = setting(None, decides=False)
    init_head: Literal["fit", "drop"] = setting("drop")
    init_hash: str | None = setting(None)
    per_class: int | None = setting(None, AT_LEAST_ONE)
    optimizer: Literal["sgd", "adamw"] = setting("sgd")
    schedule: Literal["cosine", "warmup_cosine", "constant"] = setting("cosine")
    warmup_epochs: int = setting(0, AT_LEAST_ZERO)
    accumulate: int = setting(1, AT_LEAST_ONE)
    clip_norm: float | None = setting(None, POSITIVE)
    augment: Literal["standard", "none"] = setting("standard")
    mixup_alpha: float = setting(0.0, AT_LEAST_ZERO)
    cutmix_alpha: float = setting(0.0, AT_LEAST_ZERO)
    precision: Literal["fp32", "bf16", "fp16"] = setting("fp32")
    ema_decay: float = setting(0.0, SHARE)
    channels_last: bool = setting(False)
    device: str = setting("auto", decides=False)
    workers: int | None = setting(None, AT_LEAST_ZERO, decides=False)
    checkpoint_seconds: float = setting(300.0, POSITIVE, decides=False)
    checkpoint_steps: int | None = setting(None, AT_LEAST_ONE, decides=False)
    tensorboard: bool = setting(False, decides=False)
    keep: bool = setting(True, decides=False)
    timeout: float = setting(600.0, POSITIVE, decides=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_from is not None and self.init_hash is None:
            object.__setattr__(self, "init_hash", sha256(Path(self.init_from)))

    def conflicts(self) -> list[str]:
        """Also features instead of images, an unknown model, a warm-up that does not fit, weights that are not there."""
        problems = super().conflicts()
        if DATASETS[self.data.name].size is None:
            problems.append(f"data.name {self.data.name!r} holds features, and training needs images.")
        try:
            check_model_name(self.model)
        except ConfigError as error:
            problems.append(str(error))
        except HaceError:
            pass  # without timm nothing can be trained, but a run can be read
        if self.warmup_epochs and self.schedule != "warmup_cosine":
            problems.append(
                f"warmup_epochs is {self.warmup_epochs}, and the schedule {self.schedule!r} has no warm-up: take "
                "'warmup_cosine', or 0."
            )
        if self.warmup_epochs >= self.epochs:
            problems.append(
                f"warmup_epochs must be fewer than epochs, got {self.warmup_epochs} of {self.epochs}."
            )
        if self.accumulate > self.batch_size:
            problems.append(
                f"accumulate must be at most batch_size, got {self.accumulate} parts of {self.batch_size}."
            )
        if self.init_from is None and self.init_hash is not None:
            problems.append("init_hash is the hash of init_from, which is not given.")
        if self.init_from is not None and self.init_hash is None and not Path(self.init_from).is_file():
            problems.append(f"init_from must be a file of weights, and {self.init_from} is not one.")
        return problems


def paper_config(
    dataset: str,
    model: str,
    method: str = "hace",
    *,
    dilution: float | None = None,
    pairing: str | None = None,
    root: str | None = None,
    seed: int = 0,
) -> TrainConfig:
    """A cell of the paper's end-to-end tables.

    Args:
        dataset: "cifar100", "aircraft" or "nabirds".
        model: One of the paper's six.
        method: A key of `hace.lab.study.methods.METHODS`.
        dilution: d, of a method that has one; by default 0.5.
        pairing: "standard" or "adjusted", for the rates of the paper's pairs; by default the recipe's base rate.
        root: Where the data set lies.
        seed: Of the run.

    Raises:
        ConfigError: An unknown name, or a pairing for a method that is neither HACE nor SCE.

    Example:
        >>> config = paper_config("cifar100", "resnet18", "hace", dilution=0.2, pairing="adjusted")
        >>> config.lr, config.epochs, config.loss.options["dilution"]
        (0.5, 450, 0.2)
    """
    row = recipes.recipe(model)
    for option, value, known in (("dataset", dataset, recipes.DATASETS), ("method", method, METHODS)):
        if value not in known:
            raise ConfigError(
                f"{option} must be one of {', '.join(known)}, got {value!r}.{nearest(value, known)}"
            )
    chosen = METHODS[method]
    if dilution is not None and not chosen.diluted and pairing is None:
        raise ConfigError(f"The method {method!r} has no dilution, got {dilution}.")
    lr = row.lr
    if pairing is not None:  # SCE's rate follows from the dilution of the HACE run it is paired with
        lr = recipes.learning_rates(method, row.lr, 0.5 if dilution is None else dilution, pairing)
    return TrainConfig(
        data=DataConfig(dataset, root, shuffle=seed if chosen.shuffled else None),
        loss=chosen.loss_at(dilution) if chosen.diluted else chosen.loss,
        seed=seed,
        epochs=row.epochs[dataset],
        batch_size=row.batch_size,
        lr=lr,
        weight_decay=row.weight_decay,
        momentum=row.momentum,
        model=row.model,
        dropout=row.dropout,
        optimizer=row.optimizer,  # pyright: ignore[reportArgumentType]
        schedule=row.schedule,  # pyright: ignore[reportArgumentType]
        warmup_epochs=row.warmup_epochs,
    )


def _recipe(dataset: str, model: str) -> Callable[..., TrainConfig]:
    def build(method: str = "hace", **options: Any) -> TrainConfig:
        return paper_config(dataset, model, method, **options)

    build.__name__ = build.__qualname__ = f"{dataset}_{model}"
    build.__doc__ = (
        recipes.describe(model, dataset)
        + "\n\nArguments: method, dilution, pairing, root, seed, as of `paper_config`.\n"
    )
    return build


PRESETS: Mapping[str, Callable[..., TrainConfig]] = MappingProxyType(
    {f"{d}/{m}": _recipe(d, m) for d in recipes.DATASETS for m in recipes.RECIPES}
)
"""The paper's 18 recipes by data set and model; each function's docstring states its table, its cost and what to expect."""


def preset(name: str, root: str | None = None) -> TrainConfig:
    """A preset by one name: "cifar100/resnet18/hace", or without the method, which is then HACE.

    Raises:
        ConfigError: With the nearest known name.

    Example:
        >>> preset("nabirds/vit_base/sce").warmup_epochs
        32
    """
    recipe, method = (name, "hace") if name.count("/") < 2 else name.rsplit("/", 1)
    if recipe not in PRESETS:
        raise ConfigError(
            f"preset must be one of {', '.join(PRESETS)}, each with a method behind it or without, got {name!r}."
            f"{nearest(recipe, PRESETS)}"
        )
    return PRESETS[recipe](method, root=root)
