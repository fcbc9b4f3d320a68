"""Tables of codes as their publishers write them: banners above the header, tiers in columns, codes whose prefixes are the
tree.

The columns are recognised by their names: an id or code, its parent, a name, and tiers ("Tier 1", "Level 2"). A code that is
its own parent is a top; so is one whose parent is not in the table, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from hace.formats.draft import Draft, SourceText, quoted
from hace.formats.prefixes import is_code, prefix_parents
from hace.formats.taxonomies import absent, resolved

Row = tuple[int, list[str]]  # line, cells
_ROWS_ABOVE = 10  # that may be above the header
_ID_NAMES = (
    "unique id",
    "id",
    "code",
    "class id",
    "concept id",
    "identifier",
    "notation",
    "uri",
    "concept uri",
)
_PARENT_NAMES = (
    "parent",
    "parents",
    "parent id",
    "parent code",
    "parent unique id",
    "parentid",
    "parentcode",
    "parent class",
    "broader",
    "broader uri",
    "broader concept uri",
    "sub class of",
    "subclassof",
    "sub type of",
)
_NAME_NAMES = (
    "name",
    "title",
    "label",
    "preferred label",
    "pref label",
    "preflabel",
    "preferred term",
    "title en",
    "category",
    "term",
    "heading",
    "description",
)
_OTHER_NAMES = ("synonyms", "synonym", "alt labels", "alt label", "altlabel", "non preferred terms")
_OBSOLETE_NAMES = ("obsolete", "deprecated", "is obsolete", "is deprecated")
_YES = ("true", "yes", "1")
_TIER = re.compile(r"(?:tier|level|lvl|l)[ _]?(\d{1,2})")
_SEVERAL = ("|", ";", ",", "\n")  # between the parents or synonyms in one cell
_OUTSIDE = ("http://www.w3.org/2002/07/owl#Thing",)
_CASES = re.compile(r"(?<=[a-z])(?=[A-Z])")  # preferredLabel
_TEXT = re.compile(r"\w*[a-z]\w*", re.IGNORECASE)


@dataclass
class CodeColumns:
    """Where a code table has what; -1 where it does not."""

    header: list[str]
    id: int = -1
    parent: int = -1
    name: int = -1
    others: int = -1  # other names
    obsolete: int = -1
    tiers: list[int] = field(default_factory=list)  # columns, from the top down

    @property
    def is_enough(self) -> bool:
        """Whether a tree can be read from these columns."""
        return (self.id >= 0 and (self.parent >= 0 or self.name >= 0)) or len(self.tiers) > 1


def find_columns(rows: Iterable[Row]) -> tuple[int, CodeColumns] | None:
    """The line of the header, among the first rows, and what its columns are; None if this is not a table of codes."""
    for line, cells in islice(rows, _ROWS_ABOVE):
        columns = columns_of(cells)
        if columns.is_enough:
            return line, columns
    return None


def columns_of(header: Sequence[str]) -> CodeColumns:
    """What columns with these names hold."""
    plain = [_plain(cell) for cell in header]
    tiers = sorted((int(match[1]), i) for i, name in enumerate(plain) if (match := _TIER.fullmatch(name)))
    in_order = [number for number, _ in tiers] == list(range(1, len(tiers) + 1))
    columns = CodeColumns(
        header=[cell.strip() for cell in header],
        id=_column(plain, _ID_NAMES, barred=("parent", "broader")),
        parent=_column(plain, _PARENT_NAMES),
        name=_column(plain, _NAME_NAMES),
        others=_column(plain, _OTHER_NAMES),
        obsolete=_column(plain, _OBSOLETE_NAMES),
        tiers=[i for _, i in tiers] if in_order else [],
    )
    if columns.id >= 0 and columns.parent < 0 and columns.name < 0 and len(plain) == 2:
        columns.name = 1 - columns.id  # such as "EN"
    return columns


def _column(plain: Sequence[str], known: Sequence[str], barred: Sequence[str] = ()) -> int:
    """The column with one of the known names, else the only one whose name ends with such a word; -1 without one."""
    for name in known:
        if plain.count(name) == 1:
            return plain.index(name)
    ending = [
        i
        for i, name in enumerate(plain)
        if any(_ends_with(name, word) for word in known) and not name.startswith(tuple(barred) or "\0")
    ]
    return ending[0] if len(ending) == 1 else -1


def _plain(name: str) -> str:
    """preferredLabel and Preferred_Label as "preferred label"."""
    return re.sub(r"[\W_]+", " ", _CASES.sub(" ", name)).strip().casefold()


def _ends_with(name: str, word: str) -> bool:
    """Whether a name ends with a word: "2022 naics us code", "naicscode"; a short word stands alone: not "paid"."""
    return name.endswith(word) if len(word) > 3 else name.endswith(f" {word}")


def parse_codes(
    source: SourceText, header_line: int, columns: CodeColumns, rows: Iterable[Row], prefixes: bool
) -> Draft | None:
    """A hierarchy of codes. None if the codes do not tell their parents; ``prefixes``: they do, whatever they look like."""
    table = [(line, cells) for line, cells in rows if any(cells)]
    draft = Draft(flat=True)
    if header_line > 1:
        above = "line 1 is" if header_line == 2 else f"lines 1 to {header_line - 1} are"
        draft.notes.append(f"{above} above the header and left out")
    parents: dict[str, list[str]] = {}
    first_line: dict[str, int] = {}
    others: list[tuple[str, str]] = []
    without_code = 0
    again = 0
    obsolete = 0
    for line, cells in table:
        cells = [*cells, *[""] * (len(columns.header) - len(cells))]
        code = cells[columns.id].strip()
        if not code:
            without_code += 1
            continue
        if columns.obsolete >= 0 and cells[columns.obsolete].strip().casefold() in _YES:
            obsolete += 1
            continue
        name = _name(columns, cells) or code
        if first_line.setdefault(code, line) == line:
            draft.nodes.append(code)
            draft.names[code] = name
            parents[code] = []
        elif name != draft.names[code]:
            source.problems.unfit(
                line,
                f"the code {quoted(code)} stands for {quoted(name)} here and for {quoted(draft.names[code])} on line "
                f"{first_line[code]}. A code must stand for one node: give one of them another, or remove it.",
            )
            continue
        else:
            again += 1
        if columns.parent >= 0:
            parents[code].append(cells[columns.parent].strip())
        if columns.others >= 0:
            others += [(other, code) for other in _parts(cells[columns.others], "|\n")]
    for count, words in (
        (without_code, "rows without a code are left out"),
        (again, "rows that repeat a code and its name are taken as one"),
        (obsolete, "obsolete rows are left out"),
    ):
        if count:
            draft.notes.append(f"{words}: {count:,}")
    if prefixes or columns.parent < 0:
        by_prefix = prefix_parents(draft.nodes, made=prefixes)
        if by_prefix is None:
            return None
        parents = {code: [parent] for code, parent in by_prefix.items()}
        draft.nodes = list(parents)
        _note_prefixes(draft, by_prefix)
    _add_edges(draft, parents)
    draft.synonyms = resolved(others, [*draft.nodes, *draft.names.values()])
    return draft


def parse_without_header(source: SourceText, rows: Iterable[Row], prefixes: bool) -> Draft | None:
    """Two columns without a header, codes and names, where the codes are a tree by their prefixes. None if they are not."""
    table = [(line, [cell.strip() for cell in cells]) for line, cells in rows]
    if len(table) < 2 or any(len(cells) != 2 or not all(cells) for _, cells in table):
        return None
    for code in (0, 1):
        codes = [cells[code] for _, cells in table]
        names = [cells[1 - code] for _, cells in table]
        are_names = sum(_TEXT.search(name) is not None for name in names) * 2 > len(names)
        if not are_names or not set(codes).isdisjoint(names) or not all(map(is_code, codes)):
            continue
        if prefix_parents(list(dict.fromkeys(codes)), made=prefixes) is not None:
            columns = CodeColumns(["", ""], id=code, name=1 - code)
            return parse_codes(source, 0, columns, table, prefixes)
    return None


@dataclass
class LevelPairs:
    """Where a table has a code and a name for each level, from the top down: "Level 1 code", "Level 1 name"."""

    codes: list[int]
    names: list[int]


def find_level_pairs(header: Sequence[str]) -> LevelPairs | None:
    """The columns of codes and names by level, such as "Section code", "Section title"; None without two such pairs."""
    plain = [_plain(cell) for cell in header]
    if len(set(plain)) < len(plain):
        return None
    names = {
        name.removesuffix(f" {word}"): i
        for i, name in enumerate(plain)
        for word in _NAME_NAMES
        if name.endswith(f" {word}")
    }
    pairs = [
        (i, names[level])
        for level in names
        for i in [
            plain.index(name) for name in (level, *(f"{level} {word}" for word in _ID_NAMES)) if name in plain
        ][:1]
    ]
    pairs.sort()
    return LevelPairs([code for code, _ in pairs], [name for _, name in pairs]) if len(pairs) > 1 else None


def parse_level_pairs(columns: LevelPairs, rows: Iterable[Row]) -> Draft | None:
    """One path of codes per row. None if these are no levels: a code has two names or two parents, or a path has a gap."""
    draft = Draft()
    parents: dict[str, str] = {}
    width = max(*columns.codes, *columns.names) + 1
    for _, cells in rows:
        cells = [*(cell.strip() for cell in cells), *[""] * (width - len(cells))]
        codes = [cells[at] for at in columns.codes]
        while codes and not codes[-1]:
            codes.pop()
        above = ""
        for code, at in zip(codes, columns.names, strict=False):
            name = cells[at] or code
            if (
                not code
                or draft.names.setdefault(code, name) != name
                or parents.setdefault(code, above) != above
            ):
                return None
            above = code
    draft.nodes = list(parents)
    draft.edges = [(parent, code) for code, parent in parents.items() if parent]
    return draft if draft.edges else None


def parse_stairs(rows: Iterable[Row]) -> Draft | None:
    """Rows of one code and its name, where the column of the code is its level, as in SOC and ISIC. None if they are not.

    Rows above the first such one are left out: banners and the header.
    """
    table = [(line, [cell.strip() for cell in cells]) for line, cells in rows]
    filled = [[i for i, cell in enumerate(cells) if cell] for _, cells in table]
    name_at = max((at[-1] for at in filled[-1:] if at), default=-1)
    stairs = [
        len(at) == 2 and at[1] == name_at and is_code(cells[at[0]])
        for at, (_, cells) in zip(filled, table, strict=True)
    ]
    start = len(stairs) - next(
        (i for i, is_stair in enumerate(reversed(stairs)) if not is_stair), len(stairs)
    )
    if start > _ROWS_ABOVE or len({at[0] for at in filled[start:]}) < 2:
        return None
    draft = Draft()
    open_codes: dict[int, str] = {}  # by column
    for at, (_, cells) in zip(filled[start:], table[start:], strict=True):
        column = at[0]
        code = cells[column]
        if code in draft.names:
            return None
        open_codes = {level: above for level, above in open_codes.items() if level < column}
        draft.edges += [(open_codes[max(open_codes)], code)] if open_codes else []
        open_codes[column] = code
        draft.nodes.append(code)
        draft.names[code] = cells[name_at]
    return draft


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
