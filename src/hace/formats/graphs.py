"""Graphs: JSON in and out, nodes that name each other by id, and lines with two things each: edges, or ids with names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from hace.checks import check_choice
from hace.errors import ConfigError, FormatError, listed
from hace.files.documents import parse_json, parse_yaml
from hace.formats.code_tables import columns_of, parse_codes
from hace.formats.draft import Draft, Places, Problems, SourceText, quoted, take_edge, upside_down
from hace.formats.linked_data import is_json_ld, parse_linked_data
from hace.formats.prefixes import is_code
from hace.formats.taxonomies import absent, check_relations, json_taxonomy, resolved
from hace.hierarchy import Hierarchy

JSON_FORMAT = "hace-hierarchy/1"
_ORDERS = ("parent child", "child parent")
# Keys of JSON nodes, without underscores and hyphens, whose names tell what their ids are.
_CHILDREN = set("children child childid childids childrenid childrenids subclasses narrower hyponyms".split())
_PARENTS = set("parents parent parentid parentids parentsids superclasses broader hypernyms isa".split())
_URIS = ("uri", "@id", "iri")  # keys of ids in linked data
_ALSO = ("altNames", "altLabels", "synonyms")  # keys of other names
# Keys of ids and names in nodes that have neither an id nor a name under the usual keys.
_OTHER_IDS = ("code", "alias", "notation")
_OTHER_NAMES = ("title", "display", "label", "preferredlabel", "preflabel", "text")
_NESTED = ("concept", "childs", "subcategories")  # keys of what children is
_NO_PARENT = ("'#'", "0")  # what the parent of a top is called, as messages quote it
_INSTEAD = ("useInstead", "replacedBy", "isReplacedBy")  # keys of what took the place of an obsolete node
_USUAL = _CHILDREN | _PARENTS | {"id", "name", "uri", "@id", "iri", "@graph", *_OTHER_IDS}
_SHOWN = 3


def parse_json_graph(
    source: SourceText,
    *,
    ids: str = "name",
    children: str | None = None,
    parents: str | None = None,
    parts: bool = False,
    relations: str | None = None,
) -> Draft:
    """JSON in one of these shapes.

    * What `write_hierarchy` writes.
    * A nested tree {"name": ..., "children": [...]}, or a list of them. Every node has a "name", an "id" or both; other keys
      do not matter.
    * A list of nodes that name their children or parents by id, such as {"id": ..., "name": ..., "child_ids": [...]}; of codes
      whose prefixes are the tree; or such a list as the only one inside an object.
    * Names that hold names, {"animal": {"dog": ["husky", "beagle"], "cat": {}}}.
    * Codes with their titles, {"10": "Energy", "1010": {"name": "Energy equipment"}}, whose prefixes are the tree.
    * JSON-LD of SKOS concepts or classes, with its context inside; a code system of FHIR.
    * Categories of COCO or LVIS, the tree of Open Images (`parts` also reads its Part relations), or obographs
      (`relations` names relations to read besides is_a, such as part_of).
    """
    content = parse_json(source.text, source.name)
    if isinstance(content, dict) and content.get("format") == JSON_FORMAT:
        return _own(source, content)
    if is_json_ld(content):
        return parse_linked_data(source)
    known = json_taxonomy(source, content, parts, check_relations(relations))
    return known or _of_content(source, content, ids, children, parents)


def parse_yaml_graph(
    source: SourceText, *, ids: str = "name", children: str | None = None, parents: str | None = None
) -> Draft:
    """YAML in the shapes of JSON: nested nodes, or nodes that name their children or parents by id."""
    content = parse_yaml(source.text, source.name)
    return json_taxonomy(source, content, False, ()) or _of_content(source, content, ids, children, parents)


def _of_content(
    source: SourceText, content: Any, ids: str, children: str | None, parents: str | None
) -> Draft:
    """A draft of what JSON or YAML holds: nodes that name each other, or a nested tree."""
    if isinstance(content, dict) and "format" in content:
        return _own(source, content)
    if isinstance(content, dict) and content.get("resourceType") == "CodeSystem":
        content = content.get("concept")
    content = _nodes_of_names(content) or _only_list(content)
    _use_usual_keys(content)
    trees = content if isinstance(content, list) else _by_id(content) or _by_code(content) or [content]
    current = [node for node in trees if not _is_deprecated(node)]
    draft = _linked_nodes(source, current, children, parents) or _records(source, current)
    if draft is None:
        return _nested(source, trees).draft(ids, source.problems)
    obsolete = [node for node in trees if _is_deprecated(node)]
    if obsolete:
        draft.notes.append(f"{len(obsolete):,} obsolete terms are left out")
        replaced = [(node.get("name"), _items(_first(node, _INSTEAD))) for node in obsolete]
        pairs = [
            (name, id) for name, (*ids,) in replaced if isinstance(name, str) for id in ids if len(ids) == 1
        ]
        taken = [*draft.nodes, *draft.names.values(), *draft.synonyms]
        draft.synonyms |= resolved([p for p in pairs if p[1] in draft.nodes], taken)
    return draft


def _nodes_of_names(content: Any) -> list[dict[str, Any]] | None:
    """Nodes of an object of names that hold names: objects, lists of names, or nothing. None if it holds anything else."""
    if not isinstance(content, dict) or not any(isinstance(v, dict | list) and v for v in content.values()):
        return None
    if not _USUAL.isdisjoint(map(_normalised, content)):
        return None
    tops: list[dict[str, Any]] = []
    waiting: list[tuple[Any, list[dict[str, Any]]]] = [(content, tops)]
    while waiting:
        names, nodes = waiting.pop()
        for name in names:
            below = names[name] if isinstance(names, dict) else None
            if isinstance(name, dict):  # an object in a list
                waiting.append((name, nodes))
                continue
            if not isinstance(name, str) or not (
                below is None or below == "" or isinstance(below, dict | list)
            ):
                return None
            nodes.append({"name": name, "children": []})
            if below:
                waiting.append((below, nodes[-1]["children"]))
    return tops


def _only_list(content: Any) -> Any:
    """What is in the one list of objects that an object holds beside its own name, else the content itself."""
    if not isinstance(content, dict) or not (_USUAL - {"name", "id", "uri"}).isdisjoint(
        map(_normalised, content)
    ):
        return content
    lists = [v for v in content.values() if isinstance(v, list) and v and all(isinstance(i, dict) for i in v)]
    return lists[0] if len(lists) == 1 else content


def _use_usual_keys(content: Any) -> None:
    """Put what nodes call their code, title and concepts under id, name and children as well."""
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            plain = {_normalised(key): value for key, value in item.items()}
            code = _first(plain, _OTHER_IDS)
            title = _first(plain, _OTHER_NAMES)
            if _first(item, ("id", "name", *_URIS)) is None and _text(code) and isinstance(title, str | None):
                item["id"] = code
            if "id" in item and "name" not in item and isinstance(title, str):
                item["name"] = title
            nested = _first(plain, _NESTED)
            if isinstance(nested, list) and all(isinstance(child, dict) for child in nested):
                item.setdefault("children", nested)
            waiting += item.get("children") or [] if isinstance(item.get("children"), list) else []


def _records(source: SourceText, nodes: list[Any]) -> Draft | None:
    """Records of codes whose prefixes are the tree; None if they are not."""
    plain = [node for node in nodes if isinstance(node, dict) and all(map(_is_cell, node.values()))]
    if len(plain) < 2 or len(plain) < len(nodes):
        return None
    header = list(dict.fromkeys(key for node in plain for key in node))
    columns = columns_of(header)
    rows = [(n, [_text(node.get(key)) or "" for key in header]) for n, node in enumerate(plain, 1)]
    return parse_codes(source, 0, columns, rows, prefixes=False) if columns.id >= 0 else None


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _by_id(content: Any) -> list[Any] | None:
    """The nodes of an object that holds them by their ids; None if it is not such an object."""
    if (
        not isinstance(content, dict)
        or len(content) < 2
        or not all(isinstance(v, dict) for v in content.values())
    ):
        return None
    linked = any(_normalised(key) in _CHILDREN | _PARENTS for node in content.values() for key in node)
    if not linked:
        return None
    plain = ({k: v for k, v in node.items() if not isinstance(v, dict)} for node in content.values())
    names = map(_name, content.values())
    each = zip(content, plain, names, strict=True)
    return [{"id": id, **node, **({"name": name} if name else {})} for id, node, name in each]


def _by_code(content: Any) -> list[Any] | None:
    """The records of an object that holds titles, or records with a title, by their codes; None if it is not such an object."""
    if not isinstance(content, dict) or len(content) < 2 or not all(map(is_code, content)):
        return None
    records = [{"name": value} if isinstance(value, str) else value for value in content.values()]
    if not all(isinstance(record, dict) and all(map(_is_cell, record.values())) for record in records):
        return None
    plain = [{_normalised(key): value for key, value in record.items()} for record in records]
    titles = [_text(_first(record, ("name", *_OTHER_NAMES))) or "" for record in plain]
    if not all(titles) or not content.keys().isdisjoint(titles):  # children with their parents
        return None
    return [{"id": code, "name": title} for code, title in zip(content, titles, strict=True)]


def _is_deprecated(node: Any) -> bool:
    """Whether a node says that it is no longer used."""
    if not isinstance(node, dict):
        return False
    status = node.get("status")
    by_status = isinstance(status, str) and status.casefold() in ("deprecated", "obsolete")
    return by_status or node.get("deprecated") is True or node.get("obsolete") is True


def _own(source: SourceText, content: dict[str, Any]) -> Draft:
    """A draft of hace's own JSON."""
    if content["format"] != JSON_FORMAT:
        raise FormatError(
            f"{source.name}: expected format {JSON_FORMAT!r}, got {quoted(content['format'])}. "
            "A newer hace may have written it."
        )

    draft = Draft(
        leaves=_strings(source, content.get("leaves"), "leaves"), rooted=content.get("rooted"), flat=True
    )
    if not isinstance(draft.rooted, bool):
        raise FormatError(f"{source.name}: rooted must be true or false, got {quoted(draft.rooted)}.")
    if content.get("level_names") is not None:
        draft.level_names = _strings(source, content["level_names"], "level_names")
    nodes = content.get("nodes")
    if not isinstance(nodes, list):
        raise FormatError(f"{source.name}: nodes must be a list, got {quoted(nodes)}.")
    number_of: dict[str, int] = {}
    for number, node in enumerate(nodes):
        id = _take_own_node(source, draft, node, f"nodes[{number}]")
        if number_of.setdefault(id, number) != number:
            words = f"the id {quoted(id)} is at nodes[{number_of[id]}] and nodes[{number}]."
            source.problems.unfit(None, words)
    for parent, child in draft.edges:
        if parent not in number_of:
            words = f"the parent {quoted(parent)} of {quoted(child)} is unknown: no node has this id."
            source.problems.unfit(None, words)
    draft.nodes = list(number_of)
    return draft


