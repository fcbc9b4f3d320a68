"""`hace study`: a whole comparison, from grid to finished runs, anywhere."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from hace.cli.options import numbers, reader_options
from hace.cli.options_study import add_study_arguments, do_study
from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.lab.study.presets import Preset

DESCRIPTION = """\
Run a study: every experiment of the paper, its fair counterpart, the controls, or the same on your own data. Finished runs
are never repeated: if it is stopped or killed, the same command resumes where it stopped.
"""

EXAMPLES = """\
examples:
  hace study --list                                      the studies
  hace study demo --out demo --workers 2                 two questions about animals, in two minutes
  hace study paper-probe fair-probe controls --features cifar100=F --out S
                                                         several in one report
  hace study fair-probe --features cifar100=F --out S    F: a folder of `hace features`
  hace study fair-probe --features birds=birds.npz --hierarchy birds=taxonomy.csv --out S
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
        "-o",
        "--option",
        metavar="[NAME.]O=V",
        help="an option of the data, such as test=0.2 or birds.test=0.2",
        **pair,
    )
    what.add_argument(
        "--only",
        metavar="KEY=V,...",
        nargs="+",
        action="extend",
        default=[],
        help="a part: method=hace,sce dataset=cifar100 model=... dilution=... pairing=... seed=...",
    )
    what.add_argument("--methods", metavar="M,...", help="methods, instead of the study's")
    what.add_argument(
        "--models", metavar="M,...", help="architectures to train, instead of the study's: any timm name"
    )
    what.add_argument("--rates", metavar="R,...", help="learning rates, instead of a fair study's")
    what.add_argument(
        "--decays", metavar="D,...", help="weight decays to search with every rate, instead of a fair study's"
    )
    what.add_argument(
        "--widen",
        metavar="N",
        type=int,
        help="rates to add on each side, for all methods, while any of them picks the edge (default: 2; 0: none)",
    )
    what.add_argument(
        "--search-once",
        action="store_true",
        help="choose rates at the first seed for all seeds (default: every seed chooses); half the runs, or less",
    )
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

    labels = parser.add_argument_group("what is known of the training labels")
    labels.add_argument(
        "--shares",
        metavar="P,...",
        help="mixed-labels: percent known only coarsely; noisy-labels: percent wrong",
    )
    labels.add_argument("--fine", metavar="K,...", help="low-shot: known labels per class")
    labels.add_argument(
        "--coarse-to",
        metavar="TO",
        help="level of coarse labels: parent (default), top, or a level by number or name",
    )


def run(args: argparse.Namespace) -> None:
    """Plan, check what is done, and run the rest."""
    if args.list:
        return print_presets()
    if not args.preset:
        raise ConfigError("hace study needs the name of a study. `hace study --list` shows them.")
    from hace.lab.study.locations import Locations, pairs
    from hace.lab.study.plans import Choices
    from hace.lab.study.presets import find_presets

    place = Locations(
        pairs(args.features, "--features"),
        pairs(args.data_root, "--data-root"),
        pairs(args.hierarchy, "--hierarchy"),
        data_options(args.option),
    )
    shares = listed_numbers("--shares", args.shares)
    fine = listed_numbers("--fine", args.fine)
    choices = Choices(
        place,
        pairs(args.only, "--only"),
        methods=None if args.methods is None else tuple(args.methods.split(",")),
        models=None if args.models is None else tuple(args.models.split(",")),
        rates=listed_numbers("--rates", args.rates),
        decays=listed_numbers("--decays", args.decays),
        widen=args.widen,
        search_once=args.search_once,
        shares=shares and tuple(share / 100 for share in shares),
        fine=fine and tuple(int(k) if k.is_integer() else k for k in fine),  # pyright: ignore[reportArgumentType]
        coarse_to=args.coarse_to,
        seeds=args.seeds,
        epochs_scale=args.epochs_scale,
        settings=numbers(pairs(args.set, "--set")),
    )
    tally = do_study(find_presets(args.preset, studies()), choices, args)
    if tally is None:
        return
    print(f"Its page: hace report {shlex.quote(str(args.out))}", file=sys.stderr)
    if tally.sum("failed"):
        sys.exit(1)


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


def data_options(words: list[str]) -> dict[str, Any]:
    """Options of the data: of all data sets, or of one that is named before a dot.

    Args:
        words: Such as "test=0.2" or "birds.test=0.2".

    Example:
        >>> data_options(["test=0.2", "birds.allow_empty=true"])
        {'test': 0.2, 'birds.allow_empty': True}
    """
    found: dict[str, Any] = {}
    for word in words:
        owner = "".join(word.partition("=")[0].rpartition(".")[:2])
        options = numbers(reader_options([word.removeprefix(owner)], "-o"))
        found |= {f"{owner}{name}": value for name, value in options.items()}
    return found


def listed_numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Numbers from the command line, such as "0.5,1"."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} must be numbers with commas between them. Got {text!r}.") from None
