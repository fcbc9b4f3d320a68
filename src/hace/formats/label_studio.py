"""Labelling configurations of Label Studio: a Taxonomy tag whose nested choices are the hierarchy.

A choice shows the name of its node and answers with its id (its alias), so that results name nodes whatever they are called. A
root is left out: it says nothing about a sample.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from hace.errors import FormatError, HierarchyError
from hace.formats.draft import Draft, Places, SourceText, quoted
from hace.formats.xml_tags import parse_xml
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import node_titles

# The names of the two tags, which predictions refer to.
CONTROL = "taxonomy"
OBJECT = "sample"
_NO_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def parse_label_studio(source: SourceText, *, ids: str = "name") -> Draft:
    """The choices of the first Taxonomy of a configuration; ids are aliases where there are any, else values."""
    reading = _Configuration(source)
    parse_xml(source, reading.open, reading.close)
    if not len(reading.places):
        raise FormatError(f"{source.name}: must have a Taxonomy tag with Choice tags inside. Got none.")
    source.problems.raise_broken()
    return reading.places.draft(ids, source.problems)


class _Configuration:
    """What a pass over the tags has seen."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.places = Places()
        self._open: list[int] = []  # choices from the top down
        self._depth = 0  # tags inside the Taxonomy; 0: outside

    def open(self, line: int, tag: str, attributes: Mapping[str, str]) -> None:
        """Take the start of a tag: a Choice is below the one it is in."""
        if tag == "Taxonomy" and not len(self.places):
            self._depth = 1
        elif self._depth:
            self._depth += 1
        if tag != "Choice" or not self._depth:
            return
        value = attributes.get("value", "")
        if not value.strip():
            self.source.problems.broken(line, "a Choice must have a value. Got none.")
        below = self._open[-1] if self._open else -1
        id = attributes.get("alias")
        self._open.append(self.places.add(value, below, line, id))

    def close(self, tag: str) -> None:
        """Take the end of a tag."""
        if tag == "Choice" and self._open:
            self._open.pop()
        self._depth = max(0, self._depth - 1)


def render_label_studio(hierarchy: Hierarchy) -> str:
    """A configuration for images; for texts, put a Text tag in place of the Image tag."""
    h = hierarchy.without_root()
    if not h.is_tree:
        raise HierarchyError(
            "A Taxonomy tag can hold trees and forests only, and this hierarchy has nodes with several parents. Take a tree "
            "over the same classes."
        )
    titles = node_titles(h)
    for text in (*titles, *h.nodes):
        if _NO_XML.search(text):
            raise HierarchyError(f"{quoted(text)} holds a character that XML cannot hold. Rename the node.")
    lines = [
        "<View>",
        f'  <Image name="{OBJECT}" value="$image"/>',
        f'  <Taxonomy name="{CONTROL}" toName="{OBJECT}">',
    ]
    ends = h.subtree_ends.tolist()
    open_nodes: list[int] = []
    for v, (id, title) in enumerate(zip(h.nodes, titles, strict=True)):
        while open_nodes and ends[open_nodes[-1]] <= v:
            open_nodes.pop()
            lines.append(f"{_indent(len(open_nodes))}</Choice>")
        alias = "" if id == title else f" alias={_attribute(id)}"
        inner = ends[v] > v + 1
        lines.append(
            f"{_indent(len(open_nodes))}<Choice value={_attribute(title)}{alias}{'' if inner else '/'}>"
        )
        if inner:
            open_nodes.append(v)
    lines += [f"{_indent(depth)}</Choice>" for depth in range(len(open_nodes) - 1, -1, -1)]
    return "\n".join([*lines, "  </Taxonomy>", "</View>", ""])


def _attribute(text: str) -> str:
    """A quoted attribute; white space is written as references, which parsers keep."""
    return quoteattr(text, {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _indent(depth: int) -> str:
    return "  " * min(depth + 2, 40)  # a chain of a hundred thousand nodes would take gigabytes of blanks


def choice_path(hierarchy: Hierarchy, node: str) -> list[str]:
    """The path of a node as results have it: ids from the top down, without a root; empty for the root."""
    path = list(reversed(hierarchy.path(node)))
    return path[1:] if hierarchy.rooted else path
