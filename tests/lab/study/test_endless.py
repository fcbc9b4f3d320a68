"""A study whose runs cannot be locked or written ends with the error, instead of waiting for nobody."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hace.study import Study, StudyResults


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study that waits for a while waits for ever."""
    sleeps = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        assert len(sleeps) < 9, "the study waits for nobody"

    monkeypatch.setattr("hace.lab.study.scheduler.time.sleep", sleep)
    monkeypatch.setattr("hace.lab.study.scheduler.BUSY_SECONDS", 0.0)


def run(folder: Path, runs: Path | None = None) -> StudyResults:
    """One method at two rates; runs are not retried."""
    study = Study(
        "methods",
        methods=("cross_entropy",),
        rates=(1, 8),
        seeds=1,
        epochs_scale=0.04,
        out=str(folder / "study"),
        runs=None if runs is None else str(runs),
    )
    return study.run(retries=0)


def errors(results: StudyResults) -> list[str]:
    assert results.failed
    assert not [record for record in results.records if record.status == "finished"]
    return [failure["error"] for failure in results.failures.values()]


def place_of_runs(folder: Path) -> list[Path]:
    """Where the searches of the study go."""
    results = run(folder / "elsewhere")
    return [folder / "runs" / record.id for record in results.records if record.stage == "search"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOLCK, "must be on a file system with locks"),
        (errno.EIO, "Cannot write to"),
    ],
)
def test_runs_on_a_file_system_without_locks(
    number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def no_locks(descriptor: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path / "runs")):
            raise OSError(number, os.strerror(number))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", no_locks)
    messages = errors(run(tmp_path, tmp_path / "runs"))
    assert len(messages) == 2
    assert all(words in error for error in messages)


def test_runs_on_a_file_system_without_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def full(path: str | Path, flags: int, *more: int, **others: int) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path / "runs")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", full)
    messages = errors(run(tmp_path, tmp_path / "runs"))
    assert all("No space left" in error for error in messages)


@pytest.mark.parametrize(
    ("obstruct", "words"),
    [
        (lambda run: (run / ".lock").mkdir(parents=True), "directory"),
        (lambda run: (run.parent.mkdir(exist_ok=True), run.write_text("not a folder")), "xists"),
    ],
    ids=["a lock that is a folder", "a file in place of a run"],
)
def test_a_run_folder_that_cannot_be_used(
    obstruct: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    for place in place_of_runs(tmp_path):
        obstruct(place)
    messages = errors(run(tmp_path, tmp_path / "runs"))
    assert all(words in error for error in messages), messages


def test_a_file_in_place_of_all_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    assert errors(run(tmp_path, tmp_path / "runs"))
