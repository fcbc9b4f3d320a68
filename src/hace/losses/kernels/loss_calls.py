"""Losses of the kernel: what a call takes, its place in autograd, and its operator for ``torch.compile``.

The gradient of a loss is made together with its value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hace.errors import DataError
from hace.losses.kernels import extension
from hace.losses.kernels.extension import address
from hace.losses.kernels.torch_internals import SingleLevelFunction, compiling

# Kinds of losses of distances, as the kernel numbers them.
SOFT_LABELS = 0
SIMILARITY = 1
EXPECTED = 2
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}

_SCALAR = torch.empty((), dtype=torch.float32, device="cpu")  # to make others like it, in half the time


class KernelCall(NamedTuple):
    """A loss of the kernel, prepared: what it takes besides the batch.

    ``function`` is its name, ``tensors`` and ``numbers`` are its own arguments, ``labels`` is how many labels there are and
    ``weight`` their weights. ``run`` is the function itself, ``arguments`` are the addresses of the tensors and the numbers,
    ``weight_address`` is that of the weights. In a graph there are no addresses, and ``run`` is None.
    """

    function: str
    tensors: tuple[Tensor | None, ...]
    numbers: tuple[float, ...]
    labels: int
    weight: Tensor | None
    run: Callable[..., int] | None
    weight_address: int
    arguments: tuple[float, ...]


def prepare_call(
    function: str,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float] = (),
    labels: int = 0,
    weight: Tensor | None = None,
) -> KernelCall:
    """A call of a loss; see :class:`KernelCall`."""
    given = function, tuple(tensors), tuple(numbers), labels, weight
    if compiling():
        return KernelCall(*given, None, 0, ())
    run = getattr(extension.module, function)
    return KernelCall(*given, run, address(weight), (*map(address, tensors), *numbers))


def tree_places(level: Tensor) -> Tensor:
    """Where a tree's inner nodes and leaves are; a call without this list makes it."""
    return torch.frombuffer(extension.module.tree_places(address(level), len(level)), dtype=torch.int32)


def raise_bad_target(value: float, labels: int, ignore_index: int) -> None:
    """The error for a label outside its range."""
    raise DataError(
        f"target must hold labels from 0 to {labels - 1} (or ignore_index={ignore_index}). Got {int(value)}."
    )


def _compute(
    z: Tensor,
    with_grad: bool,
    call: KernelCall,
    labels: Tensor | None,
    ignore_index: int,
    reduction: str,
    summed: bool,
) -> tuple[Tensor, Tensor | None]:
    """(B,) losses, or with ``summed`` their sum, and the gradient of that sum if it is wanted."""
    assert call.run is not None
    z = z.contiguous()
    rows, columns = z.shape
    loss = torch.empty_like(_SCALAR) if summed else z.new_empty(rows)
    grad = torch.empty_like(z) if with_grad else None
    bad = call.run(
        z.data_ptr(),
        rows,
        columns,
        loss.data_ptr(),
        summed,
        0 if grad is None else grad.data_ptr(),
        0 if labels is None else labels.data_ptr(),
        ignore_index,
        call.weight_address,
        _REDUCTIONS[reduction],
        call.labels,
        *call.arguments,
        torch.get_num_threads(),
    )
    if bad >= 0 and labels is not None:
        raise_bad_target(labels[bad].item(), call.labels, ignore_index)
    return loss, grad


class _KernelLoss(SingleLevelFunction):
    @staticmethod
    def forward(ctx, z: Tensor, rest: tuple[Any, ...]) -> Tensor:  # type: ignore[override]
        call, labels, ignore_index, reduction, in_torch = rest
        summed = labels is not None and reduction != "none"
        loss, ctx.grad = _compute(z, ctx.needs_input_grad[0], call, labels, ignore_index, reduction, summed)
        ctx.save_for_backward(z)
        # A copy: the graph may be used again after the caller has written new labels into the tensor.
        copy = None if labels is None else extension.module.copied(labels.data_ptr(), 8 * labels.numel())
        ctx.rest = call, copy, ignore_index, reduction, in_torch
        return loss

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[override]
        by = outer[0]
        if torch.is_grad_enabled():
            grad = _differentiable_gradient(ctx)
            return grad * (by[:, None] if by.ndim else by), None
        # The gradient was made with the loss. It is handed over once, and recomputed if the graph is used twice.
        grad = ctx.grad
        ctx.grad = None
        if grad is None:
            grad = _gradient_again(ctx)
        if not _are_ones(by):
            grad = grad.mul_(by[:, None] if by.ndim else by)
        return grad, None


