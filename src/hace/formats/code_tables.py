"""Tables of codes as their publishers write them: banners above the header, tiers in columns, codes whose prefixes are the
tree.

The columns are recognised by their names: an id or code, its parent, a name, and tiers ("Tier 1", "Level 2"). A code that is
its own parent is a top; so is one whose parent is not in the table, and a note says so.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hace.formats.draft import Draft, SourceText, quoted
from hace.formats.prefixes import is_code, prefix_parents
from hace.formats.taxonomies import absent, resolved

Row = tuple[int, list[str]]  # line, cells
ROWS_ABOVE = 10  # that may be above the header
ID_NAMES = (
    "unique id",
    "id",
    "uid",
    "code",
    "class id",
    "concept id",
    "identifier",
    "notation",
    "uri",
    "concept uri",
    "child id",
    "child code",
    "child uri",
)
_PARENT_NAMES = (
    "parent",
    "parents",
    "parent id",
    "parent code",
    "parent unique id",
    "parent uri",
    "parent class",
    "broader",
    "broader uri",
    "broader concept uri",
    "sub class of",
    "sub class of id",
    "sub type of",
)
NAME_NAMES = (
    "name",
    "title",
    "label",
    "preferred label",
    "pref label",
    "preferred term",
    "category",
    "term",
    "heading",
    "text",
    "description",
)
_OTHER_NAMES = ("synonyms", "synonym", "alt labels", "alt label", "non preferred terms")
_OBSOLETE_NAMES = ("obsolete", "deprecated", "is obsolete", "is deprecated")
_YES = ("true", "yes", "1")
_TIER = re.compile(r"(?:tier|level|lvl|label|l) ?(\d{1,2})(| .+)")
_SEVERAL = ("|", ";", ",", "\n")  # between the parents or synonyms in one cell
_OUTSIDE = ("http://www.w3.org/2002/07/owl#Thing",)
_CASES = re.compile(r"(?<=[a-z])(?=[A-Z])")  # preferredLabel
_TEXT = re.compile(r"[^\W\d_]{2}")
_LANGUAGE = re.compile(r"(?:(.+?) )?([a-z]{2})(?: [a-z]{2})?")  # "title en", "name en gb", "en"


@dataclass
class CodeColumns:
    """Where a code table has what; -1 where it does not."""

    header: list[str]
    id: int = -1
    parent: int = -1
    name: int = -1
    others: list[int] = field(default_factory=list)  # other names
    obsolete: int = -1
    tiers: list[int] = field(default_factory=list)  # columns, from the top down

    @property
    def is_enough(self) -> bool:
        """Whether a tree can be read from these columns."""
        return (self.id >= 0 and len(self.header) > 1) or len(self.tiers) > 1


def find_columns(rows: Iterable[Row]) -> tuple[int, CodeColumns] | None:
    """The line of the header, among the first rows, and what its columns are; None if this is not a table of codes."""
    for line, cells in islice(rows, ROWS_ABOVE):
        columns = columns_of(cells)
        if columns.is_enough:
            return line, columns
    return None


def columns_of(header: Sequence[str]) -> CodeColumns:
    """What columns with these names hold."""
    plain = [plain_name(cell) for cell in header]
    others = _column(plain, _OTHER_NAMES)
    columns = CodeColumns(
        header=[cell.strip() for cell in header],
        id=_column(plain, ID_NAMES, barred=("parent", "broader")),
        parent=_column(plain, _PARENT_NAMES),
        name=name_column(plain),
        others=[others] if others >= 0 else [],
        obsolete=_column(plain, _OBSOLETE_NAMES),
        tiers=_tiers(plain),
    )
    if columns.id >= 0 and columns.parent < 0 and columns.name < 0 and len(plain) == 2:
        columns.name = 1 - columns.id
    return columns


def name_column(plain: Sequence[str]) -> int:
    """The column of names: of several languages the English, else the first; -1 without one."""
    column = _column(plain, NAME_NAMES)
    if column >= 0:
        return column
    in_languages = [
        (i, match[1], match[2]) for i, name in enumerate(plain) if (match := _LANGUAGE.fullmatch(name))
    ]
    names = [(i, language) for i, name, language in in_languages if name in NAME_NAMES]
    names = names or [(i, language) for i, name, language in in_languages if not name and language == "en"]
    english = [i for i, language in names if language == "en"]
    return (english or [i for i, _ in names] or [-1])[0]


def _tiers(plain: Sequence[str]) -> list[int]:
    """The columns "tier 1", "tier 2", ..., in order; of several such series ("level 1 code", "level 1 name") the longest."""
    series: dict[str, list[tuple[int, int]]] = {}
    for i, name in enumerate(plain):
        if match := _TIER.fullmatch(name):
            series.setdefault(match[2], []).append((int(match[1]), i))
    longest = sorted(max(series.values(), key=len, default=[]))
    first = longest[0][0] if longest else 1
    numbers = [number for number, _ in longest]
    return (
        [i for _, i in longest] if first < 2 and numbers == list(range(first, first + len(numbers))) else []
    )


def _column(plain: Sequence[str], known: Sequence[str], barred: Sequence[str] = ()) -> int:
    """The column with one of the known names, else the only one whose name ends with such a word; -1 without one.

    PARENTID and parent_id are the same name.
    """
    together = [name.replace(" ", "") for name in plain]
    for name in (word.replace(" ", "") for word in known):
        if together.count(name) == 1:
            return together.index(name)
    ending = [
        i
        for i, name in enumerate(plain)
        if any(_ends_with(name, word) for word in known) and not name.startswith(tuple(barred) or "\0")
    ]
    return ending[0] if len(ending) == 1 else -1


def plain_name(name: str) -> str:
    """preferredLabel and Preferred_Label as "preferred label"."""
    return re.sub(r"[\W_]+", " ", _CASES.sub(" ", name)).strip().casefold()


def _ends_with(name: str, word: str) -> bool:
    """Whether a name ends with a word: "2022 naics us code", "naicscode"; a short word stands alone: not "paid"."""
    return name.endswith(word) if len(word) > 3 else name.endswith(f" {word}")


@dataclass
class _Codes:
    """What the rows of a code table say: one node for each code."""

    names: dict[str, str] = field(default_factory=dict)
    parents: dict[str, list[str]] = field(default_factory=dict)  # the cells of the parent column in its rows
    other_names: list[tuple[str, str]] = field(default_factory=list)  # (other name, code)
    conflicts: dict[int, str] = field(default_factory=dict)  # lines that give a code a second name
    without_code: int = 0  # rows
    repeated: int = 0
    obsolete: int = 0

    def notes(self) -> list[str]:
        """What became of the rows that make no node."""
        counts = {
            "rows without a code are left out": self.without_code,
            "rows that repeat a code and its name are taken as one": self.repeated,
            "obsolete rows are left out": self.obsolete,
        }
        return [f"{words}: {count:,}" for words, count in counts.items() if count]


def parse_codes(
    source: SourceText, header_line: int, columns: CodeColumns, rows: Iterable[Row], prefixes: bool
) -> Draft | None:
    """A hierarchy of codes. None if the codes do not tell their parents; ``prefixes``: they do, whatever they look like."""
    table = [(line, cells) for line, cells in rows if any(cells)]
    columns = _settled(columns, [cells for _, cells in table])
    codes = _read_codes(columns, table)
    draft = Draft(flat=True, names=codes.names)
    if header_line > 1:
        above = "line 1 is" if header_line == 2 else f"lines 1 to {header_line - 1} are"
        draft.notes.append(f"{above} above the header and left out")
    draft.notes += codes.notes()
    parents = codes.parents
    if prefixes or columns.parent < 0:
        by_prefix = prefix_parents(list(codes.names), made=prefixes)
        if by_prefix is None:
            return None
        parents = {code: [parent] for code, parent in by_prefix.items()}
        _note_prefixes(draft, by_prefix)
    elif columns.name < 0 and not columns.tiers:
        parents = _with_named_parents(parents)
    remedy = _by_tiers(columns) if header_line == 1 else ""
    for line, words in codes.conflicts.items():
        source.problems.unfit(line, words + remedy)
        remedy = ""  # once is enough
    draft.nodes = list(parents)
    _add_edges(draft, parents)
    draft.synonyms = resolved(codes.other_names, [*draft.nodes, *draft.names.values()])
    return draft


def _read_codes(columns: CodeColumns, table: Iterable[Row]) -> _Codes:
    """The codes of a table with their names and parents, and which rows are no nodes."""
    codes = _Codes()
    first_line: dict[str, int] = {}
    for line, cells in table:
        cells = [*cells, *[""] * (len(columns.header) - len(cells))]
        code = cells[columns.id].strip()
        if not code:
            codes.without_code += 1
            continue
        if columns.obsolete >= 0 and cells[columns.obsolete].strip().casefold() in _YES:
            codes.obsolete += 1
            continue
        name = _name(columns, cells) or code
        if code not in first_line:
            first_line[code] = line
            codes.names[code] = name
            codes.parents[code] = []
        elif name == codes.names[code]:
            codes.repeated += 1
        else:
            codes.conflicts[line] = (
                f"the code {quoted(code)} stands for {quoted(name)} here and for {quoted(codes.names[code])} on line "
                f"{first_line[code]}. A code must stand for one node: give one of them another, or remove it."
            )
            continue
        if columns.parent >= 0:
            codes.parents[code].append(cells[columns.parent].strip())
        for column in columns.others:
            codes.other_names += [(other, code) for other in _parts(cells[column], "|\n")]
    return codes


def _with_named_parents(parents: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The rows of a table of edges, with nodes that it names as parents alone."""
    named = (parent for cells in parents.values() for cell in cells for parent in _parents_in(cell, parents))
    return {**parents, **{parent: [] for parent in named if parent not in parents}}


