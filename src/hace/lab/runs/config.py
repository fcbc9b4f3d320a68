"""What a run is: data, loss, seed, protocol. Probes add their optimiser, end-to-end training its model.

A run's id is a hash of what decides its result: the deciding settings and the fingerprint of the data. Paths, device, executor
and study are not part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

from hace.data import DATASETS
from hace.data.catalog import given_path
from hace.errors import ConfigError, HaceError, nearest
from hace.files.writing import sha256
from hace.hierarchy import Hierarchy
from hace.lab.models import check_model_name
from hace.losses.advice import recommended_loss
from hace.losses.base import SHARED
from hace.losses.poincare_head import PoincareBall
from hace.losses.registry import LOSSES, build_loss, loss_parameters
from hace.settings import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, RATE, SHARE, Config, Rule, setting

ID_LENGTH = 16
Validation = float | Literal["split"]  # a share of the training samples, or the data's own validation split
_VALIDATION = Rule("at least 0 and less than 1, or 'split'", lambda v: v == "split" or 0 <= v < 1)
_LBFGS = ("optimizer", "lbfgs")  # all samples at once, to convergence
# Part of every run's id. Bump it when results change: old runs are then no longer reused.
ALGORITHM = 1


@dataclass(frozen=True)
class LabelsConfig(Config):
    """What is known of the training labels. Held-out and test samples keep their true labels.

    Attributes:
        coarse: Share of the samples of each class that are labelled only to an ancestor; at least one keeps its label.
        fine: Samples per class that keep their label; all others are labelled only to an ancestor.
        to: The ancestor for coarse labels: "parent", "top" (below the root), or a level by number (tops have 1) or name. A
            class without such an ancestor keeps its labels.
        wrong: Share of the samples of each class that get another class's label.
        within: Where wrong labels come from: the same "parent", or "anywhere". A class alone under its parent keeps its labels.
        drop: Whether to train only on samples labelled to a leaf.
    """

    coarse: float = setting(0.0, SHARE)
    fine: int | None = setting(None, AT_LEAST_ONE)
    to: int | str = setting("parent")
    wrong: float = setting(0.0, SHARE)
    within: Literal["parent", "anywhere"] = setting("parent")
    drop: bool = setting(False)

    def conflicts(self) -> list[str]:
        """A share and a number of known labels at once."""
        if self.coarse and self.fine is not None:
            return [f"coarse must be 0 where fine is given. Got coarse={self.coarse} and fine={self.fine}."]
        return []

    @property
    def text(self) -> str:
        """In words, such as "80% parent", "1 a class + parent", "40% wrong within parent"; "" for labels as they are."""
        to = self.to if str(self.to) in ("parent", "top") else f"level {self.to}"
        parts = []
        if self.coarse:
            parts.append(f"{100 * self.coarse:g}% {'dropped' if self.drop else to}")
        if self.fine is not None:
            parts.append(f"{self.fine} a class" + ("" if self.drop else f" + {to}"))
        if self.wrong:
            where = "within parent" if self.within == "parent" else "anywhere"
            parts.append(f"{100 * self.wrong:g}% wrong {where}")
        return " and ".join(parts)


@dataclass(frozen=True)
class DataConfig(Config):
    """The samples, and the hierarchy over their classes.

    Attributes:
        name: A dataset that `hace data` lists; "features" is a file of features or a folder that `hace features` wrote.
        root: Where the data are: the folder of a dataset, a folder of `hace features`, or the file of a list or of features.
        hierarchy: Hierarchy to use in place of the dataset's own, in any form that `hace hierarchy` reads.
        root_node: Whether the hierarchy has a root; by default as in the paper for its datasets.
        options: Options of the dataset.
        shuffle: Seed for the control experiment: train on a tree with its leaves permuted. Evaluation keeps the true tree.
        labels: What is known of the training labels; by default all of them, as they are.
        induce: Levels of groups above the classes of a tree made from the training features, to train on. Evaluation keeps
            the true tree.
        votes: A table of opinions about training samples, with the columns sample and label. Their shares replace the label;
            see `hace consensus`.
        skip_broken: Whether to leave out images that cannot be read; they are listed at the end.
    """

    name: str = setting("synthetic-features")
    root: str | None = setting(None, decides=False)
    hierarchy: str | None = setting(None, decides=False)
    root_node: bool | None = setting(None)
    options: Mapping[str, Any] = setting({})
    shuffle: int | None = setting(None, AT_LEAST_ZERO)
    labels: LabelsConfig = setting(LabelsConfig)  # noqa: RUF009
    induce: int | None = setting(None, AT_LEAST_ONE)
    votes: str | None = setting(None, decides=False)  # the fingerprint of the data has them
    skip_broken: bool = setting(False, decides=False)

    def conflicts(self) -> list[str]:
        """An unknown dataset or option, two trees to train on, or labels of two kinds."""
        if self.votes is not None and self.labels != LabelsConfig():
            return ["votes must come without labels: both say what is known of the training labels."]
        if self.shuffle is not None and self.induce is not None:
            return ["shuffle and induce must not come together: a run trains on one tree."]
        own = DATASETS[self.name].options if self.name in DATASETS else ()
        if self.hierarchy is not None and self.name in DATASETS:
            return []  # other options are for the reader of the hierarchy, which refuses what it does not know
        return _unknown(self, DATASETS, own, "an option")


@dataclass(frozen=True)
class LossConfig(Config):
    """A loss and its parameters.

    Attributes:
        name: A name in `hace.LOSSES`.
        options: Its parameters. Missing ones get their defaults, written out, so that the configuration is complete.
    """

    name: str = setting(recommended_loss(coarse=False).loss)
    options: Mapping[str, Any] = setting({})

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {k: v for k, v in loss_parameters(self.name).items() if k not in SHARED}
        options = {k: _one_kind(self.options.get(k, default)) for k, default in own.items()}
        object.__setattr__(self, "options", options)

    def conflicts(self) -> list[str]:
        """An unknown loss or parameter. Values are the loss's own to check, when it is built for the data's hierarchy."""
        own = [k for k in loss_parameters(self.name) if k not in SHARED] if self.name in LOSSES else ()
        return _unknown(self, LOSSES, own, "a parameter")

    @classmethod
    def parse(cls, text: str) -> LossConfig:
        """A loss from its name and parameters.

        Example:
            >>> LossConfig.parse("hxe:alpha=0.2:decay=height").options["decay"]
            'height'
        """
        name, *parameters = text.split(":")
        options = {}
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            options[key] = _parsed_value(value)
        try:
            return cls(name, options)
        except ConfigError as error:
            raise ConfigError([f"loss.{problem}" for problem in error.problems]) from None

    @property
    def text(self) -> str:
        """The loss as :meth:`parse` reads it, without the parameters that have their default.

        Example:
            >>> LossConfig("hace", {"dilution": 0.3, "label_smoothing": 0}).text
            'hace:dilution=0.3'
        """
        usual = LossConfig(self.name).options
        changed = {key: value for key, value in self.options.items() if value != usual[key]}
        words = {key: v if isinstance(v, str) else json.dumps(v) for key, v in changed.items()}
        return ":".join([self.name, *(f"{key}={word}" for key, word in words.items())])

    def build(self, hierarchy: Hierarchy, labels: Literal["leaves", "nodes"] = "leaves") -> Any:
        """The loss for a hierarchy."""
        return build_loss(self.name, hierarchy, labels=labels, **self.options)


def _parsed_value(text: str) -> Any:
    """A number, a truth value or None where the text is one in JSON; numbers are float."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _unknown(
    config: DataConfig | LossConfig, names: Iterable[str], own: Iterable[str], word: str
) -> list[str]:
    """What is wrong with a name, or with the options beside it."""
    name = config.name
    if name not in names:
        if isinstance(config, DataConfig) and isinstance(name, str) and os.path.exists(name):
            return [f"name {given_path(name)}"]
        return [f"name must be one of {', '.join(names)}. Got {name!r}.{nearest(name, names)}"]
    has = ", ".join(own) or "none"
    stray = [option for option in config.options if option not in own]
    return [f"options.{o} is not {word} of {name!r}. Known: {has}.{nearest(o, own)}" for o in stray]


