"""Options that several commands share: files of scores and labels over a hierarchy."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np

from hace.cli.options import reader_options
from hace.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hace.formats.score_files import ScoreFile
    from hace.hierarchy import Hierarchy


def add_score_files(parser: argparse.ArgumentParser) -> None:
    """Declare the files of scores, labels and hierarchy, and how they are read."""
    add = parser.add_argument
    add("--hierarchy", metavar="FILE", help="what `hace hierarchy` reads")
    add("--format", metavar="FORMAT", help="its format, if its name does not say")
    add("-o", "--option", metavar="NAME=VALUE", action="append", default=[], help="an option of its reader")
    add("--root", action=argparse.BooleanOptionalAction, help="add a root above the tops, or remove it")
    add("--scores", metavar="FILE", help="scores: .npy, .npz, .csv or .parquet")
    add("--kind", choices=("logits", "probs"), default="logits", help="what the scores are (default: logits)")
    add(
        "--outputs",
        choices=("auto", "leaves", "nodes", "paths"),
        default="auto",
        help="what the columns are (default: auto, by their number); paths: outputs of nodes that add up along each path",
    )
    add("--sharing", metavar="S", type=float, help="sharing of the loss, with --outputs paths (default: 1)")
    add("--key", metavar="NAME", help="the array to take from an .npz of scores")
    add("--ignore-column", metavar="NAME", action="append", default=[], help="a column that holds no scores")
    add("--labels", metavar="FILE", help="the truth, one per sample: .npy, .npz, .csv or .txt")
    add("--label-kind", choices=("auto", "index", "id"), default="auto", help="labels are 0, 1, ... or ids")
    add("--label-key", metavar="NAME", help="the array to take from an .npz of labels")
    add("--label-column", metavar="NAME", help="the column to take from a .csv of labels")


def read_truth(args: argparse.Namespace) -> tuple[Hierarchy, np.ndarray]:
    """The hierarchy of --hierarchy, and the nodes of --labels."""
    from hace.formats import read_hierarchy
    from hace.formats.label_files import read_values
    from hace.hierarchy.names import label_nodes

    h = read_hierarchy(args.hierarchy, args.format, root=args.root, **reader_options(args.option))
    values = read_values(args.labels, args.label_key, args.label_column)
    return h, label_nodes(values, h, args.label_kind, args.labels)


def path_sharing(args: argparse.Namespace) -> float | None:
    """The sharing of path sums; None where columns are what they are."""
    if args.outputs == "paths":
        if args.kind != "logits":
            raise ConfigError(f"--kind must be logits with --outputs paths. Got {args.kind}.")
        return 1.0 if args.sharing is None else args.sharing
    if args.sharing is not None:
        raise ConfigError(f"--sharing must come with --outputs paths. Got --outputs {args.outputs}.")
    return None


def scores_of(path: str, rows: int, labels: str, h: Hierarchy, args: argparse.Namespace) -> ScoreFile:
    """A file of scores, opened, with as many rows as there are labels."""
    from hace.formats.score_files import open_scores

    columns = "nodes" if args.outputs == "paths" else args.outputs
    scores = open_scores(path, h, key=args.key, outputs=columns, ignore_columns=args.ignore_column)
    if scores.rows != rows:
        raise DataError(
            f"{path} has {scores.rows:,} rows and {labels} has {rows:,} labels. There must be one label per row."
        )
    return scores


def whole_story(scores: ScoreFile, error: DataError) -> str:
    """The message about bad rows; where they are NaN, counted over the whole file instead of one chunk."""
    bad = [np.isnan(chunk).any(axis=1) for chunk in scores.chunks()]
    rows = np.flatnonzero(np.concatenate(bad))
    if not len(rows):
        return str(error)
    return (
        f"scores must not hold NaN. {len(rows):,} of {scores.rows:,} rows break this rule; the first is row {rows[0]}. "
        "Check the model that made them."
    )


def like_probabilities(chunk: np.ndarray) -> bool:
    """Whether all rows are in [0, 1] and sum to 1 within rounding; a single column is inconclusive."""
    if chunk.shape[1] < 2 or chunk.min(initial=0) < 0 or chunk.max(initial=0) > 1:
        return False
    return bool(np.allclose(chunk.sum(axis=1, dtype=np.float64), 1, rtol=0, atol=1e-3))


def warn_of_probabilities(scores: ScoreFile) -> None:
    """Say that a file read as logits seems to hold probabilities."""
    print(
        f"hace: warning: {scores.path}: read as logits, but every row looks like probabilities (from 0 to 1, with sum 1). If "
        "that is what they are, say --kind probs.",
        file=sys.stderr,
    )
