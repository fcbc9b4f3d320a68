"""Ad-hoc studies: the protocols of `hace probe`, by the engine of `hace study`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hace.cli import main
from hace.errors import HaceError
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.study.ad_hoc import probe_plan, run_plan
from hace.paper.recipes import fixed_runs
from tests.study_files import outcomes, plants_study

DATA = DataConfig("synthetic-features", options={"classes": 6, "dim": 8, "train": 12})
LOSSES = {"sce": LossConfig("cross_entropy"), "hace": LossConfig("hace")}


def test_the_fair_protocol(tmp_path: Path) -> None:
    plan = probe_plan(ProbeConfig(DATA, epochs=2), LOSSES, [0, 1], rates=[0.5, 4.0])
    records = run_plan(plan, tmp_path)
    cells = {(r.key.method, r.key.seed): [] for r in records}
    assert list(cells) == [("sce", 0), ("sce", 1), ("hace", 0), ("hace", 1)]
    for record in records:
        cells[record.key.method, record.key.seed].append(record)
    for (_, seed), (*searches, final) in cells.items():
        assert [(r.lr, r.run.config.evaluate, r.run.config.seed) for r in searches] == [
            (rate, "val", seed) for rate in (0.5, 4.0)
        ]
        assert final.lr == max(searches, key=lambda r: (r.top1, -r.lr)).lr
        assert (final.run.config.evaluate, final.run.config.validation) == ("test", 0.0)
    assert not (tmp_path / "failures.json").exists()


def test_the_papers_protocol(tmp_path: Path) -> None:
    plan = probe_plan(ProbeConfig(DATA, epochs=1, lr=2.0), LOSSES, [0], fixed=fixed_runs)
    records = run_plan(plan, tmp_path)
    assert {r.stage for r in records} == {"final"}
    rates = sorted(r.lr for r in records if r.key.method == "sce")
    assert rates == pytest.approx([0.4, 1.0, 1.4, 2.0])
    tried = sorted((r.run.config.loss.options["dilution"], r.lr) for r in records if r.key.method == "hace")
    expected = [(0.2, 2.0), (0.2, 10.0), (0.5, 2.0), (0.5, 4.0), (0.7, 2.0), (0.7, 2 / 0.7)]
    assert np.array(tried) == pytest.approx(np.array(expected))


def test_a_study_and_a_probe_make_the_same_runs(tmp_path: Path) -> None:
    study = [
        *plants_study(tmp_path),
        "--methods",
        "sce",
        "--rates",
        "1,8",
        "--seeds",
        "1",
        "--epochs-scale",
        "0.1",
    ]
    assert main([*study, "--out", str(tmp_path / "study")]) == 0
    words = ["--features", str(tmp_path / "plants.npz"), "--hierarchy", str(tmp_path / "plants.csv")]
    words += [
        "--loss",
        "cross_entropy",
        "--protocol",
        "fair",
        "--lr",
        "1",
        "8",
        "--seeds",
        "1",
        "--epochs",
        "3",
    ]
    assert main(["probe", *words, "--out", str(tmp_path / "runs")]) == 0
    assert outcomes(tmp_path / "runs") == outcomes(tmp_path / "study" / "runs")


def test_a_run_that_fails_is_an_error(tmp_path: Path) -> None:
    base = ProbeConfig(DATA, epochs=1, validation=0.01)
    with pytest.raises(HaceError, match="holds out none"):
        run_plan(probe_plan(base, LOSSES, [0], rates=[1.0, 2.0]), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
