"""How a compiled loss takes part in autograd: its gradient is made together with its value."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Compute = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]


def kernel_loss(z: Tensor, compute: Compute, pure: Callable[[Tensor], Tensor]) -> Tensor:
    """(B,) losses by the kernel, or their sum.

    Args:
        z: (B, C) float32 logits.
        compute: from logits, and whether a gradient is wanted, to (B,) losses or their sum, and the gradient of that sum.
        pure: the (B,) losses in plain PyTorch; they serve second derivatives.
    """
    return _KernelLoss.apply(z, compute, pure)


class _KernelLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor, compute: Compute, pure: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        loss, ctx.grad = compute(z, ctx.needs_input_grad[0])
        ctx.save_for_backward(z)
        ctx.compute, ctx.pure = compute, pure
        return loss

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor | None, None, None]:  # type: ignore[override]
        by = outer[0]
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            (z,) = ctx.saved_tensors
            # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
            (grad,) = torch.autograd.grad(ctx.pure(z), z, z.new_ones(len(z)), create_graph=True)
            return grad * (by[:, None] if by.ndim else by), None, None
        # The gradient was made with the loss. It is handed over once, and recomputed if the graph is used twice.
        grad, ctx.grad = ctx.grad, None
        if grad is None:
            grad = ctx.compute(*ctx.saved_tensors, True)[1]
            assert grad is not None
        if by.ndim == 0:
            grad = grad if by.item() == 1.0 else grad.mul_(by)
        elif not bool((by == 1.0).all()):
            grad = grad.mul_(by[:, None])
        return grad, None, None
