"""Run a study: every experiment of the paper, its fair counterpart, the controls, or the same on your own data. Finished runs
are never repeated: if it is stopped or killed, the same command resumes where it stopped.

Examples:
  hace study --list                                      the studies
  hace study demo --out demo --workers 2                 two questions about animals, in two minutes
  hace study paper-probe fair-probe controls --features cifar100=F --out S
                                                         several in one report
  hace study fair-probe --features cifar100=F --out S    F: a folder of `hace features`
  hace study fair-probe --features birds=birds.npz --hierarchy birds=taxonomy.csv --out S
  hace study fair-probe --features birds=birds.npz --methods sce,hace:dilution=0.3 --out S
  hace study paper-end-to-end --data-root cifar100=data --only dataset=cifar100 model=resnet18 --out S --dry-run
  hace study fair-end-to-end --data-root aircraft=data --executor slurm --partition gpu --gpus 1 --hours 8 --out S
  hace study fair-end-to-end --data-root birds=photos -o test=0.2 --models resnet50 --out S
                                                         your photos; a fifth of each class is the test
  hace study mixed-labels --out S                        coarse labels: use or drop them? synthetic features
  hace study mixed-labels --features birds=birds.npz --hierarchy birds=taxonomy.csv --shares 0,80 --out S
  hace study controls --features nabirds=F --executor ray --address 10.0.0.1:6379 --out S

Then: hace report S. Studies with the same --runs share their runs. On a cluster, the study and the data must be visible to
all machines, at the same path. Exit code 1: some runs failed; the others are done, and the same command tries again.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from hace.cli.options_study import add_fields, add_run_arguments, given, run_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    from hace.study import Study

    parser.add_argument("preset", metavar="PRESET", nargs="*", help="one or more studies; see --list")
    parser.add_argument("--list", action="store_true", help="show the studies and what they assume")
    add_run_arguments(parser)
    add_fields(parser.add_argument_group("what"), Study, skip=("preset", "out", "runs"))


def run(args: argparse.Namespace) -> None:
    """Plan, check what is done, and run the rest."""
    if args.list:
        return print_presets()
    from hace.study import Study

    results = run_study(Study(**given(args, Study)), args)
    if results is not None:
        print(f"Its page: hace report {shlex.quote(str(results.study.folder))}", file=sys.stderr)
        if results.failed:
            sys.exit(1)


def print_presets() -> None:
    """Print the studies, and what they assume where the paper is silent."""
    from hace.paper import ASSUMPTIONS
    from hace.study import known_presets

    for name, preset in known_presets().items():
        print(f"{name:<18} {preset.title}")
        print(
            f"{'':<18} {', '.join(preset.datasets)}; methods {', '.join(preset.methods)}; seeds {preset.seeds}"
        )
    print("\nAssumptions where the paper says nothing:")
    for assumption in ASSUMPTIONS:
        print(f"- {assumption}")
