"""All losses by name: what configurations, the command line and studies choose from.

A new loss is listed here and nowhere else: its import makes it part of ``hace.losses`` and ``hace``, its entry makes it
part of every command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from hace.checks import check_choice
from hace.errors import ConfigError, nearest
from hace.hierarchy import Hierarchy
from hace.losses.base import HierarchicalLoss
from hace.losses.distance_losses import ExpectedDistanceLoss as ExpectedDistanceLoss
from hace.losses.distance_losses import SimLoss as SimLoss
from hace.losses.distance_losses import SoftMarginLoss as SoftMarginLoss
from hace.losses.hace import CrossEntropyLoss as CrossEntropyLoss
from hace.losses.hace import HACELoss as HACELoss
from hace.losses.hace import HCELoss as HCELoss
from hace.losses.hace import HXELoss as HXELoss
from hace.losses.hace import SoftLabelLoss as SoftLabelLoss
from hace.losses.node_losses import ClassEmbeddingLoss as ClassEmbeddingLoss
from hace.losses.node_losses import ConditionalSoftmaxLoss as ConditionalSoftmaxLoss
from hace.losses.node_losses import LevelwiseLoss as LevelwiseLoss

LOSSES: Mapping[str, Callable[..., HierarchicalLoss]] = MappingProxyType(
    {
        "cross_entropy": CrossEntropyLoss,
        "soft_label": SoftLabelLoss,
        "hxe": HXELoss,
        "hce": HCELoss,  # aggregation only
        "hace": HACELoss,
        "ancestral_smoothing": partial(HACELoss, aggregate=False),  # HACE without aggregation
        "hace_leaves": partial(HACELoss, outputs="leaves"),  # HACE's table on a head over leaves
        "hace_paths": partial(HACELoss, outputs="paths"),  # the same over path sums
        "cross_entropy_paths": partial(CrossEntropyLoss, outputs="paths"),
        "conditional_softmax": ConditionalSoftmaxLoss,
        "simloss": SimLoss,
        "expected_distance": ExpectedDistanceLoss,
        "soft_margin": SoftMarginLoss,
        "levelwise": LevelwiseLoss,
        "class_embedding": ClassEmbeddingLoss,
    }
)
"""Every loss by its name; the paper's ablations and heads of path sums are presets."""

CLASSES: Mapping[str, type[HierarchicalLoss]] = MappingProxyType(
    {made.__name__: made for made in LOSSES.values() if isinstance(made, type)}
)
"""The classes of the losses by their names: what ``hace`` and ``hace.losses`` export."""


def build_loss(name: str, hierarchy: Hierarchy, **params: Any) -> HierarchicalLoss:
    """A loss by its name in :data:`LOSSES`.

    Args:
        name: such as ``"hace"``.
        hierarchy: the taxonomy.
        **params: the loss's parameters.

    Example:
        >>> build_loss("hace", Hierarchy.flat(["cat", "dog"]), dilution=0.7).num_outputs
        2
    """
    check_choice("loss", name, LOSSES)
    known = loss_parameters(name)
    unknown = [p for p in params if p not in known]
    if unknown:
        raise ConfigError(
            f"Parameters of loss {name!r} must be among {', '.join(known)}. "
            f"Got {unknown[0]!r}.{nearest(unknown[0], known)}"
        )
    return LOSSES[name](hierarchy, **params)


@cache  # a study has thousands of configurations
def loss_parameters(name: str) -> Mapping[str, Any]:
    """Parameters of a loss and their defaults, without the hierarchy."""
    parameters = inspect.signature(LOSSES[name]).parameters.values()
    return MappingProxyType({p.name: p.default for p in parameters if p.name != "hierarchy"})
