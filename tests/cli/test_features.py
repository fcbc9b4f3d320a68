"""`hace features` as a person meets it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from hace import cli
from hace.lab.features import extraction as features
from tests.backbone_files import COMMAND, SIZE, VIT, save_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(VIT, tmp_path_factory.mktemp("weights") / "vit.safetensors", img_size=SIZE)


def test_ctrl_c_tells_how_to_go_on(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = features.write_whole

    def interrupted(path: Path, data: bytes) -> None:
        if path.name == "train-00002.npy":
            os.kill(os.getpid(), signal.SIGINT)
        real(path, data)

    monkeypatch.setattr(features, "write_whole", interrupted)
    out = tmp_path / "out"
    assert cli.main([*COMMAND.split(), "--checkpoint", str(weights), "--out", str(out)]) == 130
    assert capsys.readouterr().err == (
        f"\n2 of 6 shards are in {out}. Run the same command to resume.\nInterrupted.\n"
    )


def test_the_command_says_what_it_made(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*COMMAND.split(), "--checkpoint", str(weights), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"test_vit: 0\.\d M parameters, 64 features, 32 px, float32 on cpu, weights [0-9a-f]{12}", lines[0]
    )
    assert lines[1] == f"FeatureStore(test_vit, 64 features, train 30, test 12) is in {tmp_path / 'out'}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data synthetic-features", "synthetic-features holds features already"),
        ("--data synthetic --workers -1", "--workers must be 0 or more. Got -1"),
        ("--data synthetic --device cuda:77", "device cuda:77 cannot be used here: "),
        ("--data synthetic --model test_vti", "Did you mean 'test_vit'"),
    ],
)
def test_mistakes_at_the_command_line(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if "--model" in words else ["--model", VIT]
    assert cli.main(["features", *words.split(), *model, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
