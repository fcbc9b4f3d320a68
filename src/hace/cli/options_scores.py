"""Options that several commands share: files of scores and labels over a hierarchy, and which answers among which classes."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

import numpy as np

from hace.cli.options import Parser, add_option, reader_options
from hace.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from hace.formats.score_files import ScoreFile
    from hace.hierarchy import Hierarchy


def add_run_data(parser: Parser) -> None:
    """Declare where a run's data are, and where its model computes."""
    about = "where the run's data or features are now, if they were moved"
    parser.option("--data-root --features", "PATH", about, dest="data_root")
    parser.option("--device", "DEVICE", "device for a run of `hace train` (default: auto)", default="auto")


def add_subset(parser: Parser) -> None:
    """Declare --subset, for :func:`subset_of`."""
    about = "restrict to these classes: a file with one per line, or a,b,c; inner nodes mean all below"
    parser.option("--subset", "CLASSES", about)


def add_prior(parser: Parser) -> None:
    """Declare --prior, for :func:`prior_of`."""
    about = "how much likelier classes are here than in training: lines node,weight (0.1: a tenth as likely), or JSON"
    parser.option("--prior", "FILE", about)


def prior_of(path: str | None, h: Hierarchy) -> dict[str, float] | None:
    """The weights of --prior by the ids of nodes, which the file may call by their names."""
    from hace.files.documents import csv_rows, read_mapping
    from hace.files.reading import read_text
    from hace.hierarchy.names import known_names

    if path is None:
        return None
    if path.lower().endswith(".json"):
        rows = list(read_mapping(path).items())
    else:
        lines = [cells for _, cells in csv_rows(read_text(path), path, ",") if len(cells) == 2]
        rows = [(name.strip(), value.strip()) for name, value in lines]
        if rows and rows[0][1].lower() in ("weight", "prior"):
            rows = rows[1:]
    known, found = known_names(h), {}
    for name, value in rows:
        try:
            found[h.nodes[known[name]] if name in known else name] = float(value)
        except (TypeError, ValueError):
            raise DataError(f"{path}: every line must be node,weight. Got {value!r} for {name!r}.") from None
    if not found:
        raise DataError(f"{path}: must hold weights, one line node,weight each. Got none.")
    return found


def groups_of(args: argparse.Namespace, samples: int) -> np.ndarray | None:
    """The groups of the samples: the column --groups of the file --labels."""
    if args.groups is None:
        return None
    from hace.formats.score_files import read_values

    table = args.labels.lower().endswith(".csv")
    found, _ = read_values(args.labels, None if table else args.groups, args.groups if table else None)
    if len(found) != samples:
        raise DataError(
            f"--groups must name a group for each of {samples:,} samples. Got {len(found):,} in {args.labels}."
        )
    return found


def add_score_files(parser: Parser) -> None:
    """Declare the files of scores, labels and hierarchy, and how they are read."""
    add = parser.option
    add("--hierarchy", "FILE", "what `hace hierarchy` reads")
    add("--format", "FORMAT", "its format, if its name does not say")
    add_option(parser, "its reader")
    parser.flag("--root", "add a root above the tops, or remove it", either=True)
    add("--scores", "FILE", "scores: .npy, .npz, .csv or .parquet")
    add("--kind", ("logits", "probs"), "what the scores are (default: logits)", default="logits")
    about = (
        "what the columns are (default: by their number); paths: outputs of nodes that add up along each path"
    )
    add("--outputs", ("auto", "leaves", "nodes", "paths"), about, default="auto")
    add("--sharing", "S", "sharing of the loss, with --outputs paths (default: 1)", type=float)
    add("--key", "NAME", "the array to take from an .npz of scores")
    about = "a column, or a class of a list, that is left out (may repeat)"
    add("--ignore-column --ignore-columns", "NAME", about, action="append", default=[], dest="ignore_column")
    about = (
        "--scores holds a list of (class, score) pairs per sample; the rest of the probability is spread over the other "
        "classes, or stays at the root, unknown"
    )
    add("--rest", ("spread", "unknown"), about)
    add("--labels", "FILE", "the truth, one per sample: .npy, .npz, .csv or .txt")
    about = "the column or array of --labels that names each sample's group, such as its site; with --answers each is shown"
    add("--groups", "COLUMN", about)
    add("--label-kind", ("auto", "index", "id"), "labels are 0, 1, ... or ids", default="auto")
    about = "a larger hierarchy: a label that --hierarchy lacks counts as its closest ancestor there"
    add("--taxonomy", "FILE", about)
    add("--label-key", "NAME", "the array to take from an .npz of labels")
    add("--label-column", "NAME", "the column to take from a .csv of labels")


