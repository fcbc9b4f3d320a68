"""`hace evaluate`: all metrics of any model's scores."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.cli.evaluate_folder import EVALUATION_PAGE, check_out, write_results
from hace.cli.evaluate_run import input_of_runs
from hace.cli.evaluate_scores import Model, input_of_files
from hace.cli.options import add_raw_cells
from hace.cli.options_answers import (
    add_promise,
    level_index_of,
    level_of,
    promise_of,
    promise_text,
    subset_of,
    threshold_of,
)
from hace.cli.options_scores import add_score_files
from hace.errors import ConfigError
from hace.files.writing import without_nan

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy
    from hace.metrics.comparison import Difference
    from hace.metrics.evaluation import Evaluation
    from hace.metrics.sample_statistics import MetricKey

DESCRIPTION = """\
Evaluate the scores of any model, from any framework, or a finished run: accuracy by level, severity of mistakes,
hierarchical precision and recall, calibration, operating curves, and where mistakes go. With --out, a folder with a page that
opens from disk, JSON, CSV and pictures as well.
"""

EXAMPLES = """\
examples:
  hace evaluate --hierarchy tree.csv --scores logits.npy --labels y.npy
  hace evaluate --hierarchy tree.csv --scores probs.parquet --kind probs --labels y.csv --out results
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --threshold 0.9 --level family
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --subset species_of_bavaria.txt
  hace evaluate --hierarchy tree.csv --scores a.npy --compare b.npy --labels y.npy
  hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --metrics leaves    top-k, severity and HD@k alone
  hace evaluate --run runs/4cd033b43672ca23 --threshold 0.9
  hace evaluate --run runs/4cd033b43672ca23 --accuracy 0.95    after hace calibrate runs/4cd033b43672ca23
  hace evaluate --hierarchy tree.csv --scores test.npy --labels y.npy --calibration calibration.json --accuracy 0.95
  hace evaluate --run runs/4cd033b43672ca23 --compare runs/09ab1c32f6a4ddee
  hace evaluate --run runs/4cd033b43672ca23 --names classes.txt --out results    names for a hierarchy of numbers

