"""Drawing a hierarchy to a file: the suffix decides how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.draw.interactive_page import write_page
from hace.errors import ConfigError
from hace.files.writing import atomic_path, writing

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy


def draw_hierarchy(h: Hierarchy, path: str | Path) -> None:
    """Draw a hierarchy to a file; its suffix decides how.

    Args:
        h: the hierarchy.
        path: a file named ``.html`` (one interactive page that needs no network), ``.svg`` or ``.png`` (a picture: rows
            for up to 150 classes, rings for more). An existing file is replaced.

    Raises:
        ConfigError: another suffix, a missing folder, or no matplotlib for a picture.

    Example:
        >>> import tempfile
        >>> from hace import Hierarchy
        >>> out = Path(tempfile.mkdtemp()) / "pets.html"
        >>> draw_hierarchy(Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")]), out)
        >>> "husky" in out.read_text(encoding="utf-8")
        True
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in DRAWERS:
        known = ", ".join(DRAWERS)
        raise ConfigError(f"path must end in one of {known}. Got {str(path)!r}.")
    with writing(Path(path)), atomic_path(path) as temporary:
        DRAWERS[suffix](h, temporary)


def _write_picture(h: Hierarchy, path: Path) -> None:
    try:
        from hace.draw.static_picture import write_picture
    except ImportError as error:
        raise ConfigError(
            f"A {path.suffix} picture needs matplotlib. Install it with: pip install 'hace[report]', "
            "or draw to an .html file, which needs nothing."
        ) from error
    write_picture(h, path)


DRAWERS: dict[str, Callable[[Any, Path], None]] = {
    ".html": write_page,
    ".svg": _write_picture,
    ".png": _write_picture,
}
