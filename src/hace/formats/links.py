"""JSON of other people's: a list of nodes that name their children or their parents by id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hace.errors import ConfigError, FormatError, listed
from hace.formats.source import Draft, SourceText, quoted

# Keys, without underscores and hyphens, whose names tell what their ids are.
_CHILDREN = {
    "children",
    "child",
    "childid",
    "childids",
    "childrenid",
    "childrenids",
    "subclasses",
    "narrower",
    "hyponyms",
}
_PARENTS = {
    "parents",
    "parent",
    "parentid",
    "parentids",
    "parentsids",
    "superclasses",
    "broader",
    "hypernyms",
    "isa",
}
_SHOWN = 3


def linked_nodes(
    source: SourceText, nodes: list[Any], children: str | None, parents: str | None
) -> Draft | None:
    """The hierarchy of nodes that name each other.

    Args:
        source: Where problems are reported.
        nodes: The items of a JSON list.
        children: The key that holds ids of children, or None to find it.
        parents: The key that holds ids of parents, or None to find it.

    Returns:
        None if no node names another, as in a nested tree.

    Raises:
        FormatError: Some key holds ids of other nodes, and its name does not tell of which.
        ConfigError: No node has the key that was asked for.
    """
    if children is not None and parents is not None:
        raise ConfigError("children and parents are two ways to say the same. Pass one.")
    known = _identified(source, nodes)
    asked = children if parents is None else parents
    if known is None or (asked is None and len(nodes) < 2):
        return None
    if asked is None:
        keys = [key for key, own in _keys(known).items() if own]
        named = [key for key in keys if _plain(key) in _CHILDREN | _PARENTS]
        if not named and keys:
            raise FormatError(
                f"{source.name}: nodes name each other in {listed(keys, _SHOWN)}. Pass children={keys[0]!r} or "
                f"parents={keys[0]!r} (on the command line: -o children={keys[0]} or -o parents={keys[0]})."
            )
        if not named:
            return None
        asked = min(named, key=lambda key: _plain(key) not in _CHILDREN)
        parents = None if _plain(asked) in _CHILDREN else asked
    return _draft(source, known, asked, upward=parents is not None)


def _identified(source: SourceText, nodes: list[Any]) -> dict[str, dict[str, Any]] | None:
    """Nodes by id; None where they are not a list of nodes with ids, or hold each other."""
    known: dict[str, dict[str, Any]] = {}
    for node in nodes:
        if not isinstance(node, dict) or any(
            isinstance(v, dict) for value in node.values() for v in _items(value)
        ):
            return None
        id = _text(node.get("id", node.get("name")))
        if not id:
            return None
        if id in known:
            source.problems.unfit(
                None, f"the id {quoted(id)} is there twice. Ids must be unique: change one of them."
            )
        known.setdefault(id, node)
    return known


def _keys(known: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Keys that hold text or lists of text; whether they name other nodes, all of them or by the key's own name most."""
    right: dict[str, int] = {}
    wrong: dict[str, int] = {}
    for id, node in known.items():
        for key, value in node.items():
            for item in _items(value) if key not in ("id", "name") else ():
                counts = right if _text(item) in known and _text(item) != id else wrong
                counts[key] = counts.get(key, 0) + 1
    return {key: not wrong.get(key) or _plain(key) in _CHILDREN | _PARENTS for key in right}


def _draft(source: SourceText, known: dict[str, dict[str, Any]], key: str, *, upward: bool) -> Draft:
    draft = Draft(nodes=list(known))
    unknown: list[tuple[str, str]] = []
    for id, node in known.items():
        name = node.get("name")
        if isinstance(name, str) and name:
            draft.names[id] = name
        for item in _items(node.get(key)):
            other = _text(item)
            if other is None or other not in known:
                unknown.append((quoted(item), id))
            else:
                draft.edges.append((other, id) if upward else (id, other))
    if not draft.edges and not unknown:
        raise ConfigError(
            f"{source.name}: some node must have the key {key!r} with the id of another. Got none."
        )
    for other, id in unknown[:_SHOWN]:
        source.problems.unfit(None, f"{key} of {quoted(id)} names {other}, and no node has this id.")
    if len(unknown) > _SHOWN:
        source.problems.unfit(None, f"{len(unknown) - _SHOWN:,} more names in {key} are unknown.")
    draft.edges = list(dict.fromkeys(draft.edges))
    return draft


def _items(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, list) else () if value is None or value == "" else (value,)


def _text(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _plain(key: str) -> str:
    return key.casefold().replace("_", "").replace("-", "")
