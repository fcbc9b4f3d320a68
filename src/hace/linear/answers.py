"""Any classifier, the same answers: whatever gives scores of the classes gets ranks, guarantees and evaluations.

model = hace.Answers(HistGradientBoostingClassifier(), h).fit(X, y).calibrate(held, truth)
model.predict_node(new, accuracy=0.95)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hace.checks import check_choice
from hace.decisions.answering import AnswersFromScores, Use
from hace.decisions.calibration import read_calibration
from hace.decisions.scores import Scores, as_tensor
from hace.errors import ConfigError, DataError, install
from hace.formats.given import as_hierarchy
from hace.linear import labels as reading
from hace.linear.answering_classifier import AnsweringClassifier

try:
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils import _safe_indexing
    from sklearn.utils.validation import _num_samples
except ImportError as error:
    raise ConfigError(f"Answers needs scikit-learn, 1.6 or newer. {install('sklearn')}") from error

KINDS = ("auto", "logits", "probs", "sigmoid")
_LEAST = 1e-6  # a class that a forest's trees never chose, say, is not impossible
_NO_SCORES = "estimator must have predict_proba or decision_function, or be a function of scores. Got {}."
_AGAIN = "Calibrate again: calibrate(X, y)"


class Answers(AnsweringClassifier):
    """Any classifier over the classes of a hierarchy, with answers at the rank it is sure of, and guarantees.

    It wraps a classifier of scikit-learn's kind, which :meth:`fit` clones and trains; one that is trained already; or a
    function that gives scores, such as a network or an API, for which :meth:`calibrate` is enough. To keep it, pickle it as you
    keep the estimator (joblib); what :meth:`calibrate` learned is a small JSON file (:meth:`save_calibration`), in which no
    code can be.

    Args:
        estimator: a classifier with ``predict_proba`` or ``decision_function``, trained or not; or a function of X that gives
            scores (samples, columns).
        hierarchy: a :class:`hace.Hierarchy`, or what makes one: the path of a file, a dict, rows of names from the top down, a
            table. None: the classes seen and nothing above them.
        classes: ids of the nodes that the scores' columns are. None: for a classifier its ``classes_``; for a function
            ``hierarchy.leaves``, or all nodes where there are as many columns.
        labels: what integers in y are; as of :class:`hace.HACEClassifier`.
        kind: what scores are: "probs" that sum to 1; "logits", whose softmax does; "sigmoid": each column is a probability by
            itself, as of detectors (:class:`hace.decisions.Scores`). "auto": "probs" for ``predict_proba``, else "logits".
            Probabilities of classes below 1e-6 count as 1e-6.
        subset: restrict answers to these classes; as of :class:`hace.HACEClassifier`, and so is
        prior: weights of nodes.
        unlabelled: "stop": :meth:`predict_node` answers no deeper than nodes that have a training label at or below them, or
            a column where it was not trained here. "allow": any node.

    Attributes:
        estimator_: the trained classifier. It was trained on positions in ``columns_``, as by scikit-learn's meta-estimators.
        columns_: ids of the nodes that its scores are about.
        classes_: the classes, sorted, with the type of y: the leaves, or without a hierarchy the labels seen.
        unseen_classes_: classes without a column: they get probability 0.
        coarse_samples_: how many samples :meth:`fit` left out, since their labels are above the classes, which no ordinary
            classifier can use. The log says so.
        hierarchy_: the hierarchy.
        temperature_: 1, or what :meth:`calibrate` found.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.ensemble import HistGradientBoostingClassifier
        >>> from hace import Hierarchy
        >>> iris = load_iris()
        >>> y = iris.target_names[iris.target]
        >>> h = Hierarchy.from_paths([("small", "setosa"), ("large", "versicolor"), ("large", "virginica")])
        >>> model = Answers(HistGradientBoostingClassifier(random_state=0), h).fit(iris.data[::3], y[::3])
        >>> model = model.calibrate(iris.data[1::3], y[1::3], temperature=1.0)  # 1: nothing to fit on so few
        >>> model.predict_node(iris.data[[0, 70]], accuracy=0.9).tolist()
        ['setosa', 'virginica']
        >>> model.guarantee(0.9).samples
        50
    """

    def __init__(
        self,
        estimator: Any,
        hierarchy: Any = None,
        *,
        classes: Sequence[Any] | None = None,
        labels: str | Sequence[Any] = "auto",
        kind: str = "auto",
        subset: str | Sequence[Any] | None = None,
        prior: Mapping[str, float] | None = None,
        unlabelled: str = "stop",
    ) -> None:
        self.estimator = estimator
        self.hierarchy = hierarchy
        self.classes = classes
        self.labels = labels
        self.kind = kind
        self.subset = subset
        self.prior = prior
        self.unlabelled = unlabelled

    # -- training

    def fit(self, X: Any, y: Any, **options: Any) -> Answers:
        """Train a clone of the classifier, on the samples whose labels are classes.

        Args:
            X: what the classifier takes: an array, a table, texts.
            y: labels: ids of leaves, or of inner nodes for samples known no better.
            **options: of the classifier's own ``fit``; a value for each sample, such as ``sample_weight``, is cut with them.
        """
        if callable(self.estimator) and not hasattr(self.estimator, "fit"):
            raise ConfigError(
                "estimator must have fit to be trained. Got a function of scores: call calibrate(X, y) instead."
            )
        if not (hasattr(self.estimator, "predict_proba") or hasattr(self.estimator, "decision_function")):
            raise ConfigError(_NO_SCORES.format(type(self.estimator).__name__))
        h = None if self.hierarchy is None else as_hierarchy(self.hierarchy)
        if self.classes is not None:
            raise ConfigError(
                f"classes must be left out where the classifier is trained here. Got {self.classes!r:.80}."
            )
        reading.check_given(X, y, h)
        y = np.asarray(y)
        reading.check_classes(y)
        if _num_samples(X) != len(y):
            raise DataError(f"y must hold one label for each of {_num_samples(X):,} samples. Got {len(y):,}.")
        label_reading = (
            reading.read_classes(np.unique(y)) if h is None else reading.read_labels(y, h, self.labels)
        )
        nodes = label_reading.nodes_of(y)
        fine = np.flatnonzero(label_reading.hierarchy.labels[nodes] >= 0)
        coarse = len(y) - len(fine)
        if not len(fine):
            raise DataError("y must hold labels of classes to train on. All of them are inner nodes.")
        if coarse:
            X = _safe_indexing(X, fine)
            options = {
                name: _safe_indexing(value, fine) if _is_per_sample(value, len(y)) else value
                for name, value in options.items()
            }
            logging.getLogger("hace").warning(
                "Answers: %s of %s labels are above the classes, which %s cannot use; it is trained on the rest.",
                f"{coarse:,}",
                f"{len(y):,}",
                type(self.estimator).__name__,
            )
        columns, codes = np.unique(nodes[fine], return_inverse=True)
        fresh: Any = clone(self.estimator)
        self.estimator_ = fresh.fit(X, codes, **options)
        self._take(
            label_reading, columns[np.asarray(self.estimator_.classes_, dtype=np.int64)], np.unique(nodes)
        )
        self.coarse_samples_ = coarse
        return self

    def _take(
        self, label_reading: reading.LabelReading, columns: np.ndarray | None, seen: np.ndarray
    ) -> None:
        """The fitted attributes; ``columns``: nodes of the scores' columns, None where their number tells."""
        h = self.hierarchy_ = label_reading.hierarchy
        self._label_reading = label_reading
        self.classes_ = label_reading.classes
        self._columns = columns
        known = h.leaf_nodes if columns is None else columns
        self.columns_ = np.array([h.nodes[v] for v in known.tolist()], dtype=object)
        self.unseen_classes_ = self.classes_[~np.isin(h.leaf_nodes[label_reading.order], known)]
        self._answers = AnswersFromScores(h, seen)
        self._nearness = None
        self._given = self.hierarchy

    def _take_trained(self) -> None:
        """The fitted attributes of a classifier that is trained already, or of a function."""
        known = getattr(self.estimator, "classes_", None) if self.classes is None else self.classes
        if hasattr(self.estimator, "fit") and not hasattr(self.estimator, "classes_"):
            raise NotFittedError(
                "This Answers is not fitted yet. Call fit(X, y), or give a trained estimator."
            )
        if self.hierarchy is None and known is None:
            raise ConfigError("hierarchy or classes must be given with a function of scores. Got neither.")
        h = None if self.hierarchy is None else as_hierarchy(self.hierarchy)
        values = np.asarray(known) if known is not None else np.asarray(h.leaves)  # type: ignore[union-attr]
        label_reading = (
            reading.read_classes(np.unique(values))
            if h is None
            else reading.read_labels(values, h, self.labels)
        )
        columns = None if known is None else label_reading.nodes_of(values)
        if columns is not None and len(np.unique(columns)) < len(columns):
            raise DataError("classes must name a node once each. Got one of them twice.")
        self.estimator_ = self.estimator
        self.coarse_samples_ = 0
        self._take(label_reading, columns, label_reading.hierarchy.leaf_nodes if columns is None else columns)

    def _check_fitted(self) -> None:
        if hasattr(self, "_answers") and self._given is not self.hierarchy:
            raise NotFittedError("hierarchy was changed after fit. Call fit again.")
        if not hasattr(self, "_answers"):
            self._take_trained()

    def __sklearn_is_fitted__(self) -> bool:
        return (
            hasattr(self, "_answers")
            or not hasattr(self.estimator, "fit")
            or hasattr(self.estimator, "classes_")
        )

    # -- scores

    def _scores_of(self, X: Any) -> Scores:
        """The scores of samples in the order of the hierarchy."""
        self._check_fitted()
        check_choice("kind", self.kind, KINDS)
        raw, kind = self._raw_scores(X)
        h = self.hierarchy_
        if self._columns is None:
            return Scores(raw, h, kind)
        if raw.ndim != 2 or raw.shape[1] != len(self._columns):
            raise DataError(
                f"Scores must have a column for each of {len(self._columns):,} classes. Got shape {tuple(raw.shape)}. "
                "Name the columns: classes=[...]."
            )
        if kind == "probs":
            raw = _never_impossible(raw)
        over_leaves = bool((h.labels[self._columns] >= 0).all())
        places = h.labels[self._columns] if over_leaves else self._columns
        absent = -np.inf if kind == "logits" else 0.0
        data = np.full((len(raw), h.num_leaves if over_leaves else h.num_nodes), absent, dtype=raw.dtype)
        data[:, places] = raw
        return Scores(data, h, kind, "leaves" if over_leaves else "nodes")

    def _raw_scores(self, X: Any) -> tuple[np.ndarray, str]:
        """What the classifier or the function says, and what it is."""
        made = self.estimator_
        kind = self.kind
        if not hasattr(made, "fit"):
            raw = made(X)
            kind = "logits" if kind == "auto" else kind
        elif hasattr(made, "predict_proba") and kind != "logits":
            raw = made.predict_proba(X)
            kind = "probs" if kind == "auto" else kind
        elif hasattr(made, "decision_function"):
            raw = made.decision_function(X)
            kind = "logits" if kind == "auto" else kind
        else:
            raise ConfigError(_NO_SCORES.format(type(made).__name__))
        if isinstance(raw, list) and np.ndim(raw[0]) == 2:
            raise DataError("estimator must have one target. Got scores of several.")
        scores = as_tensor(raw, "scores").cpu().numpy()
        if scores.ndim == 1 and self._columns is not None and len(self._columns) == 2:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)  # the logit of the second class
        return scores.astype(np.float64), kind

    # -- files

    def save_calibration(self, path: str | Path) -> None:
        """Write what :meth:`calibrate` learned to a JSON file: the usual guarantees, and those that were asked for.

        It is for :meth:`load_calibration`, and with files of scores ``hace evaluate`` and ``hace check``.

        Args:
            path: such as "calibration.json".
        """
        self._check_fitted()
        use = Use.of(self.subset, self.prior, self._answers.default.pool)
        record = self._answers.record(self._outputs, use)
        if record is None:
            raise ConfigError("There must be a guarantee to save. Call calibrate(X, y) first.")
        record.write(path)

    def load_calibration(self, path: str | Path) -> Answers:
        """Take the place of :meth:`calibrate`: what :meth:`save_calibration` wrote for the same estimator.

        Args:
            path: the file.
        """
        self._check_fitted()
        record = read_calibration(path, f" {_AGAIN}.")
        record.check_hierarchy(self.hierarchy_, path, _AGAIN)
        if record.outputs != self._outputs:
            raise ConfigError(
                f"{path} must be made with scores over {self._outputs}. It was made over {record.outputs}. {_AGAIN}."
            )
        self._answers.take(record)
        return self

    @property
    def _outputs(self) -> str:
        """What the columns of its scores are."""
        columns = self._columns
        return "leaves" if columns is None or (self.hierarchy_.labels[columns] >= 0).all() else "nodes"


def _never_impossible(probs: np.ndarray) -> np.ndarray:
    """Probabilities with a least one: 0 says that a class is impossible, which no counting of samples can."""
    raised = np.maximum(probs, _LEAST)
    whole = probs.sum(axis=1, keepdims=True)
    return np.where(np.abs(whole - 1) < 1e-3, raised / raised.sum(axis=1, keepdims=True), probs)


def _is_per_sample(value: Any, samples: int) -> bool:
    """Whether an option of fit has a value for each sample."""
    return not isinstance(value, str) and hasattr(value, "__len__") and len(value) == samples
