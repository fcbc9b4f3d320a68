"""Locks: one process at a time, gone with their owner."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hace.errors import ConfigError, HaceError
from hace.files.writing import beside_others, is_held, only_process

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
        monkeypatch.setattr(fcntl, "flock", lambda *_: failed(errno.ENOLCK))
    with pytest.raises(HaceError, match=words) as caught, only_process(tmp_path):
        raise AssertionError
    assert not isinstance(caught.value, ConfigError)
    assert not is_held(tmp_path)
    assert not (tmp_path / "victim").exists()


def failed(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_the_first_of_several_processes_cleans(tmp_path: Path) -> None:
    cleaned: list[str] = []

    def worker(name: str) -> AbstractContextManager[None]:
        return beside_others(tmp_path, lambda: cleaned.append(name))

    (tmp_path / ".lock-left-by-a-killed-process").touch()
    with worker("first"):
        with worker("second"):
            pass
        with worker("third"):  # the second has ended, the first has not
            pass
    assert cleaned == ["first"]
    with worker("fourth"):
        pass
    assert cleaned == ["first", "fourth"]
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_who_fails_to_clean_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"), beside_others(tmp_path, lambda: failed(errno.ENOSPC)):
        raise AssertionError
    assert not is_held(tmp_path)
    with beside_others(tmp_path, lambda: None):
        pass
