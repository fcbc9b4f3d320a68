"""Tables in which the place, or the depth, of an entry is its level.

A code and a name for each level; codes in stairs; outlines; paths with ids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from hace.formats.code_tables import ID_NAMES, NAME_NAMES, ROWS_ABOVE, CodeColumns, Row, cells_of, plain_name
from hace.formats.draft import Draft, SourceText
from hace.formats.prefixes import is_code
from hace.formats.taxonomies import PathLine, draft_of_paths, resolved
from hace.hierarchy.build import PATH_MARK, path_parts

_DASHES = "-–·•. "
_LEVEL_NAMES = ("level", "depth", "indent", "indent level", "hierarchy level", "indentation")
_UPWARD = ("parent", "broader")


@dataclass
class LevelPairs:
    """Where a table has a code and a name for each level, from the top down: "Level 1 code", "Level 1 name"."""

    codes: list[int]
    names: list[int]


def find_level_pairs(header: Sequence[str]) -> LevelPairs | None:
    """The columns of codes and names by level, such as "Section code", "Section title"; None without two such pairs."""
    plain = [plain_name(cell) for cell in header]
    if len(set(plain)) < len(plain):
        return None
    place = {name: i for i, name in enumerate(plain)}
    words = (*ID_NAMES, *NAME_NAMES)
    levels = dict.fromkeys(
        name.removesuffix(f" {word}") for name in plain for word in words if name.endswith(f" {word}")
    )
    if not levels.keys().isdisjoint(_UPWARD):
        return None
    pairs = []
    for level in levels:
        codes = [place[name] for name in (*(f"{level} {word}" for word in ID_NAMES), level) if name in place]
        names = [
            place[name] for name in (*(f"{level} {word}" for word in NAME_NAMES), level) if name in place
        ]
        if codes and names and codes[0] != names[0]:
            pairs.append((codes[0], names[0]))
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
    if start > ROWS_ABOVE or len({at[0] for at in filled[start:]}) < 2:
        return None
    return _of_stairs(
        (at[0], cells[at[0]], cells[name_at])
        for at, (_, cells) in zip(filled[start:], table[start:], strict=True)
    )


def parse_tiers_in_stairs(columns: CodeColumns, rows: Iterable[Row]) -> Draft | None:
    """Rows of a name with a code in one of the columns "Level 1", "Level 2", ..., as IPTC's. None if they are not."""
    if len(columns.tiers) < 2 or columns.name < 0:
        return None
    steps = []
    for _, cells in rows:
        filled = [i for i in columns.tiers if i < len(cells) and cells[i].strip()]
        if len(filled) != 1 or columns.name >= len(cells):
            return None
        steps.append((filled[0], cells[filled[0]].strip(), cells[columns.name].strip()))
    return _of_stairs(steps) if len({at for at, _, _ in steps}) > 1 else None


def _of_stairs(steps: Iterable[tuple[int, str, str]]) -> Draft | None:
    """Steps of (depth, id, name), each below the last one that is less deep; None if an id is there twice."""
    draft = Draft()
    above: list[tuple[int, str]] = []  # (depth, id), from the top down
    for depth, id, name in steps:
        if id in draft.names:
            return None
        while above and above[-1][0] >= depth:
            above.pop()
        draft.edges += [(above[-1][1], id)] if above else []
        above.append((depth, id))
        draft.nodes.append(id)
        draft.names[id] = name or id
    return draft


def parse_outline(columns: CodeColumns, rows: Iterable[Row], *, numbers: bool) -> Draft | None:
    """Rows from the top down, each with its depth. None if they are not.

    The depth is the number of dashes in front of the name ("- - Cholera", as in ICD-11), or with ``numbers`` a column of
    levels (as in tariffs). A node's id is its code; where it has none, its name, with its parent's in front where it repeats.
    """
    table = [cells for _, cells in rows if any(cells)]
    texts = cells_of(table, columns.name)
    if not all(texts):
        return None
    names = [text.lstrip(_DASHES) for text in texts]
    if numbers:
        depths = _numbers(cells_of(table, _level_column(columns.header)))
    else:
        marks = [text[: len(text) - len(name)] for text, name in zip(texts, names, strict=True)]
        depths = [len(mark.replace(" ", "")) for mark in marks]
        if 2 * sum(map(bool, depths)) <= len(depths):
            return None  # a dash here and there
    goes_down = any(map(bool, depths)) and depths[0] == min(depths) < max(depths)
    if not all(names) or not goes_down or any(after > before + 1 for before, after in pairwise(depths)):
        return None
    ids = _ids_of_outline(cells_of(table, columns.id), depths, names)
    draft = _of_stairs(zip(depths, ids, names, strict=True))
    if draft is not None:
        keys = (cells_of(table, i) for i in range(len(columns.header)) if i != columns.name)
        distinct = [cells for cells in keys if all(cells) and len(set(cells)) == len(ids)]
        others = [zip(cells, ids, strict=True) for cells in distinct]
        draft.synonyms = resolved(chain(*others), [*ids, *names])
    return draft


def _level_column(header: Sequence[str]) -> int:
    """The one column of levels; -1 without one."""
    places = [i for i, name in enumerate(header) if plain_name(name) in _LEVEL_NAMES]
    return places[0] if len(places) == 1 else -1


def _numbers(texts: Sequence[str]) -> list[int]:
    """The cells as numbers of levels; empty if they are not."""
    return [int(text) for text in texts] if all(re.fullmatch(r"\d\d?", text) for text in texts) else []


def _ids_of_outline(codes: Sequence[str], depths: Sequence[int], names: Sequence[str]) -> list[str]:
    """Ids that are different, of what each row has."""
    counts = Counter(codes)
    taken = set(codes)
    ids: list[str] = []
    above: dict[int, str] = {}  # the last name at each depth
    for code, depth, name in zip(codes, depths, names, strict=True):
        above[depth] = name
        ways = (name, f"{above.get(depth - 1, '')}/{name}", f"{name} ({len(ids) + 1})")
        has_own = code and counts[code] == 1
        ids.append(code if has_own else next((way for way in ways if way not in taken), ""))
        taken.add(ids[-1])
    return ids


def parse_path_column(source: SourceText, columns: CodeColumns, rows: Iterable[Row]) -> Draft | None:
    """Rows of a whole path in one cell, "Pets > Dogs" or "Pets/Dogs", beside an id. None if no column is like that.

    Paths with slashes must be there to the top, since names have slashes, too.
    """
    table = [cells for _, cells in rows if any(cells)]
    for i in range(len(columns.header)):
        texts = cells_of(table, i)
        paths = _paths_in(texts) if i != columns.id and all(texts) else None
        ids = cells_of(table, columns.id)
        if paths is not None and len(set(paths)) == len(paths) and all(ids) and len(set(ids)) == len(ids):
            lines = [PathLine(text, id, text) for id, text in zip(ids, texts, strict=True)]
            return draft_of_paths(source, lines, paths, PATH_MARK, numbered=True)
    return None


def _paths_in(texts: Sequence[str]) -> list[tuple[str, ...]] | None:
    """The texts as paths; None if they are not."""
    if any(PATH_MARK in text for text in texts):
        paths = [path_parts(text) for text in texts]
    else:
        paths = [tuple(part.strip() for part in text.split("/")) for text in texts]
        if max(map(len, paths), default=0) < 2 or not {path[:-1] for path in paths} <= {(), *paths}:
            return None
    return paths if all(map(all, paths)) else None
