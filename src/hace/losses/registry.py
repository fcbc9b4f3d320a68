"""All losses by name: what configurations, the command line and studies choose from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from hace.errors import ConfigError, nearest
from hace.hierarchy import Hierarchy
from hace.losses.base import SHARED, HierarchicalLoss
from hace.losses.baselines import ConditionalSoftmaxLoss, ExpectedDistanceLoss, SimLoss
from hace.losses.table_losses import CrossEntropyLoss, HACELoss, HCELoss, HXELoss, SoftLabelLoss

LOSSES: Mapping[str, Callable[..., HierarchicalLoss]] = MappingProxyType(
    {
        "cross_entropy": CrossEntropyLoss,
        "soft_label": SoftLabelLoss,
        "hxe": HXELoss,
        "hce": HCELoss,  # aggregation only
        "hace": HACELoss,
        "ancestral_smoothing": partial(HACELoss, aggregate=False),  # HACE without aggregation
        "hace_leaves": partial(HACELoss, outputs="leaves"),  # HACE's table on a head over leaves
        "conditional_softmax": ConditionalSoftmaxLoss,
        "simloss": SimLoss,
        "expected_distance": ExpectedDistanceLoss,
    }
)
"""Every loss by its name; the paper's ablations are presets of HACE."""


def build_loss(name: str, hierarchy: Hierarchy, **params: Any) -> HierarchicalLoss:
    """A loss by its name in :data:`LOSSES`.

    Args:
        name: such as ``"hace"``.
        hierarchy: the taxonomy.
        params: the loss's own parameters and those that all share.

    Example:
        >>> build_loss("hace", Hierarchy.flat(["cat", "dog"]), dilution=0.7).num_outputs
        2
    """
    if name not in LOSSES:
        raise ConfigError(f"Unknown loss {name!r}. Known: {', '.join(LOSSES)}.{nearest(name, LOSSES)}")
    known = loss_parameters(name)
    unknown = [p for p in params if p not in known]
    if unknown:
        raise ConfigError(
            f"Loss {name!r} has no parameter {unknown[0]!r}. It has: "
            f"{', '.join(known)}.{nearest(unknown[0], known)}"
        )
    return LOSSES[name](hierarchy, **params)


def loss_parameters(name: str) -> dict[str, Any]:
    """Parameters of a loss and their defaults, without the hierarchy."""
    parameters = inspect.signature(LOSSES[name]).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "hierarchy"}
    shared = inspect.signature(HierarchicalLoss).parameters
    return {**own, **{k: shared[k].default for k in SHARED}}
