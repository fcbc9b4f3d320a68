"""The tables of the runs from scratch, from records of a few of them."""

from __future__ import annotations

import base64
import csv
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RIGHT = {  # of eight test photos, by method, rate and seed
    ("cross_entropy", 0.2, 0): [1, 0, 0, 0, 0, 0, 0, 0],
    ("hace", 0.2, 0): [1, 1, 0, 0, 0, 0, 0, 0],
    ("cross_entropy", 0.2, 1): [1, 1, 0, 0, 0, 0, 0, 0],
    ("hace", 0.2, 1): [1, 1, 1, 1, 0, 0, 0, 0],
    ("cross_entropy", 0.1, 0): [1, 1, 1, 0, 0, 0, 0, 0],
    ("hace", 0.1, 1): [1, 0, 0, 0, 0, 0, 0, 0],  # without cross-entropy at its seed
}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script, with its folders here."""
    monkeypatch.syspath_prepend(str(ROOT / "evidence"))
    module = importlib.import_module("from_scratch_page")
    monkeypatch.setattr(module, "RECORDS", tmp_path / "runs")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "IMAGES", tmp_path)
    (tmp_path / "runs").mkdir()
    module._documents.cache_clear()
    yield module
    module._documents.cache_clear()


def test_every_run_is_planned_once_and_what_answers_the_question_comes_first(page: Any) -> None:
    runs = page.planned()
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    assert [(run.method, run.lr, run.seed) for run in runs[:3]] == [
        ("cross_entropy", 0.2, 0),
        ("hace", 0.2, 0),
        ("cross_entropy", 0.1, 0),
    ]
    birds = {(run.method, run.dilution, round(run.lr, 3)) for run in runs if run.dataset == "cub200"}
    six = {("hace", setting.dilution, round(rate, 3)) for setting, rate in page._papers_six()}
    four = {("cross_entropy", None, round(rate, 3)) for rate in page._papers_four()}
    assert (len(six), len(four)) == (6, 4)
    assert six | four <= birds
    fair = {run for run in runs if (run.dataset, run.seed) == ("cars", 2) and run.lr in page.RATES}
    assert {(run.method, run.dilution, run.lr) for run in fair} >= {
        (method, None, rate)
        for method in ("cross_entropy", "cross_entropy_smooth", "soft_margin")
        for rate in page.RATES
    }


def test_runs_are_compared_at_equal_rates_and_seeds(page: Any, tmp_path: Path) -> None:
    for (method, rate, seed), right in RIGHT.items():
        run = next(
            r
            for r in page.planned()
            if (r.dataset, r.method, r.lr, r.seed) == ("cub200", method, rate, seed)
            and r.dilution in (None, 0.5)
        )
        document = json.dumps(record(run, right))
        (tmp_path / "runs" / f"{run.name}.json").write_text(document, encoding="utf-8")
    page.main()
    (row,) = rows(tmp_path / "equal-rates.csv")
    assert (row["method"], row["minus"], row["rate"], row["seeds"]) == (
        "HACE d=0.5",
        "cross-entropy",
        "0.2",
        "2",
    )
    assert (row["method's top-1"], row["the other's"]) == ("37.50", "18.75")
    assert row["top-1"].startswith("+18.75 [")
    ours = [row for row in rows(tmp_path / "printed.csv") if row["whose"] == "ours"]
    assert [(row["data"], row["HACE minus it"], row["runs"]) for row in ours] == [
        ("CUB-200, seed 0", "-12.50", "1 of 6 and 1 of 4")
    ]
    assert rows(tmp_path / "progress.csv")[0]["finished runs"] == "6"
    assert rows(tmp_path / "progress.csv")[1]["seeds so far"] == "none"
    assert "too few runs" in (tmp_path / "groups.csv").read_text(encoding="utf-8")
    (chosen,) = [row for row in rows(tmp_path / "fair.csv") if row["method"] == "cross-entropy"]
    assert (chosen["chosen rate"], chosen["rates so far"], chosen["seeds"]) == ("0.2 ‡", "2", "1")
    assert (tmp_path / "from-scratch.svg").stat().st_size > 1000


def record(run: Any, right: list[int]) -> dict[str, Any]:
    """A run as it is recorded; on held-out photos the larger rate is better."""
    bits = base64.b64encode(np.packbits(np.array(right, bool)).tobytes()).decode()
    leaves = {"top-1": float(np.mean(right)), "top-5": 0.9, "severity": 2.0}
    point = {"leaves": leaves, "levels": [0.9, 0.8, 0.7, leaves["top-1"]]}
    return {
        **vars(run),
        "id": run.name,
        "status": "finished",
        "seconds": 1.0,
        "made_with": {},
        "accuracy": [0.5],
        "val_accuracy": [run.lr],
        "curve": {"4": point, "8": point},
        "metrics": {"leaves": leaves, "accuracy by level, best node of the level": {"level 1": 0.9}},
        "samples": len(right),
        "right": bits,
        "right_at_levels": [bits] * 4,
    }


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
