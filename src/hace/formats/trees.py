"""Trees as text: indentation and Newick.

Both are read in one pass with a stack of open nodes, never by recursion, so a hundred thousand levels are as safe as three.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hace.errors import FormatError, HierarchyError
from hace.formats.draft import Draft, Places, SourceText, quoted
from hace.hierarchy import Hierarchy

DASHED = re.compile(r"^(-+)[ \t]+(?=\S)")


def parse_indented(source: SourceText, *, ids: str = "name") -> Draft:
    """One name per line; a line that is indented deeper than the one before is below it.

    Indentation is spaces, or tabs, or dashes ("-- dog", "---- husky"); blank lines do not count.
    """
    lines = list(source.lines())
    dashed = not any(line[0] in " \t" for _, line in lines) and any(DASHED.match(line) for _, line in lines)
    places = Places()
    open_places: list[tuple[int, int]] = []  # (indentation, place) from the top down to the line before
    used = None  # the character that indents, and where it was first seen
    for number, line in lines:
        name = line.strip()
        if dashed:
            dashes = DASHED.match(line)
            width = len(dashes[1]) if dashes else 0
            name = line[dashes.end() :].strip() if dashes else name
            if not name.strip("-"):
                source.problems.broken(number, "a line of dashes without a name.")
        else:
            width = len(line) - len(line.lstrip(" \t"))
            for character in set(line[:width]):
                used = used or (character, number)
                if character != used[0]:
                    words = {" ": "spaces", "\t": "tabs"}
                    source.problems.broken(
                        number,
                        f"indents with {words[character]}, and line {used[1]} with {words[used[0]]}. "
                        "Use one of them throughout.",
                    )
        before = [w for w, _ in open_places[-4:]]
        while open_places and open_places[-1][0] > width:
            open_places.pop()
        if before and width < before[-1] and (not open_places or open_places[-1][0] < width):
            source.problems.broken(
                number,
                f"an indentation of {width} matches none of the lines above it ({', '.join(map(str, before))}). "
                "Indent siblings alike.",
            )
        if open_places and open_places[-1][0] == width:
            open_places.pop()
        below = open_places[-1][1] if open_places else -1
        open_places.append((width, places.add(name, below, number)))
    source.problems.raise_broken()
    return places.draft(ids, source.problems)


_PUNCTUATION = frozenset("(),:;")
_TOKEN = re.compile(r"[(),:;]|'[^']*(?:''[^']*)*'|[^\s()\[\]':;,]+")
_BLANKS = re.compile(r"\s*")
_BRACKET = re.compile(r"[\[\]]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_PLAIN = re.compile(r"[^\s()\[\]':;,_\ufeff]+")


def parse_newick(source: SourceText, *, ids: str = "name", internal_labels: bool = True) -> Draft:
    """Newick: "((husky,beagle)dog,cat)animal;". Several trees in one file make a forest; the last ';' may be missing.

    Labels may be quoted ('Ross''s Goose'); an underscore stays an underscore. Branch lengths and comments in
    square brackets are ignored. Internal nodes without a label get the ids node1, node2, ... in the order
    of their brackets.
    """
    labels, parents, positions = _read_brackets(source, internal_labels)
    places = Places(lambda position: _place(source, position))
    taken = set(labels)
    number = 0
    for label, below, position in zip(labels, parents, positions, strict=True):
        while not label:
            number += 1
            label = "" if f"node{number}" in taken else f"node{number}"
        places.add(label, below, position)
    return places.draft(ids, source.problems)


def _read_brackets(source: SourceText, internal_labels: bool) -> tuple[list[str], list[int], list[int]]:
    """The nodes in the order of their beginnings: labels, "" where there is none; parents, -1 for tops; positions."""
    parents: list[int] = []
    labels: list[str] = []  # "" until known: the label of an internal node follows its children
    positions: list[int] = []

    def add(position: int, label: str) -> int:
        parents.append(innermost)
        labels.append(label)
        positions.append(position)
        return len(parents) - 1

    def expected(what: str) -> FormatError:
        return FormatError(f"{source.name}, {_place(source, at)}: expected {what}, got {quoted(token)}.")

    innermost = -1  # the innermost open bracket
    node = -1  # the node whose label or length may follow
    state = "start"  # then "labelled" or "closed" (by a bracket), "length" (a colon was read), "measured"
    for token, at in _tokens(source):
        if state == "start":
            if token == "(":
                innermost = add(at, "")
                continue
            label = _label(token)
            if token in _PUNCTUATION or not label:
                raise expected("'(' or the label of a leaf")
            node = add(at, label)
            state = "labelled"
        elif state == "length":
            if not _NUMBER.fullmatch(token):
                raise expected("a branch length after ':'")
            state = "measured"
        elif token not in _PUNCTUATION and state == "closed":
            labels[node] = _label(token) if internal_labels else ""
            state = "labelled"
        elif token not in _PUNCTUATION or token == "(":
            raise expected("',', ')' or ';' (put a label with blanks or brackets in single quotes)")
        elif token == ":" and state != "measured":
            state = "length"
        elif token == ";" and innermost < 0:
            state = "start"
        elif token == ")" and innermost >= 0:
            node = innermost
            innermost = parents[innermost]
            state = "closed"
        elif token == "," and innermost >= 0:
            state = "start"
        else:
            raise expected("')'" if token == ";" else "';'" if innermost < 0 else "',', ')' or ';'")
    if innermost >= 0:
        place = _place(source, positions[innermost])
        raise FormatError(f"{source.name}, {place}: the text ends, and this '(' was never closed by ')'.")
    if state == "length" or not parents:
        end = _place(source, len(source.text))
        wanted = "a branch length after ':'" if parents else "a tree"
        raise FormatError(f"{source.name}, {end}: the text ends, and {wanted} must follow.")
    return labels, parents, positions


def _tokens(source: SourceText) -> Iterator[tuple[str, int]]:
    """Punctuation, labels and numbers with their positions; blanks and (nested) comments are skipped."""
    text = source.text
    position = 0
    while (position := _BLANKS.match(text, position).end()) < len(text):  # pyright: ignore[reportOptionalMemberAccess]
        token = _TOKEN.match(text, position)
        if token:
            yield token[0], position
            position = token.end()
            continue
        if text[position] != "[":
            quote = text[position] == "'"
            words = "a quoted label that never ends" if quote else "a ']' outside of any comment"
            raise FormatError(f"{source.name}, {_place(source, position)}: {words}.")
        depth = 0
        start = position
        for bracket in _BRACKET.finditer(text, position):
            depth += 1 if bracket[0] == "[" else -1
            if depth == 0:
                position = bracket.end()
                break
        if depth:
            raise FormatError(f"{source.name}, {_place(source, start)}: a comment '[' that never ends.")


def _label(token: str) -> str:
    return token[1:-1].replace("''", "'") if token[0] == "'" else token


def _place(source: SourceText, position: int) -> str:
    line = source.text.count("\n", 0, position) + 1
    column = position - (source.text.rfind("\n", 0, position) + 1) + 1
    return f"line {line}, column {column}"


def render_newick(hierarchy: Hierarchy) -> str:
    """A tree or forest in Newick, one tree per line: ids and edges, neither label order nor names."""
    if not hierarchy.is_tree:
        raise HierarchyError(
            "Newick can hold trees and forests only, and this hierarchy has nodes with several parents. "
            "Write it as json, csv or tsv."
        )
    # A quoted underscore stays one; other programs read a plain one as a blank.
    labels = [i if _PLAIN.fullmatch(i) else "'" + i.replace("'", "''") + "'" for i in hierarchy.nodes]
    ends = hierarchy.subtree_ends.tolist()
    parts: list[str] = []
    open_nodes: list[int] = []
    separator = ""
    for v in range(hierarchy.num_nodes):
        while open_nodes and ends[open_nodes[-1]] <= v:
            parts.append(")" + labels[open_nodes.pop()])
        parts.append(separator if open_nodes or not v else ";\n")
        if ends[v] > v + 1:
            open_nodes.append(v)
            parts.append("(")
            separator = ""
        else:
            parts.append(labels[v])
            separator = ","
    parts += [")" + labels[v] for v in reversed(open_nodes)]
    return "".join(parts) + ";\n"
