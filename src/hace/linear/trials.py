"""What to train, how, and what comes out: the arguments and results of :func:`hace.linear.fit_heads`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hace.checks import check_choice, check_count, check_number, is_number
from hace.errors import ConfigError
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall

_MOST = 10**9  # epochs, samples or iterations: beyond it a number is mistyped
HEAD_OPTIMIZERS = ("sgd", "adamw", "lbfgs")
HEAD_SCHEDULES = ("cosine", "constant")
HEAD_STARTS = ("random", "zeros")

EpochRecord = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One head to train.

    Trials that share one loss *object* are fastest: one call takes the logits of all.

    Attributes:
        loss: any loss of hace. Its reduction is ignored: the objective is the mean.
        lr: learning rate before the schedule. L-BFGS takes none.
        weight_decay: never acts on the bias. "sgd" and "lbfgs" minimise mean loss + weight_decay / 2 ||W||^2; "adamw"
            decays weights apart from the gradient.
    """

    loss: HierarchicalLoss
    lr: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.loss, HierarchicalLoss):
            raise ConfigError(
                f"loss must be a loss of hace, such as build_loss('hace', hierarchy). Got {type(self.loss).__name__}."
            )
        check_number("lr", self.lr, "a number above 0", is_number(self.lr) and self.lr > 0)
        fits = is_number(self.weight_decay) and self.weight_decay >= 0
        check_number("weight_decay", self.weight_decay, "a number >= 0", fits)


@dataclass(frozen=True)
class Optimization:
    """What all heads share.

    Attributes:
        optimizer: "sgd" (with momentum, as torch.optim.SGD), "adamw" (as torch.optim.AdamW) or "lbfgs" (all samples at
            once, each head alone, in double precision, until the gradient vanishes).
        schedule: "cosine", to 0 over all steps, or "constant".
        epochs: passes over the data.
        batch_size: samples per step. The last batch of an epoch may have fewer; none is dropped.
        momentum: of "sgd", in [0, 1); the first beta of "adamw".
        bias: whether the head has one.
        start: initial weights of "sgd" and "adamw": "random", as in torch.nn.Linear, or "zeros", for labels at inner nodes:
            losses reinforce whatever random weights prefer below such a label. "lbfgs" starts from zeros.
        patience: stop a head after this many epochs without a better top-1 on the validation data, and return the weights
            of its best epoch. None: train to the end and return the last ones.
        tolerance: "lbfgs" has converged when no entry of the gradient is larger.
        max_iter: maximum iterations of "lbfgs".
        ball: heads are hyperplanes in this Poincare ball; None: linear layers. It needs random weights and "sgd" or "adamw".
    """

    optimizer: str = "sgd"
    schedule: str = "cosine"
    epochs: int = 30
    batch_size: int = 256
    momentum: float = 0.9
    bias: bool = True
    start: str = "random"
    patience: int | None = None
    tolerance: float = 1e-6
    max_iter: int = 1000
    ball: PoincareBall | None = None

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, HEAD_OPTIMIZERS)
        check_choice("schedule", self.schedule, HEAD_SCHEDULES)
        check_choice("start", self.start, HEAD_STARTS)
        for name in ("epochs", "batch_size", "max_iter", "patience"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), _MOST)
        fits = is_number(self.momentum) and 0 <= self.momentum < 1
        check_number("momentum", self.momentum, "in [0, 1)", fits)
        fits = is_number(self.tolerance) and self.tolerance > 0
        check_number("tolerance", self.tolerance, "a number above 0", fits)
        check_choice("bias", self.bias, (True, False))
        if self.patience is not None and self.optimizer == "lbfgs":
            raise ConfigError("patience counts epochs, and optimizer='lbfgs' has none. Omit patience.")
        if self.ball is not None and (self.optimizer == "lbfgs" or self.start == "zeros"):
            raise ConfigError(
                "ball must come with optimizer='sgd' or 'adamw' and start='random': normals of length 0 have no gradient. "
                f"Got optimizer={self.optimizer!r} and start={self.start!r}."
            )

    def factor(self, step: int, steps: int) -> float:
        """The factor of the schedule on a rate at a step, counted from 0."""
        return 0.5 * (1 + math.cos(math.pi * step / steps)) if self.schedule == "cosine" else 1.0


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A trained head.

    Attributes:
        weight: (C, d) float32, as in torch.nn.Linear.
        bias: (C,) float32, or None.
        history: a record for each epoch, counted from 1: epoch, lr (at its first step), loss (the mean over its samples, as
            seen in training) and, with validation data, val_top1. "lbfgs" has one record: epoch (its iterations), lr (None),
            loss, gradient (its largest entry) and converged.
        diverged: epoch, step (counted from 1 over all epochs) and lr of the first non-finite loss, else None; its weights
            are then zeros.
        epochs: epochs behind these weights; 0 if it diverged.
        converged: whether "lbfgs" converged; else None.
        ball: the Poincare ball of a hyperbolic head; None: it is linear.
    """

    weight: Tensor
    bias: Tensor | None
    history: list[EpochRecord]
    diverged: EpochRecord | None
    epochs: int
    converged: bool | None = None
    ball: PoincareBall | None = None
