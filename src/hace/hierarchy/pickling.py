"""Hierarchies in pickles and in checkpoints, where ``torch.load(weights_only=True)`` reads them too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy


def restore(
    nodes: tuple[str, ...],
    names: tuple[str, ...],
    edges: list[int],
    leaf_nodes: list[int],
    rooted: bool,
    level_names: tuple[str, ...] | None,
) -> Hierarchy:
    """A hierarchy from plain values, through the same gate as any other."""
    from hace.hierarchy.hierarchy import Hierarchy

    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    leaves = [nodes[i] for i in leaf_nodes]
    display = dict(zip(nodes, names, strict=True))
    h = Hierarchy._assemble(nodes, pairs, leaves=leaves, names=display, rooted=rooted)
    return h._with_levels(level_names)


def allow_in_checkpoints() -> None:
    """Tell torch, where it is loaded, that a checkpoint may hold a hierarchy: it is built from plain values and validated."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "serialization"):
        torch.serialization.add_safe_globals([restore])
