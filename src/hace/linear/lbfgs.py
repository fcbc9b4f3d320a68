"""A linear head trained to convergence: L-BFGS on all samples at once."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hace.linear.features import LabelledFeatures
from hace.linear.heads import LARGE, sample_shares
from hace.linear.trials import FittedHead, Optimization
from hace.losses.base import HierarchicalLoss
from hace.losses.head import Head

_ENTRIES = 1 << 22  # logits held at once
_SAMPLES = 4096  # samples at once where the logits of a batch are never held whole


@dataclass(frozen=True, eq=False)
class Converged:
    """What L-BFGS found: weights (d, C) and bias (C,), and how it ended."""

    weight: Tensor
    bias: Tensor
    loss: float
    steepest: float
    iterations: int
    converged: bool
    finite: bool


def converge(
    rows: LabelledFeatures,
    loss: HierarchicalLoss,
    weight_decay: float,
    options: Optimization,
    start: FittedHead | None,
) -> Converged:
    """The minimum of mean loss + weight_decay / 2 ||W||^2; the bias is not penalised.

    Logits and their gradients have the precision of the features; sums, and what L-BFGS keeps, are double. Where single
    precision is too coarse for the last steps, double precision takes them. The loss has ``reduction="none"``.
    """
    from scipy.optimize import minimize

    columns, width = rows.shape_of(loss)
    flat, steps, found = _initial(start, width, columns, options.bias), 0, None
    single = rows.like.dtype is torch.float32
    for data in (rows, rows.to(torch.float64)) if single else (rows,):
        found = minimize(
            _Objective(data, loss, weight_decay, options.bias),
            flat,
            method="L-BFGS-B",
            jac=True,
            # The gradient decides; differences of the objective only once they drown in rounding.
            options={
                "maxiter": max(1, options.max_iter - steps),
                "maxfun": 20 * options.max_iter,
                "gtol": options.tolerance,
                "ftol": 64 * np.finfo(float).eps,
            },
        )
        flat, steps = found.x, steps + int(found.nit)
        if float(np.abs(found.jac).max()) <= options.tolerance or steps >= options.max_iter:
            break
    assert found is not None
    head = torch.from_numpy(found.x).view(width + 1, columns)
    return Converged(
        weight=head[:-1],
        bias=head[-1],
        loss=float(found.fun) - weight_decay / 2 * float((head[:-1] * head[:-1]).sum()),
        steepest=float(np.abs(found.jac).max()),
        iterations=steps,
        converged=found.status == 0,
        finite=bool(np.isfinite(found.fun) and np.isfinite(found.x).all()),
    )


class _Objective:
    """Mean loss + penalty, and its gradient, as scipy asks for them: from and to one row of numbers, the bias last.

    Outputs of path sums are summed in the weights, (d + 1, N) to (d + 1, n), before any sample is seen: the logits of the
    samples, and products with the features, have one column per class.
    """

    def __init__(
        self, rows: LabelledFeatures, loss: HierarchicalLoss, weight_decay: float, bias: bool
    ) -> None:
        self._rows, self._decay, self._bias = rows, weight_decay, bias
        self._summed = loss.head if loss.head.path_sums is not None else None
        self._loss = loss if self._summed is None else _over_classes(loss)
        self._columns, self._width = rows.shape_of(loss)
        share = sample_shares(loss, rows.target, rows.weight)
        self._mass = float(len(rows)) if share is None else share.mass
        self._weight = None if share is None else share.weight.to(rows.like)
        columns = self._loss.num_outputs
        self._large = columns > LARGE and isinstance(rows.x, Tensor)
        few = _SAMPLES if self._large else max(1, _ENTRIES // columns)
        self._parts = [slice(first, first + few) for first in range(0, len(rows), few)]

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        head = torch.from_numpy(flat).view(self._width + 1, self._columns)
        with torch.enable_grad():
            outputs = head.detach().requires_grad_(self._summed is not None)
            layer = outputs if self._summed is None else self._summed.leaf_logits(outputs)  # (d + 1, C)
        used = layer.detach().to(self._rows.like)
        value, slope = 0.0, torch.zeros_like(layer, requires_grad=False)
        for part in self._parts:
            each, weight_slope, bias_slope = self._part(used, part)
            value += each
            slope[:-1] += weight_slope
            slope[-1] += bias_slope if self._bias else 0.0
        gradient = slope
        if self._summed is not None:
            with torch.enable_grad():  # a scalar: torch imports sympy to check the shape of anything else
                (gradient,) = torch.autograd.grad((layer * slope).sum(), outputs)
        gradient[:-1] += self._decay * head[:-1]
        penalty = self._decay / 2 * float((head[:-1] * head[:-1]).sum())
        return value + penalty, gradient.numpy().ravel()

    def _part(self, layer: Tensor, part: slice) -> tuple[float, Tensor, Tensor]:
        """The share of some samples: value, gradient of the weights, gradient of the bias."""
        rows, target, x = self._rows, self._rows.target[part], self._rows.x
        if self._large and isinstance(x, Tensor):
            leaves = (layer[:-1].detach().requires_grad_(), layer[-1].detach().requires_grad_())
            with torch.enable_grad():
                each = self._loss.linear(x[part], leaves[0].t(), leaves[1], target)
                each = self._weighted(each, part)
                slope, bias_slope = torch.autograd.grad(each.sum() / self._mass, leaves)
            return float(each.detach().double().sum()) / self._mass, slope, bias_slope
        z = rows.logits(part, layer[:-1], layer[-1]).requires_grad_()
        with torch.enable_grad():
            each = self._weighted(self._loss(z, target), part)
            (grad,) = torch.autograd.grad(each.sum() / self._mass, z)
        return float(each.detach().double().sum()) / self._mass, rows.slope(part, grad), grad.sum(dim=0)

    def _weighted(self, each: Tensor, part: slice) -> Tensor:
        return each if self._weight is None else each * self._weight[part]


def _over_classes(loss: HierarchicalLoss) -> HierarchicalLoss:
    """A loss of path sums as a function of the classes' logits."""
    other = copy.copy(loss)
    other.head = Head(loss.hierarchy, "leaves")
    return other


def _initial(start: FittedHead | None, width: int, columns: int, bias: bool) -> np.ndarray:
    """Initial weights: (d + 1, C) in one row, the bias last."""
    initial = np.zeros((width + 1, columns))
    if start is not None:
        initial[:-1] = start.weight.T.numpy()
        initial[-1] = start.bias.numpy() if bias and start.bias is not None else 0.0
    return initial.ravel()
