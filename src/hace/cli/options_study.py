"""What commands that run a study share: the options, and the way from a plan to finished runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.lab.study.jobs import Resources
    from hace.lab.study.plans import Choices, StudyPlan
    from hace.lab.study.presets import Preset
    from hace.lab.study.scheduler import Wanted
    from hace.lab.study.start import Survey
    from hace.lab.study.study import Study
    from hace.lab.study.tally import Tally

ERRORS_SHOWN = 5  # at the end; failures.json has them all


def add_study_arguments(parser: argparse.ArgumentParser, out: str, default: str | None) -> None:
    """Declare where a study goes and how it runs."""
    how = parser.add_argument_group("how")
    how.add_argument(
        out,
        metavar="STUDY",
        default=default,
        help=f"folder of the study{f' (default: {default})' if default else ''}",
    )
    how.add_argument("--runs", metavar="DIR", help="folder of run directories (default: STUDY/runs)")
    how.add_argument(
        "--dry-run", action="store_true", help="show what would run, and about how long it takes"
    )
    how.add_argument("--update", action="store_true", help="continue even if the study has changed")
    how.add_argument("--executor", metavar="E", default="local", help="local, ray or slurm (default: local)")
    how.add_argument(
        "--workers", metavar="N", type=int, help="processes (local, ray), or jobs in SLURM's queue"
    )
    how.add_argument(
        "--threads", metavar="N", type=int, default=1, help="threads per run; with 1, runs repeat bit for bit"
    )
    how.add_argument(
        "--retries", metavar="N", type=int, default=1, help="retries of a failed run (default: 1)"
    )

    cluster = parser.add_argument_group("on a cluster")
    cluster.add_argument("--cpus", metavar="N", type=int, help="processors per run (default: 1)")
    cluster.add_argument(
        "--gpus",
        metavar="X",
        type=float,
        help="GPUs per run (default: 0); 0.5: two runs share one; on SLURM 4: a training on four",
    )
    cluster.add_argument("--address", metavar="A", help="Ray: a running cluster (default: start one here)")
    cluster.add_argument("--partition", metavar="P", help="SLURM: partition")
    cluster.add_argument("--account", metavar="A", help="SLURM: account")
    cluster.add_argument("--qos", metavar="Q", help="SLURM: quality of service")
    cluster.add_argument("--constraint", metavar="C", help="SLURM: features that a node must have")
    cluster.add_argument("--memory", metavar="GB", type=float, help="SLURM: gigabytes per run")
    cluster.add_argument("--nodes", metavar="N", type=int, help="SLURM: nodes per training (default: 1)")
    cluster.add_argument("--hours", metavar="H", type=float, help="SLURM: time limit of a job (default: 24)")
    cluster.add_argument(
        "--setup", metavar="LINE", action="append", help="SLURM: shell line that a job runs first; repeatable"
    )


def do_study(presets: Mapping[str, Preset], choices: Choices, args: argparse.Namespace) -> Tally | None:
    """Start or continue a study; a dry run shows what would run, and returns None."""
    from hace.lab.study.plans import make_plan
    from hace.lab.study.start import Survey, locked_study, start_study

    check_study_options(args)
    plan = make_plan(presets, choices, absent=args.dry_run)
    survey = Survey(plan.data)
    plan = survey.asked(plan)
    if not plan.cells:
        raise ConfigError(
            "A study must have at least one run. Got none: with all labels known there is nothing to drop, and labels that are "
            "coarse already are not made coarser. Change --methods, --shares or --only."
        )
    for note in survey.notes():
        print(note, file=sys.stderr)
    say_skipped(plan, presets)
    if args.dry_run:
        return show_plan(plan, choices, survey, args)
    with locked_study(args.out, survey):
        study = start_study(args.out, plan, choices, survey, runs=args.runs, update=args.update)
        return work(study, survey, args)


def work(study: Study, survey: Survey, args: argparse.Namespace) -> Tally:
    """Run what is missing, and report the outcome."""
    from hace.lab.runs.stopping import Stopped, ending
    from hace.lab.study.executors import find_executor
    from hace.lab.study.scheduler import Scheduler
    from hace.lab.study.study import FAILURES
    from hace.lab.study.view import summary, watching

    resources = resources_of(args, study.folder)
    with ending() as ear, watching() as watch:
        scheduler = Scheduler(study, survey.sources, retries=args.retries, threads=args.threads, watch=watch)
        missing = scheduler.missing()
        try:
            if missing:
                if (
                    args.executor != "local"
                    and not resources.gpus
                    and any(trains_anywhere(w) for w in missing)
                ):
                    print(
                        "trainings run on processors: --gpus is 0. Give --gpus 1 for a GPU each.",
                        file=sys.stderr,
                    )
                with find_executor(args.executor).make(resources) as executor:
                    scheduler.run(executor)
        except KeyboardInterrupt as stop:
            words = f"Stopped: {summary(scheduler.tally)}. The same command resumes from there."
            print(f"\n{words}", file=sys.stderr)
            number = stop.number if isinstance(stop, Stopped) else ear.heard
            if number:
                raise SystemExit(128 + number) from None
            raise
    tally = scheduler.tally
    print(f"{summary(tally)}: {study.folder}")
    if tally.edges:
        print(
            f"{tally.edges:,} of {tally.searches:,} searches end at the edge of their grid: other --rates or --decays, or a "
            "larger --widen, may do better"
        )
    if tally.sum("failed"):
        for failure in list(scheduler.failures.values())[:ERRORS_SHOWN]:
            print(f"  {failure['error']}", file=sys.stderr)
        print(f"{study.folder / FAILURES} has the errors; the same command tries again.", file=sys.stderr)
    return tally


def show_plan(plan: StudyPlan, choices: Choices, survey: Survey, args: argparse.Namespace) -> None:
    """Show what would run: runs by method, those that are done, and about how long the rest takes."""
    from hace.lab.runs.progress import duration
    from hace.lab.study.cost import RULE, whats_left
    from hace.lab.study.start import draft
    from hace.lab.study.study import STUDY, Study, read_study

    for name, problem in survey.problems.items():
        print(f"{name}: not counted, cannot be used: {problem}")
    cells = [cell for cell in plan.cells if (cell.key.dataset, cell.config.kind) in survey.usable]
    if not cells:
        raise ConfigError(
            "hace study --dry-run must have data to count. Got none that can be used, see above."
        )
    folder = Path(args.out)
    study = Study(folder, draft(plan._replace(cells=cells), choices, survey, args.runs))
    if (folder / STUDY).is_file() and args.runs is None:
        study = Study(folder, {**study.document, "runs": read_study(folder).document["runs"]})
    configs = {(c.key.dataset, c.key.model, c.key.method): c.config for c in cells}
    left = whats_left(study.records(), configs, study.sets)
    print(f"{'data set':<14} {'model':<14} {'method':<20} {'runs':>6} {'done':>6}  time, one after another")
    for (dataset, model, method), part in left.items():
        time = duration(part.seconds) + ("" if part.measured else " (rough)")
        print(f"{dataset:<14} {model:<14} {method:<20} {part.runs:>6,} {part.done:>6,}  {time}")
    total, done = sum(p.runs for p in left.values()), sum(p.done for p in left.values())
    seconds = sum(part.seconds for part in left.values())
    print(f"{len(cells):,} cells, {total:,} runs, {done:,} done; the rest takes about {duration(seconds)}")
    if not all(part.measured for part in left.values()):
        print(f"rough: {RULE}; runs that share a pass are faster")


def say_skipped(plan: StudyPlan, presets: Mapping[str, Preset]) -> None:
    """Name the study's data sets that have no path, unless the user gave other data."""
    known = {name for preset in presets.values() for name in preset.datasets}
    if not plan.missing or any(name not in known for name, _ in plan.data):
        return
    given = any(config.root is not None for config in plan.data.values())
    how = "skipped" if given else "counted at their published size"
    print(f"{how}: no path given for {', '.join(plan.missing)}", file=sys.stderr)


def trains_anywhere(wanted: Wanted) -> bool:
    """Whether a run is a training that takes whatever device there is."""
    return getattr(wanted.config, "device", None) == "auto" and wanted.config.kind == "train"


def resources_of(args: argparse.Namespace, folder: Path) -> Resources:
    """What the user gives the executor."""
    from hace.lab.study.executors import EXECUTORS, resources_for

    names = {name for entry in EXECUTORS.values() for name in entry.options}
    given = {name: getattr(args, name) for name in sorted(names)}
    given["setup"] = given["setup"] and tuple(given["setup"])
    return resources_for(args.executor, given, folder / "jobs")


def check_study_options(args: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is loaded."""
    if args.out is None:
        raise ConfigError("hace study needs a folder for its results: --out STUDY.")
    if args.retries < 0:
        raise ConfigError(f"--retries must be 0 or more. Got {args.retries}.")
    if args.threads < 1:
        raise ConfigError(f"--threads must be at least 1. Got {args.threads}.")
    resources_of(args, Path(args.out))
