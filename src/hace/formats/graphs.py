"""Graphs for programs and for the eye: JSON in and out, DOT and Mermaid out."""

from __future__ import annotations

import json
from typing import Any

from hace.errors import FormatError
from hace.formats.links import linked_nodes
from hace.formats.places import Places
from hace.formats.source import Draft, SourceText, quoted
from hace.hierarchy import Hierarchy

JSON_FORMAT = "hace-hierarchy/1"


def parse_json_graph(
    source: SourceText, *, ids: str = "name", children: str | None = None, parents: str | None = None
) -> Draft:
    """JSON in one of three shapes.

    * What `write_hierarchy` writes.
    * A nested tree {"name": ..., "children": [...]}, or a list of them. Every node has a "name", an "id" or both; other keys
      do not matter.
    * A list of nodes that name their children or parents by id, such as {"id": ..., "name": ..., "child_ids": [...]}.

    Args:
        source: The text.
        ids: For nested trees without ids: "name"; "path" where a name is at several places; "merged" where classes have the
            name of their group.
        children: For the third shape, the key that holds the ids of a node's children, where its name does not tell.
        parents: For the third shape, the key that holds the ids of a node's parents, where its name does not tell.
    """
    content = _loaded(source)
    if isinstance(content, dict) and "format" in content:
        return _own(source, content)
    trees = content if isinstance(content, list) else [content]
    linked = linked_nodes(source, trees, children, parents)
    return linked or _nested(source, trees).draft(ids, source.problems)


def _loaded(source: SourceText) -> Any:
    try:
        return json.loads(source.text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise FormatError(f"{source.name}, {place}: not valid JSON: {error.msg}.") from error
    except RecursionError as error:
        raise FormatError(
            f"{source.name}: the JSON is nested too deeply. Write so deep a tree as edges or Newick."
        ) from error
    except ValueError as error:  # a key that is there twice, NaN, a number of thousands of digits
        raise FormatError(f"{source.name}: not valid JSON: {error}.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {quoted(twice)} is there twice in one object")
    return content


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a value of JSON")


def _own(source: SourceText, content: dict[str, Any]) -> Draft:
    if content["format"] != JSON_FORMAT:
        raise FormatError(
            f"{source.name}: expected format {JSON_FORMAT!r}, got {quoted(content['format'])}. "
            "A newer hace may have written it."
        )

    def strings(value: Any, where: str) -> list[str]:
        if isinstance(value, list) and set(map(type, value)) <= {str}:
            return value
        raise FormatError(f"{source.name}: {where} must be a list of strings, got {quoted(value)}.")

    draft = Draft(leaves=strings(content.get("leaves"), "leaves"), rooted=content.get("rooted"), flat=True)
    if not isinstance(draft.rooted, bool):
        raise FormatError(f"{source.name}: rooted must be true or false, got {quoted(draft.rooted)}.")
    if content.get("level_names") is not None:
        draft.level_names = strings(content["level_names"], "level_names")
    nodes = content.get("nodes")
    if not isinstance(nodes, list):
        raise FormatError(f"{source.name}: nodes must be a list, got {quoted(nodes)}.")
    known: dict[str, int] = {}
    for number, node in enumerate(nodes):
        id = node.get("id") if isinstance(node, dict) else None
        name = node.get("name", id) if isinstance(node, dict) else None
        if not isinstance(id, str) or not id or not isinstance(name, str):
            raise FormatError(
                f"{source.name}: nodes[{number}] must have an id and a name, got {quoted(node)}."
            )
        if known.setdefault(id, number) != number:
            source.problems.unfit(None, f"the id {quoted(id)} is at nodes[{known[id]}] and nodes[{number}].")
        draft.names[id] = name
        draft.edges += [
            (parent, id) for parent in strings(node.get("parents", []), f"nodes[{number}].parents")
        ]
    for parent, child in draft.edges:
        if parent not in known:
            source.problems.unfit(
                None, f"the parent {quoted(parent)} of {quoted(child)} is unknown: no node has this id."
            )
    draft.nodes = list(known)
    return draft


def _nested(source: SourceText, trees: list[Any]) -> Places:
    places = Places()
    waiting: list[tuple[Any, int]] = [(tree, -1) for tree in reversed(trees)]
    while waiting:
        node, below = waiting.pop()
        if not isinstance(node, dict):
            raise FormatError(
                f"{source.name}: expected a node {{'name': ..., 'children': [...]}}, "
                f"got {quoted(node)} {places.below_words(below)}."
            )
        id, name = node.get("id"), node.get("name", node.get("id"))
        texts = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in (id, name)]
        if (
            not isinstance(texts[1], str)
            or not texts[1]
            or not (texts[0] is None or isinstance(texts[0], str))
        ):
            raise FormatError(
                f"{source.name}: a node {places.below_words(below)} needs a name or an id that is text; "
                f"keys found: {', '.join(map(quoted, list(node)[:10])) or 'none'}."
            )
        children = node.get("children") or []
        if not isinstance(children, list):
            raise FormatError(
                f"{source.name}: children of {quoted(name)} must be a list, got {quoted(children)}."
            )
        place = places.add(texts[1], below, id=texts[0])
        waiting += [(child, place) for child in reversed(children)]
    if not places:
        raise FormatError(f"{source.name}: the JSON holds no node.")
    return places


