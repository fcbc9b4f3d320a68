"""Calibrating a finished model on samples it was not trained on: one temperature, and thresholds that keep promises.

    calibrate_run("runs/4cd033b43672ca23")                                     # writes calibration.json into the run
    Predictor.from_run("runs/4cd033b43672ca23").predict("photos", accuracy=0.95)

A promise needs scores that were settled without the samples it rests on. So a third of the calibration samples fits the
temperature and the rest the thresholds, unless the temperature comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hace.checks import is_number
from hace.decisions import GuaranteedThreshold, fit_temperature, guaranteed_threshold
from hace.decisions.promises import PROMISES
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.lab.runs.config import ProbeConfig
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, CONFIG, Run
from hace.lab.serve.calibration import (
    Calibration,
    check_promise,
    weights_print,
    write_calibration,
)
from hace.lab.serve.rescoring import open_finished, rescored

ACCURACIES = (0.8, 0.9, 0.95, 0.99)
CONFIDENCE = 0.9  # of promises about answers, which hold with a probability
_SHARE = 3  # one of so many calibration samples fits the temperature


@dataclass(frozen=True)
class Promises:
    """What to promise.

    Attributes:
        accuracies: The promised shares; None: 0.8, 0.9, 0.95 and 0.99, as far as the samples suffice.
        of: "samples", "answers" or both; see :func:`hace.guaranteed_threshold`. None: both, as far as the samples suffice.
        confidence: None: promises about samples hold on average, those about answers with probability 0.9.
        rule: "threshold", the walk down from the root, or "climb", up from the best leaf.
    """

    accuracies: Sequence[float] | None = None
    of: Sequence[str] | None = None
    confidence: float | None = None
    rule: str = "threshold"


def calibrate_scores(
    scores: Tensor,
    truth: np.ndarray,
    hierarchy: Hierarchy,
    promises: Promises | None = None,
    *,
    outputs: str = "auto",
    temperature: float | None = None,
    split: str = "scores",
    seed: int = 0,
) -> Calibration:
    """Calibrate scores of samples that the model was not trained on.

    Args:
        scores: (S, n) or (S, N) logits.
        truth: (S,) node indices.
        hierarchy: The hierarchy.
        promises: What to promise.
        outputs: What the columns are: "leaves", "nodes", or "auto".
        temperature: Fitted on other samples; None: fitted on a third of these, chosen by the seed.
        split: What the samples are, for the record.
        seed: See `temperature`.

    Raises:
        DataError: Too few samples for what was asked (the message says how many it takes), or scores that say nothing.
    """
    asked = promises or Promises()
    for accuracy in asked.accuracies or ():
        for of in asked.of or PROMISES:
            check_promise(accuracy, of)
    fitting, rest = np.empty(0, dtype=np.int64), np.arange(len(truth))
    if temperature is None:
        order = np.random.default_rng([seed, 0xCA11]).permutation(len(truth))
        fitting, rest = np.sort(order[: len(order) // _SHARE]), np.sort(order[len(order) // _SHARE :])
        temperature = _fitted(scores[fitting], truth[fitting], hierarchy, outputs, len(truth))
    elif not is_number(temperature) or not 0 < temperature < np.inf:
        raise ConfigError(f"temperature must be a number above 0. Got {temperature!r}.")
    try:
        found, missing = _thresholds(scores[rest] / temperature, truth[rest], hierarchy, outputs, asked)
    except DataError as error:
        if not len(fitting):
            raise
        spent = (
            f"Of the {len(truth):,} calibration samples {len(fitting):,} fit the temperature. All support promises if it is "
            "given: --temperature T (temperature=T), fitted on other samples or 1."
        )
        raise DataError([*error.problems, spent]) from error
    return Calibration(
        float(temperature),
        found,
        split,
        len(rest),
        len(fitting),
        "leaves" if scores.shape[1] == hierarchy.num_leaves and outputs != "nodes" else "nodes",
        hierarchy.fingerprint,
        missing=missing,
    )


def _fitted(scores: Tensor, truth: np.ndarray, h: Hierarchy, outputs: str, samples: int) -> float:
    try:
        return fit_temperature(scores, truth, h, labels="nodes", outputs=outputs)
    except DataError as error:
        raise DataError(
            f"No temperature fits the {len(truth)} of {samples} calibration samples set aside for it: {error} Give one: "
            "--temperature 1 (temperature=1) leaves scores as they are."
        ) from error


def _thresholds(
    scores: Tensor, truth: np.ndarray, h: Hierarchy, outputs: str, asked: Promises
) -> tuple[tuple[GuaranteedThreshold, ...], tuple[str, ...]]:
    """The promises that can be made, and why others cannot; what was asked for by name must be possible."""
    found, missing = [], []
    for of in asked.of or PROMISES:
        for accuracy in asked.accuracies or ACCURACIES:
            confidence = CONFIDENCE if asked.confidence is None and of == "answers" else asked.confidence
            try:
                sure = guaranteed_threshold(
                    scores,
                    truth,
                    h,
                    accuracy,
                    confidence,
                    of,
                    rule=asked.rule,
                    labels="nodes",
                    outputs=outputs,
                )
            except DataError as error:
                missing.append(f"{accuracy:g} of {of}: {error}")
            else:
                found.append(sure)
    made = {t.accuracy for t in found}
    strict = asked.of is not None and asked.accuracies is not None
    if not found or (strict and missing) or any(a not in made for a in asked.accuracies or ()):
        raise DataError(missing)
    return tuple(found), tuple(missing)


def calibrate_run(
    folder: str | Path,
    promises: Promises | None = None,
    *,
    split: str = "val",
    root: str | Path | None = None,
    temperature: float | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Calibration:
    """Calibrate a finished run on samples it held out, and write calibration.json into it.

    Args:
        folder: The run directory.
        promises: What to promise.
        split: "val", the samples the run held out. "test" spends the test samples: accuracy on them is no longer a test.
        root: Where its data are now, if they were moved.
        temperature: Fitted on other samples. None: that of the run, if it has it from its configuration; otherwise it is
            fitted on a third of the samples.
        seed: Chooses that third.
        device: Where a model that was trained end to end computes.

    Raises:
        ConfigError: The run held out no samples.
        DataError: Too few samples for what was asked, or other data than the run's.
    """
    run = open_finished(folder)
    if split not in ("val", "test"):
        raise ConfigError(
            f"split must be 'val' or 'test': a run is too sure of what it was trained on. Got {split!r}."
        )
    if split == "val" and not run.config.validation:
        raise ConfigError(
            f"{folder} held out no samples to calibrate on: it was trained on all of them. Train the same with some held out: "
            f"{_held_out_command(run)}; or calibrate scores of other samples: hace calibrate --hierarchy FILE --scores FILE "
            "--labels FILE. --split test spends the test samples."
        )
    scored = rescored(folder, root=root, split=split, device=device)
    view = ScoreView(scored.loss, scored.hierarchy, temperature=1.0)
    scores = torch.cat([view(z) for z in scored.outputs()])
    found = calibrate_scores(
        scores,
        scored.samples.nodes,
        scored.hierarchy,
        promises,
        outputs=view.outputs,
        temperature=temperature if temperature is not None else run.config.temperature,
        split=split,
        seed=seed,
    )
    found = replace(found, weights=weights_print(run), notes=_notes(run, split))
    write_calibration(found, run.folder / CALIBRATION)
    return found


def _held_out_command(run: Run) -> str:
    """The command that trains a run again and holds samples out."""
    held = "--validation 0.1" if run.config.kind == "probe" else "validation=0.1"
    return f"hace {run.config.kind} --config {run.folder / CONFIG} {held}"


def _notes(run: Run, split: str) -> tuple[str, ...]:
    if split == "test":
        return ("The test samples were used for calibration: accuracy on them is no longer a fair test.",)
    if isinstance(run.config, ProbeConfig) and run.config.patience is not None:
        return (
            "The epoch was chosen on the calibration samples (patience), so promises are slightly optimistic.",
        )
    return ()
