"""What `hace evaluate` does with files of scores and labels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.cli.options import reader_options
from hace.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hace.formats.score_files import ScoreFile
    from hace.hierarchy import Hierarchy
    from hace.metrics.evaluation import Evaluation


@dataclass(frozen=True)
class Model:
    """A model to evaluate.

    Attributes:
        source: What the user called it: a file, or a run.
        name: The same in pictures.
        evaluate: From the options of an `Evaluator` (subset, distance, rules, bins) to all metrics.
    """

    source: str
    name: str
    evaluate: Callable[[dict[str, Any]], Evaluation]


@dataclass(frozen=True)
class EvaluationInput:
    """One or two models on the same samples.

    Attributes:
        hierarchy: The classes.
        truth: (S,) node indices.
        models: The model, and the one to compare it with.
        about: What the report says of them besides.
    """

    hierarchy: Hierarchy
    truth: np.ndarray
    models: list[Model]
    about: dict[str, Any]


def input_of_files(args: argparse.Namespace) -> EvaluationInput:
    """Scores and labels from files."""
    from hace.formats import read_hierarchy
    from hace.formats.label_files import read_values
    from hace.hierarchy.names import label_nodes

    missing = [f"--{name}" for name in ("hierarchy", "scores", "labels") if getattr(args, name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} must be given; or --run, a finished run.")
    stray = [f"--{name.replace('_', '-')}" for name in ("split", "data_root") if getattr(args, name)]
    if stray:
        raise ConfigError(f"{stray[0]} belongs to --run. Leave it out with --scores.")
    if args.compare is not None and Path(args.compare).is_dir():
        raise ConfigError(
            f"--compare {args.compare} is a folder, and --scores a file. Two runs compare with --run RUN --compare RUN."
        )
    h = read_hierarchy(args.hierarchy, args.format, root=args.root, **reader_options(args.option))
    values = read_values(args.labels, args.label_key, args.label_column)
    truth = label_nodes(values, h, args.label_kind, args.labels)
    paths = [path for path in (args.scores, args.compare) if path is not None]
    return EvaluationInput(h, truth, [file_model(path, truth, args.labels, h, args) for path in paths], {})


def file_model(path: str, truth: np.ndarray, labels: str, h: Hierarchy, args: argparse.Namespace) -> Model:
    """A model by its scores; the file is opened now and read later."""
    sharing = path_sharing(args)
    scores = scores_of(path, len(truth), labels, h, args)
    kind = {"kind": args.kind, "labels": "nodes"}
    return Model(
        path, Path(path).stem, lambda options: evaluate_file(scores, truth, h, options | kind, sharing)
    )


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


def evaluate_file(
    scores: ScoreFile, truth: np.ndarray, h: Hierarchy, options: dict[str, Any], sharing: float | None
) -> Evaluation:
    """All metrics of a file of scores; with `sharing`, of the path sums of its columns."""
    import torch

    from hace.lab.runs.progress import progress
    from hace.losses.head import leaf_logits
    from hace.metrics.evaluator import Evaluator

    evaluator = Evaluator(h, outputs=scores.outputs if sharing is None else "leaves", **options)
    start, doubtful = 0, options["kind"] == "logits" and scores.rows > 0 and sharing is None
    with progress(scores.path.name, "rows") as start_bar:
        step = start_bar(scores.rows, 0)
        for chunk in scores.chunks():
            try:
                if sharing is not None:
                    chunk = leaf_logits(torch.tensor(chunk), h, "paths", sharing).numpy()
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
    return evaluator.evaluation()


def like_probabilities(chunk: np.ndarray) -> bool:
    """Whether all rows are in [0, 1] and sum to 1 within rounding; a single column is inconclusive."""
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
        f"scores must not hold NaN. {len(rows):,} of {scores.rows:,} rows break this rule; the first is row {rows[0]}. "
        "Check the model that made them."
    )
