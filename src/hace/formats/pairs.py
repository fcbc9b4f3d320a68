"""Two things a line: an edge (two ids), or an id and its display name."""

from __future__ import annotations

from hace.errors import ConfigError
from hace.formats.source import Draft, Problems, Source, quoted

_ORDERS = ("parent child", "child parent")


def take_edge(
    parent: str, child: str, line: int, first_line: dict[tuple[str, str], int], problems: Problems
) -> None:
    """Remembers the line of an edge; one that stands twice is a problem, and is kept once."""
    earlier = first_line.setdefault((parent, child), line)
    if earlier != line:
        problems.unfit(
            line,
            f"the edge {quoted(parent)} -> {quoted(child)} stands on line {earlier} already. Remove one.",
        )


def parse_edges(source: Source, *, order: str = "parent child") -> Draft:
    """Two ids a line, divided by blanks, or by a tab where the ids themselves hold blanks.

    Args:
        source: The text.
        order: Which one stands first: "parent child" or "child parent".
    """
    if order not in _ORDERS:
        raise ConfigError(f"order must be 'parent child' or 'child parent', got {order!r}.")
    first_line: dict[tuple[str, str], int] = {}
    for number, line in source.lines():
        ends = [end.strip() for end in line.split("\t")] if "\t" in line.strip() else line.split()
        if len(ends) != 2 or not all(ends):
            source.problems.broken(
                number,
                f"expected two ids ({order}), got {len(ends)}: {quoted(line.strip())}. "
                "Ids with blanks must be divided by one tab.",
            )
            continue
        parent, child = ends if order == _ORDERS[0] else reversed(ends)
        take_edge(parent, child, number, first_line, source.problems)
    return Draft(edges=list(first_line))


def parse_names(source: Source) -> dict[str, str]:
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
