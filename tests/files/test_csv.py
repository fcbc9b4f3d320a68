"""Rows of CSV files, and tables for spreadsheets."""

from __future__ import annotations

import csv
import io

import pytest

from hace.errors import FormatError
from hace.files.documents import csv_rows, write_table


def test_rows_know_the_line_they_begin_on() -> None:
    assert list(csv_rows('a,b\n\n"x\ny",2\r\n3,4', "t")) == [
        (1, ["a", "b"]),
        (3, ["x\ny", "2"]),
        (5, ["3", "4"]),
    ]
    for text in ('a\n"never closed', 'a\n"b"c', "a\n" + "x" * 140_000):
        with pytest.raises(FormatError, match="t, line 2: every row must be valid CSV"):
            list(csv_rows(text, "t"))


def test_cells_for_people_are_no_formulas_and_numbers_stay() -> None:
    cells = [
        "=HYPERLINK(1)",
        "+1-2",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "a\x1b[2Jb\r\n",
        "plain",
        "-12.5",
        "",
        "Häher",
    ]
    safe = [
        "'=HYPERLINK(1)",
        "'+1-2",
        "'-2+3",
        "'@SUM(A1)",
        "'\\t=1",
        "a\\x1b[2Jb\\r\\n",
        "plain",
        "-12.5",
        "",
        "Häher",
    ]
    table = {"=title": cells, "n": [-1.5] * 10}
    for raw, header, wanted in ((False, "'=title", safe), (True, "=title", cells)):
        file = io.StringIO(newline="")
        write_table(file, table, raw=raw)
        rows = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
        assert rows[0] == [header, "n"]
        assert [row[0] for row in rows[1:]] == wanted
        assert {row[1] for row in rows[1:]} == {"-1.5"}
