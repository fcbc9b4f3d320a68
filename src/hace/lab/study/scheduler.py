"""A running study: it lists the runs that are missing, submits them to an executor, and waits.

What to run follows from the comparisons of the study (:class:`hace.lab.study.comparison.MethodComparison`) and from what is
finished, so all state is on disk and a killed study resumes where it stopped. The executor is anybody's: this module knows
nothing but :mod:`concurrent.futures`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import asdict, dataclass, replace
from typing import Any

from hace.data import Dataset
from hace.files.writing import is_held
from hace.lab import probe
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.run import Run, finished_run
from hace.lab.study.comparison import MethodComparison, comparisons
from hace.lab.study.folder import StudyFolder
from hace.lab.study.jobs import Errors, Job, SubmissionError, error_text, run_job
from hace.lab.study.progress import Pace, Tally, Watch, count
from hace.lab.study.records import PENDING, Record, each_run

BUSY_SECONDS = 2.0
MOST_SECONDS = 30.0  # between two attempts
_NOT_SEEN = (
    "The job is done, but there is no result in {}. On a cluster, the study must be on a file system that all machines share, "
    "at the same path."
)


@dataclass
class _Postponed:
    """A job to submit later."""

    job: Job
    due: float
    delay: float  # how long it waits; twice as long if it must wait again


class Scheduler:
    """Makes the missing runs of a study.

    A run that failed is tried again, `retries` times. A training that was ended from outside and has saved something does not
    count as failed.

    Args:
        study: The study, locked for this process.
        sources: Its features, by `hace.lab.probe.data_key`; those of the survey, one sample per split, are enough.
        retries: Retries of a failed run.
        threads: Threads of each run.
        watch: Called with the tally whenever something changes.
    """

    def __init__(
        self,
        study: StudyFolder,
        sources: Mapping[str, Dataset[Any]],
        *,
        retries: int = 1,
        threads: int = 1,
        watch: Watch | None = None,
    ) -> None:
        self.study = study
        self.retries = retries
        self.threads = threads
        self.failures: dict[str, dict[str, Any]] = {}  # so far, as in failures.json
        self.ready: list[str] = []  # ids of runs that can be made now; final ones after their rate is chosen
        self._sources = sources
        self._watch = watch
        self._notes: list[str] = []
        self._pace: Pace | None = None
        self._limit: int | None = None  # how many jobs to have under way

        self._runs: dict[str, Run | None] = {}  # those that were looked at; None: not finished
        self._wanted: dict[str, Record] = {}  # the first record of each run
        self._queue: deque[Job] = deque()
        self._postponed: list[_Postponed] = []
        self._under_way: dict[Future[Errors], Job] = {}
        self._running: set[str] = set()  # the runs of these jobs
        self._began: dict[tuple[str, ...], float] = {}  # when the job of these runs was submitted
        self._saved: dict[str, int] = {}  # steps of trainings when their job was submitted

        self._comparisons = [
            MethodComparison(group, study.identity) for group in comparisons(study.configurations)
        ]
        self._records: list[list[Record]] = [[] for _ in self._comparisons]
        self._decides: dict[str, set[int]] = {}  # the comparisons that a search decides
        for number in range(len(self._comparisons)):
            self._advance(number)

    def run(self, executor: Executor, workers: int | None = None) -> Tally:
        """Make every run that can be made.

        Args:
            executor: What does the jobs, in processes that see the folder of the study.
            workers: How many jobs to have under way; None: all that are ready.
        """
        self.study.write_failures(self.failures)
        self._limit = workers or None
        self._pace = Pace(workers) if workers else None
        try:
            while self._queue or self.ready or self._postponed or self._under_way:
                self._submit_ready(executor)
                self._show()
                self._wait()
        except BaseException:
            for future in self._under_way:
                future.cancel()
            raise
        self._show()
        return self.tally

    @property
    def wanted(self) -> list[RunConfig]:
        """The configurations of the runs that are ready."""
        return [config for run in self.ready if (config := self._wanted[run].config) is not None]

    @property
    def tally(self) -> Tally:
        """The runs counted."""
        records = (record for group in self._records for record in group)
        now = [replace(record, **self._look(record.id)) if record.id else record for record in records]
        pending = (record for record in each_run(now) if record.status in PENDING)
        left = "" if self._pace is None else self._pace.left(pending)
        return replace(count(now, self._running), left=left, notes=self._notes)

    # What to run.

    def _advance(self, number: int) -> None:
        """Want what a comparison needs next."""
        self._records[number] = self._comparisons[number].records(self._look)
        for record in self._records[number]:
            if record.stage == "search":
                self._decides.setdefault(record.id, set()).add(number)
            if not record.id and record.error:
                self._note(f"{record.key}, seed {record.key.seed}: {record.error}")
            if record.id and record.id not in self._wanted:
                self._wanted[record.id] = record
                if record.status in PENDING:
                    self.ready.append(record.id)

    def _look(self, run: str) -> Mapping[str, Any]:
        """What is known of a run, as its record has it."""
        if run not in self._runs:
            self._runs[run] = finished_run(self.study.runs / run, self._note)
        failure = {"error": "", "again": False, **self.failures.get(run, {})}
        return {"run": self._runs[run], "error": failure["error"], "again": failure["again"]}

    def _jobs(self, runs: Iterable[str]) -> list[Job]:
        """Group the probes that can share a pass; every other run is a job."""
        probes: dict[str, list[ProbeConfig]] = {}
        jobs = []
        for run in runs:
            wanted = self._wanted[run]
            if isinstance(wanted.config, ProbeConfig):
                probes.setdefault(wanted.key.dataset, []).append(wanted.config)
            else:
                jobs.append(self._job([run]))
        for dataset, configs in probes.items():
            fingerprint = self.study.sets[dataset, ProbeConfig.kind]["fingerprint"]
            sources = {probe.data_key(config): self._sources[dataset] for config in configs}
            for work in probe.passes(configs, sources):
                jobs.append(self._job([config.identity(fingerprint) for config in work]))
        return jobs

    def _job(self, runs: Sequence[str]) -> Job:
        """The job of these runs."""
        configs = tuple(config for run in runs if (config := self._wanted[run].config) is not None)
        name = self._label(runs[0]) + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        return Job(tuple(runs), configs, str(self.study.runs.resolve()), self.threads, name)

    def _label(self, run: str) -> str:
        """A short description of a run."""
        wanted = self._wanted[run]
        return f"{wanted.key}, seed {wanted.key.seed}, rate {wanted.lr:g}"

    # Submitting and waiting.

    def _submit_ready(self, executor: Executor) -> None:
        """Submit jobs, as long as there are some and the executor has room."""
        self._queue_due()
        self._queue.extend(self._jobs(self.ready))
        self.ready = []
        while self._queue and (self._limit is None or len(self._under_way) < self._limit):
            self._submit(executor, self._queue.popleft())

    def _queue_due(self) -> None:
        """Queue postponed jobs whose time has come."""
        now = time.monotonic()
        due = [entry for entry in self._postponed if entry.due <= now]
        self._postponed = [entry for entry in self._postponed if entry.due > now]
        for entry in due:
            # Wait here, not in a cluster's queue.
            if any(is_held(self.study.runs / run) for run in entry.job.runs):
                self._postpone(entry.job, 2 * entry.delay)
            else:
                self._queue.append(entry.job)

    def _submit(self, executor: Executor, job: Job) -> None:
        """Hand a job to the executor; a refusal is the result of its future."""
        self._running.update(job.runs)
        self._began[job.runs] = time.monotonic()
        self._saved |= job.saved_steps()
        if not self._under_way:  # the executor may do it at once
            self._show()
        future: Future[Errors]
        try:
            future = executor.submit(run_job, job)
        except Exception as error:
            future = Future()
            future.set_exception(SubmissionError(error_text(error)))
        self._under_way[future] = job

    def _wait(self) -> None:
        """Wait until a job has ended, or until a postponed one is due."""
        due = min((entry.due for entry in self._postponed), default=None)
        pause = None if due is None else max(0.0, due - time.monotonic())
        if self._under_way:
            done, _ = wait(self._under_way, pause, return_when=FIRST_COMPLETED)
            for future in done:
                self._ended(self._under_way.pop(future), future)
        elif pause is not None:
            time.sleep(pause)

    def _postpone(self, job: Job, delay: float) -> None:
        """Submit a job later."""
        delay = min(delay, MOST_SECONDS)
        self._postponed.append(_Postponed(job, time.monotonic() + delay, delay))

    # What came of a job.

    def _ended(self, job: Job, future: Future[Errors]) -> None:
        """Take what a job left on the disk, and decide what becomes of the rest."""
        self._running.difference_update(job.runs)
        finished = []
        missing = []
        for run in job.runs:
            self._runs.pop(run, None)  # look again
            (missing if self._look(run)["run"] is None else finished).append(run)
        self._finished(job, finished)
        problem = CancelledError("It was cancelled.") if future.cancelled() else future.exception()
        if problem is None:
            self._failed(missing, future.result())
        elif missing and self._under_way and isinstance(problem, SubmissionError):
            self._wait_for_room(missing, problem)
        else:
            self._lost(job, missing, _first_line(problem))
        for number in sorted({number for run in job.runs for number in self._decides.get(run, ())}):
            self._advance(number)

    def _finished(self, job: Job, runs: Sequence[str]) -> None:
        """Note what a job has finished."""
        began = self._began.pop(job.runs)
        if runs and self._pace is not None:
            self._pace.ended([self._wanted[run] for run in runs], time.monotonic() - began)
        for run in runs:
            if self.failures.pop(run, None):
                self.study.write_failures(self.failures)

    def _wait_for_room(self, runs: Sequence[str], refusal: SubmissionError) -> None:
        """Queue refused runs again, for when another job has ended: a cluster may limit how many are in its queue."""
        self._note(f"waiting until another job has ended: {refusal}")
        self._limit = len(self._under_way)
        self._queue.appendleft(self._job(runs))

    def _lost(self, job: Job, runs: list[str], reason: str) -> None:
        """A job ended without saying what became of these runs."""
        for run in self._requeue_saved(job, runs, reason):
            self._count_failure(run, reason)

    def _requeue_saved(self, job: Job, runs: list[str], reason: str) -> list[str]:
        """Requeue checkpointed runs; return the rest."""
        saved = job.saved_steps()
        again = [run for run in runs if saved.get(run, 0) > self._saved.get(run, 0)]
        for run in again:
            self._note(f"{self._label(run)}: saved at step {saved[run]}, resumes from there: {reason}")
        if len(runs) > 1:  # perhaps one of them is to blame
            self._note(f"{job.name}: each of them is tried alone: {reason}")
            again = runs
        self._queue.extend(self._job([run]) for run in again)
        return [run for run in runs if run not in again]

    def _failed(self, runs: Iterable[str], errors: Errors) -> None:
        """Wait for runs that another process makes; count the others as failed."""
        busy = []
        for run in runs:
            if run in errors and is_held(self.study.runs / run):
                busy.append(run)
            else:
                self._count_failure(run, errors.get(run, _NOT_SEEN.format(self.study.runs)))
        if busy:
            self._note(f"waiting: {errors[busy[0]]}")
            self._postpone(self._job(busy), BUSY_SECONDS)

    def _count_failure(self, run: str, error: str) -> None:
        """Try a run again, or give it up; failures.json says which."""
        wanted = self._wanted[run]
        attempts = self.failures.get(run, {}).get("attempts", 0) + 1
        again = attempts <= self.retries
        about = {"configuration": asdict(wanted.key), "stage": wanted.stage, "lr": wanted.lr}
        self.failures[run] = {**about, "attempts": attempts, "again": again, "error": error}
        self.study.write_failures(self.failures)
        if again:
            self._note(f"attempt {attempts} failed, will be tried again: {self._label(run)}: {error}")
            self._postpone(self._job([run]), 2.0 ** (attempts - 1))
        else:
            self._note(f"failed after {attempts} attempts: {self._label(run)}: {error}")

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _show(self) -> None:
        if self._watch is not None:
            self._watch(self.tally)


def _first_line(error: BaseException) -> str:
    """An error in a line: that of an executor may have pages."""
    lines = [line.strip() for line in error_text(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