def read_truth(args: argparse.Namespace) -> tuple[Hierarchy, np.ndarray]:
    """The hierarchy of --hierarchy, and the nodes of --labels."""
    from hace.formats import read_hierarchy
    from hace.formats.score_files import read_values
    from hace.hierarchy.names import label_nodes, listed_ids

    h = read_hierarchy(args.hierarchy, args.format, root=args.root, **reader_options(args.option))
    values, lines = read_values(args.labels, args.label_key, args.label_column)
    if args.taxonomy is not None:
        values = listed_ids(values, h, read_hierarchy(args.taxonomy), args.labels)
        return h, label_nodes(values, h, "id", args.labels, lines=lines)
    return h, label_nodes(values, h, args.label_kind, args.labels, lines=lines)


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
    if args.rest is not None:
        from hace.formats.score_files import open_top_k

        args.kind = "probs"
        scores = open_top_k(path, h, args.rest, args.ignore_column)
    else:
        absent = 0.0 if args.kind == "probs" else float("-inf")
        about = {"key": args.key, "outputs": columns, "ignore_columns": args.ignore_column, "absent": absent}
        scores = open_scores(path, h, **about)
    if scores.rows != rows:
        raise DataError(
            f"{path} has {scores.rows:,} rows and {labels} has {rows:,} labels. There must be one label per row."
        )
    return scores


def nan_report(scores: ScoreFile, error: DataError) -> str:
    """The message about bad rows; where they are NaN, counted over the whole file instead of one chunk."""
    bad = [np.isnan(chunk).any(axis=1) for chunk in scores.chunks()]
    rows = np.flatnonzero(np.concatenate(bad))
    if not len(rows):  # the error counts rows from 0
        return re.sub(r"\brow (\d+)", lambda row: scores.place(int(row[1])), str(error))
    return (
        f"scores must not hold NaN. {len(rows):,} of {scores.rows:,} rows break this rule; the first is "
        f"{scores.place(int(rows[0]))}. Check the model that made them."
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


# ---------------------------------------------------------------------- answers


def threshold_of(text: str, h: Hierarchy) -> float | list[float]:
    """The value of --threshold: a probability, or one per level with commas."""
    from hace.decisions.threshold_rules import level_thresholds

    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--threshold must be a number, or one per level with commas. Got {text!r}."
        ) from None
    threshold = numbers[0] if len(numbers) == 1 else numbers
    level_thresholds(threshold, h)
    return threshold


def add_promise(parser: Parser) -> None:
    """Declare --accuracy and --of, for commands that answer with a calibrated model."""
    about = (
        "answer at the rank that keeps a promise on new samples, such as 0.95; needs `hace calibrate` first"
    )
    parser.option("--accuracy", "A", about, type=float)
    about = (
        "what the promise is about: at most 1 - A of all samples get a false answer (default), or of the answers that "
        "say something at least A are true"
    )
    parser.option("--of", ("samples", "answers"), about)


def promise_of(args: argparse.Namespace) -> tuple[float, str] | None:
    """The values of --accuracy and --of; None without --accuracy."""
    if args.accuracy is None:
        if args.of is not None:
            raise ConfigError(f"--of must come with --accuracy. Got --of {args.of} alone.")
        return None
    if not 0 < args.accuracy < 1:
        raise ConfigError(f"--accuracy must be above 0 and below 1. Got {args.accuracy:g}.")
    return args.accuracy, args.of or "samples"


def level_of(text: str) -> int | str:
    """A level as a depth where it is written as one, otherwise as a name."""
    return int(text) if text.isdecimal() else text


def level_index_of(text: str, h: Hierarchy) -> int:
    """The depth of --level, on a tree or forest."""
    from hace.decisions.scores import level_numbers

    level_numbers(h)
    return h.level_index(level_of(text))


def subset_of(text: str, h: Hierarchy) -> list[str]:
    """The classes of --subset: the lines of a file, or words with commas; an inner node means all classes below it."""
    from hace.decisions.scores import subset_leaves
    from hace.files.reading import is_file
    from hace.formats.score_files import read_list
    from hace.hierarchy.names import known_names

    words, known = read_list(text), known_names(h)
    unknown = [word for word in words if word not in known]
    if unknown and not is_file(text):
        raise DataError(
            f"--subset must name a file or classes. There is no file {text!r}, and the hierarchy has no class "
            f"{unknown[0]!r}.{nearest(unknown[0], known)}"
        )
    return subset_leaves(h, [h.nodes[known[w]] if w in known else w for w in words])
