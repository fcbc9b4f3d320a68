"""Sparse features and class weights of the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from hace import ConfigError, DataError, HACEClassifier, Hierarchy
from hace.linear import Optimization, Trial, fit_heads
from hace.linear.labels import class_weighted, read_labels
from hace.losses.hace import CrossEntropyLoss

IRIS = load_iris()
X: np.ndarray = IRIS.data - IRIS.data.mean(axis=0)
NAMES: np.ndarray = IRIS.target_names[IRIS.target]
TREE = Hierarchy.from_paths([("small", "setosa"), ("large", "versicolor"), ("large", "virginica")])


class NeverDense(sparse.csr_array):
    """A sparse matrix that may become dense a batch at a time only."""

    def toarray(self, *args: Any, **kwargs: Any) -> np.ndarray:
        assert self.shape[0] <= 64, "the whole matrix became dense"
        return super().toarray(*args, **kwargs)

    todense = toarray


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_features_train_and_answer_as_dense_ones(kind: Any, dtype: type) -> None:
    x = (X * (np.abs(X) > 0.3)).astype(dtype)
    dense = HACEClassifier(TREE, tol=1e-7).fit(x, NAMES)
    thin = HACEClassifier(TREE, tol=1e-7).fit(kind(x), NAMES)
    np.testing.assert_allclose(thin.predict_proba(kind(x)), dense.predict_proba(x), atol=1e-4)
    np.testing.assert_allclose(thin.predict_proba(x), thin.predict_proba(kind(x)), atol=1e-6)
    assert thin.predict_node(kind(x), 0.9).tolist() == thin.predict_node(x, 0.9).tolist()


@pytest.mark.parametrize("optimizer", ["lbfgs", "sgd", "adamw"])
def test_the_whole_matrix_never_becomes_dense(optimizer: str) -> None:
    clf = HACEClassifier(TREE, optimizer=optimizer, epochs=20, random_state=0)
    assert clf.fit(NeverDense(X), NAMES).score(NeverDense(X), NAMES) > 0.9


def test_batches_of_sparse_rows_are_those_of_dense_rows() -> None:
    dense = HACEClassifier(TREE, optimizer="sgd", epochs=3, random_state=0).fit(X, NAMES)
    thin = HACEClassifier(TREE, optimizer="sgd", epochs=3, random_state=0).fit(sparse.csr_array(X), NAMES)
    np.testing.assert_array_equal(thin.coef_, dense.coef_)
    before = thin.coef_.copy()
    assert not np.array_equal(thin.partial_fit(sparse.csr_array(X), NAMES).coef_, before)


def test_calibration_takes_sparse_features() -> None:
    rows = np.random.default_rng(0).permutation(150)
    clf = HACEClassifier(TREE).fit(X[rows[:50]], NAMES[rows[:50]])
    clf.calibrate(sparse.csr_array(X[rows[50:]]), NAMES[rows[50:]])
    want = HACEClassifier(TREE).fit(X[rows[:50]], NAMES[rows[:50]]).calibrate(X[rows[50:]], NAMES[rows[50:]])
    assert clf.temperature_ == pytest.approx(want.temperature_)
    assert clf.guarantee(0.9).threshold == pytest.approx(want.guarantee(0.9).threshold)


def test_sparse_features_are_checked() -> None:
    trial, options = [Trial(CrossEntropyLoss(TREE))], Optimization(epochs=1)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(DataError, match="x must be finite"):
        fit_heads(sparse.csr_array(bad), IRIS.target, trial, options)
    with pytest.raises(DataError, match="real numbers"):
        fit_heads(sparse.csr_array(X.astype(complex)), IRIS.target, trial, options)
    held = (sparse.csr_array(X), IRIS.target)
    (head,) = fit_heads(sparse.csr_array(X), IRIS.target, trial, options, validation=held)
    assert 0 < head.history[0]["val_top1"] <= 1


# ---------------------------------------------------------------------- class weights


@pytest.mark.parametrize("weights", ["balanced", {"virginica": 5.0, "setosa": 0.5}])
def test_class_weights_are_those_of_logistic_regression(weights: Any) -> None:
    rows = np.r_[:50, 50:70, 100:145]
    x, y = X[rows], NAMES[rows]
    each = (
        len(y) / (3 * np.array([50, 20, 45]))
        if weights == "balanced"
        else np.array([0.5, 1.0, 5.0])  # in sorted order
    )
    mass = each[np.unique(y, return_inverse=True)[1]].sum()
    own = HACEClassifier(class_weight=weights, weight_decay=1 / mass, tol=1e-8).fit(x, y)
    peer = LogisticRegression(C=1.0, class_weight=weights, tol=1e-10, max_iter=5000).fit(x, y)
    np.testing.assert_allclose(own.predict_proba(X), peer.predict_proba(X), atol=2e-4)
    plain = HACEClassifier(weight_decay=1 / mass, tol=1e-8).fit(x, y)
    assert np.abs(own.predict_proba(X) - plain.predict_proba(X)).max() > 0.01


def test_class_weights_multiply_sample_weights() -> None:
    given = np.arange(150) % 3 + 1.0
    factor = np.where(NAMES == "virginica", 4.0, 1.0)
    both = HACEClassifier(TREE, class_weight={"virginica": 4}, tol=1e-8).fit(X, NAMES, given)
    one = HACEClassifier(TREE, tol=1e-8).fit(X, NAMES, given * factor)
    np.testing.assert_allclose(both.predict_proba(X), one.predict_proba(X), atol=1e-4)


def test_a_coarse_label_has_the_mean_weight_of_its_classes_unless_named() -> None:
    reading = read_labels(np.array(["setosa"]), TREE)
    nodes = np.array([TREE.index(v) for v in ("setosa", "versicolor", "virginica", "large", "small")])
    weights = {"versicolor": 2.0, "virginica": 6.0}
    assert class_weighted(weights, reading, nodes, None).tolist() == [1, 2, 6, 4, 1]  # type: ignore[union-attr]
    named = class_weighted(weights | {"large": 0.5}, reading, nodes, np.full(5, 2.0))
    assert named.tolist() == [2, 4, 12, 1, 2]  # type: ignore[union-attr]
    seen = nodes[[0, 0, 0, 1, 3]]  # no virginica: a large one weighs as a versicolor does
    balanced = class_weighted("balanced", reading, seen, None)
    np.testing.assert_allclose(balanced, [2 / 3, 2 / 3, 2 / 3, 2, 2])  # type: ignore[arg-type]
    y = NAMES.astype(object)
    y[::7] = np.where(NAMES[::7] == "setosa", "small", "large")
    assert HACEClassifier(TREE, class_weight="balanced").fit(X, y).score(X, NAMES) > 0.9


def test_integers_name_classes_too() -> None:
    heavy = HACEClassifier(class_weight={2: 50.0}, weight_decay=0.1).fit(X, IRIS.target)
    assert (heavy.predict(X) == 2).sum() > (
        HACEClassifier(weight_decay=0.1).fit(X, IRIS.target).predict(X) == 2
    ).sum()
    ids = Hierarchy.from_paths([("a", "10"), ("b", "20"), ("b", "30")])
    clf = HACEClassifier(ids, class_weight={30: 50.0}, weight_decay=0.1).fit(
        X, np.array([10, 20, 30])[IRIS.target]
    )
    assert (clf.predict(X) == 30).sum() > 60


def test_bad_class_weights() -> None:
    for weights, words in (
        ("even", "class_weight must be a dict of labels and weights, 'balanced' or None. Got 'even'."),
        ({"setossa": 1}, "Got 'setossa', which is not one. Did you mean 'setosa'"),
        ({"setosa": -1.0}, "class_weight must hold finite weights >= 0. Got -1.0 for 'setosa'."),
        ({"setosa": "2"}, "Got '2' for 'setosa'."),
        (
            {"setosa": 10**400},
            "class_weight must hold finite weights >= 0. Got an integer beyond 1.8e+308 for",
        ),
        ({"setosa": 10**9999}, "Got an integer beyond 1.8e+308 for 'setosa'."),
        (
            np.array([1.0, 2.0, 3.0]),
            "class_weight must be a dict of labels and weights, 'balanced' or None. Got array",
        ),
        (
            dict.fromkeys(TREE.leaves, 0),
            "class_weight must give some sample a weight above 0. Got {'setosa': 0,",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            HACEClassifier(TREE, class_weight=weights).fit(X, NAMES)  # pyright: ignore[reportArgumentType]
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match="class_weight must be a dict or None for partial_fit"):
        HACEClassifier(TREE, class_weight="balanced", optimizer="sgd").partial_fit(X, NAMES)
    coarse = np.where(NAMES == "setosa", NAMES, "large")
    huge = {"versicolor": 1e308, "virginica": 1e308}
    with pytest.raises(
        ConfigError, match=r"class_weight must give every sample a finite weight. Got \{'versicolor"
    ):
        HACEClassifier(TREE, class_weight=huge).fit(X, coarse)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_class_weights_last_from_call_to_call(optimizer: str) -> None:
    def taught(**params: Any) -> HACEClassifier:
        clf = HACEClassifier(TREE, optimizer=optimizer, random_state=0, **params)
        for name in TREE.leaves * 3:  # one class in each call
            clf.partial_fit(X[name == NAMES], NAMES[name == NAMES])
        return clf

    plain, even = (
        taught(lr=0.1),
        taught(lr=0.05, class_weight=dict.fromkeys(TREE.leaves, 2.0), weight_decay=2e-4),
    )
    heavy = taught(lr=0.1, class_weight={"versicolor": 10.0})
    at = list(plain.classes_).index("versicolor")
    assert heavy.predict_proba(X)[:, at].mean() > plain.predict_proba(X)[:, at].mean() + 0.05
    assert even.weight_decay == 2 * plain.weight_decay
    np.testing.assert_allclose(
        even.coef_, plain.coef_, rtol=1e-4, atol=1e-6
    )  # twice the weight, half the rate


def test_a_call_of_classes_without_weight_changes_nothing() -> None:
    setosa = NAMES == "setosa"
    clf = HACEClassifier(TREE, optimizer="sgd", random_state=0, class_weight={"setosa": 0})
    clf.partial_fit(X[setosa], NAMES[setosa])
    assert not clf.coef_.any()
    assert clf.predict(X).shape == (150,)
    before = clf.partial_fit(X, NAMES).coef_.copy()
    assert before.any()
    np.testing.assert_array_equal(clf.partial_fit(X[setosa], NAMES[setosa]).coef_, before)
    with pytest.raises(DataError, match="sample_weight must be"):
        clf.partial_fit(X, NAMES, sample_weight=np.zeros(150))
