"""Held-out samples with twins in training guarantee more than test samples keep, and every command says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hace
from hace.cli import main
from hace.decisions.calibration import read_calibration
from hace.errors import BROKEN
from hace.lab.runs.run import Run, read_run
from hace.lab.serve.page import model_document
from hace.lab.serve.predictor import Predictor

TREE = "parent,child\nanimal,dog\nanimal,cat\ndog,husky\ndog,beagle\ncat,persian\ncat,siamese\n"
LEAVES = ("husky", "beagle", "persian", "siamese")


def write_features(folder: Path, apart: float) -> None:
    """Training and held-out samples of the same places, and test samples from places so far apart."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(4), 300)
    split = np.repeat(["train", "val", "test"], 400)
    x = 3 * np.eye(4)[y] + rng.normal(size=(1200, 4)) * np.where(split == "test", apart, 1.0)[:, None]
    np.savez(folder / "f.npz", X=x.astype(np.float32), y=np.array(LEAVES)[y], split=split)
    np.save(folder / "new.npy", x[-5:].astype(np.float32))
    (folder / "tree.csv").write_text(TREE)


def calibrated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(folder)
    assert main("probe --features f.npz --hierarchy tree.csv --epochs 5 --out runs".split()) == 0
    assert main("calibrate runs/latest --accuracy 0.9".split()) == 0
    return read_run("runs/latest")


def test_the_guarantee_is_shown_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_features(tmp_path, apart=2.5)
    run = calibrated(tmp_path, monkeypatch)
    assert f"{BROKEN}: right in 9" in capsys.readouterr().out
    broken = read_calibration(run.folder / "calibration.json").broken
    assert "of test samples, more than chance. Calibrate on labelled samples from where" in broken
    assert main(["predict", str(run.folder), "new.npy", "--accuracy", "0.9", "--out", "a.csv"]) == 0
    assert f"{BROKEN}: {broken}" in capsys.readouterr().err
    assert model_document(Predictor.from_run(run.folder))["broken"] == broken
    assert main(["export", str(run.folder), "--to", "safetensors", "--out", "m.safetensors"]) == 0
    assert model_document(Predictor.from_run("m.safetensors"))["broken"] == broken
    capsys.readouterr()
    assert main(["evaluate", str(run.folder), "--accuracy", "0.9", "--json"]) == 0
    assert "of these samples" in json.loads(capsys.readouterr().out)["guarantee"]["broken"]


def test_alike_samples_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_features(tmp_path, apart=1.0)
    run = calibrated(tmp_path, monkeypatch)
    assert main(["evaluate", str(run.folder), "--accuracy", "0.9"]) == 0
    assert BROKEN not in capsys.readouterr().out
    assert not read_calibration(run.folder / "calibration.json").broken


def test_without_held_out_samples_messages_name_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_features(tmp_path, apart=1.0)
    monkeypatch.chdir(tmp_path)
    words = "probe --features f.npz --hierarchy tree.csv --epochs 2 --validation 0 --out runs"
    assert main(words.split()) == 0
    held = np.load("f.npz")
    chosen = held["split"] == "test"
    np.savez("more.npz", X=held["X"][chosen], y=held["y"][chosen])
    for command in ("predict runs/latest new.npy --accuracy 0.9", "calibrate runs/latest"):
        assert main(command.split()) == 2
        said = capsys.readouterr().err
        assert (
            "hace calibrate runs/latest --samples PATH; or hold some out and train again: hace probe --config"
            in said
        )
        assert "--validation split, then calibrate the new run" in said
    assert main("calibrate runs/latest --samples more.npz --accuracy 0.9".split()) == 0
    assert main("predict runs/latest new.npy --accuracy 0.9 --out a.csv".split()) == 0


