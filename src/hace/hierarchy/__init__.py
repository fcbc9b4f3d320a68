"""The label hierarchy: the only owner of node order, label order and the map between them.

Nothing here reads a file; :mod:`hace.formats` does.
"""

from __future__ import annotations

from hace.hierarchy.hierarchy import Hierarchy, allow_in_checkpoints

allow_in_checkpoints()

__all__ = ["Hierarchy"]
