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
from hace.formats.taxonomies import absent

Row = tuple[int, list[str]]  # line, cells
_ROWS_ABOVE = 10  # that may be above the header
_ID_NAMES = ("unique id", "id", "code", "identifier", "notation", "uri")
_PARENT_NAMES = (
    "parent",
    "parent id",
    "parent code",
    "parent unique id",
    "parentid",
    "parentcode",
    "broader",
)
_NAME_NAMES = (
    "name",
    "title",
    "label",
    "title en",
    "description",
    "category",
    "preflabel",
    "term",
    "heading",
)
_TIER = re.compile(r"(?:tier|level|lvl|l)[ _]?(\d{1,2})")
_CODE = re.compile(r"[A-Z0-9]+(?:[.\-/ ][A-Z0-9]+)*")
_MARK = re.compile(r"[.\-/ ]")
_RANGE = re.compile(r"([A-Z]\d+)-([A-Z]\d+)")  # "A00-B99", a block of ICD-10
_LAST_NUMBER = re.compile(r"(.*?)(\d+)")
_FILLED = re.compile(r"(?=.{4,20}$)\d[\d.\- ]*\d")
_CHECK_DIGIT = re.compile(r"\d{4,}-\d")
_DIGIT = re.compile(r"\d")
_SPARSE = 4  # numbers per code, at least
_LONGEST = 100  # letters of a code
_GAPS = 1.3  # the largest number over how many there are, in a list that counts


@dataclass
class CodeColumns:
    """Where a code table has what; -1 where it does not."""

    header: list[str]
    id: int = -1
    parent: int = -1
    name: int = -1
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
    plain = [re.sub(r"[\W_]+", " ", cell).strip().casefold() for cell in header]
    tiers = sorted((int(match[1]), i) for i, name in enumerate(plain) if (match := _TIER.fullmatch(name)))
    in_order = [number for number, _ in tiers] == list(range(1, len(tiers) + 1))
    columns = CodeColumns(
        header=[cell.strip() for cell in header],
        id=_column(plain, _ID_NAMES, barred=("parent", "broader")),
        parent=_column(plain, _PARENT_NAMES),
        name=_column(plain, _NAME_NAMES),
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
        if any(name.endswith(word) for word in known) and not name.startswith(tuple(barred) or "\0")
    ]
    return ending[0] if len(ending) == 1 else -1


def parse_codes(
    source: SourceText, header_line: int, columns: CodeColumns, rows: Iterable[Row], prefixes: bool
) -> Draft | None:
    """A hierarchy of codes. None if the codes do not tell their parents; ``prefixes``: they do, whatever they look like."""
    table = [(line, cells) for line, cells in rows if any(cells)]
    draft = Draft(flat=True)
    if header_line > 1:
        above = "line 1 is" if header_line == 2 else f"lines 1 to {header_line - 1} are"
        draft.notes.append(f"{above} above the header and left out")
    parents: dict[str, str] = {}
    first_line: dict[str, int] = {}
    without_code = 0
    for line, cells in table:
        cells = [*cells, *[""] * (len(columns.header) - len(cells))]
        code = cells[columns.id].strip()
        if not code:
            without_code += 1
            continue
        if first_line.setdefault(code, line) != line:
            other = draft.names[code]
            source.problems.unfit(
                line,
                f"the code {quoted(code)} stands for {quoted(_name(columns, cells) or code)} here and for {quoted(other)} on "
                f"line {first_line[code]}. A code must stand for one node: give one of them another, or remove it.",
            )
            continue
        draft.nodes.append(code)
        draft.names[code] = _name(columns, cells) or code
        parents[code] = cells[columns.parent].strip() if columns.parent >= 0 else ""
    if without_code:
        draft.notes.append(f"rows without a code are left out: {without_code:,}")
    if prefixes or columns.parent < 0:
        by_prefix = prefix_parents(draft.nodes, made=prefixes)
        if by_prefix is None:
            return None
        parents = by_prefix
        draft.nodes = list(parents)
        _note_prefixes(draft, parents)
    _add_edges(draft, parents)
    return draft


def _name(columns: CodeColumns, cells: Sequence[str]) -> str:
    """The deepest tier that is filled, else the name."""
    filled = [cells[i].strip() for i in columns.tiers if i < len(cells) and cells[i].strip()]
    if filled:
        return filled[-1]
    return cells[columns.name].strip() if columns.name >= 0 else ""


def _add_edges(draft: Draft, parents: Mapping[str, str]) -> None:
    missing = []
    for code, parent in parents.items():
        if parent in parents and parent != code:
            draft.edges.append((parent, code))
        elif parent and parent != code:
            missing.append(code)
    if missing:
        draft.notes.append(absent(missing))


def _note_prefixes(draft: Draft, parents: Mapping[str, str]) -> None:
    example = next(((code, parent) for code, parent in parents.items() if parent), None)
    if example:
        draft.notes.append(f"parents are the prefixes of the codes: {example[0]} is below {example[1]}")


# ---------------------------------------------------------------------- prefixes


