"""The compiled losses over a tree: value and gradient in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hace.losses import kernels
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
    """Targets at all nodes: one row (N,) that all samples share, or a row (B, N) for each; and each node's parent."""

    parent: Tensor
    mass: Tensor


class KernelRows(NamedTuple):
    """What a loss over a tree needs besides the logits.

    With ``dense`` every node counts: the label's row of ``table`` is added to it (without ``labels``, nothing is). Without
    it only the label's path counts, by its ``ranges``. With ``paths`` the logits are outputs of all nodes whose path sums
    count, with the leaves in preorder.
    """

    labels: BatchLabels | None = None
    table: SparseTable | None = None
    ranges: Ranges | None = None
    dense: DenseRows | None = None
    paths: Tree | None = None


def tree_loss(z: Tensor, rows: KernelRows, pure: Callable[[Tensor], Tensor]) -> Tensor:
    """(B,) losses, each already divided as ``reduction`` says, so that their sum is the reduced loss.

    Args:
        z: (B, C) float32 logits.
        rows: the targets.
        pure: the same in plain PyTorch; it serves second derivatives.
    """
    if torch.compiler.is_compiling():
        needed = torch.is_grad_enabled() and z.requires_grad
        return _tree_loss_op(z, *_flat(rows), needed)[0]
    return _TreeLoss.apply(z, rows, pure)


def kernel_log_probs(z: Tensor, parent: Tensor) -> Tensor:
    """(B, N) log q* of every node of a tree, without gradient."""
    if torch.compiler.is_compiling():
        return _node_log_probs_op(z, parent)
    z = z.detach().contiguous()
    out = torch.empty_like(z)
    kernels._kernels.node_log_probs(
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
    labels, table, ranges, dense, paths = rows
    common = (z.data_ptr(), batch, columns, loss.data_ptr(), _address(grad))
    if labels is None or table is None:
        common += (0, -100, 0, 0, 0, 0, 0, 0)
    else:
        common += (
            *(labels.target.data_ptr(), labels.ignore_index, _address(labels.weight)),
            *(_REDUCTIONS[labels.reduction], len(table.start) - 1, *(t.data_ptr() for t in table)),
        )
    threads = torch.get_num_threads()
    if dense is not None:
        stride = 0 if dense.mass.ndim == 1 else columns
        mass = dense.mass.to(torch.float32).contiguous()
        bad = kernels._kernels.dense_loss(*common, dense.parent.data_ptr(), mass.data_ptr(), stride, threads)
    elif paths is not None:
        assert ranges is not None
        sizes = (len(paths.leaf_nodes), len(paths.inner_nodes))
        given = (ranges.low.data_ptr(), ranges.high.data_ptr(), *sizes, *(t.data_ptr() for t in paths[:4]))
        bad = kernels._kernels.path_sum_loss(*common, *given, paths.sharing, threads)
    else:
        assert ranges is not None
        bad = kernels._kernels.path_loss(*common, *(_address(t) for t in ranges), threads)
    if bad >= 0 and labels is not None and table is not None:
        kernels.raise_bad_target(labels.target[bad].item(), len(table.start) - 1, labels.ignore_index)
    return loss, grad


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


# ---------------------------------------------------------------------- for torch.compile


def _flat(rows: KernelRows) -> tuple[object, ...]:
    """The arguments of the operator, one for each field."""
    labels = rows.labels or (None, None, -100, "none")
    table = rows.table or (None,) * 3
    ranges = rows.ranges or (None,) * 3
    dense = rows.dense or (None,) * 2
    paths = rows.paths or (None, None, None, None, 1.0)
    return (*labels, *table, *ranges, *dense, *paths)


# Schemas are spelled out: torch 2.4 cannot read them from annotations that are strings.
@torch.library.custom_op(
    "hace::tree_loss",
    mutates_args=(),
    schema="(Tensor z, Tensor? target, Tensor? weight, int ignore_index, str reduction, Tensor? start, Tensor? node, "
    "Tensor? value, Tensor? low, Tensor? high, Tensor? column, Tensor? parent, Tensor? mass, Tensor? leaf_nodes, "
    "Tensor? leaf_above, Tensor? inner_nodes, Tensor? inner_above, float sharing, bool with_grad) -> (Tensor, Tensor)",
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
    parent: Tensor | None,
    mass: Tensor | None,
    leaf_nodes: Tensor | None,
    leaf_above: Tensor | None,
    inner_nodes: Tensor | None,
    inner_above: Tensor | None,
    sharing: float,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    rows = KernelRows()
    if target is not None and start is not None and node is not None and value is not None:
        labels, table = BatchLabels(target, weight, ignore_index, reduction), SparseTable(start, node, value)
        rows = rows._replace(labels=labels, table=table)
    if low is not None and high is not None:
        rows = rows._replace(ranges=Ranges(low, high, column))
    if parent is not None and mass is not None:
        rows = rows._replace(dense=DenseRows(parent, mass))
    if (
        leaf_nodes is not None
        and leaf_above is not None
        and inner_nodes is not None
        and inner_above is not None
    ):
        rows = rows._replace(paths=Tree(leaf_nodes, leaf_above, inner_nodes, inner_above, sharing))
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
