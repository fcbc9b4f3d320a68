"""The classifier of a choice, trained on all training samples and calibrated on samples that chose nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hace.decisions.nearness import Nearness
from hace.errors import DataError
from hace.fitting import large
from hace.fitting.choice import Trial
from hace.fitting.inputs import Given, in_memory
from hace.fitting.splits import Splits
from hace.hierarchy import Hierarchy
from hace.lab.features.store import column_moments
from hace.linear.estimator import HACEClassifier
from hace.linear.features import RowsOnDisk
from hace.linear.selection import spread
from hace.losses.registry import build_loss

_ROWS = 8192  # features that are scaled at once


@dataclass(frozen=True, eq=False)
class View:
    """How training sees features: (x - mean) / divisor. A trained classifier takes it into its weights."""

    mean: np.ndarray | None
    divisor: np.ndarray

    @classmethod
    def of(cls, x: Any, standardised: bool) -> View:
        """Columns standardised, or all features as they are, at one scale."""
        if not standardised:
            return cls(None, np.full(x.shape[1], np.sqrt(spread(x))))
        mean, std = column_moments(x)
        return cls(mean.astype(np.float64), std * np.sqrt(x.shape[1]))

    def __call__(self, x: Any) -> Any:
        """Features (M, d) in single precision, as training sees them."""
        if hasattr(x, "tocsr"):
            return x.multiply(1 / self.divisor).tocsr().astype(np.float32)
        if isinstance(x, RowsOnDisk):
            return large.scaled(x, self.mean, self.divisor)
        seen = np.empty(x.shape, dtype=np.float32)
        for first in range(0, len(x), _ROWS):
            part = slice(first, first + _ROWS)
            seen[part] = (x[part] if self.mean is None else x[part] - self.mean) / self.divisor
        return seen

    def into(self, clf: HACEClassifier) -> None:
        """Let a classifier that was trained on the view take features as they are."""
        clf.coef_ = clf.coef_ / self.divisor
        if self.mean is not None:
            clf.intercept_ = clf.intercept_ - clf.coef_ @ self.mean


@dataclass(frozen=True, eq=False)
class Training:
    """Samples that train and calibrate classifiers.

    Attributes:
        given: all samples.
        parts: which of them train, calibrate and test.
        view: how training sees their features.
        x: those of the training samples, as training sees them.
        temperature: from predictions for samples that were held out.
        near: the training samples, for the similarity to the nearest one; None for sparse features.
        new: (P, d) features of unlabelled samples from where the model will be used; None: unknown.
        share: of the training samples, how many chose the weight decay. A penalty that was right for them is right for all: so
            the decay of the mean loss is smaller by this share.
        seed: the order of batches, where training goes in batches.
    """

    given: Given
    parts: Splits
    view: View
    x: Any
    temperature: float
    near: Nearness | None = None
    new: np.ndarray | None = None
    share: float = 1.0
    seed: int = 0

    def noted(self, *notes: str) -> Training:
        """The same with notes, of which some may be empty."""
        return replace(self, given=replace(self.given, notes=(*self.given.notes, *filter(None, notes))))

    @property
    def why_streamed(self) -> str:
        """Why training goes in mini-batches; "" where it does not."""
        samples, width = self.x.shape
        return large.why_streamed(samples, width, self.given.hierarchy)

    def classifier(self, trial: Trial) -> HACEClassifier:
        """The classifier of a candidate, calibrated where there are samples for it."""
        h = self.given.hierarchy
        return self._trained(trial, h, np.array(h.nodes, dtype=object))

    def without(self, trial: Trial, h: Hierarchy, ids: np.ndarray, out: np.ndarray) -> HACEClassifier | None:
        """The same over a smaller hierarchy that lacks some ids, without samples of some nodes; None: impossible."""
        try:
            return self._trained(trial, h, ids, out)
        except DataError:
            return None

    def _trained(
        self, trial: Trial, h: Hierarchy, ids: np.ndarray, out: np.ndarray | None = None
    ) -> HACEClassifier:
        """A classifier of the trial, trained and calibrated without samples whose label has no id or is left out."""
        given = self.given
        nodes = self.given.nodes
        usable = np.array([name is not None for name in ids]) & (True if out is None else ~out)
        own = usable[nodes[self.parts.train]]
        x = self.x if own.all() else self.x[own]
        y = ids[nodes[self.parts.train[own]]]
        decay = self.share * 10.0**trial.judged.exponent
        clf = HACEClassifier(
            h,
            loss=trial.advice.loss,
            loss_params=dict(trial.advice.params),
            coarse_labels=trial.coarse,
            weight_decay=decay,
            **(self._in_batches(trial, x, y, h, decay) if self.why_streamed else {}),
        )
        clf.fit(x, y)
        self.view.into(clf)
        held = self.parts.calibration[usable[nodes[self.parts.calibration]]]
        x = in_memory(given.x[held])
        if len(held):
            groups = None if given.groups is None else given.groups[held]
            # Samples are drawn to be like new ones, not groups; what is left out in turn is not asked about new samples.
            new = None if groups is not None or out is not None else self.new
            clf.calibrate(
                x,
                ids[nodes[held]],
                groups,
                temperature=self.temperature,
                training=self.near,
                new=new,
            )
        else:
            clf.temperature_ = self.temperature
        return clf

    def _in_batches(self, trial: Trial, x: Any, y: np.ndarray, h: Hierarchy, decay: float) -> dict[str, Any]:
        """The arguments of a classifier that is trained in mini-batches."""
        loss = build_loss(trial.advice.loss, h, **trial.advice.params)
        label = {node: i for i, node in enumerate(h.leaves)}
        target = np.array([label.get(node, -1) for node in y])
        fine = target >= 0
        x = x if fine.all() else x[fine]
        return {
            "optimizer": "sgd",
            "lr": large.rate_of(x, target[fine], loss, decay, self.seed),
            "epochs": large.epochs_of(len(y)),
            "batch_size": large.BATCH,
            "random_state": self.seed,
        }
