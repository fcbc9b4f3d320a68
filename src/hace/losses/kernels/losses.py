"""The compiled losses and path sums: what each is called with, its place in autograd, and its operator for torch.compile.

The gradient of a loss is made together with its value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hace.losses import kernels

SOFT_LABELS, SIMILARITY, EXPECTED = 0, 1, 2  # kinds of losses of distances
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
_DOWN, _CENTRED, _UP = 0, 1, 2  # passes of path sums


class BatchLabels(NamedTuple):
    """The labels of a batch, contiguous, and how their losses are reduced."""

    target: Tensor
    ignore_index: int
    reduction: str


class Call(NamedTuple):
    """A loss of the extension and what it takes besides the batch.

    ``function`` is its name, ``tensors`` and ``numbers`` are its own arguments, ``labels`` is how many labels there are and
    ``weight`` their weights. ``arguments`` are the addresses of the tensors and the numbers; a graph has no addresses.
    """

    function: str
    tensors: tuple[Tensor | None, ...]
    numbers: tuple[float, ...]
    labels: int
    weight: Tensor | None
    arguments: tuple[float, ...]


def make_call(
    function: str,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float] = (),
    labels: int = 0,
    weight: Tensor | None = None,
) -> Call:
    """A call of a loss; see :class:`Call`."""
    arguments = () if kernels.compiling() else (*map(address, tensors), *numbers)
    return Call(function, tuple(tensors), tuple(numbers), labels, weight, arguments)


def address(tensor: Tensor | None) -> int:
    """Where a tensor's memory begins; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def tree_places(level: Tensor) -> Tensor:
    """Where a tree's inner nodes and leaves are; a call without them finds them itself."""
    return torch.frombuffer(kernels._kernels.tree_places(address(level), len(level)), dtype=torch.int32)


def kernel_loss(
    z: Tensor, call: Call, labels: BatchLabels | None, pure: Callable[[Tensor, Any], Tensor]
) -> Tensor:
    """(B,) losses by the kernel, or their sum."""
    if kernels.compiling():
        needed = torch.is_grad_enabled() and z.requires_grad
        tensors = [z.new_empty(0) if t is None else t for t in call.tensors]
        numbers = [*call.numbers, call.labels]
        batch = labels or (None, -100, "none")
        return _loss_op(z, *batch, call.function, tensors, numbers, call.weight, needed)[0]
    return run_loss(z, call, labels, pure)


def compute(
    z: Tensor, with_grad: bool, call: Call, labels: BatchLabels | None, *, summed: bool
) -> tuple[Tensor, Tensor | None]:
    """(B,) losses, or with ``summed`` their sum, and the gradient of that sum if it is wanted; see `kernel_loss`."""
    z = z.contiguous()
    target, ignore_index, reduction = labels or (None, -100, "none")
    rows, columns = z.shape
    loss = z.new_empty(() if summed else rows)
    grad = torch.empty_like(z) if with_grad else None
    bad = getattr(kernels._kernels, call.function)(
        *(z.data_ptr(), rows, columns, loss.data_ptr(), summed, address(grad)),
        *(address(target), ignore_index, address(call.weight), _REDUCTIONS[reduction], call.labels),
        *call.arguments,
        torch.get_num_threads(),
    )
    if bad >= 0 and target is not None:
        kernels.raise_bad_target(target[bad].item(), call.labels, ignore_index)
    return loss, grad


# What torch.autograd.Function is without torch.func, which never comes here.
class _KernelLoss(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(ctx, z: Tensor, call: Call, labels: BatchLabels | None, pure: Any) -> Tensor:  # type: ignore[override]
        summed = labels is not None and labels.reduction != "none"
        loss, ctx.grad = compute(z, ctx.needs_input_grad[0], call, labels, summed=summed)
        ctx.save_for_backward(z)
        # A copy: the graph may be used again after the caller has written new labels into the tensor.
        copy = labels and kernels._kernels.copied(labels.target.data_ptr(), 8 * labels.target.numel())
        ctx.rest = call, labels, copy, pure
        return loss

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor | None, None, None, None]:  # type: ignore[override]
        by = outer[0]
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            (z,) = ctx.saved_tensors
            labels = _labels_of(ctx)
            losses = ctx.rest[3](z, labels and labels.target)
            # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
            (grad,) = torch.autograd.grad(losses, z, z.new_ones(len(z)), create_graph=True)
            return grad * (by[:, None] if by.ndim else by), None, None, None
        # The gradient was made with the loss. It is handed over once, and recomputed if the graph is used twice.
        grad, ctx.grad = ctx.grad, None
        if grad is None:
            (z,) = ctx.saved_tensors
            grad = compute(z, True, ctx.rest[0], _labels_of(ctx), summed=False)[1]
            assert grad is not None
        if by.ndim == 0 and kernels.is_plain(by):
            kernels._kernels.multiply(grad.data_ptr(), grad.numel(), by.data_ptr())
        elif by.ndim == 0 or not bool((by == 1.0).all()):
            grad = grad.mul_(by[:, None] if by.ndim else by)
        return grad, None, None, None


def _labels_of(ctx: Any) -> BatchLabels | None:
    """The labels as they were."""
    _, labels, copy, _ = ctx.rest
    if labels is None or len(labels.target) == 0:
        return labels
    return labels._replace(target=torch.frombuffer(bytearray(copy), dtype=torch.int64))


run_loss: Callable[..., Tensor] = _KernelLoss.apply  # type: ignore[attr-defined]  # `kernel_loss` in eager mode


