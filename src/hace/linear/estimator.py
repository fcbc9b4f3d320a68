"""A hierarchy-aware linear classifier, for scikit-learn's pipelines, searches and meta-estimators."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hace.checks import check_choice
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.linear import class_labels, class_weights
from hace.linear.coarse_labels import HiddenClasses, balanced_weights, coarse_loss
from hace.linear.fit import converged_head, fit_heads
from hace.linear.labelled_features import LabelledFeatures, as_weights
from hace.linear.trials import FittedHead, Optimization, Trial
from hace.losses.base import HierarchicalLoss
from hace.losses.registry import LOSSES, build_loss, loss_parameters

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_consistent_length, check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

    from hace.linear.answers import Answers
    from hace.linear.saved_classifier import SavedClassifier
except ImportError as error:
    raise ConfigError(
        'HACEClassifier needs scikit-learn, 1.6 or newer. Install it with: pip install "hace[sklearn]".'
    ) from error

COARSE_LABELS = ("balanced", "plain", "drop")
_SINGLE = 1e-6  # the smallest tol that single precision can tell
_RATES = {"sgd": 0.5, "adamw": 0.05, "lbfgs": 1.0}  # if lr is None


def _has_epochs(estimator: HACEClassifier) -> bool:
    if estimator.optimizer != "lbfgs":
        return True
    raise AttributeError("partial_fit needs optimizer='sgd' or 'adamw': L-BFGS takes all samples at once.")


class HACEClassifier(SavedClassifier, Answers, ClassifierMixin, BaseEstimator):
    """A linear classifier that learns from a hierarchy of its classes and can answer at any level of it.

    Without a hierarchy it is multinomial logistic regression, whatever the loss's parameters. With one, a class's logit is the
    sum of a linear function of each node on its path, so that relatives share what their ancestors learn.

    Labels are ids of leaves, or of inner nodes for samples known no better: coarse labels. ``classes_`` are all leaves, in
    sorted order, including those without a sample.

    Args:
        hierarchy: a :class:`hace.Hierarchy`, or None for the classes seen and nothing above them.
        labels: what integers in y are; strings are always ids. "ids": ids written as integers. "positions": positions in
            ``hierarchy.leaves``. "auto": whichever fits; an error if both do. A list of leaves: the classes, of which integers
            are positions; ``np.unique(y)`` decodes what scikit-learn's meta-estimators encode.
        loss: a name in :data:`hace.LOSSES`; "hace" is the paper's.
        dilution: d in (0, 1], for losses that take one; others ignore it.
        label_smoothing: eps in [0, 1), for losses that take one; others ignore it.
        loss_params: further parameters of the loss, such as ``{"alpha": 0.2}`` for "hxe".
        coarse_labels: what to make of coarse labels. "balanced": they count no more in all than fine ones, and are not compared
            with classes whose samples they could hide (:mod:`hace.linear.coarse_labels`). "plain": as any sample. "drop":
            train without them.
        class_weight: a weight for each label, as a dict (1 for those not named), or "balanced": inversely proportional to how
            often a class occurs. A coarse label that is not named has the mean weight of the classes below it. In
            ``partial_fit`` the mean class weight of a call scales its steps.
        subset: restrict answers to these classes: ids of leaves, or of inner nodes for all classes below. It acts on answers
            alone: change it with ``set_params(subset=...)``, without training again.
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
        unseen_classes_: classes without a training sample. There is no warning: folds of a cross-validation often miss some.
        hierarchy_: the hierarchy; a flat one over the classes seen if none was given.
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

    def __init__(
        self,
        hierarchy: Hierarchy | None = None,
        *,
        labels: str | Sequence[Any] = "auto",
        loss: str = "cross_entropy_paths",
        dilution: float = 0.5,
        label_smoothing: float = 0.0,
        loss_params: Mapping[str, Any] | None = None,
        coarse_labels: str = "balanced",
        class_weight: Mapping[Any, float] | str | None = None,
        subset: str | Sequence[Any] | None = None,
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
        self._read(y, None)
        self._calls = 0
        X, target, weight, trial, mean = self._lesson(X, y, sample_weight)
        class_weights.require_some(mean, self.class_weight)
        if self.optimizer == "lbfgs":
            single = X.dtype == np.float32 and self.tol >= _SINGLE
            rows = LabelledFeatures(
                X, target, self.loss_, weight, dtype=torch.float32 if single else torch.float64
            )
            return self._take(converged_head(rows, trial, options, dtype=torch.float64), y)
        (head,) = fit_heads(X, target, [trial], options, seed=self._seed(), sample_weight=weight)
        return self._take(head, y)

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
        class_weights.refuse_names(self.class_weight)
        first = not hasattr(self, "coef_")
        if first and self.hierarchy is None and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        X, y = self._checked(X, y, reset=first)
        if first:
            self._read(y, classes)
            self._calls = 0
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes={classes!r} is not what the first call to partial_fit said.")
        X, target, weight, trial, mean = self._lesson(X, y, sample_weight)
        if mean == 0:
            blank = torch.zeros(self.loss_.num_outputs, X.shape[1])
            return self._take(FittedHead(blank, None, [], None, 0), y) if first else self
        seen = y if first else np.concatenate([y, self._seen])
        # A step of decay is lr x weight_decay: as without weights.
        scaled = replace(trial, lr=trial.lr * mean, weight_decay=trial.weight_decay / mean)
        (head,) = fit_heads(
            X,
            target,
            [scaled],
            options,
            seed=self._seed() + self._calls,  # a new order in every call
            sample_weight=weight,
            start=None if first else FittedHead.of(self.coef_, self.intercept_),
        )
        self._calls += 1
        self._take(head, seen)
        self.n_iter_ = self._calls
        return self

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(
            self, X, y, dtype=(np.float64, np.float32), order="C", accept_sparse="csr", reset=reset
        )
        check_classification_targets(y)
        return X, y

    def _read(self, y: np.ndarray, classes: Sequence[Any] | None) -> None:
        """Decide once what labels mean."""
        if self.hierarchy is None:
            self._reading = class_labels.read_classes(
                np.unique(y if classes is None else np.asarray(classes))
            )
        elif isinstance(self.hierarchy, Hierarchy):
            seen = y if classes is None else np.concatenate([y, np.asarray(classes)])
            self._reading = class_labels.read_labels(seen, self.hierarchy, self.labels)
        else:
            raise ConfigError(f"hierarchy must be a Hierarchy or None. Got {type(self.hierarchy).__name__}.")
        self.hierarchy_, self.classes_ = self._reading.hierarchy, self._reading.classes

    def _lesson(
        self, X: np.ndarray, y: np.ndarray, weight: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Trial, float]:
        """Features, targets of leaves or, if some are coarse, nodes, weights, the trial and the mean class weight."""
        check_choice("coarse_labels", self.coarse_labels, COARSE_LABELS)
        nodes = self._reading(y)
        own = None if weight is None else as_weights(weight, len(y)).numpy()
        weight = class_weights.class_weighted(
            self.class_weight, self._reading.nodes, nodes, self.hierarchy_, own
        )
        labels = self.hierarchy_.labels[nodes]
        coarse = labels < 0
        if coarse.any() and self.coarse_labels == "drop":
            if coarse.all():
                raise DataError(
                    "y must hold labels of leaves if coarse_labels is 'drop'. All of them are inner nodes."
                )
            own, weight = (None if w is None else w[~coarse] for w in (own, weight))
            X, labels, coarse = X[~coarse], labels[~coarse], coarse[~coarse]
        mean = 1.0 if self.class_weight is None else class_weights.mean_class_weight(weight, own)
        if not coarse.any():
            self.loss_ = self._build_loss("leaves")
            return X, labels, weight, self._trial(self.loss_), mean
        self.loss_ = taught = self._build_loss("nodes")
        if self.coarse_labels == "balanced":
            taught = coarse_loss(self.loss_, HiddenClasses(nodes, self.hierarchy_, weight))
            weight = balanced_weights(nodes, self.hierarchy_, weight)
        return X, nodes, weight, self._trial(taught), mean

    def _build_loss(self, labels: str) -> HierarchicalLoss:
        given = dict(self.loss_params or {})
        reserved = [name for name in ("labels", "reduction", "ignore_index") if name in given]
        if reserved:
            raise ConfigError(f"loss_params must not hold {reserved[0]!r}: the estimator sets it.")
        known = loss_parameters(self.loss) if self.loss in LOSSES else {}
        own = {"dilution": self.dilution, "label_smoothing": self.label_smoothing}
        params = {name: value for name, value in own.items() if name in known} | given
        return build_loss(self.loss, self.hierarchy_, labels=labels, **params)

    def _options(self, epochs: int, schedule: str) -> Optimization:
        shared = {name: getattr(self, name) for name in ("optimizer", "batch_size", "momentum", "max_iter")}
        return Optimization(
            epochs=epochs,
            schedule=schedule,
            bias=self.fit_intercept,
            start="zeros",
            tolerance=self.tol,
            **shared,
        )

    def _trial(self, loss: HierarchicalLoss) -> Trial:
        return Trial(loss, _RATES[self.optimizer] if self.lr is None else self.lr, self.weight_decay)

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _take(self, head: FittedHead, y: np.ndarray) -> HACEClassifier:
        """The fitted attributes, from what training gave."""
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
        self.n_iter_, self.history_ = head.epochs, head.history
        self.temperature_, self._promised_on = 1.0, None
        self._seen = np.unique(y)
        self.unseen_classes_ = self.classes_[~np.isin(self.classes_, self._seen)]
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of samples whose predicted class is the label, or below it if the label is an inner node."""
        check_is_fitted(self)
        y = np.asarray(y)
        if self.hierarchy is None or np.isin(y, self.classes_).all():
            return float(super().score(X, y, sample_weight))
        check_consistent_length(X, y, sample_weight)
        leaves = self._reading(self.predict(X))
        right = class_labels.at_or_below(leaves, self._reading(y), self.hierarchy_)
        return float(np.average(right, weights=sample_weight))