def kernel_loss(
    z: Tensor,
    call: KernelCall,
    labels: Tensor | None,
    ignore_index: int,
    reduction: str,
    in_torch: Callable[[Tensor, Any], Tensor],
) -> Tensor:
    """(B,) losses by the kernel, 0 where ignored and divided by the mean's denominator; or their sum, for a mean or a sum.

    Args:
        z: (B, C) logits.
        call: the loss.
        labels: (B,) labels, contiguous; None: the call has its own masses, and their losses are not reduced.
        ignore_index: label of samples that do not count.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        in_torch: computes (B,) losses from logits and labels in plain PyTorch, for second derivatives.
    """
    if call.run is None:
        return _graph_loss(z, call, labels, ignore_index, reduction)
    # One argument beside the logits: autograd looks at each.
    return _KernelLoss.apply(z, (call, labels, ignore_index, reduction, in_torch))  # type: ignore[return-value]


def _are_ones(by: Tensor) -> bool:
    """Whether an outer gradient changes nothing. The values of a tensor of another type, such as a fake one, are not known."""
    if type(by) is not Tensor:
        return False
    return by.item() == 1.0 if by.ndim == 0 else bool((by == 1.0).all())


def _differentiable_gradient(ctx: Any) -> Tensor:
    """The gradient of the sum as a graph of its own, in plain PyTorch."""
    (z,) = ctx.saved_tensors
    in_torch = ctx.rest[-1]
    losses = in_torch(z, _labels_of(ctx))
    # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
    (grad,) = torch.autograd.grad(losses, z, z.new_ones(len(z)), create_graph=True)
    return grad


def _gradient_again(ctx: Any) -> Tensor:
    """The gradient of the sum, computed once more."""
    (z,) = ctx.saved_tensors
    call, _, ignore_index, reduction, _ = ctx.rest
    _, grad = _compute(z, True, call, _labels_of(ctx), ignore_index, reduction, summed=False)
    assert grad is not None
    return grad


def _labels_of(ctx: Any) -> Tensor | None:
    """The labels as they were."""
    copy = ctx.rest[1]
    return None if copy is None else torch.frombuffer(bytearray(copy), dtype=torch.int64)


def _graph_loss(
    z: Tensor, call: KernelCall, labels: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """(B,) losses as an operator in a graph of ``torch.compile``."""
    needed = torch.is_grad_enabled() and z.requires_grad
    tensors = [z.new_empty(0) if t is None else t for t in call.tensors]
    numbers = [*call.numbers, call.labels]
    return _loss_op(z, labels, ignore_index, reduction, call.function, tensors, numbers, call.weight, needed)[
        0
    ]


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
    labels = None if target is None else target.contiguous()
    given = [t if t.numel() else None for t in tensors]
    call = prepare_call(function, given, numbers[:-1], int(numbers[-1]), weight)
    loss, grad = _compute(z, with_grad, call, labels, ignore_index, reduction, summed=False)
    return loss, z.new_empty(0) if grad is None else grad


@_loss_op.register_fake
def _(z: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(z, memory_format=torch.contiguous_format) if rest[-1] else z.new_empty(0)
    return z.new_empty(z.shape[0]), grad


def _loss_setup_context(ctx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.tensors = len(inputs[5])


def _loss_backward(ctx, outer: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
    return (ctx.saved_tensors[0] * outer[:, None], *(None,) * 4, [None] * ctx.tensors, *(None,) * 3)


_loss_op.register_autograd(_loss_backward, setup_context=_loss_setup_context)
