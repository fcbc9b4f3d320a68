"""A file appears whole or not at all, and nothing else is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hace.errors import ConfigError, HaceError
from hace.files.writing import append_text, atomic_folder, atomic_path, own_folder, write_whole


def test_replaces_in_one_step_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.suffix == ".json"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("")
    with atomic_path(tmp_path / "a.json") as temporary:
        temporary.write_text("")
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_text("old")
    (tmp_path / "link.json").symlink_to(target)
    with atomic_path(tmp_path / "link.json") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.json").is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "it is a folder"), ("no/a.json", "Create it first"), ("pipe", "a device or a pipe")],
)
def test_refuses_what_is_no_file(name: str, words: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=words), atomic_path(tmp_path / name):
        pytest.fail("must refuse before anything is written")


def test_a_folder_that_fails_is_removed_only_if_it_is_new(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        with pytest.raises(KeyError), atomic_folder(folder) as temporary:
            (temporary / "a.txt").write_text("half")
            raise KeyError

    fail(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    fail(tmp_path / "old")
    assert list(tmp_path.rglob("*")) == [tmp_path / "old"]
    with atomic_folder(tmp_path / "new") as temporary:
        (temporary / "a.txt").write_text("whole")
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """As `ln -s victim RUN/calibration.json; hace calibrate RUN` would."""
    victim, run, elsewhere = tmp_path / "victim", tmp_path / "run", tmp_path / "elsewhere"
    victim.write_text("precious")
    run.mkdir()
    elsewhere.mkdir()
    (run / "calibration.json").symlink_to(victim)
    (run / "log.jsonl").symlink_to(victim)
    (run / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(HaceError, match=r"calibration.json must be a file\. Got a link\. Remove it"):
        write_whole(run / "calibration.json", b"{}")
    with pytest.raises(HaceError, match=r"log.jsonl must be a file\. Got a link\. Remove it"):
        append_text(run / "log.jsonl", "{}\n")
    with pytest.raises(HaceError, match=r"checkpoints must be a folder\. Got a link\. Remove it"):
        own_folder(run / "checkpoints")
    with atomic_folder(run) as temporary:
        (temporary / "calibration.json").write_text("{}")
    assert not (run / "calibration.json").is_symlink()  # replaced, the file it led to is as it was
    assert victim.read_text() == "precious"
    append_text(run / "new.jsonl", "1\n")
    append_text(run / "new.jsonl", "2\n")
    assert (run / "new.jsonl").read_text() == "1\n2\n"
    own_folder(run / "new")
    own_folder(run / "new")
    assert (run / "new").is_dir()
