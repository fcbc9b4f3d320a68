"""A hierarchy's index arrays as tensors on one device, made once and kept as long as the hierarchy lives."""

from __future__ import annotations

from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from hace.hierarchy.hierarchy import Hierarchy

_layouts: WeakKeyDictionary[Hierarchy, dict[torch.device, Layout]] = WeakKeyDictionary()


def layout(hierarchy: Hierarchy, device: torch.device | str = "cpu") -> Layout:
    """The hierarchy's tensors on a device; the same object on every call."""
    device = torch.device(device)
    by_device = _layouts.setdefault(hierarchy, {})
    if device not in by_device:
        by_device[device] = Layout(hierarchy, device)
    return by_device[device]


class Layout:
    """Node order, label order and the ways up and down, as int64 tensors.

    The virtual root of an unrooted hierarchy has no node of its own: where a table needs a row for "no node", that row
    is the last one, which index -1 reaches.
    """

    def __init__(self, hierarchy: Hierarchy, device: torch.device) -> None:
        # Plain arrays, never the hierarchy itself: it is the key of a weak dictionary, and its value must not hold it.
        self._arrays = {
            "leaf_nodes": hierarchy.leaf_nodes,
            "labels": hierarchy.labels,
            "depths": hierarchy.depths,
            "edges": hierarchy.edges,
        }
        self._rooted = hierarchy.rooted
        self.num_nodes = hierarchy.num_nodes
        self.device = device

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array, dtype=np.int64)).to(self.device)

    @cached_property
    def leaf_nodes(self) -> Tensor:
        """(n,) node index of each label."""
        return self._tensor(self._arrays["leaf_nodes"])

    @cached_property
    def depths(self) -> Tensor:
        """(N + 1,) depth of each node; 0 for the virtual root in the last place."""
        return self._tensor(np.append(self._arrays["depths"], 0))

    @cached_property
    def children(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of children (start (N + 1,), count (N + 1,), child (E + tops,)); the last row holds the tops."""
        edges = self._arrays["edges"]
        by_parent = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        has_parent = np.zeros(self.num_nodes, dtype=bool)
        has_parent[edges[:, 1]] = True
        tops = np.flatnonzero(~has_parent)
        count = np.append(np.bincount(edges[:, 0], minlength=self.num_nodes), len(tops))
        start = np.cumsum(count) - count
        return self._tensor(start), self._tensor(count), self._tensor(np.concatenate([by_parent[:, 1], tops]))

    @cached_property
    def walk_start(self) -> int:
        """Where a walk down begins: the root, or -1, the virtual root."""
        return 0 if self._rooted else -1

    def level_choices(self, level: int) -> Tensor:
        """The nodes to choose from at a level: those of that depth, and leaves that end above it; in node order."""
        depths, labels = self._arrays["depths"], self._arrays["labels"]
        return self._tensor(np.flatnonzero((depths == level) | ((labels >= 0) & (depths < level))))
