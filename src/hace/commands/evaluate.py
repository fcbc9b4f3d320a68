"""`hace evaluate`: all metrics of anybody's scores."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.commands.evaluate_folder import check_out, write_results
from hace.commands.hierarchy import reader_options
from hace.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy
    from hace.report import Report
    from hace.score_files import ScoreFile

DESCRIPTION = """\
Evaluate the scores of any model, from any framework: accuracy by level, severity of mistakes, hierarchical precision and
recall, calibration, operating curves, and where mistakes go. With --out, a folder of JSON, CSV and pictures as well.
"""

EXAMPLES = """\
examples:
  hace evaluate --hierarchy tree.csv --scores logits.npy --labels y.npy
  hace evaluate --hierarchy tree.csv --scores probs.parquet --kind probs --labels y.csv --out results
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --threshold 0.9 --level family
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --subset species_of_bavaria.txt
  hace evaluate --hierarchy tree.csv --scores a.npy --compare b.npy --labels y.npy

scores have a column for each leaf (label order) or each node (node order). Named columns (.csv, .parquet) may stand in any
order; they are matched by id, then by name. labels are integers from 0, or ids or names; inner nodes are allowed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--hierarchy", metavar="FILE", required=True, help="what `hace hierarchy` reads")
    add("--format", metavar="FORMAT", help="how to read the hierarchy, where its name does not tell")
    add("-o", "--option", metavar="NAME=VALUE", action="append", default=[], help="an option of its reader")
    add("--root", action=argparse.BooleanOptionalAction, help="add a root above the tops, or take it away")
    add("--scores", metavar="FILE", required=True, help="scores: .npy, .npz, .csv or .parquet")
    add("--kind", choices=("logits", "probs"), default="logits", help="what the scores are (default: logits)")
    add(
        "--outputs",
        choices=("auto", "leaves", "nodes"),
        default="auto",
        help="what the columns are (default: auto)",
    )
    add("--key", metavar="NAME", help="the array to take from an .npz of scores")
    add("--ignore-column", metavar="NAME", action="append", default=[], help="a column that holds no scores")
    add("--labels", metavar="FILE", required=True, help="the truth, a row a sample: .npy, .npz, .csv or .txt")
    add("--label-kind", choices=("auto", "index", "id"), default="auto", help="labels are 0, 1, ... or ids")
    add("--label-key", metavar="NAME", help="the array to take from an .npz of labels")
    add("--label-column", metavar="NAME", help="the column to take from a .csv of labels")
    add(
        "--distance",
        choices=("lca_height", "lca_depth", "edges"),
        default="lca_height",
        help="of severity and costs",
    )
    add(
        "--threshold",
        metavar="T",
        help="evaluate the deepest node above a probability: 0.9, or one a level: 0.9,0.8",
    )
    add(
        "--level",
        metavar="LEVEL",
        help="evaluate the best node of a level, by depth or name, and its classes",
    )
    add(
        "--price",
        metavar="P",
        type=float,
        help="what vagueness costs in the answer of least cost (default: 0.5)",
    )
    add("--subset", metavar="CLASSES", help="only these classes can be: a file, one a line, or a,b,c")
    add("--compare", metavar="FILE", help="scores of a second model on the same samples")
    add(
        "--replicates",
        metavar="N",
        type=int,
        default=1000,
        help="of the bootstrap of --compare (default: 1000)",
    )
    add("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    add("--bins", type=int, default=15, help="of the calibration (default: 15)")
    add(
        "--out",
        metavar="FOLDER",
        help="write report.json, decisions.csv, classes.csv, mistakes.csv and pictures there",
    )
    add("--json", action="store_true", help="print the report as JSON instead of a table")


def run(args: argparse.Namespace) -> None:
    """Read, evaluate, print and write."""
    from hace.column_names import label_nodes
    from hace.comparison import compare, comparison_text
    from hace.formats import read_hierarchy
    from hace.score_files import read_values

    for option in ("bins", "replicates"):
        if getattr(args, option) < 1:
            raise ConfigError(f"--{option} must be at least 1, got {getattr(args, option)}.")
    if args.out:
        check_out(args.out)
    h = read_hierarchy(args.hierarchy, args.format, root=args.root, **reader_options(args.option))
    values = read_values(args.labels, args.label_key, args.label_column)
    truth = label_nodes(values, h, args.label_kind, args.labels)
    subset = None if args.subset is None else subset_of(args.subset, h)
    options = {
        "kind": args.kind,
        "labels": "nodes",
        "subset": subset,
        "convention": args.distance,
        "rules": extra_rules(args, h),
        "bins": args.bins,
    }
    files = [scores_of(path, len(truth), h, args) for path in (args.scores, args.compare) if path is not None]
    report, other = ([evaluate_file(file, truth, h, options) for file in files] + [None])[:2]
    assert report is not None
    found = report.to_dict()
    text = [report.to_text()]
    if subset is not None:
        outside = int((~np.isin(truth, [h.index(c) for c in subset])).sum())
        found["outside_subset"] = outside
        text.append(
            f"\nsubset of {len(set(subset))} classes; {outside:,} samples have their truth outside it"
        )
    if other is not None:
        with progress(args.replicates, "bootstrap") as step:
            differences = compare(report, other, replicates=args.replicates, seed=args.seed, progress=step)
        found["comparison"] = {
            "second": str(args.compare),
            "replicates": args.replicates,
            "seed": args.seed,
            "metrics": [
                {
                    "heading": g,
                    "name": n,
                    "first": d.first,
                    "second": d.second,
                    "change": d.value,
                    "low": d.low,
                    "high": d.high,
                }
                for (g, n), d in differences.items()
            ],
        }
        text.append(
            f"\ncomparison: first {args.scores}, second {args.compare}; 95 % intervals of the change by "
            f"{args.replicates:,} paired bootstrap draws, * without 0\n\n{comparison_text(differences)}"
        )
    document = json.dumps(without_nan(found), indent=2, ensure_ascii=False, allow_nan=False)
    print(document if args.json else "\n".join(text))
    if args.out:
        level = h.max_depth if args.level is None else h.level_index(level_of(args.level))
        write_results(Path(args.out), report, other, document, level, args)
        print(f"wrote {args.out}", file=sys.stderr if args.json else sys.stdout)


def extra_rules(args: argparse.Namespace, h: Hierarchy) -> dict[str, dict[str, Any]]:
    """The decisions that options ask for, by title."""
    from hace.inference import level_thresholds
    from hace.scores import level_numbers

    rules: dict[str, dict[str, Any]] = {}
    if args.price is not None:
        cost = {"rule": "cost", "candidates": "nodes", "price": args.price, "convention": args.distance}
        if not 0 <= args.price <= 1:
            raise ConfigError(f"--price must be from 0 to 1, got {args.price}.")
        rules[f"least cost, any rank, price {args.price:g}"] = cost
    if args.threshold is not None:
        try:
            numbers = [float(word) for word in args.threshold.split(",")]
        except ValueError:
            raise ConfigError(
                f"--threshold must be a number, or one a level with commas, got {args.threshold!r}."
            ) from None
        threshold = numbers[0] if len(numbers) == 1 else numbers
        level_thresholds(threshold, h)
        rules[f"threshold {args.threshold}"] = {"rule": "threshold", "threshold": threshold}
    if args.level is not None:
        level_numbers(h)
        level = h.level_index(level_of(args.level))
        rules[f"best node of level {args.level}"] = {"rule": "level", "level": level}
    return rules


def level_of(text: str) -> int | str:
    """A level as a depth where it is written as one, otherwise as a name."""
    return int(text) if text.isdecimal() else text


def subset_of(text: str, h: Hierarchy) -> list[str]:
    """The classes of --subset: the lines of a file, or words with commas."""
    from hace.column_names import known_names, subset_ids
    from hace.score_files import read_list

    words = read_list(text)
    unknown = [word for word in words if word not in known_names(h)]
    if unknown and not Path(text).is_file():
        raise DataError(
            f"--subset must name a file or classes. There is no file {text!r}, and the hierarchy has no class "
            f"{unknown[0]!r}.{nearest(unknown[0], h.leaves)}"
        )
    return subset_ids(words, h)


def scores_of(path: str, rows: int, h: Hierarchy, args: argparse.Namespace) -> ScoreFile:
    """A file of scores, opened, with as many rows as there are labels."""
    from hace.score_files import open_scores

    scores = open_scores(path, h, key=args.key, outputs=args.outputs, ignore_columns=args.ignore_column)
    if scores.rows != rows:
        raise DataError(
            f"{path} has {scores.rows:,} rows and {args.labels} has {rows:,} labels. There must be one label a row."
        )
    return scores


def evaluate_file(scores: ScoreFile, truth: np.ndarray, h: Hierarchy, options: dict[str, Any]) -> Report:
    """All metrics of a file of scores."""
    from hace.evaluation import Evaluator

    evaluator = Evaluator(h, outputs=scores.outputs, **options)
    start, doubtful = 0, options["kind"] == "logits" and scores.rows > 0
    with progress(scores.rows, scores.path.name) as step:
        for chunk in scores.chunks():
            try:
                evaluator.add(chunk, truth[start : start + len(chunk)])
            except DataError as error:
                raise DataError(f"{scores.path}: {whole_story(scores, error)}") from error
            start += len(chunk)
            doubtful = doubtful and like_probabilities(chunk)
            step(len(chunk))
    if doubtful:
        print(
            f"hace: warning: {scores.path}: read as logits, but every row looks like probabilities (from 0 to 1, with "
            "sum 1). If that is what they are, say --kind probs.",
            file=sys.stderr,
        )
    return evaluator.report()


def like_probabilities(chunk: np.ndarray) -> bool:
    """Whether all rows lie in [0, 1] and sum to 1, as far as rounding shows; one column alone tells nothing."""
    if chunk.shape[1] < 2 or chunk.min(initial=0) < 0 or chunk.max(initial=0) > 1:
        return False
    return bool(np.allclose(chunk.sum(axis=1, dtype=np.float64), 1, rtol=0, atol=1e-3))


def whole_story(scores: ScoreFile, error: DataError) -> str:
    """The message about bad rows; where they are NaN, counted over the whole file instead of one chunk."""
    bad = [np.isnan(chunk).any(axis=1) for chunk in scores.chunks()]
    rows = np.flatnonzero(np.concatenate(bad))
    if not len(rows):
        return str(error)
    return (
        f"scores must not hold NaN. {len(rows):,} of {scores.rows:,} rows break this rule, the first is row {rows[0]}. "
        "Look at the model that made them."
    )


@contextmanager
def progress(total: int, title: str) -> Iterator[Any]:
    """A progress bar on a terminal where rich is installed; silent elsewhere."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda done: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def without_nan(value: Any) -> Any:
    """The same document with None for nan, which JSON has no word for."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
