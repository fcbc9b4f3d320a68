"""The losses of a table: HACE and HCE, over a head with one column per node; and over the classes cross-entropy, which is the
baseline of every comparison, the same with soft labels, and HXE (Bertinetto et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from hace.checks import check_choice, is_number, require, require_tree
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import Distance
from hace.hierarchy.hierarchy import Labels
from hace.losses import tables
from hace.losses.base import ClassWeights, Reduction
from hace.losses.head import LeafOutputs, Outputs
from hace.losses.kernels.loss_calls import SOFT_LABELS, KernelCall
from hace.losses.numerics import PathRanges
from hace.losses.table_loss import TableLoss


class HACELoss(TableLoss):
    r"""Hierarchy-aware cross-entropy, HACE: the paper's loss.

    .. math::
        \ell(z, y) = -\sum_v p^*(v) \log q^*(v), \qquad
        q^*(v) = \sum_{i \in D(v)} \operatorname{softmax}(z)_i \quad\text{(eq. 2)}, \qquad p^* = T[y], \quad T = H V

    H smooths horizontally: one-hot, uniform (eq. 3) or LCA soft labels. V smooths along the ancestors (eq. 4): a node
    keeps d of the mass that arrives and passes 1 - d to its parents in equal shares; a node without parents keeps all.

    Symbols: z logits over all N nodes; D(v) the node v and everything below it; d dilution; eps label smoothing;
    beta sharpness of the soft labels.

    Args:
        hierarchy: the taxonomy: a tree, a forest or a DAG.
        dilution: d in (0, 1]. The paper uses 0.2, 0.5 and 0.7. At 1 no mass leaves the label.
        label_smoothing: eps in [0, 1); the paper uses 0.1.
        soft_label_beta: beta > 0 of LCA soft labels s, exp(-beta dist(y, c) / max dist), normalised; the paper uses 10
            and 30. All mass follows s; with eps above 0, eps of it: (1 - eps) one-hot + eps s, as eq. 3 reads with s in place
            of the uniform distribution. None: no soft labels.
        level_weights: in place of ``dilution``, the mass that stays at the label, at its parent, and so on: numbers >= 0 that
            sum to 1, of which a shorter path's top keeps the rest; ``"uniform"``: the same at every node of the path; or
            ``"linear"``: in proportion to k + 1, k, ..., 1 from the label to the top.
        distance: distance of the soft labels; see :meth:`hace.Hierarchy.distances`.
        outputs: ``"nodes"``: the head has N columns. ``"leaves"``: HACE's table on a head with n columns (an ablation).
            ``"paths"``: N columns, a class's logit is its own output plus ``sharing`` times the sum of its ancestors', and
            HACE's table is taken of a softmax over the classes.
        sharing: s >= 0 of path sums: how much of each ancestor's output its classes share. 0 is a head over leaves, 1 the
            plain sum along the path; with ``outputs="paths"`` only.
        aggregate: False omits the aggregation of predictions: ancestral smoothing only (an ablation).
        unseen: weight >= 0 of a leave-one-out term, for classes outside the list: without the branch that leads to the label,
            each ancestor's own output is to win, which means "another of this group". 0.3 to 1 serve; with
            ``outputs="nodes"`` only.
        labels, weight, ignore_index, reduction: as in every loss; see :class:`hace.losses.base.HierarchicalLoss`.

    Shape:
        - input: (C,), (B, C) or (B, C, d1, ...), C = ``num_outputs``
        - target: (), (B,) or (B, d1, ...) labels; or soft targets with n (N with ``labels="nodes"``) in place of C
        - output: scalar, or the shape of the labels with ``reduction="none"``

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> loss = HACELoss(h, dilution=0.5, label_smoothing=0.1)
        >>> model = torch.nn.Linear(8, loss.num_outputs)
        >>> value = loss(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0]))
        >>> value.backward()

    Reference: Chan, D'Ascenzo and Cultrera di Montesano, "When Labels Have Structure: Improving Image
    Classification with Hierarchy-Aware Cross-Entropy" (2026), eq. 1 to 5.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        dilution: float = 0.5,
        label_smoothing: float = 0.0,
        soft_label_beta: float | None = None,
        *,
        level_weights: tables.LevelWeights | None = None,
        distance: Distance = "lca_height",
        outputs: Outputs = "nodes",
        sharing: float = 1.0,
        aggregate: bool = True,
        unseen: float = 0.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        require("dilution", dilution, "in (0, 1]", is_number(dilution) and 0 < dilution <= 1)
        level_weights = _checked_level_weights(level_weights, dilution)
        require("aggregate", aggregate, "True or False", isinstance(aggregate, bool))
        super().__init__(
            hierarchy,
            outputs=outputs,
            sharing=sharing,
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        if not aggregate and outputs != "nodes":
            raise ConfigError(
                f"aggregate=False must come with outputs='nodes'. Got outputs={outputs!r}, a softmax without a share for "
                "the inner nodes of the table."
            )
        if level_weights is None:
            table = partial(tables.ancestral_table, hierarchy, dilution=dilution)
        else:
            table = partial(tables.profile_table, hierarchy, level_weights=level_weights)
        self.set_table(
            table,
            dilution=dilution if level_weights is None else None,
            label_smoothing=label_smoothing,
            soft_label_beta=soft_label_beta,
            distance=distance,
            aggregate=aggregate,
            unseen=unseen,
        )
        self.dilution = dilution
        self.level_weights = level_weights

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        profile = {"level_weights": self.level_weights} if self.level_weights else {"dilution": self.dilution}
        shown: dict[str, Any] = {**profile, "label_smoothing": self.label_smoothing}
        if self.soft_label_beta is not None:
            shown |= {"soft_label_beta": self.soft_label_beta, "distance": self.distance}
        if self.head.outputs == "leaves":
            shown["outputs"] = "leaves"
        shown |= {"unseen": self.unseen} if self.unseen else {}
        return shown if self.aggregate else {**shown, "aggregate": False}


class HCELoss(TableLoss):
    r"""Hierarchical cross-entropy, HCE: aggregation without smoothing.

    .. math:: \ell(z, y) = -\log q^*(y), \qquad y \text{ at any level}

    It is HACE at d = 1. With labels at the leaves only it equals cross-entropy over N outputs; it is made for labels
    at every level (``labels="nodes"``).

    Args:
        hierarchy: the taxonomy: a tree, a forest or a DAG.
        unseen: weight >= 0 of a leave-one-out term for classes outside the list; see :class:`HACELoss`.
        labels, weight, ignore_index, reduction: as in every loss; see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_edges([("cell", "T cell"), ("T cell", "CD4 T cell"), ("T cell", "CD8 T cell")])
        >>> loss = HCELoss(h, labels="nodes")
        >>> target = torch.tensor([h.index("T cell"), h.index("CD8 T cell")])
        >>> loss(torch.zeros(2, loss.num_outputs), target)
        tensor(0.8370)

    Reference: Cultrera di Montesano et al. (2026), hierarchical cross-entropy for cell-type annotation.
    """

    allowed_outputs = ("nodes",)

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        unseen: float = 0.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(
            hierarchy, labels=labels, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        self.set_table(unseen=unseen)


class CrossEntropyLoss(TableLoss):
    r"""Standard cross-entropy over the leaves, with uniform label smoothing.

    .. math:: \ell(z, y) = -\sum_c \big[(1 - \varepsilon) 1[c = y] + \varepsilon / n\big] \log
        \operatorname{softmax}(z)_c

    A label at an inner node (``labels="nodes"``) asks for the probability of all classes below it.

    Args:
        hierarchy: the taxonomy; it decides the order of the columns only.
        label_smoothing: eps in [0, 1); the paper uses 0.1 (eq. 3).
        outputs: ``"leaves"`` or ``"paths"``, where ancestors share ``sharing``; see
            :class:`hace.losses.base.HierarchicalLoss`.
        sharing: s of path sums.
        labels, weight, ignore_index, reduction: as in every loss.

    Example:
        >>> import torch
        >>> loss = CrossEntropyLoss(Hierarchy.flat(["cat", "dog"]))
        >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.6931)
    """

    allowed_outputs = get_args(LeafOutputs)

    def __init__(
        self,
        hierarchy: Hierarchy,
        label_smoothing: float = 0.0,
        *,
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
        # Labels at the leaves ask for nothing above them.
        self.set_table(label_smoothing=label_smoothing, aggregate=labels == "nodes")

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses; torch's own computes those of labels at the leaves."""
        if self.labels == "nodes":
            return super().per_sample(z, rows)
        weight = None if self.label_weight is None else self.label_weight.to(z.dtype)
        return F.cross_entropy(z, rows, weight, reduction="none", label_smoothing=self.label_smoothing)

    @property
    def _on_one_path(self) -> bool:
        if self.labels == "nodes":
            return super()._on_one_path
        return self.background is None and self.head.path_sums is None

    def _path(self, rows: Tensor) -> PathRanges:
        if self.labels == "nodes":
            return super()._path(rows)
        return PathRanges(rows[:, None], rows[:, None] + 1, self.value[rows][:, None], None)


class SoftLabelLoss(TableLoss):
    r"""Cross-entropy with LCA soft labels over the leaves.

    .. math:: \ell(z, y) = -\sum_c s_y(c) \log \operatorname{softmax}(z)_c, \qquad
        s_y(c) \propto \exp(-\beta \operatorname{dist}(y, c) / \max \operatorname{dist})

    As beta grows it becomes cross-entropy.

    Args:
        hierarchy: the taxonomy.
        beta: sharpness > 0; the paper uses 10 and 30, its authors 4 to 30.
        distance: see :meth:`hace.Hierarchy.distances`.
        outputs: ``"leaves"`` or ``"paths"``, where ancestors share ``sharing``; see
            :class:`hace.losses.base.HierarchicalLoss`.
        sharing: s of path sums.
        labels, weight, ignore_index, reduction: as in every loss.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> SoftLabelLoss(h, beta=10)(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)

    Reference: Bertinetto et al., "Making Better Mistakes" (2020), eq. 5.
    """

    allowed_outputs = get_args(LeafOutputs)

    def __init__(
        self,
        hierarchy: Hierarchy,
        beta: float = 10.0,
        *,
        distance: Distance = "lca_height",
        outputs: LeafOutputs = "leaves",
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        require("beta", beta, "a number above 0", is_number(beta) and beta > 0)
        super().__init__(
            hierarchy,
            outputs=outputs,
            sharing=sharing,
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        # Labels at the leaves ask for nothing above them.
        self.set_table(soft_label_beta=beta, distance=distance, aggregate=labels == "nodes")
        self.beta = beta

    def kernel_call(self) -> KernelCall | None:
        """The compiled loss for batches of labels; None where there is none."""
        compiled = self.head.outputs == self.labels == "leaves" and self.label_weight is None
        if not compiled or self.soften is None:
            return super().kernel_call()
        return self.soften.call(SOFT_LABELS, -self.sharpness, self.head.column, None)


class HXELoss(TableLoss):
    r"""Hierarchical cross-entropy over conditionals, HXE.

    .. math:: \ell(z, y) = -\sum_i \lambda(b_i) \log \frac{P(b_i)}{P(b_{i+1})}

    along the path from the label b_0 = y to the top, where P aggregates a softmax over the leaves. At alpha = 0 it is
    cross-entropy. Trees and forests only.

    Args:
        hierarchy: the taxonomy, in which no node has several parents.
        alpha: decay >= 0; the paper uses 0.2 and 0.5.
        decay: ``"depth"``: lambda(v) = exp(-alpha (depth(v) - 1)), smaller toward the leaves, as in both published
            codes. ``"height"``: lambda(v) = exp(-alpha height(v)), smaller toward the root, as in the paper's words.
        normalize: None, or ``"tree"``: lambda divided by its sum over all nodes, as in the published code. That divides
            the loss, and so the learning rate, by hundreds.
        outputs: ``"leaves"`` or ``"paths"``, where ancestors share ``sharing``; see
            :class:`hace.losses.base.HierarchicalLoss`.
        sharing: s of path sums.
        labels, weight, ignore_index, reduction: as in every loss.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> HXELoss(h, alpha=0.0)(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)

    Reference: Bertinetto et al., "Making Better Mistakes" (2020), eq. 2 to 4.
    """

    allowed_outputs = get_args(LeafOutputs)

    def __init__(
        self,
        hierarchy: Hierarchy,
        alpha: float = 0.2,
        *,
        decay: Literal["depth", "height"] = "depth",
        normalize: Literal["tree"] | None = None,
        outputs: LeafOutputs = "leaves",
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        require("alpha", alpha, "a number >= 0", is_number(alpha) and alpha >= 0)
        check_choice("decay", decay, ("depth", "height"))
        check_choice("normalize", normalize, (None, "tree"))
        require_tree(hierarchy, "HXELoss")
        super().__init__(
            hierarchy,
            outputs=outputs,
            sharing=sharing,
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        rows_of_labels = partial(
            tables.hxe_table, hierarchy, alpha=float(alpha), decay=decay, normalize=normalize
        )
        self.set_table(rows_of_labels)
        self.alpha = alpha
        self.decay = decay
        self.normalize = normalize


def _checked_level_weights(given: Any, dilution: float) -> tables.LevelWeights | None:
    """A profile's name or masses; refuses what is not a distribution, or comes with a dilution."""
    if given is None:
        return None
    rule = "'uniform', 'linear', or numbers >= 0 that sum to 1"
    fits = named = isinstance(given, str) and given in get_args(tables.Profile)
    if isinstance(given, (Sequence, np.ndarray)) and np.ndim(given) == 1 and not isinstance(given, str):
        weights = list(given)
        fits = all(is_number(weight) and weight >= 0 for weight in weights) and abs(sum(weights) - 1) <= 1e-6
    require("level_weights", given, rule, fits)
    if dilution != 0.5:
        raise ConfigError(
            f"level_weights must come without a dilution, whose place they take. Got dilution={dilution!r}."
        )
    return cast(tables.Profile, given) if named else tuple(float(weight) for weight in given)
