"""A hierarchy-aware linear classifier, for scikit-learn's pipelines, searches and meta-estimators."""

from __future__ import annotations

import functools
import logging
import reprlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice
from hace.decisions.answering import AnswersFromScores
from hace.decisions.scores import Scores
from hace.errors import ConfigError, DataError, install
from hace.formats.given import as_hierarchy
from hace.hierarchy import Hierarchy
from hace.linear import labels as reading
from hace.linear.answering_classifier import AnsweringClassifier
from hace.linear.features import LabelledFeatures, RowsOnDisk, as_rows, as_weights
from hace.linear.fit import fit_heads
from hace.linear.heads import FittedHead, Optimization, Trial
from hace.linear.lbfgs import converged_head
from hace.linear.saved_classifier import load_classifier, save_classifier, save_onnx
from hace.losses.advice import recommended_loss
from hace.losses.base import HierarchicalLoss
from hace.losses.registry import LOSSES, build_loss, loss_parameters

try:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_consistent_length, check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ConfigError(f"HACEClassifier needs scikit-learn, 1.6 or newer. {install('sklearn')}") from error

_FLOATS = (np.float64, np.float32)
COARSE_LABELS = ("auto", "balanced", "cautious", "plain", "drop")
_SINGLE = 1e-6  # the smallest tol that single precision can tell
_RATES = {"sgd": 0.5, "adamw": 0.05, "lbfgs": 1.0}  # if lr is None


@functools.cache
def say_once(text: str) -> None:
    """A line for whoever watches, not a warning: what it says is often as it should be."""
    logging.getLogger("hace").warning(text)


def _is_same(hierarchy: Any, given: Any) -> bool:
    """Whether two descriptions of a hierarchy are equal, as far as they can be compared: tables cannot."""
    plain = (Hierarchy, str, Path, Mapping, list, tuple)
    return isinstance(hierarchy, plain) and isinstance(given, plain) and hierarchy == given


def _has_epochs(estimator: HACEClassifier) -> bool:
    if estimator.optimizer != "lbfgs":
        return True
    raise AttributeError("partial_fit needs optimizer='sgd' or 'adamw': L-BFGS takes all samples at once.")


