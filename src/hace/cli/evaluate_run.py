"""What `hace evaluate --run` does: the model of a finished run, on its own data."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.cli.evaluate_scores import Calibrated, EvaluationInput, Model, file_model, told_apart
from hace.cli.options import pick_device
from hace.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hace.lab.serve.rescoring import Rescored
    from hace.metrics.evaluation import Evaluation

# Options that a run makes superfluous, with the value of each when it is not given.
OF_FILES = {
    "scores": None,
    "labels": None,
    "hierarchy": None,
    "format": None,
    "option": [],
    "root": None,
    "label_kind": "auto",
    "label_key": None,
    "label_column": None,
    "calibration": None,
}


def input_of_runs(args: argparse.Namespace) -> EvaluationInput:
    """A run, and a second one or a file of scores to compare it with."""
    from hace.lab.serve.rescoring import rescored
    from hace.lab.study.naming import without_common_end

    given = [
        f"--{name.replace('_', '-')}" for name, unset in OF_FILES.items() if getattr(args, name) != unset
    ]
    if given:
        raise ConfigError(
            f"--run has its own model, hierarchy and labels. Leave out {', '.join(given)}, or --run."
        )
    if not Path(args.run_folder).is_dir():
        raise ConfigError(f"--run must be a run directory, and there is no folder {args.run_folder!r}.")
    device = pick_device(args.device, 0)
    first = rescored(args.run_folder, root=args.data_root, split=args.split, device=device)
    truth = first.samples.nodes
    models = [run_model(args.run_folder, first)]
    if args.compare is not None:
        if Path(args.compare).is_dir():
            models.append(run_model(args.compare, second_run(args, first, device)))
        else:
            labels = f"the split {first.split!r} of {args.run_folder}"
            models.append(file_model(args.compare, truth, labels, first.hierarchy, args))
    about = {"run": first.run.id, "split": first.split}
    if len(models) > 1:
        short = without_common_end([model.name for model in models])
        models = [replace(model, name=name) for model, name in zip(models, short, strict=True)]
    h = first.hierarchy if args.names is None else first.run.named_hierarchy(args.names)
    return EvaluationInput(h, truth, told_apart(models), about)


def second_run(args: argparse.Namespace, first: Rescored, device: str) -> Rescored:
    """The run of --compare, on the samples of the first."""
    from hace.lab.serve.rescoring import rescored

    second = rescored(args.compare, root=second_root(args), split=first.split, device=device)
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


def second_root(args: argparse.Namespace) -> str | None:
    """Where the second run's data are: --data-root too, if both runs saw the same data."""
    from hace.lab.runs.run import read_run

    prints = {read_run(folder).about["data"]["fingerprint"] for folder in (args.run_folder, args.compare)}
    return args.data_root if len(prints) == 1 else None


def run_model(folder: str, scored: Rescored) -> Model:
    """A model by its run."""
    from hace.lab.runs.progress import progress
    from hace.lab.serve.run_calibration import calibration_of
    from hace.lab.study.naming import run_title

    def evaluate(options: dict[str, Any]) -> Evaluation:
        with progress(run_title(scored.run.config), "samples") as start:
            return scored.report(**options, progress=start(len(scored.samples), 0))

    def calibrated(promise: tuple[float, str] | None) -> Calibrated:
        if promise is None:
            return Calibrated()
        found = calibration_of(scored.run)
        sure = found.promise(*promise, f"hace calibrate {folder}")
        return Calibrated(found.temperature, sure, no_test(scored.split, found.split))

    return Model(folder, run_title(scored.run.config), evaluate, calibrated)


def no_test(split: str, calibrated_on: str) -> str | None:
    """Why samples of a split do not test a promise; None if they do."""
    if split == "train":
        return "These samples do not test the promise: the run was trained on them."
    if split == calibrated_on:
        return "These samples do not test the promise: the run was calibrated on them."
    return None
