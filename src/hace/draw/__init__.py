"""Drawings of hierarchies: pictures (.png, .svg) and one interactive page (.html) that needs no network.

Pages need Jinja2, which comes with torch; pictures need matplotlib.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from hace.draw.layout import drawable, lay_out, page_data
from hace.errors import ConfigError, install
from hace.files.writing import atomic_path, writing

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy

DRAWN = (".html", ".svg", ".png")
__all__ = ["DRAWN", "draw_hierarchy", "drawable", "json_for_page", "lay_out", "page_data", "templates"]


def draw_hierarchy(h: Hierarchy, path: str | Path) -> None:
    """Draw a hierarchy to a file; its suffix decides how.

    Args:
        h: The hierarchy.
        path: A file named ``.html`` (one interactive page that needs no network), ``.svg`` or ``.png`` (a picture: rows
            for up to 150 classes, rings for more). An existing file is replaced.

    Raises:
        ConfigError: Another suffix, a missing folder, or no matplotlib for a picture.

    Example:
        >>> import tempfile
        >>> from hace import Hierarchy
        >>> out = Path(tempfile.mkdtemp()) / "pets.html"
        >>> draw_hierarchy(Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")]), out)
        >>> "husky" in out.read_text(encoding="utf-8")
        True
    """
    path = Path(path)
    if path.suffix.lower() not in DRAWN:
        raise ConfigError(f"path must end in one of {', '.join(DRAWN)}. Got {str(path)!r}.")
    with writing(path), atomic_path(path) as temporary:
        if path.suffix.lower() == ".html":
            page = templates().get_template("hierarchy.html").render(data=json_for_page(page_data(h)))
            temporary.write_text(page, encoding="utf-8", newline="\n")
            return
        try:
            from hace.draw.picture import write_picture
        except ImportError as error:
            raise ConfigError(
                f"A {path.suffix} picture needs matplotlib. {install('report')} Or draw to an .html file, which needs nothing."
            ) from error
        write_picture(h, temporary)


@cache
def templates(package: str = "hace.draw") -> Environment:
    """The Jinja2 templates among a package's assets. What they insert is escaped; `asset(name)` inserts a file as is."""

    def asset(name: str, package: str = package) -> str:
        return (files(package) / "assets" / name).read_text(encoding="utf-8")

    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    found = Environment(loader=FunctionLoader(asset), autoescape=True, **options)
    found.globals["asset"] = lambda *args: Markup(asset(*args))
    return found


def json_for_page(data: Any) -> str:
    """JSON for a script element: "<" is escaped, so no name can end the element or start another."""
    return Markup(json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))
