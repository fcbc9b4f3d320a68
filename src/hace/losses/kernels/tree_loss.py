"""The compiled losses of a table, over trees and DAGs: value and gradient in one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hace.losses import kernels
from hace.losses.kernels.autograd import kernel_loss
from hace.losses.kernels.path_sums import Tree

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


class BatchLabels(NamedTuple):
    """The labels of a batch: rows of the sparse table, and how their losses are reduced."""

    target: Tensor
    weight: Tensor | None
    ignore_index: int
    reduction: str


class SparseTable(NamedTuple):
    """The rows of all labels, each from the label upward."""

    start: Tensor
    node: Tensor
    value: Tensor


class Ranges(NamedTuple):
    """The range of positions below each node, in preorder; ``column`` maps positions to columns (None: the same)."""

    low: Tensor
    high: Tensor
    column: Tensor | None


class DenseRows(NamedTuple):
    """Targets at all nodes: one row (N,) that all samples share, or a row (B, N) for each, in float32.

    On a tree ``parent`` is the node above each node (N for none), ``level`` its level, the tops' being 0.
    """

    mass: Tensor
    parent: Tensor | None = None
    level: Tensor | None = None


class Below(NamedTuple):
    """All at or below each node of a DAG: those of node v begin at ``first[v]`` in ``member``."""

    first: Tensor
    member: Tensor


class KernelRows(NamedTuple):
    """What a loss needs besides the logits.

    With ``dense`` every node counts: the label's row of ``table`` is added to it (without ``labels``, nothing is). Without
    it only the label's path counts, by its ``ranges``. With ``paths`` the logits are outputs of all nodes whose path sums
    count, with the leaves in preorder. With ``below`` the hierarchy is a DAG.
    """

    labels: BatchLabels | None = None
    table: SparseTable | None = None
    ranges: Ranges | None = None
    dense: DenseRows | None = None
    paths: Tree | None = None
    below: Below | None = None


def tree_loss(z: Tensor, rows: KernelRows, pure: Callable[[Tensor], Tensor]) -> Tensor:
    """The reduced loss, or (B,) losses that only need to be added up.

    Args:
        z: (B, C) float32 logits.
        rows: the targets.
        pure: the same in plain PyTorch; it serves second derivatives.
    """
    if torch.compiler.is_compiling():
        needed = torch.is_grad_enabled() and z.requires_grad
        return _tree_loss_op(z, *_flat(rows), needed)[0]
    summed = rows.labels is not None and rows.labels.reduction != "none"
    return kernel_loss(z, partial(_compute, rows=rows, summed=summed), pure)


def kernel_log_probs(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    """(B, N) log q* of every node of a tree, without gradient."""
    if torch.compiler.is_compiling():
        return _node_log_probs_op(z, parent, level)
    z = z.detach().contiguous()
    out = torch.empty_like(z)
    kernels._kernels.node_log_probs(
        *(z.data_ptr(), *z.shape, out.data_ptr(), parent.data_ptr(), level.data_ptr()),
        torch.get_num_threads(),
    )
    return out


def batch_arguments(
    z: Tensor, loss: Tensor, grad: Tensor | None, summed: bool, labels: BatchLabels | None, size: int
) -> tuple[int, ...]:
    """What every loss of the extension takes first: the batch and its labels.

    Args:
        z: (B, C) contiguous logits.
        loss: (B,), or () if ``summed``.
        grad: like ``z``, or None.
        summed: whether the sum of the losses is wanted.
        labels: the labels, or None.
        size: how many labels there are.
    """
    batch = (z.data_ptr(), *z.shape, loss.data_ptr(), summed, _address(grad))
    if labels is None:
        return (*batch, 0, -100, 0, 0, 0)
    target, weight, ignore_index, reduction = labels
    return (*batch, target.data_ptr(), ignore_index, _address(weight), _REDUCTIONS[reduction], size)


def _compute(z: Tensor, with_grad: bool, rows: KernelRows, summed: bool) -> tuple[Tensor, Tensor | None]:
    z = z.detach().contiguous()
    loss = z.new_empty(() if summed else len(z))
    grad = torch.empty_like(z) if with_grad else None
    labels, table, ranges, dense, paths, below = rows
    size = 0 if table is None else len(table.start) - 1
    common = (
        *batch_arguments(z, loss, grad, summed, labels, size),
        *((0, 0, 0) if table is None else (t.data_ptr() for t in table)),
    )
    threads = torch.get_num_threads()
    stride = 0 if dense is None or dense.mass.ndim == 1 else z.shape[1]
    if below is not None:
        mass = 0 if dense is None else dense.mass.data_ptr()
        lists = (below.first.data_ptr(), below.member.data_ptr())
        bad = kernels._kernels.dag_loss(*common, *lists, mass, stride, threads)
    elif dense is not None:
        tree = (_address(dense.parent), _address(dense.level))
        bad = kernels._kernels.dense_loss(*common, *tree, dense.mass.data_ptr(), stride, threads)
    else:
        assert ranges is not None
        low, high = ranges.low.data_ptr(), ranges.high.data_ptr()
        if paths is not None:
            tree = (paths.level.data_ptr(), paths.end.data_ptr(), paths.parent.data_ptr())
            bad = kernels._kernels.path_sum_loss(
                *common, low, high, len(paths.label), *tree, paths.sharing, threads
            )
        else:
            bad = kernels._kernels.path_loss(*common, low, high, _address(ranges.column), threads)
    if bad >= 0 and labels is not None:
        kernels.raise_bad_target(labels.target[bad].item(), size, labels.ignore_index)
    return loss, grad


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


# ---------------------------------------------------------------------- for torch.compile


def _flat(rows: KernelRows) -> tuple[object, ...]:
    """The arguments of the operator, one for each field."""
    labels = rows.labels or (None, None, -100, "none")
    table = rows.table or (None,) * 3
    ranges = rows.ranges or (None,) * 3
    dense = rows.dense or (None,) * 3
    paths = rows.paths or (None, None, None, None, 1.0)
    return (*labels, *table, *ranges, *dense, *paths)


# Schemas are spelled out: torch 2.4 cannot read them from annotations that are strings.
@torch.library.custom_op(
    "hace::tree_loss",
    mutates_args=(),
    schema="(Tensor z, Tensor? target, Tensor? weight, int ignore_index, str reduction, Tensor? start, Tensor? node, "
    "Tensor? value, Tensor? low, Tensor? high, Tensor? column, Tensor? mass, Tensor? parent, Tensor? level, "
    "Tensor? path_level, Tensor? end, Tensor? path_parent, Tensor? label, float sharing, bool with_grad) "
    "-> (Tensor, Tensor)",
)
def _tree_loss_op(
    z: Tensor,
    target: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    start: Tensor | None,
    node: Tensor | None,
    value: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    column: Tensor | None,
    mass: Tensor | None,
    parent: Tensor | None,
    level: Tensor | None,
    path_level: Tensor | None,
    end: Tensor | None,
    path_parent: Tensor | None,
    label: Tensor | None,
    sharing: float,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    rows = KernelRows()
    if target is not None and start is not None and node is not None and value is not None:
        labels, table = BatchLabels(target, weight, ignore_index, reduction), SparseTable(start, node, value)
        rows = rows._replace(labels=labels, table=table)
    if low is not None and high is not None:
        rows = rows._replace(ranges=Ranges(low, high, column))
    if mass is not None:
        rows = rows._replace(dense=DenseRows(mass, parent, level))
    if path_level is not None and end is not None and path_parent is not None and label is not None:
        rows = rows._replace(paths=Tree(path_level, end, path_parent, label, sharing))
    loss, grad = _compute(z, with_grad, rows, False)
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
    "hace::node_log_probs", mutates_args=(), schema="(Tensor z, Tensor parent, Tensor level) -> Tensor"
)
def _node_log_probs_op(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    return kernel_log_probs(z, parent, level)


@_node_log_probs_op.register_fake
def _(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)
