"""The examples run as they are, on data that they bring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tutorial import in_process

FOLDER = Path(__file__).parents[1] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
NEEDS = {
    "folder_to_report": "timm",
    "hf_trainer": "transformers",
    "lightning_module": "lightning",
    "timm_model": "timm",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries they use
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS.get(path.stem, "torch"))
    monkeypatch.chdir(tmp_path)
    for name, value in {"GLOO_SOCKET_IFNAME": "lo", "MPLBACKEND": "agg"}.items():
        monkeypatch.setenv(name, value)
    if path.stem == "distributed":
        done = subprocess.run([sys.executable, *TORCHRUN, str(path)], capture_output=True, text=True)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = in_process(["python", str(path)])
    assert code == 0, err[-2000:]
    assert out.strip()
    assert list(tmp_path.iterdir()) == [], "an example cleans up"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a kernel of this environment, where its first cell finds hace installed."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(
        cell.outputs for cell in notebook.cells[3:] if cell.cell_type == "code" and "print" in cell.source
    )
