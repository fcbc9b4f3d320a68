"""`hace fit`, and the commands that take its file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import hace
from hace import cli
from tests.backbone_files import VIT, save_weights
from tests.fitting.test_fit import NEW, TRUTH, table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a table, its page, and new samples with and without labels."""
    folder = tmp_path_factory.mktemp("fit")
    table().to_csv(folder / "birds.csv", index=False)
    table(NEW, TRUTH).to_csv(folder / "later.csv", index=False)
    np.save(folder / "new.npy", NEW)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert cli.main(["fit", "birds.csv"]) == 0
    finally:
        os.chdir(before)
    return folder


def test_one_command_writes_a_model_and_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = hace.load(folder / "birds.hace")
    assert model.findings.path == "birds.hace"
    page = (folder / "birds.html").read_text(encoding="utf-8")
    assert "One number per question" in page
    assert (
        cli.main(["fit", str(folder / "birds.csv"), "--out", str(folder / "again.hace"), "--seed", "3"]) == 0
    )
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines()[:6]] == [
        "How good",
        "Guarantee",
        "Taxonomy",
        "Coarse",
        "Watch",
        "Next",
    ]
    assert f"hace predict {folder / 'again.hace'} NEW" in out  # to paste where the command was
    assert f"wrote {folder / 'again.hace'}" in out
    card = (folder / "again.card.md").read_text(encoding="utf-8")
    assert "hace predict again.hace NEW" in card
    assert "How good is it?" in card


