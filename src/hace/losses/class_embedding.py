"""Class embeddings from the hierarchy: their inner products are the classes' similarities (Barz and Denzler 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_number, is_number
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.losses import numerics
from hace.losses.base import ClassWeights, Labels, Reduction
from hace.losses.levelwise import NodeScoreLoss
from hace.losses.tables import FloatArray, path_entries


class ClassEmbeddingLoss(NodeScoreLoss):
    r"""Cosine distance to the embedding of the label's class.

    .. math:: \ell(z, y) = 1 - \frac{z \cdot \varphi(y)}{\lVert z \rVert} + \lambda
        \big(-\log \operatorname{softmax}(z \cdot \varphi(c))_y\big), \qquad
        \varphi(a) \cdot \varphi(b) = 1 -
        \frac{\operatorname{height}(\operatorname{lca}(a, b))}{\operatorname{height}(\text{root})}

    On a tree these embeddings are known: an entry for each node, sqrt((height(parent) - height(v)) / height(root)) where v is
    the class or above it and 0 elsewhere. They have N entries in place of the paper's n, the same inner products, and no
    matrix of n x n. Classes are scored by z . phi(c), so the best one has the nearest embedding. Trees and forests only.

    The paper's cross-entropy has its own layer behind the embedding. A loss has no weights, so here that layer is the
    class embeddings themselves. A label at an inner node asks for its own embedding, scaled to length 1, and for the
    probability of all classes below it. The output of a root is inert.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        cross_entropy: lambda >= 0; the paper uses 0 and 0.1.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"mean"`` (weighted as torch does), ``"sum"`` or ``"none"``.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = ClassEmbeddingLoss(h)
        >>> start, node, value = class_embeddings(h, h.leaf_nodes)
        >>> z = torch.zeros(1, loss.num_outputs)
        >>> z[0, node[: start[1]]] = torch.from_numpy(value[: start[1]]).float()  # the embedding of class 0
        >>> bool(loss(z, torch.tensor([0])) < 1e-6)
        True

    Reference: Barz and Denzler, "Hierarchy-based Image Embeddings for Semantic Image Retrieval" (2019), eq. 1 to 9.
    """

    step: Tensor
    length: Tensor

    def __init__(
        self,
        hierarchy: Hierarchy,
        cross_entropy: float = 0.0,
        *,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        fits = is_number(cross_entropy) and cross_entropy >= 0
        check_number("cross_entropy", cross_entropy, "a number >= 0", fits)
        super().__init__(
            hierarchy, labels=labels, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        self.cross_entropy = cross_entropy
        step, length = _steps(hierarchy)
        self.constant("step", step)
        self.constant("length", np.where(length > 0, length, 1.0))

    def class_scores(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, n) inner products with the classes' embeddings, in label order."""
        return self._products(z).index_select(1, self.head.leaf_nodes).to(z.dtype)

    def node_losses(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, N) the loss with each node as the label."""
        products = self._products(z)
        squares = (z.to(products.dtype) * (self.step > 0)).square().sum(dim=1, keepdim=True)
        some = squares > 0  # the zero vector has no direction, and counts as one of length 1
        size = torch.where(some | squares.isnan(), squares, 1.0).sqrt()
        losses = 1.0 - products / (size * self.length)
        if self.cross_entropy:
            scores = products.index_select(1, self.head.leaf_nodes)
            losses = losses - self.cross_entropy * self.classes.aggregate(scores)
        return losses.to(z.dtype)

    def _products(self, z: Tensor) -> Tensor:
        """(B, N) inner products with all nodes' embeddings, in double precision where the device has it."""
        wide = z.to(numerics.wide_dtype(z)) * self.step
        return numerics.sum_down(wide, self.head.levels)

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        return {"cross_entropy": self.cross_entropy}


def class_embeddings(h: Hierarchy, rows: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """(start, node, value): the embeddings of nodes as sparse rows over the N nodes, from the node upward.

    Args:
        h: a tree or forest.
        rows: node indices, such as ``h.leaf_nodes``.
    """
    start, node, _ = path_entries(h, rows)
    return start, node, _steps(h)[0][node]


def _steps(h: Hierarchy) -> tuple[FloatArray, FloatArray]:
    """(N,) the entry of each node in embeddings at or below it, and (N,) the length of its own embedding."""
    heights = h.heights.astype(np.float64)
    root = heights.max() + (0.0 if h.rooted else 1.0)
    parent = np.where(h.parent_nodes < 0, root, heights[h.parent_nodes])
    return np.sqrt((parent - heights) / root), np.sqrt(1.0 - heights / root)
