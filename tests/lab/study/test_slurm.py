"""Studies on SLURM, with a fake one: time limits, lost jobs, a driver that was killed, and what a job asks for."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hace.errors import HaceError
from hace.lab.runs.config import DataConfig, ProbeConfig, TrainConfig
from hace.lab.runs.run import read_run
from hace.lab.runs.samples import data_of
from hace.lab.study.clusters import Slurm
from hace.lab.study.configurations import Configuration, ConfigurationKey, rate_candidates
from hace.lab.study.executors import Cluster, InProcess, Job
from hace.lab.study.plan import Choices, StudyPlan, Survey
from hace.lab.study.scheduler import Scheduler
from tests.lab.study.fake_slurm import FakeSlurm, Fate, Submitted
from tests.study_files import start_study, write_features
from tests.train_cases import end_state, tiny

LOG = "study/runs/*/log.jsonl"  # written as soon as a training listens to signals
SECONDS = 600.0


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeSlurm]:
    """Make a fake SLURM, and put its commands on PATH."""

    def make(*fates: Fate, accounting: bool = True) -> FakeSlurm:
        fake = FakeSlurm(tmp_path / "slurm", fates, accounting=accounting)
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd() / "src"), str(Path.cwd())]))
        return fake

    return make


def training(folder: Path, name: str = "study", config: TrainConfig | None = None) -> Scheduler:
    """A study of one training."""
    config = config or tiny(epochs=20)
    configuration = Configuration(
        ConfigurationKey("paper", "toys", "test_vit", "sce", None, None, 0),
        config,
        rate_candidates([config.lr]),
    )
    plan = StudyPlan("mine", [configuration], {("toys", "train"): config.data}, ())
    survey = Survey(plan.data)
    return Scheduler(start_study(folder / name, plan, Choices(), survey), survey.sources, retries=0)


def executor_in(folder: Path, **more) -> Slurm:
    return Slurm(Cluster(**more), folder / "study" / "jobs")


def run_of(scheduler: Scheduler) -> Path:
    (wanted,) = scheduler._wanted
    return scheduler.study.runs / wanted


def wait_for(fake: FakeSlurm, states: Sequence[str]) -> list[Submitted]:
    end = time.monotonic() + SECONDS
    while [job.state for job in fake.jobs()] != list(states):
        assert time.monotonic() < end, fake.jobs()
        time.sleep(0.05)
    return fake.jobs()


@pytest.mark.slow
def test_a_training_goes_on_after_its_time_limit(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    """No retries: a job that saved something is not a failed attempt."""
    fake = slurm(Fate("timeout", LOG))
    scheduler = training(tmp_path)
    with executor_in(tmp_path) as executor:
        tally = scheduler.run(executor)
    wait_for(fake, ["COMPLETED"] * 2)
    assert (tally.done, tally.failed) == (1, 0)
    stopped = r"saved at step \d+, resumes from there: stopped by SIGUSR2: the time limit was near"
    assert [bool(re.search(stopped, note)) for note in tally.notes] == [True]
    whole = training(tmp_path, "whole")
    with InProcess() as executor:
        whole.run(executor)
    assert end_state(run_of(scheduler)) == end_state(run_of(whole))


def test_a_job_that_is_lost_fails_with_its_reason(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    slurm(Fate("oom"))
    scheduler = training(tmp_path)
    with executor_in(tmp_path) as executor:
        tally = scheduler.run(executor)
    assert tally.failed == 1
    (failure,) = scheduler.failures.values()
    assert "OUT_OF_MEMORY, it needs more memory: give --memory more gigabytes" in failure["error"]
    assert "/jobs/toys-test_vit-sce-seed-0-rate-0.05-" in failure["error"]


@pytest.mark.slow
def test_a_driver_that_is_started_again_waits_for_its_jobs(
    tmp_path: Path, slurm: Callable[..., FakeSlurm]
) -> None:
    fake = slurm()
    killed = executor_in(tmp_path)
    scheduler = training(tmp_path)
    job = scheduler._next()
    assert job is not None
    killed.submit(job)
    killed.submit(Job(("0" * 32,), (tiny(epochs=100_000),), job.out))  # a run that no study wants any more
    again = training(tmp_path)
    with executor_in(tmp_path) as executor:
        assert again.run(executor).done == 1
    wait_for(fake, ["COMPLETED", "CANCELLED"])
    assert read_run(run_of(again)).status == "finished"
    assert (tmp_path / "study" / "jobs" / "submitted.json").read_text().strip() == "{}"


@pytest.mark.slow
def test_leaving_cancels_and_a_training_saves(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    fake = slurm()
    job = Job(("endless",), (tiny(epochs=100_000),), str(tmp_path / "runs"))
    with executor_in(tmp_path) as executor:
        executor.submit(job)
        log, end = tmp_path / "runs" / "endless" / "log.jsonl", time.monotonic() + SECONDS
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert executor.next(timeout=0.0) is None
    wait_for(fake, ["CANCELLED"])
    assert job.saved_steps()["endless"] > 0


@pytest.mark.slow
def test_runs_share_a_gpu_and_a_job_asks_for_what_it_was_given(
    tmp_path: Path, slurm: Callable[..., FakeSlurm]
) -> None:
    fake = slurm()
    features, hierarchy = write_features(tmp_path)
    data = DataConfig("features", root=str(features), hierarchy=str(hierarchy))
    configs = [ProbeConfig(data=data, lr=rate, epochs=2) for rate in (1.0, 2.0, 4.0)]
    given = Cluster(
        gpus=0.5, cpus=3, memory=4, account="birds", qos="long", constraint="a100", partition="gpu",
        hours=2, setup=("export HACE_SET_UP=1",),
    )  # fmt: skip
    fingerprint = data_of(data).fingerprint
    jobs = [
        Job((config.identity(fingerprint),), (config,), str(tmp_path / "runs"), name=f"rate {config.lr:g}")
        for config in configs
    ]
    with Slurm(given, tmp_path / "jobs") as executor:
        assert executor.capacity == 2 * 64
        for job in jobs:
            executor.submit(job)
        found = [executor.next() for _ in jobs]
    assert all(result is not None and not result.errors and not result.lost for result in found), found
    assert all(read_run(tmp_path / "runs" / job.runs[0]).status == "finished" for job in jobs)
    both, single = fake.jobs()  # the third job shares with nobody
    expected = {
        "job-name": "hace-rate-1-and-1-more", "gpus-per-node": "1", "cpus-per-task": "6", "mem": "8GB",
        "account": "birds", "qos": "long", "constraint": "a100", "partition": "gpu", "time": "120",
        "signal": "USR2@120", "no-requeue": "",
    }  # fmt: skip
    assert both.options.items() >= expected.items()
    assert single.options.items() >= {"job-name": "hace-rate-4", "cpus-per-task": "3", "mem": "4GB"}.items()
    assert "\nexport HACE_SET_UP=1\n" in (fake.folder / "jobs" / "1" / "script").read_text()


def test_a_training_by_several_processes_asks_for_one_task_each(
    tmp_path: Path, slurm: Callable[..., FakeSlurm]
) -> None:
    fake = slurm(Fate("oom"))
    with executor_in(tmp_path, gpus=2) as executor:
        training(tmp_path).run(executor)
    (job,) = fake.jobs()
    assert job.options.items() >= {"ntasks-per-node": "2", "gpus-per-node": "2"}.items()


@pytest.mark.long
def test_one_training_by_several_processes(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    slurm()
    scheduler = training(tmp_path, config=tiny())
    with executor_in(tmp_path, gpus=2) as executor:
        tally = scheduler.run(executor)
    assert tally.done == 1, tally.notes
    logs = sorted(path.name for path in (tmp_path / "study" / "jobs").glob("*/*_log.out"))
    assert logs == ["1_0_log.out", "1_1_log.out"]


def test_without_accounting_a_lost_job_is_noticed(
    tmp_path: Path, slurm: Callable[..., FakeSlurm], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(Fate("oom"), accounting=False)
    monkeypatch.setattr("hace.lab.study.clusters.RESULT_SECONDS", 0.0)
    with executor_in(tmp_path) as executor:
        executor.submit(Job(("lost",), (tiny(),), str(tmp_path / "runs")))
        result = executor.next()
    assert result is not None
    assert result.lost.startswith("SLURM job 1: UNKNOWN, and it left no result. Its log is ")


def test_what_sbatch_refuses_is_told(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    refusing = slurm().folder / "bin" / "sbatch"
    refusing.write_text("#!/bin/sh\necho 'sbatch: error: Invalid account or partition' >&2; exit 1\n")
    with (
        executor_in(tmp_path) as executor,
        pytest.raises(HaceError, match="Invalid account or partition"),
    ):
        executor.submit(Job(("refused",), (tiny(),), str(tmp_path / "runs")))


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        HaceError, match=r"Executor slurm must run where `sbatch` and `srun` are\. Got neither"
    ):
        executor_in(tmp_path)
