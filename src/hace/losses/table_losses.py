"""The losses. Each is a table builder with an equation, and a dozen lines here.

All keep the contract of :class:`torch.nn.CrossEntropyLoss`; :class:`hace.losses.base.HierarchicalLoss` lists the
arguments that they share: ``labels``, ``weight``, ``ignore_index`` and ``reduction``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from hace.errors import ConfigError, HierarchyError
from hace.hierarchy import Hierarchy
from hace.losses import tables as targets
from hace.losses.base import check_choice, check_number, check_shared, is_number
from hace.losses.head import Outputs
from hace.losses.table_loss import TableLoss


class HACELoss(TableLoss):
    r"""Hierarchy-aware cross-entropy, HACE: the paper's loss.

    .. math::
        \ell(z, y) = -\sum_v p^*(v) \log q^*(v), \qquad
        q^*(v) = \sum_{i \in D(v)} \operatorname{softmax}(z)_i \quad\text{(eq. 2)}, \qquad p^* = T[y], \quad T = H V

    H smooths horizontally: one-hot, uniform (eq. 3) or LCA soft labels. V smooths along the ancestors (eq. 4): a
    node keeps d of the mass that arrives and passes 1 - d on to its parents in equal shares; a node without parent
    keeps all.

    Symbols: z logits over all N nodes; D(v) the node v and everything below it; d dilution; eps label smoothing;
    beta sharpness of the soft labels.

    Args:
        hierarchy: the taxonomy: a tree, a forest or a DAG.
        dilution: d in (0, 1]. The paper uses 0.2, 0.5 and 0.7. At 1 no mass leaves the label.
        label_smoothing: eps in [0, 1), the paper uses 0.1. Not together with ``soft_label_beta``.
        soft_label_beta: beta > 0 of LCA soft labels, the paper uses 10 and 30: exp(-beta dist(y, c) / max dist),
        normalised. distance: distance of the soft labels; see :meth:`hace.Hierarchy.distances`.
        outputs: ``"nodes"``: the head has N columns. ``"leaves"``: HACE's table on a head with n columns (an
        ablation). aggregate: False leaves out the prediction aggregation: ancestral smoothing only (an ablation).
        labels, weight, ignore_index, reduction: see :class:`hace.losses.base.HierarchicalLoss`.

    Shape:
        - input: (C,), (B, C) or (B, C, d1, ...), C = ``num_outputs``
        - target: () , (B,) or (B, d1, ...) labels; or soft targets with n (N with ``labels="nodes"``) in place of C
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
        distance: str = "lca_height",
        outputs: Outputs = "nodes",
        aggregate: bool = True,
        **kwargs: Any,
    ) -> None:
        check_number("dilution", dilution, "in (0, 1]", is_number(dilution) and 0 < dilution <= 1)
        _check_smoothing(label_smoothing, soft_label_beta)
        if not aggregate and outputs == "leaves":
            raise ConfigError(
                "aggregate=False needs outputs='nodes': a head over leaves has no columns for "
                "the inner nodes of the table."
            )
        super().__init__(
            hierarchy,
            lambda rows, weight: targets.smoothed(
                hierarchy,
                targets.ancestral_table(hierarchy, rows, dilution),
                rows,
                dilution,
                label_smoothing,
                weight,
            ),
            outputs=outputs,
            aggregate=aggregate,
            soft_label_beta=soft_label_beta,
            distance=distance,
            **kwargs,
        )
        self.dilution, self.label_smoothing = dilution, label_smoothing
        self.soft_label_beta, self.distance = soft_label_beta, distance

    def settings(self) -> dict[str, Any]:
        """The parameters that are this loss's own."""
        shown: dict[str, Any] = {"dilution": self.dilution, "label_smoothing": self.label_smoothing}
        if self.soft_label_beta is not None:
            shown |= {"soft_label_beta": self.soft_label_beta, "distance": self.distance}
        if self.head.outputs == "leaves":
            shown["outputs"] = "leaves"
        return shown if self.aggregate else {**shown, "aggregate": False}


class HCELoss(HACELoss):
    r"""Hierarchical cross-entropy, HCE: aggregation without smoothing.

    .. math:: \ell(z, y) = -\log q^*(y), \qquad y \text{ at any level}

    It is HACE at d = 1. With labels at the leaves only it equals cross-entropy over N outputs; it is made for
    labels at every level (``labels="nodes"``).

    Args:
        hierarchy: the taxonomy.
        kwargs: see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_edges([("cell", "T cell"), ("T cell", "CD4 T cell"), ("T cell", "CD8 T cell")])
        >>> loss = HCELoss(h, labels="nodes")
        >>> target = torch.tensor([h.index("T cell"), h.index("CD8 T cell")])
        >>> loss(torch.zeros(2, loss.num_outputs), target)
        tensor(0.8370)

    Reference: Cultrera di Montesano et al. (2026), hierarchical cross-entropy for cell-type annotation.
    """

    def __init__(self, hierarchy: Hierarchy, **kwargs: Any) -> None:
        check_shared(type(self), kwargs)
        super().__init__(hierarchy, 1.0, **kwargs)

    def settings(self) -> dict[str, Any]:
        """The parameters that are this loss's own."""
        return {}


