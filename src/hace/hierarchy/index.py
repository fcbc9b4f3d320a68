"""What is below what, in which order, as arrays that several folders need; and the one way to keep what they derive."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import numpy as np

from hace.hierarchy.assembly import IntArray

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def derived(
    make: Callable[Concatenate[Hierarchy, Arguments], Made],
) -> Callable[Concatenate[Hierarchy, Arguments], Made]:
    """Calls a function once per hierarchy and arguments, and keeps the result as long as the hierarchy lives.

    Args:
        make: A function of a hierarchy and hashable positional arguments.

    Example:
        >>> from hace import Hierarchy
        >>> @derived
        ... def top_level(h):
        ...     return h.level(1)
        >>> h = Hierarchy.flat(["cat", "dog"])
        >>> top_level(h) is top_level(h)
        True
    """

    @wraps(make)
    def kept(hierarchy: Hierarchy, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
        store = hierarchy.__dict__.setdefault("_derived", {})
        key = make, args, tuple(sorted(kwargs.items()))
        if key not in store:
            store[key] = make(hierarchy, *args, **kwargs)
        return store[key]

    return kept


@derived
def preorder_labels(h: Hierarchy) -> IntArray:
    """(n,) the labels in the order in which their leaves come in node order."""
    return h.labels[h.labels >= 0]


@derived
def leaf_ranges(h: Hierarchy) -> tuple[IntArray, IntArray]:
    """(N,), (N,): the leaves at or below node v are ``preorder_labels(h)[low[v]:high[v]]``. Trees and forests only."""
    before = np.concatenate([[0], np.cumsum(h.labels >= 0)])  # leaves before each node
    return before[:-1], before[h.subtree_ends]


@derived
def leaf_counts(h: Hierarchy) -> IntArray:
    """(N,) how many leaves are at or below each node."""
    if h.is_tree:
        low, high = leaf_ranges(h)
        return high - low
    ancestor, descendant = h.reachability()
    return np.bincount(ancestor[h.labels[descendant] >= 0], minlength=h.num_nodes)


@derived
def level_choices(h: Hierarchy, level: int) -> IntArray:
    """The nodes to choose from at a level: those of that depth and the leaves above it, in node order."""
    return np.flatnonzero((h.depths == level) | ((h.labels >= 0) & (h.depths < level)))


@derived
def _reach_keys(h: Hierarchy) -> IntArray:
    """Sorted keys ancestor * N + descendant of a DAG."""
    ancestor, descendant = h.reachability()
    return ancestor * h.num_nodes + descendant


def is_above(h: Hierarchy, answer: IntArray, truth: IntArray) -> np.ndarray:
    """Whether each answer is the truth or an ancestor of it; -1, no answer, is above everything."""
    if h.is_tree:
        inside = (answer <= truth) & (truth < np.append(h.subtree_ends, 0)[answer])
    else:
        reach, wanted = _reach_keys(h), answer * h.num_nodes + truth
        inside = reach[np.minimum(np.searchsorted(reach, wanted), len(reach) - 1)] == wanted
    return inside | (answer < 0)
