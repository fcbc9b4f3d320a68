"""The calibration of a finished run: made on samples it was not trained on, kept beside it, and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hace.checks import check_choice
from hace.decisions.calibration import Calibration, calibrate_scores, read_calibration
from hace.decisions.trust import RightShare, right_share, why_broken
from hace.errors import ConfigError
from hace.files.writing import sha256
from hace.hierarchy.derived import is_above
from hace.lab.runs.config import ProbeConfig
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, CONFIG, PREDICTIONS, WEIGHTS, Run
from hace.lab.serve.load_run import open_finished
from hace.lab.serve.rescore import Rescored, fate_of_coarse, rescored

_ABOUT_CLASSES = (
    "the guarantee is about samples whose class is known. To include such samples, calibrate on labelled data with "
    "both: --samples PATH --coarse count."
)


def _coarse_note(scored: Rescored, counted: bool, held_out: bool) -> str | None:
    """What became of samples labelled above the classes, of those the run `held_out` or of others."""
    samples = scored.samples
    above = len(samples) - len(samples.leaf_only())
    all_of_them = (
        f"of {len(samples) + scored.passed_over:,} {scored.split} samples are labelled above the classes"
    )
    if counted and above:
        return (
            f"{above:,} {all_of_them} and count: an answer below such a label counts as false, which is the safe reading. "
            "--coarse drop leaves them out."
        )
    if held_out and scored.passed_over and scored.run.config.validation != "split":
        return (
            f"The run held out {len(samples):,} samples; {scored.passed_over:,} more were chosen, are labelled above the "
            f"classes, and it {fate_of_coarse(samples)} them instead: {_ABOUT_CLASSES}"
        )
    dropped = above + scored.passed_over
    return f"{dropped:,} {all_of_them} and are left out: {_ABOUT_CLASSES}" if dropped else None


def calibrate_run(
    folder: str | Path,
    accuracy: float | Sequence[float] | None = None,
    *,
    of: str | Sequence[str] | None = None,
    confidence: float | None = None,
    rule: str = "threshold",
    nodes: int | None = None,
    group_share: float | None = None,
    prefer: str = "steadier",
    by: str | None = None,
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
    progress: Callable[[int, int], Callable[[int], object]] | None = None,
) -> Calibration:
    """Calibrate a finished run on samples it was not trained on, and write calibration.json into it.

    Args:
        folder: The run directory.
        accuracy, of, confidence, rule, nodes, group_share, prefer, by: What to guarantee; as of :func:`calibrate_scores`.
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
        progress: Called with the number of samples and 0; what it returns is called with the samples of every batch.
        pool, subset, prior: As of :func:`calibrate_scores`. Groups are those of the data, where they have any.

    Raises:
        ConfigError: The run held out no samples.
        DataError: Too few samples for what was asked, or other data than the run's.
    """
    run = open_finished(folder)
    check_choice("split", split, ("val", "test"))
    check_choice("coarse", coarse, ("auto", "drop", "count"))
    own_split = None if data is not None else split  # None: other samples than the run's own
    if own_split == "val" and not run.config.validation:
        raise ConfigError(
            f"{folder} held out no samples to calibrate on: it was trained on all of them. {how_to_calibrate(run)} "
            "--split test spends the test samples."
        )
    count = coarse == "count" or (coarse == "auto" and own_split != "val")
    scored = rescored(
        folder,
        root=root,
        split=own_split,
        device=device,
        data=data,
        checkpoint=checkpoint,
        coarse=count,
    )
    used = np.arange(len(scored.samples)) if count else scored.samples.leaf_only()
    groups = scored.samples.groups
    view = ScoreView(scored.loss, scored.hierarchy, temperature=1.0)
    step = progress(len(scored.samples), 0) if progress is not None else lambda count: None
    scores = []
    for z in scored.outputs():
        scores.append(view(z))
        step(len(z))
    calibration = calibrate_scores(
        torch.cat(scores)[used],
        scored.samples.nodes[used],
        scored.hierarchy,
        accuracy,
        of=of,
        confidence=confidence,
        rule=rule,
        nodes=nodes,
        group_share=group_share,
        prefer=prefer,
        by=by,
        outputs=view.outputs,
        temperature=temperature if temperature is not None else run.config.temperature,
        split=scored.split,
        seed=seed,
        groups=None if groups is None else groups[used],
        pool=pool,
        subset=subset,
        prior=prior,
    )
    notes = _notes_on_samples(scored, count, own_split)
    # Both splits come from one source: if the run is right more often on one than chance explains, trust no guarantee.
    if own_split == "val" and (pool, subset, prior) == (None, None, None):
        calibration = replace(calibration, broken=why_broken(calibration.right, _right_on_test(run)))
    calibration = replace(calibration, weights=_weights_hash(run), notes=(*calibration.notes, *notes))
    calibration.write(run.folder / CALIBRATION if out is None else out)
    return calibration


def _notes_on_samples(scored: Rescored, count: bool, split: str | None) -> Iterator[str]:
    """What to know of the samples that calibrate; ``split``: of the run's own data, None for others."""
    config = scored.run.config
    note = _coarse_note(scored, count, held_out=split == "val")
    if note is not None:
        yield note
    if split == "test":
        yield "The test samples were used for calibration: accuracy on them is no longer a fair test."
    elif split is not None and isinstance(config, ProbeConfig) and config.patience is not None:
        yield "The calibration samples chose the epoch (patience), so guarantees are slightly optimistic."


def _right_on_test(run: Run) -> RightShare | None:
    """How often the run is right on its test samples, as it found when it ended."""
    if run.config.evaluate != "test" or PREDICTIONS not in run.files:
        return None
    known = run.predictions()
    return right_share(is_above(run.hierarchy, known["truth"], known["answer"]), known.get("group"))


def _weights_hash(run: Run) -> str:
    return run.files.get(WEIGHTS) or sha256(run.folder / WEIGHTS)


def how_to_calibrate(run: Run) -> str:
    """The command that calibrates a run, or those that can where it held out nothing."""
    if run.config.validation:
        return f"Run: hace calibrate {run.folder}"
    share = "split" if run.about["data"].get("own_validation") else "0.1"
    return (
        f"Calibrate on other labelled samples: hace calibrate {run.folder} --samples PATH; or hold some out "
        f"and train again: hace {run.config.kind} --config {run.folder / CONFIG} --validation {share}, then calibrate "
        "the new run."
    )


def calibration_of(run: Run, given: str | Path | None = None) -> Calibration:
    """The calibration in a run directory, or in a file made for this run or from its scores."""
    path = Path(given or run.folder / CALIBRATION)
    again = f"hace calibrate {run.folder}"
    if not path.is_file():
        raise ConfigError(
            f"{run.folder} must be calibrated before it can guarantee an accuracy: it has no {CALIBRATION}. "
            f"{how_to_calibrate(run)}"
        )
    calibration = read_calibration(path, f" Calibrate again: {again}")
    calibration.check_hierarchy(run.hierarchy, path, again)
    weights = _weights_hash(run)
    is_of_scores = given is not None and calibration.weights is None
    if calibration.weights != weights and not is_of_scores:
        raise ConfigError(
            f"{path} must be made with the weights of the run. It was made with {str(calibration.weights)[:12]}, and the run "
            f"has {weights[:12]}. Calibrate again: {again}"
        )
    return calibration
