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
from hace.decisions.bounds import group_places
from hace.decisions.calibration import calibration_samples, temperature_of_part
from hace.decisions.check import Check, check
from hace.decisions.decisions import Decisions
from hace.decisions.guarantees import GuaranteedThreshold, guaranteed_threshold
from hace.decisions.nearness import Likeness, Nearness, samples_like
from hace.decisions.rules import at_level, decide
from hace.decisions.scores import Scores, inside_subset, subset_mask
from hace.decisions.shift import Profile
from hace.errors import ConfigError, DataError, install
from hace.formats.given import as_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.linear import labels as reading
from hace.linear.features import LabelledFeatures, as_weights
from hace.linear.fit import fit_heads
from hace.linear.heads import FittedHead, Optimization, Trial
from hace.linear.lbfgs import converged_head
from hace.linear.saved_classifier import load_classifier, save_classifier, save_onnx
from hace.losses.advice import recommended_loss
from hace.losses.base import HierarchicalLoss
from hace.losses.registry import LOSSES, build_loss, loss_parameters

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_consistent_length, check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ConfigError(f"HACEClassifier needs scikit-learn, 1.6 or newer. {install('sklearn')}") from error

_FLOATS = (np.float64, np.float32)
COARSE_LABELS = ("auto", "balanced", "cautious", "plain", "drop")
_SINGLE = 1e-6  # the smallest tol that single precision can tell
_RATES = {"sgd": 0.5, "adamw": 0.05, "lbfgs": 1.0}  # if lr is None


@functools.cache
def _say_once(text: str) -> None:
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


