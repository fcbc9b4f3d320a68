"""What is known of the training labels: all of them, some only coarsely, a few, or some wrongly.

The choice depends on the seed and on the samples before any are held out, so that a search and its final run agree on it; a
larger share or a smaller number changes the labels of further samples and keeps the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hace.data.dataset import part_of_each, places_of_each
from hace.errors import ConfigError, nearest
from hace.hierarchy import Hierarchy
from hace.lab.runs.settings import AT_LEAST_ONE, SHARE, Config, setting

_COARSE, _WRONG, _OTHER = 0xC0A, 0xBAD, 0x07E  # what a seed is used for


@dataclass(frozen=True)
class LabelsConfig(Config):
    """What is known of the training labels. Held-out and test samples keep their true labels.

    Attributes:
        coarse: Share of the samples of each class that are known only to an ancestor; at least one stays known.
        fine: Known samples per class; all others are known only to an ancestor.
        to: That ancestor: "parent", "top" (below the root), or a level by its number (tops have 1) or name. A class without
            such an ancestor stays known.
        wrong: Share of the samples of each class that have another class's label.
        within: Where that class is: under the same "parent", or "anywhere". A class alone under its parent keeps its labels.
        drop: Whether to train only on samples known to a leaf.
    """

    coarse: float = setting(0.0, SHARE)
    fine: int | None = setting(None, AT_LEAST_ONE)
    to: int | str = setting("parent")
    wrong: float = setting(0.0, SHARE)
    within: Literal["parent", "anywhere"] = setting("parent")
    drop: bool = setting(False)

    def conflicts(self) -> list[str]:
        """A share and a number of known labels at once."""
        if self.coarse and self.fine is not None:
            return [f"coarse must be 0 where fine is given. Got coarse={self.coarse} and fine={self.fine}."]
        return []

    @property
    def text(self) -> str:
        """In words; "" for labels as they are.

        Example:
            >>> [c.text for c in (LabelsConfig(0.8), LabelsConfig(fine=1), LabelsConfig(wrong=0.4))]
            ['80 % parent', '1 a class + parent', '40 % wrong within parent']
            >>> LabelsConfig(fine=5, drop=True).text, LabelsConfig(coarse=0.5, to=2).text, LabelsConfig().text
            ('5 a class', '50 % level 2', '')
        """
        to = self.to if str(self.to) in ("parent", "top") else f"level {self.to}"
        parts = []
        if self.coarse:
            parts.append(f"{100 * self.coarse:g} % {'dropped' if self.drop else to}")
        if self.fine is not None:
            parts.append(f"{self.fine} a class" + ("" if self.drop else f" + {to}"))
        if self.wrong:
            where = "within parent" if self.within == "parent" else "anywhere"
            parts.append(f"{100 * self.wrong:g} % wrong {where}")
        return " and ".join(parts)


def known_labels(
    nodes: np.ndarray, hierarchy: Hierarchy, config: LabelsConfig, seed: int, first: int | None = None
) -> np.ndarray:
    """The labels that a training sees.

    Args:
        nodes: (M,) true labels, node indices. Those above the leaves stay as they are.
        hierarchy: The classes.
        config: What is known.
        seed: Chooses the samples.
        first: Samples before this position are the first to be known, where `fine` counts; by default all are equal.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")])
        >>> nodes = np.repeat([h.index(leaf) for leaf in ("husky", "beagle", "tabby")], 3)
        >>> [h.nodes[v] for v in known_labels(nodes, h, LabelsConfig(fine=1), seed=0)]
        ['husky', 'dog', 'dog', 'beagle', 'dog', 'dog', 'cat', 'tabby', 'cat']
    """
    known = nodes.copy()
    leaves = np.flatnonzero(hierarchy.labels[nodes] >= 0)
    if config.wrong:
        chosen = leaves[part_of_each(nodes[leaves], config.wrong, [seed, _WRONG])[1]]
        group = np.zeros(hierarchy.num_nodes, dtype=np.int64)
        if config.within == "parent":
            group = coarse_nodes(hierarchy, "parent")
        known[chosen] = _others(nodes[chosen], hierarchy, group, seed)
    coarse = leaves[:0]
    if config.fine is not None:
        later = np.zeros(len(leaves), dtype=bool) if first is None else leaves >= first
        place = places_of_each(nodes[leaves], [seed, _COARSE], later)
        coarse = leaves[place >= config.fine]
    elif config.coarse:
        coarse = leaves[part_of_each(nodes[leaves], config.coarse, [seed, _COARSE])[1]]
    known[coarse] = coarse_nodes(hierarchy, config.to)[known[coarse]]
    return known


def coarse_nodes(hierarchy: Hierarchy, to: int | str) -> np.ndarray:
    """(N,) for each node its ancestor as of :attr:`LabelsConfig.to`; the node itself where it has none below the root.

    On a DAG, the first parent in node order counts.

    Raises:
        ConfigError: No such level.
    """
    up = np.arange(hierarchy.num_nodes)
    # Edges are sorted by child, then parent: backwards, the first parent comes last. The root says nothing.
    for parent, child in hierarchy.edges[::-1].tolist():
        if hierarchy.depths[parent] > 0:
            up[child] = parent
    if to == "parent":
        return up
    level = 1 if to == "top" else _level(hierarchy, to)
    found = np.arange(hierarchy.num_nodes)
    for _ in range(hierarchy.max_depth):
        found = np.where(hierarchy.depths[found] > level, up[found], found)
    return found


def _level(hierarchy: Hierarchy, to: int | str) -> int:
    names = list(hierarchy.level_names or ())
    if to in names:
        return names.index(str(to)) + 1
    if str(to).isdecimal() and 1 <= int(to) < hierarchy.max_depth:
        return int(to)
    known = ["parent", "top", *names[:-1]]
    numbers = f", or a level from 1 to {hierarchy.max_depth - 1}" if hierarchy.max_depth > 1 else ""
    raise ConfigError(
        f"What coarse labels are known to (labels.to, --coarse-to) must be one of {', '.join(known)}{numbers}. Got {to!r}."
        f"{nearest(str(to), known)}"
    )


def _others(nodes: np.ndarray, hierarchy: Hierarchy, group: np.ndarray, seed: int) -> np.ndarray:
    """For each leaf another one of its group, by chance; a leaf alone in its group stays."""
    leaves = hierarchy.leaf_nodes[np.argsort(group[hierarchy.leaf_nodes], kind="stable")]
    _, first, size = np.unique(group[leaves], return_index=True, return_counts=True)
    owner = np.repeat(np.arange(len(first)), size)
    place = np.zeros(hierarchy.num_nodes, dtype=np.int64)
    place[leaves] = np.arange(len(leaves))
    mine = owner[place[nodes]]
    step = np.random.default_rng([seed, _OTHER]).integers(1, np.maximum(size[mine], 2))
    return leaves[first[mine] + (place[nodes] - first[mine] + step) % size[mine]]
