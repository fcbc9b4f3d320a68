"""What a job may use, as the options of an executor say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hace.errors import ConfigError
from hace.lab.study.executors import InProcess, find_executor, resources_for
from hace.lab.study.jobs import Resources


@pytest.mark.parametrize(
    ("executor", "given", "message"),
    [
        ("rya", {}, r"--executor must be one of local, ray, slurm\. Got 'rya'\. Did you mean 'ray'"),
        ("local", {"workers": -1}, r"--workers must be 0 or more\. Got -1\."),
        (
            "local",
            {"gpus": 1.0},
            r"--gpus must be given with --executor ray or --executor slurm\. Got --executor local",
        ),
        ("ray", {"account": "a"}, r"--account must be given with --executor slurm\. Got --executor ray"),
        ("slurm", {"gpus": 1.5}, r"--gpus must be a whole number, or between 0 and 1\. Got 1\.5\."),
        (
            "slurm",
            {"nodes": 2, "gpus": 0.5},
            r"--nodes must be 1 without whole GPUs\. Got --nodes 2 --gpus 0\.5\.",
        ),
        ("slurm", {"hours": 0.0}, r"--hours must be more than 0\. Got 0\."),
    ],
)
def test_resources_that_do_not_fit(executor: str, given: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resources_for(executor, given, tmp_path)


def test_resources_that_fit(tmp_path: Path) -> None:
    unset = {"address": None, "setup": None}
    assert resources_for("slurm", {"gpus": 0.5, **unset}, tmp_path) == Resources(gpus=0.5, logs=tmp_path)
    assert isinstance(find_executor("local").make(Resources()), InProcess)
    with pytest.raises(ConfigError, match=r"--gpus must be at most 1 with --executor ray.*Got 2"):
        find_executor("ray").make(Resources(gpus=2))
