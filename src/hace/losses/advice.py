"""Which loss for which labels: the one recommendation, and the order from simple to involved in which `hace.fit` compares
losses.

README, docs/which-loss.md, the defaults of :class:`hace.HACEClassifier`, probes and trainings, the demo and `hace.fit` all
follow this table; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Advice:
    """A loss with its parameters, and the labels it is advised for.

    Attributes:
        loss: name in :data:`hace.LOSSES`.
        title: what to call it in a sentence.
        labels: the labels it is advised for; "" if it is only compared.
        params: parameters of the loss.
    """

    loss: str
    title: str
    labels: str = ""
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def key(self) -> str:
        """Its name with its parameters, such as "hace:dilution=0.5"."""
        values = ",".join(f"{name}={value:g}" for name, value in self.params.items())
        return f"{self.loss}:{values}" if values else self.loss


def _advice(loss: str, title: str, labels: str = "", **params: Any) -> Advice:
    return Advice(loss, title, labels, MappingProxyType(params))


FINE = "all fine, you want accuracy"
MILD = "all fine, a deep tree, you want mild mistakes"
COARSE = "some coarse"
SPECIFIC = "all fine, you want specific answers with a guarantee"
WRONG = "many wrong, but in the right group"

# From simple to involved.
ADVICE: tuple[Advice, ...] = (
    _advice("cross_entropy", "cross-entropy", FINE),
    _advice("cross_entropy_paths", "shared-ancestor head, sharing half", MILD, sharing=0.5),
    _advice("cross_entropy_paths", "shared-ancestor head", COARSE, sharing=1.0),
    _advice("soft_margin", "soft margin", SPECIFIC),
    _advice("hace", "HACE, d = 0.7", dilution=0.7),
    _advice("hace", "HACE, d = 0.5", WRONG, dilution=0.5),
    _advice("hace", "HACE, d = 0.2", dilution=0.2),
)


def advised_for(labels: str) -> Advice:
    """The advice for labels as they are described in :data:`ADVICE`."""
    return next(advice for advice in ADVICE if advice.labels == labels)


def recommended_loss(*, coarse: bool) -> Advice:
    """The loss to start from: for labels that are all classes, or of which some are coarse.

    Example:
        >>> recommended_loss(coarse=False).loss, recommended_loss(coarse=True).loss
        ('cross_entropy', 'cross_entropy_paths')
    """
    return advised_for(COARSE if coarse else FINE)
