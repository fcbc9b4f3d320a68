"""A short course of `torture.py`: trainings, probes and features, killed, filled up and corrupted, end with the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_disturbed_work_ends_with_the_same_bytes() -> None:
    script = Path(__file__).with_name("torture.py")
    command = [sys.executable, str(script), "--kills", "6", "--only", "train, 2 loaders;features;probe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout


@pytest.mark.parametrize("options", [["--only", "train,probe"], ["--kills", "0"]])
def test_nothing_to_strike_is_an_error(options: list[str]) -> None:
    script = Path(__file__).with_name("torture.py")
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{options[0]} must" in done.stderr
