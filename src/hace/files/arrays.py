"""Arrays from outside: .npy and .npz, known by their content, and parquet. Never unpickled, in memory only as far as used."""

from __future__ import annotations

import math
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from hace.errors import FormatError, shorten
from hace.files.reading import check_memory, damaged, open_regular, optional

_MAGIC = b"\x93NUMPY"
_KIND = "an .npy or .npz file of numpy"
# Bytes; larger arrays that are stored uncompressed are mapped, and their checksum is not compared.
_READ_AT_ONCE = 1 << 26


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of an .npy or .npz file by name, loaded when asked for; the array of an .npy is called "".

    Large ones that are stored uncompressed are mapped from disk, in the byte order of the file (`native` converts slices of
    them); others are read into memory, if what they declare is within `max_memory`. The content decides, not the suffix.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._members: dict[str, zipfile.ZipInfo | None] = {"": None}
        with open_regular(path) as file, damaged(path, _KIND):
            magic = file.read(len(_MAGIC))
            if magic.startswith(b"PK"):
                with zipfile.ZipFile(file) as packed:
                    names = [i.filename.removesuffix(".npy") for i in packed.infolist()]
                    self._members = dict(zip(names, packed.infolist(), strict=True))
                if len(self._members) < len(names):
                    twice = next(name for name in names if names.count(name) > 1)
                    raise FormatError(
                        f"{self.path}: every array must have its own name. Got {shorten(twice, 60)!r} twice."
                    )
            elif magic != _MAGIC:
                raise FormatError(
                    f"{self.path}: must be {_KIND}. Got other content. Use numpy.save or numpy.savez."
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def single(self) -> bool:
        """Whether the file is an .npy: one array without a name."""
        return "" in self._members and self._members[""] is None

    def __getitem__(self, name: str) -> np.ndarray:
        info, shown = self._members[name], f"the array {shorten(name, 60)!r}"
        with open_regular(self.path) as file, damaged(self.path, _KIND), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2
            if info is None:
                file.seek(0)
                array = _mapped(file, self.path, os.fstat(file.fileno()).st_size)
            elif info.compress_type == zipfile.ZIP_STORED and info.file_size > _READ_AT_ONCE:
                # The lengths of the name and of the extra field, then both.
                file.seek(info.header_offset + 26)
                start = file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
                array = _mapped(file, self.path, start + info.compress_size)
            else:
                check_memory(self.path, info.file_size, shown, stored=info.compress_size)
                with zipfile.ZipFile(file) as packed, packed.open(info) as member:
                    shape, _, dtype = _header(member, self.path)
                    if member.tell() + math.prod(shape) * dtype.itemsize > info.file_size:
                        raise ValueError("it is cut off")
                    member.seek(0)
                    array = native(np.lib.format.read_array(member, allow_pickle=False))
                    member.read()  # at its end, zipfile compares the checksum
        if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
            codes = native(np.ascontiguousarray(array)).view(np.uint32)
            if (codes > sys.maxunicode).any():  # numpy and Python fail on them later, each in its own way
                raise FormatError(f"{self.path}: {shown} must be text. Got a damaged one. Copy it again.")
        return array


def _header(file: IO[bytes], path: Path) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, column order and type of an array."""
    version, form = np.lib.format.read_magic(file), np.lib.format
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its format has the version {version[0]}.{version[1]}, which does not exist")
    read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    try:
        shape, fortran, dtype = read(file)
    except MemoryError as error:  # what Python's parser says of brackets that are nested too deeply
        raise ValueError("its header is not one of numpy") from error
    if dtype.kind not in "biufcUSmM":
        raise FormatError(
            f"{path}: arrays must be plain numbers or text. Got {shorten(str(dtype), 80)}; arrays of Python objects would have "
            "to be unpickled. Save plain arrays with numpy.save or numpy.savez."
        )
    return shape, fortran, dtype


def _mapped(file: BinaryIO, path: Path, end: int) -> np.ndarray:
    """An array that lies uncompressed in a file, from its header up to `end`."""
    shape, fortran, dtype = _header(file, path)
    start, size = file.tell(), math.prod(shape) * dtype.itemsize
    if start + size > end:
        raise ValueError("it is cut off")
    return np.memmap(file, dtype, "r", start, shape, "F" if fortran else "C")


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of an .npy file, mapped from disk."""
    arrays = Arrays(path)
    if not arrays.single:
        raise FormatError(f"{arrays.path}: must be an .npy file with one array. Got an .npz file.")
    return arrays[""]


def native(array: np.ndarray) -> np.ndarray:
    """The array in the machine's byte order, long doubles as float64; the array itself where that holds already."""
    if array.dtype.kind in "fc" and array.dtype.itemsize > 8 * (1 + (array.dtype.kind == "c")):
        with np.errstate(all="ignore"):  # what is beyond float64 becomes infinite
            return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class Parquet:
    """A parquet file, opened; an error if a row group declares more memory than `max_memory`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        parquet = optional("pyarrow.parquet", "Reading .parquet")
        self.path = path
        with open_regular(path) as file:
            stored = os.fstat(file.fileno()).st_size
        with damaged(path, "a parquet file"):
            self._file: Any = parquet.ParquetFile(os.fspath(path))
            about, schema = self._file.metadata, self._file.schema_arrow
            self.names: list[str] = list(schema.names)
            self.types: dict[str, Any] = dict(zip(schema.names, schema.types, strict=True))
            self.rows: int = about.num_rows
            self.metadata = {
                key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
                for key, value in (schema.metadata or {}).items()
            }
            groups = [about.row_group(i) for i in range(about.num_row_groups)]
            if self.rows < 0 or self.rows != sum(group.num_rows for group in groups):
                raise ValueError("its row groups do not add up")
        if len(self.types) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise FormatError(
                f"{os.fsdecode(path)}: every column must have its own name. Got {twice!r} twice."
            )
        for group in groups:
            check_memory(path, max(0, group.total_byte_size), "a row group", stored=stored)

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        """Record batches of pyarrow with these columns, of at most `size` rows."""
        with damaged(self.path, "a parquet file"):
            yield from self._file.iter_batches(batch_size=size, columns=list(columns))
