"""The estimator: scikit-learn's own contract suite, and what a hierarchy adds to it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_class_weight_classifiers,
    check_estimator,
    parametrize_with_checks,
)

import hace
from hace import ConfigError, DataError, Hierarchy
from hace.linear.estimator import HACEClassifier
from hace.linear.labels import read_labels

IRIS = load_iris()
X: np.ndarray = IRIS.data
SCALED: np.ndarray = StandardScaler().fit_transform(X)
NAMES: np.ndarray = IRIS.target_names[IRIS.target]
TREE = Hierarchy.from_paths(
    [("small", "setosa"), ("large", "virginica"), ("large", "versicolor")],
    leaves=["virginica", "setosa", "versicolor"],  # not in sorted order
)

# ---------------------------------------------------------------------- the contract suite

MINI_BATCHES = (
    "mini-batches: a repeated sample falls into other batches than a weighted one, so training takes another "
    "path. In full batch the two agree: tests/linear/test_fitting.py::test_weight_two_is_the_sample_twice."
)


def with_checks(*estimators: BaseEstimator, **options: Any) -> pytest.MarkDecorator:
    """scikit-learn's checks; older versions give a generator, which pytest no longer takes."""
    mark = parametrize_with_checks(list(estimators), **options)
    names, values = mark.args
    return pytest.mark.parametrize(names, list(values), **mark.kwargs)


