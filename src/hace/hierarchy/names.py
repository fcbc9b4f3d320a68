"""Columns and labels that users write, matched to a hierarchy: by id, then by a unique display name, or by their number."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from hace.checks import check_choice
from hace.errors import ConfigError, DataError, nearest
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.build import PATH_MARK, path_parts
from hace.hierarchy.derived import cached_on_hierarchy
from hace.hierarchy.hierarchy import Hierarchy, check_hierarchy

LABEL_KINDS = ("auto", "index", "id")


@cached_on_hierarchy
def known_names(hierarchy: Hierarchy) -> dict[str, int]:
    """Node index by id, by display name where only one node has it and no other has it as id, and by synonym."""
    counts = Counter(hierarchy.names)
    table = {name: hierarchy.index(id) for name, id in hierarchy.synonyms.items() if name not in counts}
    table |= {name: v for v, name in enumerate(hierarchy.names) if counts[name] == 1}
    table |= {node: v for v, node in enumerate(hierarchy.nodes)}
    return {composed(name): v for name, v in table.items() if not name.isascii()} | table


def node_of(hierarchy: Hierarchy, label: str) -> int:
    """The node index of an id, a unique name, a synonym, or a path of names ("Home > Garden > Pots"); -1 for none."""
    known = known_names(hierarchy)
    node = known.get(label, known.get(composed(label), -1))
    if node >= 0 or PATH_MARK not in label:
        return node
    h = hierarchy
    parts = path_parts(label)
    starts = [*h.tops, *(h.children(h.tops[0]) if h.rooted else ())]
    here = [v for v in starts if parts[0] in (v, h.name(v))]
    for part in parts[1:]:
        here = [child for v in here for child in h.children(v) if part in (child, h.name(child))]
    ends = set(here)
    return h.index(ends.pop()) if len(ends) == 1 else -1


def composed(name: str) -> str:
    """A name with each accented letter as one character: a Mac's folders have two for it, and look the same."""
    return unicodedata.normalize("NFC", name)


def node_titles(hierarchy: Hierarchy) -> list[str]:
    """A name for each node, in node order, none of them twice: its display name, with its id if others share the name."""
    counts = Counter(hierarchy.names)
    pairs = zip(hierarchy.names, hierarchy.nodes, strict=True)
    return [name if counts[name] == 1 else f"{name} [{node}]" for name, node in pairs]


def unknown_name_hint(hierarchy: Hierarchy, name: str) -> str:
    """The end of a message about a name that `known_names` lacks: it is ambiguous, or these are the nearest ones."""
    if name in hierarchy.names:
        return " Several nodes have that name: use ids."
    return nearest(name, known_names(hierarchy))


def label_nodes(
    values: np.ndarray,
    hierarchy: Hierarchy,
    kind: str,
    source: str,
    option: str = "--label-kind {}",
    lines: Sequence[int] | None = None,
) -> IntArray:
    """Labels of a file as node indices; messages name their `lines` in the file, or else their rows, from 0."""

    def place(row: int) -> str:
        return f"row {row}" if lines is None else f"line {lines[row]}"

    check_choice("label kind", kind, LABEL_KINDS)
    are_numbers = np.issubdtype(values.dtype, np.integer)
    if kind == "index" and not are_numbers:
        last = hierarchy.num_leaves - 1
        raise DataError(f"{source}: labels must be integers from 0 to {last}. Got {values[0]!r}.")
    words = list(map(str, values.tolist()))
    if not are_numbers or kind == "id":
        return _nodes_of_words(words, hierarchy, source, place)
    return _nodes_of_numbers(values, words, hierarchy, kind, source, option, place)


def _nodes_of_words(words: Sequence[str], h: Hierarchy, source: str, place: Callable[[int], str]) -> IntArray:
    """The nodes that labels name, by id or by unique name."""
    node_by_word = {word: node_of(h, word) for word in set(words)}
    unknown = [row for row, word in enumerate(words) if node_by_word[word] < 0]
    if unknown:
        first = words[unknown[0]]
        raise DataError(
            f"{source}: labels must be ids or unique names of the hierarchy. {len(unknown)} of {len(words)} are not; "
            f"the first is {first!r} in {place(unknown[0])}.{unknown_name_hint(h, first)}"
        )
    return np.array([node_by_word[word] for word in words], dtype=np.int64)


def _nodes_of_numbers(
    values: np.ndarray,
    words: Sequence[str],
    h: Hierarchy,
    kind: str,
    source: str,
    option: str,
    place: Callable[[int], str],
) -> IntArray:
    """The leaves that labels count from 0; with ``kind`` "auto" an error where they could be ids of other nodes."""
    last = h.num_leaves - 1
    known = known_names(h)
    outside = np.flatnonzero((values < 0) | (values > last))
    are_ids = all(word in known for word in set(words))
    if len(outside):
        hint = f" They are ids of the hierarchy: say {option.format('id')}." if are_ids else ""
        raise DataError(
            f"{source}: labels must be from 0 to {last}. {len(outside)} of {len(values)} are not; the first is "
            f"{values[outside[0]]} in {place(outside[0])}.{hint}"
        )
    if kind == "auto" and are_ids:
        both = zip(values.tolist(), words, strict=True)
        differ = [label for label, word in both if known[word] != h.leaf_nodes[label]]
        if differ:
            raise ConfigError(
                f"{source}: label {differ[0]} could be class {h.leaves[differ[0]]!r} by position or "
                f"{str(differ[0])!r} by id. Say {option.format('index')} or {option.format('id')}."
            )
    return h.leaf_nodes[values]


def listed_ids(values: np.ndarray, hierarchy: Hierarchy, taxonomy: Hierarchy, source: str) -> np.ndarray:
    """Ids of the nodes of a hierarchy for labels of a larger taxonomy: themselves, or their closest listed ancestor."""
    known = known_names(hierarchy)
    wide = known_names(taxonomy)
    node_of_word = {}
    for word in dict.fromkeys(map(str, values.tolist())):
        way = (word, *taxonomy.path(taxonomy.nodes[wide[word]])) if word in wide else (word,)
        node_of_word[word] = next((v for v in way if v in known), None)
    lost = [word for word, node in node_of_word.items() if node is None]
    if lost:
        raise DataError(
            f"{source}: labels must be in the hierarchy, or below one of its nodes in the taxonomy. Got {lost[0]!r}."
            f"{unknown_name_hint(taxonomy, lost[0])}"
        )
    return np.array([node_of_word[str(value)] for value in values.tolist()])


def score_columns(
    shape: tuple[int, ...], hierarchy: Hierarchy, outputs: str = "auto"
) -> Literal["leaves", "nodes"]:
    """Whether scores of a shape are over the leaves or over the nodes.

    Example:
        >>> score_columns((10, 2), Hierarchy.from_paths([("pet", "cat"), ("pet", "dog")]))
        'leaves'
    """
    check_hierarchy(hierarchy)
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
    wanted = list(widths) if outputs == "auto" else [outputs]
    rule = " or each of the ".join(f"{widths[what]} {what}" for what in wanted)
    remedy = "Check that the hierarchy is the one the model was trained with, with or without its root."
    for what in fitting:
        remedy = (
            f"That is the number of {what}: pass outputs={what!r} (on the command line: --outputs {what})."
        )
    raise DataError(f"scores must have one column for each of the {rule}. Got {shape[1]} columns. {remedy}")
