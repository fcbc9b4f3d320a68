"""Labels as people have them (ids, paths, one column per rank) and the taxonomy that comes with them or is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hace.errors import DataError, HierarchyError
from hace.formats.given import as_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.build import PATH_MARK, path_parts
from hace.hierarchy.derived import is_above
from hace.hierarchy.names import label_nodes
from hace.linear.labels import read_labels

_IDS = ("name", "level", "path")  # from plain ids to those that no data can make ambiguous


class Labels(NamedTuple):
    """What samples are."""

    nodes: IntArray  # (M,) node indices; -1 for samples without a label
    hierarchy: Hierarchy
    notes: tuple[str, ...] = ()


def labels_of(given: Any, hierarchy: Any, source: str) -> Labels:
    """Labels (M,), or (M, ranks) from the top rank down, as nodes of the hierarchy given or of the one they spell out.

    Args:
        given: ids, paths such as "Home > Garden", node ids as integers, or a table with a column for each rank, whose last
            names may be missing: such a sample is known only coarsely.
        hierarchy: what :func:`hace.formats.given.as_hierarchy` takes; None: the labels are all there is.
        source: what messages call the labels.
    """
    names = [str(name) for name in getattr(given, "columns", ())] or None
    values = np.asarray(given, dtype=object)
    if values.ndim not in (1, 2):
        raise DataError(f"{source} must be (M,) or, by rank, (M, ranks). Got shape {values.shape}.")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
        names = None
    taxonomy = None if hierarchy is None else as_hierarchy(hierarchy)
    if values.ndim == 2:
        rows = [_trimmed(row) for row in values.tolist()]
        return _of_paths(rows, taxonomy, source, names)
    known = np.array([not _is_missing(value) for value in values.tolist()], dtype=bool)
    if not known.any():
        raise DataError(f"{source} must hold labels. Got none.")
    if taxonomy is None and any(PATH_MARK in str(value) for value in values[known]):
        rows = [path_parts(str(v)) if k else () for v, k in zip(values.tolist(), known, strict=True)]
        return _of_paths(rows, None, source, None)
    nodes = np.full(len(values), -1)
    if taxonomy is None:
        words = [_text(value) for value in values[known].tolist()]
        flat = Hierarchy.flat(sorted(set(words)))
        nodes[known] = [flat.index(word) for word in words]
        return Labels(nodes, flat, ("No taxonomy was given: classes have nothing above them.",))
    own = values[known]
    if all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in own):
        positions = own.astype(np.int64)
        nodes[known] = read_labels(positions, taxonomy).nodes_of(positions)
    else:
        nodes[known] = label_nodes(np.array([_text(v) for v in own], dtype=str), taxonomy, "id", source)
    return within_labels(nodes, taxonomy)


def _of_paths(
    rows: Sequence[tuple[str, ...]], taxonomy: Hierarchy | None, source: str, names: Sequence[str] | None
) -> Labels:
    """Labels that are paths of names; samples whose path is empty have no label."""
    if not any(rows):
        raise DataError(f"{source} must hold labels. Got none.")
    nodes = np.full(len(rows), -1)
    if taxonomy is not None:
        known = [i for i, row in enumerate(rows) if row]
        last = np.array([rows[i][-1] for i in known], dtype=str)
        nodes[known] = label_nodes(last, taxonomy, "id", source)
        return within_labels(nodes, taxonomy)
    spelled = Labels(nodes, _spelled(sorted({row for row in rows if row}), names))
    places = _places(spelled.hierarchy)
    for i, row in enumerate(rows):
        nodes[i] = places[row] if row else -1
    return spelled


def _spelled(paths: Sequence[tuple[str, ...]], names: Sequence[str] | None) -> Hierarchy:
    """The hierarchy of paths, with ids as plain as they can be."""
    for ids in _IDS[:-1]:
        try:
            return Hierarchy.from_paths(paths, ids=ids, level_names=names)
        except HierarchyError as error:
            if not any(" is at two places" in problem for problem in error.problems):
                raise
    return Hierarchy.from_paths(paths, ids=_IDS[-1], level_names=names)


def _places(h: Hierarchy) -> dict[tuple[str, ...], int]:
    """The node of each path of names; a root that all paths share is part of them."""
    nodes: dict[tuple[str, ...], int] = {}
    for v, node in enumerate(h.nodes):
        above = h.path(node)[::-1]
        nodes[tuple(h.name(u) for u in above)] = v
    return nodes


def within_labels(nodes: IntArray, h: Hierarchy) -> Labels:
    """Labels (M,), -1 for none, over the part of a taxonomy that they are in: what has no sample below it cannot be learned."""
    seen = np.unique(nodes[nodes >= 0])
    if np.isin(h.leaf_nodes, seen).all():
        return Labels(nodes, h)
    inner = [bool(is_above(h, np.full(len(seen), v), seen).sum() > 1) for v in seen]
    classes = [h.nodes[v] for v, above_another in zip(seen, inner, strict=True) if not above_another]
    part = h.subset(classes)
    place = {node: i for i, node in enumerate(part.nodes)}
    moved = np.array([place[h.nodes[v]] if v in set(seen) else -1 for v in range(h.num_nodes)])
    left = h.num_leaves - part.num_leaves
    note = f"{left:,} of {h.num_leaves:,} classes of the taxonomy have no sample and cannot be answers."
    return Labels(np.where(nodes >= 0, moved[nodes], -1), part, (note,))


def _trimmed(row: Sequence[Any]) -> tuple[str, ...]:
    """The names of a row, without the missing ones at its end; a gap inside is refused where the hierarchy is made."""
    cells = ["" if _is_missing(cell) else _text(cell) for cell in row]
    while cells and not cells[-1]:
        cells.pop()
    if "" in cells:
        raise DataError(
            f"A row of ranks must have names from the top down, with gaps only at its end. Got {tuple(row)!r}. Fill the gap, "
            "or leave that rank out."
        )
    return tuple(cells)


def _is_missing(value: Any) -> bool:
    missing = value is None or value != value or type(value).__name__ in ("NAType", "NaTType")
    return missing or (isinstance(value, str) and not value.strip())


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))  # integers in a column with gaps
    return str(value).strip()