def prefix_parents(codes: Sequence[str], made: bool) -> dict[str, str] | None:
    """For each code its parent by prefix, "" at the top.

    Three ways of writing codes look alike and are told apart by their numbers. Where digits are levels (01, 01.1, 01.11; 2, 21,
    211), the parent is the longest prefix that is a code. Where parts are counted (A1, A1-1, ..., A1-12), it is the code up to
    the last mark. Where all codes are filled up with zeros (11-0000, 11-1000, 11-1010), it is the code with more of them. A
    range (A00-B99) is above the codes within it.

    None if this is a flat list as far as anybody can tell: a code has no prefix, or does not look like a code at all. ``made``:
    it is not, whatever it looks like; a code without a prefix is a top.
    """
    if max(map(len, codes), default=0) > _LONGEST or not (made or all(map(_CODE.fullmatch, codes))):
        return None
    filled_up = _filled_parents(codes)
    if filled_up is not None:
        return filled_up
    ranges = {code: (match[1], match[2]) for code in codes if (match := _RANGE.fullmatch(code))}
    plain = [code for code in codes if code not in ranges]
    counted = _are_counted(plain)
    known = set(plain)
    shortest = min(map(len, plain), default=0)
    parents = {code: _narrowest(code, bounds, ranges) for code, bounds in ranges.items()}
    for code in plain:
        prefixes = _parts_above(code) if counted else _shorter(code)
        parent = next((prefix for prefix in prefixes if prefix in known), "")
        if not parent and _MARK.search(code):  # 1.2 is there, 1 is not
            parent = _make_above(code, known, parents)
        if not parent and ranges:
            parent = _narrowest(code, (code, code), ranges)
        if not parent and len(code) > shortest and not (made or counted):
            return None
        parents[code] = parent
    return parents if made or any(parents.values()) else None


def _filled_parents(codes: Sequence[str]) -> dict[str, str] | None:
    """The parents of codes of one length whose ends are zeros: 11-1010 is below 11-1000, that below 11-0000.

    Digits count as a level where every code that goes further has its code there. None if the codes are not of this kind. A
    check digit (03110000-5) plays no part.
    """
    if any(len(code) != len(codes[0]) or not _FILLED.fullmatch(code) for code in codes) or not codes:
        return None
    has_check = all(map(_CHECK_DIGIT.fullmatch, codes))
    end = -2 if has_check else len(codes[0])
    code_of = {code[:end]: code for code in codes}
    numbers = [int("".join(_DIGIT.findall(bare))) for bare in code_of]
    if len(code_of) < len(codes) or max(numbers) - min(numbers) < _SPARSE * len(codes):
        return None  # numbers that count: 1000, 1001, ..., 1050
    depth = {bare: len(bare.rstrip("0-. ")) for bare in code_of}
    ends = [at for at in range(1, len(codes[0][:end])) if codes[0][at - 1].isdigit()]
    cuts = [at for at in ends if all(_cut(c, at) in code_of for c in code_of if depth[c] > at)]
    parents: dict[str, str] = {}
    for bare, code in code_of.items():
        above = [_cut(bare, at) for at in cuts if at < depth[bare]]
        parents[code] = next((code_of[a] for a in reversed(above) if a != bare), "")
    below = sum(map(bool, parents.values()))
    has_three_levels = any(parents[above] for above in parents.values() if above)
    return parents if 2 * below > len(parents) and has_three_levels else None


def _cut(code: str, at: int) -> str:
    """A code with zeros from a place on."""
    return code[:at] + _DIGIT.sub("0", code[at:])


def _are_counted(codes: Iterable[str]) -> bool:
    """Whether the numbers at the end of codes count 1, 2, ..., 12 and leave few gaps, unlike digits that are levels."""
    numbers: dict[str, set[int]] = {}  # by what is in front of them
    for code in codes:
        match = _LAST_NUMBER.fullmatch(code)
        if match:
            numbers.setdefault(match[1], set()).add(int(match[2]))
    groups = [group for group in numbers.values() if max(group) > 9]
    return bool(groups) and sum(map(max, groups)) <= _GAPS * sum(map(len, groups))


def _shorter(code: str) -> Iterator[str]:
    """Prefixes, the longest first."""
    for end in range(len(code) - 1, 0, -1):
        if not _MARK.fullmatch(code[end - 1]):
            yield code[:end]


def _parts_above(code: str) -> Iterator[str]:
    """The code up to each mark, the longest first."""
    for mark in reversed(list(_MARK.finditer(code))):
        yield code[: mark.start()]


def _make_above(code: str, known: set[str], parents: dict[str, str]) -> str:
    """Make the code up to the last mark, and what is missing above it. Returns it."""
    missing = []
    above = ""
    for prefix in _parts_above(code):
        if prefix in known:
            above = prefix
            break
        missing.append(prefix)
    for prefix in reversed(missing):
        parents[prefix] = above
        known.add(prefix)
        above = prefix
    return above


def _narrowest(code: str, bounds: tuple[str, str], ranges: Mapping[str, tuple[str, str]]) -> str:
    """The narrowest other range around a code or range, "" if there is none."""
    low, high = bounds
    around = [
        other
        for other, (first, last) in ranges.items()
        if other != code and first <= low[: len(first)] and high[: len(last)] <= last
    ]
    return max(around, key=lambda other: (ranges[other][0], [-ord(c) for c in ranges[other][1]]), default="")
