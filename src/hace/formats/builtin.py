"""Hierarchies that come with the package."""

from __future__ import annotations

from importlib import resources

from hace.formats.source import SourceText, build
from hace.formats.tables import parse_csv
from hace.hierarchy import Hierarchy


def cifar100_hierarchy(root: bool = False) -> Hierarchy:
    """CIFAR-100's own two levels: 20 superclasses above 100 classes in the official label order.

    Args:
        root: True adds a root: 121 nodes instead of 120.

    Example:
        >>> h = cifar100_hierarchy()
        >>> h.num_nodes, h.leaves[:2], h.parents("apple"), h.level_names
        (120, ('apple', 'aquarium_fish'), ('fruit_and_vegetables',), ('superclass', 'class'))
    """
    table = resources.files("hace.formats").joinpath("cifar100.csv").read_bytes()
    source = SourceText(table, "cifar100.csv")
    draft = parse_csv(source, columns=["superclass", "class"], label="label")
    hierarchy = build(draft, source.problems)
    return hierarchy.with_root() if root else hierarchy