@with_checks(HACEClassifier())
@pytest.mark.filterwarnings("default")  # the checks make warnings of their own
def test_contract(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@with_checks(
    HACEClassifier(optimizer="sgd", epochs=20),  # AdamW takes the same way
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": MINI_BATCHES,
        "check_sample_weight_equivalence_on_sparse_data": MINI_BATCHES,
        "check_class_weight_classifiers": "20 epochs are too few for its unscaled features; the next test takes 400",
    },
)
@pytest.mark.filterwarnings("default")
def test_contract_in_mini_batches(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_class_weights_in_mini_batches() -> None:
    check_class_weight_classifiers("HACEClassifier", HACEClassifier(optimizer="sgd", epochs=400))


ALL_RUN = """
import sys, warnings
warnings.simplefilter("ignore")
from sklearn.utils.estimator_checks import estimator_checks_generator
from hace import HACEClassifier
checks = [check for _, check in estimator_checks_generator(HACEClassifier()) if "array_api" in check.func.__name__]
for check in checks:
    check(HACEClassifier())
print(len(checks))
"""


@pytest.mark.slow
def test_nothing_is_skipped_silently() -> None:
    """The one check that asks for an environment variable gets it, in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", ALL_RUN],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    # Before 1.9 it runs only for estimators that ask for it; 1.7 is the last for Python 3.10.
    older = tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9)
    assert int(done.stdout) == (0 if older else 1)


@pytest.mark.filterwarnings("ignore")
def test_the_suite_says_no_to_a_broken_estimator() -> None:
    class Broken(HACEClassifier):
        def predict(self, X: Any) -> np.ndarray:
            return super().predict(X)[:-1]

    with pytest.raises((AssertionError, ValueError)):
        check_estimator(Broken())


# ---------------------------------------------------------------------- without a hierarchy


@pytest.mark.parametrize(
    ("dilution", "y"),
    [(1.0, IRIS.target), (0.2, NAMES), (0.5, IRIS.target.astype(float)), (0.5, NAMES == "setosa")],
    ids=["int", "str", "float", "bool"],
)
def test_flat_is_logistic_regression_at_any_dilution(dilution: float, y: np.ndarray) -> None:
    x, strength = SCALED, 3.0
    own = HACEClassifier(dilution=dilution, weight_decay=1 / (strength * len(x)), tol=1e-8).fit(x, y)
    # With two classes scikit-learn has one row of weights, whose square counts twice as much as that of two.
    two = len(np.unique(y)) == 2
    peer = LogisticRegression(C=strength * (2 if two else 1), tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_array_equal(own.predict(x), peer.predict(x))
    np.testing.assert_allclose(own.predict_proba(x), peer.predict_proba(x), atol=2e-4)
    np.testing.assert_array_equal(own.classes_, peer.classes_)
    assert own.predict(x).dtype == y.dtype
    assert log_loss(y, own.predict_proba(x)) == pytest.approx(log_loss(y, peer.predict_proba(x)), abs=1e-5)


def test_iris_just_works_in_every_optimizer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert HACEClassifier().fit(X, NAMES).score(X, NAMES) > 0.97
        for optimizer in ("sgd", "adamw"):
            scaled = make_pipeline(StandardScaler(), HACEClassifier(optimizer=optimizer, random_state=0))
            assert scaled.fit(X, NAMES).score(X, NAMES) > 0.93


def test_the_seed_decides_and_nothing_else() -> None:
    def fitted(seed: Any) -> np.ndarray:
        return HACEClassifier(TREE, optimizer="sgd", epochs=2, random_state=seed).fit(X, NAMES).coef_

    assert np.array_equal(fitted(3), fitted(3))
    assert np.array_equal(fitted(np.random.RandomState(3)), fitted(np.random.RandomState(3)))
    assert not np.array_equal(fitted(3), fitted(4))


# ---------------------------------------------------------------------- with one


@pytest.mark.slow
@pytest.mark.parametrize("loss", list(hace.LOSSES))
def test_every_loss_fits_and_answers(loss: str) -> None:
    clf = HACEClassifier(TREE, loss=loss, weight_decay=1e-3).fit(SCALED, NAMES)
    floor = {"expected_distance": 0.6, "class_embedding": 0.8}.get(loss, 0.9)
    assert clf.score(SCALED, NAMES) > floor
    assert clf.coef_.shape == (clf.loss_.num_outputs, 4)
    proba = clf.predict_proba(SCALED)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(SCALED)), proba)
    np.testing.assert_array_equal(clf.classes_[proba.argmax(axis=1)], clf.predict(SCALED))
    nodes = np.exp(clf.predict_node_log_proba(SCALED))
    large = nodes[:, TREE.index("large")]
    assert (large >= nodes[:, TREE.index("virginica")] + nodes[:, TREE.index("versicolor")] - 1e-9).all()


def test_columns_are_in_sorted_order_whatever_the_label_order() -> None:
    clf = HACEClassifier(TREE, loss="cross_entropy_paths").fit(X, NAMES)
    assert clf.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert TREE.leaves == ("virginica", "setosa", "versicolor")
    proba = clf.predict_proba(X)
    assert proba[0, 0] > 0.9  # the first flower is a setosa
    np.testing.assert_array_equal(clf.decision_function(X).argmax(axis=1), proba.argmax(axis=1))
    chance = proba[np.arange(150), IRIS.target]
    assert log_loss(NAMES, proba, labels=clf.classes_) == pytest.approx(-np.log(chance).mean())
    by_hand = torch.as_tensor(X @ clf.coef_.T + clf.intercept_)
    logits = hace.leaf_logits(by_hand, TREE, "paths").numpy()[:, [TREE.label(c) for c in clf.classes_]]
    np.testing.assert_allclose(clf.decision_function(X), logits)


@pytest.mark.slow
def test_integers_are_ids_and_come_back_as_integers() -> None:
    h = Hierarchy.from_paths([("birds", "10"), ("birds", "9"), ("fish", "2")])
    y = np.array([2, 9, 10])[IRIS.target]
    clf = HACEClassifier(h).fit(X, y)
    assert clf.classes_.tolist() == [2, 9, 10]
    assert clf.classes_.dtype.kind == "i"
    assert clf.score(X, y) > 0.97
    assert set(clf.predict_node(X, level=1)) == {"birds", "fish"}
    words = HACEClassifier(h).fit(X, y.astype(str))
    assert words.classes_.tolist() == ["10", "2", "9"]
    np.testing.assert_array_equal(words.predict(X).astype(int), clf.predict(X))


@pytest.mark.parametrize("kind", [object, "string"])
def test_labels_from_pandas_work(kind: Any) -> None:
    frame = pd.DataFrame(X, columns=IRIS.feature_names)
    clf = HACEClassifier(TREE).fit(frame, pd.Series(NAMES, dtype=kind))
    assert clf.feature_names_in_.tolist() == IRIS.feature_names
    assert clf.n_features_in_ == 4
    assert clf.predict(frame)[0] == "setosa"


def test_unseen_leaves_work_and_are_reported() -> None:
    trained = NAMES != "versicolor"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf = HACEClassifier(TREE).fit(X[trained], NAMES[trained])
    assert clf.unseen_classes_.tolist() == ["versicolor"]
    assert clf.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert clf.predict_proba(X).shape == (150, 3)
    assert clf.score(X[trained], NAMES[trained]) > 0.97
    assert HACEClassifier(TREE).fit(X, NAMES).unseen_classes_.tolist() == []


@pytest.mark.slow
def test_coarse_labels_train_and_score() -> None:
    """Half of the large ones are known as large only: the other half teaches the species."""
    y = NAMES.astype(object)
    y[(np.arange(150) % 2 == 0) & (NAMES != "setosa")] = "large"
    clf = HACEClassifier(TREE).fit(X, y)
    assert clf.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert clf.loss_.labels == "nodes"
    assert (clf.predict(X) == NAMES).mean() > 0.95
    assert set(clf.predict(X)) == set(NAMES)
    right = (clf.predict(X) == y) | ((y == "large") & (clf.predict(X) != "setosa"))
    assert clf.score(X, y) == pytest.approx(right.mean())
    weight = np.linspace(0, 1, 150)
    assert clf.score(X, y, weight) == pytest.approx(np.average(right, weights=weight))
    assert cross_val_score(HACEClassifier(TREE), X, y, cv=3).mean() > 0.9


def test_predict_node_follows_the_rules_of_predict() -> None:
    clf = HACEClassifier(TREE).fit(X, NAMES)
    log_q = clf.predict_node_log_proba(X)
    kind = "node_log_probs"
    for threshold in (0.5, 0.9, [0.5, 0.99]):
        want = hace.predict(log_q, TREE, "threshold", threshold=threshold, kind=kind).ids
        assert clf.predict_node(X, threshold).tolist() == want
    assert clf.predict_node(X).tolist() == clf.predict_node(X, 0.5).tolist()
    assert clf.predict_node(X, level=1).tolist() == hace.predict(log_q, TREE, "level", level=1, kind=kind).ids
    sure = clf.predict_node(X, 0.999)
    assert {"setosa", "large"} <= set(sure)
    assert (sure == "large").sum() > (clf.predict_node(X, 0.6) == "large").sum()
    flat = HACEClassifier().fit(X, NAMES)
    assert None in set(flat.predict_node(X, 0.99))  # nothing above a class to fall back on


# ---------------------------------------------------------------------- partial_fit


def test_partial_fit_learns_batch_by_batch() -> None:
    x = StandardScaler().fit_transform(X)
    clf = HACEClassifier(TREE, optimizer="sgd", random_state=0)
    order = np.random.default_rng(0).permutation(150)
    for _ in range(20):
        for rows in np.array_split(order, 5):
            clf.partial_fit(x[rows], NAMES[rows])
    assert clf.score(x, NAMES) > 0.93
    assert clf.n_iter_ == 100
    assert clf.unseen_classes_.tolist() == []


def test_partial_fit_goes_on_from_where_it_was() -> None:
    clf = HACEClassifier(TREE, optimizer="sgd", lr=0.01, random_state=0).partial_fit(X[:10], NAMES[:10])
    assert clf.unseen_classes_.tolist() == ["versicolor", "virginica"]
    before = clf.coef_.copy()
    clf.set_params(lr=1e-30).partial_fit(X[60:], NAMES[60:])
    np.testing.assert_allclose(clf.coef_, before)
    assert clf.unseen_classes_.tolist() == []
    assert not np.allclose(HACEClassifier(TREE, optimizer="sgd", lr=0.1).fit(X, NAMES).coef_, before)


def test_partial_fit_asks_for_classes_only_where_nobody_else_knows_them() -> None:
    flat = HACEClassifier(optimizer="adamw")
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        flat.partial_fit(X, NAMES)
    flat.partial_fit(X[:10], NAMES[:10], classes=IRIS.target_names)
    assert flat.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    with pytest.raises(ValueError, match="is not what the first call to partial_fit said"):
        flat.partial_fit(X, NAMES, classes=["setosa", "virginica"])
    with pytest.raises(
        DataError, match=r"y must hold labels in classes. 1 of 2 are not; the first is 'rose' in row 1"
    ):
        flat.partial_fit(X[:2], np.array(["setosa", "rose"]))
    with pytest.raises(AttributeError, match="partial_fit"):
        _ = HACEClassifier().partial_fit


# ---------------------------------------------------------------------- in scikit-learn's company


def test_pipeline_search_and_cross_validation() -> None:
    pipe = make_pipeline(StandardScaler(), HACEClassifier(TREE, tol=1e-3))
    grid = {"haceclassifier__dilution": [0.3, 0.7], "haceclassifier__weight_decay": [1e-3, 1e-1]}
    search = GridSearchCV(pipe, grid, cv=3, scoring="neg_log_loss").fit(X, NAMES)
    assert search.best_params_["haceclassifier__weight_decay"] == 1e-3
    assert search.best_score_ > -0.3
    assert cross_val_score(pipe, X, NAMES, cv=5).mean() > 0.93
    assert (cross_val_predict(pipe, X, NAMES, cv=3) == NAMES).mean() > 0.93


SORTED = Hierarchy.from_paths([("small", "setosa"), ("large", "virginica"), ("large", "versicolor")])
NUMBERED = Hierarchy.from_paths([("0", "5"), ("1", "6"), ("1", "7"), ("2", "8")])  # 8 has no sample
NUMBERS = np.array([5, 6, 7])[IRIS.target]
META: dict[str, Callable[[HACEClassifier], Any]] = {
    "stacking": lambda clf: StackingClassifier([("a", clf)], cv=3),
    "voting": lambda clf: VotingClassifier([("a", clf), ("b", clf)]),
    "soft voting": lambda clf: VotingClassifier([("a", clf)], voting="soft"),
    "bagging": lambda clf: BaggingClassifier(clf, n_estimators=2, random_state=0),
    "calibration": lambda clf: CalibratedClassifierCV(clf, cv=3),
    "calibration of one": lambda clf: CalibratedClassifierCV(clf, cv=3, ensemble=False),
}


# A hierarchy, y, and the labels that tell what its encoded integers are.
ENCODED = {
    "names": (SORTED, NAMES, "auto"),
    "names out of order": (TREE, NAMES, np.unique(NAMES)),
    "numbers": (NUMBERED, NUMBERS, np.unique(NUMBERS)),
}


def quick(hierarchy: Hierarchy | None, labels: Any = "auto") -> HACEClassifier:
    return HACEClassifier(hierarchy, labels=labels, weight_decay=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("meta", "case"), [*((meta, "numbers") for meta in META), *(("stacking", c) for c in ENCODED)]
)
def test_meta_estimators_that_encode_labels(meta: str, case: str) -> None:
    hierarchy, y, labels = ENCODED[case]
    clf = META[meta](quick(hierarchy, labels)).fit(SCALED, y)
    assert (clf.predict(SCALED) == y).mean() > 0.93
    assert clf.predict(SCALED).dtype == y.dtype


def test_cross_val_predict_of_probabilities_encodes_labels_too() -> None:
    def accuracy(clf: HACEClassifier, y: np.ndarray) -> float:
        proba = cross_val_predict(clf, SCALED, y, cv=3, method="predict_proba")
        assert proba.shape == (150, 3)
        return (proba.argmax(axis=1) == IRIS.target).mean()

    assert accuracy(quick(None), NAMES) > 0.9
    for hierarchy, y, labels in ENCODED.values():
        assert accuracy(quick(hierarchy, labels), y) > 0.9
    # Positions 0 to 2 are inner nodes here: read as ids they would train on other labels without a word.
    with pytest.raises(
        DataError, match=r"clearly ids or positions. Got 0, which could be both. Say which: labels='ids'"
    ):
        accuracy(quick(NUMBERED), NUMBERS)
    with pytest.raises(
        DataError, match=r"hierarchy.leaves is not sorted.*labels=hierarchy.leaves for the first"
    ):
        accuracy(quick(TREE), NAMES)


@pytest.mark.slow
def test_integers_are_positions_where_no_id_is_an_integer() -> None:
    clf = HACEClassifier(SORTED).fit(X, IRIS.target)
    assert clf.classes_.tolist() == [0, 1, 2]
    assert clf.score(X, IRIS.target) > 0.97
    np.testing.assert_array_equal(clf.predict_proba(X), HACEClassifier(SORTED).fit(X, NAMES).predict_proba(X))
    assert clf.predict_node(X[:1], level=1).tolist() == ["small"]
    in_label_order = HACEClassifier(TREE, labels=TREE.leaves).fit(X, [TREE.label(name) for name in NAMES])
    assert in_label_order.predict(X[:1]).tolist() == [TREE.label("setosa")]
    assert in_label_order.predict_node(X[:1]).tolist() == ["setosa"]
    batches = HACEClassifier(SORTED, optimizer="sgd", random_state=0).partial_fit(
        X[:9], IRIS.target[:9], [0, 1, 2]
    )
    assert batches.unseen_classes_.tolist() == [1, 2]


def test_auto_tells_ids_from_positions_or_asks() -> None:
    def reads(ids: Sequence[str], y: Sequence[int], labels: Any = "auto") -> list[int]:
        reading = read_labels(np.array(y), Hierarchy.flat(list(ids)), labels)
        return [reading.hierarchy.labels[node] for node in reading.nodes_of(np.array(y)).tolist()]

    assert reads("012", [2, 0]) == [2, 0]  # each id is its own position
    assert reads("579", [9, 5]) == [2, 0]  # beyond the positions: ids
    assert reads("abc", [2, 0]) == [2, 0]
    assert reads("123", [1, 2], "ids") == [0, 1]
    assert reads("123", [1, 2], "positions") == [1, 2]
    assert reads("123", [0, 1], ["3", "1"]) == [2, 0]
    assert reads("123", [3, 1], [3, 1]) == [2, 0]  # not positions: ids of the list
    for ids, y, labels in (("123", [1, 2], "auto"), ("123", [0, 1, 2], "auto"), ("123", [1], [1, 2, 3])):
        with pytest.raises(DataError, match=r"Got 1, which could be both"):
            reads(ids, y, labels)
    with pytest.raises(DataError, match=r"could be positions among fewer classes"):
        reads("abc", [0, 1])
    with pytest.raises(DataError, match=r"hierarchy.leaves is not sorted"):
        reads(["10", "9"], [0, 1], "positions")
    for labels, words in (
        ("names", "labels must be one of 'auto', 'ids', 'positions', or a list of leaves. Got 'names'."),
        (["a", "d"], "labels must list leaves of the hierarchy. Got 'd', which is not one."),
        (["a", "a"], "labels must list each leaf once."),
        ([], "labels must list each leaf once."),
        (1, "labels must be a word or a list of leaves. Got 1."),
        (None, "labels must be a word or a list of leaves. Got None."),
    ):
        with pytest.raises(ConfigError) as caught:
            reads("abc", [0], labels)
        assert words in str(caught.value)


def test_clone_and_pickle() -> None:
    clf = HACEClassifier(TREE, dilution=0.7, optimizer="sgd", random_state=0).fit(X, NAMES)
    twin = clone(clf)
    assert twin.hierarchy == TREE
    assert twin.get_params()["dilution"] == 0.7
    with pytest.raises(NotFittedError):
        twin.predict(X)
    thawed = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(thawed.predict_proba(X), clf.predict_proba(X))
    assert thawed.hierarchy_ == TREE
    clf.set_params(loss="hxe", hierarchy=None)  # fitted attributes do not change
    np.testing.assert_array_equal(thawed.predict_proba(X), clf.predict_proba(X))


def test_sample_weights_count_as_repetitions() -> None:
    weight = np.arange(150) % 3
    clf = HACEClassifier(TREE, weight_decay=0.1, tol=1e-8)
    repeated = clone(clf).fit(X.repeat(weight, axis=0), NAMES.repeat(weight)).predict_proba(X)
    weighted = clone(clf).fit(X, NAMES, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-5)
    assert abs(weighted - clone(clf).fit(X, NAMES).predict_proba(X)).max() > 1e-3


def test_it_agrees_with_the_trainer_on_more_classes() -> None:
    x, y = load_digits(return_X_y=True)
    h = Hierarchy.from_paths([("round" if d in (0, 6, 8, 9) else "edged", str(d)) for d in range(10)])
    clf = HACEClassifier(h, weight_decay=1e-2).fit(x / 16, y)
    assert clf.score(x / 16, y) > 0.93
    assert set(clf.predict_node(x / 16, level=1)) == {"round", "edged"}


# ---------------------------------------------------------------------- bad input


def test_bad_parameters() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"loss": "hacee"}, "loss must be one of .*Got 'hacee'. Did you mean 'hace'"),
        ({"loss": "hace", "dilution": 0.0}, r"dilution must be in \(0, 1\]"),
        ({"optimizer": "newton"}, "optimizer must be one of 'sgd', 'adamw', 'lbfgs'"),
        ({"optimizer": "sgd", "lr": -1.0}, "lr must be a number above 0"),
        ({"weight_decay": -1.0}, "weight_decay must be a number >= 0"),
        ({"hierarchy": 3}, "hierarchy must be a Hierarchy, the path of a file, a dict, .*Got int"),
        ({"loss_params": {"labels": "nodes"}}, "loss_params must not hold 'labels'"),
        ({"loss_params": "alpha"}, "loss_params must be a mapping of parameters to values. Got 'alpha'"),
        ({"loss_params": ["alpha"]}, r"loss_params must be a mapping .* Got \['alpha'\]"),
        (
            {"loss_params": {"alhpa": 1}},
            "Parameters of loss 'cross_entropy' must be among .*Got 'alhpa'",
        ),
    ]
    for params, message in cases:
        with pytest.raises(ConfigError, match=message):
            HACEClassifier(**params).fit(X, NAMES)


def test_labels_that_the_hierarchy_does_not_know() -> None:
    y = NAMES.astype("<U20").copy()
    y[[7, 20]] = "setossa"
    with pytest.raises(
        DataError, match=r"2 of 150 are not; the first is 'setossa' in row 7. Did you mean 'setosa'"
    ):
        HACEClassifier(TREE).fit(X, y)
    with pytest.raises(DataError, match="50 of 150 are not; the first is 3 in row 100"):
        HACEClassifier(SORTED, labels="positions").fit(X, IRIS.target + (IRIS.target == 2))
    with pytest.raises(DataError, match=r"as strings or as integers. Got float64, such as 0.0"):
        HACEClassifier(TREE).fit(X, IRIS.target.astype(float))
    mixed = Hierarchy.from_paths([("top", "0"), ("top", "1"), ("top", "2"), ("top", "two")])
    with pytest.raises(
        DataError,
        match=r"not every leaf is an integer. Got integers, and the leaf 'two'",
    ):
        HACEClassifier(mixed, labels="ids").fit(X, IRIS.target)


def test_training_that_diverges_is_an_error_with_a_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"Training diverged in epoch 1. Use a smaller lr, or scale the features"
    ):
        HACEClassifier(TREE, optimizer="sgd", lr=1e30, weight_decay=1.0, batch_size=10).fit(X, NAMES)


def test_old_weights_do_not_answer_with_new_classes() -> None:
    clf = HACEClassifier(TREE, optimizer="sgd", random_state=0).fit(X, NAMES)
    clf.set_params(hierarchy=None, lr=1e38, weight_decay=1e3)
    with pytest.raises(ValueError, match="diverged"):
        clf.fit(X, IRIS.target)
    with pytest.raises(NotFittedError):
        clf.predict(X)


def test_scores_of_coarse_labels_want_a_label_a_sample() -> None:
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        HACEClassifier(TREE).fit(X, NAMES).score(X, ["large"] * 3)


def test_a_fit_that_did_not_converge_warns() -> None:
    with pytest.warns(ConvergenceWarning, match="L-BFGS did not converge in 3 iterations"):
        HACEClassifier(TREE, max_iter=3).fit(X, NAMES)


def test_predict_node_takes_a_threshold_or_a_level() -> None:
    clf = HACEClassifier(TREE).fit(X, NAMES)
    with pytest.raises(ConfigError, match="threshold and level must not be given together"):
        clf.predict_node(X, 0.5, level=1)


@pytest.mark.slow
def test_without_scikit_learn_the_message_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nimport hace\nhace.Hierarchy\nhace.HACEClassifier"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "HACEClassifier and Answers need scikit-learn, 1.6 or newer." in done.stderr
    assert 'pip install ".[sklearn]"' in done.stderr


def test_one_sample_of_most_classes_is_no_reason_to_warn() -> None:
    names = [f"class {i}" for i in range(15)]
    h = Hierarchy.from_paths([(f"group {i // 5}", name) for i, name in enumerate(names)])
    y = np.array(names + names[:7])
    x = np.random.default_rng(0).standard_normal((len(y), 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = HACEClassifier(h).fit(x, y)
    assert set(classifier.classes_) >= set(names)


def test_features_of_a_network_are_taken_as_tensors() -> None:
    x = torch.tensor(X, requires_grad=True) * 1.0
    clf = HACEClassifier(TREE).fit(x, NAMES)
    assert clf.predict(x).tolist() == HACEClassifier(TREE).fit(X, NAMES).predict(X).tolist()
    with pytest.raises(DataError, match=r"X must be dense. Got a sparse tensor; pass X\.to_dense\(\)"):
        clf.predict(torch.tensor(X).to_sparse())
    with pytest.raises(DataError, match=r"X must hold values\. Got a tensor on the meta device"):
        clf.predict(torch.tensor(X, device="meta"))


def test_arguments_of_any_type_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="loss must be one of"):
        HACEClassifier(TREE, loss=np.array(["hace"])).fit(X, NAMES)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"sample_weight must be numbers.*class_weight"):
        HACEClassifier(TREE).fit(X, NAMES, sample_weight="balanced")
    clf = HACEClassifier(TREE).fit(X, NAMES).calibrate(X, NAMES)
    with pytest.raises(ConfigError, match="accuracy must be a number above 0 and below 1"):
        clf.predict_node(X, accuracy=np.array([0.8, 0.9]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="of must be one of"):
        clf.guarantee(0.8, of=np.array(["samples"]))  # type: ignore[arg-type]
