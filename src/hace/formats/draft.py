"""From the text of a file to a hierarchy, or to one error.

Every reader takes a `SourceText` (the text and its name), writes what it finds into a `Draft` and what is wrong into
`Problems`, and goes on, so that a user sees all faults of a file at once. `build` turns a draft into a `Hierarchy`, or all
problems into one exception: `FormatError` where the text itself is broken, `HierarchyError` where the text is fine and what
it says is not a hierarchy.

Indented text, Newick, nested JSON and folders all say "this name is below that one" and give no ids: `Places` collects such
names, each at its own place, and decides their ids in one way for all of these formats. (Tables of label paths go through
`Hierarchy.from_paths`, which has no use for line numbers and would be quadratic in the depth.)
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hace.checks import check_choice
from hace.errors import ConfigError, FormatError, HierarchyError, listed, nearest
from hace.files.archives import ReadMember, read_packed
from hace.files.reading import decode, read_bytes
from hace.formats.spreadsheets import read_sheet
from hace.hierarchy import Hierarchy

# A hostile file may have a problem on every line. After this many, problems are counted but not kept.
_MOST_PROBLEMS = 1000
_SHOWN_LENGTH = 60
_HINTED_PROBLEMS = 3
# Ids made of paths grow with the square of the depth: a chain of 100,000 names would take gigabytes.
_MAX_PATH_CHARACTERS = 1 << 28


def quoted(value: object) -> str:
    """The `repr` of a value from a file, cut to a readable length; control characters are escaped by `repr`."""
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
        if len(kind) < _MOST_PROBLEMS:
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
    """A text to read, its name for messages, and the problems found in it so far. Empty or binary data are an error."""

    def __init__(
        self,
        data: bytes | str,
        name: str = "text",
        encoding: str | None = None,
        others: Mapping[str, ReadMember] | None = None,
    ) -> None:
        self.name = name
        self.encoding = encoding
        self.others = others  # files of the same archive
        self.text = decode(data, name, encoding) if isinstance(data, bytes) else data.removeprefix("\ufeff")
        self.problems = Problems(name)
        if "\0" in self.text:
            raise FormatError(f"{name}: must be text. Got a zero at character {self.text.index(chr(0))}.")
        if not self.text.strip():
            raise FormatError(f"{name}: the file must hold a hierarchy. Got an empty file.")

    def beside(self, part: str, other: str) -> SourceText | None:
        """The file whose name has `other` in place of `part`, in the same folder or archive; None if there is none."""
        folder, name = os.path.split(self.name)
        name = name.replace(part, other) if part in name else f"{other}{os.path.splitext(name)[1]}"
        if self.others is not None:
            read = self.others.get(name)
            return None if read is None else SourceText(read(), os.path.join(folder, name), self.encoding)
        path = os.path.join(folder, name)
        return read_source(path, self.encoding) if os.path.isfile(path) and path != self.name else None

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, line without its end) of every line that is not blank; any kind of line end."""
        # Not str.splitlines: it also breaks at characters such as U+2028, which may be part of a name.
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")
        return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def read_source(
    path: str | os.PathLike[str], encoding: str | None = None, member: str | None = None
) -> SourceText:
    """The text of a file, or of one file in an archive (.gz, .zip, .tar, .tar.gz); `member` names it."""
    name = os.fsdecode(path)
    if name.lower().endswith(".xlsx"):
        return SourceText(read_sheet(path), name)
    packed = read_packed(path)
    if packed is None:
        if member is not None:
            raise ConfigError(f"{name}: member must be left out: the file is not an archive. Got {member!r}.")
        return SourceText(read_bytes(path), name, encoding)
    chosen = member or _main_member(packed, name)
    if chosen not in packed:
        raise ConfigError(f"{name}: member must be one of {listed(packed, 10)}. Got {chosen!r}.")
    return SourceText(packed[chosen](), os.path.join(name, chosen), encoding, packed)


_TABLES = (".csv", ".tsv", ".txt")
_HEADER = 1 << 16  # bytes that hold the header of a table


def _main_member(packed: Mapping[str, ReadMember], name: str) -> str:
    """The file of an archive that holds the hierarchy."""
    if len(packed) == 1 or "nodes.dmp" in packed:
        return "nodes.dmp" if "nodes.dmp" in packed else next(iter(packed))
    tables = [member for member in packed if member.casefold().endswith(_TABLES)]
    parents = re.compile(rb"(?i)parentNameUsageID|parentID")
    taxa = [member for member in tables if parents.search(packed[member](_HEADER).partition(b"\n")[0])]
    if len(taxa) != 1:
        raise FormatError(
            f"{name}: which file of the archive? It holds {listed(packed, 10) or 'no file that is read'}. Name one with "
            "member=... (on the command line: -o member=FILE)."
        )
    return taxa[0]


