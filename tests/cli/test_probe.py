"""`hace probe` as people use it: grids, protocols, configuration files, messages."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hace.cli import main
from hace.cli.probe import notes
from hace.errors import ConfigError
from hace.lab.probe.grid import Chosen, fair_probes, fixed_probes, loss_grid, summary
from hace.lab.runs.config import LossConfig, ProbeConfig
from hace.lab.runs.run import Run, scan_runs
from hace.paper.recipes import fixed_runs

SMALL = ["--data", "synthetic-features", "-o", "classes=6", "-o", "train=12", "-o", "dim=8"]
QUICK = [*SMALL, "--epochs", "2", "--batch-size", "32"]


def probe(*words: str) -> int:
    return main(["probe", *words])


def test_a_grid_becomes_runs_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--loss", "cross_entropy", "hace", "--dilution", "0.2", "0.5", "--lr", "1", "4", "--seeds", "2"]
    assert probe(*QUICK, *words, "--out", str(tmp_path)) == 0
    runs, skipped = scan_runs(tmp_path)
    assert not skipped
    assert len(runs) == 3 * 2 * 2  # cross-entropy has no dilution, and is not multiplied by it
    shown = capsys.readouterr().out
    for method in ("cross_entropy, lr 1", "hace, dilution 0.2, lr 4", "hace, dilution 0.5, lr 1"):
        assert method in shown
    assert "paired" in shown
    for run in runs:
        assert f"{tmp_path / run.id}" in shown


def test_json_has_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        probe(*QUICK, "--loss", "cross_entropy", "hace", "--lr", "2", "--out", str(tmp_path), "--json") == 0
    )
    rows = json.loads(capsys.readouterr().out)
    for row in rows:
        (run,) = [r for r in scan_runs(tmp_path)[0] if r.id in row["runs"]]
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
            "hxe",
            "--alpha",
            "0.3",
            "--lr",
            "2",
            "--seed",
            "5",
            "--out",
            str(tmp_path / "a"),
        )
        == 0
    )
    (run,), _ = scan_runs(tmp_path / "a")
    config = str(run.folder / "config.json")
    assert probe("--config", config, "--out", str(tmp_path / "b")) == 0
    (again,), _ = scan_runs(tmp_path / "b")
    assert (again.id, again.config) == (run.id, run.config)
    assert probe("--config", config, "--epochs", "3", "--out", str(tmp_path / "b")) == 0
    assert len(scan_runs(tmp_path / "b")[0]) == 2
    (tmp_path / "c.yaml").write_text(
        "data:\n  name: synthetic-features\nlr: 1e-1\nepochs: 1\nloss:\n  name: hce\n"
    )
    assert probe("--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "c")) == 0
    (third,), _ = scan_runs(tmp_path / "c")
    assert (third.config.lr, third.config.loss.name) == (0.1, "hce")
    capsys.readouterr()


def only_run(folder: Path) -> Run:
    (run,), _ = scan_runs(folder)
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
    assert probe(*words, "--dilution", "0.2", "--seed", "0", "--out", str(tmp_path / "a")) == 0
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
    words = ["--validation", "0.2", "--lr", "4"]
    assert probe(*QUICK, *words, "--protocol", "fair", "--seeds", "1", "--out", str(tmp_path)) == 0
    assert "intervals over seeds and test samples" in capsys.readouterr().out
    (search,) = [run for run in scan_runs(tmp_path)[0] if run.config.evaluate == "val"]
    assert probe("--config", str(search.folder / "config.json"), "--out", str(tmp_path)) == 0
    assert search.id in (shown := capsys.readouterr().out)
    assert "intervals over seeds and val samples" in shown


def test_a_rate_given_twice_is_one_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(*QUICK, "--lr", "4", "4.0", "--out", str(tmp_path), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["seeds"], row["diverged"], row["rates"]) == (1, 0, [4.0])


def test_without_mistakes_there_is_no_severity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "synthetic-features", "-o", "classes=4", "-o", "signal=50", "--epochs", "20", "--json"]
    assert probe(*words, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "NaN" not in shown  # no word of JSON
    (row,) = json.loads(shown)
    assert row["metrics"]["top-1"]["value"] == 1
    assert row["metrics"]["severity"] == {"value": None, "low": None, "high": None}


def test_the_fair_protocol(tmp_path: Path) -> None:
    base = ProbeConfig(data=ProbeConfig().data, epochs=2)
    losses = {"sce": LossConfig("cross_entropy"), "hace": LossConfig("hace")}
    chosen = fair_probes(base, losses, [0.5, 4.0], [0, 1], tmp_path)
    assert [(c.method, c.run.config.seed) for c in chosen] == [
        ("sce", 0),
        ("sce", 1),
        ("hace", 0),
        ("hace", 1),
    ]
    for one in chosen:
        assert [(r.config.lr, r.config.evaluate, r.config.seed) for r in one.search] == [
            (rate, "val", one.run.config.seed) for rate in (0.5, 4.0)
        ]
        best = max(one.search, key=lambda r: (r.result or {})["metrics"]["leaves"]["top-1"])
        assert one.run.config.lr == best.config.lr
        assert (one.run.config.evaluate, one.run.config.validation) == ("test", 0.0)
    rows = summary(chosen)
    top1 = [(c.run.result or {})["metrics"]["leaves"]["top-1"] for c in chosen]
    assert [row.values["top-1"].value for row in rows] == pytest.approx(
        [np.mean(top1[:2]), np.mean(top1[2:])]
    )
    assert rows[1].changes["top-1"].value == pytest.approx(np.mean(top1[2:]) - np.mean(top1[:2]))


def test_the_papers_protocol(tmp_path: Path) -> None:
    base = ProbeConfig(data=ProbeConfig().data, epochs=1, lr=2.0)
    losses = {"sce": LossConfig("cross_entropy"), "hace": LossConfig("hace")}
    chosen = fixed_probes(base, losses, fixed_runs, [0], tmp_path)
    sce, ours = chosen
    assert sorted(r.config.lr for r in sce.search) == pytest.approx([0.4, 1.0, 1.4, 2.0])
    tried = np.array(sorted((r.config.loss.options["dilution"], r.config.lr) for r in ours.search))
    expected = [(0.2, 2.0), (0.2, 10.0), (0.5, 2.0), (0.5, 4.0), (0.7, 2.0), (0.7, 2 / 0.7)]
    assert tried == pytest.approx(np.array(expected))
    for one in chosen:
        best = max((r.result or {})["metrics"]["leaves"]["top-1"] for r in one.search)
        assert (one.run.result or {})["metrics"]["leaves"]["top-1"] == best


def test_a_diverged_method_stays_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--loss", "hace", "--lr", "1", "32", "--weight-decay", "10", "--epochs", "30"]
    assert probe(*SMALL, *words, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "(1 diverged)" in shown
    assert "diverged" in shown.split("hace, lr 32")[1].split("\n")[0]


WILD = ["--weight-decay", "10", "--epochs", "30"]  # at a rate of 32 every step grows the weights 319-fold


def test_differences_are_to_the_first_method_that_has_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(*SMALL, *WILD, "--loss", "hace", "--lr", "32", "0.01", "0.02", "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "difference to hace, lr 0.01, paired" in shown


def test_a_method_that_diverges_at_every_rate_spoils_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--loss", "hace", "--lr", "32", "64", "--protocol", "fair", "--seeds", "2"]
    assert probe(*SMALL, *WILD, *words, "--out", str(tmp_path), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["seeds"], row["diverged"], row["metrics"]) == (2, 2, {})


def test_unseen_classes_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "f.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 2, 2])
    (tmp_path / "h.txt").write_text("animal\n  dog\n  cat\n  owl\n")
    words = ["--features", str(tmp_path / "f.npz"), "--hierarchy", str(tmp_path / "h.txt"), "--epochs", "1"]
    assert probe(*words, "--out", str(tmp_path / "runs")) == 0
    assert "1 classes have no training sample: owl" in capsys.readouterr().err


def test_a_search_that_ends_at_its_edge_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--protocol", "fair", "--seeds", "2", "--out", str(tmp_path), "--lr", "1e-6"]
    assert probe(*QUICK, *words, "4") == 0  # one of two rates is always an edge
    assert "2 of 2 searches chose the smallest or largest rate" in capsys.readouterr().err
    assert probe(*QUICK, *words) == 0  # nothing was searched
    assert "searches" not in capsys.readouterr().err
    rates = {rate: fake(rate) for rate in (1.0, 2.0, 4.0)}
    for chosen, said in ((1.0, 1), (2.0, 0), (4.0, 1)):
        assert len(list(notes([Chosen("hace", rates[chosen], tuple(rates.values()))]))) == said


def fake(lr: float) -> Any:
    config = ProbeConfig(lr=lr, validation=0.1, evaluate="val")
    return SimpleNamespace(config=config, status="finished", result={"train": {"unseen_classes": []}})


def test_lbfgs_that_did_not_converge_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("data: {name: synthetic-features}\noptimizer: lbfgs\nmax_iter: 2")
    assert probe("--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "runs")) == 0
    assert "1 of 1 runs of L-BFGS did not converge" in capsys.readouterr().err


def test_loss_grid() -> None:
    grid = loss_grid(
        ["hace", "hxe", "hce"], {"dilution": [0.2], "alpha": [0.1, 0.5], "label_smoothing": [0.1]}
    )
    assert list(grid) == [
        "hace, dilution 0.2, label smoothing 0.1",
        "hxe, alpha 0.1",
        "hxe, alpha 0.5",
        "hce",
    ]
    with pytest.raises(ConfigError, match="None of hce has a parameter 'alpha'"):
        loss_grid(["hce"], {"alpha": [0.1]})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name the features"),
        (["--features", "f.npz", "--data", "synthetic-features"], "give one"),
        ([*SMALL, "--loss", "hacee"], "Did you mean 'hace'"),
        ([*SMALL, "--lr", "-1"], "lr must be more than 0"),
        ([*SMALL, "--dilution", "2"], "dilution must be in (0, 1]"),
        ([*SMALL, "--loss", "hxe", "--dilution", "0.2"], "None of hxe has a parameter 'dilution'"),
        ([*SMALL, "--seeds", "0"], "--seeds must be at least 1"),
        ([*SMALL, "--threads", "0"], "--threads must be at least 1"),
        ([*SMALL, "--protocol", "paper", "--lr", "1", "2"], "one base rate"),
        ([*SMALL, "--patience", "2"], "validation holds out none"),
        (["--data", "synthetic-features", "-o", "clases=3"], "Did you mean 'classes'"),
        ([*SMALL, "--protocol", "paper", "--dilution", "0.3"], "--dilution is the paper's"),
        (
            [*SMALL, "--protocol", "fair", "--evaluate", "val", "--validation", "0.2"],
            "is judged on the test samples",
        ),
        (
            [*SMALL, "--protocol", "fair", "--patience", "2", "--validation", "0.2"],
            "patience does not go with the fair protocol",
        ),
        ([*SMALL, "--protocol", "fair", "--optimizer", "lbfgs"], "lbfgs has no learning rate"),
        ([*SMALL, "--optimizer", "lbfgs", "--lr", "1", "2"], "lbfgs has no learning rate"),
        ([*SMALL, "--loss-option", "dilution"], "--loss-option must be NAME=VALUE"),
        (["--features", "missing.npz"], "missing.npz"),
        (["--config", "missing.json"], "missing.json"),
        (["--data", "cifar100"], "then give --features F"),
    ],
)
def test_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert probe(*words, "--out", str(tmp_path / "runs")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_damaged_configuration_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.json").write_text('{"lr": ')
    assert probe("--config", str(tmp_path / "c.json")) == 2
    (tmp_path / "c.yaml").write_text("- 1\n- !!python/object:os.system {}\n")
    assert probe("--config", str(tmp_path / "c.yaml")) == 2
    (tmp_path / "d.yaml").write_text("[1, 2]")
    assert probe("--config", str(tmp_path / "d.yaml")) == 2
    for name in ("deep.json", "deep.yaml"):
        (tmp_path / name).write_text("[" * 100_000)
        assert probe("--config", str(tmp_path / name)) == 2
    (tmp_path / "e.yaml").write_text("data: birds")
    assert probe("--config", str(tmp_path / "e.yaml")) == 2
    shown = capsys.readouterr().err
    for words in (
        "c.json is not valid JSON",
        "c.yaml is not YAML of plain values",
        "d.yaml must hold settings",
        "data must be a mapping",
    ):
        assert words in shown
