"""`hace evaluate`: all metrics of a run, of scores, or of answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from cyclopts import Parameter

from hace.checks import check_count
from hace.cli.engine import Numbers, With, Without, alarmed, more
from hace.cli.options import (
    Checkpoint,
    Guarantee,
    MovedData,
    Names,
    Restrictions,
    ScoreFiles,
    level_of,
    threshold_of,
)
from hace.errors import ConfigError, DataError, install
from hace.files.writing import without_nan

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy
    from hace.lab.serve.rescore import Rescored
    from hace.metrics import Evaluation

_MODEL = With("RUN", "--scores")  # not for answers that come without scores
_ALL_METRICS = Without("--metrics leaves")


@Parameter(name="*")
@dataclass(frozen=True)
class RunSamples:
    """The samples that a run scores.

    Attributes:
        split: Split of the run's data to score (default: as in its result).
        samples: Labelled samples to use in place of the run's own, such as a new year or site: class folders, a CSV list,
            features.
        device: Device for a run of `hace train`.
    """

    split: Annotated[Literal["test", "val", "train"] | None, With("RUN")] = None
    samples: Annotated[Path | None, With("RUN")] = None
    checkpoint: Annotated[Checkpoint, With("RUN"), more] = None
    data_root: Annotated[MovedData, With("RUN"), Without("--samples"), more] = None
    device: Annotated[str, With("RUN"), more] = "auto"

    @property
    def options(self) -> dict[str, Any]:
        """As :func:`hace.lab.serve.rescore.rescored` takes them, for any run."""
        return {"device": self.device, "data": self.samples, "checkpoint": self.checkpoint}


@Parameter(name="*")
@dataclass(frozen=True)
class Answers:
    """Answers that come without scores.

    Attributes:
        answers: Answers without scores, one node per sample: .csv, .txt, .npy, or SpeciesNet's .json.
        answer_column: Column to read from a .csv of answers.
        no_answer: Answers that mean none, separated by commas, such as blank,unknown.
    """

    answers: Annotated[
        Path | None, With("--hierarchy"), With("--labels"), Without("--scores"), Without("RUN")
    ] = None
    answer_column: Annotated[str | None, With("--answers"), more] = None
    no_answer: Annotated[str, With("--answers"), more] = ""


class Model(NamedTuple):
    """A model to evaluate: what the user called it, its name in pictures, and the temperature, guarantee and remark wanted."""

    source: str
    name: str
    report: Callable[..., Evaluation]  # from the options of `hace.evaluate`
    size: tuple[str, int]  # what progress counts, and how many
    calibration: Mapping[str, Any]


def evaluate(
    run: str | None = None,
    /,
    *,
    of_run: RunSamples = RunSamples(),
    files: ScoreFiles = ScoreFiles(),
    of_answers: Answers = Answers(),
    guarantee: Guarantee = Guarantee(),
    threshold: Annotated[Numbers | None, _MODEL, _ALL_METRICS] = None,
    level: Annotated[str | None, _MODEL, _ALL_METRICS] = None,
    calibration: Annotated[
        Path | None, _MODEL, _ALL_METRICS, With("--scores", "--accuracy"), Without("--compare"), more
    ] = None,
    compare: Annotated[Path | None, _MODEL] = None,
    restrictions: Restrictions = Restrictions(),
    only_subset: Annotated[bool, With("--subset"), more] = False,
    names: Annotated[Names, more] = None,
    distance: Annotated[Literal["lca_height", "lca_depth", "edges"], more] = "lca_height",
    price: Annotated[float | None, _MODEL, _ALL_METRICS, more] = None,
    metrics: Annotated[Literal["all", "leaves"], With("--scores"), more] = "all",
    bins: Annotated[int, _MODEL, more] = 15,
    out: Annotated[Path | None, _MODEL] = None,
    raw_cells: Annotated[bool, With("--out"), more] = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Evaluate a finished run, or the scores of any model, from any framework: accuracy by level, severity of mistakes (levels
    off), hierarchical precision and recall, calibration, operating curves, and where mistakes go. --out also writes a folder
    with a page that opens from disk, JSON, CSV and pictures.

    Examples
      hace evaluate --hierarchy tree.csv --scores logits.npy --labels y.npy
      hace evaluate --hierarchy tree.csv --scores probs.parquet --kind probs --labels y.csv --out results
      hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --threshold 0.9 --level family
      hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --subset species_of_bavaria.txt
      hace evaluate --hierarchy tree.csv --scores a.npy --compare b.npy --labels y.npy
      hace evaluate --hierarchy tree.csv --scores a.npy --labels y.npy --metrics leaves    top-k, severity and HD@k alone
      hace evaluate --hierarchy tree.csv --answers tool.csv --labels truth.csv --groups site    answers without scores
      hace evaluate --hierarchy tree.csv --scores top5.csv --rest spread --labels y.csv    lists of (class, score)
      hace evaluate runs/latest --threshold 0.9
      hace evaluate runs/latest --accuracy 0.95    after hace calibrate runs/latest
      hace evaluate runs/latest --samples photos2027 --accuracy 0.95    does the guarantee hold next year?
      hace evaluate photos.hace --samples photos2027 --accuracy 0.95
      hace evaluate --hierarchy tree.csv --scores test.npy --labels y.npy --calibration calibration.json --accuracy 0.95
      hace evaluate runs/latest --compare runs/09ab1c32f6a4ddee
      hace evaluate runs/latest --names classes.txt --out results    names for a hierarchy of numbers

    Scores have one column per leaf (label order) or per node (node order). Named columns (.csv, .parquet) may be in any order;
    they are matched by id, then by name. Labels are integers from 0, ids or names; inner nodes are allowed.

    A run scores its own data again, which must be unchanged; without other options the metrics match its result. Accuracy by
    level carries the best class up; the best node of each level is shown beside it. Confidence metrics are shown raw and, if a
    temperature is known (from the run or --calibration), calibrated.

    Args:
        run: Finished run, or with --samples a model file; or give --hierarchy and --labels with --scores or --answers.
        threshold: Evaluate the deepest node above a probability: 0.9, or one per level: 0.9,0.8.
        level: Evaluate the best node of a level, by depth or name, and its classes.
        calibration: A file that `hace calibrate` wrote (default: the calibration in RUN).
        compare: Scores of a second model on the same samples; or a second run, where the first is one.
        only_subset: Skip samples whose truth is outside --subset.
        distance: Distance for severity and costs.
        price: Evaluate the answers of least cost, where a vague answer costs this share of its distance.
        metrics: leaves: only top-k, severity and HD@k, which need no probabilities: much faster with many classes.
        bins: Bins of the calibration error.
        out: Write a page (report.html), report.json, decisions.csv, classes.csv, mistakes.csv and pictures into this folder;
            with --metrics leaves neither page nor pictures.
        raw_cells: Write text in CSV tables unchanged (default: an apostrophe before = + - @, so that no spreadsheet runs a
            cell).
        as_json: Print the report as JSON instead of a table.
    """
    check_count("--bins", bins, 10_000)
    if out is not None:
        check_out(out)
    if of_answers.answers is not None:
        return print_answers(of_answers, of_answers.answers, files, names, distance, as_json)
    asked = Asked(files, of_run, guarantee, calibration, compare, restrictions, metrics)
    h, models, about = asked.of_files(names) if run is None else asked.of_run(run, names)
    options = {
        **restrictions.on(h),
        "only_subset": only_subset,
        "distance": distance,
        "threshold": None if threshold is None else threshold_of(threshold, h),
        "level": None if level is None else level_of(level),
        "price": price,
        "bins": bins,
    }
    evaluations = evaluate_models(h, models, options)
    report = replace(evaluations[0], about=about)
    if len(evaluations) > 1:
        from hace.metrics.comparison import compared

        report = compared(report, evaluations[1])
    if as_json:
        document = without_nan(about | report.to_dict())
        print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(alarmed(report.to_text(), sys.stdout))
    if out is not None:
        write_report(
            report,
            out,
            pictures=metrics == "all",
            raw_cells=raw_cells,
            to=sys.stderr if as_json else sys.stdout,
        )


