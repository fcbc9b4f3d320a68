"""Calibrate a finished run, or the scores of any model, on samples it was not trained on: one temperature, so that a
probability means what it says, and thresholds, so that `hace predict --accuracy 0.95` keeps its guarantee on new samples.

Examples:
  hace calibrate runs/4cd033b43672ca23                         then: hace predict runs/4cd033b43672ca23 photos --accuracy 0.95
  hace calibrate runs/4cd033b43672ca23 --accuracy 0.9 0.97 --of samples
  hace calibrate runs/4cd033b43672ca23 --confidence 0.95       guarantees that hold with probability 0.95
  hace calibrate shop.safetensors --data val.npz               a file of hace export, or of HACEClassifier.save
  hace calibrate --hierarchy tree.csv --scores val.npy --labels y.npy --out calibration.json
                                                               then: hace evaluate --calibration FILE --accuracy 0.95

Samples that come in groups, such as photos of one site, resemble each other: guarantees are then about new groups, where the data
of the run have groups or --groups names them. Each group weighs the same; with --group-share S, at least S of new groups keep
the guarantee. With --pool a group gets one answer, from all of its samples, and guarantees are about these answers.

An answer is true when it is the truth or an ancestor of it; an answer at the root, or none, says nothing. Two guarantees:
  --of samples   of all samples, at most 1 - accuracy get a false answer; saying nothing is not false
  --of answers   of the answers that say something, at least the share accuracy is true
A guarantee about samples holds on average over calibrations; with --confidence C, and always for answers (default: 0.9), it holds
with that probability. It assumes that new samples come from the same source as the calibration samples, that nothing was
chosen by looking at them, and that they are restricted (--subset) and weighted (--prior) alike.

A run is calibrated on the samples it held out (hace probe --validation 0.1), and calibration.json is written into it. A third
of them fits the temperature, the rest the thresholds. Test samples are used only if you ask for them: --split test.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.cli.options import (
    Parser,
    add_checkpoint,
    add_restrictions,
    add_run_data,
    add_score_files,
    groups_of,
    like_probabilities,
    path_sharing,
    read_truth,
    restrictions,
    scores_of,
    warn_of_probabilities,
)
from hace.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hace.decisions import GuaranteedThreshold
    from hace.decisions.calibration import Calibration

GUARANTEED = {
    "samples": "of all samples, at most 1 - accuracy get a false answer",
    "answers": "of the answers below the root, at least the share accuracy is true",
}


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    about = "a finished run, or a model file with --data; or give --hierarchy, --scores and --labels"
    add("run_folder", "RUN", about, nargs="?")
    about = "shares to guarantee (default: 0.8 0.9 0.95 0.99, if there are enough samples)"
    add("--accuracy", "A", about, type=float, nargs="+")
    add(
        "--of", ("samples", "answers"), "what a guarantee is about (default: both, where possible)", nargs="+"
    )
    about = "the probability with which guarantees hold (default: on average; 0.9 for answers)"
    add("--confidence", "C", about, type=float)
    about = "with groups: the share of new groups that keep a guarantee (default: on average over new groups)"
    add("--group-share", "S", about, type=float)
    about = "one answer per group: from the mean of its log-probabilities, or of its probabilities"
    add("--pool", ("log", "mean"), about)
    add_restrictions(parser)
    about = "answers walk down from the root (default), climb from the best class, or may be 'another of this group' (own)"
    add("--rule", ("threshold", "climb", "own"), about, default="threshold")
    add("--temperature", "T", "a temperature fitted on other samples; 1 leaves scores unchanged", type=float)
    add("--seed", None, "chooses the samples that fit the temperature (default: 0)", type=int, default=0)
    add("--split", ("val", "test"), "the run's samples to use (default: val)", default="val")
    add("--data", "PATH", "other labelled samples instead: class folders, a CSV list, features")
    about = "samples labelled above the classes: drop them, or count an answer below such a label as false"
    add("--coarse", ("auto", "drop", "count"), f"{about} (default: drop held-out ones)", default="auto")
    add_checkpoint(parser)
    add_run_data(parser)
    add("--out", "FILE", "where to write the calibration (default: into the run, or calibration.json)")
    parser.flag("--json", "print the calibration as JSON instead of a table")
    add_score_files(parser)


def run(args: argparse.Namespace) -> None:
    """Calibrate, write and print."""
    from hace.lab.serve.load_run import calibrate_run, open_finished

    accuracies, of = (
        None if given is None else [*dict.fromkeys(given)] for given in (args.accuracy, args.of)
    )
    asked: dict[str, Any] = {"accuracy": accuracies, "of": of, "confidence": args.confidence}
    asked |= {"rule": args.rule, "group_share": args.group_share}
    files = ("hierarchy", "scores", "labels", "groups")
    of_files = [f"--{name}" for name in files if getattr(args, name) is not None]
    if args.run_folder is None:
        found, path = calibrate_file(args, asked), Path(args.out or "calibration.json")
        found.write(path)
    elif Path(args.run_folder).is_file() and not of_files:
        found, path = calibrate_model(args, asked)
    elif of_files:
        raise ConfigError(f"RUN has its own data and hierarchy. Leave out {', '.join(of_files)}, or RUN.")
    else:
        path = Path(args.out or Path(args.run_folder) / "calibration.json")
        names = ("split", "temperature", "seed", "device", "data", "checkpoint", "coarse", "out", "pool")
        how = {name: getattr(args, name) for name in names}
        how |= restrictions(args, open_finished(args.run_folder).hierarchy)
        found = calibrate_run(args.run_folder, **asked, root=args.data_root, **how)
    if args.json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(calibration_text(found))
    print(f"wrote {path}", file=sys.stderr if args.json else sys.stdout)


def calibrate_model(args: argparse.Namespace, asked: Mapping[str, Any]) -> tuple[Calibration, Path]:
    """Calibrate the model of a file, and write what was found into it or to --out."""
    from hace.lab.serve.export import store_calibration
    from hace.lab.serve.predictor import ExportedPredictor

    if args.data is None:
        raise ConfigError(f"--data must be given to calibrate {args.run_folder}: it holds no samples.")
    predictor = ExportedPredictor(args.run_folder)
    options = {"temperature": args.temperature, "seed": args.seed, "coarse": args.coarse, "pool": args.pool}
    found = predictor.calibrate(args.data, **asked, **options, **restrictions(args, predictor.hierarchy))
    if args.out is None:
        store_calibration(args.run_folder, found)
    else:
        found.write(args.out)
    return found, Path(args.out or args.run_folder)


def calibrate_file(args: argparse.Namespace, asked: Mapping[str, Any]) -> Calibration:
    """Calibrate scores from a file."""
    import numpy as np
    import torch

    from hace.decisions.calibration import calibrate_scores
    from hace.losses.head import leaf_logits

    missing = [f"--{name}" for name in ("hierarchy", "scores", "labels") if getattr(args, name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} must be given; or RUN, a finished run.")
    if args.split != "val" or args.data_root or args.data:
        raise ConfigError("--split, --data and --data-root belong to a RUN. Leave them out with --scores.")
    sharing = path_sharing(args)
    h, truth = read_truth(args)
    file = scores_of(args.scores, len(truth), args.labels, h, args)
    chunks = list(file.chunks())
    if not chunks:
        raise DataError(f"{file.path} must hold at least one sample. Got none.")
    scores = torch.tensor(np.concatenate(chunks))
    if args.kind == "logits" and sharing is None and like_probabilities(scores.numpy()):
        warn_of_probabilities(file)
    outputs = file.outputs
    if sharing is not None:
        scores, outputs = leaf_logits(scores, h, "paths", sharing), "leaves"
    options = {"temperature": args.temperature, "split": Path(args.scores).name, "seed": args.seed}
    options |= {"groups": groups_of(args, len(truth)), "pool": args.pool, **restrictions(args, h)}
    try:
        return calibrate_scores(scores, truth, h, **asked, kind=args.kind, outputs=outputs, **options)
    except DataError as error:
        raise DataError([f"{file.path}: {problem}" for problem in error.problems]) from error


def in_groups(guarantee: GuaranteedThreshold) -> str:
    """What a guarantee about new groups begins with; "" for one about samples."""
    if guarantee.num_groups is None:
        return ""
    share, that = guarantee.group_share, " that get answers" if guarantee.of == "answers" else ""
    if share is None:
        return f"in a new group{that.replace('get', 'gets')}, on average, "
    return f"in at least {share:g} of new groups{that}, "


def calibration_text(found: Calibration) -> str:
    """What was found, for a person."""
    how, further, unit = "as given", "", "samples" if found.pool is None else "groups"
    if found.temperature_samples:
        sure = "over-confident" if found.temperature > 1 else "under-confident"
        fitted = f"{found.temperature_samples:,} of the {found.split} {unit}"
        how, further = f"fitted on {fitted}: raw scores are {sure}", "further "
    lines = [f"temperature {found.temperature:.4g}, {how}", ""]
    first = found.thresholds[0]
    of_groups = f" in {first.num_groups:,} groups, about new groups" if first.num_groups is not None else ""
    lines.append(f"guarantees, from {found.samples:,} {further}{unit}{of_groups}")
    for of in dict.fromkeys(t.of for t in found.thresholds):
        same = [t for t in found.thresholds if t.of == of]
        sure = same[0].confidence
        held = "on average" if sure is None else f"with probability {sure:g}"
        where = in_groups(same[0])
        what = GUARANTEED[of].removeprefix("of all samples, " if where else "").replace("samples", unit)
        lines.append(f"  --of {of}: {where}{what}, {held}")
        for t in same:
            said = f"threshold {t.threshold:.4f}, answers {t.answered:.1%}"
            lines.append(f"    --accuracy {t.accuracy:<5g} {'answers nothing' if t.is_silent else said}")
    lines += [f"  not possible: {reason}" for reason in found.missing]
    strictest = max(found.thresholds, key=lambda t: t.confidence is not None)
    assumed = [f"  - {text.replace('samples', unit)}" for text in strictest.assumptions]
    lines += ["", "what a guarantee assumes", *assumed]
    return "\n".join([*lines, *found.notes, ""])