def test_predict_takes_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", str(folder / "birds.hace"), str(folder / "new.npy"), "--to", "jsonl"]
    assert cli.main([*arguments, "--accuracy", "0.95"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    answers = hace.load(folder / "birds.hace").predict(NEW, 0.95).answer.tolist()
    assert [row["answer"]["id"] for row in rows] == answers


def answers_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str | None]:
    """What `hace predict` answers."""
    assert cli.main(["predict", *words, "--to", "jsonl"]) == 0
    return [json.loads(line)["answer"]["id"] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_predict_takes_tables_with_columns_in_any_order(
    folder: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = table(NEW, TRUTH).assign(height=3.0, site=[f"site {i % 7}" for i in range(len(NEW))])
    new = new[new.columns[::-1]]
    later = tmp_path / f"later.{suffix}"
    if suffix == "parquet":
        new.to_parquet(later)
    else:
        new.to_csv(later, index=False, sep="\t" if suffix == "tsv" else ",")
    model = str(folder / "birds.hace")
    expected = hace.load(model).predict(NEW, None).answer.tolist()
    assert answers_of(capsys, model, str(later)) == expected
    assert len(answers_of(capsys, model, str(later), "--groups", "Site")) == 7
    assert cli.main(["evaluate", model, "--samples", str(later), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["leaves"]["top-1"] == pytest.approx((expected == TRUTH[:, 2]).mean())
    assert cli.main(["next", model, str(later), "--budget", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    new.drop(columns="m1").to_csv(tmp_path / "less.csv", index=False)
    assert cli.main(["predict", model, str(tmp_path / "less.csv")]) == 2
    assert "less.csv must have the 8 columns of the training. Missing: 'm1'" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["X", "layer", "obsm"])
def test_predict_takes_cells_from_where_the_fit_took_them(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anndata = pytest.importorskip("anndata")
    data = table()
    x = data[[f"m{i}" for i in range(8)]].to_numpy(np.float32)
    obs = pd.DataFrame({"cell_type": data.species.to_numpy()}, index=[f"cell {i}" for i in range(len(data))])
    adata = anndata.AnnData(x if where == "X" else -x, obs=obs)
    adata.layers["scaled"] = x
    adata.obsm["pca"] = x
    path = tmp_path / "cells.h5ad"
    adata.write_h5ad(path)
    options = {"X": [], "layer": ["--layer", "scaled"], "obsm": ["--obsm", "pca"]}[where]
    model = str(tmp_path / "cells.hace")
    assert cli.main(["fit", str(path), "--out", model, *options]) == 0
    capsys.readouterr()
    answers = answers_of(capsys, model, str(path))
    right = np.mean(np.array(answers) == data.species.to_numpy())
    assert right > 0.8
    assert hace.load(model).predict(adata, None).answer.tolist() == answers
    assert hace.load(model).evaluate(adata).values["leaves", "top-1"] == pytest.approx(right)
    assert cli.main(["evaluate", model, "--samples", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["leaves"]["top-1"] == pytest.approx(right)


def test_predict_takes_lists_as_the_fit_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = table()
    texts = pd.DataFrame({"title": [f"the {name} number {i}" for i, name in enumerate(data.species)]})
    texts.assign(species=data.species.to_numpy()).to_csv(tmp_path / "titles.csv", index=False)
    texts.head(9).to_parquet(tmp_path / "new.parquet")
    model = str(tmp_path / "titles.hace")
    assert cli.main(["fit", str(tmp_path / "titles.csv"), "--model", "tfidf", "--out", model]) == 0
    capsys.readouterr()
    expected = hace.load(model).predict(texts.title.head(9).tolist(), None).answer.tolist()
    assert answers_of(capsys, model, str(tmp_path / "new.parquet")) == expected


def test_a_taxonomy_with_columns_of_its_own_needs_one_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    birds = table().drop(columns=["family", "genus"])
    birds.to_csv("birds.csv", index=False)
    table()[["genus", "species"]].drop_duplicates().set_axis(["upper", "lower"], axis=1).to_csv(
        "tree.csv", index=False
    )
    words = ["fit", "birds.csv", "--hierarchy", "tree.csv"]
    assert cli.main(words) == 2
    assert "-o columns=upper,lower" in capsys.readouterr().err
    assert cli.main([*words, "-o", "columns=upper,lower"]) == 0
    assert hace.load("birds.hace").hierarchy.num_leaves == birds.species.nunique()
    assert cli.main(["fit", "birds.csv", "-o", "columns=upper,lower"]) == 2
    assert "--hierarchy" in capsys.readouterr().err


def test_evaluate_and_calibrate_take_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, later = str(folder / "birds.hace"), str(folder / "later.csv")
    assert cli.main(["evaluate", model, "--samples", later, "--accuracy", "0.95", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    right = hace.load(model).predict(NEW, None).answer.to_numpy() == TRUTH[:, 2]
    assert result["metrics"]["leaves"]["top-1"] == pytest.approx(right.mean())
    assert cli.main(["evaluate", model]) == 2
    assert "must come with --samples" in capsys.readouterr().err
    copy = folder / "recalibrated.hace"
    copy.write_bytes(Path(model).read_bytes())
    again = ["calibrate", str(copy), "--samples", later, "--accuracy", "0.9", "--temperature", "1"]
    assert cli.main(again) == 0
    assert hace.load(copy).classifier.guarantee(0.9).samples == len(NEW)


def test_export_takes_the_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "birds.onnx"
    assert cli.main(["export", str(folder / "birds.hace"), "--to", "onnx", "--out", str(out)]) == 0
    predictor = hace.Predictor.from_run(out)
    assert (
        predictor.predict(NEW).answers.ids
        == hace.load(folder / "birds.hace").predict(NEW, None).answer.tolist()
    )


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of every kind that cannot be learned from."""
    folder = tmp_path_factory.mktemp("bad")
    data, one = table(), table()[table().species == "kittiwake"]
    data.to_csv(folder / "birds.csv", index=False)
    one.to_csv(folder / "one.csv", index=False)
    data.assign(m2=data.m2.mask(np.arange(360) < 3)).to_csv(folder / "nan.csv", index=False)
    (folder / "tree.csv").write_text(
        "parent,child\ngulls,herring gull\nterns,arctic tern\n", encoding="utf-8"
    )
    texts = pd.DataFrame(
        {"text": ["a gull over the sea", "a tern on the ice"] * 10, "label": ["x", "y"] * 10}
    )
    texts.assign(label="x").to_csv(folder / "one-text.csv", index=False)
    texts.assign(text=["", *texts.text[1:]]).to_csv(folder / "empty-text.csv", index=False)
    texts.to_csv(folder / "texts.csv", index=False)
    (folder / "empty").mkdir()
    np.save(folder / "array.npy", NEW)
    (folder / "old.hace").write_bytes(b"a model")
    (folder / "sheet.xlsx").write_bytes(b"a sheet")
    (folder / "listing.csv").write_text("path,label\na.png,x\nb.png,y\n", encoding="utf-8")
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        for i in range(3):
            path = folder / "photos" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), colour).save(path)
            (folder / "broken" / name).mkdir(parents=True, exist_ok=True)
            (folder / "broken" / name / f"{i}.png").write_bytes(b"not a photo")
    shutil.copytree(folder / "photos" / "red", folder / "one-photo" / "red")
    save_weights(VIT, folder / "vit.safetensors", num_classes=0)
    x = NEW.copy()
    cells(x, ["T cell"] * len(x)).write_h5ad(folder / "one.h5ad")
    cells(x, list(TRUTH[:, 2]), column="batch").write_h5ad(folder / "nameless.h5ad")
    cells(x, list(TRUTH[:, 2])).write_h5ad(folder / "cells.h5ad")
    x[5, 2] = np.nan
    cells(x, list(TRUTH[:, 2])).write_h5ad(folder / "nan.h5ad")
    return folder


def cells(x: np.ndarray, names: list[str], column: str = "cell_type") -> Any:
    """An AnnData with a column of labels."""
    anndata = pytest.importorskip("anndata")
    return anndata.AnnData(x, obs=pd.DataFrame({column: names}, index=[f"cell {i}" for i in range(len(x))]))


WITH_VIT = ["--model", VIT, "--checkpoint", "vit.safetensors"]
BAD = [
    (["birds.csv", "--out", "birds.pt"], "--out must end in .hace"),
    (["birds.csv", "--out", "no/such/birds.hace"], "the folder .*no/such does not exist"),
    (["birds.csv", "--page", "no/such/birds.html"], "--page must be in a folder that exists"),
    (["nothing.csv"], "nothing.csv does not exist"),
    (["birds.csv", "--label", "specis"], "label must be a column of birds.csv.*Did you mean 'species'"),
    (["birds.csv", "--model", "resnet18"], "model and checkpoint must come with photos or texts"),
    (["birds.csv", "--hierarchy", "tree.csv"], "240 of 360 are not; the first is 'common gull'"),
    (["photos/red/0.png"], "Give the folder with the photos"),
    (["sheet.xlsx"], "Save the sheet as CSV"),
    (["listing.csv"], "2 of 2 are missing.*Paths in a list are whole, or start in that folder"),
    (["cells.h5ad", "--groups", "donr"], "groups must be a column of obs"),
    (["array.npy"], "An array holds no labels: save both"),
    (["old.hace"], "hace predict old.hace NEW"),
    (["one.csv"], "Labels must be of two classes or more"),
    (["nan.csv"], "Features must be finite. 3 of 360 samples hold NaN"),
    (["empty"], "must hold photos, in folders named after what they show"),
    (["one-photo", *WITH_VIT], "two classes or more"),
    (
        ["photos", "--hierarchy", "tree.csv", *WITH_VIT],
        "photos/blue: the folder must be a class of the hierarchy",
    ),
    (["broken", *WITH_VIT], "broken: images must be readable. None of 6 is"),
    (["one-text.csv", "--model", "tfidf"], "two classes or more"),
    (["empty-text.csv", "--model", "tfidf"], "'text' must not be empty. 1 rows are; the first is 0"),
    (["texts.csv", "--hierarchy", "tree.csv", "--model", "tfidf"], "'x'"),
    (["one.h5ad"], "two classes or more"),
    (["nameless.h5ad"], "obs must have a column of cell types. Got 'batch'"),
    (["cells.h5ad", "--hierarchy", "tree.csv"], "'(common|kitti|sandwich)"),
    (["nan.h5ad"], "Features must be finite. 1 of 120 samples hold NaN"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(a[:3]) for a, _ in BAD])
def test_bad_input_is_one_message_and_nothing_half_written(
    arguments: list[str],
    words: str,
    bad: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(bad)
    before = sorted(path.name for path in bad.rglob("*"))
    assert cli.main(["fit", *arguments]) == 2
    message = capsys.readouterr().err
    assert re.search(words, " ".join(message.split())), message
    assert sorted(path.name for path in bad.rglob("*")) == before


def test_duplicate_rows_stay_together_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = table()
    pd.concat([data, data[:90]]).to_csv(tmp_path / "twice.csv", index=False)
    assert cli.main(["fit", str(tmp_path / "twice.csv"), "--out", str(tmp_path / "twice.hace")]) == 0
    notes = hace.load(tmp_path / "twice.hace").findings.notes
    assert any("near-copies" in note for note in notes)


def test_killed_in_the_middle_the_same_command_goes_on(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "birds.csv", index=False)
    command = [sys.executable, "-m", "hace", "fit", "birds.csv"]
    environment = {**os.environ, "HACE_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    cached: list[Path] = []
    deadline = time.monotonic() + 120
    while len(cached) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        cached = list((tmp_path / "cache").glob("choices/*/*.npz"))
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "birds.hace").exists()
    times = {path: path.stat().st_mtime_ns for path in cached}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert {path: path.stat().st_mtime_ns for path in cached} == times
    whole = hace.fit(tmp_path / "birds.csv", quiet=True)
    again = hace.load(tmp_path / "birds.hace")
    np.testing.assert_array_equal(again.classifier.coef_, whole.classifier.coef_)
