"""Private names of torch, all of them, behind one guarded import.

The compiled kernel reads a tensor's memory. So it must know that a tensor is plain memory, and that torch neither records nor
rewrites the call; torch has no public question for either. If a version of torch drops one of these names, :data:`missing`
says which, every answer here is the careful one, and plain PyTorch computes everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

missing = ""  # what this version of torch lacks

try:
    from torch._C import DispatchKey, DispatchKeySet, _dispatch_keys, _dispatch_tls_local_include_set

    # torch.autograd.Function without what it does for torch.func, which never calls the kernel.
    from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction

    forward_ad._current_level  # noqa: B018
except (ImportError, AttributeError) as error:
    missing = str(error)
    SingleLevelFunction = torch.autograd.Function
    _PLAIN_KEYS: dict[str, set[Any]] = {}
    _EAGER_KEYS: set[Any] = set()
else:
    # A set of dispatch keys as something to compare: a number, or in older versions of torch its text.
    _value: Callable[[Any], Any] = getattr(DispatchKeySet, "raw_repr", repr)

    def _key_set(*names: str) -> Any:
        keys = DispatchKeySet(DispatchKey.Undefined)
        for name in names:
            keys = keys | DispatchKeySet(getattr(DispatchKey, name))
        return _value(keys)

    # Keys of plain tensors by device, and of the thread when nothing is recorded: each outside and inside of
    # ``torch.inference_mode``.
    _PLAIN_KEYS = {
        device.lower(): {
            _key_set(device, f"Autocast{device}"),
            _key_set(device, f"Autocast{device}", f"Autograd{device}", "ADInplaceOrView"),
        }
        for device in ("CPU", "CUDA")
    }
    _EAGER_KEYS = {_key_set("BackendSelect"), _key_set("BackendSelect", "ADInplaceOrView")}

_PLAIN_ON_CPU = _PLAIN_KEYS.get("cpu", set())
_TENSOR_TYPES = (Tensor, Parameter)  # a subclass may do anything

# Whether ``torch.compile`` traces this call.
compiling: Callable[[], bool] = torch.compiler.is_compiling

# Whether ``torch.export`` traces this call. Before torch 2.7 it cannot be told from a compilation: then both hold plain
# operators alone.
exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def transformed() -> bool:
    """Whether torch records or rewrites operations (export, jit, torch.func, forward-mode AD, any dispatch mode).

    Each of them adds to the keys that operations are dispatched by, but for forward-mode AD.
    """
    if missing:
        return True
    keys = _dispatch_tls_local_include_set()  # pyright: ignore[reportPossiblyUnboundVariable]
    return _value(keys) not in _EAGER_KEYS or forward_ad._current_level >= 0


def is_plain(tensor: Tensor, device: str = "cpu") -> bool:
    """Whether a tensor is what its type says: strided memory on a device, to be read directly.

    Whatever is not (sparse, nested, negated on reading, functional, wrapped by ``torch.func``) has other dispatch keys.
    """
    return (
        not missing
        and type(tensor) in _TENSOR_TYPES
        and _value(_dispatch_keys(tensor)) in _PLAIN_KEYS[device]  # pyright: ignore[reportPossiblyUnboundVariable]
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)  # freed storage, as sharded training leaves it
    )


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether torch computes with these tensors here and now, in plain memory of the CPU: a decision may depend on values."""
    return not compiling() and computes_now(tensors)


def computes_now(tensors: tuple[Tensor | None, ...]) -> bool:
    """The same where nothing is compiled.

    `transformed` and `is_plain` are written out, for a call of them costs a hundredth of a small head's step.
    """
    if missing:
        return False
    keys = _dispatch_tls_local_include_set()  # pyright: ignore[reportPossiblyUnboundVariable]
    if _value(keys) not in _EAGER_KEYS or forward_ad._current_level >= 0:
        return False
    for tensor in tensors:
        if tensor is not None and not (
            type(tensor) in _TENSOR_TYPES
            and _value(_dispatch_keys(tensor)) in _PLAIN_ON_CPU  # pyright: ignore[reportPossiblyUnboundVariable]
            and (tensor.data_ptr() != 0 or tensor.numel() == 0)
        ):
            return False
    return True
