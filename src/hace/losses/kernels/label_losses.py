"""The compiled losses without a table: conditional softmax among siblings, and losses of distances from the label."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hace.losses import kernels
from hace.losses.kernels.autograd import kernel_loss
from hace.losses.kernels.tree_loss import BatchLabels, Ranges, batch_arguments

SOFT_LABELS, SIMILARITY, EXPECTED = 0, 1, 2


class Siblings(NamedTuple):
    """A tree's groups of siblings.

    ``node`` is each label's; ``parent`` the node above each node (N for none); ``first`` where the children of node v - 1
    begin in ``member``, the tops being group 0; ``rooted`` whether node 0 is a root, whose probability is 1.
    """

    node: Tensor
    parent: Tensor
    first: Tensor
    member: Tensor
    rooted: bool


class Rings(NamedTuple):
    """Distances from label y to class c: own[y] + at[their lowest common ancestor] + leaf[c], and 0 to ``itself``.

    ``start`` and ``node`` are the paths of the labels, ``ranges`` those of the classes below each node; ``outside`` is ``at``
    where a forest has no common ancestor; ``leaf``, in preorder, is None where it is 0.
    """

    start: Tensor
    node: Tensor
    ranges: Ranges
    own: Tensor
    at: Tensor
    leaf: Tensor | None
    itself: Tensor
    outside: float


def sibling_loss(z: Tensor, labels: BatchLabels, tree: Siblings, pure: Callable[[Tensor], Tensor]) -> Tensor:
    """Conditional softmax: the reduced loss, or (B,) losses.

    Args:
        z: (B, N) float32 logits.
        labels: the batch.
        tree: the groups.
        pure: (B,) losses in plain PyTorch; they serve second derivatives.
    """
    arguments = (*(t.data_ptr() for t in tree[:4]), tree.rooted)
    return _label_loss(z, labels, len(tree.node), kernels._kernels.sibling_loss, arguments, pure)


def ring_loss(
    z: Tensor,
    labels: BatchLabels,
    rings: Rings,
    kind: int,
    strength: float,
    pure: Callable[[Tensor], Tensor],
) -> Tensor:
    """A loss of the classes' probabilities and distances: the reduced loss, or (B,) losses.

    Args:
        z: (B, n) float32 logits.
        labels: the batch.
        rings: the distances.
        kind: ``SOFT_LABELS``, ``SIMILARITY`` or ``EXPECTED``.
        strength: factor of the distance in the exponent of soft labels, or the logarithm of SimLoss's reduction factor.
        pure: (B,) losses in plain PyTorch; they serve second derivatives.
    """
    start, node, ranges, own, at, leaf, itself, outside = rings
    tensors = (start, node, *ranges, own, at, leaf, itself)
    arguments = (*(0 if t is None else t.data_ptr() for t in tensors), outside, kind, strength)
    return _label_loss(z, labels, len(start) - 1, kernels._kernels.ring_loss, arguments, pure)


def _label_loss(
    z: Tensor,
    labels: BatchLabels,
    size: int,
    function: Callable[..., int],
    arguments: tuple[Any, ...],
    pure: Callable[[Tensor], Tensor],
) -> Tensor:
    compute = partial(_compute, labels=labels, size=size, function=function, arguments=arguments)
    return kernel_loss(z, compute, pure)


def _compute(
    z: Tensor,
    with_grad: bool,
    labels: BatchLabels,
    size: int,
    function: Callable[..., int],
    arguments: tuple[Any, ...],
) -> tuple[Tensor, Tensor | None]:
    summed = labels.reduction != "none"
    z = z.detach().contiguous()
    loss = z.new_empty(() if summed else len(z))
    grad = torch.empty_like(z) if with_grad else None
    common = batch_arguments(z, loss, grad, summed, labels, size)
    bad = function(*common, *arguments, torch.get_num_threads())
    if bad >= 0:
        kernels.raise_bad_target(labels.target[bad].item(), size, labels.ignore_index)
    return loss, grad
