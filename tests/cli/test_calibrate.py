"""`hace calibrate`, and the guarantees that `hace predict`, `hace evaluate` and `Predictor` make with it."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hace
from hace import Hierarchy, cli, write_hierarchy
from hace.decisions.calibration import calibrate_scores, read_calibration
from hace.errors import ConfigError, DataError, FormatError
from hace.files.writing import json_bytes
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.runs.run import Run
from hace.lab.serve.calibrate_run import calibrate_run, calibration_of
from hace.lab.serve.predictor import Predictor
from hace.lab.serve.rescore import rescored
from hace.lab.train.train import train
from tests.fuzz.driver import time_limit
from tests.run_files import edit_json
from tests.train_cases import tiny

DATA = DataConfig(
    "synthetic-features", options={"classes": 8, "dim": 6, "train": 30, "test": 20, "signal": 0.5}
)
H = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])


def probed(folder: Path, validation: float = 0.5, loss: str = "hace") -> Run:
    config = ProbeConfig(data=DATA, loss=LossConfig(loss), epochs=5, lr=2.0, validation=validation)
    (run,) = probe([config], folder)
    return run


def files(folder: Path, z: Any, y: Any, h: Hierarchy = H) -> list[str]:
    """The options of files with scores and labels."""
    np.save(folder / "z.npy", np.asarray(z, dtype=np.float32))
    np.save(folder / "y.npy", np.asarray(y))
    write_hierarchy(h, folder / "tree.json")
    return [
        "--hierarchy",
        f"{folder}/tree.json",
        "--scores",
        f"{folder}/z.npy",
        "--labels",
        f"{folder}/y.npy",
    ]


def scored(rows: int, seed: int = 0, n: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(n, size=rows)
    z = rng.normal(size=(rows, n))
    z[np.arange(rows), y] += 1.0
    return z, y


@pytest.mark.parametrize("loss", ["hace", "cross_entropy", "conditional_softmax"])
def test_a_calibrated_run_answers_with_its_threshold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    run = probed(tmp_path / "runs", loss=loss)
    new = rescored(run.folder)
    np.save(tmp_path / "new.npy", new.samples.x)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=f"must be calibrated .* Run: hace calibrate {run.folder}"):
        Predictor.from_run(run.folder).predict(tmp_path / "new.npy", accuracy=0.9)
    words = [
        "predict",
        str(run.folder),
        f"{tmp_path}/new.npy",
        "--out",
        f"{tmp_path}/a.csv",
        "--accuracy",
        "0.9",
    ]
    assert cli.main(words) == 2
    assert cli.main(["evaluate", str(run.folder), "--accuracy", "0.9"]) == 2
    assert capsys.readouterr().err.count(f"hace calibrate {run.folder}") == 2
    assert cli.main(["calibrate", str(run.folder), "--accuracy", "0.9"]) == 0
    said = capsys.readouterr().out
    assert "--of samples: of all samples, at most 1 - accuracy get a false answer, on average" in said
    assert "exchangeable" in said
    assert "of the held-out samples" in said  # a share of the training samples is no split of the user

    result = calibration_of(run)
    sure = result.threshold_for(0.9)
    held = rescored(run.folder, split="val")
    assert result.samples + result.temperature_samples == len(held.samples)
    z = torch.cat(list(new.outputs()))
    z = (z if loss == "hace" else new.loss.leaf_logits(z)) / result.temperature
    assert isinstance(sure.threshold, float)
    expected = hace.predict(z, new.hierarchy, "threshold", threshold=sure.threshold)
    answers = Predictor.from_run(run.folder).predict(tmp_path / "new.npy", accuracy=0.9)
    assert answers.answers.ids == expected.ids
    np.testing.assert_allclose(answers.answers.probabilities, expected.probabilities, atol=1e-5)
    assert answers.guarantee == sure
    assert cli.main(words) == 0
    assert sure.guarantee in capsys.readouterr().err
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["answer"] for row in rows] == expected.ids
    assert {row["answer_guarantee"] for row in rows} == {sure.guarantee}

    assert cli.main(["evaluate", str(run.folder), "--accuracy", "0.9", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    h = new.hierarchy
    truths = [set(h.ancestors(h.nodes[v], include_self=True)) for v in new.samples.nodes.tolist()]
    false = [a is not None and a not in t for a, t in zip(expected.ids, truths, strict=True)]
    assert report["guarantee"]["measured"]["false"] == pytest.approx(np.mean(false))
    assert report["guarantee"]["assumptions"]
    assert report["guarantee"]["remark"] is None
    measured = report["guarantee"]["measured"]
    assert measured["true_of_answers"] == pytest.approx(1 - measured["false"] / measured["answered"])
    for split, words in (("val", "was calibrated on them"), ("train", "was trained on them")):
        assert cli.main(["evaluate", str(run.folder), "--accuracy", "0.9", "--split", split]) == 0
        assert f"These samples do not test the guarantee: the run {words}" in capsys.readouterr().out
    assert report["metrics"]["calibrated: guarantee, 0.9 of samples"]["specificity"] == pytest.approx(
        report["guarantee"]["measured"]["specificity"]
    )


def test_a_calibration_of_another_model_is_refused(tmp_path: Path) -> None:
    run = probed(tmp_path)
    result = calibrate_run(run.folder, (0.8, 0.9), of="samples")
    path = run.folder / "calibration.json"
    good = path.read_text()
    again = f"Calibrate again: hace calibrate {run.folder}"
    first = result.thresholds[0].to_dict()
    other = {"hierarchy": "0" * 64}
    for change, words in (
        ({"weights": "0" * 64}, f"made with the weights of the run.* {again}"),
        (other | {"thresholds": [first | other]}, f"made with this hierarchy.* {again}"),
        ({"format": "other"}, "must be a calibration that `hace calibrate` wrote"),
        ({"temperature": -1.0}, "temperature must be above 0"),
        ({"thresholds": [{}]}, f"must be a calibration.* {again}"),
        ({"thresholds": []}, "thresholds must be at least one"),
        ({"surprise": 1}, "surprise is not a setting. Known: temperature"),
        ({"hierarchy": 5}, "hierarchy must be text. Got 5"),
        ({"notes": 5}, "notes must be a list of texts. Got 5"),
        ({"samples": "many"}, "samples must be an integer. Got 'many'"),
        ({"thresholds": [first | {"accuracy": "x"}]}, f"Got accuracy 'x'. {again}"),
        ({"thresholds": [first | {"hierarchy": "x"}]}, "all for its hierarchy"),
    ):
        values = {**json.loads(good), **change}
        del values["sha256"]
        edit_json(
            path, **change, sha256=hashlib.sha256(json_bytes(values)).hexdigest()
        )  # forged, not damaged
        with pytest.raises(hace.HaceError, match=words):
            Predictor.from_run(run.folder).predict(torch.zeros(1, 6), accuracy=0.9)
        path.write_text(good)
    assert read_calibration(path) == result
    with pytest.raises(
        ConfigError,
        match=rf"0\.9 of samples\. Got 0\.97 of answers\. To add it: hace calibrate {run.folder} --accuracy 0\.8,0\.9,0\.97$",
    ):
        Predictor.from_run(run.folder).predict(torch.zeros(1, 6), accuracy=0.97, of="answers")
    with pytest.raises(DataError, match="at least"):
        calibrate_run(run.folder, 0.999)
    assert path.read_text() == good  # what fails leaves the old one
    probe([run.config], tmp_path)  # type: ignore[list-item]
    assert path.is_file()
    (run.folder / "weights.safetensors").unlink()
    probe([run.config], tmp_path)  # type: ignore[list-item]
    assert not path.exists()  # the run was made again


def test_which_samples_calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those held out; the test samples only by name; a temperature from elsewhere leaves all of them for thresholds."""
    run = probed(tmp_path, validation=0.0)
    assert cli.main(["calibrate", str(run.folder)]) == 2
    said = capsys.readouterr().err
    assert "held out no samples" in said
    assert not (run.folder / "calibration.json").exists()
    command = said.split("train again: hace ")[1].split(",")[0]
    assert cli.main([*command.split(), "--out", f"{tmp_path}/again"]) == 0  # what the message says to run
    again = tmp_path / "again/latest"
    assert cli.main(["calibrate", str(again), "--accuracy", "0.5"]) == 0
    capsys.readouterr()
    assert cli.main(["calibrate", str(run.folder), "--split", "test", "--temperature", "2"]) == 0
    assert "no longer a fair test" in capsys.readouterr().out
    result = calibration_of(run)
    assert (result.temperature, result.temperature_samples, result.samples) == (2.0, 0, 8 * 20)
    with pytest.raises(ConfigError, match="split must be one of 'val', 'test'"):
        calibrate_run(run.folder, split="train")


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_files_of_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    z, y = scored(300)
    p = torch.from_numpy(z).softmax(1).numpy()
    words = [*files(tmp_path, p if kind == "probs" else z, y), "--kind", kind]
    out = ["--out", f"{tmp_path}/c.json", "--of", "samples", "--rule", "climb"]
    assert cli.main(["calibrate", *words, *out]) == 0
    capsys.readouterr()
    calibration = read_calibration(tmp_path / "c.json")
    logits = torch.from_numpy(np.load(tmp_path / "z.npy"))
    logits = logits.log() if kind == "probs" else logits
    nodes = H.leaf_nodes[y]
    assert calibrate_scores(logits, nodes, H, of="samples", rule="climb", split="z.npy") == calibration
    evaluated = ["evaluate", *words, "--calibration", f"{tmp_path}/c.json", "--accuracy", "0.8", "--json"]
    assert cli.main(evaluated) == 0
    report = json.loads(capsys.readouterr().out)
    answers = calibration.threshold_for(0.8).predict(logits / calibration.temperature, H)
    true = hace.evaluate(logits, y, H, rules={}).values  # the raw metrics stay
    assert report["metrics"]["leaves"]["top-1"] == pytest.approx(true["leaves", "top-1"])
    specific = hace.evaluate(logits / calibration.temperature, y, H).values["selection", "AURC"]
    assert report["metrics"]["calibrated: selection"]["AURC"] == pytest.approx(specific, abs=1e-6)
    below = np.mean([v is not None for v in answers.ids])
    assert report["guarantee"]["measured"]["answered"] == pytest.approx(below)
    np.save(tmp_path / "nodes.npy", np.zeros((300, H.num_nodes), dtype=np.float32))
    other = [w.replace("z.npy", "nodes.npy") for w in evaluated if w not in ("--kind", kind)]
    assert cli.main(other) == 2
    assert "c.json must be made with scores over nodes, as these are" in capsys.readouterr().err
    with pytest.raises(
        ConfigError, match=r"--accuracy 0\.7,0\.8,0\.9,0\.95,0\.99 --of samples --rule climb$"
    ):
        calibration.threshold_for(0.7)


