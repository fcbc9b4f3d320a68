"""A model that is known by its scores in a file: evaluated and calibrated as a run is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from hace.decisions.calibration import Calibration, calibrate_scores
from hace.decisions.scores import inside_subset
from hace.errors import DataError
from hace.formats.score_files import ScoreFile
from hace.hierarchy import Hierarchy
from hace.losses.head import leaf_logits
from hace.metrics.evaluation import Evaluation
from hace.metrics.evaluator import evaluate


@dataclass(frozen=True, eq=False)
class ScoredFile:
    """Scores in a file, with the truth. The file is read a chunk at a time, and at every use again.

    Attributes:
        scores: The file.
        truth: The true nodes.
        hierarchy: The hierarchy.
        kind: Whether the scores are logits or probabilities.
        sharing: Sharing of path sums, where the columns are outputs of nodes that add up along each path.
        groups: The group of each sample, where there are groups.
        labels: What messages call the truth, such as its file.
        order: Which entry of the truth belongs to each row of the file, where it is not the same order.
    """

    scores: ScoreFile
    truth: np.ndarray
    hierarchy: Hierarchy
    kind: Literal["logits", "probs", "sigmoid"]
    sharing: float | None = None
    groups: np.ndarray | None = None
    labels: str = "the truth"
    order: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.scores.rows != len(self.truth):
            raise DataError(
                f"{self.scores.path} has {self.scores.rows:,} rows and {self.labels} has {len(self.truth):,} labels. There "
                "must be one label per row."
            )

    @property
    def outputs(self) -> str:
        """What the columns are over, once path sums are collapsed."""
        return self.scores.outputs if self.sharing is None else "leaves"

    @cached_property
    def row_truth(self) -> np.ndarray:
        """The true node of each row."""
        return self.truth if self.order is None else self.truth[self.order]

    @cached_property
    def row_groups(self) -> np.ndarray | None:
        """The group of each row, where there are groups."""
        return self.groups if self.order is None or self.groups is None else self.groups[self.order]

    def report(self, *, progress: Callable[[int], object] | None = None, **options: Any) -> Evaluation:
        """All metrics, of the samples in the order of the truth; options as of :func:`hace.evaluate`."""
        forms = {"kind": self.kind, "outputs": self.outputs, "labels": "nodes", "groups": self.row_groups}
        if self.scores.samples is not None:
            options.setdefault("names", self.scores.samples())
        chunks = self._chunks()
        try:
            evaluation = evaluate(
                chunks, self.row_truth, self.hierarchy, progress=progress, **forms, **options
            )
        except DataError as error:
            raise DataError(f"{self.scores.path}: {self._what_is_wrong(error)}") from error
        if self.order is None:
            return evaluation
        order = self.order
        if options.get("only_subset"):
            order = order[inside_subset(self.hierarchy, options["subset"], self.row_truth)]
        return evaluation.of_samples(np.argsort(order))

    def calibrate(self, **options: Any) -> Calibration:
        """A temperature and thresholds; options as of :func:`hace.decisions.calibration.calibrate_scores`."""
        chunks = list(self._chunks())
        if not chunks:
            raise DataError(f"{self.scores.path} must hold at least one sample. Got none.")
        scores = torch.tensor(np.concatenate(chunks))
        options |= {"kind": self.kind, "outputs": self.outputs, "groups": self.row_groups}
        try:
            return calibrate_scores(
                scores, self.row_truth, self.hierarchy, split=self.scores.path.name, **options
            )
        except DataError as error:
            raise DataError([f"{self.scores.path}: {problem}" for problem in error.problems]) from error

    def _chunks(self) -> Iterator[np.ndarray]:
        """The scores as they are used."""
        for chunk in self.scores.chunks():
            if self.sharing is None:
                yield chunk
            else:
                yield leaf_logits(torch.tensor(chunk), self.hierarchy, "paths", self.sharing).numpy()

    def _what_is_wrong(self, error: DataError) -> str:
        """The message about bad rows; where they are NaN, counted over the whole file instead of one chunk."""
        bad = [np.isnan(chunk).any(axis=1) for chunk in self.scores.chunks()]
        rows = np.flatnonzero(np.concatenate(bad))
        if not len(rows):  # the error counts rows from 0
            return re.sub(r"\brow (\d+)", lambda row: self.scores.place(int(row[1])), str(error))
        return (
            f"scores must not hold NaN. {len(rows):,} of {self.scores.rows:,} rows break this rule; the first is "
            f"{self.scores.place(int(rows[0]))}. Check the model that made them."
        )
