"""CSV: rows from outside with the lines they begin on, and tables whose cells no spreadsheet runs as formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from hace.errors import FormatError, printable

_FORMULA = re.compile(r"\s*[=+\-@]|[\t\r]")


def csv_rows(text: str, name: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """(line where it starts, cells) of each row that is not blank.

    Args:
        text: The content of the file.
        name: What messages call it.
        delimiter: Between two cells.

    Raises:
        FormatError: A quote that never ends, text after a closing quote, or a cell of more than 131,072 characters.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    start = 1
    try:
        for cells in reader:
            if any(cells):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise FormatError(
            f"{name}, line {start}: every row must be valid CSV. Got an error: {error}."
        ) from error


def ragged(name: str, line: int, found: int, wanted: int) -> FormatError:
    """The error about a row with another number of cells than the header.

    Args:
        name: What messages call the file.
        line: Where the row is.
        found: Its number of cells.
        wanted: The number of cells of the header.
    """
    remedy = "Quote cells that hold the delimiter."
    if found == wanted + 1:
        remedy = (
            "Files of R's write.table look like this: row names without a name in the header. Write the file with "
            "write.csv(x, FILE, row.names = FALSE)."
        )
    return FormatError(
        f"{name}, line {line}: every row must have {wanted} cells, as the header has. Got {found}. {remedy}"
    )


def safe_cell(value: Any) -> Any:
    r"""A cell that a spreadsheet shows as text: formulas get an apostrophe in front, control characters become escapes.

    Numbers stay as they are, as does text that reads as a number.

    Args:
        value: What the cell holds.

    Example:
        >>> [safe_cell(v) for v in ("dog", "=1+1", "-3.5", -3.5, "a\tb")]
        ['dog', "'=1+1", '-3.5', -3.5, 'a\\tb']
    """
    if not isinstance(value, str):
        return value
    if _FORMULA.match(value) and not is_numeric(value):
        value = "'" + value
    return printable(value)


def write_table(file: TextIO, columns: Mapping[str, Sequence[Any]], *, raw: bool = False) -> None:
    """Write a CSV table.

    Args:
        file: Where to, opened with `newline=""`.
        columns: The columns by name, all of one length.
        raw: Whether to write text unchanged rather than by `safe_cell`.
    """
    write_rows(file, [list(columns), *zip(*columns.values(), strict=True)], raw=raw)


def write_rows(file: TextIO, rows: Iterable[Iterable[Any]], *, raw: bool = False) -> None:
    """Write rows of a CSV table.

    Args:
        file: Where to, opened with `newline=""`.
        rows: The rows.
        raw: Whether to write text unchanged rather than by `safe_cell`.
    """
    writer = csv.writer(file)
    writer.writerows(rows if raw else ([safe_cell(cell) for cell in row] for row in rows))


def is_numeric(text: str) -> bool:
    """Whether a cell reads as a number.

    Args:
        text: The cell.
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
