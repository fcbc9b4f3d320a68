"""Exported models: the same answers as the run, from one file, on real images, without timm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hace import Predictor
from hace.cli import main
from hace.errors import ConfigError, FormatError
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, HeadConfig, LossConfig, ProbeConfig
from hace.lab.serve.calibrate_run import calibrate_run
from hace.lab.serve.export import export_run, prepare, write_hub_folder
from hace.lab.train.train import train
from tests.train_cases import tiny


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with path sums."""
    config = tiny(loss=LossConfig("cross_entropy_paths"))
    return train(config, tmp_path_factory.mktemp("runs")).folder


def images(folder: Path | None = None) -> list[np.ndarray]:
    if folder is None:
        return [np.random.default_rng(i).integers(0, 256, (40, 48, 3), dtype=np.uint8) for i in range(6)]
    from PIL import Image

    sheet = np.asarray(Image.open(min((folder / "test").iterdir())).convert("RGB"))
    return [sheet[i : i + 32, j : j + 32].copy() for i in range(0, 96, 32) for j in range(0, 96, 32)]


def agree(path: Path, run: Path, given: Any) -> None:
    result, expected = Predictor.from_run(path).predict(given), Predictor.from_run(run).predict(given)
    assert result.answers.ids == expected.answers.ids
    torch.testing.assert_close(
        result.leaves.probabilities, expected.leaves.probabilities, atol=1e-5, rtol=0, check_dtype=False
    )


def test_safetensors_and_the_folder_answer_as_the_run(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    assert main(["export", str(run_folder), "--to", "safetensors", "--out", str(out)]) == 0
    assert out.stat().st_mode == (run_folder / "config.json").stat().st_mode, "others may read it"
    assert main(["export", str(run_folder), "--to", "huggingface", "--out", str(tmp_path / "hub")]) == 0
    for path in (out, tmp_path / "hub"):
        agree(path, run_folder, images())
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert config["num_classes"] == len(config["id2label"]) == len(config["hace"]["classes"]) == 5
    card = (tmp_path / "hub" / "README.md").read_text()
    result = json.loads((run_folder / "result.json").read_text())
    assert f"| top-1 | {result['metrics']['leaves']['top-1']:.4f} |" in card
    assert "## Limits" in card


def test_a_hyperbolic_head_stays_one(tmp_path: Path) -> None:
    config = tiny(loss=LossConfig("cross_entropy_paths"), head=HeadConfig("poincare", curvature=0.5))
    run = train(config, tmp_path / "run")
    export_run(run.folder, tmp_path / "a.safetensors")
    agree(tmp_path / "a.safetensors", run.folder, images())
    with pytest.raises(ConfigError, match="must end in a linear layer"):
        write_hub_folder(prepare(run.folder), tmp_path / "hub")


def test_a_training_takes_the_leave_one_out_term(tmp_path: Path) -> None:
    plain, taught = (
        train(tiny(loss=LossConfig("hce", options)), tmp_path / str(len(options)))
        for options in ({}, {"unseen": 0.3})
    )
    losses = [
        json.loads((r.folder / "log.jsonl").read_text().splitlines()[-1])["loss"] for r in (plain, taught)
    ]
    assert losses[1] > losses[0]
    export_run(taught.folder, tmp_path / "a.safetensors")
    agree(tmp_path / "a.safetensors", taught.folder, images())


@pytest.mark.parametrize(
    ("loss", "head"),
    [
        ("hace", "linear"),
        ("conditional_softmax", "linear"),
        ("cross_entropy", "linear"),
        ("hace", "poincare"),
        ("hce unseen", "linear"),
    ],
)
def test_heads_of_every_kind(loss: str, head: Any, tmp_path: Path) -> None:
    data = DataConfig("synthetic-features", options={"classes": 6, "dim": 8})
    name, *more = loss.split()
    made = LossConfig(name, {"unseen": 0.3} if more else {})
    config = ProbeConfig(data=data, epochs=2, loss=made, normalize="standard", validation=0.3)
    config = replace(config, head=HeadConfig(head))
    (run,) = probe([config], tmp_path / "runs")
    calibrate_run(run.folder, rule="own" if more else "threshold", temperature=1.5)
    export_run(run.folder, tmp_path / "a.safetensors")
    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(1))
    agree(tmp_path / "a.safetensors", run.folder, x)
    result: Any = Predictor.from_run(tmp_path / "a.safetensors")
    expected = Predictor.from_run(run.folder)
    guaranteed = [p.predict(x, accuracy=0.8).answers.ids for p in (result, expected)]
    assert guaranteed[0] == guaranteed[1]
    if head == "linear":
        write_hub_folder(prepare(run.folder), tmp_path / "hub")
        (guarantee,) = [t for t in expected.calibration.thresholds if t.of == "samples" and t.accuracy == 0.8]
        card = (tmp_path / "hub" / "README.md").read_text()
        assert f"- threshold {guarantee.threshold:.4g}: {guarantee.guarantee}" in card
    assert (
        result.calibration.temperature == result.document["temperature"] == expected.calibration.temperature
    )
    _, leaves, nodes = result.program.run(x)
    tops = [v for v, node in enumerate(result.document["nodes"]) if not result.hierarchy.parents(node)]
    torch.testing.assert_close(nodes[:, tops].sum(1), torch.ones(7))
    torch.testing.assert_close(leaves.sum(1), torch.ones(7))
    with pytest.raises(ConfigError, match="takes features"):
        result.predict(images())


@pytest.mark.slow
def test_programs_agree_on_real_images_without_timm(
    run_folder: Path, tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "model.onnx"
    export_run(run_folder, path)
    real = images(real_data("cifar100"))
    agree(path, run_folder, real)
    np.save(tmp_path / "images.npy", np.stack(real))
    code = f"""
import sys
sys.modules["timm"] = None
import numpy as np
from hace import Predictor
print(Predictor.from_run({str(path)!r}).predict(list(np.load({str(tmp_path / "images.npy")!r}))).answers.ids)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(Predictor.from_run(run_folder).predict(real).answers.ids)


def test_path_sums_are_collapsed(run_folder: Path) -> None:
    export = prepare(run_folder)
    assert export.document["outputs"]["scores"] == "leaves"
    assert export.document["head"] == {"num_outputs": 5, "loss": None, "tree": "own"}
    assert export.model.loss is None


def test_bad_files_and_formats_are_refused(run_folder: Path, tmp_path: Path) -> None:
    for name in ("a.onnx", "a.safetensors", "a.zip"):
        (tmp_path / name).write_bytes(b"not a model")
        with pytest.raises(FormatError):
            Predictor.from_run(tmp_path / name)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(FormatError, match="must be written by `hace export`"):
        Predictor.from_run(tmp_path / "b.safetensors")
    with pytest.raises(ConfigError, match="to must be one of 'hace', 'onnx', 'safetensors', 'huggingface'"):
        export_run(run_folder, tmp_path / "c.tflite", "tflite")
    with pytest.raises(ConfigError, match=r"must end in \.hace, \.onnx"):
        export_run(run_folder, tmp_path / "c.tflite")
    with pytest.raises(ConfigError, match="checkpoint must come with a run"):
        Predictor.from_run(tmp_path / "b.safetensors", checkpoint="x")


def test_the_name_of_a_file_is_checked_before_the_run_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(tmp_path / "no run"), "--to", "onnx", "--out", str(tmp_path / "a.pt2")]
    assert main(words) == 2
    assert "a file for onnx must end in .onnx: readers go by it" in capsys.readouterr().err
