"""Distances from labels to all classes, and the losses of them: SimLoss, expected distance and soft margins."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from hace.checks import is_number, require
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import leaf_ranges, preorder_labels
from hace.hierarchy.distances import Distance, check_distance
from hace.hierarchy.hierarchy import Labels
from hace.losses import numerics
from hace.losses.base import ClassWeights, LabelLoss, Reduction
from hace.losses.constants import ConstantModule
from hace.losses.head import LeafOutputs
from hace.losses.kernels.loss_calls import EXPECTED, SIMILARITY, KernelCall, prepare_call
from hace.losses.tables import distance_parts, path_entries

_CHUNK = 1 << 22  # (sample, label, class) entries held at once when targets are soft
DENSE_LIMIT = 1 << 26  # entries of a dense distance table on a DAG (512 MiB)


class LeafDistances(ConstantModule):
    """dist(label, class) for given labels, in label order.

    On a tree a row follows from the label's path: the classes below b_j that are not below b_{j-1} are equally far
    (up to their own depth, for ``edges``), and in preorder they are two ranges. No n x n matrix exists. On a DAG
    there is no such path, so the rows are computed once and kept.
    """

    def __init__(self, hierarchy: Hierarchy, rows: np.ndarray, distance: str) -> None:
        super().__init__()
        check_distance(distance)
        h = hierarchy
        self.is_tree = h.is_tree
        if not h.is_tree:
            if len(rows) * h.num_leaves > DENSE_LIMIT:
                raise HierarchyError(
                    f"Distances between {len(rows):,} labels and {h.num_leaves:,} classes of a DAG need a "
                    "dense table, which is too large. Use a tree, or a loss without distances."
                )
            table = h.distances(rows[:, None], h.leaf_nodes[None, :], distance, labels="nodes")
            self.constant("table", table.astype(np.float64))
            return
        own, at, leaf, self.outside = distance_parts(h, distance)
        start, node, _ = path_entries(h, rows)
        self.longest = int(np.diff(start).max())
        self.ragged = bool(leaf.any())
        low, high = leaf_ranges(h)
        self.constant("start", start)
        self.constant("node", node)
        self.constant("own", own[rows])
        self.constant("at", at)
        self.constant("low", low)
        self.constant("high", high)
        self.constant("leaf", leaf[h.labels >= 0])
        self.constant("place", np.argsort(preorder_labels(h)))  # position of each label in preorder
        self.constant("label", h.labels[rows])

    def call(
        self, kind: int, strength: float, column: Tensor | None, weight: Tensor | None
    ) -> KernelCall | None:
        """A compiled loss of the classes' probabilities and these distances; None on a DAG."""
        if not self.is_tree:
            return None
        leaf = self.leaf if self.ragged else None
        tensors = (self.start, self.node, self.low, self.high, column, self.own, self.at, leaf, self.label)
        numbers = (self.outside, kind, strength)
        return prepare_call("lca_group_loss", tensors, numbers, len(self.start) - 1, weight)

    def forward(self, rows: Tensor) -> Tensor:
        """(B,) positions in ``rows`` -> (B, n) distances, float64."""
        if not self.is_tree:
            return self.table.index_select(0, rows)
        node = self.node[padded(rows, self.start, self.longest)[0]]  # (B, K), filled up with the top
        low = self.low[node]
        high = self.high[node]
        at = self.at[node]
        batch = len(node)
        classes = len(self.leaf)
        ends = low.new_zeros(batch, 1), high.new_full((batch, 1), classes)
        edges = torch.cat([ends[0], low.flip(1), high, ends[1]], dim=1)
        # One group of classes per lowest common ancestor with the label, the rest last: (B, K + 1). Then in preorder: the left
        # parts from the outside in, and the right parts.
        groups = torch.cat([at, at.new_full((batch, 1), self.outside)], dim=1)
        groups = torch.cat([groups.flip(1), groups[:, 1:]], dim=1)
        distance = groups.flatten()[numerics.segment_members(edges, classes).long()].view(batch, classes)
        distance = self.own[rows][:, None] + distance + self.leaf
        distance = distance.index_select(1, self.place)
        itself = self.label[rows][:, None] == torch.arange(classes, device=rows.device)
        return distance.masked_fill(itself, 0.0)


