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
    return _read("cifar100", ["superclass", "class"], root)


def animals_hierarchy(root: bool = False) -> Hierarchy:
    """A small taxonomy for demos: 5 groups, 20 families and 61 animals.

    Args:
        root: True adds a root.

    Example:
        >>> h = animals_hierarchy()
        >>> h.num_leaves, h.num_nodes, h.parents("lynx"), h.level_names
        (61, 86, ('cat',), ('group', 'family', 'animal'))
    """
    return _read("animals", ["group", "family", "animal"], root)


BUILTIN = {"animals": animals_hierarchy, "cifar100": cifar100_hierarchy}


def _read(name: str, columns: list[str], root: bool) -> Hierarchy:
    table = resources.files("hace.formats").joinpath(f"{name}.csv").read_bytes()
    source = SourceText(table, f"{name}.csv")
    hierarchy = build(parse_csv(source, columns=columns, label="label"), source.problems)
    return hierarchy.with_root() if root else hierarchy