class HACEClassifier(ClassifierMixin, BaseEstimator):
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
        subset: restrict answers to these classes: ids of leaves, or of inner nodes for all classes below. It acts on answers
            alone: change it with ``set_params(subset=...)``, without training again.
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
    # Log q* of held-out samples, or groups, and their node indices.
    _guaranteed_on: tuple[np.ndarray, np.ndarray] | None
    _guaranteed_groups: np.ndarray | None  # their groups
    _profile: Profile | None  # what was seen of these samples
    _nearness: Nearness | None  # the training samples, for the similarity to the nearest one
    _likeness: Likeness | None  # how these samples were drawn to stand for new ones
    _guarantees_about: tuple[str | None, Any]  # pool and subset of these scores

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
        self._read(y, None)
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
            return self._take(converged_head(rows, trial, options, dtype=torch.float64), self._reading(y))
        (head,) = fit_heads(X, target, [trial], options, seed=self._seed(), sample_weight=weight)
        return self._take(head, self._reading(y))

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
            self._read(y, classes)
            self._calls = 0
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes={classes!r} is not what the first call to partial_fit said.")
        X, target, weight, trial, mean = self._prepare(X, y, sample_weight)
        if mean == 0:
            blank = torch.zeros(self.loss_.num_outputs, X.shape[1])
            return self._take(FittedHead(blank, None, [], None, 0), self._reading(y)) if first else self
        start, seen = None, self._reading(y)
        if not first:
            weights = torch.from_numpy(self.coef_).float(), torch.from_numpy(self.intercept_).float()
            start, seen = FittedHead(*weights, [], None, 0), np.concatenate([seen, self._seen])
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
        X, y = validate_data(self, X, y, dtype=_FLOATS, order="C", accept_sparse="csr", reset=reset)
        check_classification_targets(y)
        return X, y

    def _read(self, y: np.ndarray, classes: Sequence[Any] | None) -> None:
        """Decide once what labels mean."""
        if self.hierarchy is None:
            self._reading = reading.read_classes(np.unique(y if classes is None else np.asarray(classes)))
        else:
            seen = y if classes is None else np.concatenate([y, np.asarray(classes)])
            self._reading = reading.read_labels(seen, as_hierarchy(self.hierarchy), self.labels)
        self.hierarchy_, self.classes_ = self._reading.hierarchy, self._reading.classes
        self._given = self.hierarchy

    def _prepare(
        self, X: np.ndarray, y: np.ndarray, weight: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Trial, float]:
        """Features, targets of leaves or, if some are coarse, nodes, weights, the trial and the mean class weight."""
        check_choice("coarse_labels", self.coarse_labels, COARSE_LABELS)
        self.coarse_labels_ = self.coarse_labels
        nodes = self._reading(y)
        own = None if weight is None else as_weights(weight, len(y)).numpy()
        weight = reading.class_weighted(self.class_weight, self._reading, nodes, own)
        labels = self.hierarchy_.labels[nodes]
        coarse = labels < 0
        if coarse.any() and self.coarse_labels == "drop":
            if coarse.all():
                raise DataError(
                    "y must hold labels of leaves if coarse_labels is 'drop'. All of them are inner nodes."
                )
            own, weight = (None if w is None else w[~coarse] for w in (own, weight))
            X, labels, coarse = X[~coarse], labels[~coarse], coarse[~coarse]
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
        known = loss_parameters(self.loss_name_) if self.loss_name_ in LOSSES else {}
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
        self.n_iter_, self.history_ = head.epochs, head.history
        self._take_seen(seen)
        if self.hierarchy is not None and (count := len(self.unseen_classes_)):
            _say_once(
                f"HACEClassifier: {count:,} of {len(self.classes_):,} classes have no training sample (unseen_classes_)"
                f"{'; predict_node stops above them' if self.unlabelled == 'stop' else ''}."
            )
        return self

    def _take_seen(self, nodes: np.ndarray) -> None:
        """What depends on the labels seen, and nothing calibrated yet."""
        self.temperature_, self._guaranteed_on, self._guaranteed_groups = 1.0, None, None
        self._profile = self._nearness = self._likeness = None
        self._guarantees_about, self._pooled_temperature = (None, self.subset), 1.0
        self._temperature_samples = 0  # that fitted it
        self._guarantees, self._deepest = {}, None
        self._seen = np.unique(nodes)
        classes = self.hierarchy_.leaf_nodes[self._reading.order]
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

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of samples whose predicted class is the label, or below it if the label is an inner node."""
        self._check_fitted()
        y = np.asarray(y)
        if self.hierarchy is None or np.isin(y, self.classes_).all():
            return float(super().score(X, y, sample_weight))
        check_consistent_length(X, y, sample_weight)
        right = is_above(self.hierarchy_, self._reading(y), self._reading(self.predict(X)))
        return float(np.average(right, weights=sample_weight))

    def _outputs(self, X: Any) -> Tensor:
        """(samples, outputs) outputs of the head, in double precision."""
        self._check_fitted()
        return self._linear(validate_data(self, X, dtype=_FLOATS, accept_sparse="csr", reset=False))

    def _linear(self, X: Any) -> Tensor:
        """The same for features that were checked."""
        return torch.from_numpy(X @ self.coef_.T + self.intercept_)

    def _scores(self, z: Tensor, temperature: float = 1.0) -> Scores:
        """Logits over nodes or leaves whose softmax gives the probabilities."""
        over = self.loss_.score_outputs
        logits = z if over == "nodes" else self.loss_.leaf_logits(z)
        return Scores(logits / temperature, self.hierarchy_, outputs=over)

    def _allowed_nodes(self) -> np.ndarray | None:
        return None if self.subset is None else subset_mask(self.hierarchy_, self.subset)

    def _leaf_logits(self, X: Any) -> Tensor:
        """(samples, classes) logits in the order of ``classes_``: -inf outside the subset."""
        z = self._outputs(X)
        logits, allowed = self.loss_.leaf_logits(z) / self.temperature_, self._allowed_nodes()
        if allowed is not None:
            logits = logits.masked_fill(torch.from_numpy(~allowed[self.hierarchy_.leaf_nodes]), -torch.inf)
        chosen = logits[:, torch.from_numpy(self._reading.order)]
        if allowed is not None and bool((chosen == -torch.inf).all()):
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
        return (
            self._scores(self._outputs(X), self.temperature_)
            .restricted(self._allowed_nodes())
            .log_q()
            .numpy()
        )

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
        options = {"threshold": threshold, "level": level, "accuracy": accuracy}
        given = [name for name, value in options.items() if value is not None]
        check_choice("unlabelled", self.unlabelled, ("stop", "allow"))
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} must not be given together. Drop all but one.")
        how = None if groups is None else pool
        sure = None if accuracy is None else self._guarantee(how, accuracy, confidence, of, group_share)
        scores = self._scores(self._outputs(X), 1.0 if groups is not None else self.temperature_)
        scores = scores.restricted(self._allowed_nodes())
        if groups is not None:
            scores = scores.pooled(group_places(groups, len(scores))[1], pool)
            scores = replace(scores, data=scores.data / (1.0 if sure is None else self._pooled_temperature))
        if sure is not None:
            decided = sure.predict(scores.data, self.hierarchy_, kind=scores.kind, outputs=scores.outputs)
        elif level is not None:
            decided = at_level(scores.log_q(), self.hierarchy_, level)
        else:
            decided = decide(scores, "threshold", threshold=0.5 if threshold is None else threshold)
        return decided if self.unlabelled == "allow" else self._stopped(decided, scores)

    def _stopped(self, decided: Decisions, scores: Scores) -> Decisions:
        """The answers, no deeper than nodes that have a training label at or below them."""
        if self._deepest is None:
            self._deepest = reading.deepest_labelled(self._seen, self.hierarchy_)
        nodes = torch.from_numpy(self._deepest)[decided.nodes]
        moved = torch.nonzero(nodes != decided.nodes).flatten()
        if not len(moved):
            return decided
        probabilities = decided.probabilities.clone()
        q = scores[moved.numpy()].log_q().exp()
        above = torch.cat([q, q.new_ones(len(q), 1)], dim=1)  # no answer is certain
        probabilities[moved] = above.gather(1, nodes[moved, None])[:, 0].to(probabilities.dtype)
        return replace(decided, nodes=nodes, probabilities=probabilities)

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
    ) -> HACEClassifier:
        """Make confidences real, from held-out samples: not those of training, and not the test set.

        A random half of them fits ``temperature_``, by which scores are divided from now on: classes stay the same,
        probabilities change. The other half is kept for the guarantees of :meth:`guarantee`. Training again forgets both.

        Args:
            X: (samples, features).
            y: labels.
            groups: the site, donor or recording of each sample: half of the groups fit the temperature, and guarantees are
                about new groups.
            pool: "log" or "mean": guarantees are about the one answer that ``predict_node(groups=..., pool=...)`` gives a
                group, all of whose samples have one label.
            temperature: None: fitted on half. Or one from other samples, 1 for none: all samples then support guarantees.
            training: features of the training samples, or a :class:`hace.decisions.nearness.Nearness` of them: :meth:`check`
                then compares how similar new samples are to them, which sees a random hold-out that cannot stand for new ones.
            new: features of unlabelled samples from where the model will be used. Guarantees then rest on samples drawn to be
                as similar to the training samples as these are; see :mod:`hace.decisions.nearness` for what that assumes.
        """
        self._check_fitted()
        X, y = self._checked(X, y, reset=False)
        if len(y) < 2:
            raise DataError(f"X must hold at least two samples to calibrate with. Got {len(y)}.")
        near = self._similarity_of(X, self._reading(y), training, pool)
        scores, truth, groups = calibration_samples(
            self._scores(self._linear(X)), self._reading(y), groups, pool, self.subset
        )
        fits = np.zeros(len(truth), dtype=bool)
        if temperature is None:
            temperature, fits = temperature_of_part(scores, truth, groups, 2, np.random.default_rng(0))
        rows = np.flatnonzero(~fits)
        self._likeness = None if new is None else self._like(new, near, rows, groups)
        if self._likeness is not None:
            rows = rows[self._likeness.rows]
        if pool is None:
            self.temperature_ = temperature
        self._guaranteed_on = scores[rows].cooled(temperature).log_q().numpy(), truth[rows]
        self._guaranteed_groups = None if groups is None else groups[rows]
        self._profile = Profile.of(
            self._guaranteed_on[0],
            self.hierarchy_,
            similarity=None if near is None else near[rows],
            groups=self._guaranteed_groups,
            kind="node_log_probs",
        )
        self._guarantees_about, self._pooled_temperature = (pool, self.subset), temperature
        self._guarantees, self._temperature_samples = {}, int(fits.sum())
        return self

    def _similarity_of(self, X: Any, nodes: np.ndarray, training: Any, pool: str | None) -> np.ndarray | None:
        """(S,) of the samples that guarantees may rest on, to the nearest training sample; None where that is unknown."""
        if training is not None:
            self._nearness = training if isinstance(training, Nearness) else Nearness.of(training)
        if self._nearness is None or pool is not None:
            return None
        inside = slice(None) if self.subset is None else inside_subset(self.hierarchy_, self.subset, nodes)
        return self._nearness.similarity(X)[inside]

    def _like(self, new: Any, near: np.ndarray | None, rows: np.ndarray, groups: Any) -> Likeness:
        """Which of the calibration samples stand for new ones."""
        if near is None or self._nearness is None:
            raise ConfigError(
                "new must come with training, the features of the training samples, and without pool."
            )
        if groups is not None:
            raise ConfigError(
                "new must come without groups: samples are drawn to be like the new ones, not groups. Leave one of them out."
            )
        return samples_like(near[rows], self._nearness.similarity(new))

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
        return self._guarantee(self._guarantees_about[0], accuracy, confidence, of, group_share)

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
        guarantee = self.guarantee(accuracy, of=of, confidence=confidence, group_share=group_share)
        if self._profile is None or self._guarantees_about[0] is not None:
            raise ConfigError("check needs a calibration without pool. Call calibrate(X, y) again.")
        scores = self._scores(self._outputs(X), self.temperature_).restricted(self._allowed_nodes())
        return check(
            guarantee,
            self._profile,
            scores.log_q(),
            self.hierarchy_,
            target=None if y is None else self._known_nodes(y),
            similarity=None if self._nearness is None else self._nearness.similarity(X),
            groups=groups,
            labels="nodes",
            level=level,
            kind="node_log_probs",
        )

    def _known_nodes(self, y: Any) -> np.ndarray:
        """(S,) the nodes of labels, -1 where they are None."""
        given = np.asarray(y)
        known = np.array([label is not None for label in given.tolist()], dtype=bool)
        nodes = np.full(len(given), -1)
        if known.any():
            labels = given[known]
            nodes[known] = self._reading(np.array(labels.tolist()) if labels.dtype == object else labels)
        return nodes

    def _guarantee(
        self, pool: str | None, accuracy: float, confidence: float | None, of: str, group_share: float | None
    ) -> GuaranteedThreshold:
        """A guarantee about samples, or about answers to groups that are pooled in this way."""
        if self._guaranteed_on is None and not self._guarantees:
            raise ConfigError(
                "accuracy needs a calibrated classifier. Call calibrate(X, y) with samples that fit did not see, or give a "
                "threshold."
            )
        if self._guarantees_about != (pool, self.subset):
            raise ConfigError(
                "accuracy must come with the subset and the pool of calibrate: a guarantee is about these answers. Got "
                f"subset={reprlib.repr(self.subset)} and pool={pool!r}. Call calibrate(X, y, groups, pool=...) again."
            )
        guarantee = accuracy, confidence, of
        if (*guarantee, group_share) not in self._guarantees:
            if self._guaranteed_on is None:  # of a file
                known = ", ".join(f"{t.accuracy:g} of {t.of}" for t in self._guarantees.values())
                raise ConfigError(
                    f"accuracy must be one that the file holds: {known}. Got {accuracy:g} of {of}. Calibrate again, or call "
                    "guarantee with it before save."
                )
            sure, nodes = torch.from_numpy(self._guaranteed_on[0]), self._guaranteed_on[1]
            options: Any = {"groups": self._guaranteed_groups, "group_share": group_share}
            self._guarantees[(*guarantee, group_share)] = guaranteed_threshold(
                sure, nodes, self.hierarchy_, *guarantee, labels="nodes", kind="node_log_probs", **options
            )
        return self._guarantees[(*guarantee, group_share)]

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
