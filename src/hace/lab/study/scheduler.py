"""A running study: ready runs go to the executor, failed ones are retried, finished ones are never repeated.

A final run is ready as soon as the searches of its cell are finished. All state is on disk, so a killed study
resumes where it stopped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hace.lab.probe import probe
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.run import Run, finished_run
from hace.lab.runs.samples import Source
from hace.lab.study.cells import Cell, CellKey, Record, choose
from hace.lab.study.contests import contests, widened
from hace.lab.study.jobs import Executor, Job, JobResult, is_busy
from hace.lab.study.study import Study, write_failures
from hace.lab.study.tally import Row, Tally, Watch

BUSY_SECONDS = 2.0
_NOT_SEEN = (
    "The job is done, but there is no result in {}. On a cluster, the study must be on a file system that all machines share, "
    "at the same path."
)


@dataclass(frozen=True)
class Wanted:
    """A run to make, with its cell and stage."""

    cell: Cell
    stage: Literal["search", "final"]
    config: RunConfig


class Searching(NamedTuple):
    """A cell of a contest, with the ids of the runs that search its rate."""

    cell: Cell
    runs: list[str]


class Scheduler:
    """Makes the missing runs of a study.

    Args:
        study: The study.
        sources: Its features, by data set, as `Survey` has them.
        retries: Further attempts of a run that failed. A job that was ended from outside and saved something does not count.
        threads: Threads of each process.
        watch: Told whenever something changes.
    """

    def __init__(
        self,
        study: Study,
        sources: Mapping[str, Source[Any]],
        *,
        retries: int = 1,
        threads: int = 1,
        watch: Watch | None = None,
    ) -> None:
        self.study, self.retries, self.threads = study, retries, threads
        self.tally = Tally()
        self.failures: dict[str, dict[str, Any]] = {}
        self._sources = sources
        self._watch = watch
        self._wanted: dict[str, list[Wanted]] = {}
        self._runs: dict[str, Run] = {}  # finished
        self._ready: list[str] = []
        self._queue: deque[Job] = deque()
        self._later: list[tuple[float, float, Job]] = []  # when to try again, after which delay
        self._flying: set[str] = set()
        self._saved: dict[str, int] = {}  # steps of trainings when their job began
        self._judged: set[tuple[str, ...]] = set()  # searches; the seeds of a study may share them
        self._contests: dict[CellKey, list[Searching]] = {}  # the contest of each cell
        for cells in contests(study.cells):
            for cell in cells:
                self._row(cell).total += 1
            self._search(cells)

    def run(self, executor: Executor) -> Tally:
        """Make every run that can be made.

        Args:
            executor: An executor inside its `with` block.
        """
        write_failures(self.study, self.failures)
        under_way = 0
        for job in executor.resume(self._adopted):
            self._started(job)
            under_way += 1
        while True:
            while under_way < executor.capacity and (job := self._next()) is not None:
                self._started(job)
                executor.submit(job)
                under_way += 1
            self._tell()
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

    def _adopted(self, runs: Sequence[str]) -> Job | None:
        """The job of an earlier start, with the runs that are still wanted."""
        wanted = {run: self._wanted[run][0].config for run in runs if run in self._ready}
        self._ready = [run for run in self._ready if run not in wanted]
        return self._job(wanted) if wanted else None

    def _started(self, job: Job) -> None:
        self._flying.update(job.runs)
        self._saved |= job.saved_steps()
        self._count(job.runs, "running", 1)

    def missing(self) -> list[Wanted]:
        """What can be made now, without the final runs whose rate is not chosen yet."""
        return [self._wanted[run][0] for run in self._ready]

    def _search(self, cells: Sequence[Cell], begun: Mapping[CellKey, int] = MappingProxyType({})) -> None:
        """Want the searches of a contest but for those that have begun, and choose if all are finished."""
        contest = []
        for cell in cells:
            configs = cell.search()
            contest.append(Searching(cell, [self.study.identity(cell, config) for config in configs]))
            self._contests[cell.key] = contest
            new = configs[begun.get(cell.key, 0) :]
            self._row(cell).total += len(new)
            for config in new:
                self._want(Wanted(cell, "search", config))
        self._choose(contest)

    def _want(self, wanted: Wanted) -> None:
        run = self.study.identity(wanted.cell, wanted.config)
        self._wanted.setdefault(run, []).append(wanted)
        row = self._row(wanted.cell)
        if len(self._wanted[run]) > 1:
            row.total -= 1  # a run that cells share counts once, where it was wanted first
        elif self._finished(run):
            row.done += 1
            row.diverged += self._runs[run].status == "diverged"
        elif self._given_up(run):
            row.failed += 1
        else:
            self._ready.append(run)

    def _finished(self, run: str) -> bool:
        found = finished_run(self.study.runs / run, self._note)
        if found is not None:
            self._runs[run] = found
        return found is not None

    def _choose(self, contest: Sequence[Searching]) -> None:
        """Once all searches of a contest are finished, widen them or want its final runs."""
        if any(run not in self._runs and not self._given_up(run) for _, runs in contest for run in runs):
            return
        cells = [cell for cell, _ in contest]
        searched = [[self._record(cell, run) for run in runs] for cell, runs in contest]
        if wider := widened(cells, searched):
            return self._search(wider, begun={cell.key: len(runs) for cell, runs in contest})
        for (cell, runs), records in zip(contest, searched, strict=True):
            candidate, why = choose(cell, records)
            if candidate is None:
                self._row(cell).failed += 1
                self._note(f"{cell.key}, seed {cell.key.seed}: {why}")
                continue
            if len(records) > 2 and tuple(runs) not in self._judged:
                self._judged.add(tuple(runs))
                self.tally.searches += 1
                self.tally.edges += bool(cell.edge(candidate))
            self._want(Wanted(cell, "final", cell.final(candidate)))

    def _record(self, cell: Cell, run: str) -> Record:
        """A search that is finished or given up."""
        error = self.failures[run]["error"] if self._given_up(run) else ""
        return Record(cell.key, "search", self._wanted[run][0].config.lr, self._runs.get(run), error)

    def _next(self) -> Job | None:
        now = time.monotonic()
        due = [(delay, job) for at, delay, job in self._later if at <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for delay, job in due:
            if any(is_busy(self.study.runs / run) for run in job.runs):  # wait here, not in a cluster's queue
                self._postpone(job, min(2 * delay, 30.0))
            else:
                self._queue.append(job)
        if not self._queue and self._ready:
            self._queue.extend(self._jobs(self._ready))
            self._ready = []
        return self._queue.popleft() if self._queue else None

    def _jobs(self, runs: Iterable[str]) -> list[Job]:
        """Group the probes that can share a pass; every other run is a job."""
        probes: dict[str, list[ProbeConfig]] = {}
        jobs = []
        for run in runs:
            wanted = self._wanted[run][0]
            if isinstance(wanted.config, ProbeConfig):
                probes.setdefault(wanted.cell.key.dataset, []).append(wanted.config)
            else:
                jobs.append(self._job({run: wanted.config}))
        for dataset, configs in probes.items():
            fingerprint = self.study.sets[dataset, ProbeConfig.kind]["fingerprint"]
            sources = {probe.data_key(config): self._sources[dataset] for config in configs}
            for work in probe.passes(configs, sources):
                jobs.append(self._job({c.identity(fingerprint): c for c in work.configs}))
        return jobs

    def _job(self, configs: Mapping[str, RunConfig]) -> Job:
        out = str(self.study.runs.resolve())
        first = self._wanted[next(iter(configs))][0]
        name = f"{self._label(first)} and {len(configs) - 1} more" if len(configs) > 1 else self._label(first)
        return Job(tuple(configs), tuple(configs.values()), out, self.threads, name)

    def _label(self, wanted: Wanted) -> str:
        """A short description of a run."""
        return f"{wanted.cell.key}, seed {wanted.cell.key.seed}, rate {wanted.config.lr:g}"

    def _postpone(self, job: Job, delay: float) -> None:
        self._later.append((time.monotonic() + delay, delay, job))

    def _ended(self, result: JobResult) -> None:
        self._flying.difference_update(result.job.runs)
        self._count(result.job.runs, "running", -1)
        left = dict(zip(result.job.runs, result.job.configs, strict=True))
        searching: set[CellKey] = set()
        for run in result.job.runs:
            if self._finished(run):
                del left[run]
                self._succeeded(run)
                searching |= self._searching(run)
        if result.lost:
            self._go_on(result, left)
        busy = {run: config for run, config in left.items() if run in result.busy}
        if busy:
            self._note(f"waiting: {result.errors[next(iter(busy))]}")
            self._postpone(self._job(busy), BUSY_SECONDS)
        for run in [run for run in left if run not in busy]:
            error = result.errors.get(run) or result.lost or _NOT_SEEN.format(self.study.runs)
            self._failed(run, error)
            searching |= self._searching(run)
        for contest in {id(c): c for c in (self._contests[key] for key in searching)}.values():
            self._choose(contest)

    def _go_on(self, result: JobResult, left: dict[str, RunConfig]) -> None:
        """Take from `left` the runs that a killed job saved, and queue them again."""
        saved = result.job.saved_steps()
        again = [run for run in left if saved.get(run, 0) > self._saved.get(run, 0)]
        for run in again:
            what = self._label(self._wanted[run][0])
            self._note(f"{what}: saved at step {saved[run]}, resumes from there: {result.lost}")
        if len(left) > 1:  # perhaps one of them is to blame: try each alone
            again = list(left)
        self._queue.extend(self._job({run: left.pop(run)}) for run in again)

    def _searching(self, run: str) -> set[CellKey]:
        """The cells whose rate a run helps to choose."""
        return {w.cell.key for w in self._wanted[run] if w.stage == "search"}

    def _succeeded(self, run: str) -> None:
        self._count([run], "done", 1)
        self._count([run], "diverged", self._runs[run].status == "diverged")
        self.tally.fresh += 1
        if self.failures.pop(run, None):
            write_failures(self.study, self.failures)

    def _failed(self, run: str, error: str) -> None:
        wanted = self._wanted[run][0]
        attempts = self.failures.get(run, {}).get("attempts", 0) + 1
        self.failures[run] = {
            "cell": wanted.cell.key.to_dict(),
            "stage": wanted.stage,
            "lr": wanted.config.lr,
            "attempts": attempts,
            "again": attempts <= self.retries,
            "error": error,
        }
        write_failures(self.study, self.failures)
        what = self._label(wanted)
        if self._given_up(run):
            self._count([run], "failed", 1)
            self._note(f"failed after {attempts} attempts: {what}: {error}")
        else:
            self._note(f"attempt {attempts} failed, will be tried again: {what}: {error}")
            self._postpone(self._job({run: wanted.config}), min(2.0 ** (attempts - 1), 30.0))

    def _given_up(self, run: str) -> bool:
        return self.failures.get(run, {}).get("attempts", 0) > self.retries

    def _count(self, runs: Iterable[str], what: str, by: int) -> None:
        for run in runs:
            row = self._row(self._wanted[run][0].cell)
            setattr(row, what, getattr(row, what) + by)

    def _row(self, cell: Cell) -> Row:
        key = cell.key
        return self.tally.rows.setdefault((key.dataset, key.model, key.method), Row())

    def _note(self, text: str) -> None:
        if text not in self.tally.notes:
            self.tally.notes.append(text)

    def _tell(self) -> None:
        if self._watch is not None:
            self._watch.changed(self.tally)
