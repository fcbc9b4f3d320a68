"""The gate to the Triton kernels: path losses of CUDA tensors, where Triton is at hand.

It computes what :func:`hace.losses.numerics.path_cross_entropy` computes. The plain form adds up segments with atomics, which
is slow on few addresses and gives other bits from run to run; one program per row needs none. If Triton cannot compile or
launch a kernel, one warning says so and the plain form is used from then on.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from functools import cache

import torch
from torch import Tensor

from hace.losses.kernels import extension
from hace.losses.kernels.torch_internals import compiling, is_plain, transformed
from hace.losses.numerics import PathRanges, path_cross_entropy

_failed = False


def triton_supports(z: Tensor) -> bool:
    """Whether the Triton kernels compute with these logits, here and now."""
    if z.device.type != "cuda" or z.dtype is not torch.float32 or len(z) == 0:
        return False
    # torch.compile makes kernels of the plain form itself.
    recorded = compiling() or transformed()
    return extension.switched_on and not recorded and is_plain(z, "cuda") and installed()


@cache
def installed() -> bool:
    """Whether Triton is."""
    return importlib.util.find_spec("triton") is not None


def path_losses(z: Tensor, path: PathRanges) -> Tensor:
    """(B,) losses along paths from (B, C) float32 logits.

    Plain PyTorch computes second derivatives, and takes over when Triton fails.
    """
    return _PathLoss.apply(z, path)  # type: ignore[return-value]


def block_and_warps(columns: int) -> tuple[int, int]:
    """Lanes of a program, and warps: eight logits a thread at most. With 4,096 lanes some versions of Triton spill."""
    block = min(2048, max(128, 1 << (columns - 1).bit_length()))
    return block, max(1, block // 256)


def _launched(name: str, z: Tensor, path: PathRanges, *rest: Tensor) -> bool:
    """Runs a kernel; False, with a warning the first time, if Triton fails."""
    global _failed
    if _failed:
        return False
    low, high, value, column = path
    block, warps = block_and_warps(z.shape[1])
    sizes = (z.stride(0), *z.shape[1:], low.shape[1])
    given = (z, z if column is None else column, low, high, value, *rest, *sizes)
    try:
        kernel = getattr(importlib.import_module("hace.losses.kernels._triton_kernels"), name)
        kernel[(len(z),)](*given, PERMUTED=column is not None, BLOCK=block, num_warps=warps)
    except Exception as error:  # whatever a compiler may raise
        _failed = True
        cause = f"{type(error).__name__}: {str(error)[:300]}"
        warnings.warn(f"Triton failed, so plain PyTorch serves. {cause}", RuntimeWarning, stacklevel=2)
    return not _failed


class _PathLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor, path: PathRanges) -> Tensor:  # type: ignore[override]
        path = PathRanges(path.low.contiguous(), path.high.contiguous(), path.value.contiguous(), path.column)
        levels = (len(z), path.low.shape[1] + 1)
        top, total = (torch.empty(levels, dtype=torch.float64, device=z.device) for _ in range(2))
        loss = z.new_empty(len(z))
        ctx.save_for_backward(z, top, total)
        ctx.path = path
        ctx.launched = _launched("path_forward", z.detach().contiguous(), path, loss, top, total)
        return loss if ctx.launched else path_cross_entropy(z, path)

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        z, top, total = ctx.saved_tensors
        again = torch.is_grad_enabled()  # the gradient is to be differentiated again
        if ctx.launched and not again:
            grad = torch.empty_like(z, memory_format=torch.contiguous_format)
            slopes = (outer[0].contiguous(), grad, top, total)
            if _launched("path_backward", z.detach().contiguous(), ctx.path, *slopes):
                return grad, None
        with torch.enable_grad():
            z = z if again else z.detach().requires_grad_()
            # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
            losses = path_cross_entropy(z, ctx.path)
            (grad,) = torch.autograd.grad(losses, z, torch.ones_like(outer[0]), create_graph=again)
        return grad * outer[0][:, None], None
