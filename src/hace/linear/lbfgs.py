"""A linear head trained to convergence: L-BFGS on all samples at once, preconditioned by the problem's own curvature.

The Hessian of the mean loss is about S (x) C: S the covariance of the features, C the mean outer product of the gradients with
respect to a sample's logits. Both are known before and during training, so L-BFGS starts each step from
(S (x) C + weight_decay I)^-1 in place of a multiple of I, and only has to learn what this leaves out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.linear.features import LabelledFeatures
from hace.linear.heads import LARGE, FittedHead, Optimization, Trial, total_weight
from hace.losses.base import HierarchicalLoss
from hace.losses.head import Head

_ENTRIES = 1 << 22  # logits held at once
_SAMPLES = 4096  # samples at once where the logits of a batch are never held whole
_DENSE = 2048  # classes up to which their metric is factorised
_AXES = 32  # principal axes of the features that the preconditioner knows
_PAIRS = 10  # steps that L-BFGS remembers
_FLOOR = 1e-6  # of the largest curvature: less is not trusted
_REFRESH = (2, 5, 10, 20, 40)  # iterations that measure the curvature anew
_STILL = 3  # iterations without progress beyond rounding that end it


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
    loss = trial.loss.reduced_by("none")
    decay = trial.weight_decay
    columns, width = rows.shape_of(loss)
    head = torch.zeros(width + 1, columns, dtype=torch.float64)  # the bias last
    if start is not None:
        head[:-1] = start.weight.T
        head[-1] = start.bias if options.bias and start.bias is not None else 0.0
    steps = 0
    result = None
    for precision in dict.fromkeys((rows.like.dtype, torch.float64)):
        objective = _Objective(rows.to(precision), loss, decay, options.bias)
        left = max(1, options.max_iter - steps)
        result = _minimise(objective, objective.inside(head), options.tolerance, left)
        head = objective.outputs(result.point)
        steps = steps + result.steps
        if result.done or steps >= options.max_iter or not result.finite:
            break
    assert result is not None
    if not (result.finite and bool(head.isfinite().all())):
        diverged = {"epoch": steps, "step": steps, "lr": None}
        bias = torch.zeros(columns) if options.bias else None
        return FittedHead(torch.zeros(columns, width), bias, [], diverged, 0, converged=False)
    mean = result.value - decay / 2 * float(result.point[:-1].square().sum())
    record = {"epoch": steps, "lr": None, "loss": mean, "gradient": result.steepest, "converged": result.done}
    bias = head[-1].to(dtype) if options.bias else None
    return FittedHead(head[:-1].T.to(dtype).contiguous(), bias, [record], None, steps, result.done)


class _Minimum:
    """Where L-BFGS is: the point, its value and gradient, iterations so far and whether it has arrived."""

    def __init__(self, point: Tensor, value: float, gradient: Tensor) -> None:
        self.point = point
        self.value = value
        self.gradient = gradient
        self.steps = 0
        self.done = False
        self.steepest = np.inf

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.value)) and bool(self.gradient.isfinite().all())


def _minimise(objective: _Objective, point: Tensor, tolerance: float, max_iter: int) -> _Minimum:
    """L-BFGS with a line search that interpolates, until gradient and gain are within the tolerance.

    It also ends once the objective changes by no more than rounding: in double precision that is the minimum.
    """
    value, gradient = objective(point)
    now = _Minimum(point, value, gradient)
    precondition = objective.preconditioner()
    # Step, change of the gradient, 1 / their product.
    pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=_PAIRS)
    # What the mean loss may be off by: errors of single precision average out over the samples.
    rounding = 64 * np.finfo(float).eps if objective.dtype is torch.float64 else 3e-8
    still = 0
    while now.finite and now.steps < max_iter:
        direction = _direction(now.gradient, pairs, precondition)
        slope = _dot(direction, now.gradient)
        if not slope < 0:  # not convex, or rounding: forget, and go down
            pairs.clear()
            direction = _direction(now.gradient, pairs, precondition)
            slope = _dot(direction, now.gradient)
        # The step would gain -slope / 2. Where the loss is nearly 0 the gradient alone is small far from the minimum.
        gains = -slope / 2 > tolerance * max(now.value, 1e-3)
        arrived = not gains and objective.steepest(now.gradient) <= tolerance
        if arrived or still >= _STILL:
            now.done = arrived or objective.dtype is torch.float64
            break
        now.steps += 1
        objective.measures = now.steps in _REFRESH or now.steps % _REFRESH[-1] == 0
        slack = rounding * max(1.0, abs(now.value))
        point, value, gradient = _line_search(objective, now, direction, slope, slack)
        if objective.measures:
            precondition = objective.preconditioner()
        moved = point - now.point
        change = gradient - now.gradient
        product = _dot(moved, change)
        if product > 0:
            pairs.append((moved, change, 1 / product))
        still = still + 1 if now.value - value <= slack else 0
        now.point = point
        now.value = value
        now.gradient = gradient
    now.steepest = objective.steepest(now.gradient)
    return now


def _line_search(
    objective: _Objective, now: _Minimum, direction: Tensor, slope: float, slack: float
) -> tuple[Tensor, float, Tensor]:
    """The first point along the direction that gains enough, its value and gradient; ``slack``: what rounding may be."""
    step = 1.0
    while True:
        point = now.point + step * direction
        value, gradient = objective(point)
        gains_enough = value <= now.value + 1e-4 * step * slope + slack  # Armijo's rule
        too_short_to_measure = not 1e-3 * slack < -step * slope < np.inf
        if gains_enough or too_short_to_measure:
            return point, value, gradient
        # The parabola through both values and the slope has its minimum at this share of the step.
        bend = 2 * (value - now.value - step * slope)
        share = -slope * step / bend if np.isfinite(bend) and bend > 0 else 0.1
        step *= min(0.5, max(0.1, share))


def _direction(gradient: Tensor, pairs: deque, precondition: Callable[[Tensor], Tensor]) -> Tensor:
    """Minus the inverse Hessian times the gradient, as far as L-BFGS knows it: the recursion of two loops."""
    direction = gradient.clone()
    factors = []
    for step, change, inverse in reversed(pairs):
        factors.append(inverse * _dot(step, direction))
        direction.sub_(change, alpha=factors[-1])
    direction = precondition(direction)
    if pairs:
        _, change, inverse = pairs[-1]
        direction /= inverse * _dot(change, precondition(change))
    for (step, change, inverse), factor in zip(pairs, reversed(factors), strict=True):
        direction.add_(step, alpha=factor - inverse * _dot(change, direction))
    return direction.neg_()


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.reshape(-1), b.reshape(-1)))


class _Objective:
    """Mean loss + weight_decay / 2 ||V||^2 of V (d + 1, K), and its gradient; the last row is the bias on centred features.

    Without path sums V are the outputs. With them the classes have W = U A', and V is such that W = V L', with L L' = A A':
    the smallest U behind a W is as long as V, so the minimum is the same, in one column per class. Where A A' is too large to
    factorise, V are the outputs U, and are summed before any sample is seen.

    With path sums ``_node_head`` is the loss's head over nodes, which sums them; ``_path_factor`` is L, where it is known.
    """

    def __init__(self, rows: LabelledFeatures, loss: HierarchicalLoss, decay: float, bias: bool) -> None:
        self._rows = rows
        self._decay = decay
        self._bias = bias
        self._loss = loss
        self.dtype = rows.like.dtype
        self.measures = True
        self._node_head = self._path_factor = None
        if loss.head.path_sums is not None and loss.hierarchy.num_nodes > loss.hierarchy.num_leaves:
            self._node_head = loss.head
            self._loss = loss.reduced_by("none")  # a copy: the loss keeps its head
            self._loss.head = Head(loss.hierarchy, "leaves")
            self._factorise(loss.hierarchy.num_leaves)
        self._mass = total_weight(loss, rows.target, rows.weight)
        columns = self._loss.num_outputs
        self._large = columns > LARGE and isinstance(rows.x, Tensor)
        few = _SAMPLES if self._large else max(1, _ENTRIES // columns)
        self._parts = [slice(first, first + few) for first in range(0, len(rows), few)]
        self._mean, self._axes, self._spread, self._rest = rows.principal_axes(_AXES, centred=bias)
        self._curvature: Tensor | None = None

    def _factorise(self, classes: int) -> None:
        """L, and what leads from W back to U, unless that costs more than it saves."""
        samples, width = self._rows.x.shape
        if self._node_head is None or classes > _DENSE or 10 * classes**2 > samples * width:
            return
        paths = self._node_head.leaf_logits(torch.eye(self._node_head.num_outputs, dtype=torch.float64))  # A'
        self._path_factor = torch.linalg.cholesky(paths.T @ paths)
        self._behind = torch.cholesky_solve(paths.T, self._path_factor)  # (A A')^-1 A
        self._inverse = torch.linalg.solve_triangular(
            self._path_factor, torch.eye(classes).double(), upper=False
        )

    def inside(self, head: Tensor) -> Tensor:
        """V of outputs (d + 1, C)."""
        point = head.clone()
        if self._path_factor is not None and self._node_head is not None:
            point = self._node_head.leaf_logits(head) @ self._inverse.T
        point[-1] += self._mean @ point[:-1]
        return point

    def outputs(self, point: Tensor) -> Tensor:
        """Outputs (d + 1, C) of V."""
        head = self._uncentred(point)
        return head if self._path_factor is None else head @ self._path_factor.T @ self._behind

    def _uncentred(self, point: Tensor) -> Tensor:
        head = point.clone()
        head[-1] -= self._mean @ point[:-1]
        return head

    def steepest(self, gradient: Tensor) -> float:
        """The largest entry of the gradient; with V = W L'^-1, of that with respect to W."""
        return float(
            (gradient if self._path_factor is None else self._product(gradient, self._inverse)).abs().max()
        )

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """A product in the precision of the features."""
        return a.to(self.dtype) @ b.to(self.dtype)

    def __call__(self, point: Tensor) -> tuple[float, Tensor]:
        """The objective and its gradient (d + 1, K) at a point V, and on the side what the preconditioner needs."""
        outer = self._uncentred(point)
        layer = self._layer(outer)
        value, slope = self._loss_and_slope(layer)
        if not self._bias:
            slope[-1] = 0.0
        gradient = self._back_through_layer(slope, layer, outer)
        gradient[:-1] += self._decay * point[:-1] - torch.outer(self._mean, gradient[-1])
        self._length = float(gradient.norm())
        return value + self._decay / 2 * float(point[:-1].square().sum()), gradient

    def _layer(self, outer: Tensor) -> Tensor:
        """Weights and bias (d + 1, columns) that the features are multiplied by, from V on uncentred features."""
        if self._path_factor is not None:
            return self._product(outer, self._path_factor.T)
        if self._node_head is None:
            return outer
        with torch.enable_grad():
            return self._node_head.leaf_logits(outer.requires_grad_())

    def _back_through_layer(self, slope: Tensor, layer: Tensor, outer: Tensor) -> Tensor:
        """The gradient with respect to V, from that with respect to :meth:`_layer`'s."""
        if self._path_factor is not None:
            return self._product(slope, self._path_factor).double()
        if self._node_head is None:
            return slope
        with torch.enable_grad():  # a scalar: torch imports sympy to check the shape of anything else
            (gradient,) = torch.autograd.grad((layer * slope).sum(), outer)
        return gradient

    def _loss_and_slope(self, layer: Tensor) -> tuple[float, Tensor]:
        """The mean loss over all samples, and its gradient with respect to the layer; sets the curvature."""
        used = layer.detach().to(self._rows.like)
        value = 0.0
        slope = torch.zeros_like(layer, requires_grad=False)
        moment = None  # sums of squares, or products, of the gradients of samples
        for part in self._parts:
            x = self._rows.x[part]
            # With very many columns the scores of a part do not fit: the loss takes the layer in their place.
            z = used if self._large else (x @ used[:-1]).add_(used[-1])
            losses, grad = self._losses_and_gradient(x, z.requires_grad_(), part)
            value += float(losses.double().sum()) / self._mass
            if self._large:
                slope += grad
                continue
            slope[:-1] += x.T @ grad
            slope[-1] += grad.sum(dim=0)
            if self.measures:
                squares = self._gradient_squares(grad, part)
                moment = squares if moment is None else moment + squares
        self._curvature = None if moment is None else moment * self._mass
        return value, slope

    def _losses_and_gradient(self, x: Any, z: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """The weighted losses of a part of the samples, and the gradient of their share of the mean with respect to z."""
        weight = self._rows.weight
        with torch.enable_grad():
            if self._large and isinstance(x, Tensor):
                losses = self._loss.linear(x, z[:-1].t(), z[-1], self._rows.target[part])
            else:
                losses = self._loss(z, self._rows.target[part])
            if weight is not None:
                losses = losses * weight[part]
            (gradient,) = torch.autograd.grad(losses.sum() / self._mass, z)
        return losses.detach(), gradient

    def _gradient_squares(self, gradient: Tensor, part: slice) -> Tensor:
        """Sums over a part of the samples: of the squares of each column, or with a root of all products of columns."""
        own = gradient
        if self._rows.weight is not None:
            # Weights act once, as if a sample occurred that often: they are in the gradient already.
            own = gradient / self._rows.weight[part, None].clamp(min=_FLOOR)
        return (gradient * own).sum(dim=0) if self._path_factor is None else gradient.T @ own

    def preconditioner(self) -> Callable[[Tensor], Tensor]:
        """About the inverse of the curvature S (x) C + weight_decay I.

        S holds the second moments of the features, known in their principal axes only: the spread along each, and one number
        for all other directions. C holds those of the loss's gradient by output, as the last point had them.
        """
        if self._curvature is None:  # a first step of length 1; what follows scales itself
            scale = 1 / max(self._length, np.finfo(float).tiny)
            return lambda gradient: gradient * scale
        curvature, basis = self._curvature_in_its_basis(self._curvature)
        along = self._spread[:, None] * curvature + self._decay
        across = self._rest * curvature + self._decay
        # Nothing penalises the bias: where the loss does not mind a shift, a number per column would make it drift.
        bias = curvature.mean() if basis is None else curvature + self._decay
        largest = max(float(along.max()), float(bias.max()))
        by_axis, elsewhere, by_bias = (
            (largest / (value + _FLOOR * largest)).float() for value in (along, across, bias)
        )
        basis = None if basis is None else basis.float()
        axes = self._axes.float()

        def apply(gradient: Tensor) -> Tensor:
            # In single precision, on a gradient of length 1: it only has to point about the right way.
            length = max(float(gradient.norm()), np.finfo(float).tiny)
            turned = (gradient / length).float()
            turned = turned if basis is None else turned @ basis
            out = turned * elsewhere
            out[:-1].addmm_(axes, (axes.T @ turned[:-1]) * (by_axis - elsewhere))
            out[-1] = turned[-1] * by_bias
            return (out if basis is None else out @ basis.T).double().mul_(length / largest)

        return apply

    def _curvature_in_its_basis(self, curvature: Tensor) -> tuple[Tensor, Tensor | None]:
        """The curvature of each column of V, and the basis (K, K) in which it is diagonal; None: as V is."""
        basis = None
        if self._path_factor is not None:  # of all pairs of classes
            products = self._path_factor.T @ curvature.double() @ self._path_factor
            curvature, basis = torch.linalg.eigh(products)
        elif (
            self._node_head is not None
        ):  # of classes, where V has a column for each node: one number for all
            curvature = curvature.mean()
        return curvature.double().clamp(min=0), basis
