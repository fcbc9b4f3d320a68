"""`hace study`: what it prints before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hace.cli import main
from tests.data_layouts import write_image
from tests.study_files import plants_study


def test_a_dry_run_without_usable_data_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = ["--features", f"cifar100={tmp_path / 'none.npz'}", "--hierarchy", "cifar100=cifar100"]
    assert main(["study", "fair-probe", *features, "--out", str(tmp_path / "s"), "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert "cifar100: not counted, cannot be used: " in out
    assert "must have data to count. Got none that can be used, see above." in err


def test_data_sets_without_a_path_are_named_unless_the_data_are_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [*plants_study(tmp_path), "--seeds", "1", "--out", str(tmp_path / "s"), "--dry-run"]
    assert main(own) == 0
    assert "no path given" not in capsys.readouterr().err
    features = [word.replace("plants=", "cifar100=") for word in own]
    assert main(features) == 0
    assert "skipped: no path given for --features aircraft=, --features nabirds=\n" in capsys.readouterr().err


def test_a_cluster_without_gpus_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for split, name in [(s, n) for s in ("train", "test") for n in ("dog/husky", "cat/tabby")]:
        write_image(tmp_path / "pets" / split / name / "1.png")
    options = ["study", "fair-end-to-end", "--data-root", f"pets={tmp_path / 'pets'}", "--executor", "slurm"]
    options += [
        "--only",
        "model=resnet18",
        "--only",
        "method=cross_entropy",
        "--out",
        str(tmp_path / "study"),
    ]
    monkeypatch.setenv("PATH", "/nonexistent")
    note = "trainings run on processors: gpus is 0. Give --gpus 1 for a GPU each."
    for more, warned in ((), True), (("--gpus", "1"), False), (("--set", "device=cpu", "--update"), False):
        assert main([*options, *more]) == 2
        err = capsys.readouterr().err
        assert (note in err) is warned
        assert "must run where `sbatch` and `srun` are" in err
