"""A hierarchy's index arrays as tensors on one device, made once and kept as long as the hierarchy lives."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hace.hierarchy.hierarchy import Hierarchy
from hace.hierarchy.index import derived, level_choices


def layout(hierarchy: Hierarchy, device: torch.device | str = "cpu") -> Layout:
    """The hierarchy's tensors on a device; the same object on every call."""
    return _layout(hierarchy, torch.device(device))


class Layout:
    """Node order, label order and the ways up and down, as int64 tensors.

    The virtual root of an unrooted hierarchy has no node: where a table needs a row for "no node", that row is the last
    one, which index -1 reaches.
    """

    def __init__(self, hierarchy: Hierarchy, device: torch.device) -> None:
        self.hierarchy = hierarchy
        self.device = device

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array, dtype=np.int64)).to(self.device)

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
        return torch.from_numpy(self.hierarchy.depths.astype(np.int32)).to(self.device)

    @cached_property
    def children(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of children (start (N + 1,), count (N + 1,), child (E + tops,)); the last row holds the tops."""
        h = self.hierarchy
        by_parent = h.edges[np.lexsort((h.edges[:, 1], h.edges[:, 0]))]
        tops = np.setdiff1d(np.arange(h.num_nodes), h.edges[:, 1])
        count = np.append(np.bincount(h.edges[:, 0], minlength=h.num_nodes), len(tops))
        start = np.cumsum(count) - count
        return self._tensor(start), self._tensor(count), self._tensor(np.concatenate([by_parent[:, 1], tops]))

    @property
    def walk_start(self) -> int:
        """Where a walk down begins: the root, or -1, the virtual root."""
        return 0 if self.hierarchy.rooted else -1

    def level_choices(self, level: int) -> Tensor:
        """The nodes to choose from at a level: those of that depth and the leaves above it, in node order."""
        return self._tensor(level_choices(self.hierarchy, level))


@derived
def _layout(hierarchy: Hierarchy, device: torch.device) -> Layout:
    return Layout(hierarchy, device)
