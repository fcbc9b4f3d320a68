"""The compiled losses without a table: conditional softmax among siblings, and losses of distances from the label."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hace.losses.kernels.autograd import Call, address
from hace.losses.kernels.tree_loss import Ranges

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


def sibling_call(tree: Siblings, weight: Tensor | None) -> Call:
    """Conditional softmax, for logits over the nodes."""
    arguments = (*map(address, tree[:4]), tree.rooted)
    return Call("sibling_loss", arguments, len(tree.node), weight, tree)


def ring_call(rings: Rings, kind: int, strength: float, weight: Tensor | None) -> Call:
    """A loss of the classes' probabilities and distances.

    Args:
        rings: the distances.
        kind: ``SOFT_LABELS``, ``SIMILARITY`` or ``EXPECTED``.
        strength: factor of the distance in the exponent of soft labels, or the logarithm of SimLoss's reduction factor.
        weight: weights of the labels, or None.
    """
    start, node, ranges, own, at, leaf, itself, outside = rings
    addresses = map(address, (start, node, *ranges[:3], own, at, leaf, itself))
    return Call("ring_loss", (*addresses, outside, kind, strength), len(start) - 1, weight, rings)
