"""A hierarchy from whatever a caller has: the object, a file, a dict, a list of paths or a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from hace.errors import ConfigError
from hace.formats.readers import read_hierarchy
from hace.hierarchy import Hierarchy


def as_hierarchy(given: Any) -> Hierarchy:
    """The hierarchy that a value describes.

    Args:
        given: a :class:`hace.Hierarchy`; the path of a file or folder that :func:`hace.read_hierarchy` takes; a dict from each
            id to its parent, or nested from the top down; rows of names from the top down to a class; a table with the columns
            parent and child, or with one column per level.

    Example:
        >>> as_hierarchy([("pet", "cat"), ("pet", "dog")]) == as_hierarchy({"pet": ["cat", "dog"]})
        True
        >>> as_hierarchy({"cat": "pet", "dog": "pet", "pet": None}).leaves
        ('cat', 'dog')
    """
    if isinstance(given, Hierarchy):
        return given
    if isinstance(given, (str, PathLike)):
        return read_hierarchy(Path(given))
    if isinstance(given, Mapping):
        flat = all(value is None or isinstance(value, (str, int)) for value in given.values())
        return Hierarchy.from_parents(given) if flat else Hierarchy.from_tree(given)
    columns = {str(column).casefold() for column in getattr(given, "columns", ())}
    if {"parent", "child"} <= columns:
        return Hierarchy.from_edges(given)
    if columns or (isinstance(given, Iterable) and not hasattr(given, "detach")):
        return Hierarchy.from_paths(given)
    raise ConfigError(
        "hierarchy must be a Hierarchy, the path of a file, a dict, rows of names from the top down, or a table. Got "
        f"{type(given).__name__}."
    )
