"""Equal search: in a comparison every method has as many candidates as any other, also where a grid widens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hace.cli import main
from hace.errors import ConfigError
from hace.lab.report.runs import chosen_runs, runs_table
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.study.comparison import comparisons, widened
from hace.lab.study.configurations import (
    Configuration,
    ConfigurationKey,
    configuration_from_dict,
    dealt_candidates,
    rate_candidates,
)
from hace.lab.study.executors import InProcess
from hace.lab.study.folder import StudyFolder, read_study
from hace.lab.study.plan import Choices, make_plan
from hace.lab.study.presets import PRESETS, find_presets
from hace.lab.study.records import Record, at_the_edge, coarse_searches
from hace.lab.study.scheduler import Scheduler
from hace.lab.study.survey import Survey
from hace.paper import STUDIES
from tests.study_files import start_study

RATES = tuple(2.0**k for k in range(4))  # 1, 2, 4, 8
CONFIG = ProbeConfig(DataConfig("features", root="f.npz"), LossConfig("hace"))


def configuration(method: str, seed: int = 0, widen: tuple[int, int] = (2, 2)) -> Configuration:
    key = ConfigurationKey("fair", "birds", "features", method, None, None, seed)
    return Configuration(key, replace(CONFIG, seed=seed), rate_candidates(RATES), widen=widen)


def search(configuration: Configuration, best: int | None, status: str = "finished") -> list[Record]:
    """The runs of a search whose accuracy falls with the distance to the rate 2**best; None: all diverge."""
    results = []
    for config in configuration.search():
        state = "diverged" if best is None else status
        far = 0 if best is None else abs(config.lr / 2.0**best - 1) + abs(2.0**best / config.lr - 1)
        result: Any = {"metrics": {"leaves": {"top-1": 1 / (1 + far)}}}
        run: Any = SimpleNamespace(config=config, status=state, result=result)
        results.append(Record(configuration.key, "search", config.lr, run))
    return results


def held_out(rate: float, step: float, noise: float, seeds: int = 5) -> list[Record]:
    """Searches in steps, whose accuracy has its peak at a rate and whose noise differs by seed and rate."""
    rng, got = np.random.default_rng(0), []
    for seed in range(seeds):
        key = ConfigurationKey("fair", "birds", "features", "hace", None, None, seed)
        luck = 0.02 * rng.standard_normal()  # of the held-out samples: the same at every rate
        for k in range(-4, 5):
            lr = step**k
            accuracy = 0.7 - 0.01 * np.log2(lr / rate) ** 2 + luck + noise * rng.standard_normal()
            result: Any = {"metrics": {"leaves": {"top-1": accuracy}}}
            got.append(
                Record(key, "search", lr, cast(Any, SimpleNamespace(status="finished", result=result)))
            )
    return got


def test_a_search_that_jumps_between_neighbouring_rates_is_coarse() -> None:
    (key,) = coarse_searches(held_out(2.0, 4.0, 0.008))  # the best rate is between 1 and 4
    assert (key.method, key.seed) == ("hace", 0)
    assert coarse_searches(held_out(2.0, 2**0.5, 0.008)) == []
    assert coarse_searches(held_out(2.0, 4.0, 0.1)) == []  # the noise hides it
    assert coarse_searches(held_out(2.0, 4.0, 0.008, seeds=1)) == []  # nothing is known of the noise


def settled(bests: tuple[int, ...]) -> list[Configuration]:
    """The configurations of a comparison after all its rounds."""
    configurations = [configuration(f"m{i}") for i in range(len(bests))]
    while wider := widened(
        configurations, [search(c, best) for c, best in zip(configurations, bests, strict=True)]
    ):
        configurations = wider
    return configurations


@pytest.mark.parametrize("bests", [*product((-4, -2, -1, 0, 2, 3, 4, 6), repeat=2)])
def test_all_methods_widen_until_none_chooses_the_edge(bests: tuple[int, int]) -> None:
    """The oracle: one rate beyond the best of every method, at most two on each side of 2**0 ... 2**3."""
    low, high = max(-2, min(-1 + min(bests), 0)), min(5, max(1 + max(bests), 3))
    wanted = [2.0**k for k in range(low, high + 1)]
    for result, best in zip(settled(bests), bests, strict=True):
        assert sorted(result.rates) == wanted
        at = {"lr": min(max(2.0**best, wanted[0]), wanted[-1])}
        assert result.edge(at) == ("smallest rate" if best <= -2 else "largest rate" if best >= 5 else "")


def test_a_search_whose_rates_all_diverge_tries_smaller_ones_and_a_failed_one_none() -> None:
    (wider,) = widened([configuration("m")], [search(configuration("m"), None)])
    assert sorted(wider.rates) == [0.5, 1, 2, 4, 8]
    failed = [replace(record, run=None, error="no space left") for record in search(configuration("m"), 3)]
    assert widened([configuration("m")], [failed]) == []


def test_a_seed_is_a_comparison_of_its_own_and_a_fixed_grid_waits_for_none() -> None:
    configurations = [configuration(method, seed) for method in ("a", "b") for seed in (0, 1)]
    assert [[c.key.method for c in comparison] for comparison in comparisons(configurations)] == [
        ["a", "b"],
        ["a", "b"],
    ]
    fixed = [configuration(method, widen=(0, 0)) for method in ("a", "b")]
    assert [len(comparison) for comparison in comparisons(fixed)] == [1, 1]


def test_decays_are_tried_with_every_new_rate_and_never_widen_themselves() -> None:
    grid = replace(configuration("m"), candidates=rate_candidates(RATES, (0.0, 0.1, 0.2)))
    (wider,) = widened([grid], [search(grid, 3)])
    assert wider.candidates[len(grid.candidates) :] == tuple(
        {"lr": 16.0, "weight_decay": w} for w in (0.0, 0.1, 0.2)
    )
    assert grid.edge({"lr": 2.0, "weight_decay": 0.2}) == "largest weight decay"
    inside = [replace(r, run=None, error="x") for r in search(grid, 1)]
    assert widened([grid], [inside]) == []


def test_a_tuned_dilution_is_dealt_out_and_goes_on_by_turns() -> None:
    tuned = replace(configuration("m"), candidates=dealt_candidates(rate_candidates(RATES), (0.2, 0.5, 0.7)))
    for best in (-3, 6):
        while wider := widened([tuned], [search(tuned, best)]):
            (tuned,) = wider
    results = {c["lr"]: c["loss"]["options"]["dilution"] for c in tuned.candidates}
    turns = (0.5, 0.7, 0.2, 0.5, 0.7, 0.2, 0.5, 0.7)
    assert [results[rate] for rate in sorted(results)] == list(turns)
    assert sorted(results) == [2.0**k for k in range(-2, 6)]


@pytest.mark.parametrize("name", [n for n, p in {**STUDIES, **PRESETS}.items() if p.fixed is None])
def test_every_fair_study_has_equal_budgets(name: str) -> None:
    plan = make_plan(find_presets(name, {**STUDIES, **PRESETS}), absent=True)
    counts: dict[ConfigurationKey, Counter[str]] = {}
    for c in plan.configurations:
        comparison = replace(c.key, method="", dilution=None)
        counts.setdefault(comparison, Counter())[c.key.method] += len(c.candidates)
    for count in counts.values():
        assert len(set(count.values())) == 1, count


def test_configurations_remember_how_far_they_may_widen() -> None:
    document = json.loads(json.dumps(configuration("m").to_dict()))
    assert configuration_from_dict(document) == configuration("m")
    del document["widen"]
    with pytest.raises(ConfigError, match="A configuration of the study does not fit this version"):
        configuration_from_dict(document)


class Killed(InProcess):
    """An executor that is killed after some jobs."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs

    def submit(self, fn: Callable, /, *args, **kwargs) -> Future:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().submit(fn, *args, **kwargs)


