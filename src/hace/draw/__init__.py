"""Drawings of hierarchies: pictures, and one interactive page. Imports `errors`, `files` and `hierarchy`."""

from __future__ import annotations

from hace.draw.drawing import draw_hierarchy

__all__ = ["draw_hierarchy"]
