"""The label hierarchy: the only owner of node order, label order and the map between them.

Imports `errors` only. Nothing here reads a file; :mod:`hace.formats` does.
"""

from __future__ import annotations

from hace.hierarchy.hierarchy import Hierarchy

__all__ = ["Hierarchy"]
