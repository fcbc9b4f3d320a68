"""Read a data set and print its table: samples, classes, nodes, depth, beside what the paper prints, with footnotes where the
two differ. Lists and counts are compared with the files; --check also opens every image.

Examples:
  hace data synthetic                                       synthetic, needs no files
  hace data cifar100 --root data --download                 fetch it into data/, then print its table
  hace data aircraft --root data --check                    open every image, look for images in two splits
  hace data nabirds --root data/nabirds -o crop=true        your own copy, cropped to bounding boxes
  hace data folders --root photos --hierarchy tree.csv      train/husky/1.jpg, test/husky/2.jpg, ...
  hace data folders --root photos -o test=0.2               husky/1.jpg, ...: a fifth of each class is the test
  hace data manifest --root list.csv --hierarchy tree.csv   columns path, label, split
  hace data features --root f.npz --hierarchy tree.csv      arrays X, y, split
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hace.cli.options import Parser, add_dataset, dataset_of
from hace.errors import DataError

if TYPE_CHECKING:
    from hace.data import Dataset


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.option("name", "NAME", "cifar100, aircraft, nabirds, folders, manifest, features, synthetic, ...")
    add_dataset(parser)
    parser.flag("--check", "open every image, look for the same image in two splits")


def run(args: argparse.Namespace) -> None:
    """Load, print, and check if asked."""
    from hace.data import DATASETS
    from hace.paper.printed import data_text

    data = dataset_of(args.name, args)
    print(data_text(data, args.name))
    if "test" not in data.splits and "test" in DATASETS[args.name].options:
        print(
            "no test split: a study needs one. -o test=0.2 holds out a fifth of each class; give it to `hace features`, "
            "`hace train` and `hace study` too"
        )
    if args.check:
        print(f"\n{check(data, DATASETS[args.name].official)}")


def check(data: Dataset[Any], official: bool) -> str:
    """What opening every image shows."""
    from hace.data.dataset import Features, duplicates
    from hace.lab.runs.process import progress

    if any(isinstance(split, Features) for split in data.splits.values()):
        return f"fingerprint {data.fingerprint}"
    broken: list[DataError] = []
    total = sum(len(split) for split in data.splits.values())
    with progress("check", "images") as start:
        step = start(total, 0)
        for split in data.splits.values():
            for i in range(len(split)):
                try:
                    split.image(i)
                except DataError as error:
                    broken.append(error)
                step(1)
    if broken:
        raise DataError(
            f"Every image must be readable. {len(broken):,} of {total:,} are not. The first: {broken[0]}"
        )
    twice = duplicates(data.splits)
    if twice and not official:
        raise DataError(
            f"{data.name}: every image must be in one split. {len(twice):,} are in two; the first is {twice[0][0]!r} and "
            f"{twice[0][1]!r}. A test on training images says nothing."
        )
    note = f"; {len(twice):,} are in two splits, such as {twice[0][0]} and {twice[0][1]}" if twice else ""
    return f"all {total:,} images can be read{note}\nfingerprint {data.fingerprint}"