Scores have one column per leaf (label order) or per node (node order). Named columns (.csv, .parquet) may be in any order;
they are matched by id, then by name. Labels are integers from 0, ids or names; inner nodes are allowed.
A run scores its own data again, which must be unchanged; without other options the metrics are those of its result.
Accuracy by level is that of the best class carried up; the best node of each level is shown beside it. Metrics of confidence
are shown raw and, where a temperature is known (from the run, or --calibration), calibrated.
"""


BOUNDS = {"bins": (1, 10_000), "replicates": (1, 1_000_000), "seed": (0, 2**63 - 1)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "--run",
        metavar="RUN",
        dest="run_folder",
        help="a finished run, instead of --hierarchy, --scores and --labels",
    )
    add(
        "--split",
        choices=("test", "val", "train"),
        help="which of the run's splits to score (default: that of its result)",
    )
    add(
        "--data-root",
        "--features",
        metavar="PATH",
        dest="data_root",
        help="where the run's data or features are now, if they were moved",
    )
    add(
        "--device",
        metavar="DEVICE",
        default="auto",
        help="device for a run of `hace train` (default: auto)",
    )
    add_score_files(parser)
    add(
        "--names",
        metavar="FILE",
        help='names of nodes, one line "id name" each, for a hierarchy with only ids',
    )
    add(
        "--distance",
        choices=("lca_height", "lca_depth", "edges"),
        default="lca_height",
        help="distance for severity and costs",
    )
    add(
        "--threshold",
        metavar="T",
        help="evaluate the deepest node above a probability: 0.9, or one per level: 0.9,0.8",
    )
    add(
        "--level",
        metavar="LEVEL",
        help="evaluate the best node of a level, by depth or name, and its classes",
    )
    add_promise(parser)
    add("--calibration", metavar="FILE", help="with --scores: written by `hace calibrate --scores`")
    add(
        "--price",
        metavar="P",
        type=float,
        help="cost of a vague answer, as a share of its distance, in the answer of least cost (default: 0.5)",
    )
    add(
        "--subset",
        metavar="CLASSES",
        help="restrict to these classes: a file, one per line, or a,b,c; an inner node means all classes below it",
    )
    add("--only-subset", action="store_true", help="skip samples whose truth is outside --subset")
    add(
        "--compare",
        metavar="FILE",
        help="scores of a second model on the same samples; with --run also a second run",
    )
    add(
        "--replicates",
        metavar="N",
        type=int,
        default=1000,
        help="bootstrap replicates for --compare (default: 1000)",
    )
    add("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    add(
        "--metrics",
        choices=("all", "leaves"),
        default="all",
        help="leaves: only top-k, severity and HD@k, which need no probabilities: much faster with many classes "
        "(with --scores; default: all)",
    )
    add("--bins", type=int, default=15, help="bins of the calibration error (default: 15)")
    add(
        "--out",
        metavar="FOLDER",
        help="write a page (report.html), report.json, decisions.csv, classes.csv, mistakes.csv and pictures there; with "
        "--metrics leaves neither page nor pictures",
    )
    add_raw_cells(parser)
    add("--json", action="store_true", help="print the report as JSON instead of a table")


def run(args: argparse.Namespace) -> None:
    """Read, evaluate, print and write."""
    for option, (least, most) in BOUNDS.items():
        if not least <= getattr(args, option) <= most:
            raise ConfigError(f"--{option} must be from {least} to {most:,}. Got {getattr(args, option)}.")
    check_metrics(args)
    if args.out is not None:
        check_out(args.out)
    from hace.metrics.summary_lines import summary_lines

    if args.names is not None and args.run_folder is None:
        args.option = [*args.option, f"names={args.names}"]
    given = input_of_files(args) if args.run_folder is None else input_of_runs(args)
    h = given.hierarchy
    subset = None if args.subset is None else subset_of(args.subset, h)
    inside = None if subset is None else within(subset, given.truth, h)
    if args.only_subset and (inside is None or not inside.any()):
        got = "no --subset" if inside is None else "no sample with its truth inside it"
        raise ConfigError(f"--only-subset must come with a --subset that some samples belong to. Got {got}.")
    options = {
        "subset": subset,
        "distance": args.distance,
        "rules": extra_rules(args, h),
        "bins": args.bins,
    }
    promise = promise_of(args)
    if promise is not None and subset is not None:
        raise ConfigError(
            "--accuracy must come without --subset: the promise is about answers among all classes."
        )
    calibrations = [model.calibrated(promise) for model in given.models]
    report, other = (
        [model.evaluate(options | c.options) for model, c in zip(given.models, calibrations, strict=True)]
        + [None]
    )[:2]
    assert report is not None
    report, other = report.over(h), other and other.over(h)  # with the names of --names
    if args.only_subset and inside is not None:
        report, other = report.of_samples(inside), other and other.of_samples(inside)
    found = given.about | report.to_dict()
    models = [
        (model.name, e) for model, e in zip(given.models, (report, other), strict=False) if e is not None
    ]
    text = [*(line for name, e in models for line in summary_lines(e, name)), "", report.to_text()]
    if given.about:
        text.insert(-1, f"run {given.about['run']}, {given.about['split']} samples")
    sure = calibrations[0].promise
    if sure is not None:
        kept = calibrations[0].measured(report)
        found["promise"] = {
            **sure.to_dict(),
            "promise": sure.promise,
            "assumptions": list(sure.assumptions),
            "measured": kept,
            "remark": calibrations[0].remark,
        }
        text.append(f"\n{promise_text(sure)}\n{calibrations[0].measured_text(report)}")
    if subset is not None:
        assert inside is not None
        outside = int((~inside).sum())
        found["outside_subset"] = outside
        text.append(
            f"\nsubset of {len(subset)} classes; {outside:,} samples have their truth outside it"
            f"{' and are left out' if args.only_subset else ''}"
        )
    differences = None
    if other is not None:
        differences, found["comparison"], lines = comparison(report, other, given.models, args)
        text.append(lines)
    document = json.dumps(without_nan(found), indent=2, ensure_ascii=False, allow_nan=False)
    print(document if args.json else "\n".join(text))
    if args.out is not None:
        level = h.max_depth if args.level is None else h.level_index(level_of(args.level))
        out = Path(args.out)
        facts = [
            *((str(k), str(v)) for k, v in given.about.items()),
            ("scores", ", ".join(m.source for m in given.models)),
        ]
        facts += [
            ("samples", f"{len(report.samples):,}"),
            ("hierarchy", repr(h)),
            ("distance", args.distance),
        ]
        if args.metrics == "all":
            print("drawing the page and the pictures", file=sys.stderr)
        write_results(out, models, document, level, facts=facts, differences=differences, raw=args.raw_cells)
        if args.metrics == "all":
            print(
                f"The page: {(out / EVALUATION_PAGE).resolve()}", file=sys.stderr if args.json else sys.stdout
            )


def check_metrics(args: argparse.Namespace) -> None:
    """Refuse options of probabilities and further decisions beside --metrics leaves."""
    given = {
        "--run": args.run_folder,
        "--threshold": args.threshold,
        "--level": args.level,
        "--price": args.price,
        "--accuracy": args.accuracy,
        "--calibration": args.calibration,
    }
    wrong = [option for option, value in given.items() if value is not None]
    if args.metrics == "leaves" and wrong:
        raise ConfigError(f"--metrics leaves must come without {wrong[0]}. Leave one of them out.")


def within(subset: list[str], truth: np.ndarray, h: Hierarchy) -> np.ndarray:
    """(S,) whether each truth is a class of the subset, or an inner node with no class outside it."""
    from hace.decisions.scores import subset_mask

    others = [leaf for leaf in h.leaves if leaf not in set(subset)]
    return ~subset_mask(h, others)[truth] if others else np.ones(len(truth), dtype=bool)


def comparison(
    report: Evaluation, other: Evaluation, models: list[Model], args: argparse.Namespace
) -> tuple[dict[MetricKey, Difference], dict[str, Any], str]:
    """The differences of two models: as they are, as JSON and as text."""
    from hace.lab.runs.progress import progress
    from hace.metrics.comparison import compare, comparison_text

    with progress("bootstrap", "draws") as start:
        step = start(args.replicates, 0)
        differences = compare(report, other, replicates=args.replicates, seed=args.seed, progress=step)
    rows = [
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
    ]
    second = models[1].source
    text = (
        f"\nfirst: {models[0].name}\nsecond: {models[1].name}\nchange: second minus first; 95 % intervals by "
        f"{args.replicates:,} paired bootstrap draws; * excludes 0\n\n{comparison_text(differences)}"
    )
    found = {"second": second, "replicates": args.replicates, "seed": args.seed, "metrics": rows}
    return differences, found, text


def extra_rules(args: argparse.Namespace, h: Hierarchy) -> dict[str, dict[str, Any]]:
    """The decisions that options ask for, by title."""
    rules: dict[str, dict[str, Any]] = {}
    if args.price is not None:
        cost = {"rule": "cost", "candidates": "nodes", "price": args.price, "distance": args.distance}
        if not 0 <= args.price <= 1:
            raise ConfigError(f"--price must be from 0 to 1. Got {args.price}.")
        rules[f"least cost, any rank, price {args.price:g}"] = cost
    if args.threshold is not None:
        threshold = threshold_of(args.threshold, h)
        rules[f"threshold {args.threshold}"] = {"rule": "threshold", "threshold": threshold}
    if args.level is not None:
        rules[f"best node of level {args.level}"] = {"rule": "level", "level": level_index_of(args.level, h)}
    return rules
