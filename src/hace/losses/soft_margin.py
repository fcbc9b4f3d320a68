"""Soft margins: cross-entropy against classes that are handicapped less, the nearer they are to the label."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hace.checks import check_number, is_number
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import Distance
from hace.hierarchy.hierarchy import Labels
from hace.losses import numerics
from hace.losses.base import ClassWeights, Reduction
from hace.losses.distance_losses import DistanceLoss
from hace.losses.head import LeafOutputs


class SoftMarginLoss(DistanceLoss):
    r"""Soft-max-margin: every wrong class gets a head start that grows with its distance from the label.

    .. math:: \ell(z, y) = \log \sum_c \exp\big(z_c + \tau \operatorname{dist}(y, c)\big) - z_y

    At tau = 0 it is cross-entropy. A label at an inner node asks for the classes nearest to it, and distances count from
    there.

    Args:
        hierarchy: the taxonomy.
        margin: tau >= 0, the head start of one step of distance.
        distance: see :meth:`hace.Hierarchy.distances`.
        outputs: ``"leaves"``: the head has n columns. ``"paths"``: it has N, and a class's logit is its own output plus
            ``sharing`` times the sum of its ancestors'.
        sharing: s >= 0 of path sums: how much of each ancestor's output its classes share. 0 is a head over leaves, 1 the
            plain sum along the path; with ``outputs="paths"`` only.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"mean"`` (weighted as torch does), ``"sum"`` or ``"none"``.

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
        check_number("margin", margin, "a number >= 0", is_number(margin) and margin >= 0)
        super().__init__(
            hierarchy,
            distance,
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

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        return {"margin": self.margin, "distance": self.distance}