def small_study(folder: Path) -> tuple[StudyFolder, Scheduler]:
    """Two methods at three rates that are all too small."""
    choices = Choices(
        only={"method": "cross_entropy,hace"}, rates=(0.5, 1.0, 2.0), widen=1, seeds=1, epochs_scale=0.2
    )
    plan = make_plan(find_presets("methods"), choices)
    survey = Survey(plan.data)
    study = start_study(folder, plan, choices, survey)
    return study, Scheduler(study, survey.sources)


@pytest.mark.slow
def test_a_study_widens_and_one_that_is_killed_ends_with_the_same_runs(tmp_path: Path) -> None:
    study, scheduler = small_study(tmp_path / "whole")
    tally = scheduler.run(InProcess(), workers=1)
    records = study.records()
    final = [r for r in records if r.stage == "final"]
    assert [(r.candidates, r.edge, r.lr) for r in final] == [(4, "largest rate", 4.0)] * 2
    assert (tally.done, tally.total, at_the_edge(records)) == (10, 10, (2, 2))
    assert set(chosen_runs(runs_table(records))["tried"]) == {4}
    ids = sorted(p.name for p in study.runs.iterdir())
    done = False
    for _ in range(10):
        again, scheduler = small_study(tmp_path / "killed")
        assert all(r.lr != r.lr or r.candidates == 4 for r in again.records() if r.stage == "final")
        try:
            done = scheduler.run(Killed(1), workers=1).done == 10
        except KeyboardInterrupt:
            continue
        break
    assert done
    assert sorted(p.name for p in (tmp_path / "killed" / "runs").iterdir()) == ids
    assert [(r.key, r.lr, r.edge) for r in read_study(tmp_path / "killed").records()] == [
        (r.key, r.lr, r.edge) for r in records
    ]


def test_widen_is_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "animals", "--widen", "-1", "--out", str(tmp_path / "s")]) == 2
    assert "widen must be at least 0. Got -1." in capsys.readouterr().err
