"""Linear heads side by side: they share each batch, and heads with the same loss share its call.

Products and updates run head by head, on tensors of the shape and alignment they would have alone. So a head has the bits it
would have alone, which one product for all heads does not guarantee: on some processors its bits depend on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from hace.checks import check_choice, check_count, is_number, require
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
        require("lr", self.lr, "a number above 0", is_number(self.lr) and self.lr > 0)
        fits = is_number(self.weight_decay) and self.weight_decay >= 0
        require("weight_decay", self.weight_decay, "a number >= 0", fits)


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
        require("momentum", self.momentum, "in [0, 1)", fits)
        fits = is_number(self.tolerance) and self.tolerance > 0
        require("tolerance", self.tolerance, "a number above 0", fits)
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


LARGE = 10_000  # outputs above which the logits of a batch are never held whole
_TINY = 1e-30  # a batch without weight moves nothing
_ALIGNMENT = 64  # bytes: how torch aligns what it allocates
_STATE = ("places", "weight", "bias", "_moments", "_bias_moments", "_steps", "_sums", "_masses")
# Constants of AdamW, as torch has them.
_BETA2 = 0.999
_EPS = 1e-8


class Heads:
    """A stack of heads that train on the same batches, from the same weights (d, C) and bias (C,).

    ``places`` are the positions of these heads among all trials of the pass; trials that share a loss object are neighbours.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        places: Sequence[int],
        losses: Sequence[HierarchicalLoss],
        weight: Tensor,
        bias: Tensor,
        optimization: Optimization,
    ) -> None:
        self.places = list(places)
        self._trials = trials
        self._losses = losses
        self._options = optimization
        self._steps = 0
        count = len(self.places)
        moments = {"sgd": 1, "adamw": 2}[optimization.optimizer]
        self.weight = [weight.clone() for _ in range(count)]  # (d, C) each
        self.bias = [bias[None].clone() for _ in range(count)]  # (1, C) each
        self._moments = [[torch.zeros_like(weight) for _ in range(count)] for _ in range(moments)]
        self._bias_moments = [[torch.zeros_like(bias[None]) for _ in range(count)] for _ in range(moments)]
        self._scratch = torch.empty_like(weight)
        self._runs = self._neighbours()
        self.restart()

    def restart(self) -> None:
        """Forget the losses of the epoch."""
        self._sums = torch.zeros(len(self.places), dtype=torch.float64)
        self._masses = torch.zeros(len(self.places), dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        """What changes in training."""
        return {name: getattr(self, name) for name in _STATE}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from another stack's state."""
        for name in _STATE:
            setattr(self, name, state[name])
        self._runs = self._neighbours()

    def mean_losses(self) -> list[float]:
        """Mean training loss of each head since :meth:`restart`."""
        return (self._sums / self._masses.clamp(min=torch.finfo(torch.float64).tiny)).tolist()

    def scores(self, place: int, x: Tensor) -> Tensor:
        """(B, C) logits of one head."""
        if self._options.ball is not None:
            return self._options.ball.logits(x, self.weight[place].t(), self.bias[place][0])
        return torch.addmm(self.bias[place], x, self.weight[place])

    def not_finite(self) -> list[int]:
        """The heads (positions in ``places``) whose weights are out of range."""
        return [h for h, weight in enumerate(self.weight) if not bool(weight.isfinite().all())]

    def drop(self, gone: Sequence[int]) -> list[int]:
        """Remove heads by position; returns their places."""
        if not gone:
            return []
        remaining = [h for h in range(len(self.places)) if h not in gone]
        lost = [self.places[h] for h in gone]
        self.places = [self.places[h] for h in remaining]
        self.weight = [self.weight[h] for h in remaining]
        self.bias = [self.bias[h] for h in remaining]
        self._moments = [[m[h] for h in remaining] for m in self._moments]
        self._bias_moments = [[m[h] for h in remaining] for m in self._bias_moments]
        self._sums = self._sums[remaining]
        self._masses = self._masses[remaining]
        self._runs = self._neighbours()
        return lost

    def step(self, x: Tensor, target: Tensor, weight: Tensor | None, factor: float) -> list[int]:
        """One step of every head on one batch; returns the places of heads removed for a non-finite loss."""
        self._steps += 1
        if self._scratch.shape[1] > LARGE or self._options.ball is not None:
            return self._single_steps(x, target, weight, factor)
        logits = [torch.addmm(b, x, w) for b, w in zip(self.bias, self.weight, strict=True)]
        z = torch.stack(logits)  # (H, B, C)
        grad, sums, masses = self._loss_gradient(z, target, weight)
        self._sums += sums
        self._masses += masses
        lost: list[int] = []
        fine = sums.isfinite()
        if not bool(fine.all()):
            lost = self.drop((~fine).nonzero().flatten().tolist())
            grad = grad[fine]
        if self.places:
            self._update(x, grad, factor)
        return lost

    def _loss_gradient(
        self, z: Tensor, target: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(H, B, C) gradient of B times the mean loss, (H,) weighted sums of losses and (H,) sums of weights."""
        batch = z.shape[1]
        parts = []
        sums = torch.zeros(len(z), dtype=torch.float64)
        masses = torch.zeros(len(z), dtype=torch.float64)
        for first, last, loss in self._runs:
            leaf = z[first:last].view(-1, z.shape[2]).requires_grad_()
            masses[first:last] = mass = total_weight(loss, target, weight)
            with torch.enable_grad():
                each = loss(leaf, target.repeat(last - first, *(1 for _ in target.shape[1:])))
                each = each if weight is None else each * weight.repeat(last - first)
                # A batch without weight moves nothing.
                total = each.sum() * (batch / mass if mass > 0 else 0.0)
            # A matrix product has other bits on transposed memory, which some losses return and torch.cat would undo.
            gradient = torch.autograd.grad(total, leaf)[0].contiguous()
            parts.append(gradient.view(last - first, batch, -1))
            sums[first:last] = each.detach().view(last - first, batch).sum(dim=1).double()
        return (parts[0] if len(parts) == 1 else torch.cat(parts)), sums, masses

    def _single_steps(self, x: Tensor, target: Tensor, weight: Tensor | None, factor: float) -> list[int]:
        """One step, a head at a time: heads too large for the logits of a batch, and hyperbolic ones."""
        ball = self._options.ball
        lost: list[int] = []
        for h, place in enumerate(self.places):
            layer = (self.weight[h].detach().requires_grad_(), self.bias[h].detach().requires_grad_())
            loss = self._losses[place]
            mass = total_weight(loss, target, weight)
            with torch.enable_grad():
                at = x, layer[0].t(), layer[1][0]
                each = loss.linear(*at, target) if ball is None else loss(ball.logits(*at), target)
                each = each if weight is None else each * weight
                mean = each.sum() / max(mass, _TINY)
            self._sums[h] += each.detach().sum().double()
            self._masses[h] += mass
            if not bool(mean.isfinite()):
                lost.append(h)
                continue
            gradient, bias_gradient = torch.autograd.grad(mean, layer)
            if self._options.optimizer == "sgd":
                gradient = self._moments[0][h].mul_(self._options.momentum).add_(gradient)
            self._move(h, gradient, bias_gradient, factor)
        return self.drop(lost)

    def _neighbours(self) -> list[tuple[int, int, HierarchicalLoss]]:
        """Runs of heads that share a loss: first, last + 1, loss. One call computes a run."""
        losses = [self._losses[place] for place in self.places]
        runs = [list(run) for _, run in groupby(range(len(losses)), key=lambda h: id(losses[h]))]
        return [(run[0], run[-1] + 1, losses[run[0]]) for run in runs]

    def _update(self, x: Tensor, grad: Tensor, factor: float) -> None:
        """From the gradient of B times the loss with respect to the logits to the next weights."""
        inverse = 1 / grad.shape[1]
        for h, own in enumerate(grad):
            # Products of other alignments have other bits.
            own = own if own.data_ptr() % _ALIGNMENT == 0 else own.clone()
            if self._options.optimizer == "sgd":
                # The product adds to the momentum in place: no gradient is stored.
                gradient = self._moments[0][h].addmm_(x.T, own, beta=self._options.momentum, alpha=inverse)
            else:
                gradient = torch.addmm(self._scratch, x.T, own, beta=0, alpha=inverse, out=self._scratch)
            self._move(h, gradient, own.sum(dim=0, keepdim=True).mul_(inverse), factor)

    def _move(self, h: int, gradient: Tensor, bias_gradient: Tensor, factor: float) -> None:
        """The next weights of a head; with "sgd" the gradient is the momentum, this step's share included."""
        trial = self._trials[self.places[h]]
        options = self._options
        rate = trial.lr * factor
        decay = trial.weight_decay
        weight = self.weight[h]
        if options.optimizer == "adamw":  # as torch.optim.AdamW: decay apart from the gradient
            if decay:
                weight.mul_(1 - rate * decay)
            self._adam(weight, self._moments, h, gradient, rate)
            if options.bias:
                self._adam(self.bias[h], self._bias_moments, h, bias_gradient, rate)
            return
        # buf = momentum buf + gradient + decay W; W = W - rate buf
        if decay:
            gradient.add_(weight, alpha=decay)
        weight.add_(gradient, alpha=-rate)
        if options.bias:
            moment = self._bias_moments[0][h].mul_(options.momentum).add_(bias_gradient)
            self.bias[h].add_(moment, alpha=-rate)

    def _adam(
        self, value: Tensor, moments: list[list[Tensor]], h: int, gradient: Tensor, rate: float
    ) -> None:
        """Both moments are corrected for their start at 0."""
        first, second = (m[h] for m in moments)
        beta1 = self._options.momentum
        first.lerp_(gradient, 1 - beta1)
        second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        correction = math.sqrt(1 - _BETA2**self._steps)
        below = torch.sqrt(second, out=gradient).div_(correction).add_(_EPS)  # overwrites the gradient
        value.addcdiv_(first, below, value=-rate / (1 - beta1**self._steps))


def total_weight(loss: HierarchicalLoss, target: Tensor, weight: Tensor | None) -> float:
    """What a mean is divided by: sum w, as with torch's class weights. Losses of samples already include those."""
    # Losses ignore no soft target, and a mean over them counts samples.
    by_label = not target.is_floating_point()
    ignoring = by_label and 0 <= loss.ignore_index < loss.num_labels
    weighting = by_label and loss.label_weight is not None
    if weight is None and not weighting and not ignoring:
        return float(len(target))
    mass = torch.ones(len(target), device=target.device).double() if weight is None else weight.double()
    if weighting and loss.label_weight is not None:
        mass = mass * loss.label_weight[target]
    if ignoring:
        mass = mass * (target != loss.ignore_index)
    return float(mass.sum())
