"""XML whose elements hold each other or name their parent: the tabular list of ICD-10-CM, GS1's products, JEL, SDMX code lists.

An element with a code and a title is a node, whatever it is called; what other elements hold belongs to the node around them. A
node that names its parent (an element Parent, an attribute parentCode) goes below it, where it is among its siblings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hace.errors import FormatError
from hace.formats.draft import Draft, Places, SourceText, quoted
from hace.formats.taxonomies import absent
from hace.formats.xml_tags import parse_xml

# What attributes, or elements with text alone, are called that hold an id or a name; the first one counts.
_IDS = ("code", "id", "key", "notation", "value")
_NAMES = ("title", "text", "desc", "description", "label", "name")
_NAMES_BESIDE_ID = ("title", "text", "label", "name", "desc", "description")  # a description may be long
_PARENTS = ("parent", "parentcode", "parentid")
_SHOWN = 10  # nodes of a cycle


@dataclass
class _Element:
    """An element: what it says about itself, and the nodes inside."""

    about: dict[str, str] = field(default_factory=dict)  # by the name of the attribute or element
    text: str = ""
    nodes: list[_Node] = field(default_factory=list)
    is_plain: bool = True  # no element inside


@dataclass
class _Node:
    id: str
    name: str
    nodes: list[_Node]
    parent: str  # the id of a sibling; "" if the place is the parent


def parse_nested_xml(source: SourceText, *, ids: str = "name") -> Draft:
    """Elements with a code and a title, below the ones that hold them or that they name as their parent."""
    reading = _Reading()
    parse_xml(source, reading.open, reading.close, reading.text)
    places = Places()
    missing: list[str] = []
    waiting = [(node, -1) for node in reversed(_below_parents(source, reading.above[0].nodes, missing))]
    while waiting:
        node, below = waiting.pop()
        place = places.add(node.name, below, id=node.id)
        waiting += [(child, place) for child in reversed(_below_parents(source, node.nodes, missing))]
    if not len(places):
        raise FormatError(
            f"{source.name}: must have elements with a code and a title, or a Taxonomy tag with Choice tags inside. Got none."
        )
    draft = places.draft(ids, source.problems)
    draft.notes += [absent(missing)] if missing else []
    return draft


def _below_parents(source: SourceText, nodes: list[_Node], missing: list[str]) -> list[_Node]:
    """The nodes that stay in a list; the others move below the one they name. ``missing``: ids whose parent is not there."""
    if not any(node.parent for node in nodes):
        return nodes
    known = {node.id: node for node in nodes}
    staying = [node for node in nodes if node.parent not in known or node.parent == node.id]
    moving = [node for node in nodes if node.parent in known and node.parent != node.id]
    _check_cycle(source, {node.id: node.parent for node in moving})
    missing += [node.id for node in staying if node.parent not in ("", node.id)]
    for node in moving:
        known[node.parent].nodes.append(node)
    for node in nodes:
        node.parent = ""  # this list is done, wherever the node is now
    return staying


def _check_cycle(source: SourceText, parents: Mapping[str, str]) -> None:
    """Refuse nodes that are above themselves."""
    done: set[str] = set()
    for id in parents:
        above: dict[str, None] = {}
        while id in parents and id not in done:
            if id in above:
                path = [*above][[*above].index(id) :]
                shown = " -> ".join(map(quoted, [*path[:_SHOWN], id]))
                raise FormatError(
                    f"{source.name}: nodes must not be above themselves. Got the cycle {shown}."
                )
            above[id] = None
            id = parents[id]
        done |= above.keys()


class _Reading:
    """The open elements of a pass over the document, and around them one that is none."""

    def __init__(self) -> None:
        self.above = [_Element()]

    def open(self, line: int, tag: str, attributes: Mapping[str, str]) -> None:
        self.above[-1].is_plain = False
        self.above.append(_Element({_plain(name): value.strip() for name, value in attributes.items()}))

    def text(self, characters: str) -> None:
        self.above[-1].text += characters

    def close(self, tag: str) -> None:
        element = self.above.pop()
        outer = self.above[-1]
        kind = _plain(tag)
        id, name = _id_and_name(element.about)
        text = " ".join(element.text.split())
        if kind in _PARENTS:  # SDMX: <Parent><Ref id="A"/></Parent>
            outer.about.setdefault(kind, text or id or element.about.get("ref", ""))
        elif id and name:
            parent = next((element.about[key] for key in _PARENTS if element.about.get(key)), "")
            outer.nodes.append(_Node(id, name, element.nodes, parent))
        elif element.is_plain and (kind not in outer.about or element.about.get("lang") == "en"):
            outer.about[kind] = text or (id if kind == "ref" else "")
        elif not element.is_plain:
            outer.nodes += element.nodes


def _id_and_name(about: Mapping[str, str]) -> tuple[str, str]:
    """The id and the name of an element; of two names and no id, "name" is the id, as in ICD-10-CM. "" without one."""
    id = next((about[key] for key in _IDS if about.get(key)), "")
    names = [key for key in (_NAMES_BESIDE_ID if id else _NAMES) if about.get(key)]
    if not id and len(names) > 1 and names[-1] == "name":
        id = about["name"]
    return id, about[names[0]] if names else ""


def _plain(name: str) -> str:
    """The name of a tag or attribute without what stands in front of it: title of x:Title."""
    return name.rpartition(":")[2].casefold()