@dataclass(frozen=True)
class HeadConfig(Config):
    """The last layer.

    Attributes:
        name: "linear", or "poincare": hyperplanes in the Poincare ball, a hyperbolic last layer.
        curvature: The curvature of the ball.
        clip: The longest feature vector that enters the ball.
    """

    name: Literal["linear", "poincare"] = setting("linear")
    curvature: float = setting(1.0, POSITIVE)
    clip: float = setting(1.0, POSITIVE)

    def conflicts(self) -> list[str]:
        """Settings of the ball that it refuses, or that a linear layer has no use for."""
        if self.name == "linear":
            stray = [f for f in ("curvature", "clip") if getattr(self, f) != 1.0]
            return [f"{f} must come with head.name=poincare. Got {getattr(self, f)}." for f in stray]
        try:
            PoincareBall(self.curvature, self.clip)
        except ConfigError as error:
            return [str(error)]
        return []

    @property
    def ball(self) -> PoincareBall | None:
        """The ball of a hyperbolic layer."""
        return None if self.name == "linear" else PoincareBall(self.curvature, self.clip)


def _one_kind(value: Any) -> Any:
    """1, 1.0 and numpy's 1 as one number, so that they are one run; no loss has a count as its parameter."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


@dataclass(frozen=True)
class RunConfig(Config):
    """Settings that every run has.

    Attributes:
        data: The samples and their hierarchy.
        loss: The loss.
        head: The last layer.
        seed: Random seed of initialisation, batch order and the validation split.
        validation: Samples held out of training. "split": the data's own validation split. A share, such as 0.1: that part of
            the training samples, stratified and drawn by the seed; the data's own validation split is then unused. 0: none,
            and a validation split is trained on too (default of the commands: split if the data have one, else 0).
        evaluate: The split of the result: "test", or "val" to select on held-out samples.
        epochs: Passes over the training samples.
        batch_size: Samples per step, over all processes.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases have none.
        momentum: Momentum of SGD; the first beta of AdamW.
        temperature: Divisor of the scores for calibrated metrics, which are shown beside the raw ones. A run with held-out
            samples fits its own; a study passes the one from its search to the final run.
        start: Initial weights of the last layer: "random", as in torch.nn.Linear, or "zeros". "auto" takes zeros if some
            training samples are labelled above the leaves: below such a label, losses reinforce whatever random weights
            prefer. Hyperbolic heads, and models that do not end in one linear layer, always start at random.
        keep: Whether to keep weights and predictions beside the result. A search over many rates needs neither, only its
            accuracy and temperature on held-out samples.
    """

    kind: ClassVar[str] = ""

    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    head: HeadConfig = setting(HeadConfig)  # noqa: RUF009
    seed: int = setting(0, AT_LEAST_ZERO)
    validation: float | Literal["split"] = setting(0.0, _VALIDATION)
    evaluate: Literal["test", "val"] = setting("test")
    epochs: int = setting(30, AT_LEAST_ONE, unless=_LBFGS)
    batch_size: int = setting(256, AT_LEAST_ONE, unless=_LBFGS)
    lr: float = setting(1.0, RATE, unless=_LBFGS)
    weight_decay: float = setting(0.0, AT_LEAST_ZERO)
    momentum: float = setting(0.9, SHARE, unless=_LBFGS)
    temperature: float | None = setting(None, POSITIVE, decides=False)
    start: Literal["auto", "random", "zeros"] = setting("auto")
    keep: bool = setting(True, decides=False)

    def conflicts(self) -> list[str]:
        """A result on validation samples where none are held out."""
        if self.evaluate == "val" and not self.validation:
            return ["evaluate='val' needs held-out samples. Got validation=0: set it to 0.1, say."]
        return []

    def identity(self, data_fingerprint: str) -> str:
        """The run's id: 16 hexadecimal digits of a hash of what decides its result."""
        document = {"algorithm": ALGORITHM, "kind": self.kind, "config": self.deciding()}
        document["data"] = data_fingerprint
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


