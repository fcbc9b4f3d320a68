"""Path sums by the kernel: one pass down the tree, and its transpose, one pass up. Each is the other's derivative, as often as
you like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hace.losses.kernels import extension
from hace.losses.kernels.extension import kernel_supports
from hace.losses.kernels.torch_internals import compiling

# Passes of path sums, as the kernel numbers them.
_DOWN = 0
_CENTRED = 1
_UP = 2


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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the kernel reads."""
        return self[:4]


def path_sums(z: Tensor, tree: Tree, centred: bool, in_torch: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, N) float32 outputs -> (B, n) logits of the classes, with ``centred`` less the row's largest, as a constant.

    ``in_torch`` computes the same in plain PyTorch: it is used for gradients that are not plain memory.
    """
    way = _CENTRED if centred else _DOWN
    if compiling():
        return _path_sums_op(z, *tree, way)
    return _PathSums.apply(z, tree, way, in_torch)


class _PathSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, tree: Tree, way: int, in_torch: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        ctx.tree = tree
        ctx.way = way
        ctx.in_torch = in_torch
        return _compute(x, tree, way)

    @staticmethod
    def backward(ctx, outer: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        up = ctx.way != _UP
        if kernel_supports(outer, *ctx.tree.tensors):
            grad = _PathSums.apply(outer, ctx.tree, _UP if up else _DOWN, ctx.in_torch)
        elif up:
            with torch.enable_grad():
                z = torch.zeros(len(outer), len(ctx.tree.level), requires_grad=True)
                (grad,) = torch.autograd.grad(ctx.in_torch(z), z, outer, create_graph=outer.requires_grad)
        else:
            grad = ctx.in_torch(outer)
        return grad, None, None, None


def _compute(x: Tensor, tree: Tree, way: int) -> Tensor:
    x = x.detach().contiguous()
    nodes = len(tree.level)
    classes = len(tree.label)
    out = x.new_empty(len(x), nodes if way == _UP else classes)
    extension.module.path_sums(
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
    return _compute(x, Tree(level, end, parent, label, sharing), way)


@_path_sums_op.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    level, _, _, label, _, way = rest
    return x.new_empty(x.shape[0], level.shape[0] if way == _UP else label.shape[0])


def _path_sums_setup_context(ctx, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:5])
    ctx.sharing, ctx.way = inputs[5:]


def _path_sums_backward(ctx, outer: Tensor) -> tuple[Tensor | None, ...]:
    way = _DOWN if ctx.way == _UP else _UP
    return (_path_sums_op(outer, *ctx.saved_tensors, ctx.sharing, way), *(None,) * 6)


_path_sums_op.register_autograd(_path_sums_backward, setup_context=_path_sums_setup_context)
