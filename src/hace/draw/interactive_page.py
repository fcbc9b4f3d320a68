"""One interactive page of a hierarchy (.html) that needs no network and no further package."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.draw.tree_layout import PALETTE, caption, drawable, lay_out
from hace.hierarchy.index import leaf_counts

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy


NUMBERS = "All names are numbers, so this drawing says little. {} FILE holds one line per node: its id, a blank, its name."
NAMING = "Run the command again with -o names=FILE."


def page_data(h: Hierarchy, title: str = "everything", naming: str = NAMING) -> dict[str, Any]:
    """What the interactive drawing (assets/hierarchy.js) needs of a hierarchy.

    Args:
        h: The hierarchy.
        title: What it is a hierarchy of; shown in the middle where there is no root.
        naming: How to give names where all of them are numbers.
    """
    cells = lay_out(h)
    return {
        "title": drawable(title),
        "caption": caption(h, cells),
        "warning": NUMBERS.format(naming) if all(name.strip().isdigit() for name in h.names) else "",
        "classes": leaf_counts(h).tolist(),
        "rooted": h.rooted,
        "levels": None if h.level_names is None else list(map(drawable, h.level_names)),
        "ids": list(map(drawable, h.nodes)),
        "names": list(map(drawable, h.names)),
        "parent": cells.parent.tolist(),
        "depth": h.depths.tolist(),
        "label": h.labels.tolist(),
        "group": cells.group.tolist(),
        "extra": cells.extra,
        "palette": PALETTE,
    }


def json_for_page(data: Any) -> str:
    """JSON for a script element: "<" is escaped, so no name can end the element or start another."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def write_page(h: Hierarchy, path: Path) -> None:
    """Draw a hierarchy to an .html file."""
    page = asset("hierarchy.html")
    parts = {
        "style": asset("hierarchy.css"),
        "script": asset("hierarchy.js"),
        "data": json_for_page(page_data(h)),
    }
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part)
    path.write_text(page, encoding="utf-8", newline="\n")


def asset(name: str, package: str = "hace.draw") -> str:
    """The text of a file in the assets of a package."""
    return (files(package) / "assets" / name).read_text(encoding="utf-8")
