"""Codes whose prefixes are the tree: 2, 21, 211; 01, 01.1, 01.11; IAB1, IAB1-2; 11-0000, 11-1010; A00-B99, A00."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

_CODE = re.compile(r"[A-Z0-9]+(?:[.\-/ ][A-Z0-9]+)*")
_MARK = re.compile(r"[.\-/ ]")
_RANGE = re.compile(r"([A-Z]\d+)-([A-Z]\d+)")  # "A00-B99", a block of ICD-10
_NUMBERS = re.compile(r"(\d+)-(\d+)")  # "31-33", a sector of NAICS
_LETTER = re.compile(r"[A-Z]")
_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_OPEN_END = re.compile(r"(?:-X+|x+)$")  # 05-XX, 05Cxx
_LAST_NUMBER = re.compile(r"(.*?)(\d+)")
_FILLED = re.compile(r"(?=.{4,20}$)\d[\d.\- ]*\d")
_CHECK_DIGIT = re.compile(r"\d{4,}-\d")
_DIGIT = re.compile(r"\d")
_SPARSE = 4  # numbers per code, at least
_LONGEST = 100  # letters of a code
_GAPS = 1.3  # the largest number over how many there are, in a list that counts


def is_code(text: str) -> bool:
    """Whether a text looks like a code: capitals and digits, perhaps with marks in between, and not very long."""
    return len(text) <= _LONGEST and _CODE.fullmatch(text) is not None


def prefix_parents(codes: Sequence[str], made: bool) -> dict[str, str] | None:
    """For each code its parent by prefix, "" at the top.

    Three ways of writing codes look alike and are told apart by their numbers. Where digits are levels (01, 01.1, 01.11; 2, 21,
    211), the parent is the longest prefix that is a code. Where parts are counted (A1, A1-1, ..., A1-12), it is the code up to
    the last mark. Where all codes are filled up with zeros (11-0000, 11-1000, 11-1010), it is the code with more of them. A
    range (A00-B99, 31-33) is above the codes within it. Letters (A, 01, 01.1, B, 05) and Roman numbers (I, 01, 0101, II) that
    are sections are above the codes that follow. An x at the end (05Cxx) stands for what is below.

    None if this is a flat list as far as anybody can tell: a code has no prefix, or does not look like a code at all. ``made``:
    it is not, whatever it looks like; a code without a prefix is a top.
    """
    if max(map(len, codes), default=0) > _LONGEST or _is_count(codes):
        return None
    stems = _stems(codes)
    if stems is not None:
        below = prefix_parents(list(stems), made) or {}
        return {code: stems.get(below[stem], "") for stem, code in stems.items()} if below else None
    if not (made or all(map(is_code, codes))):
        return None
    filled_up = _filled_parents(codes)
    if filled_up is not None:
        return filled_up
    sections = _sections(codes)
    if sections is not None:
        below = prefix_parents([code for code in codes if code in sections], made=True) or {}
        return _below_sections(codes, below, sections)
    ranges = _ranges(codes)
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


def _ranges(codes: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The first and the last code of each range. 12-34 is one only where it cannot be the part 34 of 12."""
    ranges = {code: (match[1], match[2]) for code in codes if (match := _RANGE.fullmatch(code))}
    known = set(codes)
    bounds = [(code, match[1], match[2]) for code in codes if (match := _NUMBERS.fullmatch(code))]
    bounds.sort(key=lambda bound: bound[1])
    for (_, _, last), (_, first, _) in pairwise(bounds):
        if first <= last:
            return ranges  # parts of the same code: 12-34, 12-35
    if all(len(a) == len(b) and a < b and known.isdisjoint((a, b)) for _, a, b in bounds):
        ranges |= {code: (first, last) for code, first, last in bounds}
    return ranges


def _stems(codes: Sequence[str]) -> dict[str, str] | None:
    """The codes by what is in front of their x's: 05 of 05-XX, 05C of 05Cxx. None if the codes are not of this kind."""
    stems = {_OPEN_END.sub("", code): code for code in codes}
    of_one_length = len({len(code) for code in codes}) == 1
    return (
        stems
        if of_one_length and len(stems) == len(codes) and all(stems) and stems.keys() - set(codes)
        else None
    )


def _sections(codes: Sequence[str]) -> dict[str, str] | None:
    """For each code the section that it follows: A, 01, 01.1, B, 05 or I, 01, 0101, II. None if there are no sections."""
    names = [code for code in codes if not _DIGIT.search(code)]
    in_order = names == sorted(set(names)) and all(map(_LETTER.fullmatch, names))
    if len(names) < 2 or codes[0] != names[0] or not (in_order or _is_count(names)):
        return None
    section_of: dict[str, str] = {}
    section = ""
    for code in codes:
        if not _DIGIT.search(code):
            section = code
        elif code in section_of or (in_order and not code[0].isdigit()):
            return None
        else:
            section_of[code] = section
    return section_of if set(section_of.values()) == set(names) else None


def _is_count(codes: Sequence[str]) -> bool:
    """Whether these are the Roman numbers I, II, III, ... up to some end below 40."""
    count = [tens + ones for tens in ("", "X", "XX", "XXX") for ones in _ONES]
    return list(codes) == count[1 : len(codes) + 1]


def _below_sections(
    codes: Sequence[str], parents: Mapping[str, str], sections: Mapping[str, str]
) -> dict[str, str]:
    """The codes with their parents; those without one are below their section."""
    above = {letter: "" for letter in codes if letter not in sections}
    following = {code: parent or sections.get(code, "") for code, parent in parents.items()}
    for code in codes:  # a code that was made is in the section of the first code below it
        parent = code
        while parents.get(parent):
            parent = parents[parent]
        if code in sections and not following[parent]:
            following[parent] = sections[code]
    return {**above, **following}


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