class HACEClassifier(AnsweringClassifier):
    """A linear classifier that learns from a hierarchy of its classes and can answer at any level of it.

    With labels that are all classes it is multinomial logistic regression by default. Where some are coarse, a class's logit is
    the sum of a linear function of each node on its path, so that relatives share what their ancestors learn.

    Labels are ids of leaves, or of inner nodes for samples known no better: coarse labels. ``classes_`` are all leaves, in
    sorted order, including those without a sample.

    Args:
        hierarchy: a :class:`hace.Hierarchy`, or what makes one: the path of a file, a dict, rows of names from the top down, a
            table. None: the classes seen and nothing above them.
        labels: what integers in y are; strings are always ids. "ids": ids written as integers. "positions": positions in
            ``hierarchy.leaves``. "auto": whichever fits; an error if both do. A list of leaves: the classes, of which integers
            are positions; ``np.unique(y)`` decodes what scikit-learn's meta-estimators encode.
        loss: a name in :data:`hace.LOSSES`; "hace" is the paper's. "auto": the one that is advised for the labels,
            cross-entropy, or cross-entropy over path sums where some are coarse.
        dilution: d in (0, 1], for losses that take one; others ignore it.
        label_smoothing: eps in [0, 1), for losses that take one; others ignore it.
        loss_params: further parameters of the loss, such as ``{"alpha": 0.2}`` for "hxe".
        coarse_labels: what to make of coarse labels. "balanced": they count no more in all than fine ones, and are not compared
            with classes whose samples they probably hide (:mod:`hace.linear.labels`). "cautious": nor with those whose samples
            they could hide. "auto": whichever is better on held-out halves of the fine labels, "cautious" where that is
            unclear or training goes in mini-batches; ``coarse_labels_`` says which. "plain": as any sample. "drop": train
            without them.
        class_weight: a weight for each label, as a dict (1 for those not named), or "balanced": inversely proportional to how
            often a class occurs. A coarse label that is not named has the mean weight of the classes below it. In
            ``partial_fit`` the mean class weight of a call scales its steps.
        subset: restrict answers to these classes, such as those of a region: ids of leaves, or of inner nodes for all classes
            below. It acts on answers alone: change it with ``set_params(subset=...)``, without training or calibrating again.
            Guarantees are then about samples of these classes.
        prior: how much likelier nodes are here than in training, such as ``{"lynx": 0.1}`` for a tenth as likely, for all below
            them. It acts on answers alone, as ``subset`` does; guarantees assume that new samples look like the held-out ones.
        unlabelled: "stop": :meth:`predict_node` answers no deeper than nodes that have a training label at or below them.
            "allow": any node. It acts on answers alone, as ``subset`` does.
        optimizer: "lbfgs" (to convergence, in the precision of X), "sgd" or "adamw" (in mini-batches).
        weight_decay: strength of the penalty weight_decay / 2 ||W||^2 added to the mean loss; the intercept has none.
            scikit-learn's C is 1 / (weight_decay * number of samples). "adamw" decays weights apart from the gradient.
        fit_intercept: whether to have an intercept.
        tol: "lbfgs" stops when no entry of the gradient is larger.
        max_iter: maximum iterations of "lbfgs".
        lr: learning rate of "sgd" (None: 0.5) and "adamw" (None: 0.05). Scale features first.
        epochs: passes over the data, for "sgd" and "adamw".
        batch_size: samples per step, for "sgd" and "adamw".
        momentum: momentum of "sgd"; first beta of "adamw".
        schedule: "cosine" or "constant", for "sgd" and "adamw".
        random_state: seed of the order of samples, for "sgd" and "adamw"; "lbfgs" needs none.

    Attributes:
        classes_: the classes, sorted, with the type of y: the leaves, or without a hierarchy the labels seen.
        unseen_classes_: classes without a training sample. How many there are is logged, once: folds of a cross-validation
            often miss some.
        coarse_labels_: how coarse labels were taken: ``coarse_labels``, or what "auto" chose.
        hierarchy_: the hierarchy; a flat one over the classes seen if none was given.
        loss_name_: ``loss``, or what "auto" chose.
        loss_: the loss; ``coef_`` has ``loss_.num_outputs`` rows.
        coef_: (outputs, features). The loss decides whether outputs are nodes in node order, summed along paths or not, or
            leaves in label order; ``loss_.collapse`` turns those of path sums into one row per class.
        intercept_: (outputs,).
        temperature_: 1, or what :meth:`calibrate` found.
        n_iter_: iterations or epochs.
        history_: the history of :class:`hace.linear.FittedHead`.
        n_features_in_: number of features.
        feature_names_in_: names of the features, if X is a DataFrame.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> iris = load_iris()
        >>> h = Hierarchy.from_paths([("small", "setosa"), ("large", "versicolor"), ("large", "virginica")])
        >>> clf = HACEClassifier(h).fit(iris.data, iris.target_names[iris.target])
        >>> clf.predict(iris.data[[0, 70]]).tolist()
        ['setosa', 'virginica']
        >>> clf.predict_node(iris.data[[0, 70]], threshold=0.9).tolist()
        ['setosa', 'large']
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        hierarchy: Any = None,
        *,
        labels: str | Sequence[Any] = "auto",
        loss: str = "auto",
        dilution: float = 0.5,
        label_smoothing: float = 0.0,
        loss_params: Mapping[str, Any] | None = None,
        coarse_labels: str = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        subset: str | Sequence[Any] | None = None,
        prior: Mapping[str, float] | None = None,
        unlabelled: str = "stop",
        optimizer: str = "lbfgs",
        weight_decay: float = 1e-4,
        fit_intercept: bool = True,
        tol: float = 1e-5,
        max_iter: int = 1000,
        lr: float | None = None,
        epochs: int = 50,
        batch_size: int = 64,
        momentum: float = 0.9,
        schedule: str = "cosine",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hierarchy = hierarchy
        self.labels = labels
        self.loss = loss
        self.dilution = dilution
        self.label_smoothing = label_smoothing
        self.loss_params = loss_params
        self.coarse_labels = coarse_labels
        self.class_weight = class_weight
        self.subset = subset
        self.prior = prior
        self.unlabelled = unlabelled
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.momentum = momentum
        self.schedule = schedule
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HACEClassifier:
        """Train from scratch.

        Args:
            X: (samples, features); a sparse matrix stays sparse.
            y: labels; see ``labels`` above.
            sample_weight: a weight per sample; 2 counts the sample twice (for mini-batches, see
                :func:`hace.linear.fit_heads`).
        """
        options = self._options(self.epochs, self.schedule)
        X, y = self._checked(X, y, reset=True)
        if hasattr(self, "coef_"):  # if training fails, old weights must not answer with new classes
            del self.coef_
        self._set_label_reading(y, None)
        self._calls = 0
        X, target, weight, trial, mean = self._prepare(X, y, sample_weight)
        if mean == 0:
            raise ConfigError(
                "class_weight must give some sample a weight above 0. Got "
                f"{reprlib.repr(self.class_weight)}. Name a label of y with such a weight."
            )
        if self.optimizer == "lbfgs":
            dtype = torch.float32 if X.dtype == np.float32 and self.tol >= _SINGLE else torch.float64
            rows = LabelledFeatures(X, target, self.loss_, weight, dtype=dtype)
            return self._take(
                converged_head(rows, trial, options, dtype=torch.float64), self._label_reading.nodes_of(y)
            )
        (head,) = fit_heads(X, target, [trial], options, seed=self._seed(), sample_weight=weight)
        return self._take(head, self._label_reading.nodes_of(y))

    @available_if(_has_epochs)
    def partial_fit(
        self, X: Any, y: Any, classes: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> HACEClassifier:
        """Continue with one pass over these samples, at the full rate; momentum restarts with each call.

        Classes weigh the same from call to call: steps are as large as the mean class weight of a call, and if that is 0, the
        call changes nothing. Sample weights matter within a call alone.

        Args:
            X: (samples, features).
            y: labels.
            classes: all labels there will ever be; required on the first call without a hierarchy.
            sample_weight: a weight per sample.
        """
        options = self._options(1, "constant")
        if isinstance(self.class_weight, str):
            raise ConfigError(
                "class_weight must be a dict or None for partial_fit: no call sees all classes. Got "
                f"{self.class_weight!r}. Give the weights of sklearn.utils.class_weight.compute_class_weight as a dict."
            )
        first = not self.__sklearn_is_fitted__()
        if first and self.hierarchy is None and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        X, y = self._checked(X, y, reset=first)
        if first:
            self._set_label_reading(y, classes)
            self._calls = 0
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes={classes!r} is not what the first call to partial_fit said.")
        X, target, weight, trial, mean = self._prepare(X, y, sample_weight)
        if mean == 0:
            blank = torch.zeros(self.loss_.num_outputs, X.shape[1])
            return (
                self._take(FittedHead(blank, None, [], None, 0), self._label_reading.nodes_of(y))
                if first
                else self
            )
        start = None
        seen = self._label_reading.nodes_of(y)
        if not first:
            weights = torch.from_numpy(self.coef_).float(), torch.from_numpy(self.intercept_).float()
            start = FittedHead(*weights, [], None, 0)
            seen = np.concatenate([seen, self._seen])
        # A step of decay is lr x weight_decay: as without weights.
        scaled = replace(trial, lr=trial.lr * mean, weight_decay=trial.weight_decay / mean)
        seed = self._seed() + self._calls  # a new order in every call
        (head,) = fit_heads(X, target, [scaled], options, seed=seed, sample_weight=weight, start=start)
        self._calls += 1
        self._take(head, seen)
        self.n_iter_ = self._calls
        return self

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        known = self.hierarchy if isinstance(self.hierarchy, Hierarchy) else None
        reading.check_given(X, y, known)
        if isinstance(X, RowsOnDisk):
            return self._checked_rows(X, y, reset)
        X, y = validate_data(self, as_rows(X), y, dtype=_FLOATS, order="C", accept_sparse="csr", reset=reset)
        reading.check_classes(y)
        return X, y

    def _checked_rows(self, X: RowsOnDisk, y: Any, reset: bool) -> tuple[Any, np.ndarray]:
        """Features on disk, which are checked as they are read."""
        if self.optimizer == "lbfgs":
            raise ConfigError(
                "optimizer must be 'sgd' or 'adamw' for features on disk. Got 'lbfgs', which holds all samples in memory."
            )
        check_consistent_length(X, y)
        reading.check_classes(y)
        if reset:
            self.n_features_in_ = X.shape[1]
        return X, np.asarray(y)

    def _set_label_reading(self, y: np.ndarray, classes: Sequence[Any] | None) -> None:
        """Decide once what labels mean."""
        if self.hierarchy is None:
            self._label_reading = reading.read_classes(
                np.unique(y if classes is None else np.asarray(classes))
            )
        else:
            seen = y if classes is None else np.concatenate([y, np.asarray(classes)])
            self._label_reading = reading.read_labels(seen, as_hierarchy(self.hierarchy), self.labels)
        self.hierarchy_ = self._label_reading.hierarchy
        self.classes_ = self._label_reading.classes
        self._given = self.hierarchy

    def _prepare(
        self, X: np.ndarray, y: np.ndarray, weight: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Trial, float]:
        """Features, targets of leaves or, if some are coarse, nodes, weights, the trial and the mean class weight."""
        check_choice("coarse_labels", self.coarse_labels, COARSE_LABELS)
        self.coarse_labels_ = self.coarse_labels
        nodes = self._label_reading.nodes_of(y)
        own = None if weight is None else as_weights(weight, len(y)).numpy()
        weight = reading.class_weighted(self.class_weight, self._label_reading, nodes, own)
        labels = self.hierarchy_.labels[nodes]
        coarse = labels < 0
        if coarse.any() and self.coarse_labels == "drop":
            if coarse.all():
                raise DataError(
                    "y must hold labels of leaves if coarse_labels is 'drop'. All of them are inner nodes."
                )
            own = None if own is None else own[~coarse]
            weight = None if weight is None else weight[~coarse]
            X = X[~coarse]
            labels = labels[~coarse]
            coarse = coarse[~coarse]
        mean = 1.0 if self.class_weight is None else reading.mean_class_weight(weight, own)
        self._name_loss(coarse=bool(coarse.any()))
        if not coarse.any():
            self.loss_ = self._build_loss("leaves")
            return X, labels, weight, self._trial(self.loss_), mean
        self.loss_ = taught = self._build_loss("nodes")
        if self.coarse_labels != "plain":
            self.coarse_labels_, taught = self._taught(X, nodes, weight)
            weight = reading.balanced_weights(nodes, self.hierarchy_, weight)
        return X, nodes, weight, self._trial(taught), mean

    def _taught(self, X: Any, nodes: np.ndarray, weight: np.ndarray | None) -> tuple[str, HierarchicalLoss]:
        """How coarse labels are taken, and the loss that does so."""
        ways = ("balanced", "cautious") if self.coarse_labels == "auto" else (self.coarse_labels,)
        hidden = {
            way: reading.HiddenClasses(nodes, self.hierarchy_, weight, cautious=way == "cautious")
            for way in ways
        }
        losses = {way: reading.coarse_loss(self.loss_, rule) for way, rule in hidden.items()}
        fine = np.flatnonzero(self.hierarchy_.labels[nodes] >= 0)
        way = ways[-1]
        if len(ways) > 1 and len(fine) and self.optimizer == "lbfgs":
            one, other = (hidden[way].matrix for way in ways)
            if np.array_equal(one.indptr, other.indptr) and np.array_equal(one.indices, other.indices):
                return "balanced", losses["balanced"]
            order = np.random.default_rng(0).permutation(fine)
            order = order[np.argsort(nodes[order], kind="stable")]  # both halves have each class
            halves = order[::2], order[1::2]
            gain = np.concatenate([self._gain(X, nodes, weight, half, losses) for half in halves])
            if gain.mean() > gain.std() / len(gain) ** 0.5:
                way = "balanced"
        return way, losses[way]

    def _gain(
        self,
        X: Any,
        nodes: np.ndarray,
        weight: np.ndarray | None,
        held: np.ndarray,
        losses: Mapping[str, Any],
    ) -> np.ndarray:
        """For each sample held out: 1 if only the first loss leads to its class, -1 if only the other does, else 0."""
        trained_on = np.setdiff1d(np.arange(len(nodes)), held)
        weight = None if weight is None else weight[trained_on]
        weight = reading.balanced_weights(nodes[trained_on], self.hierarchy_, weight)
        rows = LabelledFeatures(X[trained_on], nodes[trained_on], self.loss_, weight)
        # A comparison needs no last digit.
        options = Optimization("lbfgs", bias=self.fit_intercept, tolerance=max(self.tol, 1e-4), max_iter=100)
        right = []
        for loss in losses.values():
            head = converged_head(rows, self._trial(loss), options)
            z = torch.from_numpy(X[held] @ head.weight.T.numpy())
            z = z if head.bias is None else z + head.bias
            label = self.loss_.leaf_logits(z).argmax(dim=1).numpy()
            right.append(self.hierarchy_.leaf_nodes[label] == nodes[held])
        return right[0].astype(float) - right[1]

    def _name_loss(self, *, coarse: bool) -> None:
        """Settle which loss it is. Later calls of ``partial_fit`` train the same outputs."""
        if not hasattr(self, "coef_") or not hasattr(self, "loss_name_"):
            self.loss_name_ = recommended_loss(coarse=coarse).loss if self.loss == "auto" else self.loss

    def _loss_params(self) -> dict[str, Any]:
        if not isinstance(self.loss_params, Mapping | None):
            raise ConfigError(
                f"loss_params must be a mapping of parameters to values. Got {self.loss_params!r}. "
                'Use, for example, {"alpha": 0.2}.'
            )
        given = dict(self.loss_params or {})
        reserved = [name for name in ("labels", "reduction", "ignore_index") if name in given]
        if reserved:
            raise ConfigError(f"loss_params must not hold {reserved[0]!r}: the estimator sets it.")
        name = self.loss_name_
        known = loss_parameters(name) if isinstance(name, str) and name in LOSSES else {}
        own = {"dilution": self.dilution, "label_smoothing": self.label_smoothing}
        return {name: value for name, value in own.items() if name in known} | given

    def _build_loss(self, labels: str) -> HierarchicalLoss:
        return build_loss(self.loss_name_, self.hierarchy_, labels=labels, **self._loss_params())

    def _options(self, epochs: int, schedule: str) -> Optimization:
        shared = {name: getattr(self, name) for name in ("optimizer", "batch_size", "momentum", "max_iter")}
        own = {"bias": self.fit_intercept, "start": "zeros", "tolerance": self.tol}
        return Optimization(epochs=epochs, schedule=schedule, **own, **shared)

    def _trial(self, loss: HierarchicalLoss) -> Trial:
        return Trial(loss, _RATES[self.optimizer] if self.lr is None else self.lr, self.weight_decay)

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _take(self, head: FittedHead, seen: np.ndarray) -> HACEClassifier:
        """The fitted attributes, from what training gave and the nodes that are labels of a sample."""
        if head.diverged is not None:
            raise ConfigError(
                f"Training diverged in epoch {head.diverged['epoch']}. Use a smaller lr, or scale the features, for "
                "instance with sklearn.preprocessing.StandardScaler."
            )
        if head.converged is False:
            warnings.warn(
                f"L-BFGS did not converge in {head.epochs} iterations: the largest entry of the gradient is "
                f"{head.history[0]['gradient']:.1e}. Scale the features, or raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.coef_ = head.weight.double().numpy()
        bias = torch.zeros(len(head.weight)) if head.bias is None else head.bias
        self.intercept_ = bias.double().numpy()
        self.n_iter_ = head.epochs
        self.history_ = head.history
        self._take_seen(seen)
        if self.hierarchy is not None and (count := len(self.unseen_classes_)):
            say_once(
                f"HACEClassifier: {count:,} of {len(self.classes_):,} classes have no training sample (unseen_classes_)"
                f"{'; predict_node stops above them' if self.unlabelled == 'stop' else ''}."
            )
        return self

    def _take_seen(self, nodes: np.ndarray) -> None:
        """What depends on the labels seen, and nothing calibrated yet."""
        self._seen = np.unique(nodes)
        self._answers = AnswersFromScores(self.hierarchy_, self._seen)
        self._nearness = None
        classes = self.hierarchy_.leaf_nodes[self._label_reading.order]
        self.unseen_classes_ = self.classes_[~np.isin(classes, self._seen)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        given = self.hierarchy
        return hasattr(self, "coef_") and (
            given is None or given is self._given or _is_same(given, self._given)
        )

    def _check_fitted(self) -> None:
        changed = hasattr(self, "coef_") and not self.__sklearn_is_fitted__()
        check_is_fitted(self, msg="hierarchy was changed after fit. Call fit again." if changed else None)

    def _outputs(self, X: Any) -> Tensor:
        """(samples, outputs) outputs of the head, in double precision."""
        self._check_fitted()
        return self._linear(validate_data(self, as_rows(X), dtype=_FLOATS, accept_sparse="csr", reset=False))

    def _linear(self, X: Any) -> Tensor:
        """The same for features that were checked."""
        return torch.from_numpy(X @ self.coef_.T + self.intercept_)

    def _scores(self, z: Tensor) -> Scores:
        over = self.loss_.score_outputs
        logits = z if over == "nodes" else self.loss_.leaf_logits(z)
        return Scores(logits, self.hierarchy_, outputs=over)

    def _scores_of(self, X: Any) -> Scores:
        """Logits over nodes or leaves whose softmax gives the probabilities."""
        return self._scores(self._outputs(X))

    def _labelled_scores(self, X: Any, y: Any) -> tuple[Scores, np.ndarray]:
        self._check_fitted()
        X, y = self._checked(X, y, reset=False)
        return self._scores(self._linear(X)), self._label_reading.nodes_of(y)

    def save(self, path: str | Path) -> None:
        """Write the fitted classifier to a .safetensors file, from which no code can run.

        :meth:`load` reads it, and so do `hace predict`, `serve`, `calibrate` and `export`.
        """
        self._check_fitted()
        save_classifier(self, path)

    def to_onnx(self, path: str | Path) -> None:
        """Write the model for any ONNX runtime, with the outputs and the document of `hace export` (docs/predict.md)."""
        self._check_fitted()
        save_onnx(self, path)

    @classmethod
    def load(cls, path: str | Path) -> HACEClassifier:
        """A classifier from a file of :meth:`save`, or from a linear head on features that `hace export` wrote as such a file.

        The latter is as good as trained: it answers, calibrates and continues with ``partial_fit``.
        """
        return load_classifier(cls, path)