def padded(rows: Tensor, start: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Positions (B, K) of the entries of sparse rows, filled up with a row's last, and which of them are real."""
    # index_select refuses a negative row, which [] would count from the end.
    entry = start.index_select(0, rows)[:, None] + torch.arange(longest, device=rows.device)
    last = start.index_select(0, rows + 1)[:, None] - 1
    return torch.minimum(entry, last), entry <= last


class DistanceLoss(LabelLoss):
    """Base of losses of the class probabilities p and one row of distances per label."""

    allowed_outputs = get_args(LeafOutputs)
    kernel_kind: int | None = None  # the kernel's number for this loss, or None
    kernel_strength = 1.0

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        distance: Distance = "lca_height",
        outputs: LeafOutputs = "leaves",
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(
            hierarchy,
            outputs=outputs,
            sharing=sharing,
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self.distances = LeafDistances(hierarchy, self.label_nodes.numpy(), distance)
        self.distance = distance

    def kernel_call(self) -> KernelCall | None:
        """The compiled loss for batches of labels; None where there is none."""
        if self.kernel_kind is None or self.head.outputs != "leaves":
            return None
        kind = self.kernel_kind
        strength = self.kernel_strength
        return self.distances.call(kind, strength, self.head.column, self.label_weight)

    @abstractmethod
    def of_rows(self, log_p: Tensor, row: Tensor) -> Tensor:
        """The loss from log p and rows of labels that broadcast with it; the last dimension is summed away."""

    def rows(self, rows: Tensor) -> Tensor:
        """(B,) labels -> (B, n) what :meth:`of_rows` takes of them: their distances to the classes."""
        return self.distances(rows)

    def unweighted_losses(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) losses."""
        return self.of_rows(z.log_softmax(dim=1), self.rows(rows).to(z.dtype))

    def mixed_losses(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) masses -> (B,) losses."""
        log_p = z.log_softmax(dim=1)
        losses = z.new_zeros(len(z))
        size = max(1, _CHUNK // max(1, z.numel()))
        for part in torch.arange(self.num_labels, device=z.device).split(size):
            rows = self.of_rows(log_p[:, None], self.rows(part).to(z.dtype))  # (B, part)
            losses = losses + numerics.table_cross_entropy(-rows, mass[:, part])  # 0 times inf is 0
        return losses


class SimLoss(DistanceLoss):
    r"""SimLoss: the logarithm of the expected similarity.

    .. math:: \ell(z, y) = -\log \sum_c S[y, c] \operatorname{softmax}(z)_c, \qquad
        S[y, c] = r^{\operatorname{dist}(y, c)}

    At r = 0 it is cross-entropy. Any other matrix S may be given: co-occurrences, or similarities of embeddings.

    Args:
        hierarchy: the taxonomy.
        reduction_factor: r in [0, 1), the similarity left by one step of distance.
        similarity: S in place of r^dist: (labels, n) numbers >= 0, some above 0 in every row; rows and columns in label
            order, rows in node order with ``labels="nodes"``.
        distance: see :meth:`hace.Hierarchy.distances`.
        outputs: ``"leaves"`` or ``"paths"``, where ancestors share ``sharing``; see
            :class:`hace.losses.base.HierarchicalLoss`.
        sharing: s of path sums.
        labels, weight, ignore_index, reduction: as in every loss.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> SimLoss(h, 0.5)(torch.zeros(1, 3), torch.tensor([h.label("husky")]))
        tensor(0.5390)

    Reference: Kobs et al., "SimLoss: Class Similarities in Cross Entropy" (2020), eq. 2.
    """

    log_similarity: Tensor | None

    def __init__(
        self,
        hierarchy: Hierarchy,
        reduction_factor: float = 0.5,
        *,
        similarity: Tensor | np.ndarray | Sequence[Sequence[float]] | None = None,
        distance: Distance = "lca_height",
        outputs: LeafOutputs = "leaves",
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        fits = is_number(reduction_factor) and 0 <= reduction_factor < 1
        require("reduction_factor", reduction_factor, "in [0, 1)", fits)
        super().__init__(
            hierarchy,
            distance=distance,
            outputs=outputs,
            sharing=sharing,
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self.reduction_factor = reduction_factor
        self.constant("log_similarity", self._checked_similarity(similarity))
        self.kernel_kind = SIMILARITY if similarity is None else None
        self.kernel_strength = math.log(reduction_factor) if reduction_factor > 0 else -math.inf

    def rows(self, rows: Tensor) -> Tensor:
        """(B,) labels -> (B, n) distances to the classes, or the logarithms of given similarities."""
        given = self.log_similarity
        return super().rows(rows) if given is None else given.index_select(0, rows)

    def of_rows(self, log_p: Tensor, row: Tensor) -> Tensor:
        """- log of the expected similarity."""
        if self.log_similarity is not None:
            terms = log_p + row
        elif self.reduction_factor > 0:
            terms = log_p + row * math.log(self.reduction_factor)
        else:
            terms = log_p + torch.where(row == 0, 0.0, -torch.inf)  # 0 ** 0 = 1
        return -numerics.log_sum(terms)

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        if self.log_similarity is not None:
            return {"similarity": tuple(self.log_similarity.shape)}
        return {"reduction_factor": self.reduction_factor, "distance": self.distance}

    def _checked_similarity(self, given: Any) -> np.ndarray | None:
        """The logarithms of a matrix; refuses what is not one."""
        if given is None:
            return None
        shape = (self.num_labels, self.hierarchy.num_leaves)
        try:
            given = given.detach().double().cpu() if isinstance(given, Tensor) else given
            values = np.asarray(given, dtype=np.float64)
        # A RuntimeError may be a NotImplementedError, of tensors without dense values.
        except (TypeError, ValueError, RuntimeError):
            values = np.zeros(0)
        fits = values.shape == shape and bool(np.isfinite(values).all()) and bool((values >= 0).all())
        if not fits or not (values > 0).any(axis=1).all():
            raise ConfigError(
                f"similarity must hold {shape[0]} x {shape[1]} numbers >= 0, some above 0 in every row. "
                f"Got shape {values.shape}."
            )
        with np.errstate(divide="ignore"):
            return np.log(values)


class ExpectedDistanceLoss(DistanceLoss):
    r"""The expected distance of a class drawn from the model: a cost-sensitive baseline.

    .. math:: \ell(z, y) = \sum_c \operatorname{dist}(y, c) \operatorname{softmax}(z)_c

    Args:
        hierarchy: the taxonomy.
        distance: see :meth:`hace.Hierarchy.distances`.
        outputs: ``"leaves"`` or ``"paths"``, where ancestors share ``sharing``; see
            :class:`hace.losses.base.HierarchicalLoss`.
        sharing: s of path sums.
        labels, weight, ignore_index, reduction: as in every loss.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> ExpectedDistanceLoss(h)(torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([h.label("husky")]))
        tensor(1.3642)

    Reference: Deng et al., "What Does Classifying More Than 10,000 Image Categories Tell Us?" (2010), hierarchical
    cost.
    """

    kernel_kind = EXPECTED

    def of_rows(self, log_p: Tensor, row: Tensor) -> Tensor:
        """The expected distance."""
        return (log_p.exp() * row).sum(dim=-1)


class SoftMarginLoss(DistanceLoss):
    r"""Soft-max-margin: every wrong class gets a head start that grows with its distance from the label.

    .. math:: \ell(z, y) = \log \sum_c \exp\big(z_c + \tau \operatorname{dist}(y, c)\big) - z_y

    At tau = 0 it is cross-entropy. A label at an inner node asks for the classes nearest to it, and distances count from
    there.

    Args:
        hierarchy: the taxonomy.
        margin: tau >= 0, the head start of one step of distance.
        distance: see :meth:`hace.Hierarchy.distances`.
        outputs: ``"leaves"`` or ``"paths"``, where ancestors share ``sharing``; see
            :class:`hace.losses.base.HierarchicalLoss`.
        sharing: s of path sums.
        labels, weight, ignore_index, reduction: as in every loss.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> SoftMarginLoss(h)(torch.zeros(1, 3), torch.tensor([h.label("husky")]))
        tensor(2.4076)

    Reference: Valmadre, "Hierarchical classification at multiple operating points" (2022), soft-max-margin, there over the
    outputs of all nodes.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        margin: float = 1.0,
        *,
        distance: Distance = "lca_height",
        outputs: LeafOutputs = "leaves",
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        require("margin", margin, "a number >= 0", is_number(margin) and margin >= 0)
        super().__init__(
            hierarchy,
            distance=distance,
            outputs=outputs,
            sharing=sharing,
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self.margin = margin

    def of_rows(self, log_p: Tensor, row: Tensor) -> Tensor:
        """- log of the nearest classes' share after the head starts."""
        beyond = row - row.amin(dim=-1, keepdim=True)
        right = log_p.masked_fill(beyond > 0, -torch.inf)
        return (log_p + self.margin * beyond).logsumexp(dim=-1) - numerics.log_sum(right)