def _by_tiers(columns: CodeColumns) -> str:
    """How to read a table by its tiers in place of its codes; "" without tiers."""
    if len(columns.tiers) < 2:
        return ""
    levels = shlex.quote("columns=" + ",".join(columns.header[i] for i in columns.tiers))
    return f" Or read the paths in its tiers (on the command line: -o {levels} -o ids=path)."


def _settled(columns: CodeColumns, table: Sequence[Sequence[str]]) -> CodeColumns:
    """The columns after a look at the cells: ids are what parents refer to, names are words."""
    id = columns.id
    if columns.parent >= 0 and id >= 0:
        parents = {cell for cell in cells_of(table, columns.parent) if cell}
        held = [len(parents.intersection(cells_of(table, i))) for i in range(len(columns.header))]
        held[columns.parent] = 0
        best = max(range(len(held)), key=held.__getitem__)
        if not held[id] and 2 * held[best] > len(parents):
            return replace(columns, id=best, others=[*columns.others, id])
    elif columns.name < 0 and not columns.tiers:
        return replace(columns, name=_words(table, len(columns.header), id))
    return columns


def _words(table: Sequence[Sequence[str]], width: int, barred: int) -> int:
    """The first column whose cells are words, most of them different; -1 without one."""
    for i in range(width):
        cells = cells_of(table, i)
        words = {cell for cell in cells if _TEXT.search(cell)}
        if i != barred and 2 * len(words) > len(cells):
            return i
    return -1


