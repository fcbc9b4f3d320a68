"""Bytes and text from outside: only regular files, only so many bytes, one error for whatever goes wrong."""

from __future__ import annotations

import codecs
import io
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
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
_BLOCK = 1 << 20
_MAX_LINE = 1 << 26  # characters


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
        convert it: iconv -f LATIN1 -t UTF-8 a.txt > utf8-a.txt
    """
    used = _encoding_of(data, encoding)
    try:
        text = data.decode(used)
    except UnicodeDecodeError as error:
        if "16" not in used and "32" not in used:
            _refuse_zeros(data.decode("latin-1"), name)  # an image or an array, whatever its first byte
        raise _undecodable(
            name, data.count(b"\n", 0, error.start) + 1, error.object[error.start], error.start, used
        ) from error
    except (LookupError, ValueError) as error:  # ValueError: codecs such as base64, which are not of text
        raise _unknown_encoding(encoding) from error
    _refuse_zeros(text, name)
    return text.removeprefix("\ufeff")


def text_lines(path: str | os.PathLike[str], encoding: str | None = None) -> Iterator[str]:
    """The lines of a text file of any size, without their ends, read as `decode` reads; one line is in memory at a time.

    Args:
        path: The file.
        encoding: As in `decode`.

    Raises:
        FormatError: As in `decode` and `open_regular`, or a line that does not fit into memory.
    """
    name = _shown(path)
    with open_regular(path) as file:
        block = file.read(_BLOCK)
        used = _encoding_of(block, encoding)
        decoder = io.IncrementalNewlineDecoder(_incremental(used, encoding), translate=True)
        line, position, held = 1, 0, ""
        while True:
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = position - (len(error.object) - len(block)) + error.start
                line += error.object.count(b"\n", 0, error.start)
                raise _undecodable(name, line, error.object[error.start], place, used) from error
            _refuse_zeros(text, name)
            *whole, rest = (held + text).split("\n") if "\n" in text else (held + text,)
            if len(rest) > _MAX_LINE:
                raise FormatError(
                    f"{name}, line {line + len(whole)}: a line must have at most {_MAX_LINE:,} characters."
                )
            yield from (one.removeprefix("\ufeff") for one in whole)
            line, position, held = line + len(whole), position + len(block), rest
            if not block:
                break
            block = file.read(_BLOCK)
    if held:
        yield held.removeprefix("\ufeff")


def _incremental(used: str, encoding: str | None) -> codecs.IncrementalDecoder:
    try:
        decoder = codecs.getincrementaldecoder(used)()
        if isinstance(decoder.decode(b""), str):
            return decoder
    except (LookupError, ValueError):
        pass
    raise _unknown_encoding(encoding)


def _encoding_of(data: bytes, encoding: str | None) -> str:
    marked = next((kind for mark, kind in _MARKS if data.startswith(mark)), None)
    return marked or encoding or "utf-8"


def _undecodable(name: str, line: int, byte: int, place: int, used: str) -> FormatError:
    rule = f"{name}, line {line}: the text must be {used.removesuffix('-sig').upper()}."
    # The new name keeps its ending: readers go by it.
    paths = shlex.quote(name), shlex.quote(f"utf8-{Path(name).name}")
    remedy = (
        f" If it is Latin-1, convert it: iconv -f LATIN1 -t UTF-8 {paths[0]} > {paths[1]}"
        if "8" in used
        else ""
    )
    return FormatError(f"{rule} Got byte 0x{byte:02x} at position {place}.{remedy}")


def _unknown_encoding(encoding: str | None) -> ConfigError:
    return ConfigError(f"encoding must be the name of a text encoding such as 'utf-8'. Got {encoding!r}.")


def _refuse_zeros(text: str, name: str) -> None:
    if "\0" in text:
        place = text.index("\0")
        raise FormatError(
            f"{name}: the file must be text. Got a binary file, with a zero at character {place}."
        )


def read_text(path: str | os.PathLike[str], encoding: str | None = None) -> str:
    """The text of a regular file, as `decode` reads it."""
    return decode(read_bytes(path), _shown(path), encoding)


def is_file(text: str) -> bool:
    """Whether a text that may be anything is the path of a file.

    Args:
        text: A path, or something else.
    """
    try:
        return os.path.isfile(text)
    except (OSError, ValueError):  # longer than a path may be, or with a zero character
        return False


def reason(error: Exception) -> str:
    """The words of an operating system error, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


def _not_regular(path: str | os.PathLike[str], found: str) -> FormatError:
    return FormatError(f"{_shown(path)}: must be a file. Got {found}. Give the path of a file.")


def _shown(path: str | os.PathLike[str]) -> str:
    return os.fsdecode(path)
