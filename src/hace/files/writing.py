"""Files that appear whole or not at all, and folders that one process at a time works in.

Files are flushed before they take their place, and known by their hash. A lock belongs to the process that took it, and ends
with it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hace.errors import ConfigError, HaceError
from hace.files.reading import open_regular, reason

# How the folder of an unfinished file begins; one that remains was left by a killed process.
TEMPORARY = ".hace-"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_WHILE_OTHERS_CLEAN = 60.0  # seconds


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A path to write to in place of `path`; what was written moves there at the end, in one step.

    A reader never sees half a file, and a writer that fails, or is stopped, leaves the old file as it was. The
    temporary file is in the same folder and keeps the suffix, from which writers tell the format.
    """
    path = Path(path).resolve()  # a link stays, and the file it leads to is replaced
    _check_target(path)
    if not path.parent.is_dir():
        raise ConfigError(f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.")
    # mkstemp would leave the file readable by its owner only; a folder keeps the writer's usual permissions.
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        yield temporary
        os.replace(temporary, path)


@contextmanager
def atomic_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write several files to; they move into `folder` at the end, all of them or none.

    Other files in `folder`, which is made if it does not exist, stay as they are.
    """
    folder = Path(folder)
    new = not folder.exists()
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
                yield Path(temporary)
                written = sorted(Path(temporary).iterdir())
                for file in written:
                    _check_target(folder / file.name)
                for file in written:
                    os.replace(file, folder / file.name)
    except BaseException:
        if new:
            with suppress(OSError):  # it cannot be made, or somebody else has written to it
                folder.rmdir()
        raise


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"Cannot write to {path}: it is a folder. Give the name of a file.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"Cannot write to {path}: it is a device or a pipe. Give the name of a file.")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into a message. Nothing half written stays: files move into place whole."""
    try:
        yield
    except OSError as error:
        name = Path(os.fsdecode(error.filename or folder)).name
        remedy = _REMEDIES.get(error.errno or 0, "Make it writable").format(name=name)
        raise HaceError(
            f"Cannot write to {folder}: {reason(error)}. {remedy} and run the same command again; what is complete stays."
        ) from error


_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Free some space")
_REMEDIES |= dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "Move the file that is in the way")
_REMEDIES |= {errno.EISDIR: "Move away the folder {name}", errno.ELOOP: "Remove the link {name}"}


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is whole and on the disk before it takes its place; leave it alone if it is the same.

    For files of a run, a study or a store: in folders that hace fills, nothing is written through links.
    """
    with writing(path.parent):
        _refuse_link(path, "file")
        if path.exists() and path.read_bytes() == content:
            return
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def append_text(path: Path, text: str) -> None:
    """Append to a file of a run, never through a link."""
    _refuse_link(path, "file")
    with writing(path.parent):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(path, flags, 0o666), "ab") as file:
            file.write(text.encode("utf-8"))


def own_folder(path: Path) -> Path:
    """Make a folder of a run or a report, if it does not exist; a link in its place is refused."""
    _refuse_link(path, "folder")
    with writing(path.parent):
        path.mkdir(parents=True, exist_ok=True)
    return path


def _refuse_link(path: Path, kind: str) -> None:
    if path.is_symlink():
        raise HaceError(f"{path} must be a {kind}. Got a link. Remove it and run the same command again.")


def array_bytes(array: np.ndarray) -> bytes:
    """The bytes of an .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def json_bytes(document: Any) -> bytes:
    """The bytes of a JSON file."""
    try:
        return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except ValueError as error:  # of both: UnicodeEncodeError is one
        raise HaceError(
            f"A JSON document must hold finite numbers and whole characters. Got {error}."
        ) from error


def without_nan(value: Any) -> Any:
    """The same document with None for NaN and the infinities, which JSON cannot hold."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(path: Path) -> str:
    """The hash of a file."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(1 << 18):  # stays in the cache
            digest.update(chunk)
    return digest.hexdigest()


LOCK = ".lock"


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold an existing folder for this process, without waiting."""
    with _held(folder / LOCK):
        yield


@contextmanager
def beside_others(folder: Path, clean: Callable[[], None]) -> Iterator[None]:
    """Work in a folder beside other processes that do the same; the first one cleans before it begins."""
    own = folder / f"{LOCK}-{secrets.token_hex(8)}"
    with ExitStack() as while_at_work:
        with _held(folder / LOCK, seconds=_WHILE_OTHERS_CLEAN):
            others = list(folder.glob(f"{LOCK}-*"))
            if not any(map(_is_held, others)):
                for left in others:  # by a process that was killed
                    left.unlink(missing_ok=True)
                clean()
            while_at_work.enter_context(_held(own))
        try:
            yield
        finally:
            with suppress(OSError):
                own.unlink()


def is_held(folder: Path) -> bool:
    """Whether some process is at work in a folder: the one answer to "who holds it".

    A folder that cannot be locked at all is held by nobody: whoever goes on to work there gets the error of `only_process`.
    """
    return folder.is_dir() and _is_held(folder / LOCK)


def _is_held(lock: Path) -> bool:
    try:
        with _held(lock):
            return False
    except ConfigError:
        return True
    except HaceError:
        return False


@contextmanager
def _held(lock: Path, seconds: float = 0) -> Iterator[None]:
    """Hold a file for this process. The operating system lets go of it when the process ends, however it dies."""
    import filelock  # not needed to import hace

    held = filelock.FileLock(lock, timeout=seconds)
    with writing(lock.parent):
        try:
            held.acquire()
        except filelock.Timeout:
            raise ConfigError(
                f"Another process is at work in {lock.parent}. Wait for it, stop it, or give another folder."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise HaceError(
                f"{lock.parent} must be on a file system with locks. Got: {error.strerror}. Give a folder on another one."
            ) from error
    try:
        yield
    finally:
        held.release()
