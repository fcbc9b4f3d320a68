"""Arrays from outside: .npy and .npz, known by their content, never unpickled, in memory only as far as they are used."""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from hace.errors import FormatError, HaceError, shorten
from hace.files.limits import check_memory
from hace.files.reading import open_regular

_MAGIC = b"\x93NUMPY"
_READ_AT_ONCE = (
    1 << 26
)  # bytes; larger arrays that are stored uncompressed are mapped, and their checksum is not compared
_MAX_HEADER = 1 << 16  # bytes; the header of an array of plain numbers has about 100


@dataclass(frozen=True)
class _Declared:
    """What the header of an array says, and where its data begin."""

    shape: tuple[int, ...]
    order: str  # "C" or "F"
    dtype: np.dtype
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of an .npy or .npz file by name; the array of an .npy is called "".

    An array is loaded when it is asked for: large ones that are stored uncompressed are mapped from disk, in the byte order of
    the file (`native` converts slices of them); others are read into memory, if what they declare is within
    `limits.max_memory`.

    Args:
        path: The file. Its content decides how it is read, whatever its suffix.

    Raises:
        FormatError: It cannot be read, is damaged, encrypted, or neither .npy nor .npz.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._members: dict[str, zipfile.ZipInfo | None] = {"": None}
        with open_regular(path) as file, _damaged(self.path):
            magic = file.read(len(_MAGIC))
            if magic.startswith(b"PK"):
                with zipfile.ZipFile(file) as packed:
                    self._members = {i.filename.removesuffix(".npy"): i for i in packed.infolist()}
            elif magic != _MAGIC:
                raise FormatError(
                    f"{self.path}: must be an .npy or .npz file of numpy. Got other content. Save it with numpy.save or "
                    "numpy.savez."
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
        array = self._load(name)
        if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
            codes = native(np.ascontiguousarray(array)).view(np.uint32)
            if (codes > sys.maxunicode).any():  # numpy and Python fail on them later, each in its own way
                raise FormatError(
                    f"{self.path}: the array {_shown(name)} must be text. Got a damaged one. Copy it again."
                )
        return array

    def _load(self, name: str) -> np.ndarray:
        info = self._members[name]
        with open_regular(self.path) as file, _damaged(self.path):
            if info is None:
                file.seek(0)
                return self._mapped(file, _header(file, self.path, name), os.fstat(file.fileno()).st_size)
            if info.flag_bits & 1:
                raise FormatError(
                    f"{self.path}: must not be encrypted. Got the encrypted array {_shown(name)}."
                )
            with zipfile.ZipFile(file) as packed, packed.open(info) as member:
                declared = _header(member, self.path, name)
                if declared.start + declared.size > info.file_size:
                    raise FormatError(self._cut(name))
                if info.compress_type == zipfile.ZIP_STORED and declared.size > _READ_AT_ONCE:
                    return self._mapped(file, declared, _data_end(file, info), _data_start(file, info))
                check_memory(self.path, declared.size, f"the array {_shown(name)}", stored=info.compress_size)
                data = member.read(declared.size)
                member.read(1)  # at its end, zipfile compares the checksum
        if len(data) < declared.size:
            raise FormatError(self._cut(name))
        return native(np.frombuffer(data, declared.dtype)).reshape(declared.shape, order=declared.order)  # type: ignore[call-overload]

    def _mapped(self, file: BinaryIO, declared: _Declared, end: int, start: int = 0) -> np.ndarray:
        start += declared.start
        if start + declared.size > end:
            raise FormatError(self._cut(""))
        if declared.size == 0:
            return np.empty(declared.shape, declared.dtype)
        return np.memmap(file, declared.dtype, "r", start, declared.shape, declared.order)  # type: ignore[call-overload]

    def _cut(self, name: str) -> str:
        what = f"the array {_shown(name)}" if name else "the file"
        return f"{self.path}: {what} must hold all numbers that its header declares. Got a file that is cut off. Copy it again."


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of an .npy file, mapped from disk.

    Raises:
        FormatError: It cannot be read, is damaged, or holds several arrays.
    """
    arrays = Arrays(path)
    if not arrays.single:
        raise FormatError(f"{arrays.path}: must be an .npy file with one array. Got an .npz file.")
    return arrays[""]


def native(array: np.ndarray) -> np.ndarray:
    """The array in the machine's byte order, long doubles as float64; the array itself where that holds already.

    Example:
        >>> native(np.array([1, 2], dtype=">i4")).dtype.isnative
        True
    """
    if array.dtype.kind in "fc" and array.dtype.itemsize > 8 * (1 + (array.dtype.kind == "c")):
        with np.errstate(all="ignore"):  # what is beyond float64 becomes infinite
            return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _header(file: IO[bytes], path: Path, name: str) -> _Declared:
    """Read and check the header of an array, from its first byte on."""
    start = file.read(12)
    if start[:6] != _MAGIC:
        raise FormatError(f"{path}: must hold plain arrays. Got {_shown(name)}, which is not an .npy array.")
    long = start[6] > 1  # version 1 has two bytes for the length of the header, later ones four
    (length,) = struct.unpack("<I" if long else "<H", start[8 : 12 if long else 10])
    if length > _MAX_HEADER:
        raise FormatError(
            f"{path}: the header of an array must have at most {_MAX_HEADER:,} bytes. Got {length:,}."
        )
    size = (12 if long else 10) + length
    header = io.BytesIO(start + file.read(size - len(start)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers written by Python 2
        version = np.lib.format.read_magic(header)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(header, max_header_size=_MAX_HEADER)
    if dtype.hasobject or dtype.kind == "V":
        raise FormatError(
            f"{path}: arrays must be plain numbers or text. Got {shorten(str(dtype), 80)}; arrays of Python objects would have "
            "to be unpickled. Save plain arrays with numpy.save or numpy.savez."
        )
    if any(isinstance(n, bool) or n < 0 for n in shape):
        raise FormatError(
            f"{path}: the shape of an array must not be negative. Got {shorten(str(shape), 80)}."
        )
    return _Declared(shape, "F" if fortran else "C", dtype, size)


def _data_start(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    file.seek(
        info.header_offset + 26
    )  # the lengths of the name and of the extra field, after which the data begin
    name, extra = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + name + extra


def _data_end(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    return min(_data_start(file, info) + info.compress_size, os.fstat(file.fileno()).st_size)


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Damaged files make zipfile, zlib and numpy raise whatever their bytes run into: one error for all of it."""
    try:
        yield
    except (HaceError, MemoryError):
        raise
    except Exception as error:
        words = shorten(str(error).rstrip(". ") or type(error).__name__, 200)
        raise FormatError(
            f"{path}: must be an .npy or .npz file of numpy. Got a damaged one: {words}. Copy it again."
        ) from error


def _shown(name: str) -> str:
    return repr(shorten(name, 60))
