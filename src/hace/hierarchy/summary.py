"""A hierarchy described on one page of text."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hace.errors import listed
from hace.hierarchy.hierarchy import Hierarchy

_LEVELS_SHOWN = 30


def summarize(h: Hierarchy) -> str:
    """The text of :meth:`hace.Hierarchy.summary`."""
    children = np.bincount(h.edges[:, 0], minlength=h.num_nodes)
    parents = np.bincount(h.edges[:, 1], minlength=h.num_nodes)
    inner = h.num_nodes - h.num_leaves
    unary = np.flatnonzero(children == 1)
    several = np.flatnonzero(parents > 1)
    repeated = {name: k for name, k in Counter(h.names).items() if k > 1}
    top = f"root {h.tops[0]!r}" if h.rooted else f"{len(h.tops):,} top{'s' * (len(h.tops) > 1)}, no root"
    lines = [
        repr(h)[1:-1],
        f"  {inner:,} inner node{'s' * (inner != 1)}, {h.num_edges:,} edge{'s' * (h.num_edges != 1)}, {top}",
        f"  children of an inner node: {_spread(children[children > 0])}",
        f"  unary nodes (one child): {_some(h, unary)}",
        f"  nodes with several parents: {_some(h, several)}",
        f"  repeated display names: {len(repeated):,}" + (f" ({listed(repeated)})" if repeated else ""),
        f"  fingerprint: {h.fingerprint[:16]}",
        "",
        *_levels(h),
    ]
    return "\n".join(lines)


def _levels(h: Hierarchy) -> list[str]:
    """Width of each level and the leaves that end there, as a table with bars."""
    width = np.bincount(h.depths, minlength=h.max_depth + 1)
    ending = np.bincount(h.depths[h.leaf_nodes], minlength=h.max_depth + 1)
    rows = ["  level    nodes   leaves"]
    first = 0 if h.rooted else 1
    shown = range(first, min(h.max_depth, first + _LEVELS_SHOWN - 1) + 1)
    for k in shown:
        bar = "#" * round(24 * int(width[k]) / int(width.max())) or "."
        name = f"  {h.level_names[k - 1]}" if h.level_names and k > 0 else ""
        rows.append(f"  {k:5d} {width[k]:8,} {ending[k]:8,}  {bar}{name}")
    if shown.stop <= h.max_depth:
        rows.append(f"  ... and {h.max_depth + 1 - shown.stop:,} more levels")
    return rows


def _spread(values: np.ndarray) -> str:
    if not len(values):
        return "none"
    return f"{values.min()} to {values.max():,}, median {np.median(values):g}"


def _some(h: Hierarchy, nodes: np.ndarray) -> str:
    return f"{len(nodes):,}" + (f" ({listed(h.nodes[i] for i in nodes.tolist())})" if len(nodes) else "")
