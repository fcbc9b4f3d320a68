"""From the text of a file to a hierarchy, or to one error.

Every reader takes a `SourceText` (the text and its name), writes what it finds into a `Draft` and what is wrong into
`Problems`, and goes on, so that a user sees all faults of a file at once. `build` turns a draft into a `Hierarchy`, or all
problems into one exception: `FormatError` where the text itself is broken, `HierarchyError` where the text is fine and what
it says is not a hierarchy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hace.errors import FormatError, HierarchyError, nearest
from hace.files.reading import decode, read_bytes
from hace.hierarchy import Hierarchy

# A hostile file may have a problem on every line. After this many, problems are counted but not kept.
_KEPT_PROBLEMS = 1000
_SHOWN_LENGTH = 60
_HINTED_PROBLEMS = 3


def quoted(value: object) -> str:
    """The `repr` of a value from a file, cut to a readable length; control characters are escaped by `repr`.

    Example:
        >>> quoted("dog")
        "'dog'"
        >>> len(quoted("x" * 1000)) < 80
        True
    """
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _SHOWN_LENGTH:
        text = text[:_SHOWN_LENGTH] + "..."
    return repr(text) if isinstance(value, str) else text


def similar(name: str, known: Iterable[str], problems: Problems | None = None) -> str:
    """`nearest` for names out of a file: long names, or many of them, would take minutes to compare."""
    if len(name) > _SHOWN_LENGTH or (problems is not None and problems.count >= _HINTED_PROBLEMS):
        return ""
    return nearest(name, known)


class Problems:
    """What is wrong with one source, in the order found."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._broken: list[str] = []  # the text cannot be read
        self._unfit: list[str] = []  # it can, and is not a hierarchy
        self.count = 0

    def broken(self, where: int | str | None, message: str) -> None:
        """The text breaks the rules of its format. `where` is a line number, words for a place, or None."""
        self._add(self._broken, where, message)

    def unfit(self, where: int | str | None, message: str) -> None:
        """The text is well formed, and what it says is not a hierarchy."""
        self._add(self._unfit, where, message)

    def _add(self, kind: list[str], where: int | str | None, message: str) -> None:
        self.count += 1
        if len(kind) < _KEPT_PROBLEMS:
            place = f", line {where}" if isinstance(where, int) else f", {where}" if where else ""
            kind.append(f"{self.source}{place}: {message}")

    def raise_broken(self) -> None:
        """Raises FormatError if the text broke a rule of its format."""
        if self._broken:
            raise FormatError(self._broken + self._unfit, count=self.count)

    def raise_any(self) -> None:
        """Raises FormatError or HierarchyError if anything at all was wrong."""
        self.raise_broken()
        if self._unfit:
            raise HierarchyError(self._unfit)


class SourceText:
    """A text to read, its name for messages, and the problems found in it so far.

    Args:
        data: Bytes of a file, or text.
        name: What messages call it: the path, or "text".
        encoding: How bytes without a byte order mark are decoded, instead of as UTF-8.

    Raises:
        FormatError: For data that is empty, binary or in another encoding.
    """

    def __init__(self, data: bytes | str, name: str = "text", encoding: str | None = None) -> None:
        self.name = name
        self.text = decode(data, name, encoding) if isinstance(data, bytes) else data.removeprefix("\ufeff")
        self.problems = Problems(name)
        if "\0" in self.text:
            raise FormatError(f"{name}: must be text. Got a zero at character {self.text.index(chr(0))}.")
        if not self.text.strip():
            raise FormatError(f"{name}: the file must hold a hierarchy. Got an empty file.")

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, line without its end) of every line that is not blank; any kind of line end."""
        # Not str.splitlines: it also breaks at characters such as U+2028, which may be part of a name.
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")
        return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def read_source(path: str | os.PathLike[str], encoding: str | None = None) -> SourceText:
    """The text of a file.

    Args:
        path: The file.
        encoding: As in `SourceText`.
    """
    return SourceText(read_bytes(path), os.fsdecode(path), encoding)


@dataclass
class Draft:
    """What a reader has found. `build` checks it and makes the hierarchy."""

    edges: list[tuple[str, str]] = field(default_factory=list)  # (parent, child)
    nodes: list[str] = field(default_factory=list)  # ids, also of nodes without an edge
    names: dict[str, str] = field(default_factory=dict)
    leaves: list[str] | None = None
    level_names: list[str] | None = None
    rooted: bool | None = None
    flat: bool = False  # whether the file says that it has no edges, instead of merely having none


def build(
    draft: Draft,
    problems: Problems,
    *,
    leaves: Sequence[str | int] | None = None,
    names: Mapping[str, str] | None = None,
    level_names: Sequence[str] | None = None,
    rooted: bool | None = None,
    flat: bool = False,
) -> Hierarchy:
    """The hierarchy of a draft; the options, where given, win over what the file says.

    Args:
        draft: What a reader found.
        problems: What it did not like.
        leaves: As in `read_hierarchy`.
        names: As in `read_hierarchy`.
        level_names: As in `read_hierarchy`.
        rooted: As in `read_hierarchy`.
        flat: As in `read_hierarchy`.

    Raises:
        FormatError: If the reader met broken text, or found no edge and `flat` is False.
        HierarchyError: With everything that keeps the draft from being a hierarchy.
    """
    problems.raise_broken()
    ids = {*draft.nodes, *(end for edge in draft.edges for end in edge)}
    texts = [*ids, *draft.names.values()]
    for text in [] if _encodable("".join(texts)) else texts:
        if not _encodable(text):
            problems.broken(None, f"{quoted(text)} holds half a surrogate pair, which is not a character.")
    problems.raise_broken()
    try:
        hierarchy = Hierarchy.from_edges(
            draft.edges,
            nodes=draft.nodes,
            leaves=draft.leaves if leaves is None else leaves,
            names={**draft.names, **(names or {})},
            # What the file calls its levels holds for its own root only: another one shifts all levels.
            level_names=draft.level_names if level_names is None and rooted is None else level_names,
            rooted=draft.rooted if rooted is None else rooted,
        )
    except HierarchyError as error:
        for problem in error.problems:
            problems.unfit(None, problem)
        problems.raise_any()
        raise
    problems.raise_any()
    if not draft.edges and not (flat or draft.flat):
        raise FormatError(
            f"{problems.source}: some node must be below another. Got {len(draft.nodes):,} nodes without an edge, such as "
            f"{quoted(draft.nodes[0])}. If a flat list of classes is meant, pass flat=True "
            "(on the command line: -o flat=true). If not, check the format and its options."
        )
    return hierarchy


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