class CrossEntropyLoss(HACELoss):
    r"""Standard cross-entropy over the leaves (SCE), with uniform label smoothing.

    .. math:: \ell(z, y) = -\sum_c \big[(1 - \varepsilon) 1[c = y] + \varepsilon / n\big] \log
    \operatorname{softmax}(z)_c

    A label at an inner node (``labels="nodes"``) asks for the probability of all classes below it.

    Args:
        hierarchy: the taxonomy; it decides the order of the columns only.
        label_smoothing: eps in [0, 1), the paper uses 0.1 (eq. 3).
        kwargs: see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> loss = CrossEntropyLoss(Hierarchy.flat(["cat", "dog"]))
        >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.6931)
    """

    def __init__(self, hierarchy: Hierarchy, label_smoothing: float = 0.0, **kwargs: Any) -> None:
        check_shared(type(self), kwargs)
        super().__init__(hierarchy, 1.0, label_smoothing, outputs="leaves", **kwargs)
        self.aggregate = self.labels == "nodes"  # labels at the leaves ask for nothing above them

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses; labels at the leaves go through torch's own."""
        if self.labels == "nodes":
            return super().per_sample(z, rows)
        weight = None if self.label_weight is None else self.label_weight.to(z.dtype)
        return F.cross_entropy(z, rows, weight, reduction="none", label_smoothing=self.label_smoothing)

    def settings(self) -> dict[str, Any]:
        """The parameters that are this loss's own."""
        return {"label_smoothing": self.label_smoothing}


class SoftLabelLoss(HACELoss):
    r"""Cross-entropy with LCA soft labels over the leaves.

    .. math:: \ell(z, y) = -\sum_c s_y(c) \log \operatorname{softmax}(z)_c, \qquad
        s_y(c) \propto \exp(-\beta \operatorname{dist}(y, c) / \max \operatorname{dist})

    As beta grows it becomes cross-entropy.

    Args:
        hierarchy: the taxonomy.
        beta: sharpness > 0; the paper uses 10 and 30, its authors 4 to 30.
        distance: see :meth:`hace.Hierarchy.distances`.
        kwargs: see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> SoftLabelLoss(h, beta=10)(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)

    Reference: Bertinetto et al., "Making Better Mistakes" (2020), eq. 5.
    """

    def __init__(
        self, hierarchy: Hierarchy, beta: float = 10.0, *, distance: str = "lca_height", **kwargs: Any
    ) -> None:
        check_shared(type(self), kwargs)
        check_number("beta", beta, "a number above 0", is_number(beta) and beta > 0)
        super().__init__(hierarchy, 1.0, 0.0, beta, distance=distance, outputs="leaves", **kwargs)
        self.aggregate = self.labels == "nodes"

    def settings(self) -> dict[str, Any]:
        """The parameters that are this loss's own."""
        return {"beta": self.soft_label_beta, "distance": self.distance}


class HXELoss(TableLoss):
    r"""Hierarchical cross-entropy over conditionals, HXE.

    .. math:: \ell(z, y) = -\sum_i \lambda(b_i) \log \frac{P(b_i)}{P(b_{i+1})}

    along the path from the label b_0 = y to the top, where P aggregates a softmax over the leaves. At alpha = 0 it
    is cross-entropy. Trees and forests only.

    Args:
        hierarchy: the taxonomy, without nodes of several parents.
        alpha: decay >= 0; the paper uses 0.2 and 0.5.
        decay: ``"depth"``: lambda(v) = exp(-alpha (depth(v) - 1)), smaller toward the leaves, as both published
        codes have it.
            ``"height"``: lambda(v) = exp(-alpha height(v)), smaller toward the root, as the paper's words have it.
        normalize: None, or ``"tree"``: lambda divided by its sum over all nodes, as in the published code. That
        divides the
            loss, and so the learning rate, by hundreds.
        kwargs: see :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
        >>> HXELoss(h, alpha=0.0)(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)

    Reference: Bertinetto et al., "Making Better Mistakes" (2020), eq. 2 to 4.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        alpha: float = 0.2,
        *,
        decay: Literal["depth", "height"] = "depth",
        normalize: Literal["tree"] | None = None,
        **kwargs: Any,
    ) -> None:
        check_number("alpha", alpha, "a number >= 0", is_number(alpha) and alpha >= 0)
        check_choice("decay", decay, ("depth", "height"))
        check_choice("normalize", normalize, (None, "tree"))
        require_tree(hierarchy, "HXELoss")

        def table(rows: np.ndarray, weight: np.ndarray) -> targets.Table:
            built = targets.hxe_table(hierarchy, rows, alpha, decay, normalize)
            return built._replace(value=built.value * np.repeat(weight[rows], np.diff(built.start)))

        super().__init__(hierarchy, table, outputs="leaves", **kwargs)
        self.alpha, self.decay, self.normalize = alpha, decay, normalize

    def settings(self) -> dict[str, Any]:
        """The parameters that are this loss's own."""
        return {"alpha": self.alpha, "decay": self.decay, "normalize": self.normalize}


def require_tree(hierarchy: Hierarchy, loss: str) -> None:
    """Refuses a DAG where a loss needs one path from each label to the top."""
    if isinstance(hierarchy, Hierarchy) and not hierarchy.is_tree:
        raise HierarchyError(
            f"{loss} needs a tree or forest, with at most one parent for each node. Got {hierarchy!r}. "
            "HACELoss and HCELoss take DAGs."
        )


def _check_smoothing(label_smoothing: object, soft_label_beta: object) -> None:
    fits = is_number(label_smoothing) and 0 <= label_smoothing < 1  # type: ignore[operator]
    check_number("label_smoothing", label_smoothing, "in [0, 1)", fits)
    if soft_label_beta is None:
        return
    fits = is_number(soft_label_beta) and soft_label_beta > 0  # type: ignore[operator]
    check_number("soft_label_beta", soft_label_beta, "a number above 0, or None", fits)
    if label_smoothing:
        raise ConfigError(
            "label_smoothing and soft_label_beta are both given. Horizontal smoothing is one or the other."
        )