def _take_own_node(source: SourceText, draft: Draft, node: Any, where: str) -> str:
    """Add name, rank, synonyms and edges of a node of hace's own JSON; returns its id."""
    id = node.get("id") if isinstance(node, dict) else None
    name = node.get("name", id) if isinstance(node, dict) else None
    if not isinstance(id, str) or not id or not isinstance(name, str):
        raise FormatError(f"{source.name}: {where} must have an id and a name, got {quoted(node)}.")
    draft.names[id] = name
    rank = node.get("rank", "")
    if not isinstance(rank, str):
        raise FormatError(f"{source.name}: {where}.rank must be text, got {quoted(rank)}.")
    if rank:
        draft.ranks[id] = rank
    draft.synonyms |= dict.fromkeys(_strings(source, node.get("synonyms", []), f"{where}.synonyms"), id)
    draft.edges += [(above, id) for above in _strings(source, node.get("parents", []), f"{where}.parents")]
    return id


def _strings(source: SourceText, value: Any, where: str) -> list[str]:
    """A list of strings of hace's own JSON, checked."""
    if isinstance(value, list) and set(map(type, value)) <= {str}:
        return value
    raise FormatError(f"{source.name}: {where} must be a list of strings, got {quoted(value)}.")


def _nested(source: SourceText, trees: list[Any]) -> Places:
    """The nodes of nested trees, at their places."""
    places = Places()
    waiting: list[tuple[Any, int]] = [(tree, -1) for tree in reversed(trees)]
    while waiting:
        node, below = waiting.pop()
        if not isinstance(node, dict):
            raise FormatError(
                f"{source.name}: expected a node {{'name': ..., 'children': [...]}}, "
                f"got {quoted(node)} {places.below_words(below)}."
            )
        if below < 0 and not any(key in node for key in ("id", "name", *_URIS)) and node.get("children"):
            waiting += [(child, -1) for child in reversed(_children(source, node, "the top"))]
            continue  # an unnamed object around the tops
        id = _first(node, ("id", *_URIS))
        name = node.get("name", id)
        texts = [_text(v) or v for v in (id, name)]
        if not isinstance(texts[1], str) or not texts[1] or not isinstance(texts[0], str | None):
            raise FormatError(
                f"{source.name}: a node {places.below_words(below)} needs a name or an id that is text; "
                f"keys found: {', '.join(map(quoted, list(node)[:10])) or 'none'}."
            )
        children = _children(source, node, quoted(name))
        place = places.add(texts[1], below, id=texts[0])
        waiting += [(child, place) for child in reversed(children)]
    if not places:
        raise FormatError(f"{source.name}: the JSON holds no node.")
    return places


