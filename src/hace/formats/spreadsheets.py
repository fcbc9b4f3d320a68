"""Excel workbooks as tables: the first sheet that holds any, as text with tabs."""

from __future__ import annotations

import csv
import io
import os
import zipfile

from hace.errors import FormatError
from hace.files.reading import check_memory, damaged, optional, read_bytes

_BYTES_PER_BYTE = 10  # of memory per byte of a sheet's XML, about
_MOST_COLUMNS = 1000


def read_sheet(path: str | os.PathLike[str]) -> str:
    """The cells of a workbook's first sheet with at least two rows, one row per line. Formulas count by their last value."""
    name = os.fsdecode(path)
    openpyxl = optional("openpyxl", "Reading Excel files", "ontology")
    optional("defusedxml", "Reading Excel files", "ontology")  # openpyxl then refuses entities
    content = io.BytesIO(read_bytes(path))
    with damaged(name, "an Excel workbook", "Save it again, or as CSV."):
        with zipfile.ZipFile(content) as packed:
            check_memory(name, _BYTES_PER_BYTE * sum(info.file_size for info in packed.infolist()))
        try:
            workbook = openpyxl.load_workbook(content, read_only=True, data_only=True)
            texts = [_text(name, sheet) for sheet in workbook.worksheets]
        except FormatError:
            raise
        except Exception as error:  # the parser raises whatever it likes about broken files
            raise zipfile.BadZipFile(str(error)[:200]) from error
    text = next((text for text in texts if text.count("\n") > 1), "")
    if not text:
        raise FormatError(f"{name}: must hold a sheet with a table. Got {len(texts)} empty sheets.")
    return text


def _text(name: str, sheet: object) -> str:
    """A sheet as text with tabs, as wide as its last filled cell."""
    rows = [
        [_cell(value) for value in row]
        for row in sheet.iter_rows(values_only=True, max_col=_MOST_COLUMNS)  # pyright: ignore[reportAttributeAccessIssue]
        if any(value is not None for value in row)
    ]
    width = max((i + 1 for row in rows for i, cell in enumerate(row) if cell), default=0)
    lines = io.StringIO()
    writer = csv.writer(lines, delimiter="\t", lineterminator="\n")
    writer.writerows(row[:width] for row in rows if any(row))
    return lines.getvalue()


def _cell(value: object) -> str:
    """The text of a cell; 1.0 is 1, as it is shown."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(str(value).split())
