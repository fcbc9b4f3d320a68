"""Progress: lines in a log, nothing in a pipe, a bar on a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from hace.lab.runs.process import progress


def test_progress_writes_lines_to_a_log_and_nothing_to_a_pipe(tmp_path: Path) -> None:
    times = iter([0.0, 10.0, 40.0, 50.0])
    with (tmp_path / "log").open("w+") as log:
        with progress("features", "images", log, clock=lambda: next(times)) as start:
            step = start(110, 10)
            for count in (10, 40, 50):
                step(count)
        log.seek(0)
        assert log.read().splitlines() == [
            "features: 20/110 images, 1.0 images/s, 0:01:30 left",
            "features: 60/110 images, 1.2 images/s, 0:00:40 left",
            "features: 110/110 images, 2.0 images/s, 0:00:00 left",
        ]
    pipe = io.StringIO()
    with progress("features", "images", pipe) as start:
        start(1, 0)(1)
    assert pipe.getvalue() == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    with progress("features", "images", screen) as start:
        start(4, 1)(3)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "4/4" in shown
    assert "images/s" in shown


def test_a_word_on_how_it_goes_stands_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 80 columns too the time that is left is shown."""
    with (tmp_path / "log").open("w+") as log:
        with progress("training", "images", log, clock=lambda: 0.0) as start:
            start(10, 0)(10, "epoch 1/2, loss 3.210")
        log.seek(0)
        assert log.read().startswith("training: epoch 1/2, loss 3.210, 10/10 images, ")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    with progress("training", "images", screen) as start:
        start(22_500_000, 0)(22_500_000, "epoch 450/450, loss 3.210, acc 12.3%")
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).splitlines()[-1]
    assert "epoch 450/450, loss 3.210, acc 12.3%" in last
    assert re.search(r"images/s, +0?0:00:?0?0? +left", last), last
