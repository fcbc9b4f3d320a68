"""XML whose elements hold each other: the tabular list of ICD-10-CM, GS1's products, JEL.

An element with a code and a title is a node, whatever it is called; what other elements hold belongs to the node around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hace.errors import FormatError
from hace.formats.draft import Draft, Places, SourceText
from hace.formats.xml_tags import parse_xml

# What attributes, or elements with text alone, are called that hold an id or a name; the first one counts.
_IDS = ("code", "id", "key", "notation", "value")
_NAMES = ("title", "text", "desc", "description", "label", "name")


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


def parse_nested_xml(source: SourceText, *, ids: str = "name") -> Draft:
    """Elements with a code and a title, below the ones that hold them."""
    reading = _Reading()
    parse_xml(source, reading.open, reading.close, reading.text)
    places = Places()
    waiting = [(node, -1) for node in reversed(reading.above[0].nodes)]
    while waiting:
        node, below = waiting.pop()
        place = places.add(node.name, below, id=node.id)
        waiting += [(child, place) for child in reversed(node.nodes)]
    if not len(places):
        raise FormatError(
            f"{source.name}: must have elements with a code and a title, or a Taxonomy tag with Choice tags inside. Got none."
        )
    return places.draft(ids, source.problems)


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
        id, name = _id_and_name(element.about)
        if id and name:
            outer.nodes.append(_Node(id, name, element.nodes))
        elif element.is_plain:
            outer.about.setdefault(_plain(tag), " ".join(element.text.split()))
        else:
            outer.nodes += element.nodes


def _id_and_name(about: Mapping[str, str]) -> tuple[str, str]:
    """The id and the name of an element; of two names and no id, "name" is the id, as in ICD-10-CM. "" without one."""
    names = [key for key in _NAMES if about.get(key)]
    id = next((about[key] for key in _IDS if about.get(key)), "")
    if not id and len(names) > 1 and names[-1] == "name":
        id = about["name"]
    return id, about[names[0]] if names else ""


def _plain(name: str) -> str:
    """The name of a tag or attribute without what stands in front of it: title of x:Title."""
    return name.rpartition(":")[2].casefold()