@dataclass(frozen=True)
class ProbeConfig(RunConfig):
    """A linear layer, or a hyperbolic one, on frozen features.

    Attributes:
        normalize: "unit" scales each vector to length 1, as in the paper; "standard" standardises each column by the training
            samples; "none" leaves the features alone.
        optimizer: "sgd" with momentum, "adamw", or "lbfgs" with all samples at once, to convergence.
        schedule: "cosine" to 0 over all steps, or "constant".
        steps: Steps instead of epochs, the same number for few samples as for many; rounded to whole epochs.
        bias: Whether the layer has a bias.
        patience: Epochs without a better validation accuracy before training stops; the best epoch is kept.
        tolerance: Largest gradient at which L-BFGS stops.
        max_iter: Largest number of L-BFGS iterations.
    """

    kind: ClassVar[str] = "probe"

    normalize: Literal["unit", "standard", "none"] = setting("unit")
    optimizer: Literal["sgd", "adamw", "lbfgs"] = setting("sgd")
    schedule: Literal["cosine", "constant"] = setting("cosine", unless=_LBFGS)
    steps: int | None = setting(None, AT_LEAST_ONE, unless=_LBFGS)
    bias: bool = setting(True)
    patience: int | None = setting(None, AT_LEAST_ONE)
    tolerance: float = setting(1e-6, POSITIVE, only=_LBFGS)
    max_iter: int = setting(1000, AT_LEAST_ONE, only=_LBFGS)

    def conflicts(self) -> list[str]:
        """Also an early stop without validation samples."""
        problems = super().conflicts()
        if self.patience is not None and not self.validation:
            problems.append("patience needs held-out samples. Got validation=0: set it to 0.1, say.")
        if self.head.name == "poincare" and (self.optimizer == "lbfgs" or self.start == "zeros"):
            problems.append(
                "head.name=poincare must come with optimizer sgd or adamw and start random or auto. "
                f"Got {self.optimizer} and {self.start}."
            )
        return problems


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """A model trained end to end on images.

    Attributes:
        weight_decay: Weight decay: added to the gradient (sgd), or decoupled (adamw).
        model: One of the paper's six (resnet18, resnet34, resnet50, convnext_tiny, swin_tiny, vit_base), or any timm name.
        image_size: Side of the images in pixels (default: 32 for CIFAR-100, 224 for images on disk).
        dropout: Dropout rate.
        drop_path: Rate of stochastic depth.
        init_from: A file of weights to start from (.safetensors, or a torch file of tensors), for fine-tuning.
        init_head: What to do with the file's head: "fit" keeps it (its size must match the loss), "drop" starts a new one.
        init_hash: sha256 of that file, which decides the result wherever the file is. Filled in automatically.
        per_class: Training samples per class, drawn by the seed (default: all).
        optimizer: "sgd" with momentum, or "adamw".
        schedule: "cosine" to 0 over all steps, "warmup_cosine" with a linear start before it, or "constant".
        warmup_epochs: Epochs of warm-up, with schedule warmup_cosine.
        accumulate: Parts in which a batch goes through the model, to save memory. Batch norms see one part at a time.
        clip_norm: Largest norm of the gradient.
        augment: "standard": random flips, with crops of the zero-padded image at 32 px, random resized crops on disk. "none":
            training images as they are.
        mixup_alpha: Alpha of mixup; 0 switches it off.
        cutmix_alpha: Alpha of CutMix; 0 switches it off. With both, each batch gets one of them.
        precision: Precision of the model. "bf16" and "fp16" use autocast; the loss is always in float32.
        ema_decay: Decay per step of an average of the weights, which is evaluated and kept; 0 switches it off.
        channels_last: Store images channels-last, which makes convolutions faster on some devices.
        device: cpu, cuda, cuda:1, mps; "auto" takes an accelerator if there is one.
        workers: Processes that read images from disk; default: 0 on a CPU, else one per processor, up to 8.
        curve_epochs: Epochs between points of the learning curves: top-1, top-5, severity (levels off) and accuracy by level
            on the evaluated samples go to the log. They choose nothing (default: no curves).
        checkpoint_seconds: Seconds between checkpoints.
        checkpoint_steps: Also write a checkpoint after this many steps.
        tensorboard: Whether to write the log for TensorBoard too.
        timeout: Seconds to wait for the other processes of a job before giving up.
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
    curve_epochs: int | None = setting(None, AT_LEAST_ONE, decides=False)
    checkpoint_seconds: float = setting(300.0, POSITIVE, decides=False)
    checkpoint_steps: int | None = setting(None, AT_LEAST_ONE, decides=False)
    tensorboard: bool = setting(False, decides=False)
    timeout: float = setting(600.0, POSITIVE, decides=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_from is not None and self.init_hash is None:
            object.__setattr__(self, "init_hash", sha256(Path(self.init_from)))

    def conflicts(self) -> list[str]:
        """Also features instead of images, an unknown model, a warm-up that does not fit, missing weights."""
        problems = super().conflicts()
        try:
            check_model_name(self.model)
        except ConfigError as error:
            problems.append(str(error))
        except HaceError:
            pass  # without timm runs can still be read
        return [*problems, *self._data_conflicts(), *self._schedule_conflicts(), *self._weight_conflicts()]

    def _data_conflicts(self) -> Iterator[str]:
        if DATASETS[self.data.name].size is None:
            yield f"data.name {self.data.name!r} must hold images. It holds features."
        few = self.per_class
        if few is not None and self.data.labels != LabelsConfig():
            yield (
                f"per_class must be left out with data.labels. Got {few}. data.labels.fine={few} with data.labels.drop=true "
                "trains on as many of each class."
            )

    def _schedule_conflicts(self) -> Iterator[str]:
        warmup = self.warmup_epochs
        if warmup and self.schedule != "warmup_cosine":
            yield (
                f"warmup_epochs is {warmup}, and the schedule {self.schedule!r} has no warm-up: take 'warmup_cosine', or 0."
            )
        if warmup >= self.epochs:
            yield f"warmup_epochs must be fewer than epochs. Got {warmup} of {self.epochs}."
        if self.accumulate > self.batch_size:
            yield f"accumulate must be at most batch_size. Got {self.accumulate} parts of {self.batch_size}."

    def _weight_conflicts(self) -> Iterator[str]:
        weights = self.init_from
        if self.head.name == "poincare" and self.start == "zeros":
            yield "head.name=poincare must come with start random or auto. Got zeros."
        if weights is None and self.init_hash:
            yield "init_hash is the hash of init_from, which is not given."
        if weights is not None and self.init_hash is None and not Path(weights).is_file():
            yield f"init_from must be a file of weights, and {weights} is not one."