def _children(source: SourceText, node: dict[str, Any], of: str) -> list[Any]:
    children = node.get("children") or []
    if not isinstance(children, list):
        raise FormatError(f"{source.name}: children of {of} must be a list, got {quoted(children)}.")
    return children


def _first(node: dict[str, Any], keys: Iterable[str]) -> Any:
    """The value of the first key that is there."""
    return next((node[key] for key in keys if key in node), None)


def _linked_nodes(source: SourceText, nodes: list[Any], children: Any, parents: Any) -> Draft | None:
    """The hierarchy of nodes that name each other; None if no node names another, as in a nested tree."""
    if children is not None and parents is not None:
        raise ConfigError("children and parents are two ways to say the same. Pass one.")
    known = _identified(source, nodes)
    asked = children if parents is None else parents
    if known is None or (asked is None and len(nodes) < 2):
        return None
    if asked is None:
        keys = [key for key, own in _keys(known).items() if own]
        named = [key for key in keys if _normalised(key) in _CHILDREN | _PARENTS]
        if not named and keys:
            raise FormatError(
                f"{source.name}: nodes name each other in {listed(keys, _SHOWN)}. Pass children={keys[0]!r} or "
                f"parents={keys[0]!r} (on the command line: -o children={keys[0]} or -o parents={keys[0]})."
            )
        if not named:
            return None
        asked = min(named, key=lambda key: _normalised(key) not in _CHILDREN)
        parents = None if _normalised(asked) in _CHILDREN else asked
    return _draft(source, known, asked, upward=parents is not None)


