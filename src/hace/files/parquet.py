"""Parquet from outside: columns in batches, memory bounded by what the file declares, one error for damage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hace.errors import FormatError, HaceError, shorten
from hace.files.limits import check_memory
from hace.files.optional import optional
from hace.files.reading import open_regular


class Parquet:
    """A parquet file, opened.

    Args:
        path: The file.

    Attributes:
        names: The names of its columns.
        rows: The number of rows.
        metadata: What its schema says besides, as text.

    Raises:
        FormatError: It cannot be read, or a row group declares more memory than `limits.max_memory`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        parquet = optional("pyarrow.parquet", "Reading .parquet")
        self.path = path
        with _damaged(path):
            with open_regular(path) as file:
                stored = os.fstat(file.fileno()).st_size
            self._file: Any = parquet.ParquetFile(os.fspath(path))
            about = self._file.metadata
            self.names: list[str] = list(self._file.schema_arrow.names)
            self.rows: int = about.num_rows
            found = self._file.schema_arrow.metadata or {}
            self.metadata = {
                k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in found.items()
            }
            groups = [about.row_group(i) for i in range(about.num_row_groups)]
        if self.rows < 0 or self.rows != sum(group.num_rows for group in groups):
            raise FormatError(
                f"{path}: must be a parquet file. Got a damaged one: its row groups do not add up."
            )
        for group in groups:
            check_memory(path, max(0, group.total_byte_size), "a row group", stored=stored)

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        """Record batches of pyarrow with these columns.

        Args:
            columns: The names of the columns.
            size: The most rows of a batch.
        """
        with _damaged(self.path):
            yield from self._file.iter_batches(batch_size=size, columns=list(columns))


@contextmanager
def _damaged(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (HaceError, MemoryError):
        raise
    except (
        Exception
    ) as error:  # pyarrow has a dozen kinds, and raises KeyError and UnicodeDecodeError besides
        words = shorten(str(error).strip().split("\n")[0].rstrip(". "), 200)
        raise FormatError(
            f"{os.fspath(path)}: must be a parquet file. Got a damaged one: {words}. Copy it again."
        ) from error
