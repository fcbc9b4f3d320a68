"""What `hace predict` writes: a table to read, CSV, or JSON lines, batch by batch.

Names of classes and files are untrusted. Tables and CSV escape control characters, and CSV puts an apostrophe before text that
a spreadsheet would take for a formula. JSON lines hold every name exactly.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from hace.errors import printable
from hace.files.tables import safe_cell

if TYPE_CHECKING:
    from hace.lab.serve.predictions import Predictions

SAMPLE_WIDTH, ANSWER_WIDTH = 40, 28


def csv_lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
    """Rows of comma-separated values; the first batch brings the header."""
    if first:
        yield _csv_line(batch.row_columns())
    for row in batch.rows():
        if not (skip_broken and row["error"]):
            yield _csv_line([safe_cell(value) for value in row.values()])


def json_lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
    """One JSON object per line."""
    for document in batch.documents():
        if not (skip_broken and "error" in document):
            yield json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def table_lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
    """One line per sample: name, answer with its probability, and the best classes; the first batch brings the header."""
    if first:
        yield f"{'sample':{SAMPLE_WIDTH}}  {'answer':{ANSWER_WIDTH}} prob.  best classes\n"
    for document in batch.documents():
        sample = fitted(printable(document["sample"]), SAMPLE_WIDTH)
        if "error" not in document:
            answer = document["answer"]
            said = fitted(title(answer), ANSWER_WIDTH, keep_end=False)
            best = ", ".join(f"{title(leaf)} {leaf['probability']:.3f}" for leaf in document["leaves"])
            sure = f"{answer['probability']:5.3f}" if answer["id"] is not None else " " * 5
            yield f"{sample}  {said} {sure}  {best}\n"
        elif not skip_broken:
            yield f"{sample}  {printable(document['error'])}\n"


def title(node: dict[str, Any]) -> str:
    """A node as a person reads it: its name, and its id where that says more."""
    if node["id"] is None:
        return "no answer"
    name = node["name"] if node["name"] == node["id"] else f"{node['name']} [{node['id']}]"
    return printable(name)


def fitted(text: str, width: int, keep_end: bool = True) -> str:
    """Text padded to a width; of longer text the end, which tells files apart, or the beginning.

    Example:
        >>> fitted("photos/2024/husky.png", 12), fitted("Siberian husky", 8, keep_end=False)
        ('…4/husky.png', 'Siberia…')
    """
    if len(text) > width:
        text = "…" + text[1 - width :] if keep_end else text[: width - 1] + "…"
    return text.ljust(width)


WRITERS: dict[str, Callable[[Predictions, bool, bool], Iterator[str]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "jsonl": json_lines,
}
SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "table"}


class Output:
    """A stream that predictions are written to, a batch at a time.

    Args:
        stream: Where to.
        writer: One of `WRITERS`.
        skip_broken: Whether images that could not be read have no row.
    """

    def __init__(
        self,
        stream: TextIO,
        writer: Callable[[Predictions, bool, bool], Iterator[str]],
        skip_broken: bool = False,
    ) -> None:
        self.stream, self.writer, self.skip_broken = stream, writer, skip_broken
        self.first = True

    def add(self, batch: Predictions) -> None:
        """Write a batch."""
        code = getattr(self.stream, "encoding", None) or "utf-8"
        for line in self.writer(batch, self.first, self.skip_broken):
            # Bytes that are not text, and letters the terminal cannot encode, appear as \\udce4.
            self.stream.write(line.encode(code, "backslashreplace").decode(code))
            self.first = False
        self.stream.flush()


def _csv_line(cells: list[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
