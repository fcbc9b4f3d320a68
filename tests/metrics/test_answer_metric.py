"""Metrics of ids: the functions take them, and scikit-learn calls them."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score

import hace
from hace import ConfigError, DataError, HACEClassifier, Hierarchy
from hace.metrics import ID_METRICS, AnswerMetric

TREE = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("pet cat", "cat")], leaves=["husky", "beagle", "cat"]
)
TRUE = ["husky", "beagle", "cat", "cat"]
SAID = ["husky", "husky", "cat", "husky"]


def test_functions_take_ids_as_they_take_integers() -> None:
    preds, target = ([TREE.label(c) for c in names] for names in (SAID, TRUE))
    for given, truth in ((SAID, TRUE), (np.array(SAID), np.array(TRUE)), (pd.Series(SAID), tuple(TRUE))):
        assert torch_equal(
            hace.metrics.distances(given, truth, TREE), hace.metrics.distances(preds, target, TREE)
        )
        assert hace.metrics.mistake_severity(given, truth, TREE).value == 1.5
        assert hace.metrics.level_accuracy(given, truth, TREE).tolist() == [0.75, 0.5]
    scores = np.log([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]])
    assert hace.metrics.top_k_accuracy(scores, TRUE, TREE, 2) == 0.75
    assert hace.metrics.evaluate(scores, TRUE, TREE).mistakes == 2


def torch_equal(a: object, b: object) -> bool:
    return np.asarray(a).tolist() == np.asarray(b).tolist()


def test_answers_above_the_leaves_and_none() -> None:
    sure = np.array(["husky", "dog", None, "husky"], dtype=object)
    prf = hace.metrics.hierarchical_prf(sure, TRUE, TREE)
    indices = [TREE.index("husky"), TREE.index("dog"), -1, TREE.index("husky")]
    truth = [TREE.index(c) for c in TRUE]
    assert prf == hace.metrics.hierarchical_prf(indices, truth, TREE, labels="nodes")
    assert AnswerMetric("recall", TREE)(TRUE, sure) == float(prf.recall)
    assert AnswerMetric("precision", TREE)(TRUE, sure) == float(prf.precision)  # not the other way round


def test_a_batch_without_any_answer() -> None:
    for silent in ([None] * 4, np.array([None] * 4)):
        assert hace.metrics.top_k_accuracy(silent, TRUE, TREE) == 0
        assert AnswerMetric("accuracy", TREE)(TRUE, silent) == 0
        assert AnswerMetric("recall", TREE)(TRUE, silent) == 0
    with pytest.raises(DataError, match=r"target must hold ids of the hierarchy.*the first is None"):
        hace.metrics.top_k_accuracy(SAID, [None] * 4, TREE)
    numbered = Hierarchy.from_paths([("a", "1"), ("b", "2")])
    assert AnswerMetric("accuracy", numbered)([1, 2, 1, 2], [1, None, 1, 1]) == 0.5
    with pytest.raises(DataError, match=r"preds must hold numbers, or ids of nodes.*Got \[0, None\]"):
        hace.metrics.top_k_accuracy([0, None], [0, 1], numbered)


def test_ids_in_lists_of_lists() -> None:
    paths = [["dog", "husky"], ["dog", "beagle"], ["pet cat", "cat"], ["dog", "husky"]]
    assert hace.metrics.full_path_accuracy(paths, TRUE, TREE) == 0.75
    with pytest.raises(DataError, match="target must have one dimension"):
        hace.metrics.top_k_accuracy(SAID, paths, TREE)
    with pytest.raises(DataError, match=r"the first is \['dog', 'husky'\] at position 0"):
        hace.metrics.full_path_accuracy([*paths[:3], ["dog"]], TRUE, TREE)
    for call in (
        lambda: hace.metrics.top_k_accuracy(paths, TRUE, TREE),
        lambda: AnswerMetric("f1", TREE)(TRUE, paths),
    ):
        with pytest.raises(DataError):
            call()


def test_unknown_ids_name_the_nearest() -> None:
    with pytest.raises(
        DataError, match=r"2 of 3 are not; the first is 'huskie' at position 1. Did you mean 'husky'"
    ):
        hace.metrics.distances(["husky", "huskie", "x"], ["husky"] * 3, TREE)
    with pytest.raises(DataError, match=r"target must hold ids of the hierarchy.*the first is None"):
        hace.metrics.distances(["husky", "cat"], [None, "cat"], TREE)


def test_each_metric_is_its_function() -> None:
    values = {
        name: AnswerMetric(name, TREE, level=1 if name == "level_accuracy" else None)(TRUE, SAID)
        for name in ID_METRICS
    }
    prf = hace.metrics.hierarchical_prf(SAID, TRUE, TREE)
    assert values == {
        "accuracy": 0.5,
        "level_accuracy": 0.75,
        "distance": 0.75,
        "severity": 1.5,
        "precision": float(prf.precision),
        "recall": float(prf.recall),
        "f1": float(prf.f1),
    }
    named = Hierarchy.from_paths(
        [("dog", "husky"), ("dog", "beagle"), ("pet cat", "cat")], level_names=["kind", "breed"]
    )
    assert AnswerMetric("level_accuracy", named, level="kind")(["husky"], ["beagle"]) == 1


@pytest.mark.slow
def test_scorers_serve_searches_and_can_be_pickled() -> None:
    iris = load_iris()
    y = iris.target_names[iris.target]
    h = Hierarchy.from_paths([("small", "setosa"), ("large", "versicolor"), ("large", "virginica")])
    clf = HACEClassifier(h, weight_decay=1e-2)
    assert cross_val_score(clf, iris.data, y, scoring=AnswerMetric("f1", h).scorer(), cv=3).min() > 0.9
    distance = cross_val_score(clf, iris.data, y, scoring=AnswerMetric("distance", h).scorer(), cv=3)
    assert (distance <= 0).all()  # turned, so that more is better
    assert distance.min() < 0
    search = GridSearchCV(
        clf, {"weight_decay": [1e-2, 10.0]}, scoring=AnswerMetric("distance", h).scorer(), cv=3
    )
    assert search.fit(iris.data, y).best_params_ == {"weight_decay": 1e-2}
    assert pickle.loads(pickle.dumps(AnswerMetric("f1", h))) == AnswerMetric("f1", h)
    numbered = Hierarchy.from_paths([("a", "1"), ("b", "2")])
    assert AnswerMetric("accuracy", numbered)(np.array([1, 2]), np.array([1, 1])) == 0.5


def test_bad_metrics() -> None:
    for arguments, words in (
        (("recal", TREE), "name must be one of .*Got 'recal'. Did you mean 'recall'"),
        (("f1", {"a": "b"}), r"hierarchy must be a hace\.Hierarchy\. Got dict"),
        (("f1", TREE, 1), "level must be given for 'level_accuracy', and for it alone"),
        (("level_accuracy", TREE), "level must be given for 'level_accuracy'"),
        (("level_accuracy", TREE, 3), r"level must be from 1 to 2, or one of .*Got 3"),
    ):
        with pytest.raises(ConfigError, match=words):
            AnswerMetric(*arguments)  # pyright: ignore[reportArgumentType]
