"""Losses over the outputs of all nodes that are no table: conditional softmax, a classifier per level, class embeddings."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number, require, require_tree
from hace.hierarchy import Hierarchy
from hace.hierarchy.hierarchy import Labels
from hace.losses import numerics
from hace.losses.base import ClassWeights, LabelLoss, Reduction
from hace.losses.head import Head
from hace.losses.kernels.loss_calls import KernelCall, prepare_call
from hace.losses.tables import FloatArray

LevelAnswers = Literal["product", "leaf", "top_down"]


class NodeScoreLoss(LabelLoss):
    """Base of losses over all nodes' outputs: a rule scores the classes, and probabilities are a softmax of these scores."""

    allowed_outputs = ("nodes",)

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        require_tree(hierarchy, type(self).__name__)
        super().__init__(
            hierarchy, labels=labels, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        self.classes = Head(hierarchy, "leaves")
        self.constant("group", hierarchy.parent_nodes + 1)  # siblings share their parent; 0: the tops
        self.constant("fixed", (np.arange(hierarchy.num_nodes) == 0) & hierarchy.rooted)

    @abstractmethod
    def class_scores(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, n) scores of the classes in label order."""

    @abstractmethod
    def node_losses(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, N) the loss with each node as the label."""

    def leaf_logits(self, z: Tensor) -> Tensor:
        """(B, n, ...) scores of the classes in label order."""
        rows, restore = self.head.rows(z)
        return restore(self.class_scores(rows))

    def node_log_probs(self, z: Tensor) -> Tensor:
        """(B, N, ...) log-probabilities in node order: a softmax of the classes' scores, added up."""
        rows, restore = self.head.rows(z)
        return restore(self.classes.aggregate(self.class_scores(rows)))

    def unweighted_losses(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) losses."""
        return self.node_losses(z).gather(1, self.label_nodes[rows][:, None])[:, 0]

    def mixed_losses(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) masses -> (B,) losses."""
        losses = self.node_losses(z).index_select(1, self.label_nodes)
        return numerics.table_cross_entropy(-losses, mass)  # 0 times inf is 0

    def conditional_log_probs(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, N) sums of the log softmax among siblings along each node's path."""
        among = numerics.sibling_log_probs(z, self.group, self.hierarchy.num_nodes + 1, self.fixed)
        return numerics.sum_down(among, self.head.levels)


class ConditionalSoftmaxLoss(NodeScoreLoss):
    r"""Softmax among siblings; a node's probability is the product along its path.

    .. math:: \ell(z, y) = -\sum_i \log P(b_i \mid b_{i+1}), \qquad
        P(v \mid \text{parent}) = \operatorname{softmax}_{\text{siblings of } v}(z)_v

    The tops of a forest are siblings; a root has probability 1 and its output is inert. Trees and forests only.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        labels, weight, ignore_index, reduction: as in every loss; see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = ConditionalSoftmaxLoss(h)
        >>> loss(torch.zeros(1, loss.num_outputs), torch.tensor([h.label("husky")]))
        tensor(1.3863)

    Reference: Redmon and Farhadi, "YOLO9000" (2017), hierarchical classification.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(
            hierarchy, labels=labels, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        group = hierarchy.parent_nodes + 1  # for the kernel: its members begin at first[group]
        member = np.argsort(group, kind="stable")
        self.constant("member", member.astype(np.int32))
        self.constant("first", np.searchsorted(group[member], np.arange(hierarchy.num_nodes + 2)))

    def node_log_probs(self, z: Tensor) -> Tensor:
        """(B, N, ...) log-probabilities in node order: sums of the conditionals along the path."""
        rows, restore = self.head.rows(z)
        return restore(self.conditional_log_probs(rows))

    def class_scores(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, n) log-probabilities of the classes in label order."""
        return self.conditional_log_probs(z).index_select(1, self.head.leaf_nodes)

    def node_losses(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, N) the loss with each node as the label."""
        return -self.conditional_log_probs(z)

    def kernel_call(self) -> KernelCall | None:
        """The compiled loss for batches of labels."""
        tensors = (self.label_nodes, self.head.parent, self.first, self.member)
        numbers = (self.hierarchy.rooted,)
        return prepare_call("sibling_loss", tensors, numbers, self.num_labels, self.label_weight)


class LevelwiseLoss(NodeScoreLoss):
    r"""One classifier per level: a softmax of its own over the nodes of each level.

    .. math:: \ell(z, y) = -\sum_k \log \operatorname{softmax}_{\text{level } k}(z)_{a_k(y)}

    where a_k(y) is the label's ancestor at level k. A class that ends above a level is carried down: it is one of that
    level's nodes, by the same output. A label at an inner node counts at its own level and those above. The output of a
    root is inert. Trees and forests only.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        answers: how classes are scored. ``"product"``: by the product of the probabilities of their ancestors, each at its
            level. ``"leaf"``: by the deepest classifier alone. ``"top_down"``: by the product of the probabilities among
            siblings, each level's softmax taken over the children of one node.
        labels, weight, ignore_index, reduction: as in every loss; see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = LevelwiseLoss(h)
        >>> loss(torch.zeros(1, loss.num_outputs), torch.tensor([h.label("husky")]))  # log 2 + log 3
        tensor(1.7918)

    Reference: Silla and Freitas, "A survey of hierarchical classification across different application domains" (2011),
    local classifier per level; ``levelwise_softmax`` in the hiercls code.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        answers: LevelAnswers = "product",
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        check_choice("answers", answers, get_args(LevelAnswers))
        super().__init__(
            hierarchy, labels=labels, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        self.answers: LevelAnswers = answers
        h = hierarchy
        first = np.maximum(h.depths, 1)  # levels of each node: its own, and for a class all below it
        counts = np.where(h.labels >= 0, h.max_depth - first + 1, h.depths > 0)
        entry = np.repeat(np.arange(h.num_nodes), counts)
        later = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.constant("entry", entry)
        self.constant("level", first[entry] + later - 1)

    def class_scores(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, n) scores of the classes in label order."""
        if self.answers == "leaf":
            return z.index_select(1, self.head.leaf_nodes)
        product = self.answers == "product"
        scores = -self.node_losses(z) if product else self.conditional_log_probs(z)
        return scores.index_select(1, self.head.leaf_nodes)

    def node_losses(self, z: Tensor) -> Tensor:
        """(B, N) outputs -> (B, N) the loss with each node as the label."""
        entries = z.index_select(1, self.entry)
        log_p = numerics.sibling_log_probs(entries, self.level, self.hierarchy.max_depth)
        own = log_p.new_zeros(z.shape[0], self.hierarchy.num_nodes).index_add(1, self.entry, log_p)
        return -numerics.sum_down(own, self.head.levels)


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
        labels, weight, ignore_index, reduction: as in every loss; see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = ClassEmbeddingLoss(h)
        >>> z = torch.zeros(1, loss.num_outputs)
        >>> z[0, h.index("dog")] = z[0, h.index("husky")] = 1.0  # equal steps: the embedding of husky, by a factor
        >>> bool(loss(z, torch.tensor([h.label("husky")])) < 1e-6)
        True

    Reference: Barz and Denzler, "Hierarchy-based Image Embeddings for Semantic Image Retrieval" (2019), eq. 1 to 9.
    """

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
        require("cross_entropy", cross_entropy, "a number >= 0", fits)
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
        cosines = self._products(self._direction(z)) / self.length
        losses = 1.0 - cosines
        if self.cross_entropy:
            scores = self._products(z).index_select(1, self.head.leaf_nodes)
            losses = losses - self.cross_entropy * self.classes.aggregate(scores)
        return losses.to(z.dtype)

    def _direction(self, z: Tensor) -> Tensor:
        """(B, N) outputs of length 1, in double precision where the device has it. The zero vector stays what it is."""
        moving = self.step > 0  # the output of a root is inert
        z = z.to(numerics.wide_dtype(z))
        z = z.masked_fill(z.isinf() & ~moving, 0.0)
        infinite = z.isinf()
        far = infinite.any(dim=1, keepdim=True)  # beside infinite outputs all others vanish
        z = torch.where(far & ~z.isnan(), z.sign() * infinite, z)
        squares = (z * moving).square().sum(dim=1, keepdim=True)
        some = squares > 0  # the zero vector has no direction
        return z / torch.where(some | squares.isnan(), squares, 1.0).sqrt()

    def _products(self, z: Tensor) -> Tensor:
        """(B, N) inner products with all nodes' embeddings, in double precision where the device has it."""
        wide = z.to(numerics.wide_dtype(z))
        # The output of a root is inert.
        wide = torch.where((self.step == 0) & wide.isinf(), 0.0, wide * self.step)
        return numerics.sum_down(wide, self.head.levels)


def _steps(h: Hierarchy) -> tuple[FloatArray, FloatArray]:
    """(N,) the entry of each node in embeddings at or below it, and (N,) the length of its own embedding."""
    heights = h.heights.astype(np.float64)
    root = heights.max() + (0.0 if h.rooted else 1.0)
    parent = np.where(h.parent_nodes < 0, root, heights[h.parent_nodes])
    return np.sqrt((parent - heights) / root), np.sqrt(1.0 - heights / root)
