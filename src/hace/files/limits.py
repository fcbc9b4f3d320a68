"""How much memory a file from outside may claim.

A few kilobytes can declare terabytes: a compressed array, a manifest that counts 10**12 rows, an image of 10**6 by 10**6
pixels. Readers add up what a file declares and call `check_memory` before they allocate anything. The limit is 1 GiB; set
the environment variable HACE_MAX_MEMORY to raise it, in bytes or as 4G (K, M, G and T are powers of 1024).
"""

from __future__ import annotations

import os
import re

from hace.errors import ConfigError, FormatError

VARIABLE = "HACE_MAX_MEMORY"
DEFAULT = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def max_memory() -> int:
    """The limit in bytes: HACE_MAX_MEMORY, or 1 GiB.

    Raises:
        ConfigError: HACE_MAX_MEMORY is not a size.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    size = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(i?B)?", text, re.IGNORECASE)
    if not size:
        raise ConfigError(
            f"{VARIABLE} must be a number of bytes such as 4294967296 or 4G. Got {text[:40]!r}."
        )
    return int(size[1]) * _UNITS[size[2].upper()]


def check_memory(path: object, claimed: int, what: str = "its content", *, stored: int = 0) -> None:
    """Refuse a file that declares more memory than it may take.

    Args:
        path: The file, for the message.
        claimed: The bytes it declares, computed with Python integers, which do not overflow.
        what: What would take them, for the message.
        stored: The bytes this takes on disk. A file may always claim as much as it really holds.

    Raises:
        FormatError: The claim is above the limit.

    Example:
        >>> check_memory("a.npz", 10**12, "the array 'scores'")
        Traceback (most recent call last):
        hace.errors.FormatError: a.npz: the array 'scores' must take at most 1.0 GiB of memory. Got 931.3 GiB. If the file is
        what you think it is, set HACE_MAX_MEMORY=932G.
    """
    if claimed > max(max_memory(), stored):
        gib = 1 << 30
        raise FormatError(
            f"{path}: {what} must take at most {max_memory() / gib:.1f} GiB of memory. Got {claimed / gib:,.1f} GiB. "
            f"If the file is what you think it is, set {VARIABLE}={-(-claimed // gib)}G."
        )


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that memory ran out: Python's, numpy's, torch's, on any device.

    Args:
        error: What was raised.

    Example:
        >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes"))
        True
    """
    while error is not None:
        text = str(error).lower()
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError | OSError) and any(w in text for w in _SAYINGS)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


_SAYINGS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
)
