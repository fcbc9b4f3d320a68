"""A whole comparison in one call, from the grid to the page.

    study = hace.Study("mixed-labels", features={"birds": "birds.npz"}, hierarchy={"birds": "taxonomy.csv"}, seeds=5)
    results = study.run()          # a second call, or a second process, resumes where this one stopped
    print(results.verdict, results.table())
    results.report("page")

`hace study` and `hace report` are these calls. The presets are those of `hace.lab.study` and of `hace.paper`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.errors import ConfigError
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.process import catch_signals, duration
from hace.lab.runs.samples import has_siblings
from hace.lab.study.executors import Cluster, check_executor, open_executor
from hace.lab.study.folder import FAILURES, StudyFolder, draft, read_study, started
from hace.lab.study.jobs import forget_sources
from hace.lab.study.plan import Choices, StudyPlan, make_plan
from hace.lab.study.presets import PRESETS, Preset, find_presets
from hace.lab.study.progress import count, watching
from hace.lab.study.records import Record, at_the_edge, coarse_searches
from hace.lab.study.scheduler import Scheduler
from hace.lab.study.survey import Survey, place_of
from hace.settings import setting

if TYPE_CHECKING:
    import pandas as pd

    from hace.lab.report.results import Results

ERRORS_SHOWN = 5  # at the end; failures.json has them all


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _warn_of_processors(executor: str | Executor, cluster: Cluster, scheduler: Scheduler) -> None:
    """Say that trainings on a cluster get no GPU unless they ask for one."""
    trainings = [config for config in scheduler.wanted if isinstance(config, TrainConfig)]
    if executor in ("ray", "slurm") and not cluster.gpus and any(c.device == "auto" for c in trainings):
        _say("trainings run on processors: gpus is 0. Give --gpus 1 for a GPU each.")


@dataclass(frozen=True)
class Study(Choices):
    """A comparison of methods on data, with its folder.

    Attributes:
        preset: A name that `hace study --list` shows, or several in one report; or presets of your own, by name.
        out: Folder of the study; by default `hace-` and its names.
        runs: Folder of run directories, which studies can share; by default `runs` in the study's folder.

    Raises:
        ConfigError: A value is out of range, or there is no such study.

    Example:
        >>> study = Study("animals", only={"method": "hace,cross_entropy"}, seeds=2)
        >>> study.out, len(study.plan().configurations)
        ('hace-animals', 8)
    """

    preset: str | tuple[str, ...] | Mapping[str, Any] = setting("")
    out: str = setting("", decides=False)
    runs: str | None = setting(None, decides=False)

    def __post_init__(self) -> None:
        if not self.preset:
            raise ConfigError("A study must have a name. `hace study --list` shows them.")
        for name in ("out", "runs"):
            if isinstance(getattr(self, name), Path):
                object.__setattr__(self, name, str(getattr(self, name)))
        super().__post_init__()
        if not self.out:
            object.__setattr__(self, "out", f"hace-{'-'.join(self.presets)}")

    @cached_property
    def presets(self) -> Mapping[str, Preset]:
        """Its presets, by name."""
        return self.preset if isinstance(self.preset, Mapping) else find_presets(self.preset, known_presets())

    def plan(self, *, absent: bool = False) -> StudyPlan:
        """Its configurations, before anything is loaded; `absent` counts data without a path at their published size."""
        return make_plan(self.presets, self, absent=absent)

    def run(
        self,
        executor: str | Executor = "local",
        *,
        workers: int | None = None,
        cluster: Cluster | None = None,
        threads: int = 1,
        retries: int = 1,
        update: bool = False,
    ) -> StudyResults:
        """Make every run that is missing. Stopped or killed at any point, the next call ends with the same numbers.

        Args:
            executor: "local", "ray" or "slurm"; or any `concurrent.futures.Executor` that calls functions in processes, such
                as Dask's `client.get_executor()` or mpi4py's `MPIPoolExecutor()`. It must see the study's folder and data.
            workers: Processes (local, ray), jobs in SLURM's queue, or jobs to have under way in an executor of your own.
            cluster: What each run gets on a cluster.
            threads: Threads per run; with 1, runs repeat bit for bit.
            retries: Retries of a failed run.
            update: Whether to continue if the study in the folder has changed.

        Raises:
            ConfigError: Something does not fit, or the folder holds another study; with the differences.
            DataError: Data cannot be used.
            KeyboardInterrupt: It was stopped: trainings have saved their state. A second signal does not wait for that.

        Example:
            with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
                study.run(executor=pool)
        """
        cluster = cluster or Cluster()
        check_executor(executor, workers, cluster)
        for name, value, least in (("retries", retries, 0), ("threads", threads, 1)):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}. Got {value}.")
        plan, survey = self._asked()
        with (
            started(self.out, plan, self, survey, runs=self.runs, update=update) as folder,
            catch_signals(interrupt=True),
            watching() as watch,
        ):
            scheduler = Scheduler(folder, survey.sources, retries=retries, threads=threads, watch=watch)
            _warn_of_processors(executor, cluster, scheduler)
            try:
                if not scheduler.ready:
                    pass
                elif isinstance(executor, Executor):
                    scheduler.run(executor, workers)
                else:
                    with open_executor(executor, workers, cluster, folder.folder / "jobs", threads) as (
                        own,
                        limit,
                    ):
                        scheduler.run(own, limit)
            except KeyboardInterrupt:
                _say(f"\nStopped: {scheduler.tally}. The same command resumes from there.")
                raise
            finally:
                forget_sources()
        return StudyResults(folder)

    def price(self) -> None:
        """Print what would run: runs by method, those that are done, and about how long the rest takes.

        Raises:
            ConfigError: Something does not fit, or no data can be used.
        """
        from hace.lab.study.prices import RULE, prices

        plan, survey = self._asked(absent=True)
        for name, problem in survey.problems.items():
            print(f"{name}: not counted, cannot be used: {problem}")
        configurations = [c for c in plan.configurations if place_of(c) in survey.datasets]
        if not configurations:
            raise ConfigError("A study must have data to count. Got none that can be used, see above.")
        rows = prices(draft(self.out, plan._replace(configurations=configurations), self, survey, self.runs))
        print(
            f"{'dataset':<14} {'model':<14} {'method':<28} {'runs':>6} {'done':>6}  time, one after another"
        )
        for row in rows:
            time = duration(row.seconds) + ("" if row.measured else " (rough)")
            print(f"{row.dataset:<14} {row.model:<14} {row.method:<28} {row.runs:>6,} {row.done:>6,}  {time}")
        measured = all(row.measured for row in rows)
        runs = sum(row.runs for row in rows)
        done = sum(row.done for row in rows)
        rest = f"{'about' if measured else 'at least'} {duration(sum(row.seconds for row in rows))}"
        print(
            f"{len(configurations):,} configurations, {runs:,} runs, {done:,} done; the rest takes {rest}, one after another"
        )
        if not measured:
            print(f"rough: {RULE}; searches may add runs")

    def _asked(self, *, absent: bool = False) -> tuple[StudyPlan, Survey]:
        """The plan, and its data."""
        plan = self.plan(absent=absent)
        survey = Survey(plan.data)
        plan = survey.asked(plan)
        for note in survey.notes():
            _say(note)
        known = {name for preset in self.presets.values() for name in preset.datasets}
        if plan.missing and all(name in known for name, _ in plan.data):  # else the user's data replace them
            given = any(config.root is not None for config in plan.data.values())
            how = "skipped" if given else "counted at their published size"
            _say(f"{how}: no path given for {', '.join(plan.missing)}")
        return plan, survey


class StudyResults:
    """What came out of a study; open it again with `StudyResults.read(folder)`.

    Args:
        study: The study on disk.
        compare: The two methods whose difference is shown: first minus second; by default HACE and cross-entropy.
        names: A file with one line "id name" per node, where the hierarchy has only ids.
    """

    def __init__(
        self, study: StudyFolder, compare: Sequence[str] | None = None, names: str | Path | None = None
    ) -> None:
        self.study = study
        self._compare = compare
        self._names = names

    @classmethod
    def read(
        cls, folder: str | Path, compare: Sequence[str] | None = None, names: str | Path | None = None
    ) -> StudyResults:
        """The results of a study in a folder, as far as it has come.

        Raises:
            FormatError: The folder is not a study.
        """
        return cls(read_study(folder), compare, names)

    @cached_property
    def records(self) -> list[Record]:
        """Every run, searches and final ones."""
        return self.study.records()

    @property
    def failures(self) -> dict[str, dict[str, Any]]:
        """The runs that failed, by id: configuration, attempts, error."""
        return self.study.failures()

    @cached_property
    def _results(self) -> Results:
        from hace.lab.report.results import Results

        return Results(self.records, self._compare, names=self._names)

    @property
    def verdict(self) -> str:
        """The answers in words, with intervals: does the hierarchy help, are coarse labels worth using, what to use.

        Raises:
            DataError: No run has finished.
        """
        from hace.lab.report.cards import study_cards
        from hace.lab.report.summary import cards_text

        return cards_text(study_cards(self._results))

    def __str__(self) -> str:
        """The tables of the page, and how to read them."""
        from hace.lab.report.summary import results_text

        return results_text(self._results)

    def table(self) -> pd.DataFrame:
        """One row per final run: its configuration, status, chosen rate, all metrics of the result.

        With made coarse or wrong labels also the share of training labels that really changed (to another class, or to a node
        above several), and top-1 over the classes that have siblings: a class alone under its parent keeps its labels.

        Example:
            results.table().groupby("method")["top-1"].agg(["mean", "std"])
        """
        import pandas as pd

        return pd.DataFrame([self._row(record) for record in self.records if record.stage == "final"])

    def _row(self, record: Record) -> dict[str, Any]:
        """A final run as a row of the table."""
        row = {**vars(record.key), "status": record.status, "rate": record.lr}
        row |= {"tried": record.candidates, "edge": record.edge}
        changed = self.study.data[record.key.dataset].get("changed")
        if changed:
            row["labels changed"] = changed.get(record.key.labels, 0.0)
            row["top-1, classes with siblings"] = _over_siblings(record)
        for heading, values in (record.result.get("metrics") or {}).items():
            prefix = "" if heading == "leaves" else f"{heading}: "
            row |= {f"{prefix}{name}": value for name, value in values.items()}
        return row

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page, with tables and figures; by default into the folder `report` within the study.

        Returns:
            The page.

        Raises:
            DataError: No run has finished.
        """
        from hace.lab.report import about_study, write_records
        from hace.paper import report_sections

        target = Path(out) if out is not None else self.study.folder / "report"
        return write_records(self._results, about_study(self.study), target, [report_sections])

    @property
    def summary(self) -> list[str]:
        """How many runs there are and where, and what to know of their searches; the errors of failed ones come last."""
        folder = self.study.folder
        failures = list(self.failures.values())
        lines = [f"{count(self.records)}: {folder}"]
        edges, searches = at_the_edge(self.records)
        if edges:
            lines.append(
                f"{edges:,} of {searches:,} searches end at the edge of their grid: other rates or decays, or a larger widen, "
                "may do better"
            )
        coarse = len(coarse_searches(self.records))
        if coarse:
            lines.append(
                f"{coarse:,} searches have a coarse grid: a rate between two of it would do better, by more than noise"
            )
        if failures:
            lines += [f"  {failure['error']}" for failure in failures[:ERRORS_SHOWN]]
            lines.append(f"{folder / FAILURES} has the errors; the same command tries again.")
        return lines

    @property
    def failed(self) -> bool:
        """Whether some runs have no result because they failed."""
        return bool(count(self.records).failed)


def _over_siblings(record: Record) -> float | None:
    """Top-1 over the test samples whose class shares its parent with another."""
    if record.status != "finished" or record.run is None:
        return None
    predictions = record.run.predictions()
    counted = has_siblings(record.run.hierarchy)[predictions["truth"]]
    right = predictions["answer"] == predictions["truth"]
    return float(right[counted].mean()) if counted.any() else None


def known_presets() -> dict[str, Preset]:
    """All presets: the paper's, and those that need nothing but hace."""
    from hace.paper.recipes import STUDIES

    return {**STUDIES, **PRESETS}