@dataclass
class Draft:
    """What a reader has found. `build` checks it and makes the hierarchy."""

    edges: list[tuple[str, str]] = field(default_factory=list)  # (parent, child)
    nodes: list[str] = field(default_factory=list)  # ids, also of nodes without an edge
    names: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, str] = field(default_factory=dict)
    synonyms: dict[str, str] = field(default_factory=dict)  # other name: id
    notes: list[str] = field(default_factory=list)  # what the reader decided, one sentence each
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
    """The hierarchy of a draft; the options of `read_hierarchy`, where given, win over what the file says."""
    problems.raise_broken()
    ids = {*draft.nodes, *(end for edge in draft.edges for end in edge)}
    texts = [*ids, *draft.names.values(), *draft.ranks.values(), *draft.synonyms]
    for text in [] if _encodable("".join(texts)) else texts:
        if not _encodable(text):
            problems.broken(None, f"{quoted(text)} holds half a surrogate pair, which is not a character.")
    problems.raise_broken()
    try:
        hierarchy = Hierarchy.from_edges(
            draft.edges,
            nodes=draft.nodes,
            leaves=draft.leaves if leaves is None else leaves,
            names={**draft.names, **names} if isinstance(names, Mapping) else names or draft.names,
            # What the file calls its levels holds for its own root only: another one shifts all levels.
            level_names=draft.level_names if level_names is None and rooted is None else level_names,
            rooted=draft.rooted if rooted is None else rooted,
            ranks=draft.ranks,
            synonyms=draft.synonyms,
        )
        hierarchy.__dict__["notes"] = tuple(draft.notes)
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


class Places:
    """Names at their places in a forest, as they were found; `locate` turns marks of places that are not lines into words."""

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
        """Gives every place its id and returns the edges."""
        check_choice("ids, for this format,", ids, ("name", "shared", "merged", "path"))
        internal = set(self.parents)
        merged = {i for i, p in enumerate(self.parents) if p >= 0 and self.names[i] == self.names[p]}
        merged = merged - set(self._ids) if ids == "merged" else set()
        chosen = self._paths(problems) if ids == "path" else self.names.copy()
        for place, own in self._ids.items():
            chosen[place] = own
        if ids != "shared":
            self._report_repeated(ids, chosen, internal, merged, problems)
        edges = ((chosen[p], chosen[i]) for i, p in enumerate(self.parents) if p >= 0 and i not in merged)
        nodes = (id for i, id in enumerate(chosen) if i not in merged)
        return Draft(
            edges=list(dict.fromkeys(edges)),
            nodes=list(dict.fromkeys(nodes)),
            names={id: name for id, name in zip(chosen, self.names, strict=True) if id != name},
        )

    def _paths(self, problems: Problems) -> list[str]:
        """The path of each place, as text."""
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
        """Note the first id that two places share, and what would make it unique."""
        first: dict[str, int] = {}
        repeated: list[tuple[int, int]] = []  # (place, the first place with the same id)
        for place, id in enumerate(chosen):
            if place not in merged and first.setdefault(id, place) != place:
                repeated.append((place, first[id]))
        for place, other in repeated[:1]:
            seen = self._where(other)
            seen = f" (line {seen})" if isinstance(seen, int) else f" ({seen})" if seen else ""
            kind = "id" if place in self._ids else "name"
            here = "an internal node" if place in internal else "a leaf"
            there = "an internal node" if other in internal else "a leaf"
            more = f" So are {len(repeated) - 1:,} more." if len(repeated) > 1 else ""
            remedy = "Ids must be unique: change one of them."
            if kind == "name":
                remedy = "Give each its own name" + (
                    ", or pass ids='path' (on the command line: -o ids=path)." if ids != "path" else "."
                )
                if ids == "name" and self.parents[place] == other:
                    remedy += " -o ids=merged makes one node of a class and the group of its name."
            if ids == "name" and self.parents[place] not in (other, self.parents[other]):
                remedy += " If it is one concept below several others, ids='shared' (-o ids=shared) makes one node of it."
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


def take_edge(
    parent: str, child: str, line: int, first_line: dict[tuple[str, str], int], problems: Problems
) -> None:
    """Remembers the line of an edge; a duplicate is a problem, and is kept once."""
    earlier = first_line.setdefault((parent, child), line)
    if earlier != line:
        words = f"the edge {quoted(parent)} -> {quoted(child)} is on line {earlier} already. Remove one."
        problems.unfit(line, words)


def upside_down(edges: list[tuple[str, str]]) -> str:
    """Words for what shows that parents are children: a tree that widens upwards, but for an edge or two."""
    children = Counter(parent for parent, _ in edges)
    parents = Counter(child for _, child in edges)
    below, count = max(parents.items(), key=lambda item: item[1], default=("", 0))
    if count < 2 or any(parent == child for parent, child in edges):
        return ""
    tops = len(children.keys() - parents.keys())
    ends = len(parents.keys() - children.keys())
    branching = sum(n > 1 for n in children.values())
    joining = sum(n > 1 for n in parents.values())
    if branching and (tops < 2 * ends or joining <= 2 * branching):
        return ""
    many = f"{quoted(below)} has {count:,} parents"
    shape = f"{tops:,} tops, {ends:,} leaves" if branching else "no node has two children"
    return f"{shape}, and {many}"
