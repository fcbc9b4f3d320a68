"""What a run is: data, loss, seed, protocol. Probes add their optimiser, end-to-end training its model.

A run's id is a hash of what decides its result: the deciding settings and the fingerprint of the data. Paths, device, executor
and study are not part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Literal

from hace.errors import ConfigError, nearest
from hace.hierarchy import Hierarchy
from hace.lab.runs.labels import LabelsConfig
from hace.lab.runs.settings import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, RATE, SHARE, Config, Rule, setting
from hace.losses.base import SHARED
from hace.losses.poincare_head import PoincareBall
from hace.losses.registry import LOSSES, build_loss, loss_parameters

ID_LENGTH = 16
Validation = float | Literal["split"]  # a share of the training samples, or the data's own validation split
_VALIDATION = Rule("at least 0 and less than 1, or 'split'", lambda v: v == "split" or 0 <= v < 1)
# Part of every run's id. Bump it when results change: old runs are then no longer reused.
ALGORITHM = 1


@dataclass(frozen=True)
class DataConfig(Config):
    """The samples, and the hierarchy over their classes.

    Attributes:
        name: A data set that `hace data` lists; "features" is a file of features or a folder that `hace features` wrote.
        root: Its folder or file.
        hierarchy: A file with a hierarchy to use instead of the data set's own.
        root_node: Whether the hierarchy has a root; by default as in the paper for its data sets.
        options: Options of the data set.
        shuffle: The control experiment: train with the leaves permuted in the tree by this seed. Evaluation keeps the
            true tree.
        labels: What is known of the training labels; by default all of them, as they are.
        induce: Train on a tree made from the training samples' features, with this many levels of groups above the classes.
            Evaluation keeps the true tree.
    """

    name: str = setting("synthetic-features")
    root: str | None = setting(None, decides=False)
    hierarchy: str | None = setting(None, decides=False)
    root_node: bool | None = setting(None)
    options: Mapping[str, Any] = setting({})
    shuffle: int | None = setting(None, AT_LEAST_ZERO)
    labels: LabelsConfig = setting(LabelsConfig)  # noqa: RUF009
    induce: int | None = setting(None, AT_LEAST_ONE)

    def conflicts(self) -> list[str]:
        """An unknown data set or option, or two trees to train on."""
        from hace.data import DATASETS

        if self.shuffle is not None and self.induce is not None:
            return ["shuffle and induce must not come together: a run trains on one tree."]
        if self.name not in DATASETS:
            return [
                f"name must be one of {', '.join(DATASETS)}. Got {self.name!r}.{nearest(self.name, DATASETS)}"
            ]
        known = DATASETS[self.name].options
        return [
            f"options.{o} is not an option of {self.name!r}. Known: {', '.join(known) or 'none'}.{nearest(o, known)}"
            for o in self.options
            if o not in known
        ]


@dataclass(frozen=True)
class LossConfig(Config):
    """A loss and its parameters.

    Attributes:
        name: A name in `hace.LOSSES`.
        options: Its parameters. Missing ones get their defaults, written out, so that the configuration is complete.
    """

    name: str = setting("hace")
    options: Mapping[str, Any] = setting({})

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {k: v for k, v in loss_parameters(self.name).items() if k not in SHARED}
        options = {k: _one_kind(self.options.get(k, default)) for k, default in own.items()}
        object.__setattr__(self, "options", options)

    def conflicts(self) -> list[str]:
        """An unknown loss or parameter, or a value the loss refuses."""
        if self.name not in LOSSES:
            return [
                f"name must be one of {', '.join(LOSSES)}. Got {self.name!r}.{nearest(self.name, LOSSES)}"
            ]
        known = [k for k in loss_parameters(self.name) if k not in SHARED]
        stray = [o for o in self.options if o not in known]
        if stray:
            has = ", ".join(known) or "none"
            return [
                f"options.{o} is not a parameter of {self.name!r}. Known: {has}.{nearest(o, known)}"
                for o in stray
            ]
        try:
            self.build(_SMALLEST)
        except ConfigError as error:
            return [f"options.{error}"]
        return []

    def build(self, hierarchy: Hierarchy, labels: Literal["leaves", "nodes"] = "leaves") -> Any:
        """The loss for a hierarchy."""
        return build_loss(self.name, hierarchy, labels=labels, **self.options)


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


_SMALLEST = Hierarchy.from_edges(
    [("root", "a"), ("root", "b")]
)  # a loss checks its parameters on any hierarchy


@dataclass(frozen=True)
class RunConfig(Config):
    """Settings that every run has.

    Attributes:
        data: The samples and their hierarchy.
        loss: The loss.
        head: The last layer.
        seed: Fixes initialisation, order of batches and the validation split.
        validation: What is held out of training. A share of the training samples: stratified, chosen by the seed; 0 trains
            on all. "split": the data's own validation split.
        evaluate: The split of the result: "test", or "val" to select on held-out samples.
        epochs: Passes over the training samples.
        batch_size: Samples a step, over all processes.
        lr: The highest learning rate.
        weight_decay: Of the weights, not of biases.
        momentum: Momentum of SGD; the first beta of AdamW.
        temperature: Divides the scores for the calibrated metrics, which are shown beside the raw ones. A run that holds out
            samples fits its own on them; a study passes that of its search to the final run.
    """

    kind: ClassVar[str] = ""

    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    head: HeadConfig = setting(HeadConfig)  # noqa: RUF009
    seed: int = setting(0, AT_LEAST_ZERO)
    validation: float | Literal["split"] = setting(0.0, _VALIDATION)
    evaluate: Literal["test", "val"] = setting("test")
    epochs: int = setting(30, AT_LEAST_ONE)
    batch_size: int = setting(256, AT_LEAST_ONE)
    lr: float = setting(1.0, RATE)
    weight_decay: float = setting(0.0, AT_LEAST_ZERO)
    momentum: float = setting(0.9, SHARE)
    temperature: float | None = setting(None, POSITIVE, decides=False)

    def conflicts(self) -> list[str]:
        """A result on validation samples where none are held out."""
        if self.evaluate == "val" and not self.validation:
            return ["evaluate='val' needs held-out samples. Got validation=0: set it to 0.1, say."]
        return []

    def identity(self, data_fingerprint: str) -> str:
        """The run's id: 16 hexadecimal digits of a hash of what decides its result."""
        settings = {"kind": self.kind, "config": self.deciding()}
        document = {"algorithm": ALGORITHM, **settings, "data": data_fingerprint}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


