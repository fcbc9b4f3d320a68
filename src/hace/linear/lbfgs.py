"""A linear head trained to convergence: L-BFGS on all samples at once, in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hace.linear.heads import LARGE, sample_shares
from hace.linear.labelled_features import LabelledFeatures
from hace.linear.trials import FittedHead, Optimization
from hace.losses.base import HierarchicalLoss

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

    Args:
        rows: the data.
        loss: with ``reduction="none"``.
        weight_decay: strength of the penalty.
        options: tolerance, max_iter and bias.
        start: initial weights; zeros by default.
    """
    from scipy.optimize import minimize

    x, (columns, width) = rows.x.double(), rows.shape_of(loss)
    share = sample_shares(loss, rows.target, rows.weight)
    mass = float(len(rows)) if share is None else share.mass
    large = columns > LARGE
    few = _SAMPLES if large else max(1, _ENTRIES // columns)

    def mean_loss(each: Tensor, part: slice) -> Tensor:
        return (each if share is None else each * share.weight[part].double()).sum() / mass

    def part_gradient(head: Tensor, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        """The share of some samples: value, gradient of the weights, gradient of the bias."""
        if large:
            layer = (head[:-1].detach().requires_grad_(), head[-1].detach().requires_grad_())
            with torch.enable_grad():
                value = mean_loss(loss.linear(x[part], layer[0].t(), layer[1], rows.target[part]), part)
            slope, bias_slope = torch.autograd.grad(value, layer)
            return value.detach(), slope, bias_slope
        z = torch.addmm(head[-1], x[part], head[:-1]).requires_grad_()
        with torch.enable_grad():
            value = mean_loss(loss(z, rows.target[part]), part)
        (grad,) = torch.autograd.grad(value, z)
        return value.detach(), x[part].T @ grad, grad.sum(dim=0)

    def evaluated(flat: np.ndarray) -> tuple[float, float, np.ndarray]:
        """The mean loss, the objective and its gradient."""
        head = torch.from_numpy(flat).view(width + 1, columns)
        weight, gradient, total = head[:-1], torch.zeros_like(head), 0.0
        for first in range(0, len(rows), few):
            value, slope, bias_slope = part_gradient(head, slice(first, first + few))
            gradient[:-1] += slope
            gradient[-1] += bias_slope if options.bias else 0.0
            total += float(value)
        penalty = weight_decay / 2 * float((weight * weight).sum())
        gradient[:-1] += weight_decay * weight
        return total, total + penalty, gradient.numpy().ravel()

    found = minimize(
        lambda flat: evaluated(flat)[1:],
        _initial(start, width, columns, options.bias),
        method="L-BFGS-B",
        jac=True,
        # The gradient decides; differences of the objective only once they drown in rounding.
        options={
            "maxiter": options.max_iter,
            "maxfun": 20 * options.max_iter,
            "gtol": options.tolerance,
            "ftol": 64 * np.finfo(float).eps,
        },
    )
    last_loss, value, gradient = evaluated(found.x)
    head = torch.from_numpy(found.x).view(width + 1, columns)
    return Converged(
        weight=head[:-1],
        bias=head[-1],
        loss=last_loss,
        steepest=float(np.abs(gradient).max()),
        iterations=int(found.nit),
        converged=found.status == 0,
        finite=bool(np.isfinite(value) and np.isfinite(found.x).all()),
    )


def _initial(start: FittedHead | None, width: int, columns: int, bias: bool) -> np.ndarray:
    """Initial weights: (d + 1, C) in one row, the bias last."""
    initial = np.zeros((width + 1, columns))
    if start is not None:
        initial[:-1] = start.weight.T.numpy()
        initial[-1] = start.bias.numpy() if bias and start.bias is not None else 0.0
    return initial.ravel()
