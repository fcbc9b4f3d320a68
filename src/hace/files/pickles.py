"""Reads the pickles of CIFAR-100 without running what a pickle can run.

A pickle is a program that may call anything. The published files call three things, all of numpy, to make one array. Here
each of the three is replaced by a stand-in that only notes down what it was given; everything else is refused before it is
called. What was noted down is checked, and only then becomes an array.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from hace.errors import DataError

# 50,000 images are 155 MB; far above that, it is something else.
MAX_BYTES = 1 << 30


class _Type:
    """Stands in for numpy.dtype: only bytes are read, so only that type is known."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = _text(name)

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and alignment, which bytes have none of


class _Array:
    """Stands in for an array under construction."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _ArrayClass:
    """Stands in for numpy.ndarray, which the files only name."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


# What the published files name.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _ArrayClass,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it wants to call {module_name}.{global_name}, which CIFAR-100 does not need"
            ) from None


def load_cifar_pickle(data: bytes, source: str) -> dict[str, Any]:
    """The dictionary of a file `train`, `test` or `meta`.

    Args:
        data: The file.
        source: What messages call it.

    Returns:
        Text keys; values are numbers, text, lists of them, and uint8 arrays.

    Raises:
        DataError: If it is damaged, holds something else, or wants to call anything.
    """
    if len(data) > MAX_BYTES:
        raise DataError(f"{source}: {len(data):,} bytes are too many for a file of CIFAR-100.")
    try:
        found = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if type(found) is not dict:
            raise pickle.UnpicklingError(f"it holds a {type(found).__name__} instead of a dictionary")
        return {_text(key): _plain(value) for key, value in found.items()}
    except (RecursionError, MemoryError) as error:
        raise DataError(f"{source}: not a pickle of CIFAR-100 ({type(error).__name__}).") from error
    except Exception as error:  # broken pickles raise whatever their opcodes run into
        raise DataError(
            f"{source}: not a pickle of CIFAR-100: {error}. Nothing of it was run. Fetch it again from the official page."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return _array(value.state)
    if type(value) is list:
        return [_text(v) if type(v) in (bytes, str) else _number(v) for v in value]
    return _text(value) if type(value) in (bytes, str) else _number(value)


def _number(value: Any) -> int | float:
    if type(value) not in (int, float):
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__.strip('_')}")
    return value


def _text(value: Any) -> str:
    if type(value) is bytes:
        return value.decode("latin-1")
    if type(value) is not str:
        raise pickle.UnpicklingError(f"expected text, got a {type(value).__name__.strip('_')}")
    return value


def _array(state: Any) -> np.ndarray:
    """The array of numpy's own state: version, shape, type, column order, bytes."""
    if type(state) is not tuple or len(state) != 5:
        raise pickle.UnpicklingError("an array is not complete")
    _, shape, kind, columns_first, content = state
    if not isinstance(kind, _Type) or kind.name != "u1" or columns_first or type(content) is not bytes:
        raise pickle.UnpicklingError("an array is not of bytes")
    if type(shape) is not tuple or not all(type(size) is int and size >= 0 for size in shape):
        raise pickle.UnpicklingError("an array has no shape")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
