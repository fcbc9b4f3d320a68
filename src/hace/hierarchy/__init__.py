"""The label hierarchy: the only owner of node order, label order and the map between them.

Imports `errors` only. Nothing here reads a file; :mod:`hace.formats` does.
"""

from __future__ import annotations

from hace.hierarchy.hierarchy import Hierarchy
from hace.hierarchy.pickling import allow_in_checkpoints

allow_in_checkpoints()

__all__ = ["Hierarchy"]
