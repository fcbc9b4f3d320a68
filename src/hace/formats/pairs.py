"""Two things per line: an edge (two ids), or an id and its display name."""

from __future__ import annotations

from collections import Counter

from hace.errors import ConfigError
from hace.formats.source import Draft, Problems, SourceText, quoted

_ORDERS = ("parent child", "child parent")


def take_edge(
    parent: str, child: str, line: int, first_line: dict[tuple[str, str], int], problems: Problems
) -> None:
    """Remembers the line of an edge; a duplicate is a problem, and is kept once.

    Args:
        parent: One end.
        child: The other end.
        line: Where it is.
        first_line: The lines of the edges so far.
        problems: Where a second one is reported.
    """
    earlier = first_line.setdefault((parent, child), line)
    if earlier != line:
        problems.unfit(
            line,
            f"the edge {quoted(parent)} -> {quoted(child)} is on line {earlier} already. Remove one.",
        )


def parse_edges(source: SourceText, *, order: str | None = None) -> Draft:
    """Two ids per line, separated by blanks, or by a tab where the ids themselves hold blanks.

    Args:
        source: The text.
        order: Which one is first: "parent child" or "child parent", with a blank or a hyphen. Without it parents
            are first, and lines that make no sense that way round are refused.
    """
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
    """The edges of a file without a header.

    Args:
        pairs: (line, one id, the other id).
        order: As in `parse_edges`.
        problems: Where edges that are there twice are reported.
    """
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
    if asked not in _ORDERS:
        raise ConfigError(f"order must be 'parent child' or 'child parent'. Got {order!r}.")
    return asked


def _refuse_no_hierarchy(edges: list[tuple[str, str]], problems: Problems) -> None:
    """Lines in the other order, and lists of ids with names, read as edges too; both show in the numbers."""
    children = Counter(parent for parent, _ in edges)
    parents = Counter(child for _, child in edges)
    if len(edges) < 2 or max(children.values()) > 1 or any(parent == child for parent, child in edges):
        return
    below, count = max(parents.items(), key=lambda item: item[1])
    if count > 1:
        problems.broken(
            None,
            f"this looks like 'child parent' lines: no node has two children, and {quoted(below)} has {count:,} parents. "
            "Pass order='child parent' (on the command line: -o order=child-parent), or order='parent child' if it is "
            "right as it is.",
        )
    elif not children.keys() & parents.keys():
        problems.broken(
            None,
            f"these {len(edges):,} pairs have no node in common, so this is not a hierarchy; is it a list of ids and names? "
            "That goes with a hierarchy as names=... (on the command line: -o names=FILE).",
        )


def parse_names(source: SourceText) -> dict[str, str]:
    """The display names of an "id name" file: the id ends at the first blank, the rest is the name."""
    names: dict[str, str] = {}
    first_line: dict[str, int] = {}
    for number, line in source.lines():
        id, *rest = line.split(maxsplit=1)
        earlier = first_line.setdefault(id, number)
        if earlier != number:
            source.problems.unfit(number, f"the id {quoted(id)} has a name on line {earlier} already.")
        names[id] = rest[0].strip() if rest else id
    source.problems.raise_any()
    return names
