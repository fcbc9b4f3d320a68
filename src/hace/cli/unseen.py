"""If something new appears, what does a model say? Whole classes are left out of training, and heads and rules are compared on
them, at equal accuracy on the classes they know.

Examples:
  hace unseen --features birds.npz --hierarchy taxonomy.csv --leave-out 40
  hace unseen --features birds.npz --hierarchy taxonomy.csv --leave-out 0.2 --whole-groups --draws 3 --seeds 2
  hace unseen --features birds.npz --hierarchy taxonomy.csv --guarantee 0.9 --page unseen.html
  hace unseen --features F --leave-out new-species.txt --methods cross-entropy,leave-one-out --out rows.csv

The features need a test split with samples of all classes. A class is left out only where a sister under the same parent stays.
An answer is true if it is an ancestor of the class (the root says nothing), exact if it is the closest listed one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hace.cli.options import Parser, add_option, numbers, reader_options
from hace.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("--features", "F", "a file of features, or a folder that `hace features` wrote", required=True)
    add("--hierarchy", "H", "the taxonomy, for a file: what `hace hierarchy` reads")
    add("--leave-out", "K", "how many classes, a share, or a file of ids (default: 0.2)", default="0.2")
    parser.flag("--whole-groups", "leave out whole groups of classes")
    add("--outside", "F", "features of samples that belong to no class at all: what is said about them")
    add(
        "--guarantee", "P", "set a threshold: P of the samples of new classes get no false answer", type=float
    )
    add("--draws", "N", "draws of classes (default: 5)", type=int, default=5)
    add("--seeds", "N", "heads per draw (default: 5)", type=int, default=5)
    add("--epochs", "N", "passes over the training samples (default: 30)", type=int, default=30)
    add("--methods", "A,B", "methods to compare (default: all)")
    add("--out", "FILE", "write every draw, seed, method and operating point as CSV")
    add("--page", "FILE", "write a page: the card, the curves of all methods, and how to read them")
    add_option(parser)


def run(args: argparse.Namespace) -> None:
    """Leave out, train, print a table."""
    from hace.data.feature_files import feature_parts
    from hace.formats.score_files import read_list
    from hace.lab.runs.config import DataConfig
    from hace.lab.runs.samples import data_of
    from hace.linear.unseen_classes import METHODS, Rows, UnseenStudy, card, write_rows

    options = numbers(reader_options(args.option))
    data = data_of(DataConfig("features", args.features, hierarchy=args.hierarchy, options=options))
    parts = {name: (data[name].x, data.hierarchy.labels[data[name].nodes]) for name in ("train", "test")}
    if any((y < 0).any() for _, y in parts.values()):
        raise ConfigError("labels must be classes for hace unseen. Some are inner nodes.")
    try:
        left: float | list[str] = float(args.leave_out)
    except ValueError:
        left = read_list(args.leave_out)
    outside = None if args.outside is None else list(feature_parts(Path(args.outside)).values())[-1]
    how = {"draws": args.draws if isinstance(left, float) else 1, "groups": args.whole_groups}
    how |= {"seeds": args.seeds, "epochs": args.epochs, "outside": outside, "guarantee": args.guarantee}
    methods = tuple(METHODS) if args.methods is None else tuple(args.methods.split(","))
    study = UnseenStudy(data.hierarchy, parts["train"], parts["test"], left, methods=methods, **how)

    def report(text: str, rows: Rows) -> None:
        print(text, file=sys.stderr, flush=True)
        if args.out is not None:
            write_rows(rows, Path(args.out))

    rows = study.run(report)
    if args.page is not None:
        from hace.lab.report.unseen_page import write_unseen_page

        write_unseen_page(rows, args.features, Path(args.page))
    print(card(rows))
