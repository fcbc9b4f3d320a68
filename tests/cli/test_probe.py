"""`hace probe` as people use it: grids, protocols, configuration files, messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hace.cli import main
from hace.lab.runs.config import LossConfig
from hace.lab.runs.run import Run, read_run

SMALL = ["--data", "synthetic-features", "-o", "classes=6", "-o", "train=12", "-o", "dim=8"]
QUICK = [*SMALL, "--epochs", "2", "--batch-size", "32"]


def probe(*words: str) -> int:
    return main(["probe", *words])


def test_a_grid_becomes_runs_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--loss", "cross_entropy,hace:dilution=0.2,hace:dilution=0.5", "--lr", "1,4", "--seeds", "2"]
    assert probe(*QUICK, *words, "--out", str(tmp_path)) == 0
    assert len(all_runs(tmp_path)) == 3 * 2 * 2  # cross-entropy has no dilution, and is not multiplied by it
    shown = capsys.readouterr().out
    for method in ("cross_entropy, lr 1", "hace:dilution=0.2, lr 4", "hace:dilution=0.5, lr 1"):
        assert method in shown
    assert "minus cross_entropy, lr 1" in shown
    for run in all_runs(tmp_path):
        assert f"{tmp_path / run.id}" in shown


def test_without_a_loss_the_labels_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(*QUICK, "--out", str(tmp_path / "fine")) == 0
    assert only_run(tmp_path / "fine").config.loss == LossConfig("cross_entropy")
    assert "advised" not in capsys.readouterr().err
    assert probe(*QUICK, "--labels.coarse", "0.5", "--out", str(tmp_path / "coarse")) == 0
    assert only_run(tmp_path / "coarse").config.loss == LossConfig("cross_entropy_paths", {"sharing": 1.0})
    assert "some training labels are coarse: the loss is cross_entropy_paths" in capsys.readouterr().err


def test_json_has_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(*QUICK, "--loss", "cross_entropy,hace", "--lr", "2", "--out", str(tmp_path), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    for row in rows:
        (run,) = [r for r in all_runs(tmp_path) if r.id in row["runs"]]
        assert run.result is not None
        for name, value in row["metrics"].items():
            assert value["value"] == pytest.approx(run.result["metrics"]["leaves"][name])
    difference = rows[1]["metrics"]["severity"]["value"] - rows[0]["metrics"]["severity"]["value"]
    assert rows[1]["changes"]["severity"]["value"] == pytest.approx(difference)
    assert rows[0]["changes"] == {}


def test_a_saved_configuration_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        probe(
            *QUICK,
            "--loss",
            "hxe:alpha=0.3",
            "--lr",
            "2",
            "--seed",
            "5",
            "--out",
            str(tmp_path / "a"),
        )
        == 0
    )
    (run,) = all_runs(tmp_path / "a")
    config = str(run.folder / "config.json")
    assert probe("--config", config, "--out", str(tmp_path / "b")) == 0
    (again,) = all_runs(tmp_path / "b")
    assert (again.id, again.config) == (run.id, run.config)
    assert probe("--config", config, "--epochs", "3", "--out", str(tmp_path / "b")) == 0
    assert len(all_runs(tmp_path / "b")) == 2
    (tmp_path / "c.yaml").write_text(
        "data:\n  name: synthetic-features\nlr: 1e-1\nepochs: 1\nloss:\n  name: hce\n"
    )
    assert probe("--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "c")) == 0
    (third,) = all_runs(tmp_path / "c")
    assert (third.config.lr, third.config.loss.name) == (0.1, "hce")
    capsys.readouterr()


def all_runs(folder: Path) -> list[Run]:
    return [
        read_run(path) for path in sorted(folder.iterdir()) if path.name[0] != "." and path.name != "latest"
    ]


def only_run(folder: Path) -> Run:
    (run,) = all_runs(folder)
    return run


def test_options_come_on_top_of_a_configuration(tmp_path: Path) -> None:
    document = {
        "data": {"name": "synthetic-features", "options": {"classes": 6, "train": 12}},
        "loss": {"name": "hace", "options": {"label_smoothing": 0.1}},
        "seed": 3,
        "epochs": 1,
    }
    (tmp_path / "c.json").write_text(json.dumps(document))
    words = ["--config", str(tmp_path / "c.json")]
    assert (
        probe(
            *words,
            "--loss",
            "hace:dilution=0.2:label_smoothing=0.1",
            "--seed",
            "0",
            "--out",
            str(tmp_path / "a"),
        )
        == 0
    )
    config = only_run(tmp_path / "a").config
    assert (config.loss.options["dilution"], config.loss.options["label_smoothing"]) == (0.2, 0.1)
    assert config.seed == 0
    assert probe(*words, "-o", "classes=4", "--out", str(tmp_path / "b")) == 0
    config = only_run(tmp_path / "b").config
    assert (config.data.options, config.seed) == ({"classes": 4, "train": 12}, 3)
    assert config.lr == 8.0  # as --help says, where the file says nothing
    assert probe(*words, "--loss", "hce", "--out", str(tmp_path / "c")) == 0
    assert only_run(tmp_path / "c").config.loss == LossConfig("hce")


def test_other_data_than_a_configurations_bring_their_own_options(tmp_path: Path) -> None:
    x = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "f.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 0, 1])
    (tmp_path / "h.txt").write_text("animal\n  dog\n  cat\n")
    document = {"data": {"name": "synthetic-features", "options": {"classes": 6}}, "epochs": 1}
    (tmp_path / "c.json").write_text(json.dumps(document))
    words = ["--features", str(tmp_path / "f.npz"), "--hierarchy", str(tmp_path / "h.txt")]
    assert probe("--config", str(tmp_path / "c.json"), *words, "--out", str(tmp_path / "runs")) == 0
    assert only_run(tmp_path / "runs").config.data.options == {}


def test_a_run_of_a_search_shows_its_table_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--validation", "0.2", "--evaluate", "val"]
    assert probe(*QUICK, *words, "--out", str(tmp_path)) == 0
    assert "over seeds and val samples" in capsys.readouterr().out
    none = ["--validation", "split", "--evaluate", "val", "--out", str(tmp_path / "none")]
    assert probe(*QUICK, *none) == 2
    assert "validation='split' needs data with a val split. Got train, test." in capsys.readouterr().err


def test_a_rate_given_twice_is_one_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(*QUICK, "--lr", "4,4.0", "--out", str(tmp_path), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["seeds"], row["diverged"], row["rates"]) == (1, 0, [4.0])


def test_without_mistakes_there_is_no_severity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "synthetic-features", "-o", "classes=4", "-o", "signal=50", "--epochs", "20", "--json"]
    assert probe(*words, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "NaN" not in shown  # no word of JSON
    (row,) = json.loads(shown)
    assert row["metrics"]["top-1"]["value"] == 1
    assert 0.9 < row["metrics"]["top-1"]["low"] < 1  # more test samples may hold a mistake
    assert row["metrics"]["severity"] == {"value": None, "low": None, "high": None}


def test_a_diverged_method_stays_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--loss", "hace", "--lr", "1,32", "--weight-decay", "10", "--epochs", "30"]
    assert probe(*SMALL, *words, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "diverged" in shown.split("hace, lr 32")[1].split("\n")[0]
    words[words.index("1,32")] = "32"
    with pytest.raises(SystemExit, match="1"):  # nothing else was trained
        probe(*SMALL, *words, "--out", str(tmp_path))


WILD = ["--weight-decay", "10", "--epochs", "30"]  # at a rate of 32 every step grows the weights 319-fold


def test_differences_are_to_the_first_method_that_has_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(*SMALL, *WILD, "--loss", "hace", "--lr", "32,0.01,0.02", "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "minus hace, lr 0.01" in shown


def test_unseen_classes_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "f.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 2, 2])
    (tmp_path / "h.txt").write_text("animal\n  dog\n  cat\n  owl\n")
    words = ["--features", str(tmp_path / "f.npz"), "--hierarchy", str(tmp_path / "h.txt"), "--epochs", "1"]
    assert probe(*words, "--out", str(tmp_path / "runs")) == 0
    assert "1 class has no training sample: owl" in capsys.readouterr().err


def test_a_setting_that_the_file_makes_meaningless_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file may hold all settings, as that of a run does; what is given beside it must be used."""
    (tmp_path / "c.yaml").write_text(
        "data: {name: synthetic-features}\noptimizer: lbfgs\nepochs: 3\nmax_iter: 20"
    )
    words = ["--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "runs")]
    assert probe(*words, "--tolerance", "1e-3") == 0
    assert probe(*words, "--lr", "4") == 2
    assert "--lr must come without --optimizer lbfgs." in capsys.readouterr().err
    assert probe(*words, "--optimizer", "sgd", "--max-iter", "3") == 2
    assert "--max-iter must come with --optimizer lbfgs." in capsys.readouterr().err


def test_lbfgs_that_did_not_converge_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("data: {name: synthetic-features}\noptimizer: lbfgs\nmax_iter: 2")
    assert probe("--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "runs")) == 0
    assert "1 of 1 L-BFGS runs did not converge" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--features must be given; or --data synthetic-features"),
        (["--features", "f.npz", "--data", "synthetic-features"], "--data must come without --features"),
        ([*SMALL, "--loss", "hacee"], "Did you mean 'hace'"),
        ([*SMALL, "--lr", "-1"], "lr must be more than 0"),
        ([*SMALL, "--loss", "hace:dilution=2"], "dilution must be in (0, 1]"),
        ([*SMALL, "--loss", "hxe:dilution=0.2"], "options.dilution is not a parameter of 'hxe'"),
        ([*SMALL, "--seeds", "0"], "--seeds must be at least 1"),
        ([*SMALL, "--threads", "0"], "--threads must be at least 1"),
        ([*SMALL, "--patience", "2"], "patience needs held-out samples"),
        (["--data", "synthetic-features", "-o", "clases=3"], "Did you mean 'classes'"),
        ([*SMALL, "--optimizer", "lbfgs", "--lr", "1,2"], "--lr must come without --optimizer lbfgs"),
        ([*SMALL, "-o", "classes"], "--option must be NAME=VALUE"),
        (["--features", "missing.npz"], "missing.npz"),
        ([*SMALL, "--optimizer", "lbfgs", "--epochs", "3"], "--epochs must come without --optimizer lbfgs."),
        ([*SMALL, "--tolerance", "1e-3"], "--tolerance must come with --optimizer lbfgs."),
        ([*SMALL, "--rate", "4"], "'--rate' is not an option of hace probe. Did you mean '--lr'?"),
        (["--config", "missing.json"], "missing.json"),
        (["--data", "cifar100"], "then give --features F"),
    ],
)
def test_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert probe(*words, "--out", str(tmp_path / "runs")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n- !!python/object:os.system {}\n", "is not YAML of plain values"),
        ("[1, 2]", "must hold names and values"),
        ("data: birds", "data must be a mapping"),
    ],
)
def test_a_damaged_configuration_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert probe("--config", str(tmp_path / "c.yaml")) == 2
    assert message in capsys.readouterr().err
