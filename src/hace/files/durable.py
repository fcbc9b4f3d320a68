"""Results on disk: whole, flushed before they take their place, and known by their hash."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hace.errors import HaceError
from hace.files.atomic import atomic_path


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into a message. Nothing half written stays: files move into place whole."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "Make it writable")
        raise HaceError(
            f"Cannot write to {folder}: {error.strerror or error}. {remedy} and run the same command again: what is whole "
            "stays, and it goes on from there. Or give another --out."
        ) from error


_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Free some space")
_REMEDIES |= dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "Move the file that is in the way")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is whole and on the disk before it takes its place; leave it alone if it is the same."""
    with writing(path.parent):
        if path.exists() and path.read_bytes() == content:
            return
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def array_bytes(array: np.ndarray) -> bytes:
    """The bytes of an .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def json_bytes(document: Any) -> bytes:
    """The bytes of a JSON file."""
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sha256(path: Path) -> str:
    """The hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
