"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hace.errors import ConfigError

TEMPORARY = ".hace-"  # how the folder of an unfinished file begins; one that stays behind is of a process that was killed


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A path to write to in place of `path`; what was written moves there at the end, in one step.

    A reader never sees half a file, and a writer that fails, or is stopped, leaves the old file as it was. The
    temporary file lies in the same folder and keeps the suffix, from which writers tell the format.

    Args:
        path: The file to make or to replace.

    Yields:
        The path to write to.

    Raises:
        ConfigError: The folder does not exist, or `path` is something else than a file.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_path(folder / "tree.json") as temporary:
        ...     _ = temporary.write_text("{}")
        >>> [file.name for file in folder.iterdir()]
        ['tree.json']
    """
    path = Path(path).resolve()  # a link stays, and the file it leads to is replaced
    if path.is_dir():
        raise ConfigError(f"Cannot write to {path}: it is a folder. Give the name of a file.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"Cannot write to {path}: it is a device or a pipe. Give the name of a file.")
    if not path.parent.is_dir():
        raise ConfigError(f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.")
    # mkstemp would leave the file readable by its owner only; a folder keeps the writer's usual permissions.
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        yield temporary
        os.replace(temporary, path)