def print_answers(
    given: Answers, path: Path, files: ScoreFiles, names: Path | None, distance: str, as_json: bool
) -> None:
    """Evaluate answers that come without scores."""
    from hace.formats.score_files import read_answers
    from hace.metrics import evaluate_answers

    h = files.read_hierarchy(names)
    labels = str(files.labels)
    columns = {
        "answer_column": given.answer_column,
        "label_column": files.label_column,
        "groups": files.groups,
    }
    answers, truth, groups = read_answers(str(path), labels, **columns)
    none = {"", *(word.strip().casefold() for word in given.no_answer.split(","))}
    decided = [None if word.casefold() in none else word for word in answers]
    try:
        evaluation = evaluate_answers(decided, truth, h, groups=groups, distance=distance)
    except DataError as error:
        raise DataError(f"{path}, {labels}: {error} Name answers that mean none with --no-answer.") from error
    document = without_nan(evaluation.to_dict())
    print(json.dumps(document, indent=2, ensure_ascii=False) if as_json else evaluation.to_text())


def evaluate_models(h: Hierarchy, models: list[Model], options: Mapping[str, Any]) -> list[Evaluation]:
    """The evaluation of each model; those that share a name get the place that they are from."""
    from hace.lab.runs.process import progress

    if len({model.name for model in models}) < len(models):
        models = [model._replace(name=f"{model.name} ({model.source})") for model in models]
    evaluations = []
    for model in models:
        asked = dict(model.calibration)
        known = {name: asked.pop(name, None) for name in ("remark", "held_out")}
        unit, size = model.size
        with progress(model.name, unit) as start:
            evaluation = model.report(**options, **asked, name=model.name, progress=start(size, 0))
        evaluations.append(replace(evaluation.over(h), source=model.source, **known))
    return evaluations