def cells_of(table: Sequence[Sequence[str]], column: int) -> list[str]:
    """The cells of a column; empty where a row is shorter, and without a column (-1)."""
    return [cells[column].strip() if 0 <= column < len(cells) else "" for cells in table]


def parse_by_content(source: SourceText, rows: Iterable[Row], prefixes: bool) -> Draft | None:
    """A table whose header is missing or says nothing, with one column of codes, which are a tree by their prefixes.

    None if it is not one.
    """
    table = [(line, [cell.strip() for cell in cells]) for line, cells in rows]
    width = len(table[0][1]) if table else 0
    if width < 2 or any(len(cells) != width for _, cells in table):
        return None
    for header_line in (0, 1):
        below = table[header_line:]
        bare = [cells for _, cells in below]
        of_codes = [i for i in range(width) if _are_codes(cells_of(bare, i))]
        if len(below) < 2 or len(of_codes) != 1:
            continue
        named = columns_of(table[0][1]).name if header_line else -1
        name = named if named not in (-1, of_codes[0]) else _words(bare, width, of_codes[0])
        columns = CodeColumns([""] * width, id=of_codes[0], name=name)
        if columns.name >= 0 and set(cells_of(bare, columns.id)).isdisjoint(cells_of(bare, columns.name)):
            draft = parse_codes(source, header_line, columns, below, prefixes)
            if draft is not None:
                return draft
    return None


def _are_codes(cells: Sequence[str]) -> bool:
    """Whether all cells are codes, most of them with a digit."""
    return all(is_code(cell.rstrip("x")) for cell in cells) and 2 * sum(map(_has_digit, cells)) > len(cells)


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def _name(columns: CodeColumns, cells: Sequence[str]) -> str:
    """The deepest tier that is filled, else the name."""
    filled = [cells[i].strip() for i in columns.tiers if i < len(cells) and cells[i].strip()]
    if filled:
        return filled[-1]
    return cells[columns.name].strip() if columns.name >= 0 else ""


def _add_edges(draft: Draft, parents: Mapping[str, Sequence[str]]) -> None:
    """Edges from what is in the columns of parents. A code that is its own parent is a top."""
    missing: list[str] = []
    some_missing = 0
    for code, cells in parents.items():
        above = dict.fromkeys(parent for cell in cells for parent in _parents_in(cell, parents))
        known = [parent for parent in above if parent in parents and parent != code]
        draft.edges += [(parent, code) for parent in known]
        if all(parent in parents for parent in above):
            continue
        if known:
            some_missing += 1
        elif code not in above:
            missing.append(code)
    if missing:
        draft.notes.append(absent(missing))
    if some_missing:
        draft.notes.append(f"nodes of which one of several parents is not in the file: {some_missing:,}")


def _parents_in(cell: str, known: Mapping[str, object]) -> Iterator[str]:
    """The parents in a cell: itself, or several with a mark in between, of which one at least is known."""
    if not cell or cell in known:
        yield from [cell] if cell else []
        return
    for mark in _SEVERAL:
        parts = list(_parts(cell, mark))
        if len(parts) > 1 and any(part in known for part in parts):
            yield from (part for part in parts if part not in _OUTSIDE)
            return
    if cell not in _OUTSIDE:
        yield cell


def _parts(cell: str, marks: str) -> Iterator[str]:
    """What stands between marks in a cell."""
    return filter(None, (part.strip() for part in re.split(f"[{re.escape(marks)}]", cell)))


def _note_prefixes(draft: Draft, parents: Mapping[str, str]) -> None:
    example = next(((code, parent) for code, parent in parents.items() if parent), None)
    if example:
        draft.notes.append(f"parents are the prefixes of the codes: {example[0]} is below {example[1]}")