def test_probabilities_read_as_logits_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z, y = scored(200)
    out = ["--out", f"{tmp_path}/c.json", "--accuracy", "0.8", "--temperature", "1"]
    for scores, doubt in ((torch.from_numpy(z).softmax(1).numpy(), True), (z, False)):
        assert cli.main(["calibrate", *files(tmp_path, scores, y), *out]) == 0
        said = capsys.readouterr()
        assert ("--kind probs" in said.err) == doubt
        assert "temperature 1, as given\n" in said.out


HEALTHY, LABELS = scored(120)
SAME = np.tile([[1.0, 0.5, 0.2]], (120, 1))
BAD: dict[str, tuple[Any, Any, list[str], str]] = {
    "constant scores": (np.ones((120, 3)), LABELS, [], "constant, or no better than chance"),
    "NaN": (np.where(np.eye(120, 3) > 0, np.nan, HEALTHY), LABELS, [], "must not hold NaN"),
    "labels outside": (HEALTHY, LABELS + 7, [], "y.npy"),
    "too few samples": (HEALTHY[:20], LABELS[:20], ["--accuracy", "0.99"], "samples must be at least 99"),
    "too few for both": (HEALTHY[:20], LABELS[:20], ["--accuracy", "0.99"], "Of the 20 calibration samples 6 fit"),
    "accuracy of nearly 1": (
        HEALTHY, LABELS, ["--accuracy", "0.999999999", "--of", "answers"], "samples must be at least 2,878,231,364"),
    "no samples": (HEALTHY[:0], LABELS[:0], [], "at least one sample"),
    "accuracy 0": (HEALTHY, LABELS, ["--accuracy", "0"], "above 0 and below 1. Got 0.0"),
    "accuracy 1": (HEALTHY, LABELS, ["--accuracy", "1"], "above 0 and below 1. Got 1.0"),
    "accuracy NaN": (HEALTHY, LABELS, ["--accuracy", "nan"], "--accuracy must be a number"),
    "confidence 1": (HEALTHY, LABELS, ["--confidence", "1"], "confidence must be"),
    "temperature 0": (HEALTHY, LABELS, ["--temperature", "0"], "temperature must be a number above 0"),
    "rows that differ": (HEALTHY, LABELS[:50], [], "There must be one label per row"),
    "a split": (HEALTHY, LABELS, ["--split", "test"], "--split must come with RUN"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    z, y, more, words = BAD[case]
    out = tmp_path / "c.json"
    assert cli.main(["calibrate", *files(tmp_path, z, y), "--out", str(out), *more]) == 2
    said = capsys.readouterr().err
    assert words in said, said
    assert len(said) < 1500
    assert not out.exists()


def test_options_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = probed(tmp_path)
    calibrate_run(run.folder)
    np.save(tmp_path / "new.npy", np.zeros((2, 6), dtype=np.float32))
    asked = ["predict", str(run.folder), f"{tmp_path}/new.npy"]
    scores = files(tmp_path, *scored(30))
    for words, said in (
        ([*asked, "--accuracy", "0.9", "--threshold", "0.5"], "--threshold must come without --accuracy"),
        (
            [*asked, "--accuracy", "0.9", "--subset", run.hierarchy.leaves[0]],
            "must come with the subset that it was calibrated with",
        ),
        ([*asked, "--of", "answers"], "--of must come with --accuracy"),
        (["evaluate", *scores, "--accuracy", "0.9"], "must come with --calibration"),
        (
            ["evaluate", str(run.folder), "--calibration", "c.json"],
            "--calibration must come with --scores or --accuracy",
        ),
        (
            ["evaluate", *scores, "--calibration", f"{run.folder}/calibration.json"],
            "made with this hierarchy",
        ),
        (["calibrate", str(run.folder), *scores[:2]], "--hierarchy must come with --scores"),
        (["calibrate"], "hace calibrate must have a RUN, or --hierarchy, --scores and --labels"),
    ):
        assert cli.main(words) == 2, words
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_guarantees_are_kept_on_new_samples() -> None:
    """Over many draws the mean error keeps the level; the temperature has samples of its own."""
    z, y = scored(40_000, n=3)
    error = []
    for seed in range(200):
        rows = np.random.default_rng(seed).permutation(len(z))
        calibration, new = rows[:90], rows[90:1090]
        result = calibrate_scores(
            torch.from_numpy(z[calibration]),
            H.leaf_nodes[y[calibration]],
            H,
            0.9,
            of="samples",
            seed=seed,
        )
        answers = result.threshold_for(0.9).predict(torch.from_numpy(z[new]) / result.temperature, H).ids
        true = [{None, *H.ancestors(H.leaves[i], include_self=True)} for i in y[new].tolist()]
        error.append(np.mean([a not in t for a, t in zip(answers, true, strict=True)]))
    assert np.mean(error) < 0.1 + 2 * np.std(error) / np.sqrt(200)
    assert np.mean(error) > 0.06  # nor are answers vaguer than they need to be


def test_a_training_is_calibrated_on_what_it_held_out(tmp_path: Path) -> None:
    run = train(tiny(validation=0.5), tmp_path / "run")
    result = calibrate_run(run.folder, 0.5, of="samples", temperature=1.0)
    assert (result.split, result.samples) == ("val", 20)
    image = np.zeros((32, 32, 3), dtype=np.uint8)
    answers = Predictor.from_run(run.folder).predict(image, accuracy=0.5)
    assert answers.guarantee == result.threshold_for(0.5)
    assert run.result is not None
    assert run.result["temperature"]["source"] == "val"


@pytest.mark.parametrize("name", ["calibration.json", "model.safetensors", "huggingface"])
def test_nothing_in_a_run_is_written_through_a_link(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = probed(tmp_path)
    victim = tmp_path / "victim"
    if name == "huggingface":
        victim.mkdir()
    else:
        victim.write_text("years of work")
    (run.folder / name).symlink_to(victim)
    to = {"model.safetensors": "safetensors"}.get(name, name)
    words = (
        ["calibrate", str(run.folder)]
        if to == "calibration.json"
        else ["export", str(run.folder), "--to", to]
    )
    assert cli.main(words) == 2
    assert "Got a link. Remove it" in capsys.readouterr().err
    assert list(victim.iterdir()) == [] if victim.is_dir() else victim.read_text() == "years of work"


def test_a_changed_threshold_is_noticed(tmp_path: Path) -> None:
    run = probed(tmp_path / "runs")
    calibrate_run(run.folder, 0.9)
    path = run.folder / "calibration.json"
    document = json.loads(path.read_text())
    document["thresholds"][0]["threshold"] /= 2  # still a calibration, of another guarantee
    path.write_text(json.dumps(document, indent=1))
    with pytest.raises(FormatError, match=r"does not match its checksum\. Calibrate again: hace calibrate"):
        Predictor.from_run(run.folder).predict(np.zeros((1, 6), np.float32), accuracy=0.9)


def test_an_export_inside_a_run_does_not_answer_for_the_run(tmp_path: Path) -> None:
    run = probed(tmp_path / "runs")
    assert cli.main(["export", str(run.folder), "--to", "safetensors"]) == 0
    assert (run.folder / "model.safetensors").is_file()
    calibrate_run(run.folder, 0.9)
    assert (
        Predictor.from_run(run.folder).predict(np.zeros((1, 6), np.float32), accuracy=0.9).guarantee
        is not None
    )


@pytest.mark.parametrize(
    ("largest", "options"),
    [
        (9e307, []),
        (1.7e308, ["--temperature", "1"]),
        (-1.7e308, []),
        (1.0, ["--accuracy", "0.999999999", "--of", "answers"]),
        (1.0, ["--accuracy", "1e-320"]),
        (1.0, ["--accuracy", "1e-320", "--of", "answers"]),
        (1.0, ["--accuracy", "0.9", "--confidence", "1e-300"]),
        (1.0, ["--accuracy", "0.9999999999999999", "--confidence", "0.9999999999999999"]),
        (1.0, ["--temperature", "1e-300"]),
        (1.0, ["--temperature", "1e300"]),
    ],
)
def test_extreme_scores_and_guarantees_end_in_an_answer_or_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], largest: float, options: list[str]
) -> None:
    z, y = scored(90)
    row = int(np.random.default_rng([0, 0xCA11]).permutation(90)[0])  # which fits the temperature
    z[row, (y[row] + 1) % 3] = largest
    given = files(tmp_path, z * 0, y)
    np.save(tmp_path / "z.npy", z)  # in float64
    words = ["calibrate", *given, *options, "--out", str(tmp_path / "c.json"), "--json"]
    with time_limit(20):  # of the processor
        code = cli.main(words)
    out, err = capsys.readouterr()
    assert code in (0, 2), err
    if code == 0:
        assert json.loads(out)["thresholds"]


def test_messages_name_rows_of_the_file_and_only_what_is_in_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    z, y = scored(90)
    given = files(tmp_path, z, y)
    z[50, 0] = 1.7e308  # finite, and beyond float64 after a division by 0.5
    np.save(tmp_path / "z.npy", z)
    words = ["calibrate", *given, "--temperature", "0.5", "--out", str(tmp_path / "c.json")]
    assert cli.main(words) == 0, capsys.readouterr().err
    z = z.clip(-50, 50)
    row = int(np.flatnonzero(y != 2)[20])
    z[row, :2] = -np.inf
    np.save(tmp_path / "z.npy", z)
    assert cli.main([*words, "--subset", "husky,beagle"]) == 2
    assert f"1 of {(y != 2).sum()} rows break this rule; the first is row {row}." in capsys.readouterr().err


def test_a_model_that_is_always_right_keeps_temperature_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, labels = np.eye(6, dtype=np.float32)[np.arange(60) % 6] * 9, np.arange(60) % 6
    np.save(tmp_path / "z.npy", scores)
    np.save(tmp_path / "y.npy", labels)
    Path(tmp_path / "tree.csv").write_text(
        "parent,child\n" + "".join(f"g{i // 2},c{i}\n" for i in range(6)), encoding="utf-8"
    )
    words = ["calibrate", "--scores", f"{tmp_path}/z.npy", "--labels", f"{tmp_path}/y.npy"]
    words += ["--hierarchy", f"{tmp_path}/tree.csv", "--out", f"{tmp_path}/c.json", "--accuracy", "0.8"]
    assert cli.main(words) == 0
    assert "temperature 1, not fitted: the best answer is right in all 20" in capsys.readouterr().out
