"""Locks: one process at a time, gone with their owner, on any operating system."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from hace.errors import ConfigError, HaceError
from hace.files import writing
from hace.files.writing import is_held, only_process

HOLD = """
import os, sys, time
from pathlib import Path
from hace.files.writing import only_process
with only_process(Path(sys.argv[1])):
    if os.fork() == 0:  # as a worker that reads images does, it outlives its parent
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_dies_with_its_owner_while_the_owners_children_live(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        assert is_held(tmp_path)
        with pytest.raises(ConfigError, match="Another process is at work"), only_process(tmp_path):
            raise AssertionError
        owner.kill()  # as a crash would: nobody cleans up
        owner.wait()
        patience = time.monotonic() + 30  # the child may not have run yet; it lives for twice as long
        while is_held(tmp_path) and time.monotonic() < patience:
            time.sleep(0.05)
        assert not is_held(tmp_path)
    finally:
        os.killpg(owner.pid, 9)
        owner.communicate()


def test_a_lock_ends_with_its_block_and_holds_within_a_process(tmp_path: Path) -> None:
    with only_process(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "missing")
    assert not writing._held


def test_a_file_system_without_locks_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(writing, "_lock", no_locks)
    with pytest.raises(HaceError, match=r"file system with locks\. Got: No locks"), only_process(tmp_path):
        raise AssertionError
    assert not is_held(tmp_path)


def test_windows_has_its_own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def locking(descriptor: int, mode: int, count: int) -> None:
        if taken:
            raise OSError(errno.EACCES, "Permission denied")
        taken.append(descriptor)

    windows = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    monkeypatch.setitem(sys.modules, "fcntl", None)  # importing it fails
    monkeypatch.setattr(sys, "platform", "win32")
    assert writing.__spec__ is not None
    there = importlib.util.module_from_spec(writing.__spec__)
    assert there.__spec__ is not None
    assert there.__spec__.loader is not None
    there.__spec__.loader.exec_module(there)
    with there.only_process(tmp_path):
        assert there.is_held(tmp_path)


@pytest.mark.parametrize("what", ["folder", "link", "no inodes", "no locks"])
def test_a_folder_that_cannot_be_locked_is_an_error_and_not_busy(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that took these for "busy" would wait without end."""
    words = {
        "folder": r"Cannot write to .*: Is a directory\. Move away the folder \.lock",
        "link": r"Cannot write to .*: Too many levels of symbolic links\. Remove the link \.lock",
        "no inodes": r"Cannot write to .*: No space left on device\. Free some space",
        "no locks": r"must be on a file system with locks\. Got: No locks available",
    }[what]
    if what == "folder":
        (tmp_path / ".lock").mkdir()
    elif what == "link":
        (tmp_path / ".lock").symlink_to(tmp_path / "victim")
    elif what == "no inodes":
        monkeypatch.setattr(os, "open", lambda *_, **__: failed(errno.ENOSPC))
    else:
        monkeypatch.setattr(writing, "_lock", lambda _: failed(errno.ENOLCK))
    with pytest.raises(HaceError, match=words) as caught, only_process(tmp_path):
        raise AssertionError
    assert not isinstance(caught.value, ConfigError)
    assert not is_held(tmp_path)
    assert not (tmp_path / "victim").exists()
    assert not writing._held


def failed(number: int) -> None:
    raise OSError(number, os.strerror(number))
