"""Hashes of files, remembered from one command to the next: a second look at 100,000 photos costs their names alone.

A file is read again if its size, its time of modification or its time of change is another. The memory is one database in the
user's cache folder, or in HACE_CACHE; where it cannot be written, every look reads all files.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from hace.errors import DataError
from hace.files.reading import open_regular, reason

VARIABLE = "HACE_CACHE"
_NAME = "hashes-1.sqlite"  # bump the number when what it holds changes
_SETTLED = 2 * 10**9  # nanoseconds: a file that is younger may change again within one tick of the clock
_AT_ONCE = 500  # files between two visits to the database
_CHUNK = 1 << 18  # bytes; stays in the processor's cache
_TABLE = (
    "CREATE TABLE IF NOT EXISTS hashes (path BLOB, suffix BLOB, size INTEGER, modified INTEGER, changed INTEGER, sha256 BLOB, "
    "PRIMARY KEY (path, suffix)) WITHOUT ROWID"
)


class _File(NamedTuple):
    """What is hashed."""

    path: bytes  # as the file system has it, which may be no text
    suffix: bytes


class _State(NamedTuple):
    """What tells that a file is as it was; times are in nanoseconds."""

    size: int
    modified: int
    changed: int


def cache_folder() -> Path:
    """The user's cache folder, or HACE_CACHE; an OSError or RuntimeError where it cannot be made."""
    folder = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "hace")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def file_hashes(paths: Sequence[str | Path], suffixes: Sequence[bytes]) -> list[bytes]:
    """sha256 over the bytes of each file and, after them, its suffix."""
    places = [os.fsencode(os.path.abspath(path)) for path in paths]
    files = [_File(*pair) for pair in zip(places, suffixes, strict=True)]
    hashes: list[bytes] = []
    with _database() as database, ThreadPoolExecutor() as pool:
        for start in range(0, len(files), _AT_ONCE):
            hashes += _hashes_of(files[start : start + _AT_ONCE], database, pool)
    return hashes


def _hashes_of(files: list[_File], database: sqlite3.Connection, pool: ThreadPoolExecutor) -> list[bytes]:
    """The hashes of some files: those remembered, and those read now, by threads, which run while the system reads."""
    states = {file: _state(file) for file in files}
    hashes = _remembered(database, states)
    missing = [file for file in states if file not in hashes]
    read = dict(zip(missing, pool.map(_hash, missing), strict=True))
    _remember(database, states, read)
    hashes |= read
    return [hashes[file] for file in files]


def _state(file: _File) -> _State:
    try:
        status = os.stat(file.path)
    except OSError as error:
        raise DataError(f"{os.fsdecode(file.path)}: cannot be reached: {reason(error)}.") from error
    return _State(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _hash(file: _File) -> bytes:
    digest = hashlib.sha256()
    with open_regular(os.fsdecode(file.path)) as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    digest.update(file.suffix)
    return digest.digest()


@contextmanager
def _database() -> Iterator[sqlite3.Connection]:
    """The user's database, or one in memory where that cannot be had."""
    try:
        folder = cache_folder()
        database = sqlite3.connect(folder / _NAME)
        database.execute(_TABLE)
    except (sqlite3.Error, OSError, RuntimeError):  # RuntimeError: there is no home
        database = sqlite3.connect(":memory:")
        database.execute(_TABLE)
    with closing(database):
        yield database


def _remembered(database: sqlite3.Connection, states: Mapping[_File, _State]) -> dict[_File, bytes]:
    """The hashes of files that are as they were."""
    paths = list(dict.fromkeys(file.path for file in states))
    places = ",".join("?" * len(paths))
    query = f"SELECT path, suffix, size, modified, changed, sha256 FROM hashes WHERE path IN ({places})"
    try:
        rows = database.execute(query, paths).fetchall()
    except sqlite3.Error:  # damaged, or another process is writing: the files are read
        return {}
    return {_File(*row[:2]): row[5] for row in rows if states.get(_File(*row[:2])) == _State(*row[2:5])}


def _remember(
    database: sqlite3.Connection, states: Mapping[_File, _State], hashes: Mapping[_File, bytes]
) -> None:
    """Store the hashes of files that have not changed lately."""
    now = time.time_ns()
    rows = [
        (*file, *states[file], sha256)
        for file, sha256 in hashes.items()
        if now - max(states[file].modified, states[file].changed) > _SETTLED
    ]
    if not rows:
        return
    try:
        with database:  # one transaction
            database.executemany("REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)", rows)
    except sqlite3.Error:  # the disk is full, say: the next look reads them again
        pass
