"""One search for all seeds: the same runs, counted once, said on the page and in the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hace.cli import main
from hace.lab.report import report_text
from hace.lab.report.about import about_study, counts_text, notes
from hace.lab.study.configurations import configuration_from_dict
from hace.lab.study.executors import InProcess
from hace.lab.study.folder import StudyFolder, read_study
from hace.lab.study.plan import Choices, make_plan
from hace.lab.study.presets import find_presets
from hace.lab.study.records import at_the_edge, chosen_on, each_run, searched_at
from hace.lab.study.scheduler import Scheduler
from hace.lab.study.survey import Survey
from tests.lab.study.test_comparison import Killed
from tests.study_files import plants_study, start_study

SEEDS, RATES = 3, (1.0, 4.0, 16.0)


def shared_study(folder: Path, **more) -> tuple[StudyFolder, Scheduler]:
    """cross-entropy and HACE, one of them over a shuffled tree too: 3 searches of 3 runs, and 9 final runs."""
    only = {"method": "cross_entropy,hace,hace_shuffled"}
    choices = Choices(
        only=only, rates=RATES, widen=0, seeds=SEEDS, epochs_scale=0.05, search_once=True, **more
    )
    plan = make_plan(find_presets("methods"), choices)
    survey = Survey(plan.data)
    study = start_study(folder, plan, choices, survey)
    return study, Scheduler(study, survey.sources)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    study, scheduler = shared_study(tmp_path_factory.mktemp("once") / "study")
    assert scheduler.tally.total == 9 + 9  # counted once before, during and after
    tally = scheduler.run(InProcess(), workers=1)
    assert (tally.done, tally.total, at_the_edge(study.records())[1]) == (18, 18, 3)
    return study


@pytest.mark.slow
def test_all_seeds_have_the_same_searches_and_runs_of_their_own(done: StudyFolder) -> None:
    for method in ("cross_entropy", "hace", "hace_shuffled"):
        configurations = [
            configuration for configuration in done.configurations if configuration.key.method == method
        ]
        assert [configuration.config.seed for configuration in configurations] == [0, 1, 2]
        searches = [
            [done.identity(configuration, config) for config in configuration.search()]
            for configuration in configurations
        ]
        assert searches[0] == searches[1] == searches[2]
        assert (
            len(
                {
                    done.identity(configuration, configuration.final({"lr": 1.0}))
                    for configuration in configurations
                }
            )
            == SEEDS
        )
    shuffled = [
        configuration for configuration in done.configurations if configuration.key.method == "hace_shuffled"
    ]
    assert [configuration.config.data.shuffle for configuration in shuffled] == [0, 1, 2]
    assert {config.data.shuffle for configuration in shuffled for config in configuration.search()} == {0}


@pytest.mark.slow
def test_the_rate_is_one_for_all_seeds(done: StudyFolder) -> None:
    final = [record for record in done.records() if record.stage == "final"]
    assert len(final) == 9
    for method in ("cross_entropy", "hace", "hace_shuffled"):
        assert len({record.lr for record in final if record.key.method == method}) == 1
    assert {record.run.config.seed for record in final if record.run is not None} == {0, 1, 2}


@pytest.mark.slow
def test_killed_and_resumed_ends_with_the_same_runs(done: StudyFolder, tmp_path: Path) -> None:
    for _ in range(20):
        again, scheduler = shared_study(tmp_path / "killed")
        try:
            scheduler.run(Killed(1), workers=1)
        except KeyboardInterrupt:
            continue
        break
    assert sorted(p.name for p in again.runs.iterdir()) == sorted(p.name for p in done.runs.iterdir())
    assert [(r.key, r.lr, r.id) for r in again.records()] == [(r.key, r.lr, r.id) for r in done.records()]


def test_counts_have_a_shared_run_once(done: StudyFolder) -> None:
    records = done.records()
    assert len(records) == 9 * 3 + 9
    assert len(each_run(records)) == 18
    assert counts_text(records) == "18 runs: 18 finished"
    edges = [line for line in notes(records) if "edge" in line]
    assert edges  # so short a training chooses the largest rate
    assert all("of 3 searches" in line for line in edges)


@pytest.mark.slow
def test_page_and_terminal_say_so(done: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    records = done.records()
    assert searched_at(records) == 0
    assert chosen_on(records) == "held-out training samples, once for all seeds, at seed 0"
    text = " ".join(report_text(records).split())
    assert "Rates chosen on held-out training samples, once for all seeds, at seed 0." in text
    assert main(["report", str(done.folder)]) == 0
    assert "writing the report of 18 runs" in capsys.readouterr().err
    page = (done.folder / "report" / "report.html").read_text()
    assert "Rates were chosen once, at seed 0, for all seeds" in page
    assert "The learning rate was chosen at seed 0 for all" in page
    assert "18 runs: 18 finished" in page
    assert " --search-once " in page
    assert " --search-once " in about_study(done).command


def test_a_study_keeps_it(done: StudyFolder) -> None:
    configurations = json.loads((done.folder / "study.json").read_text())["configurations"]
    assert {configuration["search_seed"] for configuration in configurations} == {0}
    assert [configuration_from_dict(configuration) for configuration in configurations] == list(
        read_study(done.folder).configurations
    )


def test_the_option_and_its_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = plants_study(tmp_path)
    options += [
        "--methods",
        "cross_entropy",
        "--rates",
        "1,8",
        "--seeds",
        "3",
        "--out",
        str(tmp_path / "s"),
        "--dry-run",
    ]
    assert main(options) == 0
    assert "3 configurations, 9 runs, 0 done" in capsys.readouterr().out
    assert main([*options, "--search-once"]) == 0
    assert "3 configurations, 5 runs, 0 done" in capsys.readouterr().out
