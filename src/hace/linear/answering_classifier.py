"""What every estimator here can do once samples have scores: classes, answers at any rank, guarantees, evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice
from hace.decisions.answering import AnswersFromScores, Use
from hace.decisions.check import Check
from hace.decisions.decisions import Decisions
from hace.decisions.guarantees import GuaranteedThreshold
from hace.decisions.nearness import Nearness
from hace.decisions.scores import Scores
from hace.errors import ConfigError, install
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.linear.labels import LabelReading
from hace.metrics import evaluate

if TYPE_CHECKING:
    from hace.metrics.evaluation import Evaluation

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_consistent_length
except ImportError as error:
    raise ConfigError(
        f"HACEClassifier and Answers need scikit-learn, 1.6 or newer. {install('sklearn')}"
    ) from error


class AnsweringClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose scores become answers. A subclass gives the scores and reads labels."""

    hierarchy: Any
    subset: str | Sequence[Any] | None
    prior: Mapping[str, float] | None
    unlabelled: str
    hierarchy_: Hierarchy
    classes_: np.ndarray
    _label_reading: LabelReading  # of labels
    _answers: AnswersFromScores
    _nearness: Nearness | None = None  # the training samples, for the similarity to the nearest one

    @abstractmethod
    def _scores_of(self, X: Any) -> Scores:
        """The scores of samples, before any temperature, of all classes; an error before there are any."""

    @abstractmethod
    def _check_fitted(self) -> None:
        """An error before there is anything to ask."""

    @property
    def temperature_(self) -> float:
        """1, or what :meth:`calibrate` found."""
        return self._answers.temperature

    @temperature_.setter
    def temperature_(self, temperature: float) -> None:
        self._answers.temperature = temperature

    def _use(self, groups: Any = None, pool: str | None = None) -> Use:
        return Use.of(self.subset, self.prior, None if groups is None else pool)

    def _class_logits(self, X: Any) -> Tensor:
        """(samples, classes) logits in the order of ``classes_``: -inf outside the subset."""
        scores = self._scores_of(X)
        leaves = self._answers.prepared(scores, self._use()).leaves()
        chosen = leaves[:, torch.from_numpy(self._label_reading.order)]
        if self.subset is not None and bool((chosen == -torch.inf).all()):
            raise ConfigError("subset must name at least one of the classes in labels. Got none of them.")
        return chosen

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits of the classes (samples, classes); with two classes, second minus first (samples,)."""
        logits = self._class_logits(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each sample."""
        best = self._class_logits(X).argmax(dim=1).numpy()
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(samples, classes) probabilities of the classes, in the order of ``classes_``."""
        return self._class_logits(X).softmax(dim=1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return self._class_logits(X).log_softmax(dim=1).numpy()

    def predict_node_log_proba(self, X: Any) -> np.ndarray:
        """(samples, N) log q* of all nodes, in the order of ``hierarchy_.nodes``.

        ``hace.predict(clf.predict_node_log_proba(X), clf.hierarchy_, kind="node_log_probs", ...)`` takes any rule.
        """
        scores = self._scores_of(X)
        return self._answers.prepared(scores, self._use()).log_q().numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of samples whose predicted class is the label, or below it if the label is an inner node."""
        predicted = self.predict(X)
        y = np.asarray(y)
        check_consistent_length(predicted, y, sample_weight)
        if self.hierarchy is None or np.isin(y, self.classes_).all():
            right = predicted == y
        else:
            right = is_above(
                self.hierarchy_, self._label_reading.nodes_of(y), self._label_reading.nodes_of(predicted)
            )
        return float(np.average(right, weights=sample_weight))

    def predict_node(
        self,
        X: Any,
        threshold: float | Sequence[float] | None = None,
        *,
        level: int | str | None = None,
        accuracy: float | None = None,
        of: str = "samples",
        confidence: float | None = None,
        group_share: float | None = None,
        groups: Any = None,
        pool: str = "mean",
    ) -> np.ndarray:
        """An answer at the level the model is sure of, at a given level, or with a guaranteed accuracy.

        Args:
            X: (samples, features).
            threshold: answer with the deepest node of at least this probability on the way down from the root; or one
                threshold per level. Default without a level or an accuracy: 0.5.
            level: answer with the most probable node of this level, a depth or a level's name.
            accuracy: answer as deep as this guarantee allows, after :meth:`calibrate`; see :meth:`guarantee`. An answer that
                ``unlabelled`` moves up stays true if it was.
            of: "samples" or "answers", of the guarantee.
            confidence: of the guarantee.
            group_share: of the guarantee.
            groups: the burst, observation or recording of each sample: one answer for each group, from all of its samples,
                in the order of ``np.unique(groups)``.
            pool: how the answers to a group become one: "mean", the mean of probabilities, which was better
                calibrated on frog calls, or "log", of log-probabilities.

        Returns:
            Ids of nodes, an array of objects; None if not even a top node of a forest passes.
        """
        decided = self.decide(
            X,
            threshold,
            level=level,
            accuracy=accuracy,
            of=of,
            confidence=confidence,
            group_share=group_share,
            groups=groups,
            pool=pool,
        )
        return np.array([*self.hierarchy_.nodes, None], dtype=object)[decided.nodes.numpy()]

    def decide(
        self,
        X: Any,
        threshold: float | Sequence[float] | None = None,
        *,
        level: int | str | None = None,
        accuracy: float | None = None,
        of: str = "samples",
        confidence: float | None = None,
        group_share: float | None = None,
        groups: Any = None,
        pool: str = "mean",
    ) -> Decisions:
        """The answers of :meth:`predict_node` with their probabilities; arguments as there."""
        check_choice("unlabelled", self.unlabelled, ("stop", "allow"))
        scores = self._scores_of(X)
        return self._answers.decide(
            scores,
            self._use(groups, pool),
            threshold=threshold,
            level=level,
            accuracy=accuracy,
            of=of,
            confidence=confidence,
            group_share=group_share,
            groups=groups,
            unlabelled=self.unlabelled,
        )

    def calibrate(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        *,
        pool: str | None = None,
        temperature: float | None = None,
        training: Any = None,
        new: Any = None,
    ) -> Any:
        """Make confidences real, from held-out samples: not those of training, and not the test set.

        A random half of them fits ``temperature_``, by which scores are divided from now on: classes stay the same,
        probabilities change. The other half is kept for the guarantees of :meth:`guarantee`. With a ``subset`` these are about
        samples of its classes, so the others rest on no more than the held-out samples of these classes; it may change
        afterwards, and so may ``prior``. Training again forgets both halves.

        Args:
            X: (samples, features).
            y: labels.
            groups: the site, donor or recording of each sample: half of the groups fit the temperature, and guarantees are
                about new groups.
            pool: "log" or "mean": :meth:`guarantee`, and a file, are about the one answer that ``predict_node(groups=...,
                pool=...)`` gives a group, all of whose samples have one label.
            temperature: None: fitted on half. Or one from other samples, 1 for none: all samples then support guarantees.
            training: features of the training samples, or a :class:`hace.decisions.nearness.Nearness` of them: :meth:`check`
                then compares how similar new samples are to them, which sees a random hold-out that cannot stand for new ones.
            new: features of unlabelled samples from where the model will be used. Guarantees then rest on samples drawn to be
                as similar to the training samples as these are; see :mod:`hace.decisions.nearness` for what that assumes.
        """
        scores, nodes = self._labelled_scores(X, y)
        if training is not None:
            self._nearness = training if isinstance(training, Nearness) else Nearness.of(training)
        if new is not None and (self._nearness is None or pool is not None):
            raise ConfigError(
                "new must come with training, the features of the training samples, and without pool."
            )
        near = self._similarity(X)
        like = None if new is None else self._similarity(new)
        use = Use.of(self.subset, self.prior, pool)
        self._answers.calibrate(scores, nodes, groups, use, temperature, near=near, like=like)
        return self

    def _similarity(self, X: Any) -> np.ndarray | None:
        """(samples,) to the nearest training sample; None where these are unknown."""
        return None if self._nearness is None else self._nearness.similarity(X)

    def _labelled_scores(self, X: Any, y: Any) -> tuple[Scores, np.ndarray]:
        """The scores of labelled samples, and their nodes."""
        scores = self._scores_of(X)
        y = np.asarray(y)
        check_consistent_length(scores.data, y)
        return scores, self._label_reading.nodes_of(y)

    def guarantee(
        self,
        accuracy: float = 0.95,
        *,
        of: str = "samples",
        confidence: float | None = None,
        group_share: float | None = None,
    ) -> GuaranteedThreshold:
        """The threshold that keeps a guarantee on new samples: :func:`hace.guaranteed_threshold` on samples of
        :meth:`calibrate`.

        Args:
            accuracy: the guaranteed share, above 0 and below 1.
            of: "samples": at most 1 - accuracy of all samples get a false answer. "answers": of the answers below the root,
                at least this share is true; needs ``confidence``.
            confidence: the probability with which the guarantee holds; None: it holds on average.
            group_share: after ``calibrate(X, y, groups)``: the share of new groups that keep it; None: on average over them.

        Returns:
            The record: ``threshold``, ``guarantee``, ``cost``, ``assumptions``.
        """
        self._check_fitted()
        use = Use.of(self.subset, self.prior, self._answers.default.pool)
        return self._answers.guarantee(use, accuracy, of=of, confidence=confidence, group_share=group_share)

    def check(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        accuracy: float = 0.95,
        *,
        of: str = "samples",
        confidence: float | None = None,
        group_share: float | None = None,
        level: float = 0.05,
    ) -> Check:
        """Check a guarantee on new samples, with or without labels: it holds, there is no evidence against it, or it is broken.

        Args:
            X: (samples, features), in the order of arrival.
            y: labels, None where unknown; those known must be of a random part of the samples. None: all unknown.
            groups: the group of each sample, where :meth:`calibrate` had groups.
            accuracy: as of :meth:`guarantee`.
            of: as of :meth:`guarantee`.
            confidence: as of :meth:`guarantee`.
            group_share: as of :meth:`guarantee`.
            level: the probability of a false alarm.
        """
        scores = self._scores_of(X)
        return self._answers.check(
            scores,
            None if y is None else self._known_nodes(y),
            groups,
            Use.of(self.subset, self.prior, self._answers.default.pool),
            accuracy,
            near=self._similarity(X),
            level=level,
            of=of,
            confidence=confidence,
            group_share=group_share,
        )

    def _known_nodes(self, y: Any) -> np.ndarray:
        """(S,) the nodes of labels, -1 where they are None."""
        given = np.asarray(y)
        known = np.array([label is not None for label in given.tolist()], dtype=bool)
        nodes = np.full(len(given), -1)
        if known.any():
            labels = given[known]
            nodes[known] = self._label_reading.nodes_of(
                np.array(labels.tolist()) if labels.dtype == object else labels
            )
        return nodes

    def evaluate(
        self, X: Any, y: Any, groups: Any = None, *, accuracy: float | None = None, **options: Any
    ) -> Evaluation:
        """All metrics on labelled samples, of the scores as answers see them; see :func:`hace.evaluate`.

        ``print(result.to_text())`` shows them, ``hace.write_evaluation(result, "results")`` writes a page.

        Args:
            X: (samples, features).
            y: labels; one outside ``subset`` counts as a mistake.
            groups: the group of each sample: intervals are then over groups.
            accuracy: whether answers keep this guarantee, too, after :meth:`calibrate`.
            **options: further ones of :func:`hace.evaluate`.
        """
        scores, nodes = self._labelled_scores(X, y)
        use = self._use()
        if accuracy is not None:
            options["guarantee"] = self._answers.guarantee(use, accuracy)
        prepared = self._answers.prepared(scores, use)
        forms: dict[str, Any] = {"kind": prepared.kind, "outputs": prepared.outputs, "labels": "nodes"}
        return evaluate(prepared.data, nodes, self.hierarchy_, groups=groups, **{**forms, **options})
