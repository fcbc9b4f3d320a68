"""Hashes of files: of their content, whatever is remembered of an earlier look."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from hace.errors import DataError
from hace.files import hashes
from hace.files.hashes import file_hashes

HOUR = 3600 * 10**9


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "_SETTLED", -HOUR)  # even what was written this moment is remembered
    return tmp_path / "cache"


def files_in(folder: Path, count: int = 1200) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"é{i}.bin" for i in range(count)]
    for i, path in enumerate(paths):
        path.write_bytes(b"%d" % i)
    return paths


def test_the_hash_of_the_content_and_a_suffix(cache: Path, tmp_path: Path) -> None:
    paths = files_in(tmp_path / "files")
    suffixes = [b"", b" crop"] * 600
    expected = [
        hashlib.sha256(path.read_bytes() + suffix).digest()
        for path, suffix in zip(paths, suffixes, strict=True)
    ]
    assert file_hashes(paths, suffixes) == expected
    assert file_hashes(paths, suffixes) == expected
    assert file_hashes([paths[0]] * 3, [b"", b"x", b""]) == [
        expected[0],
        hashlib.sha256(b"0x").digest(),
        expected[0],
    ]


def test_a_second_look_reads_no_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = files_in(tmp_path / "files")
    first = file_hashes(paths, [b""] * len(paths))
    with monkeypatch.context() as patched:
        patched.setattr(hashes, "open_regular", lambda path: pytest.fail(f"{path} is read again"))
        assert file_hashes(paths, [b""] * len(paths)) == first
    before = paths[7].stat()
    paths[7].write_bytes(b"8")  # as long as before
    os.utime(paths[7], ns=(before.st_atime_ns, before.st_mtime_ns))  # and as old, as `cp -p` makes it
    again = file_hashes(paths, [b""] * len(paths))
    assert [a == b for a, b in zip(first, again, strict=True)].count(False) == 1
    assert again[7] == hashlib.sha256(b"8").digest()


def test_what_was_just_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock ticks every few milliseconds: a file may change twice within one tick."""
    monkeypatch.setenv("HACE_CACHE", str(tmp_path / "cache"))
    (path,) = files_in(tmp_path / "files", 1)
    read: list[object] = []
    real = hashes.open_regular
    monkeypatch.setattr(hashes, "open_regular", lambda path: (read.append(path), real(path))[1])
    for _ in range(2):
        file_hashes([path], [b""])
    assert len(read) == 2
    later = time.time_ns() + HOUR
    monkeypatch.setattr(time, "time_ns", lambda: later)
    for _ in range(2):
        file_hashes([path], [b""])
    assert len(read) == 3


@pytest.mark.parametrize("what", ["a file", "damaged", "no home"])
def test_without_a_place_to_remember_files_are_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HACE_CACHE", str(cache))
    if what == "a file":
        cache.touch()
    elif what == "damaged":
        cache.mkdir()
        (cache / "hashes-1.sqlite").write_bytes(b"no database" * 1000)
    else:
        monkeypatch.delenv("HACE_CACHE")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    (path,) = files_in(tmp_path / "files", 1)
    assert file_hashes([path], [b""]) == [hashlib.sha256(b"0").digest()]


def test_a_missing_file(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png: cannot be reached: No such file or directory"):
        file_hashes([tmp_path / "gone.png"], [b""])
