"""What is below what, in which order, as arrays and as tensors; and the one cache of what follows from a hierarchy.

torch loads where a tensor is made: readers and drawings of hierarchies do without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import numpy as np

from hace.checks import check_choice
from hace.hierarchy.assembly import IntArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hace.hierarchy.hierarchy import Hierarchy

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def cached_on_hierarchy(
    make: Callable[Concatenate[Hierarchy, Arguments], Made],
) -> Callable[Concatenate[Hierarchy, Arguments], Made]:
    """Calls a function once per hierarchy and arguments; its result is cached as long as the hierarchy lives."""

    @wraps(make)
    def cached(hierarchy: Hierarchy, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
        store = hierarchy.__dict__.setdefault("_cached", {})
        key = make, args, tuple(sorted(kwargs.items()))
        if key not in store:
            store[key] = make(hierarchy, *args, **kwargs)
        return store[key]

    return cached


@cached_on_hierarchy
def preorder_labels(h: Hierarchy) -> IntArray:
    """(n,) the labels in the order in which their leaves come in node order."""
    return h.labels[h.labels >= 0]


@cached_on_hierarchy
def leaf_ranges(h: Hierarchy) -> tuple[IntArray, IntArray]:
    """(N,), (N,): the leaves at or below node v are ``preorder_labels(h)[low[v]:high[v]]``. Trees and forests only."""
    before = np.concatenate([[0], np.cumsum(h.labels >= 0)])  # leaves before each node
    return before[:-1], before[h.subtree_ends]


@cached_on_hierarchy
def leaf_counts(h: Hierarchy) -> IntArray:
    """(N,) how many leaves are at or below each node."""
    if h.is_tree:
        low, high = leaf_ranges(h)
        return high - low
    ancestor, descendant = h.reachability()
    return np.bincount(ancestor[h.labels[descendant] >= 0], minlength=h.num_nodes)


@cached_on_hierarchy
def level_choices(h: Hierarchy, level: int) -> IntArray:
    """The nodes to choose from at a level: those of that depth and the leaves above it, in node order."""
    if level > h.max_depth:  # a rank: its nodes, and the leaves without one
        return np.union1d(np.flatnonzero(h._at_level(level)), h.level_nodes(level)[h.leaf_nodes])
    return np.flatnonzero((h.depths == level) | ((h.labels >= 0) & (h.depths < level)))


@cached_on_hierarchy
def _reach_keys(h: Hierarchy) -> IntArray:
    """Sorted keys ancestor * N + descendant of a DAG."""
    ancestor, descendant = h.reachability()
    return ancestor * h.num_nodes + descendant


def is_above(h: Hierarchy, answer: IntArray, truth: IntArray) -> np.ndarray:
    """Whether each answer is the truth or an ancestor of it; -1, no answer, is above everything."""
    if h.is_tree:
        inside = (answer <= truth) & (truth < np.append(h.subtree_ends, 0)[answer])
    else:
        reach = _reach_keys(h)
        wanted = answer * h.num_nodes + truth
        inside = reach[np.minimum(np.searchsorted(reach, wanted), len(reach) - 1)] == wanted
    return inside | (answer < 0)


def layout(hierarchy: Hierarchy, device: torch.device | str = "cpu") -> Layout:
    """The hierarchy's tensors on a device; the same object on every call."""
    import torch

    return cached_on_hierarchy(Layout)(hierarchy, torch.device(device))


class Layout:
    """Node order, label order and the ways up and down, as int64 tensors.

    The virtual root of an unrooted hierarchy has no node: where a table needs a row for "no node", that row is the last
    one, which index -1 reaches.
    """

    def __init__(self, hierarchy: Hierarchy, device: torch.device) -> None:
        self.hierarchy = hierarchy
        self.device = device

    def _tensor(self, array: np.ndarray, dtype: type = np.int64) -> Tensor:
        import torch

        return torch.from_numpy(np.array(array, dtype=dtype)).to(self.device)

    @cached_property
    def leaf_nodes(self) -> Tensor:
        """(n,) node index of each label."""
        return self._tensor(self.hierarchy.leaf_nodes)

    @cached_property
    def depths(self) -> Tensor:
        """(N + 1,) depth of each node; 0 for the virtual root in the last place."""
        return self._tensor(np.append(self.hierarchy.depths, 0))

    @cached_property
    def short_depths(self) -> Tensor:
        """(N,) depth of each node in int32, as the compiled kernel takes it."""
        return self._tensor(self.hierarchy.depths, np.int32)

    @cached_property
    def children(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of children (start (N + 1,), count (N + 1,), child (E + tops,)); the last row holds the tops."""
        h = self.hierarchy
        start, below = h._children
        tops = np.setdiff1d(np.arange(h.num_nodes), h.edges[:, 1])
        count = np.append(np.diff(start), len(tops))
        return self._tensor(start), self._tensor(count), self._tensor(np.concatenate([below, tops]))

    @property
    def walk_start(self) -> int:
        """Where a walk down begins: the root, or -1, the virtual root."""
        return 0 if self.hierarchy.rooted else -1

    def level_choices(self, level: int) -> Tensor:
        """:func:`level_choices` as a tensor."""
        return self._tensor(level_choices(self.hierarchy, level))


def reachability_matrix(hierarchy: Hierarchy, outputs: str = "nodes", *, dense: bool = False) -> Tensor:
    """R, the 0/1 matrix that aggregates probabilities of outputs into those of nodes: q* = R softmax(z) (eq. 2).

    Args:
        hierarchy: the taxonomy: a tree, a forest or a DAG.
        outputs: what the columns are: ``"nodes"`` in node order, or ``"leaves"`` in label order.
        dense: an ordinary tensor of N x N (or N x n) entries. By default only the ones are kept.

    Returns:
        (N, N) or (N, n), float64: R[v, u] = 1 where output u is node v or below it. A sparse COO tensor,
        unless ``dense``.

    Example:
        >>> from hace import Hierarchy
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> h.nodes
        ('dog', 'husky', 'beagle', 'cat')
        >>> reachability_matrix(h, "leaves", dense=True)
        tensor([[1., 1., 0.],
                [1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """
    check_choice("outputs", outputs, ("nodes", "leaves"))
    row, column = hierarchy.reachability()
    width = hierarchy.num_nodes
    if outputs == "leaves":
        label = hierarchy.labels[column]
        row = row[label >= 0]
        column = label[label >= 0]
        width = hierarchy.num_leaves
    matrix = sparse_matrix(row, column, np.ones(len(row)), (hierarchy.num_nodes, width))
    return matrix.to_dense() if dense else matrix


def sparse_matrix(row: np.ndarray, column: np.ndarray, value: np.ndarray, shape: tuple[int, int]) -> Tensor:
    """A sparse COO tensor, sorted by row and column. (CSR would be smaller, but torch warns that it is unfinished.)"""
    import torch

    indices = torch.from_numpy(np.stack([row, column]))
    return torch.sparse_coo_tensor(indices, torch.from_numpy(value), shape, check_invariants=True).coalesce()
