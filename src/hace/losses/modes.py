"""What torch does around a call: whether values may be looked at, and whether a tensor is plain memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Parameter

# Private names that not every supported torch has.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # since torch 2.7
_pre_dispatch_modes = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)


def compiling() -> bool:
    """Whether ``torch.compile`` traces this call."""
    return torch.compiler.is_compiling()


def transformed() -> bool:
    """Whether torch records or rewrites operations (export, jit, torch.func, forward-mode AD, any dispatch mode)."""
    return (
        _is_exporting()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or _pre_dispatch_modes() > 0
    )


def exporting() -> bool:
    """Whether ``torch.export`` traces this call."""
    return _is_exporting()


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is what its type says: strided memory on the CPU that can be read directly."""
    return (
        type(tensor) in (Tensor, Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and not torch._is_functional_tensor(tensor)  # type: ignore[attr-defined]
        and not is_functorch_wrapped_tensor(tensor)
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)  # freed storage, as sharded training leaves it
    )


def readable(tensor: Tensor) -> bool:
    """Whether a decision may depend on the values of a tensor, at no cost and without breaking a trace."""
    return not compiling() and not transformed() and is_plain(tensor)
