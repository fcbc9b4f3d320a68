"""What losses are called with: logits and targets of any shape, checked, and as flat rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hace.errors import DataError


def model_logits(output: Any) -> Any:
    """The logits in a model's output: its attribute or entry ``logits``; anything else as it is."""
    logits = getattr(output, "logits", output)
    return logits.get("logits", logits) if isinstance(logits, dict) else logits


def in_single_precision(z: Any) -> Any:
    """Logits in half precision as float32; anything else as it is."""
    half = isinstance(z, Tensor) and z.dtype in (torch.float16, torch.bfloat16)
    return z.float() if half else z


def check_dense(argument: str, tensor: Tensor) -> None:
    """Refuses sparse and nested tensors."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise DataError(
            f"{argument} must be a dense tensor. Got layout {tensor.layout}. Use {argument}.to_dense()."
        )


def check_logits(z: Any) -> None:
    """Refuses what is no tensor of logits, of any width."""
    if not isinstance(z, Tensor) or not z.is_floating_point() or z.ndim == 0:
        got = f"{z.dtype} of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise DataError(
            f"input must be a tensor of floating-point logits (B, C) or (B, C, d1, ...). Got {got}."
        )
    check_dense("input", z)


def check_target(target: Any, device: torch.device, of: str = "input") -> None:
    """Refuses what is no tensor of labels or soft targets beside the input."""
    if not isinstance(target, Tensor):
        raise DataError(f"target must be a tensor of labels or soft targets. Got {type(target).__name__}.")
    check_dense("target", target)
    if target.dtype is torch.bool or target.is_complex():
        raise DataError(
            f"target must hold integer labels or floating-point soft targets. Got {target.dtype}."
        )
    if target.device != device:
        raise DataError(
            f"target must be on the device of {of}, {device}. Got {target.device}. Use target.to({of}.device)."
        )


def label_rows(target: Tensor, shape: Sequence[int]) -> Tensor:
    """Integer labels of a shape as (M,) labels in int64."""
    if target.shape == torch.Size(shape):
        return target.reshape(-1).long()
    shape = tuple(shape)
    if target.ndim == len(shape) + 1 and 1 not in target.shape:
        hint = " Soft targets must be floating-point (use target.float())."
    else:
        hint = f" Use target.reshape({shape})." if target.numel() == torch.Size(shape).numel() else ""
    raise DataError(
        f"target must have the shape of input without its class dimension, {shape}. Got {tuple(target.shape)}.{hint}"
    )


def check_layer(outputs: int, features: Any, weight: Any, bias: Any) -> None:
    """Refuses a last layer that does not fit the head or its features."""
    layer = {"features": features, "weight": weight} | ({} if bias is None else {"bias": bias})
    for argument, tensor in layer.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise DataError(f"{argument} must be a floating-point tensor. Got {got}.")
        check_dense(argument, tensor)
        if tensor.device != features.device:
            raise DataError(
                f"{argument} must be on the device of features, {features.device}. Got {tensor.device}."
            )
    if features.ndim == 0 or tuple(weight.shape) != (outputs, features.shape[-1]):
        raise DataError(
            f"features must be (..., d) and weight ({outputs}, d), one row per output. Got {tuple(features.shape)} and "
            f"{tuple(weight.shape)}. Build the layer with nn.Linear(d, loss.num_outputs)."
        )
    if bias is not None and tuple(bias.shape) != (outputs,):
        raise DataError(f"bias must be ({outputs},) or None. Got {tuple(bias.shape)}.")
