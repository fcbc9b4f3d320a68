"""Cells: their candidates, the runs behind them, and the choice among them."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hace.errors import DataError
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.study.comparison import choose, select
from hace.lab.study.configurations import (
    FAIR_RATES,
    Configuration,
    ConfigurationKey,
    configuration_from_dict,
    rate_candidates,
)
from hace.lab.study.records import Record

KEY = ConfigurationKey("fair", "birds", "features", "hace", 0.5, None, 3)
CONFIG = ProbeConfig(DataConfig("features", root="f.npz"), LossConfig("hace"), seed=3)
CONFIGURATION = Configuration(KEY, CONFIG, rate_candidates([1.0, 2.0, 4.0]))


def finished(lr: float, top1: float, status: str = "finished") -> Any:
    result = {"status": status, "metrics": {"leaves": {"top-1": top1}}}
    return SimpleNamespace(config=replace(CONFIG, lr=lr), status=status, result=result)


def test_a_search_holds_samples_out_and_the_final_run_has_them_all() -> None:
    for validation, held in ((None, 0.1), (0.2, 0.2), ("split", "split")):
        configuration = replace(CONFIGURATION, validation=validation)
        assert configuration.search() == [
            replace(CONFIG, lr=lr, validation=held, evaluate="val", keep=False) for lr in (1.0, 2.0, 4.0)
        ]
    assert CONFIGURATION.final({"lr": 2.0}) == replace(CONFIG, lr=2.0)
    assert replace(CONFIGURATION, candidates=rate_candidates([8.0])).search() == []
    assert FAIR_RATES == (0.25, 0.5, 1, 2, 4, 8, 16, 32)


def test_a_candidate_is_any_set_of_settings() -> None:
    candidates = ({"lr": 1.0, "weight_decay": 1e-4}, {"lr": 1.0, "loss": {"options": {"dilution": 0.2}}})
    configuration = Configuration(
        KEY, replace(CONFIG, loss=LossConfig("hace", {"label_smoothing": 0.1})), candidates
    )
    decayed, diluted = configuration.search()
    assert (decayed.weight_decay, decayed.loss.options["dilution"]) == (1e-4, 0.5)
    assert (diluted.weight_decay, diluted.loss.options["dilution"]) == (0.0, 0.2)
    assert diluted.loss.options["label_smoothing"] == 0.1
    assert configuration.final(candidates[1]).loss == diluted.loss


def test_a_cell_reads_what_it_writes() -> None:
    configuration = replace(CONFIGURATION, validation="split")
    document = json.loads(json.dumps(configuration.to_dict()))
    assert configuration_from_dict(document) == configuration


def test_the_edge_of_a_grid() -> None:
    assert [CONFIGURATION.edge(c) for c in CONFIGURATION.candidates] == ["smallest rate", "", "largest rate"]
    two = replace(CONFIGURATION, candidates=rate_candidates([1.0, 2.0]))
    assert not any(two.edge(c) for c in two.candidates)  # of two, either is an edge
    decays = tuple({"lr": 1.0, "weight_decay": w} for w in (0.0, 0.1, 0.2))
    edges = [replace(CONFIGURATION, candidates=decays).edge(c) for c in decays]
    assert edges == ["", "", "largest weight decay"]  # below 0 is nothing


def test_selection() -> None:
    runs = [
        finished(4, 0.5),
        finished(2, 0.5),
        finished(8, 0.9, "diverged"),
        finished(1, 0.4),
        finished(2, 0.5),
    ]
    assert select(runs) == 1  # ties go to the smaller rate, then to the first; what diverged never wins
    with pytest.raises(DataError, match="all of 8 have diverged"):
        select(runs[2:3])


def test_no_choice_before_the_search_is_complete() -> None:
    records = [Record(KEY, "search", lr, finished(lr, 0.1 * lr)) for lr in (1.0, 2.0, 4.0)]
    assert choose(CONFIGURATION, records) == ({"lr": 4.0}, "")
    assert choose(CONFIGURATION, [*records[:2], Record(KEY, "search", 4.0, None)]) == (None, "")
    failed = [*records[:2], Record(KEY, "search", 4.0, None, "no space left")]
    assert choose(CONFIGURATION, failed) == (
        None,
        "1 of the 3 runs that choose its rate failed, at 4: no space left",
    )
