"""`hace study`: a whole comparison, from grid to finished runs, anywhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hace.cli.options import numbers
from hace.errors import ConfigError

SHOWN = 5  # errors at the end

if TYPE_CHECKING:
    from hace.lab.study.jobs import Resources
    from hace.lab.study.plans import Choices, StudyPlan
    from hace.lab.study.presets import Preset
    from hace.lab.study.scheduler import Tally, Wanted
    from hace.lab.study.start import Survey
    from hace.lab.study.study import Study

DESCRIPTION = """\
Run a study: every experiment of the paper, its fair counterpart, the controls, or the same on your own data. Finished runs
are never repeated: stopped or killed at any point, the same command goes on where it was.
"""

EXAMPLES = """\
examples:
  hace study --list                                      the studies
  hace study demo --out demo --workers 2                 synthetic features, in two minutes
  hace study paper-probe fair-probe controls --features cifar100=F --out S
                                                         several in one report
  hace study fair-probe --features cifar100=F --out S    F: a folder of `hace features`
  hace study fair-probe --features birds=birds.npz --hierarchy birds=taxonomy.csv --out S
  hace study paper-end-to-end --data-root cifar100=data --only dataset=cifar100 model=resnet18 --out S --dry-run
  hace study fair-end-to-end --data-root aircraft=data --executor slurm --partition gpu --gpus 1 --hours 8 --out S
  hace study controls --features nabirds=F --executor ray --address 10.0.0.1:6379 --out S

Then: hace report S. Studies with the same --runs share their runs. On a cluster, the study and the data must be visible to
all machines, at the same path. Exit code 1: some runs failed; the others are done, and the same command tries again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("preset", metavar="PRESET", nargs="*", help="one or more studies; see --list")
    parser.add_argument("--list", action="store_true", help="show the studies and what they assume")
    add_study_arguments(parser, "--out", None)

    what = parser.add_argument_group("what")
    pair = {"action": "append", "default": []}
    what.add_argument("--features", metavar="NAME=F", help="features of a data set: folder or file", **pair)
    what.add_argument(
        "--data-root", metavar="NAME=R", help="images of a data set: folder or manifest", **pair
    )
    what.add_argument("--hierarchy", metavar="NAME=H", help="another hierarchy for a data set", **pair)
    what.add_argument(
        "--only",
        metavar="KEY=V,...",
        nargs="+",
        action="extend",
        default=[],
        help="a part: method=hace,sce dataset=cifar100 model=... dilution=... pairing=... seed=...",
    )
    what.add_argument("--methods", metavar="M,...", help="methods, instead of the study's")
    what.add_argument("--rates", metavar="R,...", help="learning rates, instead of a fair study's")
    what.add_argument("--seeds", metavar="K", type=int, help="number of seeds, instead of the study's")
    what.add_argument(
        "--set",
        metavar="NAME=V",
        nargs="+",
        action="extend",
        default=[],
        help="any other setting of all runs: batch_size=64 precision=bf16 workers=8",
    )
    what.add_argument(
        "--epochs-scale", metavar="X", type=float, default=1.0, help="multiply the epochs of every run"
    )


