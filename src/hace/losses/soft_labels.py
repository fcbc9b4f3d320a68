"""Cross-entropy with soft labels by distance (Bertinetto et al. 2020)."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

from hace.checks import check_number, is_number
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import Distance
from hace.losses import tables
from hace.losses.base import ClassWeights, Labels, Reduction
from hace.losses.head import LeafOutputs
from hace.losses.kernels.autograd import Call
from hace.losses.kernels.label_losses import SOFT_LABELS, ring_call
from hace.losses.table_loss import TableLoss


class SoftLabelLoss(TableLoss):
    r"""Cross-entropy with LCA soft labels over the leaves.

    .. math:: \ell(z, y) = -\sum_c s_y(c) \log \operatorname{softmax}(z)_c, \qquad
        s_y(c) \propto \exp(-\beta \operatorname{dist}(y, c) / \max \operatorname{dist})

    As beta grows it becomes cross-entropy.

    Args:
        hierarchy: the taxonomy.
        beta: sharpness > 0; the paper uses 10 and 30, its authors 4 to 30.
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
        check_number("beta", beta, "a number above 0", is_number(beta) and beta > 0)
        super().__init__(
            hierarchy,
            partial(tables.label_table, hierarchy),
            soft_label_beta=beta,
            distance=distance,
            outputs=outputs,
            sharing=sharing,
            aggregate=labels == "nodes",  # labels at the leaves ask for nothing above them
            labels=labels,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
        self.beta = beta

    def kernel_call(self) -> Call | None:
        """The compiled loss for batches of labels; None where there is none, or the buffers are elsewhere."""
        served = self.head.outputs == self.labels == "leaves" and self.label_weight is None
        if not served or self.soften is None:
            return super().kernel_call()
        rings = self.soften.rings(self.head.column)
        return None if rings is None else ring_call(rings, SOFT_LABELS, -self.sharpness, None)

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters."""
        return {"beta": self.beta, "distance": self.distance}
