"""The compiled extension: whether it is there, switched on, and whether it supports a call.

It is plain C in a CPython extension: without torch headers one build works with every torch version, and with one version of
each loop per vector width it runs on every CPU of its kind.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hace.losses.kernels import torch_internals
from hace.losses.kernels.torch_internals import compiling, computes_now, exporting

_INTERFACE = 11  # of the extension this package is written for: a build of other source takes other arguments

module: Any = None  # the extension; None where it cannot be used
_reason = ""  # why it cannot

try:
    module = importlib.import_module("hace.losses.kernels._kernels")
except ImportError as error:  # no compiler at install time
    _reason = f"not built ({error})"
if module is not None and getattr(module, "interface", 1) != _INTERFACE:
    module = None
    _reason = "built from other source; install the package again"
if module is not None and torch_internals.missing:
    module = None
    _reason = f"cannot check tensors with torch {torch.__version__} ({torch_internals.missing})"

switched_on = os.environ.get("HACE_KERNEL", "1") != "0"


def status() -> str:
    """One line: whether the kernel is in use, and if not, why."""
    if module is None:
        return f"pure PyTorch: kernel {_reason}"
    if not switched_on:
        return "pure PyTorch: kernel switched off"
    level = module.level() if hasattr(module, "level") else "an older build"
    return f"compiled kernel (float32 on CPU, {level})"


@contextmanager
def disabled() -> Iterator[None]:
    """Within this block everything is computed in pure PyTorch."""
    global switched_on
    before = switched_on
    switched_on = False
    try:
        yield
    finally:
        switched_on = before


def kernel_supports(z: Tensor, *others: Tensor | None, gradient: bool = True) -> bool:
    """Whether the kernel computes with these float32 logits and these tables and targets, here and now.

    It reads memory, so it supports plain tensors that hold their values, and no call that torch records or rewrites. A graph of
    ``torch.compile`` holds it as a custom operator, which gets plain tensors when the graph runs.

    Args:
        z: the logits; whatever is not a tensor in float32 is not supported.
        others: what else it is to read.
        gradient: whether the function has a gradient, and an operator for ``torch.compile``.
    """
    if not switched_on or module is None or not isinstance(z, Tensor) or z.dtype is not torch.float32:
        return False
    if compiling():
        on_cpu = all(t is None or (isinstance(t, Tensor) and t.is_cpu) for t in (z, *others))
        return gradient and on_cpu and not exporting()
    if not gradient and z.requires_grad and torch.is_grad_enabled():
        return False
    return computes_now((z, *others))


def address(tensor: Tensor | None) -> int:
    """Where a tensor's memory begins; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
