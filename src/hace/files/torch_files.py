"""Read files that `torch.save` wrote: tensors, numbers, text, lists and dictionaries, and nothing that runs.

`torch.load(weights_only=True)` crashes on deep nesting, trusts the sizes that a file declares and unpacks compressed
records of any size. This reader takes a tensor's bytes only where the file has as many as the tensor declares.

Two layouts exist: a zip archive of stored records (since torch 1.6), and before it five pickles followed by the raw bytes.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from hace.errors import FormatError
from hace.files.pickles import Buildable, Name, Vocabulary, read_pickle

MAX_RECORDS = 200_000
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}


class _Storage(NamedTuple):
    """The bytes of one or several tensors."""

    content: Tensor  # uint8
    dtype: torch.dtype


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
    if not isinstance(storage, _Storage):
        raise FormatError("a tensor has no storage")
    if type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride):
        raise FormatError("a tensor has no shape")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (offset, *size, *stride)):
        raise FormatError("a tensor has no shape")
    if not all(size):
        return torch.empty(size, dtype=storage.dtype)
    values = storage.content.view(storage.dtype)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    # Strides of 0 would let a few bytes claim any number of values.
    if max(last + 1, math.prod(size)) > len(values):
        raise FormatError(f"a tensor of shape {size} does not fit its {len(values):,} values"[:200])
    return values.as_strided(size, stride, offset)


def _dictionary(*arguments: Any) -> dict[Any, Any]:
    if arguments and not (len(arguments) == 1 and type(arguments[0]) is dict):
        raise FormatError("it makes a dictionary of something else")
    return dict(*arguments)


# What torch itself names for tensors and the dictionaries around them.
_VOCABULARY: Vocabulary = {
    ("collections", "OrderedDict"): _dictionary,
    ("collections", "Counter"): _dictionary,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch", "Size"): lambda sizes: sizes,
    ("torch", "device"): lambda *words: words,
    **{("torch", name): Name(dtype) for name, dtype in _DTYPES.items()},
    **{("torch", str(dtype)[6:]): Name(dtype) for dtype in _DTYPES.values()},
}


def read_torch(file: BinaryIO) -> Any:
    """What `torch.save` wrote.

    Args:
        file: An open file, positioned at its start.

    Returns:
        Tensors on the CPU, numbers, text, lists and dictionaries. Parameters are tensors.

    Raises:
        FormatError: Another or a damaged file, or one that holds more than that. The text is the end of a sentence, without
            the file's name.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        zipped = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        return _read_zip(file, size) if zipped else _read_legacy(file, size)
    except FormatError:
        raise
    except KeyError:
        raise FormatError("a record is missing") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        raise FormatError(f"it is damaged ({str(error)[:100]})") from error


def _read_zip(file: BinaryIO, size: int) -> Any:
    with zipfile.ZipFile(file) as packed:
        infos = packed.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise FormatError("its records are compressed, which torch.save never does")
        if len(infos) > MAX_RECORDS or sum(info.file_size for info in infos) > size:
            raise FormatError("its records declare more bytes than it has")
        names = {info.filename for info in infos}
        pickles = [name for name in names if name.endswith("/data.pkl")]
        top = pickles[0].removesuffix("data.pkl") if len(pickles) == 1 else ""
        if f"{top}byteorder" in names and packed.read(f"{top}byteorder") != b"little":
            raise FormatError("it is from a big-endian machine")
        storage = _storages(lambda key: packed.read(f"{top}data/{key}"))
        return read_pickle(packed.read(f"{top}data.pkl"), _VOCABULARY, storage)


def _read_legacy(file: BinaryIO, size: int) -> Any:
    """Magic number, protocol and system; the object; the storages' keys; then for each its count and its bytes."""
    magic, protocol, system = (read_pickle(file, {}) for _ in range(3))
    if magic != LEGACY_MAGIC or protocol != LEGACY_PROTOCOL or type(system) is not dict:
        raise FormatError("it is not a file that torch.save wrote")
    if system.get("little_endian") is not True:
        raise FormatError("it is from a big-endian machine")
    start = file.tell()
    itemsizes: dict[str, int] = {}

    def note(description: Any) -> Buildable:
        key, dtype, _ = _described(description)
        itemsizes[key] = dtype.itemsize
        return Buildable()

    without_tensors = {
        name: (lambda *_: Buildable()) if value is _tensor else value for name, value in _VOCABULARY.items()
    }
    read_pickle(file, without_tensors, note)
    keys = read_pickle(file, {})
    if type(keys) is not list or set(map(str, keys)) != set(itemsizes):
        raise FormatError("it does not list its storages")
    found: dict[str, bytes] = {}
    for key in keys:
        length = int.from_bytes(file.read(8), "little") * itemsizes[key]
        if length > size:
            raise FormatError("a storage is cut off")
        found[key] = file.read(length)
    file.seek(start)
    return read_pickle(file, _VOCABULARY, _storages(found.__getitem__))


def _storages(content: Callable[[str], bytes]) -> Callable[[Any], _Storage]:
    """Turns the description of a storage into its bytes, each read once."""
    read: dict[str, _Storage] = {}

    def storage(description: Any) -> _Storage:
        key, dtype, count = _described(description)
        if key not in read:
            try:
                found = content(key)
            except KeyError:
                raise FormatError("a record is missing") from None
            if len(found) != count * dtype.itemsize:
                raise FormatError(f"a storage declares {count:,} values and has {len(found):,} bytes"[:200])
            empty = torch.empty(0, dtype=torch.uint8)  # torch takes no empty buffer
            read[key] = _Storage(
                torch.frombuffer(bytearray(found), dtype=torch.uint8) if found else empty, dtype
            )
        if read[key].dtype != dtype:
            raise FormatError("a storage has two types")
        return read[key]

    return storage


def _described(description: Any) -> tuple[str, torch.dtype, int]:
    """Key, type and count of ("storage", type, key, device, count)."""
    if type(description) is tuple and len(description) >= 5 and description[0] == "storage":
        _, kind, key, _, count = description[:5]
        if isinstance(kind, Name) and type(key) is str and type(count) is int and count >= 0:
            return key, kind.value, count
    raise FormatError("a storage has no description")
