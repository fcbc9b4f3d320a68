"""HACE and HCE: the losses over a head with one column per node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from hace.checks import check_number, is_number
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.distances import Distance
from hace.losses import tables
from hace.losses.base import LossOptions
from hace.losses.head import Outputs
from hace.losses.table_loss import TableLoss

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        **shared: ``labels``, ``weight``, ``ignore_index``, ``reduction``: :class:`hace.losses.base.HierarchicalLoss`.

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
        **shared: Unpack[LossOptions],
    ) -> None:
        check_number("dilution", dilution, "in (0, 1]", is_number(dilution) and 0 < dilution <= 1)
        level_weights = _checked_level_weights(level_weights, dilution)
        check_number("aggregate", aggregate, "True or False", isinstance(aggregate, bool))
        if not aggregate and outputs != "nodes":
            raise ConfigError(
                f"aggregate=False must come with outputs='nodes'. Got outputs={outputs!r}, a softmax without a share for "
                "the inner nodes of the table."
            )
        if level_weights is None:
            table = partial(tables.ancestral_table, hierarchy, dilution=dilution)
        else:
            table = partial(tables.profile_table, hierarchy, level_weights=level_weights)
        super().__init__(
            hierarchy,
            table=table,
            dilution=dilution if level_weights is None else None,
            label_smoothing=label_smoothing,
            soft_label_beta=soft_label_beta,
            distance=distance,
            outputs=outputs,
            sharing=sharing,
            aggregate=aggregate,
            unseen=unseen,
            **shared,
        )
        self.dilution, self.level_weights = dilution, level_weights

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
        **shared: ``labels``, ``weight``, ``ignore_index``, ``reduction``: :class:`hace.losses.base.HierarchicalLoss`.

    Example:
        >>> import torch
        >>> h = Hierarchy.from_edges([("cell", "T cell"), ("T cell", "CD4 T cell"), ("T cell", "CD8 T cell")])
        >>> loss = HCELoss(h, labels="nodes")
        >>> target = torch.tensor([h.index("T cell"), h.index("CD8 T cell")])
        >>> loss(torch.zeros(2, loss.num_outputs), target)
        tensor(0.8370)

    Reference: Cultrera di Montesano et al. (2026), hierarchical cross-entropy for cell-type annotation.
    """

    def __init__(self, hierarchy: Hierarchy, *, unseen: float = 0.0, **shared: Unpack[LossOptions]) -> None:
        super().__init__(hierarchy, outputs="nodes", unseen=unseen, **shared)


def _checked_level_weights(given: Any, dilution: float) -> tables.LevelWeights | None:
    """A profile's name or masses; refuses what is not a distribution, or meets a dilution."""
    if given is None:
        return None
    rule = "'uniform', 'linear', or numbers >= 0 that sum to 1"
    fits = named = isinstance(given, str) and given in get_args(tables.Profile)
    if isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, str):
        weights = list(given)
        fits = all(is_number(weight) and weight >= 0 for weight in weights) and abs(sum(weights) - 1) <= 1e-6
    check_number("level_weights", given, rule, fits)
    if dilution != 0.5:
        raise ConfigError(
            f"level_weights must come without a dilution, whose place they take. Got dilution={dilution!r}."
        )
    return cast(tables.Profile, given) if named else tuple(float(weight) for weight in given)
