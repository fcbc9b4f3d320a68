"""Cross-entropy over the classes: the baseline of every comparison."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import torch.nn.functional as F
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.losses import tables
from hace.losses.base import ClassWeights, Labels, Reduction
from hace.losses.head import LeafOutputs
from hace.losses.last_layer import PathRanges
from hace.losses.table_loss import TableLoss


class CrossEntropyLoss(TableLoss):
    r"""Standard cross-entropy over the leaves (SCE), with uniform label smoothing.

    .. math:: \ell(z, y) = -\sum_c \big[(1 - \varepsilon) 1[c = y] + \varepsilon / n\big] \log
        \operatorname{softmax}(z)_c

    A label at an inner node (``labels="nodes"``) asks for the probability of all classes below it.

    Args:
        hierarchy: the taxonomy; it decides the order of the columns only.
        label_smoothing: eps in [0, 1); the paper uses 0.1 (eq. 3).
        outputs: ``"leaves"``: the head has n columns. ``"paths"``: it has N, and a class's logit is its own output plus
            ``sharing`` times the sum of its ancestors'.
        sharing: s >= 0 of path sums: how much of each ancestor's output its classes share. 0 is a head over leaves, 1 the
            plain sum along the path; with ``outputs="paths"`` only.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"mean"`` (weighted as torch does), ``"sum"`` or ``"none"``.

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
            partial(tables.label_table, hierarchy),
            label_smoothing=label_smoothing,
            outputs=outputs,
            sharing=sharing,
            aggregate=labels == "nodes",  # labels at the leaves ask for nothing above them
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses; torch's own serves labels at the leaves."""
        if self.labels == "nodes":
            return super().per_sample(z, rows)
        weight = None if self.label_weight is None else self.label_weight.to(z.dtype)
        return F.cross_entropy(z, rows, weight, reduction="none", label_smoothing=self.label_smoothing)

    @property
    def _on_one_path(self) -> bool:
        if self.labels == "nodes":
            return super()._on_one_path
        return self.shared is None and self.head.path_sums is None

    def _path(self, rows: Tensor) -> PathRanges:
        if self.labels == "nodes":
            return super()._path(rows)
        return PathRanges(rows[:, None], rows[:, None] + 1, self.value[rows][:, None], None)

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        return {"label_smoothing": self.label_smoothing}
