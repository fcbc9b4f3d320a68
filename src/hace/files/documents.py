"""JSON, YAML and CSV: plain values only, no key twice, bounded in size, depth and expansion.

Tables that are written have no cell that a spreadsheet would run as a formula.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TextIO

from hace.errors import FormatError, printable
from hace.files.arrays import Parquet
from hace.files.reading import check_memory, decode, optional, read_bytes

MAX_YAML = 1 << 20  # bytes; the parser takes seconds for a megabyte
MAX_VALUES = 100_000  # of a YAML document, aliases written out
_SHOWN = 200
_ROWS = 65_536  # of a .parquet that are read at once

_FORMULA = re.compile(r"\s*[=+\-@]|[\t\r]")
_FLOAT = r"[-+]?((0|[1-9][0-9]*)?\.[0-9]+|(0|[1-9][0-9]*)\.?)([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$"
_NUMBERS = {"int": re.compile(r"[-+]?(0|[1-9][0-9]*)$"), "float": re.compile(_FLOAT)}
_PLAIN_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file."""
    name = os.fsdecode(path)
    data = read_bytes(path)
    # A list takes two bytes of text and 56 of memory.
    values = data.count(b"[") + data.count(b"{") + data.count(b",")
    check_memory(name, 4 * len(data) + 64 * values)
    return parse_json(decode(data, name), name)


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text; messages call it `name`."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        _check_text(value, text)
        return value
    except RecursionError as error:
        raise FormatError(f"{name} is not valid JSON: it nests too deep.") from error
    except ValueError as error:
        raise FormatError(f"{name} is not valid JSON: {_end(error)}") from error


