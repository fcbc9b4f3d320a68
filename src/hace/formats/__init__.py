"""Readers and writers of hierarchies, and readers of scores and labels: what other programs write, and what they read.

`readers` lists every format: its suffixes, the function that reads it and the one that writes it. A reader is a function
from a `SourceText` (or a folder) to a `Draft`; a new format is one such function and one entry there. Files are opened by
`hace.files` alone.
"""

from __future__ import annotations

from hace.formats.folders import fgvc_hierarchy, nabirds_hierarchy
from hace.formats.readers import (
    FORMATS,
    Format,
    cifar100_hierarchy,
    parse_hierarchy,
    read_hierarchy,
    render_hierarchy,
    write_hierarchy,
)

__all__ = [
    "FORMATS",
    "Format",
    "cifar100_hierarchy",
    "fgvc_hierarchy",
    "nabirds_hierarchy",
    "parse_hierarchy",
    "read_hierarchy",
    "render_hierarchy",
    "write_hierarchy",
]
