"""Drawings of a hierarchy: a picture (.png, .svg) through matplotlib, or one interactive page (.html) without it.

All of them draw a tree of cells. On a DAG every node stands below its deepest parent only, as in
:meth:`hace.Hierarchy.path`, and a "+" after the name says that it has further parents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hace.errors import ConfigError
from hace.files.writing import atomic_path, writing
from hace.hierarchy.assembly import IntArray

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy

# Tints of the eight colours of Okabe and Ito, which people with any kind of colour vision can tell apart.
PALETTE = ("#8cc5e8", "#f3c46b", "#7fcdb0", "#e6b3d0", "#f0e58a", "#9fb6dd", "#eda882", "#c9c9c9")


def draw_hierarchy(h: Hierarchy, path: str | Path) -> None:
    """Draw a hierarchy to a file, whose suffix tells how.

    Args:
        h: The hierarchy.
        path: A file named ``.html`` (one interactive page that needs no network), ``.svg`` or ``.png`` (a picture: rows
            for up to 150 classes, rings for more). An existing file is replaced.

    Raises:
        ConfigError: The suffix is another one, the folder does not exist, or matplotlib is needed and missing.

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
    if suffix not in WRITERS:
        known = ", ".join(WRITERS)
        raise ConfigError(f"path must end in one of {known}. Got {str(path)!r} instead.")
    with writing(Path(path)), atomic_path(path) as temporary:
        WRITERS[suffix](h, temporary)


class Cells(NamedTuple):
    """The tree to draw: for each node in node order its parent (-1: none), and its range among all rows."""

    parent: IntArray
    start: IntArray
    end: IntArray
    ends: (
        np.ndarray
    )  # whether nothing is drawn below it: the classes and, on a DAG, nodes whose children stand elsewhere
    group: IntArray  # colour: which branch of the first node that branches
    extra: dict[int, list[int]]  # further parents of a node, on a DAG
    rows: int


def lay_out(h: Hierarchy) -> Cells:
    """Give every node its range of rows: one for each class, at least one for an inner node."""
    parent = np.full(h.num_nodes, -1, dtype=np.int64).tolist()
    extra: dict[int, list[int]] = {}
    depths = h.depths.tolist()
    for above, v in h.edges.tolist():
        if parent[v] < 0:
            parent[v] = above
        else:  # the deepest parent, of several the first
            deeper = depths[above] > depths[parent[v]]
            extra.setdefault(v, []).append(parent[v] if deeper else above)
            parent[v] = above if deeper else parent[v]
    rows = [0] * h.num_nodes
    for v in range(h.num_nodes - 1, -1, -1):  # children first
        rows[v] = rows[v] or 1
        if parent[v] >= 0:
            rows[parent[v]] += rows[v]
    start, taken, total = [0] * h.num_nodes, [0] * h.num_nodes, 0
    for v in range(h.num_nodes):
        if parent[v] >= 0:
            start[v] = start[parent[v]] + taken[parent[v]]
            taken[parent[v]] += rows[v]
        else:
            start[v], total = total, total + rows[v]
    above, first, size = np.array(parent), np.array(start), np.array(rows)
    ends = np.ones(h.num_nodes, dtype=bool)
    ends[above[above >= 0]] = False
    return Cells(above, first, first + size, ends, _groups(above), extra, total)


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
            group[v], count = count, count + 1
        elif above >= 0:
            group[v] = group[above]
    return group


def printable(text: str) -> str:
    """The text with what no file format can show (control characters, half surrogates) replaced."""
    return re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def caption(h: Hierarchy, cells: Cells) -> str:
    """One line below or above the drawing."""
    text = repr(h)[1:-1].removeprefix("Hierarchy ")
    if cells.extra:
        text += f". Nodes with further parents, marked +, stand below their deepest one: {len(cells.extra):,}"
    return text


def page_data(h: Hierarchy) -> dict[str, Any]:
    """What the interactive drawing (assets/hierarchy.js) needs of a hierarchy."""
    cells = lay_out(h)
    return {
        "caption": caption(h, cells),
        "rooted": h.rooted,
        "levels": None if h.level_names is None else list(map(printable, h.level_names)),
        "ids": list(map(printable, h.nodes)),
        "names": list(map(printable, h.names)),
        "parent": cells.parent.tolist(),
        "depth": h.depths.tolist(),
        "label": h.labels.tolist(),
        "group": cells.group.tolist(),
        "extra": cells.extra,
        "palette": PALETTE,
    }


def json_for_page(data: Any) -> str:
    """JSON to stand in a script element: with "<" as an escape, no name can end the element or start another one."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _write_page(h: Hierarchy, path: Path) -> None:
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


def _write_picture(h: Hierarchy, path: Path) -> None:
    try:
        from hace.draw.pictures import write_picture
    except ImportError as error:
        raise ConfigError(
            f"A {path.suffix} picture needs matplotlib. Install it with: pip install 'hace[report]', "
            "or draw to a file named .html, which needs nothing."
        ) from error
    write_picture(h, path)


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    ".html": _write_page,
    ".svg": _write_picture,
    ".png": _write_picture,
}
