"""`hace calibrate`: one temperature, and thresholds that keep a guarantee."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hace.cli.engine import Numbers, With, Without, alarmed, comma, more
from hace.cli.options import Checkpoint, MovedData, Restrictions, ScoreFiles
from hace.errors import BROKEN, ConfigError

if TYPE_CHECKING:
    from hace.decisions import GuaranteedThreshold
    from hace.decisions.calibration import Calibration

GUARANTEED = {
    "samples": "of all {unit}, at most 1 - accuracy get a false answer",
    "answers": "of the answers below the root, at least the share accuracy is true",
}


def calibrate(
    run: Annotated[str | None, Without("--scores")] = None,
    /,
    *,
    accuracy: Numbers | None = None,
    of: Annotated[tuple[Literal["samples", "answers"], ...] | None, comma] = None,
    confidence: float | None = None,
    samples: Annotated[Path | None, With("RUN")] = None,
    place: Annotated[Path | None, Parameter(name="--for"), With("--samples")] = None,
    split: Annotated[Literal["val", "test"], With("RUN"), Without("--samples")] = "val",
    out: Path | None = None,
    files: ScoreFiles = ScoreFiles(),
    group_share: Annotated[float | None, more] = None,
    prefer: Annotated[Literal["steadier", "sharper"], more] = "steadier",
    by: Annotated[str | None, more] = None,
    frequencies: Annotated[Path | None, With("--scores"), more] = None,
    pool: Annotated[Literal["log", "mean"] | None, more] = None,
    restrictions: Restrictions = Restrictions(),
    rule: Annotated[Literal["threshold", "climb", "own", "set"], more] = "threshold",
    nodes: Annotated[int | None, With("--rule set"), more] = None,
    temperature: Annotated[float | None, more] = None,
    seed: Annotated[int, more] = 0,
    coarse: Annotated[Literal["auto", "drop", "count"], With("RUN"), more] = "auto",
    checkpoint: Annotated[Checkpoint, With("RUN"), more] = None,
    data_root: Annotated[MovedData, With("RUN"), Without("--samples"), more] = None,
    device: Annotated[str, With("RUN"), more] = "auto",
    as_json: Annotated[bool, Parameter(name="--json"), more] = False,
) -> None:
    """Calibrate a finished run, or the scores of any model, on samples it was not trained on: a temperature, so that
    probabilities mean what they say, and thresholds, so that `hace predict --accuracy 0.95` keeps its guarantee on new samples.

    Examples
      hace calibrate runs/latest                                   then: hace predict runs/latest photos --accuracy 0.95
      hace calibrate runs/latest --accuracy 0.9,0.97 --of samples
      hace calibrate runs/latest --confidence 0.95                 guarantees that hold with probability 0.95
      hace calibrate shop.safetensors --samples val.npz            a file of hace export, or of HACEClassifier.save
      hace calibrate birds.hace --samples more.csv --for new-photos   guarantees for photos as unlike those of training as these
      hace calibrate --hierarchy tree.csv --scores val.npy --labels y.npy --out calibration.json
                                                                   then: hace evaluate --calibration FILE --accuracy 0.95

    Samples that come in groups, such as photos of one site, resemble each other. If the run's data have groups, or --groups
    names them, guarantees are about new groups. Each group counts the same; with --group-share S, at least S of new groups keep
    the guarantee. With --pool a group gets one answer, from all of its samples, and guarantees are about these answers.

    An answer is true if it is the truth or an ancestor of it; the root, or no answer, says nothing. There are two guarantees:

      --of samples   at most 1 - A of all samples get a false answer; saying nothing is not false
      --of answers   at least A of the answers below the root are true

    A guarantee about samples holds on average over calibrations, or with probability C if --confidence C is given; one about
    answers always holds with a probability (default: 0.9). Guarantees assume that new samples come from the same source as the
    calibration samples, that nothing was chosen by looking at them, and that --subset and --prior stay the same.

    A run is calibrated on the samples it held out (hace probe --validation 0.1): a third fits the temperature, the rest the
    thresholds. The result is RUN/calibration.json. Test samples are used only on request: --split test.

    Args:
        run: Finished run, or a model file with --samples; or give --hierarchy, --scores and --labels.
        accuracy: Accuracies A to guarantee, separated by commas (default: 0.8,0.9,0.95,0.99, if there are enough samples).
        of: Subject of the guarantees (default: samples,answers, where possible).
        confidence: Probability with which guarantees hold (default: on average; 0.9 for answers).
        samples: Labelled samples to use in place of the run's own: class folders, a CSV list, features.
        place: Unlabelled samples from where a model of `hace fit` will be used. Calibration samples are drawn to be as similar
            to the training samples as these; `hace fit --for` goes further and splits accordingly.
        split: Split of the run's data to calibrate on.
        out: File to write (default: into the run, or calibration.json).
        group_share: Share of new groups that keep a guarantee (default: on average over new groups).
        prefer: Samples a guarantee about new groups rests on: all of each group (steadier), or one at random (sharper), which
            answers more with few groups but varies more.
        by: "class" or the name of a rank: guarantees then hold within each class, or each node of the rank. Classes with too
            few samples are pooled with relatives.
        frequencies: Scores of unlabelled new samples with other class frequencies, which calibration samples are drawn to
            match. Assumes that within each class new samples look like the calibration samples.
        pool: One answer per group, from the mean of its log-probabilities (log) or probabilities (mean).
        rule: How to answer: walk down from the root (threshold), climb from the best class (climb), allow "another gull" (own),
            or name several nodes (set), "the truth is under one of these".
        nodes: Largest number of nodes, with --rule set.
        temperature: Temperature fitted on other samples; 1 leaves scores unchanged.
        seed: Random seed of the samples that fit the temperature.
        coarse: What to do with samples labelled above the classes: drop them, or count answers below such a label as false;
            auto drops held-out ones.
        device: Device for a run of `hace train`.
        as_json: Print the calibration as JSON instead of a table.
    """
    how: dict[str, Any] = {
        "accuracy": None if accuracy is None else list(dict.fromkeys(accuracy)),
        "of": None if of is None else list(dict.fromkeys(of)),
        "confidence": confidence,
        "rule": rule,
        "nodes": nodes,
        "group_share": group_share,
        "prefer": prefer,
        "by": by,
        "temperature": temperature,
        "seed": seed,
        "pool": pool,
    }
    if run is not None:
        from hace.lab.runs.process import keep_freed_memory

        keep_freed_memory()
    if run is None:
        calibration = calibrate_file(files, restrictions, how, frequencies)
        path = out or Path("calibration.json")
        calibration.write(path)
    elif Path(run).is_file():
        path = out or Path(run)
        calibration = calibrate_model(run, samples, place, restrictions, out, {**how, "coarse": coarse})
    else:
        if place is not None:
            raise ConfigError(
                "--for must come with a model of `hace fit`, which knows its training samples. Got a run."
            )
        from hace.lab.runs.process import progress
        from hace.lab.serve.calibrate_run import calibrate_run
        from hace.lab.serve.load_run import open_finished

        path = out or Path(run) / "calibration.json"
        how |= {"split": split, "device": device, "data": samples, "checkpoint": checkpoint, "coarse": coarse}
        how |= restrictions.on(open_finished(run).hierarchy)
        with progress("calibrate", "samples") as start:
            calibration = calibrate_run(run, root=data_root, out=out, progress=start, **how)
    if as_json:
        print(json.dumps(calibration.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(alarmed(calibration_text(calibration), sys.stdout))
    print(f"wrote {path}", file=sys.stderr if as_json else sys.stdout)


def calibrate_model(
    model: str,
    samples: Path | None,
    place: Path | None,
    restrictions: Restrictions,
    out: Path | None,
    how: dict[str, Any],
) -> Calibration:
    """Calibrate the model of a file, and write the calibration into it or to --out; `place`: new samples."""
    from hace.lab.serve.export import store_calibration
    from hace.lab.serve.predictor import ExportedPredictor

    if samples is None:
        raise ConfigError(f"--samples must be given to calibrate {model}: it holds no samples.")
    from hace.fitting.model import is_fitted
    from hace.fitting.new_samples import labelled_samples
    from hace.lab.runs.process import progress

    predictor = ExportedPredictor(model)
    labelled = labelled_samples(predictor, samples)
    how |= _similarities(model, labelled, place, how)
    with progress("calibrate", "samples") as start:
        scored = predictor.labelled_scores(labelled, start)
    calibration = predictor.calibrate(
        labelled, split=samples.name, scored=scored, **how, **restrictions.on(predictor.hierarchy)
    )
    if out is not None:
        calibration.write(out)
    elif is_fitted(model):
        plain = not (calibration.pool or calibration.subset or calibration.prior)
        store_calibration(
            model, calibration, **(_new_findings(model, calibration, labelled, scored) if plain else {})
        )
        _write_again(Path(model))
    else:
        store_calibration(model, calibration)
    return calibration


def _write_again(model: Path) -> None:
    """The page and the card of a model anew, where they are beside it."""
    from hace.files.writing import write_whole
    from hace.fitting.model import load

    made = load(model).named(model.name)
    page = model.with_suffix(".html")
    card = model.with_suffix(".card.md")
    if page.is_file():
        print(f"wrote {made.report(page)}", file=sys.stderr)
    if card.is_file():
        write_whole(card, made.card().encode())
        print(f"wrote {card}", file=sys.stderr)


def _new_findings(model: str, calibration: Calibration, labelled: Any, scored: Any) -> dict[str, Any]:
    """What the file of a fit says about the guarantees of a new calibration."""
    import numpy as np

    from hace.decisions.rules import top_k
    from hace.decisions.scores import Scores
    from hace.fitting.model import load
    from hace.fitting.recalibration import after_calibration
    from hace.hierarchy.derived import is_above

    fitted = load(model)
    scores = Scores(scored[0], fitted.hierarchy, "logits", scored[1])
    best = top_k(scores.log_q(), fitted.hierarchy).nodes.numpy()
    right = is_above(fitted.hierarchy, labelled.nodes, best)
    groups = None if labelled.groups is None else np.asarray(labelled.groups)
    return {
        "fit": after_calibration(
            fitted.findings, calibration, scores, labelled.nodes, right, groups
        ).to_dict()
    }


def _similarities(model: str, labelled: Any, place: Path | None, how: dict[str, Any]) -> dict[str, Any]:
    """How near labelled samples and new ones are to the training samples, where the model knows these."""
    from hace.fitting.model import is_fitted, load

    if not is_fitted(model):
        if place is not None:
            raise ConfigError(
                f"--for must come with a model of `hace fit`, which knows its training samples. Got {model}."
            )
        return {}
    import numpy as np

    from hace.data import Features, Samples

    fitted = load(model)
    if fitted.classifier._nearness is None and place is None:
        return {}
    rows = labelled.leaf_only() if how["coarse"] == "drop" else np.arange(len(labelled))
    if isinstance(labelled, Features):
        given: Any = np.asarray(labelled.x)
    else:
        given = list(labelled.paths or ()) if isinstance(labelled, Samples) else list(labelled.texts)
    near = {"similarity": fitted.similarity(given)[rows]}
    return near if place is None else {**near, "new_similarity": fitted.similarity(place)}


def calibrate_file(
    files: ScoreFiles, restrictions: Restrictions, how: dict[str, Any], frequencies: Path | None
) -> Calibration:
    """Calibrate scores from a file."""
    if files.scores is None:
        raise ConfigError(
            "hace calibrate must have a RUN, or --hierarchy, --scores and --labels. Got neither."
        )
    h = files.read_hierarchy()
    scored = files.open(files.scores, h, files.read_truth(h), str(files.labels))
    if frequencies is not None:
        import numpy as np

        from hace.formats.score_files import open_scores

        absent = float("-inf") if files.kind == "logits" else 0.0
        new = open_scores(frequencies, h, key=files.key, outputs=scored.scores.outputs, absent=absent)
        how = {**how, "frequencies": np.concatenate(list(new.chunks()))}
    return scored.calibrate(**how, **restrictions.on(h))


def in_groups(guarantee: GuaranteedThreshold) -> str:
    """What a guarantee about new groups begins with; "" for one about samples."""
    if guarantee.num_groups is None:
        return ""
    share = guarantee.group_share
    that = " that get answers" if guarantee.of == "answers" else ""
    if share is None:
        return f"in a new group{that.replace('get', 'gets')}, on average, "
    return f"in at least {share:g} of new groups{that}, "


def _about_temperature(temperature: float, fitted: str) -> str:
    """Where a fitted temperature comes from, and what it says about the scores."""
    if temperature == 1.0:
        return f"not fitted: the best answer is right in all {fitted} set aside for that"
    sure = "over-confident" if temperature > 1 else "under-confident"
    return f"fitted on {fitted}: raw scores are {sure}"


def calibration_text(calibration: Calibration) -> str:
    """A calibration, for a person."""
    how = "as given"
    further = ""
    unit = "samples" if calibration.pool is None else "groups"
    if calibration.temperature_samples:
        # What a run holds out is called val, be it a split of the user or a share of the training samples.
        source = "held-out" if calibration.split == "val" else calibration.split
        fitted = f"{calibration.temperature_samples:,} of the {source} {unit}"
        how = _about_temperature(calibration.temperature, fitted)
        further = "further "
    lines = [f"temperature {calibration.temperature:.4g}, {how}", ""]
    first = calibration.thresholds[0]
    of_groups = f" in {first.num_groups:,} groups, about new groups" if first.num_groups is not None else ""
    lines.append(f"guarantees, from {calibration.samples:,} {further}{unit}{of_groups}")
    for of in dict.fromkeys(t.of for t in calibration.thresholds):
        same = [t for t in calibration.thresholds if t.of == of]
        sure = same[0].confidence
        holds = "on average" if sure is None else f"with probability {sure:g}"
        where = in_groups(same[0])
        what = GUARANTEED[of].removeprefix("of all {unit}, " if where else "").format(unit=unit)
        lines.append(f"  --of {of}: {where}{what}, {holds}")
        for t in same:
            which = "thresholds by class" if isinstance(t.threshold, dict) else f"threshold {t.threshold:.4f}"
            text = f"{which}, answers {t.answered:.1%}"
            lines.append(f"    --accuracy {t.accuracy:<5g} {'answers nothing' if t.is_silent else text}")
    lines += [f"  not possible: {reason}" for reason in calibration.missing]
    strictest = max(calibration.thresholds, key=lambda t: t.confidence is not None)
    assumed = [f"  - {text}" for text in strictest.assumed(unit)]
    lines += ["", "what a guarantee assumes", *assumed]
    broken = [f"{BROKEN}: {calibration.broken}"] if calibration.broken else []
    return "\n".join([*lines, *calibration.notes, *broken, ""])
