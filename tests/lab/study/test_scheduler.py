"""What a study does with runs that fail, are busy or were lost: with scripted executors and a scripted clock."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hace.errors import HaceError
from hace.files.writing import only_process
from hace.lab.study.configurations import Configuration, ConfigurationKey, rate_candidates
from hace.lab.study.executors import InProcess
from hace.lab.study.folder import read_study
from hace.lab.study.jobs import Job, SubmissionError
from hace.lab.study.plan import Choices, StudyPlan, make_plan
from hace.lab.study.presets import find_presets
from hace.lab.study.records import Record
from hace.lab.study.scheduler import Scheduler
from hace.lab.study.survey import Survey
from tests.study_files import start_study
from tests.train_cases import tiny


class Clock:
    """A clock that only sleeping moves; `after` is called after each sleep, with their number."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self.after: Callable[[int], object] = lambda count: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps.append(seconds)
        self.after(len(self.sleeps))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the scheduler."""
    clock = Clock()
    monkeypatch.setattr("hace.lab.study.scheduler.time", clock)
    return clock


class ScriptedExecutor(Executor):
    """An executor that asks a function why the runs of each job failed; the function may raise as a lost job does."""

    def __init__(self, answer: Callable[[Job], dict[str, str]]) -> None:
        self.jobs: list[Job] = []
        self._answer = answer

    def submit(self, fn: Callable, /, *args, **kwargs) -> Future:
        (job,) = args
        self.jobs.append(job)
        future = Future()
        try:
            future.set_result(self._answer(job))
        except Exception as error:
            future.set_exception(error)
        return future


def probes(folder: Path, retries: int = 1, seeds: int = 1) -> Scheduler:
    """A study of one method at two rates: at each seed two searches that share a pass, and the final run."""
    choices = Choices(only={"method": "cross_entropy"}, rates=(1.0, 8.0), seeds=seeds, epochs_scale=0.04)
    plan = make_plan(find_presets("methods"), choices)
    survey = Survey(plan.data)
    return Scheduler(start_study(folder / "study", plan, choices, survey), survey.sources, retries=retries)


def training(folder: Path, retries: int) -> Scheduler:
    """A study of one training."""
    config = tiny()
    key = ConfigurationKey("paper", "toys", "test_vit", "cross_entropy", None, None, 0)
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


def test_a_run_with_attempts_left_is_to_be_retried_not_failed(tmp_path: Path, clock: Clock) -> None:
    seen = []

    def answer(job: Job) -> dict[str, str]:
        seen.append(statuses(tmp_path))
        return dict.fromkeys(job.runs, "no space left")

    executor = ScriptedExecutor(answer)
    tally = probes(tmp_path, retries=2).run(executor)
    assert seen[0] == ["not run"] * 3
    assert seen[1:4] == [["to be retried", "to be retried", "not run"]] * 3
    assert statuses(tmp_path) == ["failed"] * 3
    assert [len(job.runs) for job in executor.jobs] == [2, 1, 1, 1, 1]
    assert clock.sleeps == [1.0, 2.0]
    assert tally.failed == 3
    assert any(note.startswith("attempt 1 failed, will be tried again: synthetic") for note in tally.notes)


def test_a_busy_run_is_waited_for_without_a_job(tmp_path: Path, clock: Clock) -> None:
    """A job that only finds its run busy costs a cluster a place in the queue."""
    scheduler = probes(tmp_path, retries=0)
    held = scheduler.study.runs / scheduler.ready[0]
    held.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(only_process(held))
        clock.after = lambda count: stack.close() if count == 3 else None
        tally = scheduler.run(InProcess())
    assert clock.sleeps == [2.0, 4.0, 8.0]
    assert (tally.done, tally.failed) == (3, 0)
    assert tally.notes[0].startswith("waiting: Another process is at work in")


def test_a_lost_job_counts_unless_it_saved_something(tmp_path: Path, clock: Clock) -> None:
    saved = iter([4, 9, 9])  # the third job gets no further than the second

    def answer(job: Job) -> dict[str, str]:
        checkpoints = Path(job.out) / job.runs[0] / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        (checkpoints / f"step-{next(saved):09d}-0123456789abcdef.pt").touch()
        raise HaceError("its node failed.")

    executor = ScriptedExecutor(answer)
    tally = training(tmp_path, retries=0).run(executor)
    assert len(executor.jobs) == 3
    assert tally.failed == 1
    assert [note.partition(": ")[2][:16] for note in tally.notes[:2]] == [
        "saved at step 4,",
        "saved at step 9,",
    ]
    assert tally.notes[2].startswith(
        "failed after 1 attempts: toys test_vit cross_entropy, seed 0, rate 0.05: its node failed."
    )


def test_runs_that_were_lost_together_are_tried_alone(tmp_path: Path, clock: Clock) -> None:
    def answer(job: Job) -> dict[str, str]:
        raise HaceError("its process was ended by SIGKILL.")

    executor = ScriptedExecutor(answer)
    probes(tmp_path, retries=0).run(executor)
    both, *alone = [job.runs for job in executor.jobs]
    assert alone == [(run,) for run in both]


class LimitedExecutor(Executor):
    """An executor that has room for one job, as a cluster with a limit on jobs in its queue."""

    def __init__(self) -> None:
        self.refused = 0
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._last: Future | None = None

    def submit(self, fn: Callable, /, *args, **kwargs) -> Future:
        if self._last is not None and not self._last.done():
            self.refused += 1
            raise SubmissionError("too many jobs in the queue")
        self._last = self._pool.submit(fn, *args, **kwargs)
        return self._last

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def test_a_refused_job_waits_for_the_others(tmp_path: Path) -> None:
    """A refusal while others are under way is no failure: without retries, everything is made."""
    scheduler = probes(tmp_path, retries=0, seeds=2)
    with LimitedExecutor() as executor:
        tally = scheduler.run(executor, workers=4)
    assert executor.refused == 1  # and not once for every job: it has room for one
    assert (tally.done, tally.failed) == (6, 0)
    assert "waiting until another job has ended: too many jobs in the queue" in tally.notes


def test_jobs_that_are_always_refused_are_reported(tmp_path: Path, clock: Clock) -> None:
    pool = ProcessPoolExecutor(1)
    pool.shutdown()
    tally = probes(tmp_path).run(pool)
    assert (tally.done, tally.failed) == (0, 3)
    (failure,) = {failure["error"] for failure in read_study(tmp_path / "study").failures().values()}
    assert failure.startswith("RuntimeError: cannot schedule new futures after shutdown")


def test_a_record_that_will_be_tried_again_is_not_failed() -> None:
    key = ConfigurationKey("fair", "birds", "features", "hace", 0.5, None, 0)
    record = Record(key, "search", 1.0, None, "no space left", again=True)
    assert (record.status, replace(record, again=False).status) == ("to be retried", "failed")
