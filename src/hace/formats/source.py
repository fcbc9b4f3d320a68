"""From untrusted bytes to text, and from what is wrong with them to one error.

Every reader takes a `Source` (the text and what to call it), writes down what it finds in a `Draft` and what
it does not like in `Problems`, and goes on, so that a user sees all faults of a file at once. `build` turns a
draft into a `Hierarchy`, or everything that is wrong into one exception: `FormatError` where the text itself
is broken, `HierarchyError` where it can be read and what it says is no hierarchy.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hace.errors import SHOWN_PROBLEMS, ConfigError, FormatError, HierarchyError, nearest
from hace.hierarchy import Hierarchy

# A taxonomy of a million nodes takes about 50 MB. The bound keeps a wrong path from filling the memory.
MAX_BYTES = 1 << 30
# A hostile file may be wrong in every line. Counting goes on after this many, remembering does not.
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
        self._unfit: list[str] = []  # it can, and is no hierarchy
        self.count = 0

    def broken(self, where: int | str | None, message: str) -> None:
        """The text breaks the rules of its format. `where` is a line number, words for a place, or None."""
        self._add(self._broken, where, message)

    def unfit(self, where: int | str | None, message: str) -> None:
        """The text is well formed, and what it says is no hierarchy."""
        self._add(self._unfit, where, message)

    def _add(self, kind: list[str], where: int | str | None, message: str) -> None:
        self.count += 1
        if len(kind) < _KEPT_PROBLEMS:
            place = f", line {where}" if isinstance(where, int) else f", {where}" if where else ""
            kind.append(f"{self.source}{place}: {message}")

    def raise_broken(self) -> None:
        """Raises FormatError if the text broke a rule of its format."""
        if self._broken:
            found = self._broken + self._unfit
            if self.count == 1:
                raise FormatError(found[0])
            lines = [f"{self.count} problems:", *(f"  - {problem}" for problem in found[:SHOWN_PROBLEMS])]
            if self.count > SHOWN_PROBLEMS:
                lines.append(f"  ... and {self.count - SHOWN_PROBLEMS} more.")
            raise FormatError("\n".join(lines))

    def raise_any(self) -> None:
        """Raises FormatError or HierarchyError if anything at all was wrong."""
        self.raise_broken()
        if self._unfit:
            raise HierarchyError(self._unfit)


class Source:
    """A text to read, its name for messages, and the problems found in it so far.

    Args:
        data: Bytes of a file, or text.
        name: What messages call it: the path, or "text".
        encoding: How bytes are decoded. A byte order mark of UTF-8 is accepted and dropped.

    Raises:
        FormatError: For data that is empty, binary or in another encoding.
    """

    def __init__(self, data: bytes | str, name: str = "text", encoding: str = "utf-8") -> None:
        self.name = name
        self.text = data if isinstance(data, str) else _decoded(data, name, encoding)
        self.problems = Problems(name)
        if self.text.startswith("\ufeff"):
            self.text = self.text[1:]
        if "\0" in self.text:
            place = self.text.index("\0")
            raise FormatError(
                f"{name}: this is a binary file (a zero at character {place}); expected a text file."
            )
        if not self.text.strip():
            raise FormatError(f"{name}: the file is empty; expected a hierarchy.")

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, line without its end) of every line that is not blank; any kind of line end."""
        # Not str.splitlines: it also breaks at characters such as U+2028, which may stand inside a name.
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")
        return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _decoded(data: bytes, name: str, encoding: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") and encoding.lower().replace("_", "-") == "utf-8":
        raise FormatError(f"{name}: expected UTF-8, and the file starts with the mark of UTF-16. "
                          "Save it as UTF-8, or pass encoding='utf-16' (on the command line: -o encoding=utf-16).")  # fmt: skip
    if encoding.lower().replace("_", "-") == "utf-8" and b"\0" in data:
        place = data.index(b"\0")
        raise FormatError(
            f"{name}: this is a binary file (a zero at byte {place}); expected a text file in UTF-8."
        )
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{name}, line {line}: expected {encoding.upper()}, and byte {error.start} "
            f"(0x{data[error.start]:02x}) does not fit. Save the file as {encoding.upper()}, or pass its own "
            "encoding, for instance encoding='latin-1' (on the command line: -o encoding=latin-1)."
        ) from error
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"encoding must be the name of a text encoding such as 'utf-8', got {encoding!r}."
        ) from error


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file.

    Raises:
        FormatError: If it is missing, no regular file (a pipe would block for ever), too large, or not
            readable.
    """
    try:
        mode = os.stat(path)
        if not stat.S_ISREG(mode.st_mode):
            raise FormatError(f"{os.fspath(path)}: not a regular file.")
        if mode.st_size > MAX_BYTES:
            raise FormatError(
                f"{os.fspath(path)}: {mode.st_size:,} bytes, and a hierarchy may have {MAX_BYTES:,} at most. "
                "Is this the right file?"
            )
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{os.fspath(path)!s}: cannot be read: {reason(error)}.") from error


def reason(error: Exception) -> str:
    """The words of an operating system error, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


@dataclass
class Draft:
    """What a reader has found. `build` checks it and makes the hierarchy."""

    edges: list[tuple[str, str]] = field(default_factory=list)  # (parent, child)
    nodes: list[str] = field(default_factory=list)  # ids that may stand in no edge
    names: dict[str, str] = field(default_factory=dict)
    leaves: list[str] | None = None
    level_names: list[str] | None = None
    rooted: bool | None = None


def build(
    draft: Draft,
    problems: Problems,
    *,
    leaves: Sequence[str | int] | None = None,
    names: Mapping[str, str] | None = None,
    level_names: Sequence[str] | None = None,
    rooted: bool | None = None,
) -> Hierarchy:
    """The hierarchy of a draft; the options, where given, win over what the file says.

    Raises:
        FormatError: If the reader met broken text.
        HierarchyError: With everything that keeps the draft from being a hierarchy.
    """
    problems.raise_broken()
    ids = {*draft.nodes, *(end for edge in draft.edges for end in edge)}
    for text in (*ids, *draft.names.values()):
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
    return hierarchy


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
