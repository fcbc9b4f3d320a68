"""A folder that one process at a time works in.

The lock belongs to the process that took it: it ends with that process, however it dies, and children do not inherit it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hace.errors import ConfigError, HaceError
from hace.files.writing import writing

LOCK = ".lock"
_TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_held: set[int] = set()  # descriptors of the locks of this process

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _share(descriptor: int) -> None:
        pass  # no shared locks: the first process keeps its own, and files in use cannot be removed

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _share(descriptor: int) -> None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits while another one cleans

    def _forget() -> None:
        """Close a forked child's copies: loader workers outlive a killed training by seconds, and would hold its lock."""
        for descriptor in _held:
            os.close(descriptor)
        _held.clear()

    os.register_at_fork(after_in_child=_forget)


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold an existing folder for this process, without waiting."""
    with _lock_file(folder) as descriptor:
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in _TAKEN:
                raise ConfigError(
                    f"Another process is at work in {folder}. Wait for it, stop it, or give another folder."
                ) from None
            raise HaceError(
                f"{folder} must be on a file system with locks. Got: {error.strerror}. Give a folder on another one."
            ) from error
        yield


@contextmanager
def shared_lock(folder: Path, clean: Callable[[], None]) -> Iterator[None]:
    """Work in a folder beside other processes that do the same."""
    with _lock_file(folder) as descriptor:
        try:
            _lock(descriptor)
        except OSError:  # others are at work, or the file system has no locks: leave what is there
            pass
        else:
            clean()
        _share(descriptor)
        yield


def is_held(folder: Path) -> bool:
    """Whether some process is at work in a folder: the one answer to "who holds it".

    A folder that cannot be locked at all is held by nobody: whoever goes on to work there gets the error of `only_process`.
    """
    if not folder.is_dir():
        return False
    try:
        with only_process(folder):
            return False
    except ConfigError:
        return True
    except HaceError:
        return False


@contextmanager
def _lock_file(folder: Path) -> Iterator[int]:
    """The descriptor of a folder's lock, open for this process alone."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with writing(folder):
        descriptor = os.open(folder / LOCK, flags, 0o666)
    _held.add(descriptor)
    try:
        yield descriptor
    finally:
        if descriptor in _held:  # a forked child has closed its copy already
            _held.discard(descriptor)
            os.close(descriptor)
