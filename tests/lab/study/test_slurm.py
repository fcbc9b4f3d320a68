"""Studies on SLURM, with a fake one: time limits, refused and lost jobs, and what a job asks for."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hace.cli import main
from hace.errors import ConfigError, HaceError
from hace.lab.runs.config import TrainConfig
from hace.lab.study.configurations import Configuration, ConfigurationKey, rate_candidates
from hace.lab.study.executors import Cluster, InProcess, open_executor
from hace.lab.study.jobs import Job, run_job
from hace.lab.study.plan import Choices, StudyPlan
from hace.lab.study.progress import Tally
from hace.lab.study.scheduler import Scheduler
from hace.lab.study.survey import Survey
from tests.lab.study.fake_slurm import FakeSlurm, Fate, Submitted
from tests.study_files import outcomes, plants_study, start_study
from tests.train_cases import end_state, tiny

LOG = "study/runs/*/log.jsonl"  # written as soon as a training listens to signals
SECONDS = 600.0


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeSlurm]:
    """Make a fake SLURM, and put its commands on PATH."""

    def make(*fates: Fate, **more) -> FakeSlurm:
        fake = FakeSlurm(tmp_path / "slurm", fates, **more)
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd() / "src"), str(Path.cwd())]))
        monkeypatch.setattr("hace.lab.study.slurm.QUEUE_SECONDS", 1.0)
        return fake

    return make


def training(folder: Path, name: str = "study", config: TrainConfig | None = None) -> Scheduler:
    """A study of one training."""
    config = config or tiny(epochs=20)
    key = ConfigurationKey("paper", "toys", "test_vit", "cross_entropy", None, None, 0)
    configuration = Configuration(key, config, rate_candidates([config.lr]))
    plan = StudyPlan("mine", [configuration], {("toys", "train"): config.data}, ())
    survey = Survey(plan.data)
    return Scheduler(start_study(folder / name, plan, Choices(), survey), survey.sources, retries=0)


def run(scheduler: Scheduler, **cluster) -> Tally:
    """Make the runs of a study on SLURM."""
    logs = scheduler.study.folder / "jobs"
    with open_executor("slurm", None, Cluster(**cluster), logs) as (executor, workers):
        return scheduler.run(executor, workers)


def run_of(scheduler: Scheduler) -> Path:
    (run,) = (record.id for record in scheduler.study.records())
    return scheduler.study.runs / run


def wait_for(fake: FakeSlurm, states: Sequence[str]) -> list[Submitted]:
    end = time.monotonic() + SECONDS
    while [job.state for job in fake.jobs()] != list(states):
        assert time.monotonic() < end, fake.jobs()
        time.sleep(0.05)
    return fake.jobs()


@pytest.mark.slow
def test_a_refused_job_leaves_the_others_going(
    tmp_path: Path, slurm: Callable[..., FakeSlurm], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even a failed attempt: the cluster takes it when another job has ended."""
    fake = slurm(refusals={2})
    options = [
        *plants_study(tmp_path),
        "--methods",
        "cross_entropy,hace",
        "--only",
        "dilution=0.5,None",
        "--rates",
        "1,8",
    ]
    options += ["--seeds", "1", "--widen", "0", "--retries", "0"]
    assert main([*options, "--executor", "slurm", "--out", str(tmp_path / "study")]) == 0
    printed, said = capsys.readouterr()
    assert "6 of 6 runs are done" in printed
    assert "waiting until another job has ended: sbatch refused it: " in said
    assert "QOSMaxSubmitJobPerUserLimit" in said
    assert {job.state for job in wait_for(fake, ["COMPLETED"] * len(fake.jobs()))} == {"COMPLETED"}
    assert main([*options, "--out", str(tmp_path / "whole")]) == 0
    assert outcomes(tmp_path / "study" / "runs") == outcomes(tmp_path / "whole" / "runs")


