"""Trees that are written as nested names: from names to ids.

Indented text, Newick, nested JSON and folders all say "this name is below that one" and give no ids. `Places` collects such
names, each at its own place, and decides their ids in one way for all of these formats. (Tables of label paths go through
`Hierarchy.from_paths`, which has no use for line numbers and would be quadratic in the depth.)
"""

from __future__ import annotations

from collections.abc import Callable

from hace.errors import ConfigError, FormatError
from hace.formats.source import Draft, Problems, quoted

# Ids made of paths grow with the square of the depth: a chain of 100,000 names would take gigabytes.
_MAX_PATH_CHARACTERS = 1 << 28


class Places:
    """Names at their places in a forest, in the order in which they were found.

    Args:
        locate: What messages make of the mark of a place: a line number, or words. Without it marks are line
            numbers.

    Example:
        >>> places = Places()
        >>> dog = places.add("dog")
        >>> husky = places.add("husky", below=dog)
        >>> places.draft("path", Problems("text")).edges
        [('dog', 'dog/husky')]
    """

    def __init__(self, locate: Callable[[int], int | str] | None = None) -> None:
        self.names: list[str] = []
        self.parents: list[int] = []  # -1 at a top
        self._marks: list[int | None] = []
        self._locate = locate
        self._ids: dict[int, str] = {}  # places that bring their own id

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str, below: int = -1, mark: int | None = None, id: str | None = None) -> int:
        """Adds a place below another one, with the mark that locates it in the file. Returns its number."""
        self.names.append(name)
        self.parents.append(below)
        self._marks.append(mark)
        if id is not None:
            self._ids[len(self.names) - 1] = id
        return len(self.names) - 1

    def draft(self, ids: str, problems: Problems) -> Draft:
        """Gives every place its id and returns the edges.

        Args:
            ids: "name": the name is the id and must be unique. "merged": the same, but a name directly below itself is one
                node with it. "path": the names from the top down, joined by "/".
            problems: Where names at two places are reported.
        """
        if ids not in ("name", "merged", "path"):
            raise ConfigError(f"ids must be 'name', 'merged' or 'path' for this format. Got {ids!r}.")
        internal = set(self.parents)
        merged = {i for i, p in enumerate(self.parents) if p >= 0 and self.names[i] == self.names[p]}
        merged = merged - set(self._ids) if ids == "merged" else set()
        chosen = self._paths(problems) if ids == "path" else self.names.copy()
        for place, own in self._ids.items():
            chosen[place] = own
        self._report_repeated(ids, chosen, internal, merged, problems)
        return Draft(
            edges=[(chosen[p], chosen[i]) for i, p in enumerate(self.parents) if p >= 0 and i not in merged],
            nodes=[id for i, id in enumerate(chosen) if i not in merged],
            names={id: name for id, name in zip(chosen, self.names, strict=True) if id != name},
        )

    def _paths(self, problems: Problems) -> list[str]:
        lengths: list[int] = []
        for name, below in zip(self.names, self.parents, strict=True):
            lengths.append(len(name) + (lengths[below] + 1 if below >= 0 else 0))
        if sum(lengths) > _MAX_PATH_CHARACTERS:
            raise FormatError(
                f"{problems.source}: too deep for ids='path', which would take {sum(lengths):,} characters. "
                "Give the nodes names that are unique."
            )
        paths: list[str] = []
        for name, below in zip(self.names, self.parents, strict=True):
            paths.append(name if below < 0 else f"{paths[below]}/{name}")
        return paths

    def _report_repeated(
        self, ids: str, chosen: list[str], internal: set[int], merged: set[int], problems: Problems
    ) -> None:
        first: dict[str, int] = {}
        repeated: list[tuple[int, int]] = []  # (place, the first place with the same id)
        for place, id in enumerate(chosen):
            if place not in merged and first.setdefault(id, place) != place:
                repeated.append((place, first[id]))
        for place, other in repeated[:1]:
            seen = self._where(other)
            seen = f" (line {seen})" if isinstance(seen, int) else f" ({seen})" if seen else ""
            kind = "id" if place in self._ids else "name"
            here, there = ("an internal node" if p in internal else "a leaf" for p in (place, other))
            more = f" So are {len(repeated) - 1:,} more." if len(repeated) > 1 else ""
            remedy = "Ids must be unique: change one of them."
            if kind == "name":
                remedy = "Give each its own name" + (
                    ", or pass ids='path' (on the command line: -o ids=path)." if ids != "path" else "."
                )
                if ids == "name" and self.parents[place] == other:
                    remedy += " -o ids=merged makes one node of a class and the group of its name."
            problems.unfit(
                self._where(place),
                f"the {kind} {quoted(chosen[place])} is there twice: {here} {self.below_words(self.parents[place])} here, "
                f"and {there} {self.below_words(self.parents[other])}{seen}.{more} {remedy}",
            )
        problems.raise_any()  # edges between repeated ids would only show as further, puzzling problems

    def _where(self, place: int) -> int | str | None:
        mark = self._marks[place]
        return mark if mark is None or self._locate is None else self._locate(mark)

    def below_words(self, above: int) -> str:
        """Words for the position of a place whose parent is `above`."""
        return "at the top" if above < 0 else f"below {quoted(self.names[above])}"
