"""Pickles from outside: CIFAR-100's files, and what is checked of any pickle before it is read.

A pickle is a program. Two things make it harmless: an unpickler that may name nothing but what its reader lists, and limits on
what it builds. Python hashes tuples in tuples by recursion in C, and dies where they nest 100,000 levels deep.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import warnings
from typing import Any, BinaryIO

import numpy as np

from hace.errors import FormatError

MAX_OPCODES = 4_000_000  # CIFAR-100 has 0.3 million, a checkpoint with optimiser state about 50 per tensor
MAX_TUPLES = 50_000  # a checkpoint has four per tensor
_TUPLES = frozenset("TUPLE TUPLE1 TUPLE2 TUPLE3".split())
_STORE = frozenset("PUT BINPUT LONG_BINPUT".split())  # to a numbered place of the table of shared values
_MALFORMED = "its opcodes do not fit together"


def check_size(data: bytes | BinaryIO) -> None:
    """Refuse a pickle that is too long, has too many tuples, or sizes the table of shared values. Runs nothing.

    A file is left where its pickle ends.
    """
    tuples = 0
    for count, (opcode, argument, _) in enumerate(_opcodes(data)):
        tuples += opcode.name in _TUPLES
        if count >= MAX_OPCODES:
            raise FormatError(f"it has more than {MAX_OPCODES:,} opcodes")
        if tuples > MAX_TUPLES:
            raise FormatError(f"it has more than {MAX_TUPLES:,} tuples")
        if opcode.name in _STORE and argument >= MAX_OPCODES:
            raise FormatError(_MALFORMED)


def _opcodes(data: bytes | BinaryIO) -> Any:
    """The opcodes of a pickle up to its STOP."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in text that is not to be trusted anyway
            yield from pickletools.genops(data)
    except FormatError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(str(error)[:200] or "it is damaged") from error


class _Part:
    """Stands for whatever a file of CIFAR-100 names: an array, its class or its dtype. Remembers what it is made of."""

    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _CifarUnpickler(pickle.Unpickler):
    """Knows the three names in CIFAR-100's files, calls none of them, and refuses all others."""

    _NAMES = frozenset(
        (("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")),
    )

    def find_class(self, module: str, name: str) -> type[_Part]:
        if (module, name) not in self._NAMES:
            raise FormatError(f"it wants to call {module[:60]}.{name[:60]}")
        return _Part


def read_cifar_pickle(data: bytes, source: str) -> dict[str, Any]:
    """The dictionary of a file `train`, `test` or `meta` of CIFAR-100: text, lists, and uint8 arrays by text keys."""
    try:
        check_size(data)
        try:
            content = _CifarUnpickler(io.BytesIO(data), encoding="latin-1").load()
            if type(content) is not dict:
                raise FormatError(f"it holds a {type(content).__name__.strip('_')} instead of a dictionary")
            return {_as_text(key): _decoded(value) for key, value in content.items()}
        except FormatError:
            raise
        except Exception as error:  # pickle raises whatever damaged bytes run into
            raise FormatError(" ".join(str(error).split())[:200].rstrip(".") or _MALFORMED) from error
    except FormatError as error:
        raise FormatError(
            f"{source}: not a pickle of CIFAR-100: {error}. Nothing in it was run. Fetch it again from the official page."
        ) from error


def _as_text(value: Any) -> str:
    return value.decode("latin-1") if type(value) is bytes else str(value)


def _decoded(value: Any) -> Any:
    if isinstance(value, _Part):
        return _byte_array(value.state)
    if type(value) is list:
        return [_as_text(item) if type(item) is bytes else item for item in value]
    return _as_text(value) if type(value) is bytes else value


def _byte_array(state: Any) -> np.ndarray:
    """The array behind a state as numpy pickles it: version, shape, dtype, column order, bytes."""
    if type(state) is not tuple or len(state) != 5:
        raise FormatError("an array is not complete")
    _, shape, dtype, columns_first, content = state
    if type(content) is str:  # Python 2 has one kind of string
        content = content.encode("latin-1", "replace")
    kind = dtype.arguments[:1] if isinstance(dtype, _Part) else ()
    if kind not in (("u1",), (b"u1",)) or columns_first or type(content) is not bytes:
        raise FormatError("an array is not of bytes")
    if type(shape) is not tuple or not all(type(size) is int and 0 <= size <= len(content) for size in shape):
        raise FormatError("an array has no shape")
    if math.prod(shape) != len(content):
        raise FormatError(f"an array of shape {shape} has {len(content):,} bytes"[:200])
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
