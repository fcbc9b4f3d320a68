"""`hace predict` and `Predictor`: answers of finished runs on new images, and what is refused in which words."""

from __future__ import annotations

import csv
import errno
import io
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from safetensors.numpy import save_file as save_arrays
from torch import Tensor

from hace import Hierarchy, cli, write_hierarchy
from hace.data import synthetic_features
from hace.errors import ConfigError, DataError, FormatError
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig, TrainConfig
from hace.lab.runs.run import read_run
from hace.lab.serve.load_run import Vision
from hace.lab.serve.predictor import Predictor, Question
from hace.lab.train.train import train
from tests.backbone_files import COMMAND, SIZE, VIT, save_weights, toy_images
from tests.run_files import rehash

NAMES = {
    "a": "=1+1",
    "b": "<script>alert(1)</script>",
    "c": "\x1b[2Jtabby",
    "d": "manx\nisle",
    "m": "cat",
    "n": "cat",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, features, a probe on them, the test images as files, and a training on the same images."""
    folder = tmp_path_factory.mktemp("predict")
    weights = save_weights(VIT, folder / "vit.safetensors", img_size=SIZE)
    words = [*COMMAND.split(), "--checkpoint", str(weights), "--out", str(folder / "F")]
    assert cli.main(words) == 0
    config = ProbeConfig(
        data=DataConfig("features", root=str(folder / "F")), loss=LossConfig("hace"), epochs=20, lr=4.0
    )
    (run,) = probe([config], folder / "runs")
    run.folder.rename(folder / "probe")
    images = toy_images()["test"]
    (folder / "images" / "more").mkdir(parents=True)
    for i in range(len(images)):
        images.image(i).save(folder / "images" / ("" if i < 9 else "more") / f"{i:02d}.png")
    (folder / "images" / "notes.txt").write_text("no image")
    data = DataConfig("synthetic", options={"classes": 6, "train": 5, "test": 2})
    train(
        TrainConfig(data=data, loss=LossConfig("hace"), model=VIT, epochs=2, batch_size=10, lr=0.05),
        folder / "train",
    )
    return folder


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe on a plain file of features, whose class names are hostile."""
    folder = tmp_path_factory.mktemp("strange")
    paths = [("m", "a"), ("m", "b"), ("n", "c"), ("n", "d")]
    h = Hierarchy.from_paths(paths, names=NAMES, level_names=("genus", "species"))
    data = synthetic_features(h, dim=6, train=10, test=5)
    train, test = data["train"], data["test"]
    np.savez(folder / "x.npz", x_train=train.x, y_train=train.labels, x_test=test.x, y_test=test.labels)
    np.save(folder / "new.npy", test.x)
    write_hierarchy(h, folder / "tree.json")
    source = DataConfig("features", root=str(folder / "x.npz"), hierarchy=str(folder / "tree.json"))
    (run,) = probe(
        [ProbeConfig(data=source, loss=LossConfig("hace"), epochs=3, lr=2.0, normalize="standard")],
        folder / "runs",
    )
    run.folder.rename(folder / "probe")
    return folder


@pytest.fixture
def predicted(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """The documents of `hace predict` with the probe of `place`."""

    def run(what: object, *words: object) -> list[dict[str, Any]]:
        arguments = ["predict", place / "probe", what, "--checkpoint", place / "vit.safetensors", *words]
        assert cli.main([*map(str, arguments), "--to", "jsonl"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main(["predict", *map(str, words)]) == 2
    return capsys.readouterr().err


def own(folder: Path) -> tuple[Hierarchy, dict[str, np.ndarray]]:
    """The hierarchy of a run, and what it predicted for its test samples."""
    run = read_run(folder)
    return run.hierarchy, run.predictions()


# ---------------------------------------------------------------------- the same answers


@pytest.mark.parametrize("kind", ["probe", "train"])
def test_files_get_the_answers_of_the_run_itself(kind: str, place: Path) -> None:
    h, expected = own(place / kind)
    checkpoint = place / "vit.safetensors" if kind == "probe" else None
    predictions = Predictor.from_run(place / kind, checkpoint=checkpoint).predict(place / "images")
    assert [Path(name).name for name in predictions.names] == [f"{i:02d}.png" for i in range(12)]
    assert predictions.answers.nodes.tolist() == expected["answer"].tolist()
    np.testing.assert_allclose(predictions.answers.probabilities, expected["confidence"], atol=1e-5)
    inside = (
        predictions.leaves.nodes[:, :5] == torch.from_numpy(expected["truth"].astype(np.int64))[:, None]
    ).any(1)
    assert inside.tolist() == expected["top5"].tolist()
    assert predictions.hierarchy.fingerprint == h.fingerprint


def test_every_way_to_name_images_says_the_same(place: Path, predicted: Callable[..., Any]) -> None:
    folder = predicted(place / "images")
    assert len(folder) == 12
    assert folder[9]["sample"] == str(place / "images" / "more" / "09.png")
    alone = predicted(place / "images" / "03.png")
    assert alone[0]["sample"] == str(place / "images" / "03.png")
    assert alone[0]["answer"]["path"] == folder[3]["answer"]["path"]
    assert alone[0]["answer"]["probability"] == pytest.approx(folder[3]["answer"]["probability"], abs=1e-6)
    files = [Path(document["sample"]).relative_to(place) for document in folder]
    for name, tab, column in (
        ("list.csv", ",", " Path "),
        ("list.TSV", "\t", " Path "),
        ("shot.csv", ",", "Image"),
    ):
        lines = ["\ufeffnote" + tab + column, *(f"x{tab}{file}" for file in files)]
        (place / name).write_text("\r\n".join(lines) + "\r\n\r\n", encoding="utf-8")
        listed = predicted(place / name)
        assert [document["sample"] for document in listed] == [str(file) for file in files]
        assert [document["leaves"] for document in listed] == [document["leaves"] for document in folder]
    pd.DataFrame({"note": 1, "file": map(str, files)}).to_parquet(place / "list.parquet")
    assert [d["leaves"] for d in predicted(place / "list.parquet")] == [d["leaves"] for d in folder]
    several = predicted("--top-k=5", *(place / "images" / name for name in ("03.png", "more", "01.png")))
    names = [f"images/{name}.png" for name in ("03", "more/09", "more/10", "more/11", "01")]
    assert [d["sample"] for d in several] == [str(place / name) for name in names]
    assert several[1]["answer"]["path"] == folder[9]["answer"]["path"]
    workers = predicted(place / "images", "--workers", "2", "--batch-size", "5")
    assert [d["answer"]["id"] for d in workers] == [d["answer"]["id"] for d in folder]
    assert [d["sample"] for d in workers] == [d["sample"] for d in folder]


def test_python_takes_images_paths_and_arrays(place: Path) -> None:
    images = toy_images()["test"]
    predictor = Predictor.from_run(place / "probe", checkpoint=place / "vit.safetensors")
    expected = predictor.predict(place / "images")
    pictures = [images.image(i) for i in range(12)]
    for given in (
        pictures,
        [np.asarray(p) for p in pictures],
        [Path(n) for n in expected.names],
        expected.names,
    ):
        assert predictor.predict(given).answers.ids == expected.answers.ids
    assert predictor.predict(pictures[4]).answers.ids == expected.answers.ids[4:5]
    assert predictor.predict(np.asarray(pictures[4])).names == ["000000"]
    assert predictor.predict([]).answers.ids == []
    frame = expected.to_frame()
    assert frame["answer"].tolist() == expected.answers.ids
    assert frame["leaf_5_probability"].tolist() == expected.leaves.probabilities[:, 4].tolist()
    assert repr(expected).startswith("<Predictions: 12 samples over")
    assert repr(predictor).startswith("<Predictor: probe ")
    for wrong in (3, {"a": 1}, [1, 2], np.zeros((2, 3), dtype=np.int64)):
        with pytest.raises(ConfigError, match="Give a path, an image"):
            predictor.predict(wrong)


def test_features_in_every_form(strange: Path, tmp_path: Path) -> None:
    predictor = Predictor.from_run(strange / "probe")
    x = np.load(strange / "new.npy")
    _, run = own(strange / "probe")
    predictions = predictor.predict(x)
    assert predictions.answers.nodes.tolist() == run["answer"].tolist()
    np.testing.assert_allclose(predictions.answers.probabilities, run["confidence"], atol=1e-6)
    assert predictions.names[:2] == ["000000", "000001"]
    np.savez(tmp_path / "x.npz", X=x)
    save_arrays({"x": x}, tmp_path / "x.safetensors")
    for given in (torch.from_numpy(x), strange / "new.npy", tmp_path / "x.npz", tmp_path / "x.safetensors"):
        assert predictor.predict(given).answers.ids == predictions.answers.ids
    assert predictor.predict(x[3]).answers.ids == predictions.answers.ids[3:4]
    split = predictor.predict(strange / "x.npz", batch_size=7)
    assert split.names[0] == "train/000000"
    assert split.answers.ids[40:] == predictions.answers.ids


def test_a_folder_of_features(place: Path, tmp_path: Path) -> None:
    """The model behind the features is not needed, and must be the same."""
    predictions = Predictor.from_run(place / "probe").predict(place / "F")
    _, run = own(place / "probe")
    assert predictions.answers.nodes.tolist()[30:] == run["answer"].tolist()
    assert predictions.names[0].startswith("train/")
    other = save_weights(VIT, tmp_path / "other.safetensors", seed=1, img_size=SIZE)
    words = [*COMMAND.split(), "--checkpoint", str(other), "--out", str(tmp_path / "G")]
    assert cli.main(words) == 0
    with pytest.raises(
        DataError,
        match=r"must be made as in training. They differ:\n  model.weights: there [0-9a-f]+, here",
    ):
        Predictor.from_run(place / "probe").predict(tmp_path / "G")


# ---------------------------------------------------------------------- what is asked


def test_answers_above_a_threshold(place: Path, predicted: Callable[..., Any]) -> None:
    h, _ = own(place / "probe")
    plain = predicted(place / "images")
    ranks = set()
    for text, limit in (("0.7", (0.7, 0.7)), ("0.9,0.2", (0.9, 0.2)), ("0", (0, 0)), ("1", (1, 1))):
        for document, best in zip(predicted(place / "images", "--threshold", text), plain, strict=True):
            answer = document["answer"]
            assert document["leaves"] == best["leaves"]
            if answer["level"]:
                assert answer["probability"] >= limit[answer["level"] - 1]
            else:
                assert answer["path"] == ["root"]
            if text != "0.9,0.2":
                assert answer["id"] in h.ancestors(best["answer"]["id"], include_self=True)
            assert answer["path"][-1] == answer["id"]
            ranks.add(answer["level"])
    assert ranks == {0, 1, 2}


def test_answers_at_a_level(place: Path, predicted: Callable[..., Any]) -> None:
    for document in predicted(place / "images", "--level", "1"):
        assert document["answer"]["level"] == 1
        assert document["answer"]["path"][0] == "root"


def test_levels_by_name(strange: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(strange / "probe"), str(strange / "new.npy"), "--level", "genus"]
    assert cli.main(words) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {(row["answer_level"], row["answer_level_name"]) for row in rows} == {("1", "genus")}
    assert {row["answer_path"] for row in rows} == {"m", "n"}
    named = Predictor.from_run(strange / "probe").predict(strange / "new.npy", level="genus", subset=["a"])
    assert set(named.answers.ids) == {"m"}
    assert named.leaves.probabilities.tolist() == [[1.0]] * 20


def test_a_subset_of_the_classes(place: Path, predicted: Callable[..., Any]) -> None:
    h, _ = own(place / "probe")
    region = list(h.leaves[1:4])
    (place / "kept.txt").write_text("\n".join(region))
    result = predicted(place / "images", "--subset", ",".join(region))
    assert result == predicted(place / "images", "--subset", place / "kept.txt")
    for document in result:
        assert {leaf["id"] for leaf in document["leaves"]} == set(region)  # three of five asked for
        assert sum(leaf["probability"] for leaf in document["leaves"]) == pytest.approx(1)
    everything = predicted(place / "images", "--subset", ",".join(h.leaves), "--top-k", "6")
    for a, b in zip(everything, predicted(place / "images", "--top-k", "9"), strict=True):
        assert [leaf["id"] for leaf in a["leaves"]] == [leaf["id"] for leaf in b["leaves"]]
        assert a["answer"]["probability"] == pytest.approx(b["answer"]["probability"], abs=1e-6)


# ---------------------------------------------------------------------- what is written


def test_csv_holds_what_json_lines_hold(
    place: Path, predicted: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    documents = predicted(place / "images", "--top-k", "2")
    words = ["predict", place / "train", place / "images", "--top-k", "2"]
    assert cli.main([*map(str, words)]) == 0  # a pipe gets CSV
    assert len(capsys.readouterr().out.splitlines()) == 13
    words = [
        "predict",
        place / "probe",
        place / "images",
        "--checkpoint",
        place / "vit.safetensors",
        "--top-k",
        "2",
    ]
    assert cli.main([*map(str, words), "--out", str(place / "answers.csv")]) == 0
    assert capsys.readouterr().out == f"wrote 12 rows to {place / 'answers.csv'}\n"
    with (place / "answers.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert (
        list(rows[0])
        == (
            "sample answer answer_name answer_level answer_probability answer_path leaf_1 leaf_1_name leaf_1_probability "
            "leaf_2 leaf_2_name leaf_2_probability error"
        ).split()
    )
    for row, document in zip(rows, documents, strict=True):
        assert (row["sample"], row["error"]) == (document["sample"], "")
        assert row["answer"] == document["answer"]["id"] == row["leaf_1"]
        assert row["answer_path"] == " > ".join(document["answer"]["path"])
        assert float(row["leaf_2_probability"]) == document["leaves"][1]["probability"]


def test_a_table_on_a_terminal(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    assert cli.main(["predict", str(place / "train"), str(place / "images"), "--threshold", "0.6"]) == 0
    header, *lines = screen.getvalue().splitlines()
    assert header.split() == ["sample", "answer", "prob.", "best", "classes"]
    assert len(lines) == 12
    assert all(line[:40].rstrip().endswith(".png") for line in lines)


def test_no_answer_has_no_probability(
    strange: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 6), np.float32))
    words = ["--threshold", "0.99", "--top-k", "1", "--to", "table"]
    assert cli.main(["predict", str(strange / "probe"), str(tmp_path / "x.npy"), *words]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line[42:78].strip() == "no answer"


def test_a_folder_that_cannot_be_written_to(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(prefix: str, dir: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(dir / prefix))

    monkeypatch.setattr("tempfile.TemporaryDirectory", read_only)
    message = refused(capsys, place / "train", place / "images", "--out", tmp_path / "a.csv")
    assert f"Cannot write to {tmp_path}: Read-only file system. Make it writable and run" in message
    words = ["export", str(place / "train"), "--to", "safetensors", "--out", str(tmp_path / "a.safetensors")]
    assert cli.main(words) == 2
    assert f"Cannot write to {tmp_path}: Read-only file system." in capsys.readouterr().err


def test_out_is_whole_or_not_there(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [place / "train", place / "images", "--out", tmp_path / "a.jsonl", "--level", "9"]
    assert "level must be an integer" in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []
    for name, first in (("a.jsonl", "{"), ("a.txt", "sample "), ("a.csv", "sample,")):
        assert (
            cli.main(["predict", *map(str, (place / "train", place / "images", "--out", tmp_path / name))])
            == 0
        )
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert text.startswith(first)
        assert len(text.splitlines()) == 12 + (name != "a.jsonl")
    assert "--to must be given" in refused(capsys, place / "train", place / "images", "--out", "a.xlsx")
    missing = tmp_path / "no" / "a.csv"
    assert "does not exist" in refused(capsys, place / "train", place / "images", "--out", missing)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.jsonl", "a.txt"]


def test_hostile_names_are_harmless(
    strange: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(strange / "probe"), str(strange / "new.npy"), "--top-k", "4", "--to"]
    assert cli.main([*words, "csv"]) == 0
    text = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(text.splitlines()) - 1 == 20
    seen = {cell for row in rows for cell in row.values()}
    assert {"'=1+1", "<script>alert(1)</script>", "\\x1b[2Jtabby", "manx\\nisle"} <= seen
    assert cli.main([*words, "table"]) == 0
    table = capsys.readouterr().out
    assert len(table.splitlines()) == 1 + 20
    assert "\x1b" not in table
    assert "=1+1 [a]" in table
    assert cli.main([*words, "jsonl"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {leaf["name"] for d in documents for leaf in d["leaves"]} == {NAMES[c] for c in "abcd"}
    # Two nodes have one name, and a threshold answers with either: the id tells them apart.
    assert cli.main([*words, "jsonl", "--threshold", "0.0,1"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(d["answer"]["id"], d["answer"]["name"]) for d in documents} == {("m", "cat"), ("n", "cat")}


def test_file_names_of_any_bytes(
    place: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = b"h\xe4\xff\x1b[2J\n.png"
    shutil.copy(place / "images" / "00.png", tmp_path / name.decode(errors="surrogateescape"))
    for form in ("csv", "table", "jsonl"):
        assert cli.main(["predict", str(place / "train"), str(tmp_path), "--to", form]) == 0
        text = capsysbinary.readouterr().out.decode()  # it is text
        assert len(text.splitlines()) == 1 + (form != "jsonl")
        if form == "jsonl":
            assert json.loads(text)["sample"] == str(tmp_path) + "/" + name.decode(errors="surrogateescape")
        else:
            assert "\x1b" not in text


# ---------------------------------------------------------------------- images that cannot be read


@pytest.fixture
def broken(place: Path, tmp_path: Path) -> Path:
    """Twelve images, of which the second is none and the fifth is cut off."""
    shutil.copytree(place / "images", tmp_path / "images")
    (tmp_path / "images" / "01.png").write_text("no image")
    whole = (tmp_path / "images" / "04.png").read_bytes()
    (tmp_path / "images" / "04.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "images"


@pytest.mark.parametrize("size", ["1", "5", "64"])
def test_broken_images_have_a_row_with_the_reason(
    size: str, place: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(place / "train"), str(broken), "--to", "jsonl", "--batch-size", size]
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    documents = [json.loads(line) for line in out.splitlines()]
    assert [Path(d["sample"]).name for d in documents] == [f"{i:02d}.png" for i in range(12)]
    assert [i for i, d in enumerate(documents) if "error" in d] == [1, 4]
    assert "the image cannot be read" in documents[1]["error"]
    assert "hace: 2 of 12 images cannot be read:\n" in err
    assert f"  {broken / '01.png'}: the image cannot be read (" in err
    assert f"  {broken / '04.png'}: " in err
    assert "--skip-broken skips these" in err


def test_broken_images_are_left_out(
    place: Path, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form, rows in (("jsonl", 10), ("csv", 11), ("table", 11)):
        words = ["predict", str(place / "train"), str(broken), "--skip-broken", "--to", form]
        assert cli.main(words) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == rows
        assert "hace: 2 of 12 images cannot be read:" in err
    assert cli.main([*words[:4], "--out", str(tmp_path / "a.csv")]) == 0
    assert capsys.readouterr().out.startswith("wrote 10 rows to ")
    assert cli.main(["predict", str(place / "train"), str(broken / "01.png"), "--skip-broken"]) == 0
    assert capsys.readouterr().out.startswith("sample,answer,")  # a table without rows is a table


def test_broken_images_in_python(place: Path, broken: Path) -> None:
    predictor = Predictor.from_run(place / "train")
    with pytest.raises(DataError, match=r"^2 of 12 images cannot be read:\n  .*01\.png: .*\n  .*04\.png: "):
        predictor.predict(broken)
    predictions = predictor.predict(broken, skip_broken=True, batch_size=3)
    assert (len(predictions), len(predictions.names)) == (10, 10)
    assert [(b.place, Path(b.name).name) for b in predictions.broken] == [(1, "01.png"), (4, "04.png")]
    assert repr(predictions).startswith("<Predictions: 10 samples, 2 broken over")
    with pytest.raises(
        DataError, match=r"2 of 2 images cannot be read:\n  gone\.png: the image does not exist"
    ):
        predictor.predict(["gone.png", "lost.png"])


def test_an_image_that_would_fill_the_memory(place: Path, tmp_path: Path) -> None:
    """Its shorter side is made 36 pixels wide before the middle is cut out: 1 x 30,000 would become 36 x 1,080,000."""
    image = toy_images()["test"].image(0).resize((1, 30_000))
    image.save(tmp_path / "thread.png")
    predictions = Predictor.from_run(place / "train").predict(
        [tmp_path / "thread.png", image], skip_broken=True
    )
    assert len(predictions) == 0
    assert [b.reason for b in predictions.broken] == [
        "the image has 1 x 30000 pixels, too narrow for its length."
    ] * 2


# ---------------------------------------------------------------------- many images


@pytest.mark.slow
def test_two_thousand_images_in_constant_memory(place: Path, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    content = (place / "images" / "00.png").read_bytes()
    for i in range(2000):
        (tmp_path / "many" / f"{i:04d}.png").write_bytes(content)
    predictor = Predictor.from_run(place / "train")
    real = predictor.vision
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def transform(image: Any) -> Tensor:
        nonlocal most
        tensor = real.transform(image)
        alive.add(tensor)
        most = max(most, len(alive))
        return tensor

    def outputs(images: Tensor) -> Tensor:
        nonlocal most
        alive.add(images)
        most = max(most, len(alive))
        return torch.zeros(len(images), predictor.loss.num_outputs)

    predictor.__dict__["vision"] = Vision(transform, outputs, 64)
    count = 0
    for batch in predictor.stream(tmp_path / "many", Question(top_k=1)):
        count += len(batch)
        assert len(batch) <= 64
    assert count == 2000
    assert most <= 2 * (64 + 1)  # the images of a batch, and of the one before


# ---------------------------------------------------------------------- what is refused


def test_what_is_no_run(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = place / "images"
    assert "nowhere does not exist" in refused(capsys, "nowhere", images)
    assert "must be a run directory. It has no run.json." in refused(capsys, tmp_path, images)
    for kind in ("probe", "train"):
        copy = tmp_path / kind
        shutil.copytree(place / kind, copy)
        content = bytearray((copy / "weights.safetensors").read_bytes())
        content[-1] ^= 1
        (copy / "weights.safetensors").write_bytes(content)
        assert "weights.safetensors was changed after it was written" in refused(capsys, copy, images)
        write_hierarchy(Hierarchy.flat(["x", "y"]), copy / "hierarchy.json")
        rehash(copy)
        assert "is not the hierarchy that the run was made with" in refused(capsys, copy, images)
        rehash(copy, status="diverged")
        assert "has no model: its training diverged" in refused(capsys, copy, images)
        (copy / "manifest.json").unlink()
        assert "is not finished" in refused(capsys, copy, images)


def test_what_holds_no_images(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "train"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("")
    assert "holds no image, at any depth" in refused(capsys, run, tmp_path / "empty")
    assert "does not exist" in refused(capsys, run, tmp_path / "gone.png")
    message = refused(capsys, run, place / "probe", str(place / "images"))
    assert f"INPUT must be images. Got the run {place / 'probe'}: ask one run at a time." in message
    message = refused(capsys, place / "probe", place / "images", str(place / "F"))
    assert (
        f"INPUT must be one path, or several of images. Got the features {place / 'F'} among others."
        in message
    )
    lists = {
        "name,label\na.png,1\n": "must have a header with the column 'path'. Its first line has name, label.",
        "pth\na.png\n": "Did you mean 'pth'?",
        "": "Its first line has nothing",
        "path\n": "the list has no images",
        "label,path\n1\n": "line 2: every row must have 2 cells",
        "label,path\n1, \n": "line 2: there is no path",
    }
    for text, message in lists.items():
        (tmp_path / "list.csv").write_text(text)
        assert message in refused(capsys, run, tmp_path / "list.csv")
    (tmp_path / "list.csv").write_bytes(b"path\n\xff\xfe.png\n")
    assert "line 2: the text must be UTF-8. Got byte 0xff" in refused(capsys, run, tmp_path / "list.csv")
    (tmp_path / "list.csv").write_text("path\nimages/gone.png\n")
    message = refused(capsys, run, tmp_path / "list.csv", "--to", "jsonl")
    assert "1 of 1 image cannot be read:\n  images/gone.png: the image does not exist" in message


def test_features_that_do_not_fit(
    place: Path, strange: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((2, 7), np.float32))
    assert "must have 6 columns" in refused(capsys, strange / "probe", tmp_path / "wide.npy")
    assert "Got 7" in refused(capsys, strange / "probe", tmp_path / "wide.npy")
    x = np.zeros((3, 6), np.float32)
    x[1, 2] = np.nan
    np.save(tmp_path / "nan.npy", x)
    assert "1 of 3 given samples" in refused(capsys, strange / "probe", tmp_path / "nan.npy")
    message = refused(capsys, strange / "probe", tmp_path / "nan.npy", "--batch-size", "1")
    assert "the first of them sample 1." in message  # counted over all batches
    np.save(tmp_path / "huge.npy", np.full((2, 6), 1e39))
    assert "2 of 2 given samples" in refused(capsys, strange / "probe", tmp_path / "huge.npy")
    np.save(tmp_path / "empty.npy", np.zeros((0, 6), np.float32))
    assert "empty.npy holds no sample" in refused(capsys, strange / "probe", tmp_path / "empty.npy")
    np.save(tmp_path / "flat.npy", np.zeros(6))
    assert "(M, d). Got float64 (6,)" in refused(capsys, strange / "probe", tmp_path / "flat.npy")
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    assert "must hold features. Got 'y'" in refused(capsys, strange / "probe", tmp_path / "y.npz")
    (tmp_path / "bad.npy").write_bytes(b"no array")
    assert "must be an .npy or .npz file of numpy" in refused(capsys, strange / "probe", tmp_path / "bad.npy")
    assert "was trained on images, and cannot take features" in refused(
        capsys, place / "train", strange / "new.npy"
    )
    message = refused(capsys, strange / "probe", place / "images")
    assert "was trained on features whose model is not known" in message
    assert "Give it features" in message


def test_features_that_were_changed(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(place / "F", tmp_path / "F")
    np.save(tmp_path / "F" / "test-00000.npy", np.zeros((8, 64), np.float32))
    assert "has changed since it was written" in refused(capsys, place / "probe", tmp_path / "F")


def test_weights_of_the_model_behind_the_features(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = save_weights(VIT, tmp_path / "other.safetensors", seed=1, img_size=SIZE)
    predictor = Predictor.from_run(place / "probe", checkpoint=other)
    recorded = predictor.run.about["data"]["source"]["model"]["weights"][:12]
    with pytest.raises(
        ConfigError, match=rf"with the weights {recorded}, and --checkpoint .* has [0-9a-f]{{12}}\. Give"
    ):
        predictor.predict(place / "images")
    monkeypatch.setitem(predictor.run.about["data"]["source"]["preprocessing"], "mean", [0.0, 0.0, 0.0])
    predictor.checkpoint = None  # the file that `hace features` had is still there
    with pytest.raises(
        ConfigError,
        match=r"This version of timm preprocesses images for test_vit differently:\n  mean: there \[0.0",
    ):
        predictor.predict(place / "images")


def test_weights_from_a_file_that_is_gone_are_asked_for_at_once(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("the hub is asked"))
    weights = (place / "vit.safetensors").rename(place / "moved.safetensors")
    try:
        message = refused(capsys, place / "probe", place / "images")
    finally:
        weights.rename(place / "vit.safetensors")
    assert f"with weights from {place / 'vit.safetensors'}, which is not here." in message
    assert "Give that file: --checkpoint FILE" in message


def test_weights_are_not_ignored_where_features_are_given(
    place: Path, strange: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(
        capsys, strange / "probe", strange / "new.npy", "--checkpoint", place / "vit.safetensors"
    )
    assert "--checkpoint must come with images. Got the features" in message


def test_bad_options(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def message(*words: object) -> str:
        return refused(capsys, place / "train", place / "images", *words)

    assert "--threshold must be a number" in message("--threshold", "high")
    assert "levels 1 to 2. Got 3" in message("--threshold", "0.1,0.2,0.3")
    assert "--threshold must come without --level" in message("--threshold", "0.5", "--level", "1")
    assert "top_k must be at least 1. Got 0" in message("--top-k", "0")
    assert "the hierarchy has no class 'zebra'" in message("--subset", "zebra")
    assert "batch_size must be at least 1. Got 0" in message("--batch-size", "0")
    assert "--workers must be 0 or more" in message("--workers", "-1")
    assert "device cuda:77 cannot be used here" in message("--device", "cuda:77")
    assert "checkpoint belongs to probes" in message("--checkpoint", place / "vit.safetensors")
    predictor = Predictor.from_run(place / "train")
    for wrong in ({"top_k": 0}, {"batch_size": 0}, {"workers": -1}, {"threshold": 0.5, "level": 1}):
        with pytest.raises(ConfigError):
            predictor.predict(place / "images", **wrong)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="does not exist"):
        Predictor.from_run("nowhere")


def test_a_training_evaluates_to_its_own_result(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(place / "train"), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    result = json.loads((place / "train" / "result.json").read_text())
    assert got["metrics"] == result["metrics"]
    assert got["reliability"] == result["reliability"]
    assert cli.main(["evaluate", str(place / "train"), "--split", "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 30


# ---------------------------------------------------------------- other people's tools


def test_pre_annotations_for_label_studio(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("00.png", "01.png"):
        shutil.copy(place / "images" / name, tmp_path / "photos" / name)
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    out = tmp_path / "tasks.json"
    words = [
        "predict",
        str(place / "probe"),
        str(tmp_path / "photos"),
        "--to",
        "label-studio",
        "--out",
        str(out),
    ]
    assert cli.main([*words, "--prefix", "/data/local-files/?d="]) == 2  # the broken one
    tasks = json.loads(out.read_text())
    assert [set(task) for task in tasks] == [{"data", "predictions"}] * 3
    assert "broken.png" in tasks[2]["data"]["image"]
    assert "cannot be read" in tasks[2]["data"]["error"]
    h = read_run(place / "probe").hierarchy
    (prediction,) = tasks[0]["predictions"]
    (path,) = prediction["result"][0]["value"]["taxonomy"]
    assert h.path(path[-1])[::-1][h.rooted :] == tuple(path)
    assert prediction["model_version"].startswith("hace ")
    assert 0 < prediction["score"] <= 1
    capfd.readouterr()
    # What annotators accept comes back as training data.
    for task in tasks[:2]:
        task["annotations"] = [{"completed_by": 1, "result": task["predictions"][0]["result"]}]
    out.write_text(json.dumps(tasks[:2]))
    words = [
        "data",
        "label-studio",
        "--data-root",
        str(out),
        "-o",
        f"prefix=/data/local-files/?d={tmp_path}/photos/",
    ]
    assert cli.main([*words, "-o", f"images={tmp_path}/photos", "-o", "allow_empty=true", "--check"]) == 0


def test_labels_for_fiftyone(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.json"
    words = ["predict", str(place / "train"), str(place / "images"), "--to", "fiftyone", "--batch-size", "4"]
    assert cli.main([*words, "--out", str(out)]) == 0
    labels = json.loads(out.read_text())["labels"]
    assert len(labels) == 12
    assert all(Path(path).is_file() for path in labels)  # absolute, so that FiftyOne needs no copy
    h = read_run(place / "train").hierarchy
    for label in labels.values():
        assert label["label"] in h.leaves
        assert label["attributes"]["level_1"] in h.path(label["label"])


def test_what_other_tools_cannot_show(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(place / "probe"), str(place / "F"), "--to", "fiftyone"]
    assert cli.main(words) == 2
    assert "--to fiftyone must come with images. Got features or texts" in capfd.readouterr().err
    image = {"id": 0, "file_name": "00.png", "width": 32, "height": 32}
    box = {"id": 0, "image_id": 0, "category_id": 0, "bbox": [0, 0, 9, 9]}
    document = {"images": [image], "annotations": [box], "categories": [{"id": 0, "name": "x"}]}
    shutil.copy(place / "images" / "00.png", tmp_path / "00.png")
    (tmp_path / "boxes.json").write_text(json.dumps(document))
    words = ["predict", str(place / "train"), str(tmp_path / "boxes.json")]
    assert cli.main([*words, "--to", "label-studio"]) == 2
    assert "--to label-studio must come with whole images. Got boxes" in capfd.readouterr().err
    assert cli.main([*words, "--to", "csv"]) == 0
    assert "00.png," in capfd.readouterr().out


def test_which_to_label_next(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("pool", "tables"):
        (tmp_path / folder).mkdir()
    for i in range(5):
        shutil.copy(place / "images" / f"{i:02d}.png", tmp_path / "pool" / f"{i:02d}.png")
    (tmp_path / "pool" / "broken.png").write_bytes(b"no image")
    out = tmp_path / "tables" / "next.csv"
    assert cli.main(["next", str(place / "probe"), "pool", "--budget", "3", "--out", "tables/next.csv"]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    margins = [float(row["margin"]) for row in rows]
    assert len({row["path"] for row in rows}) == 3
    assert margins == sorted(margins)
    h = read_run(place / "probe").hierarchy
    assert all(row["class"] in h.leaves for row in rows)
    shown = capfd.readouterr().err
    assert "3 of 5 samples to label next" in shown
    assert "1 of 6 images cannot be read" in shown
    # The table is a list of photos: the same samples as tasks to annotate.
    words = [
        "predict",
        str(place / "probe"),
        str(out),
        "--to",
        "label-studio",
        "--out",
        str(tmp_path / "tasks.json"),
    ]
    assert cli.main(words) == 0
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert {Path(task["data"]["image"]).name for task in tasks} == {Path(row["path"]).name for row in rows}


def test_next_of_features(
    strange: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["next", str(strange / "probe"), str(strange / "new.npy"), "--budget", "4"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "sample,class,margin"
    assert len(lines) == 5
    assert cli.main(["next", str(strange / "probe"), str(strange / "new.npy"), "--budget", "0"]) == 2
    assert "budget must be" in capfd.readouterr().err
    assert cli.main(["next", str(strange / "probe"), "--budget", "3"]) == 2
    assert "hace next must have a POOL" in capfd.readouterr().err
    pool = [str(strange / "probe"), str(strange / "new.npy"), "--budget", "4"]
    monkeypatch.setattr(
        Predictor, "stream", lambda *_, **__: pytest.fail("the pool was read before the options")
    )
    assert cli.main(["next", *pool, "--seed", "-1"]) == 2
    assert "seed must be a whole number from 0" in capfd.readouterr().err