def parse_yaml(text: str, name: str) -> Any:
    """The value of a YAML text: null, booleans, numbers, text, lists and mappings. Dates stay text."""
    yaml = optional("yaml", "Reading YAML (JSON works without)", "train")
    if len(text) > MAX_YAML:
        raise FormatError(f"{name} must have at most {MAX_YAML:,} characters of YAML. Got {len(text):,}.")
    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_nodes(node, yaml)
        value = loader.construct_document(node)
        _check_text(value, text)
        return value
    except RecursionError as error:
        raise FormatError(f"{name} is not YAML of plain values: it nests too deep.") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise FormatError(f"{name} is not YAML of plain values: {_end(error)}") from error


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML or JSON file; empty where the file holds nothing."""
    name = os.fsdecode(path)
    if name.endswith(".json"):
        value = read_json(path)
    else:
        value = parse_yaml(decode(read_bytes(path, MAX_YAML), name), name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise FormatError(f"{name} must hold names and values. Got a {type(value).__name__}.")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        _check_once([key for key, _ in pairs], "an object")
    return mapping


def _check_once(keys: list[Any], what: str) -> None:
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            shown = key if isinstance(key, str) else key[-1]  # of YAML: a tag and the key
            raise ValueError(f"the key {shown[:60]!r} must occur once in {what}. Got it twice")
        seen.add(key)


def _check_text(value: Any, text: str) -> None:
    """Refuse half a surrogate pair, which only an escape can write: it is no character, and no file can hold it."""
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("text must be whole characters. Got half a surrogate pair") from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"numbers must be finite. Got {word}")


@cache
def _loader() -> Any:
    """PyYAML's safe loader without the types that are not plain; dates, which it may fail to make, stay text.

    Numbers are those of YAML 1.2 in decimal. YAML 1.1 takes 010 for 8, 1:30 for 90, and 1e-3 for text.
    """
    known = optional("yaml", "Reading YAML (JSON works without)", "train").SafeLoader
    tags = {f"tag:yaml.org,2002:{word}" for word in _PLAIN_TAGS}
    constructors = {tag: make for tag, make in known.yaml_constructors.items() if tag in tags or tag is None}
    dropped = {f"tag:yaml.org,2002:{word}" for word in ("timestamp", *_NUMBERS)}
    resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in dropped]
        for first, pairs in known.yaml_implicit_resolvers.items()
    }
    for word, pattern in _NUMBERS.items():
        for first in "+-.0123456789":
            resolvers.setdefault(first, []).append((f"tag:yaml.org,2002:{word}", pattern))
    names = {"yaml_constructors": constructors, "yaml_implicit_resolvers": resolvers}
    return type("PlainLoader", (known,), names)


def _check_nodes(root: Any, yaml: Any) -> None:
    """Refuse keys that occur twice, cycles, and aliases that expand to more values than a document may have."""
    sizes: dict[int, int | None] = {}  # None: not finished, so that meeting it again is a cycle

    def size(node: Any) -> int:
        """The number of values at and below a node, aliases written out."""
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise ValueError("an alias must not refer to what holds it")
            return known
        sizes[id(node)] = None
        below: list[Any] = []
        if isinstance(node, yaml.MappingNode):
            scalars = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            _check_once([(key.tag, key.value) for key in scalars], "a mapping")
            below = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        total = 1 + sum(map(size, below))
        if total > MAX_VALUES:
            raise ValueError(f"it must have at most {MAX_VALUES:,} values. Got more, aliases written out")
        sizes[id(node)] = total
        return total

    size(root)


def _end(error: Exception) -> str:
    """The end of a message: one line, bounded, as a sentence."""
    words = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
    return words if words.endswith(".") else f"{words}."


def csv_rows(text: str | Iterable[str], name: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """(line where it starts, cells) of each row of a text, or of its lines with their ends, that is not blank."""
    lines = io.StringIO(text, newline="") if isinstance(text, str) else text
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
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


def read_rows(
    path: str | os.PathLike[str], encoding: str | None = None, delimiter: str | None = None
) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """A table with a header: its columns, and of each row the line and the cells by column.

    Without a delimiter, tabs divide a .tsv; other files are divided by commas, or where the header has no comma by
    semicolons, as spreadsheets of many countries write them, or else by tabs. A .parquet file is read as if it had been such
    a table.
    """
    name = os.fsdecode(path)
    if name.lower().endswith(".parquet"):
        return _parquet_rows(path)
    text = decode(read_bytes(path), name, encoding)
    if delimiter is None:
        first = text.partition("\n")[0]
        tabs = name.lower().endswith(".tsv")
        delimiter = "\t" if tabs else next((mark for mark in ",;\t" if mark in first), ",")
    table = csv_rows(text, name, delimiter)
    header = [cell.strip() for cell in next(table, (0, []))[1]]
    rows = []
    for line, cells in table:
        if len(cells) != len(header):
            raise ragged(name, line, len(cells), len(header))
        rows.append((line, dict(zip(header, cells, strict=True))))
    return header, rows


def _parquet_rows(path: str | os.PathLike[str]) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    table = Parquet(path)
    rows = (row for batch in table.batches(table.names, _ROWS) for row in batch.to_pylist())
    cells = ({name: "" if cell is None else str(cell) for name, cell in row.items()} for row in rows)
    return table.names, list(enumerate(cells, 1))


def ragged(name: str, line: int, cells: int, wanted: int) -> FormatError:
    """The error about a row with another number of cells than the header."""
    remedy = "Quote cells that hold the delimiter."
    if cells == wanted + 1:
        remedy = (
            "Files of R's write.table look like this: row names without a name in the header. Write the file with "
            "write.csv(x, FILE, row.names = FALSE)."
        )
    return FormatError(
        f"{name}, line {line}: every row must have {wanted} cells, as the header has. Got {cells}. {remedy}"
    )


def safe_cell(value: Any) -> Any:
    """A cell that a spreadsheet shows as text: formulas get an apostrophe in front, control characters become escapes."""
    if not isinstance(value, str):
        return value
    if _FORMULA.match(value) and not is_numeric(value):
        value = "'" + value
    return printable(value)


def write_table(file: TextIO, columns: Mapping[str, Sequence[Any]], *, raw: bool = False) -> None:
    """Write a CSV table."""
    write_rows(file, [list(columns), *zip(*columns.values(), strict=True)], raw=raw)


def write_rows(file: TextIO, rows: Iterable[Iterable[Any]], *, raw: bool = False, end: str = "\r\n") -> None:
    """Write rows of a CSV table, as `write_table` does."""
    writer = csv.writer(file, lineterminator=end)
    writer.writerows(rows if raw else ([safe_cell(cell) for cell in row] for row in rows))


def csv_text(rows: Iterable[Iterable[Any]], *, raw: bool = False, end: str = "\r\n") -> str:
    """Rows of a CSV table as text, as `write_table` writes them."""
    text = io.StringIO()
    write_rows(text, rows, raw=raw, end=end)
    return text.getvalue()


def is_numeric(text: str) -> bool:
    """Whether a cell reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], form: str = "{}: {!r} -> {!r}", missing: Any = None
) -> list[str]:
    """What differs between two nested documents: "loss.name: 'hace' -> 'hxe'"."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        before = old.get(key, missing)
        after = new.get(key, missing)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += [f"{key}.{line}" for line in differences(before, after, form, missing)]
        elif before != after:
            lines.append(form.format(key, before, after))
    return lines