def _identified(source: SourceText, nodes: list[Any]) -> dict[str, dict[str, Any]] | None:
    """Nodes by id; None where they are not a list of nodes with ids, or hold each other."""
    known: dict[str, dict[str, Any]] = {}
    for node in nodes:
        if not isinstance(node, dict) or any(
            isinstance(item, dict) and not _is_reference(item)
            for key, value in node.items()
            for item in (
                _items(value) if _normalised(key) in _CHILDREN | _PARENTS or "children" in node else ()
            )
        ):
            return None
        if not (id := _text(_first(node, ("id", *_URIS, "name")))):
            return None
        if id in known:
            source.problems.unfit(None, f"the id {quoted(id)} is there twice. Ids must be unique.")
        known.setdefault(id, node)
    return known


def _is_reference(item: dict[str, Any]) -> bool:
    """Whether an object only says which other node is meant, as {"uri": ..., "name": ...}."""
    return _first(item, ("id", *_URIS)) is not None and set(item) <= {"id", "name", *_URIS}


def _reference(item: Any) -> str | None:
    """The id of the node that an item names."""
    return _text(_first(item, ("id", *_URIS)) if isinstance(item, dict) else item)


def _keys(known: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Keys that hold text or lists of text; whether they name other nodes, all of them or by the key's own name most."""
    right: dict[str, int] = {}
    wrong: dict[str, int] = {}
    for id, node in known.items():
        for key, value in node.items():
            for item in _items(value) if key not in ("id", "name", *_URIS) else ():
                counts = right if _reference(item) in known and _reference(item) != id else wrong
                counts[key] = counts.get(key, 0) + 1
    return {key: not wrong.get(key) or _normalised(key) in _CHILDREN | _PARENTS for key in right}


def _draft(source: SourceText, known: dict[str, dict[str, Any]], key: str, *, upward: bool) -> Draft:
    """A draft of nodes that name those below them, or with ``upward`` those above."""
    draft = Draft(nodes=list(known))
    unknown: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []  # name, id
    for id, node in known.items():
        if name := _name(node):
            draft.names[id] = name
        others += [(other, id) for key in _ALSO for other in _items(node.get(key)) if isinstance(other, str)]
        for item in _items(node.get(key)):
            other = _reference(item)
            if other is None or other not in known:
                unknown.append((quoted(item), id))
            elif other != id:  # a top may be its own parent
                draft.edges.append((other, id) if upward else (id, other))
    if not draft.edges and not unknown:
        raise ConfigError(f"{source.name}: some node must have the key {key!r} with another's id. Got none.")
    draft.edges = list(dict.fromkeys(draft.edges))
    if upward and draft.edges:
        below = {child for _, child in draft.edges}
        tops = [id for item, id in dict.fromkeys(unknown) if id not in below and item not in _NO_PARENT]
        draft.notes += [absent(tops)] if tops else []
        unknown = []
    for other, id in unknown[:_SHOWN]:
        source.problems.unfit(None, f"{key} of {quoted(id)} names {other}, and no node has this id.")
    if len(unknown) > _SHOWN:
        source.problems.unfit(None, f"{len(unknown) - _SHOWN:,} more names in {key} are unknown.")
    draft.synonyms = resolved(others, [*draft.nodes, *draft.names.values()])
    return draft


def _name(node: dict[str, Any]) -> str:
    """The name of a node, of several languages the English or the first; "" without one."""
    name = node.get("name")
    if isinstance(name, dict):
        name = name.get("en") or next(iter(name.values()), "")
    return name if isinstance(name, str) else ""


def _items(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, list) else () if value is None or value == "" else (value,)


def _text(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _normalised(key: str) -> str:
    return key.casefold().replace("_", "").replace("-", "")


def render_json(hierarchy: Hierarchy) -> str:
    """Everything a hierarchy is, one node per line, so that a change shows as the line that changed."""
    parents: list[list[str]] = [[] for _ in hierarchy.nodes]
    for parent, child in hierarchy.edges.tolist():
        parents[child].append(hierarchy.nodes[parent])
    rows: list[dict[str, Any]] = [
        {"id": id, "name": name, "parents": above}
        for id, name, above in zip(hierarchy.nodes, hierarchy.names, parents, strict=True)
    ]
    for row, rank in zip(rows, hierarchy.ranks or (), strict=False):
        row |= {"rank": rank} if rank else {}
    for name, id in hierarchy.synonyms.items():
        rows[hierarchy.index(id)].setdefault("synonyms", []).append(name)

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


def parse_edges(source: SourceText, *, order: str | None = None) -> Draft:
    """Two ids per line, separated by blanks, or by a tab where the ids themselves hold blanks."""
    asked = _order(order)
    pairs: list[tuple[int, str, str]] = []
    for number, line in source.lines():
        ends = [end.strip() for end in line.split("\t")] if "\t" in line.strip() else line.split()
        if len(ends) != 2 or not all(ends):
            source.problems.broken(
                number,
                f"expected two ids ({asked}), got {len(ends)}: {quoted(line.strip())}. "
                "Separate ids that hold blanks by one tab.",
            )
            continue
        pairs.append((number, ends[0], ends[1]))
    return draft_of_pairs(pairs, order, source.problems)


def draft_of_pairs(pairs: list[tuple[int, str, str]], order: str | None, problems: Problems) -> Draft:
    """The edges of a file without a header, from (line, one id, the other id); `order` is as in `parse_edges`."""
    asked = _order(order)
    first_line: dict[tuple[str, str], int] = {}
    for number, first, second in pairs:
        parent, child = (first, second) if asked == _ORDERS[0] else (second, first)
        take_edge(parent, child, number, first_line, problems)
    if order is None and not problems.count:
        _refuse_no_hierarchy(list(first_line), problems)
    return Draft(edges=list(first_line))


def _order(order: str | None) -> str:
    asked = _ORDERS[0] if order is None else order.replace("-", " ")
    check_choice("order", asked, _ORDERS)
    return asked


def _refuse_no_hierarchy(edges: list[tuple[str, str]], problems: Problems) -> None:
    """Lines in the other order, and lists of ids with names, read as edges too; both show in the numbers."""
    swapped = upside_down(edges)
    if swapped:
        problems.broken(
            None,
            f"this looks like 'child parent' lines: {swapped}. Pass order='child parent' (on the command line: "
            "-o order=child-parent), or order='parent child' if it is right as it is.",
        )
        return
    parents = {parent for parent, _ in edges}
    children = {child for _, child in edges}
    if 1 < len(edges) == len(parents) and parents.isdisjoint(children):
        problems.broken(
            None,
            f"these {len(edges):,} pairs have no node in common, so this is not a hierarchy; is it a list of ids and names? "
            "That goes with a hierarchy as names=... (on the command line: -o names=FILE).",
        )


def parse_names(source: SourceText) -> dict[str, str]:
    """The display names of an "id name" file: the id ends at the first blank, in a .csv at the first comma."""
    mark = "," if source.name.lower().endswith(".csv") else None
    names: dict[str, str] = {}
    first_line: dict[str, int] = {}
    for number, line in source.lines():
        id, *rest = line.split(mark, maxsplit=1)
        earlier = first_line.setdefault(id, number)
        if earlier != number:
            source.problems.unfit(number, f"the id {quoted(id)} has a name on line {earlier} already.")
        names[id] = rest[0].strip() if rest else id
    source.problems.raise_any()
    return names