def test_a_run_and_its_file_answer_alike_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder, the link `latest`, and the .hace file of `hace export`: each command takes each."""
    write_features(tmp_path, apart=1.0)
    run = calibrated(tmp_path, monkeypatch)
    folder = f"runs/{run.id}"
    assert Path("runs/latest").resolve() == Path(folder).resolve()
    assert main("export runs/latest --out m.hace".split()) == 0
    held = np.load("f.npz")
    test = held["split"] == "test"
    np.savez("test.npz", X=held["X"][test], y=held["y"][test])
    answers, reports, checks = set(), [], set()
    capfd.readouterr()
    for model in (folder, "runs/latest", "m.hace"):
        assert main(f"predict {model} new.npy --accuracy 0.9 --top-k 1 --to jsonl".split()) == 0
        answers.add(tuple(json.loads(line)["answer"]["id"] for line in capfd.readouterr().out.splitlines()))
        assert main(f"evaluate {model} --samples test.npz --accuracy 0.9 --json".split()) == 0
        reports.append(json.loads(capfd.readouterr().out)["guarantee"]["measured"])
        assert main(f"check {model} test.npz --accuracy 0.9".split()) == 0
        checks.add(capfd.readouterr().out)
        assert main(f"calibrate {model} --samples test.npz --accuracy 0.9 --out c.json".split()) == 0
        assert "calibrate: 400/400 samples" in capfd.readouterr().err
        assert model_document(Predictor.from_run(model))["guarantees"]
        capfd.readouterr()
    assert len(answers) == len(checks) == 1
    assert reports[1] == reports[0]
    assert reports[2] == pytest.approx(reports[0])
    assert main("export m.hace --out m.onnx".split()) == 0


def test_after_a_new_calibration_the_file_of_a_fit_and_its_page_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_features(tmp_path, apart=2.5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HACE_CACHE", str(tmp_path / "cache"))
    assert main("fit f.npz --hierarchy tree.csv".split()) == 0
    before = hace.load("f.hace").findings
    assert before.broken
    assert "<strong>The guarantee is broken" in Path("f.html").read_text(encoding="utf-8")
    assert model_document(Predictor.from_run("f.hace"))["broken"] == before.broken
    place = np.load("f.npz")
    test = place["split"] == "test"
    np.savez("there.npz", X=place["X"][test], y=place["y"][test])
    assert main("calibrate f.hace --samples there.npz --accuracy 0.9".split()) == 0
    after = hace.load("f.hace").findings
    assert (after.broken, after.calibrated_on, after.samples["calibration"]) == (
        "",
        "400 samples of there.npz",
        400,
    )
    assert after.guarantee is not None
    assert after.guarantee["accuracy"] == 0.9
    assert [point["accuracy"] for point in after.curve] == [0.9]
    assert "calibrated on 400 samples of there.npz, not tested since" in after.specific.sentence
    page = Path("f.html").read_text(encoding="utf-8")
    assert "<strong>The guarantee is broken" not in page
    assert "the 400 samples of there.npz that calibrated it" in page
    assert model_document(Predictor.from_run("f.hace"))["broken"] == ""
    assert main("predict f.hace new.npy --accuracy 0.9 --out a.csv".split()) == 0
    assert BROKEN not in capsys.readouterr().err
    assert hace.load("f.hace").predict(np.load("new.npy"), accuracy=0.9).answer.notna().any()


def test_the_page_of_a_table_names_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    y = np.tile(["husky", "beagle", "persian"], 60)
    rows = [
        f"{9 * (name == 'husky') + a:.2f},{9 * (name == 'beagle') + b:.2f},{name}"
        for name, a, b in zip(y, *rng.normal(size=(2, 180)), strict=True)
    ]
    (tmp_path / "dogs.csv").write_text("\n".join(["length,mass,species", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HACE_CACHE", str(tmp_path / "cache"))
    assert main(["fit", "dogs.csv"]) == 0
    assert model_document(Predictor.from_run("dogs.hace"))["input"] == {
        "features": 2,
        "names": ["length", "mass"],
    }