@pytest.mark.slow
def test_a_training_goes_on_after_its_time_limit(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    """No retries: a job that saved something is not a failed attempt."""
    fake = slurm(Fate("timeout", LOG))
    scheduler = training(tmp_path)
    tally = run(scheduler)
    wait_for(fake, ["COMPLETED"] * 2)
    assert (tally.done, tally.failed) == (1, 0)
    stopped = r"saved at step \d+, resumes from there: .*stopped by SIGUSR2: the time limit was near"
    assert [bool(re.search(stopped, note)) for note in tally.notes] == [True]
    whole = training(tmp_path, "whole")
    whole.run(InProcess())
    assert end_state(run_of(scheduler)) == end_state(run_of(whole))


def test_a_job_that_is_lost_fails_with_its_reason(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    slurm(Fate("oom"))
    scheduler = training(tmp_path)
    tally = run(scheduler)
    assert tally.failed == 1
    (failure,) = scheduler.failures.values()
    assert "OUT_OF_MEMORY, it needs more memory: give --memory more gigabytes" in failure["error"]
    assert "/jobs/toys-test_vit-cross_entropy-seed-0-rate-0.05-" in failure["error"]


@pytest.mark.slow
def test_leaving_cancels_and_a_training_saves(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    fake = slurm()
    job = Job(("endless",), (tiny(epochs=100_000),), str(tmp_path / "runs"))
    log = tmp_path / "runs" / "endless" / "log.jsonl"
    with (
        pytest.raises(KeyboardInterrupt),
        open_executor("slurm", None, Cluster(), tmp_path / "jobs") as (executor, _),
    ):
        future = executor.submit(run_job, job)
        end = time.monotonic() + SECONDS
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not future.done()
        raise KeyboardInterrupt
    wait_for(fake, ["CANCELLED"])
    assert job.saved_steps()["endless"] > 0


def test_a_job_asks_for_what_it_was_given(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    fake = slurm(Fate("oom"))
    given = {
        "gpus": 2, "cpus": 3, "memory": 4, "account": "birds", "qos": "long", "constraint": "a100", "partition": "gpu",
        "hours": 2, "setup": ("export HACE_SET_UP=1",),
    }  # fmt: skip
    run(training(tmp_path), **given)
    (job,) = fake.jobs()
    expected = {
        "job-name": "hace-toys-test_vit-cross_entropy-seed-0-rate-0.05", "ntasks-per-node": "2", "gpus-per-node": "2",
        "cpus-per-task": "3", "mem": "4GB", "account": "birds", "qos": "long", "constraint": "a100", "partition": "gpu",
        "time": "120", "signal": "USR2@120", "no-requeue": "",
    }  # fmt: skip
    assert job.options.items() >= expected.items()
    assert "\nexport HACE_SET_UP=1\n" in (fake.folder / "jobs" / "1" / "script").read_text()


@pytest.mark.long
def test_one_training_by_several_processes(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    slurm()
    tally = run(training(tmp_path, config=tiny()), gpus=2)
    assert tally.done == 1, tally.notes
    logs = sorted(path.name for path in (tmp_path / "study" / "jobs").glob("*/*_log.out"))
    assert logs == ["1_0_log.out", "1_1_log.out"]


def test_without_accounting_a_lost_job_is_noticed(
    tmp_path: Path, slurm: Callable[..., FakeSlurm], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(Fate("oom"), accounting=False)
    monkeypatch.setattr("hace.lab.study.slurm.RESULT_SECONDS", 0.0)
    scheduler = training(tmp_path)
    assert run(scheduler).failed == 1
    (failure,) = scheduler.failures.values()
    assert failure["error"].startswith("SLURM job 1: UNKNOWN, and it left no result. Its log is ")


def test_gpus_that_slurm_cannot_share(tmp_path: Path, slurm: Callable[..., FakeSlurm]) -> None:
    slurm()
    with pytest.raises(ConfigError, match=r"gpus must be a whole number with executor slurm\. Got 0\.5\."):
        run(training(tmp_path), gpus=0.5)


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        HaceError, match=r"Executor slurm must run where `sbatch` and `srun` are\. Got neither"
    ):
        run(training(tmp_path))
