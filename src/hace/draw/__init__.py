"""Drawings of hierarchies: pictures (.png, .svg) and one interactive page (.html) that needs no network.

Pages need Jinja2, which comes with torch; pictures need matplotlib.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from hace.errors import ConfigError, install
from hace.files.writing import atomic_path, writing
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import leaf_counts

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
def templates(package: str = "hace.draw", *, escaped: bool = True) -> Environment:
    """The Jinja2 templates among a package's assets. What they insert is escaped; `asset(name)` inserts a file as is."""

    def asset(name: str, package: str = package) -> str:
        return (files(package) / "assets" / name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals["asset"] = lambda *args: Markup(asset(*args))
    return environment


def json_for_page(data: Any) -> str:
    """JSON for a script element: "<" is escaped, so no name can end the element or start another."""
    return Markup(json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


# Tints of the eight colours of Okabe and Ito, which people with any kind of colour vision can tell apart.
PALETTE = ("#8cc5e8", "#f3c46b", "#7fcdb0", "#e6b3d0", "#f0e58a", "#9fb6dd", "#eda882", "#c9c9c9")
NUMBERS = "All names are numbers, so this drawing says little. {} FILE holds one line per node: its id, a blank, its name."
NAMING = "Run the command again with -o names=FILE."


class Cells(NamedTuple):
    """The tree to draw: for each node in node order its parent (-1: none), and its range among all rows."""

    parent: IntArray
    start: IntArray
    end: IntArray
    ends: np.ndarray  # nothing is drawn below: classes and, on a DAG, nodes whose children are elsewhere
    group: IntArray  # colour: which branch of the first node that branches
    extra: dict[int, list[int]]  # further parents of a node, on a DAG
    rows: int


def lay_out(h: Hierarchy) -> Cells:
    """Give every node its range of rows: one for each class, at least one for an inner node."""
    parent = [-1] * h.num_nodes
    extra: dict[int, list[int]] = {}
    depths = h.depths.tolist()
    for above, v in h.edges.tolist():
        if parent[v] < 0:
            parent[v] = above
        else:  # the deepest parent, of several the first
            deeper = depths[above] > depths[parent[v]]
            extra.setdefault(v, []).append(parent[v] if deeper else above)
            parent[v] = above if deeper else parent[v]
    rows = [0] * (h.num_nodes + 1)  # the last, which a parent of -1 means, is all of them
    for v in range(h.num_nodes - 1, -1, -1):  # children first
        rows[v] = rows[v] or 1
        rows[parent[v]] += rows[v]
    start = [0] * (h.num_nodes + 1)
    taken = [0] * (h.num_nodes + 1)
    for v in range(h.num_nodes):
        start[v] = start[parent[v]] + taken[parent[v]]
        taken[parent[v]] += rows[v]
    above = np.array(parent)
    first = np.array(start[:-1])
    size = np.array(rows[:-1])
    ends = np.bincount(above + 1, minlength=h.num_nodes + 1)[1:] == 0
    return Cells(above, first, first + size, ends, _groups(above), extra, rows[-1])


def _groups(parent: IntArray) -> IntArray:
    """The branch that each node belongs to, -1 above: branches start below the first node with several children."""
    children = np.bincount(parent + 1, minlength=len(parent) + 1)  # of the virtual root, then of each node
    fork = 0
    while fork < len(children) and children[fork] == 1:
        fork = int(np.flatnonzero(parent == fork - 1)[0]) + 1
    group = np.full(len(parent), -1, dtype=np.int64)
    count = 0
    for v, above in enumerate(parent.tolist()):
        if above == fork - 1:
            group[v] = count
            count = count + 1
        elif above >= 0:
            group[v] = group[above]
    return group


def drawable(text: str) -> str:
    """The text with control characters and lone surrogates, which no file format can show, replaced."""
    return re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def caption(h: Hierarchy, cells: Cells) -> str:
    """One line below or above the drawing."""
    more = f". Nodes with further parents, marked +, are below their deepest one: {len(cells.extra):,}"
    return repr(h)[1:-1].removeprefix("Hierarchy ") + (more if cells.extra else "")


def page_data(h: Hierarchy, title: str = "everything", naming: str = NAMING) -> dict[str, Any]:
    """What the interactive drawing (assets/hierarchy.js) needs of a hierarchy."""
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
