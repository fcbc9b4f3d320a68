"""What `hace evaluate` does with files of scores and labels."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.cli.options_scores import (
    like_probabilities,
    path_sharing,
    read_truth,
    scores_of,
    warn_of_probabilities,
    whole_story,
)
from hace.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hace.decisions import GuaranteedThreshold
    from hace.formats.score_files import ScoreFile
    from hace.hierarchy import Hierarchy
    from hace.metrics.evaluation import Evaluation


@dataclass(frozen=True)
class Calibrated:
    """What a model's calibration adds to its evaluation.

    Attributes:
        temperature: By which scores are divided for the calibrated metrics; None: that of the model, if it has one.
        promise: The promise that was asked for.
        remark: Why the samples evaluated say little about the promise, if so.
    """

    temperature: float | None = None
    promise: GuaranteedThreshold | None = None
    remark: str | None = None

    @property
    def title(self) -> str:
        """The heading of the promise in an evaluation."""
        return "" if self.promise is None else f"promise, {self.promise.accuracy:g} of {self.promise.of}"

    def measured(self, report: Evaluation) -> dict[str, float]:
        """How the promise turned out on the samples of an evaluation."""
        if report.calibrated is None:
            return {}
        values = report.calibrated.values
        names = {"true": "true (right or above)", "answered": "answered below the root"}
        found = {key: values[self.title, name] for key, name in names.items()}
        false, answered = 1 - found["true"], found["answered"]
        return {
            "false": false,
            "answered": answered,
            "true_of_answers": 1 - false / answered if answered else np.nan,
            "specificity": values[self.title, "specificity"],
        }

    def measured_text(self, report: Evaluation) -> str:
        """The same for a person."""
        found = self.measured(report)
        text = (
            f"  here: {found['false']:.2%} of samples got a false answer, {found['answered']:.2%} one below the root, of which "
            f"{found['true_of_answers']:.2%} are true; specificity {found['specificity']:.4f}"
        )
        return text if self.remark is None else f"{text}\n  {self.remark}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of an evaluation: temperature, and the promise as a rule of its own."""
        if self.promise is None:
            return {"temperature": self.temperature, "promises": {}}
        rule: dict[str, Any] = {"rule": self.promise.rule, "threshold": self.promise.threshold}
        if self.promise.rule == "threshold":
            rule["constrained"] = self.promise.constrained
        return {"temperature": self.temperature, "promises": {self.title: rule}}


@dataclass(frozen=True)
class Model:
    """A model to evaluate.

    Attributes:
        source: What the user called it: a file, or a run.
        name: The same in pictures.
        evaluate: From options (subset, distance, rules, bins, temperature, promises) to all metrics.
        calibrated: From a promise, or None, to what the model's calibration adds.
    """

    source: str
    name: str
    evaluate: Callable[[dict[str, Any]], Evaluation]
    calibrated: Callable[[tuple[float, str] | None], Calibrated]


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


def told_apart(models: list[Model]) -> list[Model]:
    """Models with different names: those that share one add where they are from."""
    if len({model.name for model in models}) == len(models):
        return models
    return [replace(model, name=f"{model.name} ({model.source})") for model in models]


def input_of_files(args: argparse.Namespace) -> EvaluationInput:
    """Scores and labels from files."""
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
    h, truth = read_truth(args)
    paths = [path for path in (args.scores, args.compare) if path is not None]
    if args.compare is not None and args.calibration is not None:
        raise ConfigError("--calibration must come without --compare: it belongs to the scores of one model.")
    models = [file_model(path, truth, args.labels, h, args) for path in paths]
    return EvaluationInput(h, truth, told_apart(models), {})


def file_model(path: str, truth: np.ndarray, labels: str, h: Hierarchy, args: argparse.Namespace) -> Model:
    """A model by its scores; the file is opened now and read later."""
    sharing = path_sharing(args)
    scores = scores_of(path, len(truth), labels, h, args)
    kind = {"kind": args.kind, "labels": "nodes", "metrics": args.metrics}
    return Model(
        path,
        Path(path).stem,
        lambda options: evaluate_file(scores, truth, h, options | kind, sharing),
        lambda promise: file_calibration(args, promise, h, scores.outputs if sharing is None else "leaves"),
    )


def file_calibration(
    args: argparse.Namespace, promise: tuple[float, str] | None, h: Hierarchy, outputs: str
) -> Calibrated:
    """What --calibration says, for a file of scores."""
    from hace.lab.serve.run_calibration import read_calibration

    again = "hace calibrate --hierarchy FILE --scores FILE --labels FILE"
    if args.calibration is None:
        if promise is not None:
            raise ConfigError(
                "--accuracy must come with --calibration, which `hace calibrate` writes from scores of other samples. Run: "
                f"{again}"
            )
        return Calibrated()
    found = read_calibration(args.calibration)
    found.check_hierarchy(h, args.calibration, again)
    if found.outputs != outputs:
        raise ConfigError(
            f"{args.calibration} must be made with scores over {outputs}, as these are. It was made with scores over "
            f"{found.outputs}. Calibrate again: {again}"
        )
    return Calibrated(found.temperature, None if promise is None else found.promise(*promise, again))


def evaluate_file(
    scores: ScoreFile, truth: np.ndarray, h: Hierarchy, options: dict[str, Any], sharing: float | None
) -> Evaluation:
    """All metrics of a file of scores; with `sharing`, of the path sums of its columns."""
    import torch

    from hace.decisions.scores import as_scores
    from hace.lab.runs.progress import progress
    from hace.losses.head import leaf_logits
    from hace.metrics.evaluator import Evaluator

    columns = scores.outputs if sharing is None else "leaves"
    temperature: float | None = options.pop("temperature")
    promises = options.pop("promises")
    evaluator = Evaluator(h, outputs=columns, **options)
    warmed = None
    if temperature is not None:
        rules = {**options["rules"], **promises}
        warmed = Evaluator(h, outputs=columns, **{**options, "kind": "logits", "rules": rules})
    start, doubtful = 0, options["kind"] == "logits" and scores.rows > 0 and sharing is None
    with progress(scores.path.name, "rows") as start_bar:
        step = start_bar(scores.rows, 0)
        for chunk in scores.chunks():
            try:
                if sharing is not None:
                    chunk = leaf_logits(torch.tensor(chunk), h, "paths", sharing).numpy()
                evaluator.add(chunk, truth[start : start + len(chunk)])
                if warmed is not None and temperature is not None:
                    logits = as_scores(chunk, h, kind=options["kind"], outputs=columns) / temperature
                    warmed.add(logits, truth[start : start + len(chunk)])
            except DataError as error:
                raise DataError(f"{scores.path}: {whole_story(scores, error)}") from error
            start += len(chunk)
            doubtful = doubtful and like_probabilities(chunk)
            step(len(chunk))
    if doubtful:
        warn_of_probabilities(scores)
    found = evaluator.evaluation()
    return found if warmed is None else found.with_calibrated(warmed.evaluation(), temperature)
