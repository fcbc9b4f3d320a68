"""The pickles of CIFAR-100: text, numbers, lists of them, and one array of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hace.errors import FormatError
from hace.files.pickles import Buildable, Name, Vocabulary, read_pickle


class _Array(Buildable):
    """Stands for an array; its state is (version, shape, dtype, column order, bytes)."""


class _Type(Buildable):
    """Stands for a dtype, whose name decides; its state is byte order and alignment, which bytes do not have."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name


# What the published files name.
_VOCABULARY: Vocabulary = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): Name("array"),
    ("numpy", "dtype"): _Type,
}


def read_cifar_pickle(data: bytes, source: str) -> dict[str, Any]:
    """The dictionary of a file `train`, `test` or `meta`.

    Args:
        data: The file.
        source: What messages call it.

    Returns:
        Text keys; values are numbers, text, lists of them, and uint8 arrays.

    Raises:
        FormatError: It is damaged, holds something else, or wants to call anything.
    """
    try:
        found = read_pickle(data, _VOCABULARY)
        if type(found) is not dict:
            raise FormatError(f"it holds a {type(found).__name__.strip('_')} instead of a dictionary")
        return {_text(key): _plain(value) for key, value in found.items()}
    except FormatError as error:
        raise FormatError(
            f"{source}: not a pickle of CIFAR-100: {error}. Nothing in it was run. Fetch it again from the official page."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return _array(value.state)
    return [_scalar(item) for item in value] if type(value) is list else _scalar(value)


def _scalar(value: Any) -> str | int | float:
    if type(value) in (bytes, str):
        return _text(value)
    if type(value) not in (int, float):
        raise FormatError(f"it holds a {type(value).__name__.strip('_')}")
    return value


def _text(value: Any) -> str:
    if type(value) is bytes:
        return value.decode("latin-1")
    if type(value) is not str:
        raise FormatError(f"a key must be text, got a {type(value).__name__.strip('_')}")
    return value


def _array(state: Any) -> np.ndarray:
    if type(state) is not tuple or len(state) != 5:
        raise FormatError("an array is not complete")
    _, shape, dtype, columns_first, content = state
    if type(content) is str:  # Python 2 has one kind of string
        content = content.encode("latin-1", "replace")
    name = dtype.name if isinstance(dtype, _Type) else None
    if name not in ("u1", b"u1") or columns_first or type(content) is not bytes:
        raise FormatError("an array is not of bytes")
    if type(shape) is not tuple or not all(type(size) is int and 0 <= size <= len(content) for size in shape):
        raise FormatError("an array has no shape")
    if int(np.prod(shape, dtype=object)) != len(content):
        raise FormatError(f"an array of shape {shape} has {len(content):,} bytes"[:200])
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