def render_json(hierarchy: Hierarchy) -> str:
    """Everything a hierarchy is, one node per line, so that a change shows as the line that changed."""
    parents: list[list[str]] = [[] for _ in hierarchy.nodes]
    for parent, child in hierarchy.edges.tolist():
        parents[child].append(hierarchy.nodes[parent])
    rows = [
        {"id": id, "name": name, "parents": above}
        for id, name, above in zip(hierarchy.nodes, hierarchy.names, parents, strict=True)
    ]

    def lines(items: list[Any]) -> str:
        return "[\n" + ",\n".join("    " + json.dumps(item, ensure_ascii=False) for item in items) + "\n  ]"

    level_names = None if hierarchy.level_names is None else list(hierarchy.level_names)
    return (
        "{\n"
        f'  "format": "{JSON_FORMAT}",\n'
        f'  "rooted": {json.dumps(hierarchy.rooted)},\n'
        f'  "level_names": {json.dumps(level_names, ensure_ascii=False)},\n'
        f'  "leaves": {lines(list(hierarchy.leaves))},\n'
        f'  "nodes": {lines(rows)}\n'
        "}\n"
    )


def _dot_text(text: str) -> str:
    # Graphviz reads backslashes and HTML entities inside a quoted label, so both must be masked.
    text = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(c if c.isprintable() else " " for c in text) + '"'


def render_dot(hierarchy: Hierarchy) -> str:
    """A Graphviz graph: nodes n0, n1, ... in node order with their display names; boxes are leaves."""
    lines = ["digraph hierarchy {", "  rankdir=LR;", "  node [shape=ellipse];"]
    for v, label in enumerate(hierarchy.labels.tolist()):
        shape = ", shape=box" if label >= 0 else ""
        id, name = _dot_text(hierarchy.nodes[v]), _dot_text(hierarchy.names[v])
        lines.append(f"  n{v} [label={name}, tooltip={id}{shape}];")
    lines += [f"  n{parent} -> n{child};" for parent, child in hierarchy.edges.tolist()]
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid_text(text: str) -> str:
    # Mermaid has no backslash escapes: every special character is written as a character code.
    def masked(c: str) -> str:
        if c == "\n":
            return "<br>"
        if not c.isprintable():
            return " "
        return c if c.isalnum() or c in " -_,.'" or ord(c) > 127 else f"#{ord(c)};"

    return '"' + "".join(map(masked, text)) + '"'


def render_mermaid(hierarchy: Hierarchy) -> str:
    """A Mermaid flowchart: nodes n0, n1, ... in node order with display names; leaves have round ends."""
    lines = ["flowchart LR"]
    for v, label in enumerate(hierarchy.labels.tolist()):
        name = _mermaid_text(hierarchy.names[v])
        lines.append(f"  n{v}([{name}])" if label >= 0 else f"  n{v}[{name}]")
    lines += [f"  n{parent} --> n{child}" for parent, child in hierarchy.edges.tolist()]
    return "\n".join(lines) + "\n"
