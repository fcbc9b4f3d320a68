"""`hace check`: whether a guarantee can be trusted on new samples."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from cyclopts import Parameter

from hace.cli.engine import With, more
from hace.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hace.decisions.calibration import Calibration
    from hace.decisions.check import Check
    from hace.decisions.scores import Scores
    from hace.hierarchy import Hierarchy


def check(
    model: Path,
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
    kind: Annotated[Literal["logits", "probs", "sigmoid"], With("--hierarchy"), more] = "logits",
    outputs: Annotated[Literal["auto", "leaves", "nodes"], With("--hierarchy"), more] = "auto",
    key: Annotated[str | None, With("--hierarchy"), more] = None,
    page: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json"), more] = False,
) -> None:
    """Check a guarantee on samples of a new site, season or donor, before anyone trusts the answers: it holds, there is no
    evidence against it, or it is broken.

    Examples
      hace check birds.hace new-photos                                                a model of hace fit, without labels
      hace check birds.hace new-photos --labels some.csv --label-column species       with some labels; -1 or empty: unknown
      hace check calibration.json new.npy --hierarchy tree.csv
      hace check calibration.json new.npy --hierarchy tree.csv --labels some.csv
      hace check runs/latest new.npz --accuracy 0.9

    Without labels, the new samples' confidence and answers are compared with those of the calibration samples; for a model of
    hace fit, so is their similarity to the training samples. With some labels, in order of arrival, the guarantee itself is
    tested, and you may check after every label. Label a random part of the samples, not the odd or the sure ones. The output
    includes the threshold that these labels support. If the guarantee is about new groups, --groups names each sample's group;
    if it is about a share of them, or about answers, label whole groups.

    Args:
        model: Model of `hace fit`, or a calibrated run or its exported file; with --hierarchy, a file of `hace calibrate`.
        new: New samples, as `hace predict` takes them; with --hierarchy their scores: .npy, .npz, .csv or .parquet.
        hierarchy: Hierarchy of the scores, in any form that `hace hierarchy` reads.
        labels: Known labels, in the order of the samples: .npy, .npz, .csv or .txt. A .csv may name groups alone.
        label_column: Column to read from a .csv of labels.
        groups: Column of --labels that names each sample's group.
        accuracy: Guarantee to check.
        of: Subject of the guarantee.
        false_alarm: Probability of a false alarm.
        kind: What the scores are.
        outputs: Meaning of the columns (default: by their number).
        key: Array to read from an .npz of scores.
        page: Page with the result to write.
        as_json: Print the result as JSON.
    """
    truth = Truth(labels, label_column, groups)
    if hierarchy is not None:
        scores = _open(model, new, hierarchy, kind, outputs, key)
        result = _check_scores(*scores, truth, accuracy, of, false_alarm)
    elif model.suffix.lower() == ".json":
        raise ConfigError(
            f"--hierarchy must come with a calibration and scores. Got {model} alone. Give the hierarchy, or a model, which "
            "holds it."
        )
    else:
        result = _check_model(model, new, truth, accuracy, of, false_alarm)
    print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else result)
    if page is not None:
        from hace.lab.report.check_page import write_check

        write_check(result, page)
        print(f"wrote {page}", file=sys.stderr)


@dataclass(frozen=True)
class Truth:
    """Where labels of new samples are, and their groups."""

    labels: Path | None
    column: str | None
    groups: str | None

    def read(self, h: Hierarchy, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
        """(S,) the nodes of labels, -1 where there is none, and (S,) groups where there are any."""
        if self.labels is None:
            return np.full(samples, -1), None
        if self.names_groups_alone():
            return np.full(samples, -1), _groups(self.labels, self.groups)
        truth = _known_truth(self.labels, self.column, h)
        if len(truth) != samples:
            raise DataError(
                f"{self.labels} must have one label for each of the {samples:,} samples. Got {len(truth):,} labels."
            )
        return truth, _groups(self.labels, self.groups)

    def names_groups_alone(self) -> bool:
        """Whether the file has a column of groups and none of labels, which is then said."""
        if self.labels is None or self.column is not None or self.groups is None:
            return False
        from hace.files.documents import read_rows

        header, _ = read_rows(self.labels)
        if self.groups not in header or {"label", "labels"} & {name.casefold() for name in header}:
            return False
        print(
            f"{self.labels} has no column of labels: none is known (--label-column names one)",
            file=sys.stderr,
        )
        return True


def _check_model(path: Path, new: Path, truth: Truth, accuracy: float, of: str, level: float) -> Check:
    """The check of a model on samples; of a model of `hace fit` by the similarity to its training samples, too."""
    from hace.decisions.scores import Scores
    from hace.fitting.model import is_fitted, load
    from hace.lab.runs.process import keep_freed_memory
    from hace.lab.serve.predictor import Predictor

    keep_freed_memory()
    if is_fitted(path):
        model = load(path)
        known = None
        named = None
        if truth.labels is not None and truth.names_groups_alone():
            named = _groups(truth.labels, truth.groups)
        elif truth.labels is not None:
            h = model.hierarchy
            nodes = _known_truth(truth.labels, truth.column, h).tolist()
            known = [h.nodes[v] if v >= 0 else None for v in nodes]
            named = _groups(truth.labels, truth.groups)
        return model.check(new, known, accuracy, named, of=of, level=level)
    predictor = Predictor.from_run(str(path))
    made = predictor.calibration
    scores, outputs = predictor.scores(predictor.inputs([str(new)]))
    return _check_scores(
        made, Scores(scores, predictor.hierarchy, "logits", outputs), truth, accuracy, of, level
    )


def _open(
    path: Path, new: Path, hierarchy: str, kind: str, outputs: str, key: str | None
) -> tuple[Calibration, Scores]:
    """A calibration from a file, or a run that holds one, and scores from a file."""
    from hace.decisions.calibration import read_calibration
    from hace.decisions.scores import Scores
    from hace.formats import read_hierarchy
    from hace.formats.score_files import open_scores

    h = read_hierarchy(hierarchy)
    path = path / "calibration.json" if path.is_dir() else path
    made = read_calibration(path)
    made.check_hierarchy(h, path, "hace calibrate")
    file = open_scores(new, h, absent=float("-inf") if kind == "logits" else 0.0, key=key, outputs=outputs)
    chunks = list(file.chunks())
    if not chunks:
        raise DataError(f"{new} must hold at least one sample. Got none.")
    return made, Scores(np.concatenate(chunks), h, kind, file.outputs)


def _check_scores(
    made: Calibration, scores: Scores, truth: Truth, accuracy: float, of: str, level: float
) -> Check:
    nodes, groups = truth.read(scores.hierarchy, len(scores))
    return made.check(scores, accuracy, of, truth=nodes, groups=groups, level=level)


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
