"""The examples run as they are, on data that they bring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
NEEDS = {"hf_trainer": "transformers", "lightning_module": "lightning", "timm_model": "timm"}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(path.stem, "torch"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MPLBACKEND": "agg"}
    started = TORCHRUN if path.stem == "distributed" else []
    done = subprocess.run(
        [sys.executable, *started, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == [], "an example cleans up"
