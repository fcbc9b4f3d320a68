"""What a job may use on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from hace.errors import ConfigError
from hace.lab.study.executors import Cluster, check_executor, open_executor


@pytest.mark.parametrize(
    ("executor", "given", "message"),
    [
        ("rya", {}, r"executor must be one of 'local', 'ray', 'slurm'\. Got 'rya'\. Did you mean 'ray'"),
        ("local", {"gpus": 1.0}, r"gpus must come with executor ray or slurm\. Got executor local"),
        ("ray", {"account": "a"}, r"account must come with executor slurm\. Got executor ray"),
        ("slurm", {"gpus": 1.5}, r"gpus must be a whole number, or between 0 and 1\. Got 1\.5\."),
        (
            "slurm",
            {"nodes": 2, "gpus": 0.5},
            r"nodes must be 1 without whole GPUs\. Got nodes=2 and gpus=0\.5",
        ),
        ("slurm", {"hours": 0.0}, r"hours must be more than 0\. Got 0\."),
    ],
)
def test_a_cluster_that_does_not_fit(executor: str, given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_executor(executor, None, Cluster(**given))


def test_numbers_that_no_executor_takes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workers must be 0 or more\. Got -1\."):
        check_executor("local", -1, Cluster())
    with (
        pytest.raises(ConfigError, match=r"gpus must be at most 1 with executor ray.*Got 2"),
        open_executor("ray", None, Cluster(gpus=2), tmp_path),
    ):
        pass
