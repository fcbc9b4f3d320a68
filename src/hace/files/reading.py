"""Bytes and text from outside: only regular files, only so many bytes, one error for whatever goes wrong."""

from __future__ import annotations

import codecs
import os
import stat
from typing import BinaryIO

from hace.errors import ConfigError, FormatError
from hace.files.limits import check_memory

# Byte order marks and their encodings; the mark of UTF-16-LE begins that of UTF-32-LE, so the longer ones come first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading bytes. A folder, a pipe or a device is an error at once, never a wait.

    Args:
        path: The file.

    Raises:
        FormatError: It does not exist, may not be read, or is not a regular file.
    """
    # Not blocking: opening a pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero character
        if isinstance(error, IsADirectoryError) or os.path.isdir(path):
            raise _not_regular(path, "a folder") from error
        raise FormatError(f"{_shown(path)}: cannot be read: {reason(error)}.") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _not_regular(path, "a folder" if stat.S_ISDIR(mode) else "a pipe or a device")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """The content of a regular file.

    Args:
        path: The file.
        limit: The most bytes that make sense for it; by default what `limits.max_memory` allows.

    Raises:
        FormatError: It cannot be read, is not a regular file, or is too large.
    """
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if limit is None:
                check_memory(_shown(path), size)
            elif size > limit:
                raise FormatError(
                    f"{_shown(path)}: the file must have at most {limit:,} bytes. Got {size:,}. Is it the right one?"
                )
            return file.read(size)  # a file that grows meanwhile is read as it was
        except OSError as error:
            raise FormatError(f"{_shown(path)}: cannot be read: {reason(error)}.") from error


def decode(data: bytes, name: str, encoding: str | None = None) -> str:
    r"""Text in UTF-8, or in UTF-16 or UTF-32 where the file begins with their mark. The mark is dropped.

    Args:
        data: The content of a file.
        name: What messages call it.
        encoding: The encoding of a file without a mark, instead of UTF-8.

    Raises:
        FormatError: Bytes that are not text in this encoding.
        ConfigError: There is no such encoding.

    Example:
        >>> decode("wörter".encode("utf-16"), "a.txt")
        'wörter'
        >>> decode(b"w\xf6rter", "a.txt")
        Traceback (most recent call last):
        hace.errors.FormatError: a.txt, line 1: the text must be UTF-8. Got byte 0xf6 at position 1. If it is Latin-1,
        convert it: iconv -f LATIN1 -t UTF-8 a.txt > a.txt.utf8
    """
    marked = next((kind for mark, kind in _MARKS if data.startswith(mark)), None)
    used = marked or encoding or "utf-8"
    try:
        text = data.decode(used)
        text.encode("utf-8")  # utf-7 and its like can make halves of surrogate pairs
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        words = "the text must be " + used.removesuffix("-sig").upper()
        raise FormatError(
            f"{name}, line {line}: {words}. Got byte 0x{data[error.start]:02x} at position {error.start}."
            + (
                f" If it is Latin-1, convert it: iconv -f LATIN1 -t UTF-8 {name} > {name}.utf8"
                if not marked
                else ""
            )
        ) from error
    except (LookupError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"encoding must be the name of a text encoding such as 'utf-8'. Got {encoding!r}."
        ) from error
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        raise FormatError(
            f"{name}: the file must be text. Got a binary file, with a zero at character {text.index(chr(0))}."
        )
    return text


def read_text(path: str | os.PathLike[str], encoding: str | None = None) -> str:
    """The text of a regular file, as `decode` reads it."""
    return decode(read_bytes(path), _shown(path), encoding)


def reason(error: Exception) -> str:
    """The words of an operating system error, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


def _not_regular(path: str | os.PathLike[str], found: str) -> FormatError:
    return FormatError(f"{_shown(path)}: must be a file. Got {found}. Give the path of a file.")


def _shown(path: str | os.PathLike[str]) -> str:
    return os.fsdecode(path)
