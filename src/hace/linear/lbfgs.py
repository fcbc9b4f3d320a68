"""A linear head trained to convergence: L-BFGS on all samples at once."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from hace.linear.features import LabelledFeatures
from hace.linear.heads import LARGE, total_weight
from hace.linear.trials import FittedHead, Optimization, Trial
from hace.losses.base import HierarchicalLoss
from hace.losses.head import Head

_ENTRIES = 1 << 22  # logits held at once
_SAMPLES = 4096  # samples at once where the logits of a batch are never held whole


@torch.no_grad()
def converged_head(
    rows: LabelledFeatures,
    trial: Trial,
    options: Optimization,
    start: FittedHead | None = None,
    dtype: torch.dtype = torch.float32,
) -> FittedHead:
    """The minimum of mean loss + weight_decay / 2 ||W||^2; the bias is not penalised.

    Logits and their gradients have the precision of the features; sums, and what L-BFGS keeps, are double. Where single
    precision is too coarse for the last steps, double precision takes them.
    """
    from scipy.optimize import minimize

    loss, decay = trial.loss.reduced_by("none"), trial.weight_decay
    columns, width = rows.shape_of(loss)
    initial = np.zeros((width + 1, columns))  # the bias last
    if start is not None:
        initial[:-1] = start.weight.T.numpy()
        initial[-1] = start.bias.numpy() if options.bias and start.bias is not None else 0.0
    flat, steps, steepest, found = initial.ravel(), 0, np.inf, None
    single = rows.like.dtype is torch.float32
    for data in (rows, rows.to(torch.float64)) if single else (rows,):
        found = minimize(
            _Objective(data, loss, decay, options.bias),
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
        steepest = float(np.abs(found.jac).max())
        if steepest <= options.tolerance or steps >= options.max_iter:
            break
    assert found is not None
    if not (np.isfinite(found.fun) and np.isfinite(flat).all()):
        diverged = {"epoch": steps, "step": steps, "lr": None}
        bias = torch.zeros(columns) if options.bias else None
        return FittedHead(torch.zeros(columns, width), bias, [], diverged, 0, converged=False)
    head = torch.from_numpy(flat).view(width + 1, columns)
    mean = float(found.fun) - decay / 2 * float((head[:-1] * head[:-1]).sum())
    done = found.status == 0
    record = {"epoch": steps, "lr": None, "loss": mean, "gradient": steepest, "converged": done}
    bias = head[-1].to(dtype) if options.bias else None
    return FittedHead(head[:-1].T.to(dtype).contiguous(), bias, [record], None, steps, done)


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
        self._loss = loss
        if self._summed is not None:
            self._loss = copy.copy(loss)
            self._loss.head = Head(loss.hierarchy, "leaves")
        self._columns, self._width = rows.shape_of(loss)
        self._mass = total_weight(loss, rows.target, rows.weight)
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
            x, target = self._rows.x[part], self._rows.target[part]
            z = (used if self._large else (x @ used[:-1]).add_(used[-1])).requires_grad_()
            with torch.enable_grad():
                if self._large and isinstance(x, Tensor):
                    each = self._loss.linear(x, z[:-1].t(), z[-1], target)
                else:
                    each = self._loss(z, target)
                each = each if self._rows.weight is None else each * self._rows.weight[part]
                (grad,) = torch.autograd.grad(each.sum() / self._mass, z)
            value += float(each.detach().double().sum()) / self._mass
            if self._large:
                slope += grad
            else:
                slope[:-1] += x.T @ grad
                slope[-1] += grad.sum(dim=0)
        if not self._bias:
            slope[-1] = 0.0
        gradient = slope
        if self._summed is not None:
            with torch.enable_grad():  # a scalar: torch imports sympy to check the shape of anything else
                (gradient,) = torch.autograd.grad((layer * slope).sum(), outputs)
        gradient[:-1] += self._decay * head[:-1]
        penalty = self._decay / 2 * float((head[:-1] * head[:-1]).sum())
        return value + penalty, gradient.numpy().ravel()
