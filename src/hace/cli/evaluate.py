"""Evaluate the scores of any model, from any framework, or a finished run: accuracy by level, severity of mistakes,
hierarchical precision and recall, calibration, operating curves, and where mistakes go. With --out, a folder with a page that
opens from disk, JSON, CSV and pictures as well.

Examples:
  hace evaluate --hierarchy tree.csv --scores logits.npy --labels y.npy
  hace evaluate --hierarchy tree.csv --scores probs.parquet --kind probs --labels y.csv --out results
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --threshold 0.9 --level family
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --subset species_of_bavaria.txt
  hace evaluate --hierarchy tree.csv --scores a.npy --compare b.npy --labels y.npy
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --metrics leaves    top-k, severity and HD@k alone
  hace evaluate --hierarchy tree.csv --answers tool.csv --labels truth.csv --groups site    answers without scores
  hace evaluate --hierarchy tree.csv --scores top5.csv --rest spread --labels y.csv    lists of (class, score)
  hace evaluate --run runs/4cd033b43672ca23 --threshold 0.9
  hace evaluate --run runs/4cd033b43672ca23 --accuracy 0.95    after hace calibrate runs/4cd033b43672ca23
  hace evaluate --run runs/4cd033b43672ca23 --data photos2027 --accuracy 0.95    does the guarantee hold next year?
  hace evaluate --hierarchy tree.csv --scores test.npy --labels y.npy --calibration calibration.json --accuracy 0.95
  hace evaluate --run runs/4cd033b43672ca23 --compare runs/09ab1c32f6a4ddee
  hace evaluate --run runs/4cd033b43672ca23 --names classes.txt --out results    names for a hierarchy of numbers

Scores have one column per leaf (label order) or per node (node order). Named columns (.csv, .parquet) may be in any order;
they are matched by id, then by name. Labels are integers from 0, ids or names; inner nodes are allowed.
A run scores its own data again, which must be unchanged; without other options the metrics are those of its result.
Accuracy by level is that of the best class carried up; the best node of each level is shown beside it. Metrics of confidence
are shown raw and, where a temperature is known (from the run, or --calibration), calibrated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hace.cli.options import (
    Parser,
    add_checkpoint,
    add_guarantee,
    add_restrictions,
    add_run_data,
    add_score_files,
    groups_of,
    guarantee_of,
    level_of,
    like_probabilities,
    nan_report,
    path_sharing,
    read_truth,
    reader_options,
    restrictions,
    scores_of,
    threshold_of,
    warn_of_probabilities,
)
from hace.errors import ConfigError, DataError, install
from hace.files.writing import without_nan

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy
    from hace.lab.serve.load_run import Rescored
    from hace.metrics import Evaluation


BOUNDS = {"bins": (1, 10_000), "replicates": (1, 1_000_000), "seed": (0, 2**63 - 1)}


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("--run", "RUN", "a finished run, instead of --hierarchy, --scores and --labels", dest="run_folder")
    add("--split", ("test", "val", "train"), "the run's samples to score (default: those of its result)")
    about = "with --run: other labelled data, such as a new year or site: class folders, a CSV list, features"
    add("--data", "PATH", about)
    add_checkpoint(parser)
    add_run_data(parser)
    add_score_files(parser)
    about = "answers without scores instead of --scores, one node per sample: .csv, .txt, .npy, or SpeciesNet's .json"
    add("--answers", "FILE", about)
    add("--answer-column", "NAME", "the column to take from a .csv of answers")
    add("--no-answer", "WORDS", "answers that mean none, with commas, such as blank,unknown", default="")
    add("--names", "FILE", 'names of nodes, one line "id name" each, for a hierarchy with only ids')
    distances = ("lca_height", "lca_depth", "edges")
    add("--distance", distances, "distance for severity and costs", default="lca_height")
    add("--threshold", "T", "evaluate the deepest node above a probability: 0.9, or one per level: 0.9,0.8")
    add("--level", "LEVEL", "evaluate the best node of a level, by depth or name, and its classes")
    add_guarantee(parser)
    add("--calibration", "FILE", "written by `hace calibrate` (default: with --run, the one in the run)")
    about = "cost of a vague answer, as a share of its distance, in the answer of least cost (default: 0.5)"
    add("--price", "P", about, type=float)
    add_restrictions(parser)
    parser.flag("--only-subset", "skip samples whose truth is outside --subset")
    add("--compare", "FILE", "scores of a second model on the same samples; with --run also a second run")
    add("--replicates", "N", "bootstrap replicates for --compare (default: 1000)", type=int, default=1000)
    add("--seed", None, "seed of the bootstrap (default: 0)", type=int, default=0)
    about = (
        "leaves: only top-k, severity and HD@k, which need no probabilities: much faster with many classes "
        "(with --scores; default: all)"
    )
    add("--metrics", ("all", "leaves"), about, default="all")
    add("--bins", None, "bins of the calibration error (default: 15)", type=int, default=15)
    about = (
        "write a page (report.html), report.json, decisions.csv, classes.csv, mistakes.csv and pictures there; with "
        "--metrics leaves neither page nor pictures"
    )
    add("--out", "FOLDER", about)
    about = "write text in CSV tables unchanged (default: an apostrophe before = + - @, so that no spreadsheet runs a cell)"
    parser.flag("--raw-cells", about)
    parser.flag("--json", "print the report as JSON instead of a table")


# Options that a run makes superfluous, with the value of each when it is not given.
OF_FILES = dict.fromkeys("scores labels hierarchy format root label_key label_column groups".split())
OF_FILES |= {"option": [], "label_kind": "auto"}


class Model(NamedTuple):
    """A model to evaluate: what the user called it and its name in pictures; the temperature, guarantee and remark asked for."""

    source: str
    name: str
    evaluate: Callable[..., Evaluation]  # from the options of `hace.evaluate`
    calibration: Mapping[str, Any]


# The classes, with the names to show; one or two models on the same samples; what the report says of them besides.
Given = tuple["Hierarchy", list[Model], dict[str, str]]


def run(args: argparse.Namespace) -> None:
    """Read, evaluate, print and write."""
    check_options(args)
    if args.answers is not None:
        print_answers(args)
        return
    h, models, about = models_of_files(args) if args.run_folder is None else models_of_runs(args)
    options = {
        **restrictions(args, h),
        "only_subset": args.only_subset,
        "distance": args.distance,
        "threshold": None if args.threshold is None else threshold_of(args.threshold, h),
        "level": None if args.level is None else level_of(args.level),
        "price": args.price,
        "bins": args.bins,
    }
    found = []
    if len({model.name for model in models}) < len(models):  # those that share a name add where they are from
        models = [model._replace(name=f"{model.name} ({model.source})") for model in models]
    for model in models:
        asked = dict(model.calibration)
        remark = asked.pop("remark", None)
        report = model.evaluate(**options, **asked, name=model.name).over(h)
        found.append(replace(report, source=model.source, remark=remark))
    report = replace(found[0], about=about)
    if len(found) > 1:
        from hace.lab.runs.process import progress

        with progress("bootstrap", "draws") as start:
            step = start(args.replicates, 0)
            report = report.compared_with(found[1], replicates=args.replicates, seed=args.seed, progress=step)
    if args.json:
        document = without_nan(about | report.to_dict())
        print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(report.to_text())
    if args.out is not None:
        from hace.lab.report.evaluation_page import write_evaluation

        drawn = args.metrics == "all"
        if drawn:
            print("drawing the page and the pictures", file=sys.stderr)
        page = write_evaluation(report, args.out, raw_cells=args.raw_cells)
        if drawn:
            print(f"The page: {page}", file=sys.stderr if args.json else sys.stdout)


def print_answers(args: argparse.Namespace) -> None:
    """Evaluate answers that come without scores."""
    from hace.formats import read_hierarchy
    from hace.formats.score_files import read_answers
    from hace.metrics import evaluate_answers

    if args.scores is not None or args.run_folder is not None or not (args.hierarchy and args.labels):
        raise ConfigError("--answers must come with --hierarchy and --labels, without --scores and --run.")
    h = read_hierarchy(args.hierarchy, args.format, root=args.root, **reader_options(args.option))
    columns = {"answer_column": args.answer_column, "label_column": args.label_column, "groups": args.groups}
    answers, truth, groups = read_answers(args.answers, args.labels, **columns)
    none = {"", *(word.strip().casefold() for word in args.no_answer.split(","))}
    given = [None if word.casefold() in none else word for word in answers]
    try:
        found = evaluate_answers(given, truth, h, groups=groups, distance=args.distance)
    except DataError as error:
        raise DataError(
            f"{args.answers}, {args.labels}: {error} Name answers that mean none with --no-answer."
        ) from error
    document = without_nan(found.to_dict())
    print(json.dumps(document, indent=2, ensure_ascii=False) if args.json else found.to_text())


def check_options(args: argparse.Namespace) -> None:
    """Refuse what does not go together, before any work is done."""
    for option, (least, most) in BOUNDS.items():
        if not least <= getattr(args, option) <= most:
            raise ConfigError(f"--{option} must be from {least} to {most:,}. Got {getattr(args, option)}.")
    need_all = ("run_folder", "threshold", "level", "price", "accuracy", "calibration")
    wrong = [f"--{name.removesuffix('_folder')}" for name in need_all if getattr(args, name) is not None]
    if args.calibration is not None and args.run_folder is not None and args.accuracy is None:
        raise ConfigError("--calibration must come with --accuracy where --run is given. Got no --accuracy.")
    if args.metrics == "leaves" and wrong:
        raise ConfigError(f"--metrics leaves must come without {wrong[0]}. Leave one of them out.")
    if args.only_subset and args.subset is None:
        raise ConfigError("--only-subset must come with a --subset. Got none.")
    if args.out is not None:
        check_out(args.out)


def check_out(out: str) -> None:
    """Refuse an --out that cannot be written, before any work is done."""
    there = Path(out).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent  # missing folders are created later
    if not there.is_dir():
        words = "it is a file" if there == Path(out).absolute() else f"{there} is a file"
        raise ConfigError(f"--out must be a folder. Got {out!r}: {words}. Name another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--out must be a folder that can be written to. Got {out!r}: {there} may not be.")
    if find_spec("matplotlib") is None:
        raise ConfigError(f"--out draws with matplotlib. {install('report')}")


# ---------------------------------------------------------------------- files of scores and labels


def models_of_files(args: argparse.Namespace) -> Given:
    """Scores and labels from files."""
    missing = [f"--{name}" for name in ("hierarchy", "scores", "labels") if getattr(args, name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} must be given; or --run, a finished run.")
    stray = [name for name in ("split", "data_root", "data", "checkpoint") if getattr(args, name)]
    if stray:
        raise ConfigError(f"--{stray[0].replace('_', '-')} belongs to --run. Leave it out with --scores.")
    if args.compare is not None and Path(args.compare).is_dir():
        raise ConfigError(
            f"--compare {args.compare} is a folder, and --scores a file. Two runs compare with --run RUN --compare RUN."
        )
    if args.compare is not None and args.calibration is not None:
        raise ConfigError("--calibration must come without --compare: it belongs to the scores of one model.")
    if args.names is not None:
        args.option = [*args.option, f"names={args.names}"]
    h, truth = read_truth(args)
    paths = [path for path in (args.scores, args.compare) if path is not None]
    return h, [file_model(path, truth, args.labels, h, args) for path in paths], {}


def file_model(path: str, truth: np.ndarray, labels: str, h: Hierarchy, args: argparse.Namespace) -> Model:
    """A model by its scores; the file is opened now and read later."""
    sharing = path_sharing(args)
    scores = scores_of(path, len(truth), labels, h, args)
    groups = groups_of(args, len(truth))
    outputs = scores.outputs if sharing is None else "leaves"

    def evaluate(**options: Any) -> Evaluation:
        from hace.lab.runs.process import progress
        from hace.metrics.evaluation import evaluate

        doubtful = args.kind == "logits" and scores.rows > 0 and sharing is None

        def chunks() -> Iterator[Any]:
            nonlocal doubtful
            for chunk in scores.chunks():
                yield chunk if sharing is None else path_sums(chunk, h, sharing)
                doubtful = doubtful and like_probabilities(chunk)

        options["groups"] = groups
        forms = {"kind": args.kind, "outputs": outputs, "labels": "nodes", "metrics": args.metrics}
        with progress(scores.path.name, "rows") as start:
            step = start(scores.rows, 0)
            try:
                found = evaluate(chunks(), truth, h, progress=step, **forms, **options)
            except DataError as error:
                raise DataError(f"{scores.path}: {nan_report(scores, error)}") from error
        if doubtful:
            warn_of_probabilities(scores)
        return found

    return Model(path, Path(path).stem, evaluate, file_calibration(args, h, outputs))


def path_sums(chunk: np.ndarray, h: Hierarchy, sharing: float) -> np.ndarray:
    """The logits of the leaves from outputs of nodes that add up along each path."""
    import torch

    from hace.losses.head import leaf_logits

    return leaf_logits(torch.tensor(chunk), h, "paths", sharing).numpy()


def file_calibration(args: argparse.Namespace, h: Hierarchy, outputs: str) -> dict[str, Any]:
    """What --calibration and --accuracy say, for a file of scores."""
    guarantee, again = guarantee_of(args), "hace calibrate --hierarchy FILE --scores FILE --labels FILE"
    if args.calibration is None:
        if guarantee is not None:
            raise ConfigError(
                "--accuracy must come with --calibration, which `hace calibrate` writes from scores of other samples. Run: "
                f"{again}"
            )
        return {}
    from hace.decisions.calibration import read_calibration

    found = read_calibration(args.calibration)
    found.check_hierarchy(h, args.calibration, again)
    if found.outputs != outputs:
        raise ConfigError(
            f"{args.calibration} must be made with scores over {outputs}, as these are. It was made with scores over "
            f"{found.outputs}. Calibrate again: {again}"
        )
    if guarantee is not None:
        found.check_use(None, **restrictions(args, h), again=again)
    sure = None if guarantee is None else found.threshold_for(*guarantee, again)
    return {"temperature": found.temperature, "guarantee": sure}


# ---------------------------------------------------------------------- finished runs


def models_of_runs(args: argparse.Namespace) -> Given:
    """A run, and a second one or a file of scores to compare it with."""
    from hace.lab.serve.load_run import rescored
    from hace.lab.study.presets import without_common_end

    own = [name.replace("_", "-") for name, unset in OF_FILES.items() if getattr(args, name) != unset]
    if given := [f"--{name}" for name in own]:
        raise ConfigError(
            f"--run has its own model, hierarchy and labels. Leave out {', '.join(given)}, or --run."
        )
    if not Path(args.run_folder).is_dir():
        raise ConfigError(f"--run must be a run directory, and there is no folder {args.run_folder!r}.")
    if args.data is not None and args.data_root is not None:
        raise ConfigError(
            "--data is other data than the run's own, which --data-root finds. Leave one of them out."
        )
    options = {"split": args.split, "device": args.device, "data": args.data, "checkpoint": args.checkpoint}
    first = rescored(args.run_folder, root=args.data_root, **options)
    models = [run_model(args.run_folder, first, args)]
    if args.compare is not None:
        if Path(args.compare).is_dir():
            models.append(run_model(args.compare, second_run(args, first), args))
        else:
            labels = f"the split {first.split!r} of {args.run_folder}"
            models.append(file_model(args.compare, first.samples.nodes, labels, first.hierarchy, args))
        short = without_common_end([model.name for model in models])
        models = [model._replace(name=name) for model, name in zip(models, short, strict=True)]
    h = first.hierarchy if args.names is None else first.run.named_hierarchy(args.names)
    return h, models, {"run": first.run.id, "split": first.split}


def second_run(args: argparse.Namespace, first: Rescored) -> Rescored:
    """The run of --compare, on the samples of the first; its data are in --data-root too, if both runs saw the same data."""
    from hace.lab.runs.run import read_run
    from hace.lab.serve.load_run import rescored

    prints = {read_run(folder).about["data"]["fingerprint"] for folder in (args.run_folder, args.compare)}
    root = args.data_root if len(prints) == 1 else None
    split = args.split if args.data is not None else first.split
    options = {"device": args.device, "data": args.data, "checkpoint": args.checkpoint}
    second = rescored(args.compare, root=root, split=split, **options)
    a, b = first.samples, second.samples
    if first.hierarchy.fingerprint != second.hierarchy.fingerprint:
        raise DataError(
            f"{args.run_folder} and {args.compare} have different hierarchies, so they do not compare."
        )
    if list(a.names) != list(b.names) or not np.array_equal(a.nodes, b.nodes):
        raise DataError(
            f"{args.run_folder} and {args.compare} have different {first.split} samples: {len(a):,} and {len(b):,}. "
            "Compare runs on the same samples."
        )
    return second


def run_model(folder: str, scored: Rescored, args: argparse.Namespace) -> Model:
    """A model by its run."""
    from hace.lab.runs.process import progress
    from hace.lab.serve.load_run import calibration_of
    from hace.lab.study.presets import run_title

    title = run_title(scored.run.config)

    def evaluate(**options: Any) -> Evaluation:
        with progress(title, "samples") as start:
            return scored.report(**options, progress=start(len(scored.samples), 0))

    guarantee, calibration = guarantee_of(args), {}
    if guarantee is not None:
        found = calibration_of(scored.run, args.calibration)
        again = f"hace calibrate {folder}"
        found.check_use(None, **restrictions(args, scored.hierarchy), again=again)
        seen = "trained" if scored.split == "train" else "calibrated" if scored.split == found.split else None
        calibration = {
            "temperature": found.temperature,
            "guarantee": found.threshold_for(*guarantee, again),
            "remark": seen and f"These samples do not test the guarantee: the run was {seen} on them.",
        }
    return Model(folder, title, evaluate, calibration)
