"""Memory that is freed stays for the next tensors, where a command asks for it and nobody switched it off."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from hace import cli

FAULTS = """
import ctypes, resource
import numpy as np
{setup}
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: how many huge pages there are depends on what else runs
for _ in range(3):
    np.ones(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ASK = "from hace.lab.runs.process import keep_freed_memory; keep_freed_memory()"

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")


def page_faults(setup: str, **environment: str) -> int:
    """Pages that the system hands out while arrays of 64 MB come and go."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(setup=setup)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_freed_memory_is_used_again_only_where_it_is_asked_for() -> None:
    plain = page_faults("import hace, hace.linear, hace.fitting, hace.cli")
    assert page_faults(ASK, HACE_KEEP_MEMORY="1") < plain / 10
    assert page_faults(ASK, HACE_KEEP_MEMORY="0") > plain / 2


@pytest.mark.parametrize(
    "asked",
    [
        "fit photos",
        "features --data creatures --model m --out o",
        "predict a b",
        "serve a",
        "train",
        "evaluate a",
        "calibrate a",
        "check a b",
    ],
)
def test_commands_that_run_models_ask_for_it(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(BaseException):
        pass

    def ask() -> bool:
        raise Asked

    monkeypatch.setattr("hace.lab.runs.process.keep_freed_memory", ask)
    words = asked.split()
    with pytest.raises(Asked):
        cli.main(words)
