"""Class weights as scikit-learn takes them, for labels that may be coarse."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from hace.errors import ConfigError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray

_LARGE = sys.float_info.max


def class_weighted(
    class_weight: Mapping[Any, float] | str | None,
    labels: Mapping[Any, int],
    nodes: IntArray,
    hierarchy: Hierarchy,
    weight: np.ndarray | None,
) -> np.ndarray | None:
    """Sample weights times the weights of their classes.

    Args:
        class_weight: a weight for each label, 1 for those not named; "balanced": inversely proportional to how often a class
            occurs; or None. A coarse label that is not named has the mean weight of the classes below it, with "balanced" of
            those that occur.
        labels: the node index of every label.
        nodes: (M,) labels as node indices.
        hierarchy: the hierarchy.
        weight: (M,) weights of the samples, or None.

    Raises:
        ConfigError: ``class_weight`` is something else, or too large for sums of it.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle")])
        >>> index = {node: i for i, node in enumerate(h.nodes)}
        >>> nodes = np.array([index[node] for node in ("husky", "husky", "husky", "beagle", "dog")])
        >>> class_weighted({"beagle": 3}, index, nodes, h, None)
        array([1., 1., 1., 3., 2.])
        >>> class_weighted("balanced", index, nodes, h, None)
        array([0.66666667, 0.66666667, 0.66666667, 2.        , 1.33333333])
    """
    if class_weight is None:
        return weight
    leaf, given = hierarchy.labels >= 0, np.full(hierarchy.num_nodes, np.nan)
    if isinstance(class_weight, Mapping):
        given[leaf] = 1.0
        for label, value in class_weight.items():
            given[_node(label, labels)] = _checked(label, value)
    elif isinstance(class_weight, str) and class_weight == "balanced":
        count = np.bincount(nodes, weights=weight, minlength=hierarchy.num_nodes)
        seen = leaf & (count > 0)
        given[seen] = count[seen].sum() / (seen.sum() * count[seen])
    else:
        raise ConfigError(
            "class_weight must be a dict of labels and weights, 'balanced' or None. Got "
            f"{reprlib.repr(class_weight)}."
        )
    means = _means_below(given, hierarchy)
    each = np.where(np.isnan(given), means, given)[nodes]
    each = each if weight is None else each * weight
    if not np.isfinite(each).all():
        raise ConfigError(
            "class_weight must give every sample a finite weight. Got "
            f"{reprlib.repr(class_weight)}, which makes some infinite. Only proportions matter to fit: use smaller weights."
        )
    return each


def mean_class_weight(total: np.ndarray | None, weight: np.ndarray | None) -> float:
    """The mean class weight of samples, each counted with its own weight.

    Args:
        total: (M,) weights of the samples times those of their classes, or None.
        weight: (M,) weights of the samples, or None.

    Example:
        >>> mean_class_weight(np.array([3.0, 1.0]), None), mean_class_weight(np.array([6.0, 1.0]), np.array([2.0, 1.0]))
        (2.0, 2.3333333333333335)
    """
    if total is None or (weight is not None and not weight.any()):
        return 1.0
    largest = float(total.max()) or 1.0  # sums of large weights overflow
    return largest * float((total / largest).sum() / (len(total) if weight is None else weight.sum()))


def require_some(mean: float, class_weight: Any) -> None:
    """Refuse weights whose mean over the samples is 0, for training from scratch."""
    if mean == 0:
        raise ConfigError(
            "class_weight must give some sample a weight above 0. Got "
            f"{reprlib.repr(class_weight)}. Name a label of y with such a weight."
        )


def refuse_names(class_weight: Any) -> None:
    """Refuse "balanced", for training in several calls."""
    if isinstance(class_weight, str):
        raise ConfigError(
            "class_weight must be a dict or None for partial_fit: no call sees all classes. Got "
            f"{class_weight!r}. Give the weights of sklearn.utils.class_weight.compute_class_weight as a dict."
        )


def _node(label: Any, labels: Mapping[Any, int]) -> int:
    key = label.item() if isinstance(label, np.generic) else label
    node = labels.get(key, labels.get(str(key)))
    if node is None:
        known = [str(name) for name in labels]
        raise ConfigError(
            f"class_weight must name labels of y. Got {key!r}, which is not one.{nearest(str(key), known)}"
        )
    return node


def _checked(label: Any, value: Any) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    large = isinstance(value, int) and abs(value) > _LARGE  # float() refuses it, and repr() may
    if not number or large or not np.isfinite(value) or value < 0:
        shown = f"an integer beyond {_LARGE:.1e}" if large else reprlib.repr(value)
        raise ConfigError(f"class_weight must hold finite weights >= 0. Got {shown} for {label!r}.")
    return float(value)


def _means_below(given: np.ndarray, hierarchy: Hierarchy) -> np.ndarray:
    """(N,) mean of what the leaves at or below each node are given; 1 where nothing is."""
    ancestor, descendant = hierarchy.reachability()
    known = (hierarchy.labels[descendant] >= 0) & ~np.isnan(given[descendant])
    ancestor, values = ancestor[known], given[descendant[known]]
    count = np.bincount(ancestor, minlength=hierarchy.num_nodes)
    total = np.bincount(ancestor, weights=values, minlength=hierarchy.num_nodes)
    return np.where(count > 0, total / np.maximum(count, 1), 1.0)
