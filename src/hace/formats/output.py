"""Hierarchies out: as text, or to a file, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from hace.errors import ConfigError, FormatError, HierarchyError, nearest
from hace.files.reading import reason
from hace.files.writing import atomic_path
from hace.formats.registry import FORMATS, format_of_suffix
from hace.hierarchy import Hierarchy


def render_hierarchy(hierarchy: Hierarchy, format: str) -> str:
    """The text that `write_hierarchy` would write.

    Args:
        hierarchy: What to write.
        format: A name in `FORMATS`.

    Example:
        >>> h = Hierarchy.from_edges([("dog", "husky"), ("dog", "beagle")])
        >>> render_hierarchy(h, "newick").strip()
        '(beagle,husky)dog;'
    """
    writers = [name for name, kind in FORMATS.items() if kind.render]
    if format not in writers:
        raise ConfigError(
            f"format must be one of {', '.join(writers)}. Got {format!r}.{nearest(str(format), writers)}"
        )
    text = FORMATS[format].render(hierarchy)  # pyright: ignore[reportOptionalCall]
    if "\0" in text:
        raise HierarchyError(
            f"An id or name holds a zero character, which {format} cannot hold. Write it as json."
        )
    return text


def write_hierarchy(hierarchy: Hierarchy, path: str | os.PathLike[str], format: str | None = None) -> None:
    """Writes a hierarchy to a file, whole or not at all: a failure leaves an older file as it was.

    `json` keeps everything. `csv` and `tsv` keep ids, names, edges and label order, not the names of levels,
    nor that a single top is not a root. `newick` keeps ids and edges of trees and forests. `dot` and
    `mermaid` are drawings.

    Args:
        hierarchy: What to write.
        path: The file.
        format: A name in `FORMATS`; without it the suffix decides.

    Raises:
        ConfigError: If the format is unknown, the suffix does not tell it, or the path cannot be a file.
        HierarchyError: If the format cannot hold this hierarchy.
        FormatError: If the file cannot be written.
    """
    if format is None:
        format = format_of_suffix(os.fspath(path))
        if format is None or FORMATS[format].render is None:
            known = [suffix for kind in FORMATS.values() if kind.render for suffix in kind.suffixes]
            raise ConfigError(
                f"{os.fspath(path)}: the suffix must be one of {', '.join(known)}, or pass format=..."
            )
    text = render_hierarchy(hierarchy, format)
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(
            f"{os.fspath(path)}: a name holds half a surrogate pair, which UTF-8 cannot hold."
        ) from error
    try:
        with atomic_path(Path(path)) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: cannot be written: {reason(error)}.") from error
