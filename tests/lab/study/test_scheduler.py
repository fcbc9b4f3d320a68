"""What a study does with runs that fail, are busy or were lost: with scripted executors and a scripted clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hace.files.writing import only_process
from hace.lab.study.configurations import Configuration, ConfigurationKey, rate_candidates
from hace.lab.study.executors import InProcess, Job, JobResult
from hace.lab.study.folder import read_study
from hace.lab.study.plan import Choices, StudyPlan, Survey, make_plan
from hace.lab.study.presets import find_presets
from hace.lab.study.records import Record
from hace.lab.study.scheduler import Scheduler
from tests.study_files import start_study
from tests.train_cases import tiny


class Clock:
    """A clock that only sleeping moves; `wake` is called after each sleep."""

    def __init__(self, wake: Callable[[int], None] = lambda count: None) -> None:
        self.now, self.sleeps, self._wake = 0.0, [], wake

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps.append(seconds)
        self._wake(len(self.sleeps))


class ScriptedExecutor:
    """An executor that asks a function for the result of each job."""

    capacity = 1

    def __init__(self, answer: Callable[[Job], JobResult], left: Sequence[Sequence[str]] = ()) -> None:
        self.jobs: list[Job] = []
        self._answer, self._left = answer, left

    def resume(self, adopt: Callable[[Sequence[str]], Job | None]) -> list[Job]:
        found = [job for runs in self._left if (job := adopt(runs)) is not None]
        self.jobs += found
        return found

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def next(self, timeout: float | None = None) -> JobResult:
        return self._answer(self.jobs[-1])

    def __enter__(self) -> ScriptedExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def probes(folder: Path, retries: int = 1) -> Scheduler:
    """A study of one method at two rates: two searches that share a pass, and the final run."""
    choices = Choices(only={"method": "sce"}, rates=(1.0, 8.0), seeds=1, epochs_scale=0.04)
    plan = make_plan(find_presets("methods"), choices)
    survey = Survey(plan.data)
    return Scheduler(start_study(folder / "study", plan, choices, survey), survey.sources, retries=retries)


def training(folder: Path, retries: int) -> Scheduler:
    """A study of one training."""
    config = tiny()
    key = ConfigurationKey("paper", "toys", "test_vit", "sce", None, None, 0)
    plan = StudyPlan(
        "mine",
        [Configuration(key, config, rate_candidates([config.lr]))],
        {("toys", "train"): config.data},
        (),
    )
    survey = Survey(plan.data)
    return Scheduler(start_study(folder / "study", plan, Choices(), survey), survey.sources, retries=retries)


def statuses(folder: Path) -> list[str]:
    return [record.status for record in read_study(folder / "study").records()]


def test_a_run_with_attempts_left_is_to_be_retried_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = Clock(), []
    monkeypatch.setattr("hace.lab.study.scheduler.time", clock)

    def answer(job: Job) -> JobResult:
        seen.append(statuses(tmp_path))
        return JobResult(job, dict.fromkeys(job.runs, "no space left"))

    executor = ScriptedExecutor(answer)
    tally = probes(tmp_path, retries=2).run(executor)
    assert seen[0] == ["not run"] * 3
    assert seen[1:4] == [["to be retried", "to be retried", "not run"]] * 3
    assert statuses(tmp_path) == ["failed"] * 3
    assert [len(job.runs) for job in executor.jobs] == [2, 1, 1, 1, 1]
    assert clock.sleeps == [1.0, 2.0]
    assert tally.failed == 3
    assert any(note.startswith("attempt 1 failed, will be tried again: synthetic") for note in tally.notes)


def test_a_busy_run_is_waited_for_without_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that only finds its run busy costs a cluster a place in the queue."""
    scheduler = probes(tmp_path, retries=0)
    held = scheduler.study.runs / scheduler.ready[0]
    held.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(only_process(held))
        clock = Clock(lambda count: stack.close() if count == 3 else None)
        monkeypatch.setattr("hace.lab.study.scheduler.time", clock)
        with InProcess() as executor:
            tally = scheduler.run(executor)
    assert clock.sleeps == [2.0, 4.0, 8.0]
    assert (tally.done, tally.failed) == (3, 0)
    assert tally.notes[0].startswith("waiting: Another process is at work in")


def test_a_lost_job_counts_unless_it_saved_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hace.lab.study.scheduler.time", Clock())
    saved = iter([4, 9, 9])  # the third job gets no further than the second

    def answer(job: Job) -> JobResult:
        checkpoints = Path(job.out) / job.runs[0] / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        (checkpoints / f"step-{next(saved):09d}-0123456789abcdef.pt").touch()
        return JobResult(job, lost="its node failed.")

    executor = ScriptedExecutor(answer)
    tally = training(tmp_path, retries=0).run(executor)
    assert len(executor.jobs) == 3
    assert tally.failed == 1
    assert [note.partition(": ")[2][:16] for note in tally.notes[:2]] == [
        "saved at step 4,",
        "saved at step 9,",
    ]
    assert tally.notes[2].startswith(
        "failed after 1 attempts: toys test_vit sce, seed 0, rate 0.05: its node failed."
    )


def test_runs_that_were_lost_together_are_tried_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hace.lab.study.scheduler.time", Clock())
    executor = ScriptedExecutor(lambda job: JobResult(job, lost="its process was ended by SIGKILL."))
    probes(tmp_path, retries=0).run(executor)
    both, *alone = [job.runs for job in executor.jobs]
    assert alone == [(run,) for run in both]


def test_jobs_of_an_earlier_start_are_adopted(tmp_path: Path) -> None:
    scheduler = probes(tmp_path, retries=0)
    first, second = scheduler.ready
    executor = ScriptedExecutor(
        lambda job: JobResult(job, dict.fromkeys(job.runs, "full")), left=[["unknown"], [second]]
    )
    scheduler.run(executor)
    assert [job.runs for job in executor.jobs] == [(second,), (first,)]


def test_a_record_that_will_be_tried_again_is_not_failed() -> None:
    key = ConfigurationKey("fair", "birds", "features", "hace", 0.5, None, 0)
    record = Record(key, "search", 1.0, None, "no space left", again=True)
    assert (record.status, replace(record, again=False).status) == ("to be retried", "failed")
