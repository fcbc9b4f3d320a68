"""`hace check`: whether a guarantee can be trusted on new samples."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from cyclopts import Parameter

from hace.cli.engine import With, more
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy

if TYPE_CHECKING:
    from hace.decisions.check import Check


def check(
    calibration: Path,
    new: Path,
    /,
    *,
    hierarchy: str | None = None,
    labels: Path | None = None,
    label_column: Annotated[str | None, With("--labels")] = None,
    groups: Annotated[str | None, With("--labels")] = None,
    accuracy: float = 0.95,
    of: Literal["samples", "answers"] = "samples",
    false_alarm: Annotated[float, more] = 0.05,
    kind: Annotated[Literal["logits", "probs"], more] = "logits",
    outputs: Annotated[Literal["auto", "leaves", "nodes"], more] = "auto",
    key: Annotated[str | None, more] = None,
    page: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json"), more] = False,
) -> None:
    """Check a guarantee on samples of a new site, season or donor, before anybody trusts the answers: it holds, there is no
    evidence against it, or it is broken.

    Examples
      hace check birds.hace new-photos                                                a model of hace fit, without labels
      hace check birds.hace new-photos --labels some.csv --label-column species       with some: -1, or empty, where unknown
      hace check calibration.json new.npy --hierarchy tree.csv
      hace check calibration.json new.npy --hierarchy tree.csv --labels some.csv
      hace check runs/4cd033b43672ca23 new.npy --hierarchy tree.csv --accuracy 0.9

    Without labels, confidence, answers and, for a model of hace fit, similarity to the training samples are compared with those
    of the calibration samples. With some labels, in the order in which they arrive, bets test the guarantee itself: check after
    each, as often as you like. Labels must be of a random part of the samples, not of the odd ones or the sure ones. The
    threshold that these labels support is shown. Where the guarantee is about new groups, --groups names the group of each.

    Args:
        calibration: A model of `hace fit`; or a file of `hace calibrate`, or a run that holds one.
        new: New samples, as `hace predict` takes them; for a calibration their scores: .npy, .npz, .csv or .parquet.
        hierarchy: For a calibration: the hierarchy, what `hace hierarchy` reads.
        labels: The truth, in the order of the samples, as far as it is known: .npy, .npz, .csv or .txt.
        label_column: The column to take from a .csv of labels.
        groups: The column of --labels that names the group of each sample.
        accuracy: The guarantee to check.
        of: What the guarantee is about.
        false_alarm: The probability of a false alarm.
        kind: What the scores are.
        outputs: What the columns are (default: by their number).
        key: The array to take from an .npz of scores.
        page: Where to write a page with the result.
        as_json: Print the result as JSON.
    """
    if calibration.suffix.lower() == ".hace":
        result = _check_model(calibration, new, labels, label_column, groups, accuracy, of, false_alarm)
    else:
        if hierarchy is None:
            raise ConfigError(
                f"--hierarchy must come with a calibration and scores. Got {calibration} alone. Give the hierarchy, or a model "
                "of `hace fit` (.hace), which holds it."
            )
        result = _check_scores(
            calibration,
            new,
            hierarchy,
            labels,
            label_column,
            groups,
            accuracy,
            of,
            false_alarm,
            kind,
            outputs,
            key,
        )
    print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else result)
    if page is not None:
        from hace.lab.report.check_page import write_check

        write_check(result, page)
        print(f"wrote {page}", file=sys.stderr)


def _check_model(
    path: Path,
    new: Path,
    labels: Path | None,
    label_column: str | None,
    groups: str | None,
    accuracy: float,
    of: str,
    level: float,
) -> Check:
    """The check of a model of `hace fit` on samples."""
    from hace.fitting.model import load

    model = load(path)
    known, named = None, None
    if labels is not None:
        h = model.hierarchy
        truth = _known_truth(labels, label_column, h)
        known, named = [h.nodes[v] if v >= 0 else None for v in truth.tolist()], _groups(labels, groups)
    return model.check(new, known, accuracy, named, of=of, level=level)


def _check_scores(
    calibration: Path,
    scores: Path,
    hierarchy: str,
    labels: Path | None,
    label_column: str | None,
    groups: str | None,
    accuracy: float,
    of: str,
    level: float,
    kind: Literal["logits", "probs"],
    outputs: str,
    key: str | None,
) -> Check:
    """The check of a calibration on scores."""
    from hace.decisions.calibration import read_calibration
    from hace.formats import read_hierarchy
    from hace.formats.score_files import open_scores
    from hace.metrics.scored_file import ScoredFile

    h = read_hierarchy(hierarchy)
    path = calibration / "calibration.json" if calibration.is_dir() else calibration
    made = read_calibration(path)
    made.check_hierarchy(h, path, "hace calibrate")
    file = open_scores(scores, h, absent=0.0 if kind == "probs" else float("-inf"), key=key, outputs=outputs)
    truth, named = np.full(file.rows, -1), None
    if labels is not None:
        truth, named = _known_truth(labels, label_column, h), _groups(labels, groups)
    return ScoredFile(file, truth, h, kind, None, named, str(labels)).check(made, accuracy, of, level)


def _known_truth(labels: Path, column: str | None, h: Hierarchy) -> np.ndarray:
    """(S,) the nodes of labels, -1 where there is none."""
    from hace.formats.score_files import read_values
    from hace.hierarchy.names import label_nodes

    values, _ = read_values(labels, None, column)
    known = np.array([str(value) not in ("-1", "") for value in values.tolist()])
    truth = np.full(len(values), -1)
    if known.any():
        truth[known] = label_nodes(values[known], h, "auto", str(labels))
    return truth


def _groups(labels: Path, column: str | None) -> np.ndarray | None:
    from hace.formats.score_files import read_values

    if column is None:
        return None
    if labels.suffix.lower() != ".csv":
        raise ConfigError(f"--groups must name a column of a .csv. Got {labels}.")
    return read_values(labels, None, column)[0]
