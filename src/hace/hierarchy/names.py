"""Columns and labels that users write, matched to a hierarchy: by id, then by a unique display name, or by their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from hace.errors import ConfigError, DataError, listed, nearest
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.hierarchy import Hierarchy
from hace.hierarchy.index import derived

LABEL_KINDS = ("auto", "index", "id")


@derived
def known_names(hierarchy: Hierarchy) -> dict[str, int]:
    """Node index by id, and by display name where only one node has it and no other node has it as id."""
    counts = Counter(hierarchy.names)
    table = {name: v for v, name in enumerate(hierarchy.names) if counts[name] == 1}
    return table | {node: v for v, node in enumerate(hierarchy.nodes)}


def node_titles(hierarchy: Hierarchy) -> list[str]:
    """A name for each node, in node order, none of them twice: its display name, with its id if others share the name."""
    counts = Counter(hierarchy.names)
    pairs = zip(hierarchy.names, hierarchy.nodes, strict=True)
    return [name if counts[name] == 1 else f"{name} [{node}]" for name, node in pairs]


def unknown_name_hint(hierarchy: Hierarchy, name: str) -> str:
    """The end of a message about a name that `known_names` lacks: it is ambiguous, or these are the nearest ones."""
    return (
        " Several nodes have that name: use ids."
        if name in hierarchy.names
        else nearest(name, known_names(hierarchy))
    )


def column_places(
    columns: Sequence[str], hierarchy: Hierarchy, outputs: str, ignored: Sequence[str], source: str
) -> tuple[list[int], Literal["leaves", "nodes"]]:
    """For each leaf in label order, or each node in node order, the column that holds it."""
    stray = [c for c in ignored if c not in columns]
    if stray:
        raise ConfigError(f"{source}: there is no column {stray[0]!r} to ignore. Columns: {listed(columns)}.")
    known = known_names(hierarchy)
    kept = [(i, c) for i, c in enumerate(columns) if c not in ignored]
    repeated = [c for c, k in Counter(known.get(c, c) for _, c in kept).items() if k > 1]
    unknown = [c for _, c in kept if c not in known]
    if unknown:
        raise DataError(
            f"{source}: every column must be a class of the hierarchy. Got {listed(unknown)}."
            f"{unknown_name_hint(hierarchy, unknown[0])} Leave out other columns with --ignore-column NAME."
        )
    if repeated:
        named = repeated[0] if isinstance(repeated[0], str) else hierarchy.nodes[repeated[0]]
        raise DataError(f"{source}: each class must have one column. Got two for {named!r}.")
    place = {known[c]: i for i, c in kept}
    wanted = {"leaves": hierarchy.leaf_nodes.tolist(), "nodes": list(range(hierarchy.num_nodes))}
    for over in ("leaves", "nodes"):
        if outputs in ("auto", over) and set(place) == set(wanted[over]):
            return [place[v] for v in wanted[over]], over
    over = "leaves" if outputs != "nodes" and all(hierarchy.labels[v] >= 0 for v in place) else "nodes"
    missing = [hierarchy.nodes[v] for v in wanted[over] if v not in place]
    extra = [hierarchy.nodes[v] for v in place if v not in wanted[over]]
    what = (
        f"without a column: {listed(missing)}"
        if missing
        else f"inner nodes among the columns: {listed(extra)}"
    )
    raise DataError(
        f"{source}: scores must have a column for each of the {len(wanted['leaves'])} leaves, or for each of the "
        f"{len(wanted['nodes'])} nodes. {over.capitalize()} {what}."
    )


def label_nodes(
    values: np.ndarray, hierarchy: Hierarchy, kind: str, source: str, option: str = "--label-kind {}"
) -> IntArray:
    """Labels of a file as node indices."""
    if kind not in LABEL_KINDS:
        raise ConfigError(f"label kind must be one of {', '.join(LABEL_KINDS)}. Got {kind!r}.")
    numbers = np.issubdtype(values.dtype, np.integer)
    if kind == "index" and not numbers:
        raise DataError(
            f"{source}: labels must be integers from 0 to {hierarchy.num_leaves - 1}. Got {values[0]!r}."
        )
    words = [str(v) for v in values.tolist()]
    known = known_names(hierarchy)
    inside = numbers and bool(((values >= 0) & (values < hierarchy.num_leaves)).all())
    if kind == "auto" and inside and len(values):
        differ = [
            v for v, w in zip(values.tolist(), words, strict=True) if known.get(w) != hierarchy.leaf_nodes[v]
        ]
        if differ and all(w in known for w in set(words)):
            raise ConfigError(
                f"{source}: label {differ[0]} could be class {hierarchy.leaves[differ[0]]!r} by position or "
                f"{str(differ[0])!r} by id. Say {option.format('index')} or {option.format('id')}."
            )
    if numbers and kind != "id":
        if not inside:
            bad = np.flatnonzero((values < 0) | (values >= hierarchy.num_leaves))
            hint = (
                f" They are ids of the hierarchy: say {option.format('id')}."
                if set(words) <= set(known)
                else ""
            )
            raise DataError(
                f"{source}: labels must be from 0 to {hierarchy.num_leaves - 1}. {len(bad)} of {len(values)} are not; the "
                f"first is {values[bad[0]]} in row {bad[0]}.{hint}"
            )
        return hierarchy.leaf_nodes[values]
    bad_words = [(i, w) for i, w in enumerate(words) if w not in known]
    if bad_words:
        row, word = bad_words[0]
        raise DataError(
            f"{source}: labels must be ids or unique names of the hierarchy. {len(bad_words)} of {len(words)} are not; the "
            f"first is {word!r} in row {row}.{unknown_name_hint(hierarchy, word)}"
        )
    return np.array([known[w] for w in words], dtype=np.int64)


def subset_ids(words: Sequence[str], hierarchy: Hierarchy) -> list[str]:
    """Ids of a list of classes given by id or unique name; unknown words pass through, for the reader to refuse."""
    known = known_names(hierarchy)
    return [hierarchy.nodes[known[w]] if w in known else w for w in words]


def score_columns(
    shape: tuple[int, ...], hierarchy: Hierarchy, outputs: str = "auto"
) -> Literal["leaves", "nodes"]:
    """Whether scores of a shape are over the leaves or over the nodes.

    Example:
        >>> score_columns((10, 2), Hierarchy.from_paths([("pet", "cat"), ("pet", "dog")]))
        'leaves'
    """
    widths = {"leaves": hierarchy.num_leaves, "nodes": hierarchy.num_nodes}
    if outputs not in ("auto", *widths):
        remedy = " Pass the classes' logits instead: loss.leaf_logits(z)." if outputs == "paths" else ""
        raise ConfigError(f"outputs must be 'auto', 'leaves' or 'nodes'. Got {outputs!r}.{remedy}")
    if len(shape) != 2:
        raise DataError(f"scores must have two dimensions, samples and classes. Got shape {shape}.")
    fitting = [what for what, width in widths.items() if width == shape[1]]
    for what in fitting:
        if outputs in ("auto", what):
            return what  # type: ignore[return-value]
    if outputs == "auto":
        rule = f"one column for each of the {hierarchy.num_leaves} leaves or each of the {hierarchy.num_nodes} nodes"
    else:
        rule = f"one column for each of the {widths[outputs]} {outputs}"
    remedy = (
        f"That is the number of {fitting[0]}: pass outputs={fitting[0]!r} (on the command line: --outputs {fitting[0]})."
        if fitting
        else "Check that the hierarchy is the one the model was trained with, with or without its root."
    )
    raise DataError(f"scores must have {rule}. Got {shape[1]} columns. {remedy}")
