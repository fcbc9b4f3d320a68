"""A running study: ready runs go to the executor, failed ones are retried, finished ones are never repeated; and how far it
is, as a bar on a terminal or occasional lines elsewhere.

What to run follows from the comparisons of the study (:class:`hace.lab.study.comparison.MethodComparison`) and from what is
finished, so all state is on disk and a killed study resumes where it stopped.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TextIO

from hace.data import Dataset
from hace.files.writing import is_held
from hace.lab import probe
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.process import SECONDS_BETWEEN_LINES, duration, kind
from hace.lab.runs.run import Run, finished_run
from hace.lab.study.comparison import MethodComparison, comparisons
from hace.lab.study.executors import Executor, Job, JobResult
from hace.lab.study.folder import StudyFolder
from hace.lab.study.records import PENDING, Record, each_run

BUSY_SECONDS = 2.0
_NOT_SEEN = (
    "The job is done, but there is no result in {}. On a cluster, the study must be on a file system that all machines share, "
    "at the same path."
)


@dataclass
class Tally:
    """The runs of a study, counted; `left` says how long the others take, `notes` are what people should know."""

    total: int = 0
    done: int = 0
    diverged: int = 0
    failed: int = 0
    running: int = 0
    left: str = ""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """In one line."""
        words = [f"{self.done:,} of {self.total:,} runs are done"]
        counts = {"diverged": self.diverged, "failed": self.failed, "running": self.running}
        words += [f"{count:,} {what}" for what, count in counts.items() if count]
        return ", ".join(filter(None, (*words, self.left)))


def count(records: Iterable[Record], running: Collection[str] = ()) -> Tally:
    """The runs counted; one that configurations share counts once, and a configuration for which no run can be chosen as failed."""
    tally = Tally()
    for record in each_run(records):
        tally.total += 1
        tally.running += record.id in running
        tally.done += bool(record.id) and record.status in ("finished", "diverged")
        tally.diverged += bool(record.id) and record.status == "diverged"
        tally.failed += record.status == "failed" or (not record.id and record.status == "diverged")
    return tally


class Pace:
    """How long the rest of a study takes, by the last finished jobs of each kind of run.

    Searches share passes and final runs hardly do, so a mean over both would guarantee too much. While searches are going on,
    which may widen their grids, or where a kind of run is still unknown, it says "at least".
    """

    def __init__(self, workers: int) -> None:
        self._workers, self._jobs = workers, 0
        self._spent: dict[tuple[str, ...], deque[tuple[float, int]]] = {}  # by kind: seconds and runs of jobs

    def ended(self, records: Sequence[Record], seconds: float) -> None:
        """A job has finished these runs."""
        for which, runs in Counter(map(_kind_of_run, records)).items():
            jobs = self._spent.setdefault(which, deque(maxlen=max(8, 2 * self._workers)))
            jobs.append((seconds * runs / len(records), runs))
        self._jobs += 1

    def left(self, records: Iterable[Record]) -> str:
        """The time that these runs take, in words; nothing before every worker has finished a job."""
        missing = Counter(map(_kind_of_run, records))
        if self._jobs < min(self._workers, 8) or not missing or not self._spent:
            return ""
        each = {k: sum(s for s, _ in jobs) / sum(n for _, n in jobs) for k, jobs in self._spent.items()}
        seconds = sum(runs * each.get(kind, min(each.values())) for kind, runs in missing.items())
        known = all(kind in each and kind[-1] == "final" for kind in missing)
        return f"{'about' if known else 'at least'} {duration(seconds / self._workers)} left"


def _kind_of_run(record: Record) -> tuple[str, ...]:
    return record.key.dataset, record.key.model, record.stage


Watch = Callable[[Tally], None]  # called whenever something changes


@contextmanager
def watching(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Watch]:
    """Show a study while it runs: a bar on a terminal, elsewhere a line now and then; and every note once."""
    output = stream or sys.stderr
    shown, noted, bar, task = -SECONDS_BETWEEN_LINES, 0, None, None
    if kind(output) == "terminal" and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(file=output), transient=True)
        task = bar.add_task("study")

    def changed(tally: Tally) -> None:
        nonlocal shown, noted
        for note in tally.notes[noted:]:
            if bar is not None:
                bar.console.print(f"study: {note}", markup=False, highlight=False)
            else:
                print(f"study: {note}", file=output, flush=True)
        noted = len(tally.notes)
        if bar is not None and task is not None:
            bar.update(task, description=str(tally), completed=tally.done + tally.failed, total=tally.total)
        elif clock() - shown >= SECONDS_BETWEEN_LINES:
            shown = clock()
            print(f"study: {tally}", file=output, flush=True)

    with bar or nullcontext():
        yield changed


class Scheduler:
    """Makes the missing runs of a study, whose features are in `sources`; `watch` is told whenever something changes.

    A run that failed is tried again, `retries` times. A job that was ended from outside and saved something does not count.
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
        self.study, self.retries, self.threads = study, retries, threads
        self.failures: dict[str, dict[str, Any]] = {}  # so far, as in failures.json
        self.ready: list[str] = []  # ids of runs that can be made now; final ones after their rate is chosen
        self._sources, self._watch = sources, watch
        self._notes: list[str] = []
        self._pace = Pace(1)
        self._runs: dict[str, Run | None] = {}  # those that were looked at; None: not finished
        self._wanted: dict[str, Record] = {}  # the first record of each run
        self._queue: deque[Job] = deque()
        self._later: list[tuple[float, float, Job]] = []  # when to try again, after which delay
        self._running: set[str] = set()
        self._began: dict[tuple[str, ...], float] = {}  # when the job of these runs began
        self._saved: dict[str, int] = {}  # steps of trainings when their job began
        self._comparisons = [
            MethodComparison(configurations, study.identity)
            for configurations in comparisons(study.configurations)
        ]
        self._records: list[list[Record]] = [[] for _ in self._comparisons]
        self._searching: dict[str, set[int]] = {}  # the comparisons that a search decides
        for number in range(len(self._comparisons)):
            self._advance(number)

    def run(self, executor: Executor) -> Tally:
        """Make every run that can be made."""
        self.study.write_failures(self.failures)
        self._pace, under_way = Pace(executor.capacity), 0
        for job in executor.resume(self._adopted):
            self._started(job)
            under_way += 1
        while True:
            while under_way < executor.capacity and (job := self._next()) is not None:
                self._started(job)
                executor.submit(job)
                under_way += 1
            if self._watch is not None:
                self._watch(self.tally)
            pause = min((due for due, _, _ in self._later), default=None)
            pause = None if pause is None else max(0.0, pause - time.monotonic())
            if under_way:
                result = executor.next(pause)
                if result is not None:
                    self._ended(result)
                    under_way -= 1
            elif pause is not None:
                time.sleep(pause)
            else:
                return self.tally

    @property
    def wanted(self) -> list[RunConfig]:
        """The configurations of the runs that are ready."""
        return [config for run in self.ready if (config := self._wanted[run].config) is not None]

    @property
    def tally(self) -> Tally:
        """The runs counted."""
        records = (record for records in self._records for record in records)
        now = [replace(r, **self._look(r.id)) if r.id else r for r in records]
        left = self._pace.left(r for r in each_run(now) if r.status in PENDING)
        return replace(count(now, self._running), left=left, notes=self._notes)

    def _advance(self, number: int) -> None:
        """Want what a comparison needs next."""
        self._records[number] = self._comparisons[number].records(self._look)
        for record in self._records[number]:
            if record.stage == "search":
                self._searching.setdefault(record.id, set()).add(number)
            if not record.id and record.error:
                self._note(f"{record.key}, seed {record.key.seed}: {record.error}")
            if record.id and record.id not in self._wanted:
                self._wanted[record.id] = record
                if record.status in PENDING:
                    self.ready.append(record.id)

    def _look(self, run: str) -> Mapping[str, Any]:
        if run not in self._runs:
            self._runs[run] = finished_run(self.study.runs / run, self._note)
        failure = {"error": "", "again": False, **self.failures.get(run, {})}
        return {"run": self._runs[run], "error": failure["error"], "again": failure["again"]}

    def _adopted(self, runs: Sequence[str]) -> Job | None:
        """The job of an earlier start, with the runs that are still wanted."""
        wanted = [run for run in runs if run in self.ready]
        self.ready = [run for run in self.ready if run not in wanted]
        return self._job(wanted) if wanted else None

    def _started(self, job: Job) -> None:
        self._began[job.runs] = time.monotonic()
        self._running.update(job.runs)
        self._saved |= job.saved_steps()

    def _next(self) -> Job | None:
        now = time.monotonic()
        due = [(delay, job) for at, delay, job in self._later if at <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for delay, job in due:
            if any(is_held(self.study.runs / run) for run in job.runs):  # wait here, not in a cluster's queue
                self._postpone(job, min(2 * delay, 30.0))
            else:
                self._queue.append(job)
        if not self._queue and self.ready:
            self._queue.extend(self._jobs(self.ready))
            self.ready = []
        return self._queue.popleft() if self._queue else None

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
        configs = tuple(config for run in runs if (config := self._wanted[run].config) is not None)
        name = self._label(runs[0]) + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        return Job(tuple(runs), configs, str(self.study.runs.resolve()), self.threads, name)

    def _label(self, run: str) -> str:
        """A short description of a run."""
        wanted = self._wanted[run]
        return f"{wanted.key}, seed {wanted.key.seed}, rate {wanted.lr:g}"

    def _postpone(self, job: Job, delay: float) -> None:
        self._later.append((time.monotonic() + delay, delay, job))

    def _ended(self, result: JobResult) -> None:
        self._running.difference_update(result.job.runs)
        left, ended = [], []
        for run in result.job.runs:
            del self._runs[run]
            (left if self._look(run)["run"] is None else ended).append(run)
        if ended:
            seconds = time.monotonic() - self._began.pop(result.job.runs)
            self._pace.ended([self._wanted[run] for run in ended], seconds)
        for run in ended:
            if self.failures.pop(run, None):
                self.study.write_failures(self.failures)
        if result.lost:
            left = self._gone_on(result, left)
        busy = [run for run in left if run in result.busy]
        if busy:
            self._note(f"waiting: {result.errors[busy[0]]}")
            self._postpone(self._job(busy), BUSY_SECONDS)
        for run in left:
            if run not in busy:
                self._failed(run, result.errors.get(run) or result.lost or _NOT_SEEN.format(self.study.runs))
        for number in sorted({n for run in (*ended, *left) for n in self._searching.get(run, ())}):
            self._advance(number)

    def _gone_on(self, result: JobResult, left: list[str]) -> list[str]:
        """Queue again the runs that a killed job saved; the others."""
        saved = result.job.saved_steps()
        again = [run for run in left if saved.get(run, 0) > self._saved.get(run, 0)]
        for run in again:
            self._note(f"{self._label(run)}: saved at step {saved[run]}, resumes from there: {result.lost}")
        if len(left) > 1:  # perhaps one of them is to blame: try each alone
            again = left
        self._queue.extend(self._job([run]) for run in again)
        return [run for run in left if run not in again]

    def _failed(self, run: str, error: str) -> None:
        wanted, attempts = self._wanted[run], self.failures.get(run, {}).get("attempts", 0) + 1
        again = attempts <= self.retries
        about = {"configuration": asdict(wanted.key), "stage": wanted.stage, "lr": wanted.lr}
        self.failures[run] = {**about, "attempts": attempts, "again": again, "error": error}
        self.study.write_failures(self.failures)
        if again:
            self._note(f"attempt {attempts} failed, will be tried again: {self._label(run)}: {error}")
            self._postpone(self._job([run]), min(2.0 ** (attempts - 1), 30.0))
        else:
            self._note(f"failed after {attempts} attempts: {self._label(run)}: {error}")

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
