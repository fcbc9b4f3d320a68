"""What a fitted classifier answers: classes, probabilities, nodes; calibrated, and restricted to some classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from hace.decisions.guarantees import GuaranteedThreshold, guaranteed_threshold
from hace.decisions.rules import at_level, predict
from hace.decisions.scores import log_q, subset_mask
from hace.decisions.temperature import fit_temperature
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.linear.class_labels import LabelReading
from hace.losses.base import HierarchicalLoss

Kept = tuple[np.ndarray, np.ndarray]  # log q* of held-out samples and their node indices


class Answers:
    """The part of an estimator that answers, from its fitted head."""

    classes_: np.ndarray
    hierarchy_: Hierarchy
    loss_: HierarchicalLoss
    coef_: np.ndarray
    intercept_: np.ndarray
    temperature_: float
    n_features_in_: int
    feature_names_in_: np.ndarray
    subset: str | Iterable[Any] | None
    _reading: LabelReading
    _promised_on: Kept | None

    def _outputs(self, X: Any) -> Tensor:
        """(samples, outputs) outputs of the head, in double precision."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), accept_sparse="csr", reset=False)
        return self._linear(X)

    def _linear(self, X: Any) -> Tensor:
        """The same for features that were checked."""
        return torch.from_numpy(X @ self.coef_.T + self.intercept_)

    def _scores(self, z: Tensor) -> Tensor:
        """(samples, N) or (samples, n) logits whose softmax gives the probabilities, at temperature 1."""
        return z if self.loss_.score_outputs == "nodes" else self.loss_.leaf_logits(z)

    def _leaf_logits(self, X: Any) -> Tensor:
        """(samples, classes) logits in the order of ``classes_``: -inf outside the subset."""
        z = self._outputs(X)
        logits = self.loss_.leaf_logits(z) / self.temperature_
        if self.subset is not None:
            kept = subset_mask(self.hierarchy_, self.subset)[self.hierarchy_.leaf_nodes]
            logits = logits.masked_fill(torch.from_numpy(~kept), -torch.inf)
        chosen = logits[:, torch.from_numpy(self._reading.order)]
        if self.subset is not None and bool((chosen == -torch.inf).all()):
            raise ConfigError("subset must name at least one of the classes in labels. Got none of them.")
        return chosen

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits of the classes (samples, classes); with two classes, second minus first (samples,)."""
        logits = self._leaf_logits(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each sample."""
        best = self._leaf_logits(X).argmax(dim=1).numpy()
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(samples, classes) probabilities of the classes, in the order of ``classes_``."""
        return self._leaf_logits(X).softmax(dim=1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return self._leaf_logits(X).log_softmax(dim=1).numpy()

    def predict_node_log_proba(self, X: Any) -> np.ndarray:
        """(samples, N) log q* of all nodes, in the order of ``hierarchy_.nodes``.

        ``hace.predict(clf.predict_node_log_proba(X), clf.hierarchy_, kind="node_log_probs", ...)`` takes any rule.
        """
        z = self._outputs(X)
        if self.subset is None and self.temperature_ == 1:
            return self.loss_.node_log_probs(z).numpy()
        scores = self._scores(z) / self.temperature_
        found = log_q(scores, self.hierarchy_, outputs=self.loss_.score_outputs, subset=self.subset)
        return found.numpy()

    def predict_node(
        self,
        X: Any,
        threshold: float | Sequence[float] | None = None,
        *,
        level: int | str | None = None,
        accuracy: float | None = None,
        of: str = "samples",
        confidence: float | None = None,
    ) -> np.ndarray:
        """An answer at the level the model is sure of, at a given level, or with a promised accuracy.

        Args:
            X: (samples, features).
            threshold: answer with the deepest node of at least this probability on the way down from the root; or one
                threshold per level. Default without a level or an accuracy: 0.5.
            level: answer with the most probable node of this level, a depth or a level's name.
            accuracy: answer as deep as this promise allows, after :meth:`calibrate`; see :meth:`guarantee`.
            of: "samples" or "answers", of the promise.
            confidence: of the promise.

        Returns:
            Ids of nodes, an array of objects; None if not even a top node of a forest passes.
        """
        given = [
            name
            for name, value in (("threshold", threshold), ("level", level), ("accuracy", accuracy))
            if value is not None
        ]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} must not be given together. Drop all but one.")
        if accuracy is not None:
            sure = self.guarantee(accuracy, of=of, confidence=confidence)
            scores = torch.from_numpy(self.predict_node_log_proba(X))
            decided = sure.predict(scores, self.hierarchy_, kind="node_log_probs")
        elif level is not None:
            decided = at_level(torch.from_numpy(self.predict_node_log_proba(X)), self.hierarchy_, level)
        else:
            scores = torch.from_numpy(self.predict_node_log_proba(X))
            limit = 0.5 if threshold is None else threshold
            decided = predict(
                scores, self.hierarchy_, kind="node_log_probs", rule="threshold", threshold=limit
            )
        ids = np.empty(len(decided), dtype=object)
        ids[:] = decided.ids
        return ids

    def calibrate(self, X: Any, y: Any) -> Any:
        """Make confidences real, from samples that the training did not see.

        A random half of them fits ``temperature_``, by which scores are divided from now on: classes stay the same,
        probabilities change. The other half is kept for the promises of :meth:`guarantee`. Training again forgets both.

        Args:
            X: (samples, features) of held-out samples: not those of training, and not the test set.
            y: their labels, as in training.

        Raises:
            DataError: the samples determine no temperature: too few, all answered truly, or scores that say nothing.
        """
        check_is_fitted(self)
        X, y = validate_data(
            self, X, y, dtype=(np.float64, np.float32), order="C", accept_sparse="csr", reset=False
        )
        if len(y) < 2:
            raise DataError(f"X must hold at least two samples to calibrate with. Got {len(y)}.")
        nodes = self._reading(y)
        mixed = np.random.default_rng(0).permutation(len(y))
        fits, keeps = np.sort(mixed[: len(y) // 2]), np.sort(mixed[len(y) // 2 :])
        self.temperature_ = fit_temperature(
            self._scores(self._linear(X[fits])),
            nodes[fits],
            self.hierarchy_,
            labels="nodes",
            outputs=self.loss_.score_outputs,
        )
        scores = self._scores(self._linear(X[keeps])) / self.temperature_
        sure = log_q(scores, self.hierarchy_, outputs=self.loss_.score_outputs)
        self._promised_on = sure.numpy(), nodes[keeps]
        return self

    def guarantee(
        self, accuracy: float = 0.95, *, of: str = "samples", confidence: float | None = None
    ) -> GuaranteedThreshold:
        """The threshold that keeps a promise on new samples: :func:`hace.guaranteed_threshold` on samples of :meth:`calibrate`.

        Args:
            accuracy: the promised share, above 0 and below 1.
            of: "samples": at most 1 - accuracy of all samples get a false answer. "answers": of the answers below the root,
                at least this share is true; needs ``confidence``.
            confidence: the probability with which the promise holds; None: it holds on average.

        Returns:
            The record: ``threshold``, ``promise``, ``assumptions``.

        Raises:
            ConfigError: the classifier is not calibrated, or restricted to a subset.
        """
        check_is_fitted(self)
        if self._promised_on is None:
            raise ConfigError(
                "accuracy needs a calibrated classifier. Call calibrate(X, y) with samples that fit did not see, or give a "
                "threshold."
            )
        if self.subset is not None:
            raise ConfigError(
                "accuracy must come without a subset: the calibration samples are of all classes."
            )
        sure, nodes = self._promised_on
        return guaranteed_threshold(
            torch.from_numpy(sure),
            nodes,
            self.hierarchy_,
            accuracy,
            confidence,
            of,
            labels="nodes",
            kind="node_log_probs",
        )
