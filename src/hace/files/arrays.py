"""Arrays from outside: .npy and .npz, known by their content, and parquet. Never unpickled."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from hace.errors import FormatError, shorten
from hace.files.archives import check_zip_method
from hace.files.reading import check_memory, damaged, open_regular, optional

INDEX_COLUMN = re.compile(r"__index_level_\d+__|Unnamed: \d+|")  # as pandas names the index of a DataFrame
_MAGIC = b"\x93NUMPY"
_KIND = "an .npy or .npz file of numpy"
_VERSIONS = ((1, 0), (2, 0), (3, 0))
_PLAIN = "biufcUSmM"  # kinds of dtype: booleans, numbers, text, bytes, times


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of an .npy or .npz file by name, loaded when asked for; the array of an .npy is called "".

    That of an .npy is mapped from disk, in the byte order of the file (`native` converts slices of it). Those of an .npz are
    read into memory, if what they declare is within `max_memory` or as large as the file. The content decides, not the suffix.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._packed: zipfile.ZipFile | None = None
        self._members: dict[str, zipfile.ZipInfo] = {}
        with open_regular(path) as file:
            magic = file.read(len(_MAGIC))
        if magic.startswith(b"PK"):
            with damaged(path, _KIND):
                self._packed = zipfile.ZipFile(path)
            infos = self._packed.infolist()
            names = [info.filename.removesuffix(".npy") for info in infos]
            self._members = dict(zip(names, infos, strict=True))
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
        return iter([""] if self.single else self._members)

    def __len__(self) -> int:
        return 1 if self.single else len(self._members)

    @property
    def single(self) -> bool:
        """Whether the file is an .npy: one array without a name."""
        return self._packed is None

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in list(self):
            raise KeyError(name)
        with damaged(self.path, _KIND), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2
            if self._packed is None:
                array = _mapped(self.path)
            else:
                array = _unpacked(self._packed, self._members[name], name, self.path)
        if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
            codes = native(np.ascontiguousarray(array)).view(np.uint32)
            if (codes > sys.maxunicode).any():  # numpy and Python fail on them later, each in its own way
                raise FormatError(
                    f"{self.path}: the array {shorten(name, 60)!r} must be text. Got a damaged one. Copy it again."
                )
        return array


def _mapped(path: Path) -> np.ndarray:
    """The array of an .npy, mapped from disk."""
    with open_regular(path) as file:
        needed = _declared_bytes(file, path)
        if needed > os.fstat(file.fileno()).st_size:
            raise ValueError("it is cut off")
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _unpacked(packed: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, path: Path) -> np.ndarray:
    """An array of an .npz, in memory."""
    check_zip_method(info, path)
    check_memory(path, info.file_size, f"the array {shorten(name, 60)!r}", stored=info.compress_size)
    with packed.open(info) as member:
        if _declared_bytes(member, path) > info.file_size:
            raise ValueError("it is cut off")
    with packed.open(info) as member:
        array = native(np.lib.format.read_array(member, allow_pickle=False))
        member.read(1)  # at its end, zipfile compares the checksum
    return array


def _declared_bytes(file: IO[bytes], path: Path) -> int:
    """How long a file is that begins with this header and holds all of its array; refuses other things than plain values."""
    version = np.lib.format.read_magic(file)
    if version not in _VERSIONS:
        raise ValueError(f"its format has the version {version[0]}.{version[1]}, which does not exist")
    form = np.lib.format
    read_header = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    try:
        shape, _, dtype = read_header(file)
    except MemoryError as error:  # what Python's parser says of brackets that are nested too deeply
        raise ValueError("its header is not one of numpy") from error
    if dtype.kind not in _PLAIN:
        raise FormatError(
            f"{path}: arrays must be plain numbers or text. Got {shorten(str(dtype), 80)}; arrays of Python objects would have "
            "to be unpickled. Save plain arrays with numpy.save or numpy.savez."
        )
    return file.tell() + math.prod(shape) * dtype.itemsize


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
            about = self._file.metadata
            schema = self._file.schema_arrow
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

    @property
    def holds_lists(self) -> bool:
        """Whether a column has a list in each row, as features may."""
        lists = ("list", "large_list", "fixed_size_list")
        return any(str(kind).startswith(lists) for kind in self.types.values())

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        """Record batches of pyarrow with these columns, of at most `size` rows."""
        with damaged(self.path, "a parquet file"):
            yield from self._file.iter_batches(batch_size=size, columns=list(columns))
