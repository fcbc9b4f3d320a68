"""The losses as their papers publish them, written anew, and the peer on PyPI: what the table of speeds compares with.

They multiply softmax by dense 0/1 matrices, so that their memory grows with the square of the hierarchy (HXE's with the cube),
and they take the logarithm of a sum that may underflow: a small constant inside keeps it finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import hace
from hace import Hierarchy

TINY = 1e-12
Loss = Callable[[Tensor, Tensor], Tensor]


class Published:
    """A loss with the sizes of its head and labels, as the losses of hace have them."""

    def __init__(self, loss: Loss, num_outputs: int, num_labels: int) -> None:
        self.loss, self.num_outputs, self.num_labels = loss, num_outputs, num_labels

    def __call__(self, z: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return self.loss(z, target)


def dense_hace(h: Hierarchy) -> Published:
    """HACE: -T[y] log(R softmax(z)), with R (N, N) and T (n, N)."""
    reach = hace.reachability_matrix(h, dense=True).float()
    table = hace.HACELoss(h, 0.5).table(dense=True).float()

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return -(table[y] * (z.softmax(dim=1) @ reach.T + TINY).log()).sum(dim=1).mean()

    return Published(loss, h.num_nodes, h.num_leaves)


def dense_hce(h: Hierarchy) -> Published:
    """HCE: -log of the label's entry of R softmax(z), with R (N, N)."""
    reach = hace.reachability_matrix(h, dense=True).float()
    node = torch.tensor(h.leaf_nodes)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        masses = z.softmax(dim=1) @ reach.T
        return -(masses.gather(1, node[y][:, None]) + TINY).log().mean()

    return Published(loss, h.num_nodes, h.num_leaves)


def dense_hxe(h: Hierarchy, alpha: float = 0.2) -> Published:
    """HXE: conditionals along the path from 0/1 matrices (n, n, K) of the classes below its nodes and below their parents."""
    n, depth = h.num_leaves, int(h.depths.max()) + 1
    below = hace.reachability_matrix(h, dense=True).float()[:, torch.tensor(h.leaf_nodes)]  # (N, n)
    inside, around, weight = torch.zeros(n, n, depth), torch.zeros(n, n, depth), torch.zeros(n, depth)
    for label, leaf in enumerate(h.leaf_nodes):
        node = int(leaf)
        for k in range(depth):
            if node < 0:
                break
            parent = int(h.parent_nodes[node])
            if parent >= 0 or not h.rooted:  # a root is certain
                inside[label, :, k] = below[node]
                around[label, :, k] = below[parent] if parent >= 0 else 1.0
                weight[label, k] = math.exp(-alpha * (int(h.depths[node]) - 1))
            node = parent

    def loss(z: Tensor, y: Tensor) -> Tensor:
        p = z.softmax(dim=1)[:, None]  # (B, 1, n)
        top, bottom = torch.bmm(p, inside[y])[:, 0], torch.bmm(p, around[y])[:, 0]  # (B, K)
        terms = torch.where(top != 0, -(top.clamp_min(TINY) / bottom.clamp_min(TINY)).log(), 0.0)
        return (terms * weight[y]).sum(dim=1).mean()

    return Published(loss, n, n)


def hierarchicalsoftmax_loss(h: Hierarchy) -> Published | None:
    """The loss of the `hierarchicalsoftmax` package over this tree; None where it is not installed."""
    try:
        from hierarchicalsoftmax import HierarchicalSoftmaxLoss, SoftmaxNode
    except ImportError:
        return None
    root, nodes = SoftmaxNode("root"), {}
    for node in h.nodes:
        parents = h.parents(node)
        nodes[node] = SoftmaxNode(node, parent=nodes[parents[0]] if parents else root)
    root.set_indexes()
    assert root.node_to_id is not None
    ids = torch.tensor([root.node_to_id[nodes[leaf]] for leaf in h.leaves])
    loss = HierarchicalSoftmaxLoss(root=root)
    return Published(lambda z, y: loss(z, ids[y]), root.layer_size, h.num_leaves)