def kernel_log_probs(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    """(B, N) log q* of every node of a tree, without gradient."""
    if kernels.compiling():
        return _node_log_probs_op(z, parent, level)
    z = z.detach().contiguous()
    out = torch.empty_like(z)
    kernels._kernels.node_log_probs(
        *(z.data_ptr(), *z.shape, out.data_ptr(), parent.data_ptr(), level.data_ptr()),
        torch.get_num_threads(),
    )
    return out


# Schemas are spelled out: torch 2.4 cannot read them from annotations that are strings. An empty tensor stands for None, and
# the number of labels is the last of the numbers: autograd takes neither lists with None nor empty ones.
@torch.library.custom_op(
    "hace::loss",
    mutates_args=(),
    schema="(Tensor z, Tensor? target, int ignore_index, str reduction, str function, Tensor[] tensors, float[] numbers, "
    "Tensor? weight, bool with_grad) -> (Tensor, Tensor)",
)
def _loss_op(
    z: Tensor,
    target: Tensor | None,
    ignore_index: int,
    reduction: str,
    function: str,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    weight: Tensor | None,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    batch = None if target is None else BatchLabels(target.contiguous(), ignore_index, reduction)
    given = [t if t.numel() else None for t in tensors]
    call = make_call(function, given, numbers[:-1], int(numbers[-1]), weight)
    loss, grad = compute(z, with_grad, call, batch, summed=False)
    return loss, z.new_empty(0) if grad is None else grad


@_loss_op.register_fake
def _(z: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(z, memory_format=torch.contiguous_format) if rest[-1] else z.new_empty(0)
    return z.new_empty(z.shape[0]), grad


def _save_gradient(ctx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.tensors = len(inputs[5])


def _hand_over_gradient(ctx, outer: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
    return (ctx.saved_tensors[0] * outer[:, None], *(None,) * 4, [None] * ctx.tensors, *(None,) * 3)


_loss_op.register_autograd(_hand_over_gradient, setup_context=_save_gradient)


@torch.library.custom_op(
    "hace::node_log_probs", mutates_args=(), schema="(Tensor z, Tensor parent, Tensor level) -> Tensor"
)
def _node_log_probs_op(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    return kernel_log_probs(z, parent, level)


@_node_log_probs_op.register_fake
def _(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)


# One pass down the tree, and its transpose, one pass up: each is the other's derivative, as often as you like.


class Tree(NamedTuple):
    """The paths of a tree, its nodes in preorder.

    ``level`` is each node's, the tops' being 0; ``end`` where its subtree ends; ``parent`` the node above it (N for none);
    ``label`` the class of each leaf, in preorder; ``sharing`` is s.
    """

    level: Tensor
    end: Tensor
    parent: Tensor
    label: Tensor
    sharing: float


def path_sums_serve(z: Tensor, tree: Tree) -> bool:
    """Whether the kernel serves these outputs, here and now."""
    return kernels.usable(z, *tree[:4])


def path_sums(z: Tensor, tree: Tree, centred: bool, pure: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, N) float32 outputs -> (B, n) logits of the classes, with ``centred`` less the row's largest, as a constant.

    ``pure`` computes the same in plain PyTorch: it serves gradients that are not plain memory.
    """
    way = _CENTRED if centred else _DOWN
    if kernels.compiling():
        return _path_sums_op(z, *tree, way)
    return _PathSums.apply(z, tree, way, pure)


class _PathSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, tree: Tree, way: int, pure: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        ctx.tree, ctx.way, ctx.pure = tree, way, pure
        return _path_sums(x, tree, way)

    @staticmethod
    def backward(ctx, outer: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        up = ctx.way != _UP
        if path_sums_serve(outer, ctx.tree):
            found = _PathSums.apply(outer, ctx.tree, _UP if up else _DOWN, ctx.pure)
        elif up:
            with torch.enable_grad():
                z = torch.zeros(len(outer), len(ctx.tree.level), requires_grad=True)
                (found,) = torch.autograd.grad(ctx.pure(z), z, outer, create_graph=outer.requires_grad)
        else:
            found = ctx.pure(outer)
        return found, None, None, None


def _path_sums(x: Tensor, tree: Tree, way: int) -> Tensor:
    x = x.detach().contiguous()
    nodes, classes = len(tree.level), len(tree.label)
    out = x.new_empty(len(x), nodes if way == _UP else classes)
    kernels._kernels.path_sums(
        *(x.data_ptr(), len(x), out.data_ptr(), nodes, classes, tree.level.data_ptr(), tree.label.data_ptr()),
        *(tree.sharing, way, torch.get_num_threads()),
    )
    return out


@torch.library.custom_op(
    "hace::path_sums",
    mutates_args=(),
    schema="(Tensor x, Tensor level, Tensor end, Tensor parent, Tensor label, float sharing, int way) -> Tensor",
)
def _path_sums_op(
    x: Tensor, level: Tensor, end: Tensor, parent: Tensor, label: Tensor, sharing: float, way: int
) -> Tensor:
    return _path_sums(x, Tree(level, end, parent, label, sharing), way)


@_path_sums_op.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    level, _, _, label, _, way = rest
    return x.new_empty(x.shape[0], level.shape[0] if way == _UP else label.shape[0])


def _keep_tree(ctx, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:5])
    ctx.sharing, ctx.way = inputs[5:]


def _turn_round(ctx, outer: Tensor) -> tuple[Tensor | None, ...]:
    way = _DOWN if ctx.way == _UP else _UP
    return (_path_sums_op(outer, *ctx.saved_tensors, ctx.sharing, way), *(None,) * 6)


_path_sums_op.register_autograd(_turn_round, setup_context=_keep_tree)
