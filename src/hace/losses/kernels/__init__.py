"""The compiled accelerator: optional, for float32 on the CPU, over trees and forests.

It computes what :mod:`hace.losses.numerics` computes and passes the same tests. It is built with the package where
a C compiler is at hand; without it everything works in plain PyTorch. Eager code calls it directly;
``torch.compile`` sees it as a custom operator. Second derivatives go through the PyTorch form.

It is plain C in a CPython extension. That needs no torch headers, so that one build serves every torch version, takes
seconds, and adds nothing to what a user installs; and the compiler makes one version of each loop for each vector width,
so that one build serves every CPU of its kind. ``benchmarks/losses.py`` prints what it gains.

The questions that decide whether it may serve a call, such as :func:`readable`, are here too.

Set ``HACE_KERNEL=0`` in the environment, or use :func:`disabled`, to do without.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Parameter

from hace.errors import DataError

# Private names that not every supported torch has.
# Before torch 2.7 an export cannot be told from a compilation: then both hold plain operators alone.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
_pre_dispatch_modes = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)

_kernels: Any
try:
    _kernels = importlib.import_module("hace.losses.kernels._kernels")
except ImportError as error:  # not built: no compiler at install time
    _kernels, _reason = None, f"not built ({error})"
else:
    _reason = ""

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
_functions = frozenset(dir(_kernels))
_on = os.environ.get("HACE_KERNEL", "1") != "0"


def status() -> str:
    """One line: whether the accelerator is in use, and if not, why."""
    if _kernels is None:
        return f"pure PyTorch: kernel {_reason}"
    return "compiled kernel (float32 on CPU, trees)" if _on else "pure PyTorch: kernel switched off"


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
        on_cpu = z.device.type == "cpu" and all(t is None or t.device.type == "cpu" for t in others)
        return on_cpu and not exporting()
    return not transformed() and is_plain(z) and all(t is None or is_plain(t) for t in others)


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


def has(function: str) -> bool:
    """Whether the extension has this function: a build of older source may be without it."""
    return function in _functions


class KernelRows(NamedTuple):
    """What a loss over a tree needs besides the logits.

    ``target`` picks rows of the sparse table (``start``, ``node``, ``value``). With ``dense`` every node counts:
    it is one row (N,) that all samples share and their sparse row is added to, or a row (B, N) for each sample
    (then ``target`` is None). Without it only the path counts, whose nodes have the column ranges ``low`` to
    ``high``; ``column`` maps positions to columns (None: the same). With ``leaf_nodes`` the logits are outputs of all
    nodes whose path sums count: see :class:`hace.losses.kernels.path_sums.Tree`, with the leaves in preorder.
    """

    target: Tensor | None = None
    start: Tensor | None = None
    node: Tensor | None = None
    value: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    column: Tensor | None = None
    parent: Tensor | None = None
    dense: Tensor | None = None
    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "none"
    leaf_nodes: Tensor | None = None
    leaf_above: Tensor | None = None
    inner_nodes: Tensor | None = None
    inner_above: Tensor | None = None
    sharing: float = 1.0


def tree_loss(z: Tensor, rows: KernelRows, pure: Callable[[Tensor], Tensor]) -> Tensor:
    """(B,) losses, each already divided as ``reduction`` says, so that their sum is the reduced loss.

    Args:
        z: (B, C) float32 logits.
        pure: the same in plain PyTorch; it serves second derivatives.
    """
    if torch.compiler.is_compiling():
        needed = torch.is_grad_enabled() and z.requires_grad
        return _tree_loss_op(z, *rows, needed)[0]
    return _TreeLoss.apply(z, rows, pure)


def kernel_log_probs(z: Tensor, parent: Tensor) -> Tensor:
    """(B, N) log q* of every node of a tree, without gradient."""
    if torch.compiler.is_compiling():
        return _node_log_probs_op(z, parent)
    z = z.detach().contiguous()
    out = torch.empty_like(z)
    _kernels.node_log_probs(
        z.data_ptr(), *z.shape, out.data_ptr(), parent.data_ptr(), torch.get_num_threads()
    )
    return out


class _TreeLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor, rows: KernelRows, pure: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        loss, ctx.grad = _compute(z, rows, ctx.needs_input_grad[0])
        ctx.save_for_backward(z)
        ctx.rows, ctx.pure = rows, pure
        return loss

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor | None, None, None]:  # type: ignore[override]
        (z,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
            (grad,) = torch.autograd.grad(ctx.pure(z), z, torch.ones_like(outer[0]), create_graph=True)
            return grad * outer[0][:, None], None, None
        # The gradient was made with the loss. It is handed over once, and recomputed if the graph is used twice.
        grad, ctx.grad = ctx.grad, None
        if grad is None:
            grad = _compute(z, ctx.rows, True)[1]
        assert grad is not None
        if not _all_ones(outer[0]):
            grad = grad.mul_(outer[0][:, None])
        return grad, None, None


def _all_ones(x: Tensor) -> bool:
    return x.numel() == 0 or (x.stride(0) == 0 and x[0].item() == 1.0) or bool((x == 1.0).all())


def _compute(z: Tensor, rows: KernelRows, with_grad: bool) -> tuple[Tensor, Tensor | None]:
    z = z.detach().contiguous()
    batch, columns = z.shape
    loss = z.new_empty(batch)
    grad = torch.empty_like(z) if with_grad else None
    start = rows.start
    common = (
        *(z.data_ptr(), batch, columns, loss.data_ptr(), _address(grad)),
        *(_address(rows.target), rows.ignore_index, _address(rows.weight), _REDUCTIONS[rows.reduction]),
        *(0 if start is None else len(start) - 1, _address(start), _address(rows.node), _address(rows.value)),
    )
    threads = torch.get_num_threads()
    if rows.leaf_nodes is not None and rows.inner_nodes is not None:
        sizes = (len(rows.leaf_nodes), len(rows.inner_nodes))
        paths = (
            rows.low,
            rows.high,
            *sizes,
            rows.leaf_nodes,
            rows.leaf_above,
            rows.inner_nodes,
            rows.inner_above,
        )
        given = (value if isinstance(value, int) else _address(value) for value in paths)
        bad = _kernels.path_sum_loss(*common, *given, rows.sharing, threads)
    elif rows.dense is None:
        ranges = (_address(t) for t in (rows.low, rows.high, rows.column))
        bad = _kernels.path_loss(*common, *ranges, threads)
    else:
        stride = 0 if rows.dense.ndim == 1 else columns
        dense = rows.dense.to(torch.float32).contiguous()
        bad = _kernels.dense_loss(*common, _address(rows.parent), dense.data_ptr(), stride, threads)
    if bad >= 0 and rows.target is not None and start is not None:
        raise_bad_target(rows.target[bad].item(), len(start) - 1, rows.ignore_index)
    return loss, grad


def raise_bad_target(value: float, labels: int, ignore_index: int) -> None:
    """The error for a label outside its range."""
    raise DataError(
        f"target must hold labels from 0 to {labels - 1} (or ignore_index={ignore_index}). Got {int(value)}."
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


# ---------------------------------------------------------------------- for torch.compile


# Schemas are spelled out: torch 2.4 cannot read them from annotations that are strings.
@torch.library.custom_op(
    "hace::tree_loss",
    mutates_args=(),
    schema="(Tensor z, Tensor? target, Tensor? start, Tensor? node, Tensor? value, Tensor? low, Tensor? high, "
    "Tensor? column, Tensor? parent, Tensor? dense, Tensor? weight, int ignore_index, str reduction, "
    "Tensor? leaf_nodes, Tensor? leaf_above, Tensor? inner_nodes, Tensor? inner_above, float sharing, "
    "bool with_grad) -> (Tensor, Tensor)",
)
def _tree_loss_op(
    z: Tensor,
    target: Tensor | None,
    start: Tensor | None,
    node: Tensor | None,
    value: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    column: Tensor | None,
    parent: Tensor | None,
    dense: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    leaf_nodes: Tensor | None,
    leaf_above: Tensor | None,
    inner_nodes: Tensor | None,
    inner_above: Tensor | None,
    sharing: float,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    table, ranges = (start, node, value), (low, high, column)
    paths = (leaf_nodes, leaf_above, inner_nodes, inner_above, sharing)
    rows = KernelRows(target, *table, *ranges, parent, dense, weight, ignore_index, reduction, *paths)
    loss, grad = _compute(z, rows, with_grad)
    return loss, z.new_empty(0) if grad is None else grad


@_tree_loss_op.register_fake
def _(z: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(z, memory_format=torch.contiguous_format) if rest[-1] else z.new_empty(0)
    return z.new_empty(z.shape[0]), grad


def _save_gradient(ctx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.inputs = len(inputs)


def _hand_over_gradient(ctx, outer: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    return (ctx.saved_tensors[0] * outer[:, None], *(None,) * (ctx.inputs - 1))


_tree_loss_op.register_autograd(_hand_over_gradient, setup_context=_save_gradient)


@torch.library.custom_op(
    "hace::node_log_probs", mutates_args=(), schema="(Tensor z, Tensor parent) -> Tensor"
)
def _node_log_probs_op(z: Tensor, parent: Tensor) -> Tensor:
    return kernel_log_probs(z, parent)


@_node_log_probs_op.register_fake
def _(z: Tensor, parent: Tensor) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)
