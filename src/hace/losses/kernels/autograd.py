"""How a compiled loss is called, and how it takes part in autograd: its gradient is made together with its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hace.losses import kernels

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


class BatchLabels(NamedTuple):
    """The labels of a batch, contiguous, and how their losses are reduced."""

    target: Tensor
    ignore_index: int
    reduction: str


class Call(NamedTuple):
    """A loss of the extension and what it takes besides the batch, which is the same for every batch.

    ``function`` is its name, ``arguments`` are numbers and addresses within ``tensors``, ``labels`` is how many labels there
    are, and ``weight`` their weights.
    """

    function: str
    arguments: tuple[float, ...]
    labels: int
    weight: Tensor | None
    tensors: object


def address(tensor: Tensor | None) -> int:
    """Where a tensor's memory begins; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def compute(
    z: Tensor, with_grad: bool, call: Call, labels: BatchLabels | None, *, summed: bool
) -> tuple[Tensor, Tensor | None]:
    """(B,) losses, or the sum of them, and the gradient of that sum.

    Args:
        z: (B, C) float32 logits.
        with_grad: whether the gradient is wanted.
        call: the loss.
        labels: the labels, or None where the targets are among the loss's arguments.
        summed: whether the sum is wanted.
    """
    if not z.is_contiguous():
        z = z.contiguous()
    target, ignore_index, reduction = labels or (None, -100, "none")
    loss = z.new_empty(() if summed else len(z))
    grad = torch.empty_like(z) if with_grad else None
    bad = getattr(kernels._kernels, call.function)(
        *(z.data_ptr(), *z.shape, loss.data_ptr(), summed, address(grad)),
        *(address(target), ignore_index, address(call.weight), _REDUCTIONS[reduction], call.labels),
        *call.arguments,
        torch.get_num_threads(),
    )
    if bad >= 0 and target is not None:
        kernels.raise_bad_target(target[bad].item(), call.labels, ignore_index)
    return loss, grad


def kernel_loss(
    z: Tensor, call: Call, labels: BatchLabels | None, pure: Callable[[Tensor, Any], Tensor]
) -> Tensor:
    """(B,) losses by the kernel, or their sum.

    Args:
        z: (B, C) float32 logits.
        call: the loss.
        labels: the labels, or None where the targets are among the loss's arguments.
        pure: from logits and labels to the (B,) losses in plain PyTorch; it serves second derivatives.
    """
    return _KernelLoss.apply(z, call, labels, pure)  # type: ignore[attr-defined]


# What torch.autograd.Function is without torch.func, which never comes here.
class _KernelLoss(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(ctx, z: Tensor, call: Call, labels: BatchLabels | None, pure: Any) -> Tensor:  # type: ignore[override]
        summed = labels is not None and labels.reduction != "none"
        loss, ctx.grad = compute(z, ctx.needs_input_grad[0], call, labels, summed=summed)
        ctx.save_for_backward(z)
        # A copy: the graph may be used again after the caller has written new labels into the tensor.
        copy = labels and kernels._kernels.copied(labels.target.data_ptr(), 8 * len(labels.target))
        ctx.rest = call, labels, copy, pure
        return loss

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor | None, None, None, None]:  # type: ignore[override]
        by = outer[0]
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            (z,) = ctx.saved_tensors
            labels = _labels_of(ctx)
            losses = ctx.rest[3](z, labels and labels.target)
            # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
            (grad,) = torch.autograd.grad(losses, z, z.new_ones(len(z)), create_graph=True)
            return grad * (by[:, None] if by.ndim else by), None, None, None
        # The gradient was made with the loss. It is handed over once, and recomputed if the graph is used twice.
        grad, ctx.grad = ctx.grad, None
        if grad is None:
            (z,) = ctx.saved_tensors
            grad = compute(z, True, ctx.rest[0], _labels_of(ctx), summed=False)[1]
            assert grad is not None
        if by.ndim == 0 and kernels.is_plain(by):
            kernels._kernels.multiply(grad.data_ptr(), grad.numel(), by.data_ptr())
        elif by.ndim == 0 or not bool((by == 1.0).all()):
            grad = grad.mul_(by[:, None] if by.ndim else by)
        return grad, None, None, None


def _labels_of(ctx: Any) -> BatchLabels | None:
    """The labels as they were."""
    _, labels, copy, _ = ctx.rest
    if labels is None or len(labels.target) == 0:
        return labels
    return labels._replace(target=torch.frombuffer(bytearray(copy), dtype=torch.int64))
