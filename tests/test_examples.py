"""The examples run as they are, on data that they bring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import free_port, run_ranks
from tests.tutorial import in_process

FOLDER = Path(__file__).parents[1] / "examples"
NEEDS = {
    "folder_to_report": "timm",
    "hf_trainer": "transformers",
    "lightning_module": "lightning",
    "timm_model": "timm",
}


def run_as(rank: int, path: Path, port: int, said: Path) -> None:
    """One of two processes, as torchrun starts them."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    code, out, err = in_process(["python", str(path)])
    said.with_suffix(f".{rank}").write_text(out)
    assert code == 0, err[-2000:]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries they use
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS.get(path.stem, "torch"))
    monkeypatch.chdir(tmp_path)
    for name, value in {"GLOO_SOCKET_IFNAME": "lo", "MPLBACKEND": "agg"}.items():
        monkeypatch.setenv(name, value)
    if path.stem == "distributed":
        said = tmp_path.parent / f"{tmp_path.name}-said"
        run_ranks(run_as, path, free_port(), said)
        code, out, err = 0, said.with_suffix(".0").read_text(), ""
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
