"""Calibrating a finished model on samples it was not trained on: one temperature, and thresholds that keep promises.

    calibrate_run("runs/4cd033b43672ca23")                                     # writes calibration.json into the run
    Predictor.from_run("runs/4cd033b43672ca23").predict("photos", accuracy=0.95)

A third of the calibration samples fits the temperature and the rest the thresholds, unless the temperature is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hace.checks import check_choice
from hace.decisions.calibration import Calibration, PromiseRequest, calibrate_scores, read_calibration
from hace.errors import ConfigError
from hace.files.writing import sha256
from hace.lab.runs.config import ProbeConfig
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, CONFIG, WEIGHTS, Run
from hace.lab.serve.load_run import open_finished, rescored

_COUNTED = "count: an answer below such a label counts as false, which is the safe reading. --coarse drop leaves them out."
_DROPPED = (
    "are left out: the promise is about samples that can be told to a class. To include such samples, calibrate on labelled "
    "data with both: --data PATH --coarse count."
)


def calibrate_run(
    folder: str | Path,
    promises: PromiseRequest | None = None,
    *,
    split: str = "val",
    root: str | Path | None = None,
    temperature: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    data: str | Path | None = None,
    checkpoint: str | Path | None = None,
    coarse: str = "auto",
    out: str | Path | None = None,
    pool: str | None = None,
    subset: Sequence[str] | None = None,
    prior: Mapping[str, float] | None = None,
) -> Calibration:
    """Calibrate a finished run on samples it was not trained on, and write calibration.json into it.

    Args:
        folder: The run directory.
        promises: What to promise.
        split: "val", the samples the run held out. "test" spends the test samples: accuracy on them is no longer a test.
        root: Where its data are now, if they were moved.
        temperature: Fitted on other samples. None: that of the run, if it has it from its configuration; otherwise it is
            fitted on a third of the samples.
        seed: Chooses that third.
        device: Where the model computes.
        data: Other labelled data instead, and
        checkpoint: the weights behind the features of a probe on images; both as of :func:`hace.rescored`.
        coarse: What becomes of samples labelled above the leaves: "drop", or "count": an answer below such a label counts as
            false, which is the safe reading. "auto" drops them from samples that the run held out, and counts others.
        out: Where to write the calibration instead.
        pool, subset, prior: As of :func:`calibrate_scores`. Groups are those of the data, where they have any.

    Raises:
        ConfigError: The run held out no samples.
        DataError: Too few samples for what was asked, or other data than the run's.
    """
    run = open_finished(folder)
    check_choice("split", split, ("val", "test"))
    check_choice("coarse", coarse, ("auto", "drop", "count"))
    if data is None and split == "val" and not run.config.validation:
        raise ConfigError(
            f"{folder} held out no samples to calibrate on: it was trained on all of them. Train the same with some held out: "
            f"hace {run.config.kind} --config {run.folder / CONFIG} --validation 0.1; or calibrate scores of other samples: "
            "hace calibrate --hierarchy FILE --scores FILE --labels FILE. --split test spends the test samples."
        )
    count = coarse == "count" or (coarse == "auto" and (data is not None or split == "test"))
    given = {"data": data, "checkpoint": checkpoint, "coarse": count}
    scored = rescored(folder, root=root, split=None if data is not None else split, device=device, **given)
    fine = scored.samples.leaf_only()
    used = np.arange(len(scored.samples)) if count else fine
    above = scored.left_out + len(scored.samples) - len(fine)
    view = ScoreView(scored.loss, scored.hierarchy, temperature=1.0)
    found = calibrate_scores(
        torch.cat([view(z) for z in scored.outputs()])[used],
        scored.samples.nodes[used],
        scored.hierarchy,
        promises,
        outputs=view.outputs,
        temperature=temperature if temperature is not None else run.config.temperature,
        split=scored.split,
        seed=seed,
        groups=scored.samples.groups,
        pool=pool,
        subset=subset,
        prior=prior,
    )
    notes = found.notes
    if above:
        total = len(scored.samples) + scored.left_out
        told = f"{above:,} of {total:,} {scored.split} samples are labelled above the classes"
        notes += (f"{told} and {_COUNTED if count else _DROPPED}",)
    if data is not None:
        pass
    elif split == "test":
        notes += ("The test samples were used for calibration: accuracy on them is no longer a fair test.",)
    elif isinstance(run.config, ProbeConfig) and run.config.patience is not None:
        notes += ("The calibration samples chose the epoch (patience), so promises are slightly optimistic.",)
    found = replace(found, weights=_weights_hash(run), notes=notes)
    found.write(run.folder / CALIBRATION if out is None else out)
    return found


def _weights_hash(run: Run) -> str:
    known = (run.result or {}).get("files", {}).get(WEIGHTS)
    return known["sha256"] if known is not None else sha256(run.folder / WEIGHTS)


def calibration_of(run: Run, given: str | Path | None = None) -> Calibration:
    """The calibration in a run directory, or in a file made for this run or from its scores."""
    path, again = Path(given or run.folder / CALIBRATION), f"hace calibrate {run.folder}"
    if not path.is_file():
        raise ConfigError(
            f"{run.folder} must be calibrated before it can promise an accuracy: it has no {CALIBRATION}. Run: {again}"
        )
    found = read_calibration(path, f" Calibrate again: {again}")
    found.check_hierarchy(run.hierarchy, path, again)
    weights = _weights_hash(run)
    if found.weights != weights and not (given and found.weights is None):
        raise ConfigError(
            f"{path} must be made with the weights of the run. It was made with {str(found.weights)[:12]}, and the run has "
            f"{weights[:12]}. Calibrate again: {again}"
        )
    return found