def write_report(report: Evaluation, out: Path, *, pictures: bool, raw_cells: bool, to: Any) -> None:
    """Write the folder of --out, and say where the page is."""
    from hace.lab.report.evaluation_page import write_evaluation

    if pictures:
        print("drawing the page and the pictures", file=sys.stderr)
    page = write_evaluation(report, out, raw_cells=raw_cells)
    if pictures:
        print(f"The page: {page}", file=to)


def check_out(out: Path) -> None:
    """Refuse an --out that cannot be written, before any work is done."""
    there = out.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent  # missing folders are created later
    if not there.is_dir():
        words = "it is a file" if there == out.absolute() else f"{there} is a file"
        raise ConfigError(f"--out must be a folder. Got {str(out)!r}: {words}. Name another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--out must be a folder that can be written to. Got {str(out)!r}: {there} may not be."
        )
    if find_spec("matplotlib") is None:
        raise ConfigError(f"--out draws with matplotlib. {install('report')}")


# ---------------------------------------------------------------------- files of scores, and finished runs

# The classes, with the names to show; one or two models on the same samples; what the report says of them besides.
Given = tuple["Hierarchy", list[Model], dict[str, str]]


@dataclass(frozen=True)
class Asked:
    """What the options ask of the models."""

    files: ScoreFiles
    samples: RunSamples
    guarantee: Guarantee
    calibration: Path | None
    compare: Path | None
    restrictions: Restrictions
    metrics: str

    def of_files(self, names: Path | None) -> Given:
        """Scores and labels from files."""
        if self.files.scores is None:
            raise ConfigError("hace evaluate must have a RUN, --scores or --answers. Got none of them.")
        if self.compare is not None and self.compare.is_dir():
            raise ConfigError(
                f"--compare must be a file, as --scores is. Got the folder {self.compare}. Two runs compare with "
                "hace evaluate RUN --compare RUN."
            )
        h = self.files.read_hierarchy(names)
        truth = self.files.read_truth(h)
        paths = [path for path in (self.files.scores, self.compare) if path is not None]
        return h, [self.file_model(path, h, truth, str(self.files.labels)) for path in paths], {}

    def file_model(self, path: Path, h: Hierarchy, truth: np.ndarray, labels: str) -> Model:
        """A model by its scores; the file is opened now and read later."""
        scored = self.files.open(path, h, truth, labels)
        about = self.file_calibration(h, scored.outputs)
        report = partial(scored.report, metrics=self.metrics)
        return Model(str(path), path.stem, report, ("rows", len(truth)), about)

    def file_calibration(self, h: Hierarchy, outputs: str) -> dict[str, Any]:
        """What --calibration and --accuracy say, for a file of scores."""
        again = "hace calibrate --hierarchy FILE --scores FILE --labels FILE"
        if self.calibration is None:
            if self.guarantee.asked is not None:
                raise ConfigError(
                    "--accuracy must come with --calibration, which `hace calibrate` writes from scores of other samples. Run: "
                    f"{again}"
                )
            return {}
        from hace.decisions.calibration import read_calibration

        calibration = read_calibration(str(self.calibration))
        calibration.check_hierarchy(h, str(self.calibration), again)
        if calibration.outputs != outputs:
            raise ConfigError(
                f"{self.calibration} must be made with scores over {outputs}, as these are. It was made with scores over "
                f"{calibration.outputs}. Calibrate again: {again}"
            )
        sure = None
        if self.guarantee.asked is not None:
            calibration.check_use(None, **self.restrictions.on(h), again=again)
            sure = calibration.threshold_for(*self.guarantee.asked, again)
        return {"temperature": calibration.temperature, "guarantee": sure, "held_out": calibration.right}

    def of_run(self, run: str, names: Path | None) -> Given:
        """A run, and a second one or a file of scores to compare it with."""
        from hace.lab.runs.process import keep_freed_memory
        from hace.lab.serve.rescore import rescored
        from hace.lab.study.presets import without_common_end

        keep_freed_memory()
        if Path(run).is_file():
            return self.of_model(run)
        if not Path(run).is_dir():
            raise ConfigError(f"RUN must be a run directory or a model file. {run} does not exist.")
        root = self.samples.data_root
        split = self.samples.split
        first = rescored(run, root=root, split=split, **self.samples.options)
        models = [self.run_model(run, first)]
        if self.compare is not None:
            if self.compare.is_dir():
                models.append(self.run_model(str(self.compare), self.second_run(run, self.compare, first)))
            else:
                labels = f"the split {first.split!r} of {run}"
                models.append(self.file_model(self.compare, first.hierarchy, first.samples.nodes, labels))
            short = without_common_end([model.name for model in models])
            models = [model._replace(name=name) for model, name in zip(models, short, strict=True)]
        h = first.hierarchy if names is None else first.run.named_hierarchy(names)
        return h, models, {"run": first.run.id, "split": first.split}

    def of_model(self, path: str) -> Given:
        """The model of a file, on labelled samples."""
        from hace.fitting.new_samples import labelled_samples
        from hace.lab.serve.predictor import ExportedPredictor
        from hace.metrics import evaluate as evaluated

        if self.samples.samples is None or self.compare is not None:
            raise ConfigError(f"{path} must come with --samples, and without --compare: it holds no samples.")
        predictor = ExportedPredictor(path, self.calibration)
        h = predictor.hierarchy
        samples = labelled_samples(predictor, self.samples.samples)
        scores, outputs = predictor.labelled_scores(samples)
        forms: dict[str, Any] = {
            "labels": "nodes",
            "outputs": outputs,
            "groups": samples.groups,
            "names": samples.names,
        }
        report = partial(evaluated, scores, samples.nodes, h, metrics=self.metrics, **forms)
        about: dict[str, Any] = (
            {} if predictor.temperature is None else {"temperature": predictor.temperature}
        )
        if self.guarantee.asked is not None:
            calibration = predictor.calibration
            again = f"hace calibrate {path} --samples PATH"
            calibration.check_use(None, **self.restrictions.on(h), again=again)
            about["guarantee"] = calibration.threshold_for(*self.guarantee.asked, again)
            about["held_out"] = calibration.right
        return h, [Model(path, Path(path).stem, report, ("samples", len(samples)), about)], {"model": path}

    def second_run(self, run: str, other: Path, first: Rescored) -> Rescored:
        """The run of --compare on the samples of the first; its data are in --data-root too, if both runs saw the same data."""
        from hace.lab.runs.run import read_run
        from hace.lab.serve.rescore import rescored

        prints = {read_run(folder).about["data"]["fingerprint"] for folder in (run, other)}
        root = self.samples.data_root if len(prints) == 1 else None
        split = self.samples.split if self.samples.samples is not None else first.split
        second = rescored(other, root=root, split=split, **self.samples.options)
        first.check_comparable(second)
        return second

    def run_model(self, folder: str, scored: Rescored) -> Model:
        """A model by its run."""
        from hace.lab.serve.calibrate_run import calibration_of
        from hace.lab.study.presets import run_title

        title = run_title(scored.run.config)
        size = ("samples", len(scored.samples))
        if self.guarantee.asked is None:
            return Model(folder, title, scored.report, size, {})
        again = f"hace calibrate {folder}"
        calibration = calibration_of(scored.run, self.calibration)
        calibration.check_use(None, **self.restrictions.on(scored.hierarchy), again=again)
        seen = (
            "trained"
            if scored.split == "train"
            else "calibrated"
            if scored.split == calibration.split
            else None
        )
        about = {
            "temperature": calibration.temperature,
            "guarantee": calibration.threshold_for(*self.guarantee.asked, again),
            "held_out": calibration.right,
            "remark": seen and f"These samples do not test the guarantee: the run was {seen} on them.",
        }
        return Model(folder, title, scored.report, size, about)
