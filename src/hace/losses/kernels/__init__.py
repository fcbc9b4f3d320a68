"""The compiled accelerator: optional, for float32 on the CPU.

It computes what :mod:`hace.losses.numerics` computes and passes the same tests; without it everything works in plain PyTorch.
Eager code calls it directly, ``torch.compile`` sees a custom operator, second derivatives go through the PyTorch form.

It is plain C in a CPython extension: without torch headers one build serves every torch version, and with one version of
each loop per vector width it serves every CPU of its kind. ``benchmarks/losses.py`` prints what it gains.

The questions that decide whether it may serve a call are here; `losses` and `answers` call it.

Set ``HACE_KERNEL=0`` in the environment, or use :func:`disabled`, to do without.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from hace.errors import DataError

# Private names of torch. Each call costs more than it seems: it pushes other code out of the processor's caches.
_keys_of, _modes = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set
# A set of dispatch keys as something to compare: a number, or in older versions of torch its text.
_as_value: Callable[[Any], int | str] = getattr(torch._C.DispatchKeySet, "raw_repr", repr)

# Whether ``torch.export`` traces this call. Before torch 2.7 it cannot be told from a compilation: then both hold plain
# operators alone.
exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)

_INTERFACE = 10  # of the extension this package is written for: a build of other source takes other arguments

_kernels: Any
try:
    _kernels = importlib.import_module("hace.losses.kernels._kernels")
except ImportError as error:  # not built: no compiler at install time
    _kernels, _reason = None, f"not built ({error})"
else:
    _reason = ""
    if getattr(_kernels, "interface", 1) != _INTERFACE:
        _kernels, _reason = None, "built from other source; install the package again"


def _key_set(*names: str) -> int | str:
    """The value of a set of dispatch keys."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for name in names:
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return _as_value(keys)


# Keys of plain tensors, and of the modes when nothing is recorded: outside and inside of ``torch.inference_mode``.
_PLAIN = {
    d.lower(): {_key_set(d, f"Autocast{d}"), _key_set(d, f"Autocast{d}", f"Autograd{d}", "ADInplaceOrView")}
    for d in ("CPU", "CUDA")
}
_NO_MODES = {_key_set("BackendSelect"), _key_set("BackendSelect", "ADInplaceOrView")}

_on = os.environ.get("HACE_KERNEL", "1") != "0"


def status() -> str:
    """One line: whether the accelerator is in use, and if not, why."""
    if _kernels is None:
        return f"pure PyTorch: kernel {_reason}"
    return "compiled kernel (float32 on CPU)" if _on else "pure PyTorch: kernel switched off"


@contextmanager
def disabled() -> Iterator[None]:
    """Within this block everything is computed in pure PyTorch."""
    global _on
    before, _on = _on, False
    try:
        yield
    finally:
        _on = before


def usable(z: Tensor, *others: Tensor | None) -> bool:
    """Whether the accelerator serves these logits with these tables and targets, here and now.

    It reads memory, so it serves plain tensors that hold their values, and no call that torch records or rewrites.
    A graph of ``torch.compile`` holds it as a custom operator, which gets plain tensors when the graph runs.
    """
    if not _on or _kernels is None or z.dtype is not torch.float32:
        return False
    if compiling():
        on_cpu = z.is_cpu and all(t is None or t.is_cpu for t in others)
        return on_cpu and not exporting()
    if transformed() or not is_plain(z):
        return False
    for tensor in others:  # noqa: SIM110  (a generator costs as much as the question)
        if tensor is not None and not is_plain(tensor):
            return False
    return True


def is_plain_batch(z: Any, target: Any) -> bool:
    """Whether these are logits (B, C) and labels (B,), both contiguous, that the accelerator serves in eager mode.

    It asks what :func:`usable` and a loss ask, in one call.
    """
    return (
        _on
        and _kernels is not None
        and not torch.compiler.is_compiling()
        and type(z) is type(target) is Tensor
        and z.dtype is torch.float32
        and target.dtype is torch.int64
        and target.ndim == 1
        and _as_value(_modes()) in _NO_MODES
        and forward_ad._current_level < 0
        and _as_value(_keys_of(z)) in _PLAIN["cpu"]
        and _as_value(_keys_of(target)) in _PLAIN["cpu"]
        and target.is_contiguous()
        and z.data_ptr() != 0  # nor empty
    )


def compiling() -> bool:
    """Whether ``torch.compile`` traces this call."""
    return torch.compiler.is_compiling()


def transformed() -> bool:
    """Whether torch records or rewrites operations (export, jit, torch.func, forward-mode AD, any dispatch mode).

    Each of them adds to the keys that operations are dispatched by, but for forward-mode AD.
    """
    return _as_value(_modes()) not in _NO_MODES or forward_ad._current_level >= 0


def is_plain(tensor: Tensor, device: str = "cpu") -> bool:
    """Whether a tensor is what its type says: strided memory on a device that can be read directly.

    Whatever is not (sparse, nested, negated on reading, functional, wrapped by ``torch.func``) has other dispatch keys.
    """
    return (
        (type(tensor) is Tensor or type(tensor) is Parameter)
        and _as_value(_keys_of(tensor)) in _PLAIN[device]
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)  # freed storage, as sharded training leaves it
    )


def readable(tensor: Tensor) -> bool:
    """Whether a decision may depend on the values of a tensor, at no cost and without breaking a trace."""
    return not compiling() and not transformed() and is_plain(tensor)


def raise_bad_target(value: float, labels: int, ignore_index: int) -> None:
    """The error for a label outside its range."""
    raise DataError(
        f"target must hold labels from 0 to {labels - 1} (or ignore_index={ignore_index}). Got {int(value)}."
    )