@dataclass(frozen=True)
class ProbeConfig(RunConfig):
    """A linear layer, or a hyperbolic one, on frozen features.

    Attributes:
        normalize: "unit" scales each vector to length 1, as in the paper; "standard" takes the training mean and standard
            deviation of every column; "none" leaves the features alone.
        optimizer: "sgd" with momentum, "adamw", or "lbfgs" with all samples at once, to convergence.
        schedule: "cosine" to 0 over all steps, or "constant".
        bias: Whether the layer has one.
        start: Initial weights: "random", as in torch.nn.Linear, or "zeros"; "auto" is zeros where some training samples are
            labelled above the leaves, because losses reinforce whatever random weights prefer below such a label, and
            random for a hyperbolic head, whose normals need a direction.
        patience: Stop after this many epochs without a better validation accuracy, and keep the best epoch.
        tolerance: Of L-BFGS: it stops when the largest gradient is below this.
        max_iter: Of L-BFGS: the most iterations.
        keep: Whether to keep weights and predictions beside the result. A search over many rates needs neither: judged on
            held-out samples, it reports its top-1 accuracy and temperature alone.
    """

    kind: ClassVar[str] = "probe"

    normalize: Literal["unit", "standard", "none"] = setting("unit")
    optimizer: Literal["sgd", "adamw", "lbfgs"] = setting("sgd")
    schedule: Literal["cosine", "constant"] = setting("cosine")
    bias: bool = setting(True)
    start: Literal["auto", "random", "zeros"] = setting("auto")
    patience: int | None = setting(None, AT_LEAST_ONE)
    tolerance: float = setting(1e-6, POSITIVE)
    max_iter: int = setting(1000, AT_LEAST_ONE)
    keep: bool = setting(True, decides=False)

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