def add_study_arguments(parser: argparse.ArgumentParser, out: str, default: str | None) -> None:
    """Declare where a study goes and how it runs."""
    how = parser.add_argument_group("how")
    how.add_argument(
        out, metavar="STUDY", default=default, help=f"its folder{f' (default: {default})' if default else ''}"
    )
    how.add_argument("--runs", metavar="DIR", help="folder of run directories (default: STUDY/runs)")
    how.add_argument(
        "--dry-run", action="store_true", help="show what would run, and about how long it takes"
    )
    how.add_argument("--update", action="store_true", help="go on although the study has changed")
    how.add_argument("--executor", metavar="E", default="local", help="local, ray or slurm (default: local)")
    how.add_argument(
        "--workers", metavar="N", type=int, help="processes (local, ray), or jobs in SLURM's queue"
    )
    how.add_argument(
        "--threads", metavar="N", type=int, default=1, help="threads per run; 1 makes runs repeat bit by bit"
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


def run(args: argparse.Namespace) -> None:
    """Plan, see what is there, and do the rest."""
    if args.list:
        return print_presets()
    if not args.preset:
        raise ConfigError("hace study needs the name of a study. `hace study --list` shows them.")
    from hace.lab.study.plans import Choices, Locations, pairs

    place = Locations(
        pairs(args.features, "--features"),
        pairs(args.data_root, "--data-root"),
        pairs(args.hierarchy, "--hierarchy"),
    )
    methods = None if args.methods is None else tuple(args.methods.split(","))
    choices = Choices(
        place,
        pairs(args.only, "--only"),
        methods,
        rates(args.rates),
        args.seeds,
        args.epochs_scale,
        numbers(pairs(args.set, "--set")),
    )
    tally = do_study(args.preset, choices, args)
    if tally is not None and tally.sum("failed"):
        sys.exit(1)


def do_study(presets: Sequence[str], choices: Choices, args: argparse.Namespace) -> Tally | None:
    """Start or continue a study; a dry run shows what would run."""
    from hace.lab.study.plans import make_plan
    from hace.lab.study.presets import find_presets
    from hace.lab.study.start import Survey, started_study

    check(args)
    plan = make_plan(find_presets(presets, studies()), choices, absent=args.dry_run)
    survey = Survey(plan.data)
    for note in survey.notes():
        print(note, file=sys.stderr)
    say_skipped(plan)
    if args.dry_run:
        return show_plan(plan, choices, survey, args)
    with started_study(args.out, plan, choices, survey, runs=args.runs, update=args.update) as study:
        return work(study, survey, args)


def work(study: Study, survey: Survey, args: argparse.Namespace) -> Tally:
    """Make what is missing, and report how it went."""
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
            words = f"Stopped: {summary(scheduler.tally)}. The same command goes on from there."
            print(f"\n{words}", file=sys.stderr)
            number = stop.number if isinstance(stop, Stopped) else ear.heard
            if number:
                raise SystemExit(128 + number) from None
            raise
    tally = scheduler.tally
    print(f"{summary(tally)}: {study.folder}")
    if tally.edges:
        print(
            f"{tally.edges:,} of {tally.searches:,} searches chose the smallest or largest rate: wider --rates may do better"
        )
    if tally.sum("failed"):
        for failure in list(scheduler.failures.values())[:SHOWN]:
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


def studies() -> dict[str, Preset]:
    """The studies of this command: the paper's, and those that need nothing but hace."""
    from hace.lab.study.presets import PRESETS
    from hace.paper.studies import STUDIES

    return {**STUDIES, **PRESETS}


def print_presets() -> None:
    """Print the studies, and what they assume where the paper is silent."""
    from hace.paper import ASSUMPTIONS

    for name, preset in studies().items():
        print(f"{name:<18} {preset.title}")
        print(
            f"{'':<18} {', '.join(preset.datasets)}; methods {', '.join(preset.methods)}; seeds {preset.seeds}"
        )
    print("\nAssumptions where the paper says nothing:")
    for assumption in ASSUMPTIONS:
        print(f"- {assumption}")


def say_skipped(plan: StudyPlan) -> None:
    """Name the study's data sets that have no path, unless the study is on data of the user's own."""
    known = {name for preset in studies().values() for name in preset.datasets}
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


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is loaded."""
    if args.out is None:
        raise ConfigError("hace study needs a folder for its results: --out STUDY.")
    if args.retries < 0:
        raise ConfigError(f"--retries must be 0 or more. Got {args.retries}.")
    if args.threads < 1:
        raise ConfigError(f"--threads must be at least 1. Got {args.threads}.")
    resources_of(args, Path(args.out))


def rates(text: str | None) -> tuple[float, ...] | None:
    """Learning rates from the command line."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--rates must be numbers with commas between them. Got {text!r}.") from None
