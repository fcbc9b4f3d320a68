"""The compiled losses of a table, over trees and DAGs: value and gradient in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hace.losses import kernels
from hace.losses.kernels.autograd import BatchLabels, Call, address, compute, kernel_loss
from hace.losses.kernels.path_sums import Tree


class SparseTable(NamedTuple):
    """The rows of all labels, each from the label upward, and the labels' weights in a mean."""

    start: Tensor
    node: Tensor
    value: Tensor
    weight: Tensor | None


class Ranges(NamedTuple):
    """The range of positions below each node, in preorder; ``column`` maps positions to columns (None: the same).

    ``branch`` is, for each column, the first position of the widest subtree around it that has not all columns.
    """

    low: Tensor
    high: Tensor
    column: Tensor | None
    branch: Tensor | None = None


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

    With ``dense`` every node counts: the label's row of ``table``, if there is one, is added to it. Without it only the
    label's path counts, by its ``ranges``. With ``paths`` the logits are outputs of all nodes whose path sums
    count, with the leaves in preorder. With ``below`` the hierarchy is a DAG.
    """

    table: SparseTable | None = None
    ranges: Ranges | None = None
    dense: DenseRows | None = None
    paths: Tree | None = None
    below: Below | None = None


def tree_loss(
    z: Tensor, rows: KernelRows, labels: BatchLabels | None, pure: Callable[[Tensor, Any], Tensor]
) -> Tensor:
    """The reduced loss, or (B,) losses that only need to be added up.

    Args:
        z: (B, C) float32 logits.
        rows: the targets.
        labels: the labels, which say which rows of the table count; None without a table.
        pure: the same of logits and labels in plain PyTorch; it serves second derivatives.
    """
    if torch.compiler.is_compiling():
        needed = torch.is_grad_enabled() and z.requires_grad
        return _tree_loss_op(z, *_flat(rows, labels), needed)[0]
    return kernel_loss(z, tree_call(rows), labels, pure)


def tree_places(rows: KernelRows) -> Tensor | None:
    """Where a tree's inner nodes and leaves are, for calls that are kept; None for losses that do not ask."""
    tree = rows.dense or rows.paths
    if rows.below is not None or tree is None or tree.level is None:
        return None
    return torch.frombuffer(
        kernels._kernels.tree_places(address(tree.level), len(tree.level)), dtype=torch.int32
    )


def tree_call(rows: KernelRows, places: Tensor | None = None) -> Call:
    """The function of the extension that takes these rows, with its arguments.

    Args:
        rows: the targets.
        places: of the tree; without them each call finds them itself.
    """
    table, ranges, dense, paths, below = rows
    size, weight, entries = 0, None, (0, 0, 0)
    if table is not None:
        size, weight, entries = len(table.start) - 1, table.weight, tuple(map(address, table[:3]))
    stride = 0 if dense is None or dense.mass.ndim == 1 else dense.mass.shape[1]
    mass = (0 if dense is None else dense.mass.data_ptr(), stride)
    if below is not None:
        return Call("dag_loss", (*entries, *map(address, below), *mass), size, weight, rows)
    if dense is not None:
        tree = (address(dense.parent), address(dense.level))
        return Call("dense_loss", (*entries, *tree, *mass, address(places)), size, weight, (rows, places))
    assert ranges is not None
    low, high, column, branch = map(address, ranges)
    if paths is None:
        return Call("path_loss", (*entries, low, high, column, branch), size, weight, rows)
    tree = (len(paths.label), *map(address, (paths.level, paths.end, paths.parent)), paths.sharing)
    return Call("path_sum_loss", (*entries, low, high, *tree, address(places)), size, weight, (rows, places))


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


# ---------------------------------------------------------------------- for torch.compile


def _flat(rows: KernelRows, labels: BatchLabels | None) -> tuple[object, ...]:
    """The arguments of the operator, one for each field."""
    batch = labels or (None, -100, "none")
    table = rows.table or (None,) * 4
    ranges = rows.ranges or (None,) * 4
    dense = rows.dense or (None,) * 3
    paths = rows.paths or (None, None, None, None, 1.0)
    return (*batch, *table, *ranges, *dense, *paths)


# Schemas are spelled out: torch 2.4 cannot read them from annotations that are strings.
@torch.library.custom_op(
    "hace::tree_loss",
    mutates_args=(),
    schema="(Tensor z, Tensor? target, int ignore_index, str reduction, Tensor? start, Tensor? node, Tensor? value, "
    "Tensor? weight, Tensor? low, Tensor? high, Tensor? column, Tensor? branch, Tensor? mass, Tensor? parent, Tensor? level, "
    "Tensor? path_level, Tensor? end, Tensor? path_parent, Tensor? label, float sharing, bool with_grad) "
    "-> (Tensor, Tensor)",
)
def _tree_loss_op(
    z: Tensor,
    target: Tensor | None,
    ignore_index: int,
    reduction: str,
    start: Tensor | None,
    node: Tensor | None,
    value: Tensor | None,
    weight: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    column: Tensor | None,
    branch: Tensor | None,
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
    rows, labels = KernelRows(), None
    if target is not None and start is not None and node is not None and value is not None:
        rows = rows._replace(table=SparseTable(start, node, value, weight))
        labels = BatchLabels(target, ignore_index, reduction)
    if low is not None and high is not None:
        rows = rows._replace(ranges=Ranges(low, high, column, branch))
    if mass is not None:
        rows = rows._replace(dense=DenseRows(mass, parent, level))
    if path_level is not None and end is not None and path_parent is not None and label is not None:
        rows = rows._replace(paths=Tree(path_level, end, path_parent, label, sharing))
    loss, grad = compute(z, with_grad, tree_call(rows), labels, summed=False)
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
