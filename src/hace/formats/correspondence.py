"""Tables of correspondence: which class of one version of a taxonomy became which of the next, as publishers write them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from hace.errors import ConfigError, FormatError, listed
from hace.files.documents import csv_rows
from hace.files.reading import decode, read_bytes, read_text
from hace.formats.spreadsheets import read_sheet

Row = tuple[int, list[str]]  # line, cells
_ROWS_ABOVE = 10  # that may be above the header
_ID = re.compile(r"\b(?:u?id|code|notation|identifier|uri)\b")
_NOT_OWN = re.compile(r"\b(?:parent|broader)\b")
_OLD = re.compile(r"\b(?:old|from|source)\b")
_NEW = re.compile(r"\b(?:new|to|target)\b")
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_ARROWS = {"→": "old", "⇒": "new"}


def read_mapping(path: str | Path, columns: tuple[str, str] | None = None) -> dict[str, list[str]]:
    """Reads which class of a taxonomy became which, for :meth:`hace.Hierarchy.migrate`.

    Args:
        path: A .csv, .tsv, .txt or .xlsx with a column of old and one of new codes, found by their names ("old" and "new";
            "ISCO-88 code" and "ISCO 08 Code"; the first is the old one unless the names or their years say otherwise), or
            Shopify's list of lines "→ old" and "⇒ new". A class with several new ones was split; one with an empty new one,
            or none, was dropped.
        columns: The names of the two columns, the old one first, where they are not found.
    """
    suffix = Path(path).suffix.lower()
    has_arrows = suffix not in (".csv", ".tsv", ".xlsx") and _has_arrows(path)
    pairs = _lines(path) if has_arrows else _rows(path, suffix, columns)
    mapping: dict[str, list[str]] = {}
    without_old = 0
    for old, new in pairs:
        if not old:
            without_old += 1
            continue
        became = mapping.setdefault(old, [])
        if new and new not in became:
            became.append(new)
    if not mapping:
        raise FormatError(f"{path}: must say which class became which. Got no row with an old one.")
    if without_old:
        logging.getLogger("hace").warning(
            "%s: rows without an old code are left out: %s", path, f"{without_old:,}"
        )
    return mapping


def _has_arrows(path: str | Path) -> bool:
    return any(line.lstrip()[:1] in _ARROWS for line in read_text(path).splitlines())


def _lines(path: str | Path) -> Iterable[tuple[str, str]]:
    """Pairs from lines "→ old" and "⇒ new"."""
    lines = [line.strip() for line in read_text(path).splitlines()]
    entries = [(_ARROWS.get(line[0], ""), line[1:].strip()) for line in lines if line and line[0] != "#"]
    if {key for key, _ in entries} != {"old", "new"} or entries[0][0] != "old":
        raise FormatError(
            f'{path}: must have columns old and new, or lines "→ old" and "⇒ new". Got neither.'
        )
    old = ""
    for key, name in entries:
        old = name if key == "old" else old
        yield old, "" if key == "old" else name


def _rows(path: str | Path, suffix: str, columns: tuple[str, str] | None) -> Iterable[tuple[str, str]]:
    """Pairs from the rows of a table, below the header that names both columns."""
    if suffix == ".xlsx":
        text = read_sheet(path)
        delimiter = "\t"
    else:
        text = decode(read_bytes(path), str(path), None).removeprefix("\ufeff")
        delimiter = "\t" if suffix == ".tsv" else _delimiter(text)
    rows = csv_rows(text, str(path), delimiter)
    above = list(islice(rows, _ROWS_ABOVE))
    for position, (_, cells) in enumerate(above):
        places = _named(cells, columns) if columns is not None else _columns_by_name(cells)
        if places is not None:
            old, new = places
            for _, row in [*above[position + 1 :], *rows]:
                row = [*row, *[""] * (max(places) + 1 - len(row))]
                yield row[old].strip(), row[new].strip()
            return
    heads = listed([cell for _, cells in above[:1] for cell in cells if cell.strip()], 30)
    if columns is not None:
        raise ConfigError(
            f"columns must name two columns of {path}. Got {listed(columns)}. The first row has {heads}."
        )
    raise FormatError(
        f'{path}: must have columns old and new, or lines "→ old" and "⇒ new", or two columns of codes. The first row has '
        f"{heads}. Name them: columns=(old, new)."
    )


def _delimiter(text: str) -> str:
    """A comma; another mark where the first line has that alone."""
    first = text.partition("\n")[0]
    others = [mark for mark in ("\t", ";", "|") if mark in first]
    return others[0] if others and "," not in first else ","


def _named(cells: Sequence[str], columns: tuple[str, str]) -> tuple[int, int] | None:
    plain = [cell.strip() for cell in cells]
    return (plain.index(columns[0]), plain.index(columns[1])) if set(columns) <= set(plain) else None


def _columns_by_name(cells: Sequence[str]) -> tuple[int, int] | None:
    """The columns of old and new codes, by their names; None if this row names no such pair."""
    plain = [re.sub(r"[\W_]+", " ", cell).strip().casefold() for cell in cells]
    if "old" in plain and "new" in plain:
        return plain.index("old"), plain.index("new")
    own = [i for i, name in enumerate(plain) if _ID.search(name) and not _NOT_OWN.search(name)]
    if len(own) == 1 and own[0] > 0 and plain[0] and " " in plain[own[0]]:
        own = [0, own[0]]  # names of another list beside the codes of a taxonomy
    if len(own) != 2:
        return None
    first, second = (plain[i] for i in own)
    swapped = (_NEW.search(first) and _OLD.search(second)) is not None or _year(first) > _year(second) > 0
    return (own[1], own[0]) if swapped else (own[0], own[1])


def _year(name: str) -> int:
    """The year in the name of a column; 0 without one."""
    match = _YEAR.search(name)
    return int(match[0]) if match else 0
