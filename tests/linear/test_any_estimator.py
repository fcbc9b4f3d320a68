"""Answers of classifiers that know nothing of a hierarchy: trained here, trained before, or functions of scores."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.svm import LinearSVC

import hace
from hace import Answers, ConfigError, DataError, FormatError, HACEClassifier, Hierarchy

H = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "manx"), ("cat", "tabby"), ("fish", "cod"), ("fish", "eel")]
)
MEANS = {"husky": 0, "beagle": 1, "manx": 5, "tabby": 6, "cod": 10, "eel": 11}


def samples(number: int, seed: int, classes: Any = H.leaves) -> tuple[np.ndarray, np.ndarray]:
    """Relatives are near each other."""
    rng = np.random.default_rng(seed)
    y = rng.choice(np.array(classes), number)
    x = np.array([MEANS[label] for label in y])[:, None] + rng.normal(size=(number, 2)) * [0.8, 1]
    return x, y


X, Y = samples(300, 0)
HELD, TRUTH = samples(400, 1)
NEW, NEW_TRUTH = samples(3000, 2)
CLASSIFIERS = [
    HistGradientBoostingClassifier(max_iter=20),
    RandomForestClassifier(20, random_state=0),  # probabilities of 0
    make_pipeline(StandardScaler(), LinearSVC()),  # no probabilities
    GaussianNB(),
]


def true(answers: Any, truth: Any) -> np.ndarray:
    return np.array([a is None or a == t or a in H.ancestors(t) for a, t in zip(answers, truth, strict=True)])


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: type(c).__name__)
def test_any_classifier_keeps_a_guarantee_and_answers_at_ranks(classifier: Any) -> None:
    model = Answers(classifier, H).fit(X, Y)
    plain = clone(classifier).fit(X, Y)
    np.testing.assert_array_equal(model.predict(NEW[:200]), plain.predict(NEW[:200]))
    model.calibrate(HELD, TRUTH)
    assert model.temperature_ != 1
    answers = model.predict_node(NEW, accuracy=0.9)
    assert {"dog", "cat", "fish"} & set(answers)
    assert set(H.leaves) & set(answers)
    assert 0.9 - 3 * np.sqrt(0.09 / 200) < true(answers, NEW_TRUTH).mean() < 1
    probabilities = model.predict_proba(NEW)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert model.classes_.tolist() == sorted(H.leaves)
    evaluation = model.evaluate(NEW, NEW_TRUTH, accuracy=0.9)
    assert evaluation.values["leaves", "top-1"] == pytest.approx(model.score(NEW, NEW_TRUTH))
    assert evaluation.guarantee == model.guarantee(0.9)
    assert "no evidence" in str(model.check(NEW[:500], accuracy=0.9)) or model.check(NEW[:500], accuracy=0.9)


def test_the_same_answers_as_of_the_estimator_that_knows_the_hierarchy() -> None:
    own = HACEClassifier(H).fit(X, Y).calibrate(HELD, TRUTH)
    wrapped = Answers(HACEClassifier(H).fit(X, Y), H, kind="logits").calibrate(HELD, TRUTH)
    assert wrapped.temperature_ == pytest.approx(own.temperature_)
    for how in ({"accuracy": 0.9}, {"level": 1}, {"threshold": 0.7}):
        assert wrapped.predict_node(NEW, **how).tolist() == own.predict_node(NEW, **how).tolist()
    assert wrapped.guarantee(0.9).threshold == pytest.approx(own.guarantee(0.9).threshold)


def test_coarse_labels_are_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    y = Y.astype(object)
    y[::3] = [H.parents(label)[0] for label in Y[::3]]
    weight = np.where(np.arange(len(y)) % 3 == 0, np.nan, 1.0)  # would be refused if they came along
    with caplog.at_level(logging.WARNING, "hace"):
        model = Answers(LogisticRegression(max_iter=1000), H).fit(X, y, sample_weight=weight)
    assert model.coarse_samples_ == 100
    assert "100 of 300 labels are above the classes, which LogisticRegression cannot use" in caplog.text
    fine = np.arange(len(y)) % 3 != 0
    plain = LogisticRegression(max_iter=1000).fit(X[fine], Y[fine])
    np.testing.assert_allclose(model.predict_proba(NEW), plain.predict_proba(NEW), atol=0.02)
    model.calibrate(
        HELD, np.array([H.parents(t)[0] for t in TRUTH]), temperature=1.0
    )  # held-out ones may be coarse
    assert np.isin(model.predict_node(NEW, accuracy=0.95), H.leaves).mean() < 0.1  # counts as false
    with pytest.raises(DataError, match="All of them are inner nodes"):
        Answers(LogisticRegression(), H).fit(X, np.array([H.parents(label)[0] for label in Y]))


def test_classes_without_a_training_sample() -> None:
    model = Answers(GaussianNB(), H).fit(*samples(300, 0, [c for c in H.leaves if c != "eel"]))
    assert model.unseen_classes_.tolist() == ["eel"]
    column = model.classes_.tolist().index("eel")
    assert (model.predict_proba(NEW)[:, column] == 0).all()
    model.calibrate(HELD, TRUTH)  # some truths are of the class that the model does not know
    answers = model.predict_node(NEW, accuracy=0.9)
    assert true(answers, NEW_TRUTH).mean() > 0.9 - 3 * np.sqrt(0.09 / 200)
    assert "eel" not in answers


def test_a_classifier_that_is_trained_already() -> None:
    plain = GaussianNB().fit(X, Y)
    model = Answers(plain, H).calibrate(HELD, TRUTH)
    assert model.estimator_ is plain
    assert true(model.predict_node(NEW, accuracy=0.9), NEW_TRUTH).mean() > 0.85
    encoder = LabelEncoder().fit(Y)
    encoded = GaussianNB().fit(X, encoder.transform(Y))
    again = Answers(encoded, H, classes=encoder.classes_).calibrate(HELD, TRUTH)
    assert again.predict_node(NEW, accuracy=0.9).tolist() == model.predict_node(NEW, accuracy=0.9).tolist()
    groups = np.array([H.parents(label)[0] for label in Y])
    mixed = GaussianNB().fit(X, np.where(X[:, 1] > 0, groups, Y))  # its classes are at two ranks
    coarse = Answers(mixed, H).calibrate(HELD, TRUTH, temperature=1.0)
    assert {"dog", "husky"} <= set(coarse.predict_node(NEW, threshold=0.6))
    with pytest.raises(NotFittedError, match=r"Call fit\(X, y\), or give a trained estimator"):
        Answers(GaussianNB(), H).calibrate(HELD, TRUTH)
    with pytest.raises(DataError, match="one of them twice"):
        Answers(encoded, H, classes=["husky"] * 6).predict(NEW)
    with pytest.raises(DataError, match="a column for each of 5 classes"):
        Answers(encoded, H, classes=encoder.classes_[:5]).predict(NEW)


def test_a_function_of_scores() -> None:
    network = torch.nn.Linear(2, 6)
    with torch.no_grad():
        network.weight[:, 0] = torch.tensor([float(MEANS[c]) for c in H.leaves])
        network.weight[:, 1] = 0
        network.bias[:] = -(network.weight[:, 0] ** 2) / 2

    def ask(x: Any) -> Any:
        return network(torch.as_tensor(np.asarray(x), dtype=torch.float32))

    model = Answers(ask, H).calibrate(HELD, TRUTH)
    assert true(model.predict_node(NEW, accuracy=0.9), NEW_TRUTH).mean() > 0.85
    named = Answers(
        lambda x: ask(x).softmax(1).detach().numpy()[:, ::-1], H, classes=H.leaves[::-1], kind="probs"
    )
    named.calibrate(HELD, TRUTH)
    assert named.predict_node(NEW, accuracy=0.9).tolist() == model.predict_node(NEW, accuracy=0.9).tolist()
    with pytest.raises(ConfigError, match="call calibrate"):
        model.fit(X, Y)
    with pytest.raises(ConfigError, match="hierarchy or classes must be given"):
        Answers(ask).predict(NEW)
    assert Answers(ask, classes=H.leaves).predict(NEW[:1]).tolist() == model.predict(NEW[:1]).tolist()


def test_independent_scores_of_a_detector() -> None:
    def detector(x: Any) -> np.ndarray:
        return np.stack([np.exp(-((x[:, 0] - MEANS[c]) ** 2)) for c in H.leaves], axis=1) * 0.7

    model = Answers(detector, H, kind="sigmoid").calibrate(HELD, TRUTH)
    assert model.temperature_ == 1
    assert model.guarantee(0.9).samples == 400  # none were spent on a temperature
    answers = model.predict_node(NEW, accuracy=0.9)
    assert true(answers, NEW_TRUTH).mean() > 0.9 - 3 * np.sqrt(0.09 / 400)
    assert {"dog", "husky"} <= set(answers)
    q = np.exp(model.predict_node_log_proba(NEW[:50]))
    p = detector(NEW[:50])
    husky, beagle = (p[:, H.label(c)] for c in ("husky", "beagle"))
    np.testing.assert_allclose(q[:, H.index("dog")], 1 - (1 - husky) * (1 - beagle), atol=1e-12)
    nothing = np.full((1, 2), 1e3)
    assert model.predict_node(nothing, accuracy=0.9).tolist() == [None]
    model.set_params(subset=["dog", "cod"])
    assert set(model.predict_node(NEW, accuracy=0.9)) <= {"dog", "husky", "beagle", "fish", "cod", None}
    with pytest.raises(ConfigError, match="prior must come with probabilities that sum to 1"):
        model.set_params(subset=None, prior={"dog": 2.0}).predict(NEW)


def test_files_clones_and_searches(tmp_path: Path) -> None:
    model = Answers(GaussianNB(), H).fit(X, Y).calibrate(HELD, TRUTH)
    model.guarantee(0.85)
    file = tmp_path / "calibration.json"
    model.save_calibration(file)
    assert json.loads(file.read_text())["format"] == "hace.calibration.1"
    back = Answers(GaussianNB().fit(X, Y), H).load_calibration(file)
    assert back.temperature_ == model.temperature_
    for accuracy in (0.85, 0.9):
        answers = model.predict_node(NEW, accuracy=accuracy).tolist()
        assert back.predict_node(NEW, accuracy=accuracy).tolist() == answers
        assert pickle.loads(pickle.dumps(model)).predict_node(NEW, accuracy=accuracy).tolist() == answers
    with pytest.raises(ConfigError, match="accuracy must be one that the file holds"):
        back.guarantee(0.87)
    other = Hierarchy.flat(H.leaves)
    with pytest.raises(ConfigError, match="must be made with this hierarchy"):
        Answers(GaussianNB().fit(X, Y), other).load_calibration(file)
    file.write_text(file.read_text().replace("0.9", "0.7", 1))
    with pytest.raises(FormatError, match="damaged"):
        back.load_calibration(file)
    with pytest.raises(ConfigError, match="There must be a guarantee to save"):
        Answers(GaussianNB(), H).fit(X, Y).save_calibration(file)
    assert cross_val_score(Answers(GaussianNB(), H), X, Y, cv=3).mean() > 0.6
    copy = clone(model)
    assert not hasattr(copy, "estimator_")
    assert copy.set_params(estimator__var_smoothing=1e-3).fit(X, Y).estimator_.var_smoothing == 1e-3


def test_groups_and_what_is_refused() -> None:
    model = Answers(GaussianNB(), H).fit(X, Y)
    with pytest.raises(ConfigError, match="accuracy needs a calibrated classifier"):
        model.predict_node(NEW, accuracy=0.9)
    group = np.arange(400) // 2
    truth = TRUTH[group * 2]
    x = samples(400, 3)[0] * 0 + np.array([MEANS[t] for t in truth])[:, None]
    x = x + np.random.default_rng(4).normal(size=x.shape)
    model.calibrate(x, truth, group)
    assert model.guarantee(0.8).num_groups == 100
    assert len(model.predict_node(x, accuracy=0.8, groups=group)) == 200
    for estimator in (Ridge(), object()):
        with pytest.raises(ConfigError, match="estimator must have predict_proba or decision_function"):
            Answers(estimator, H).fit(X, Y)
    with pytest.raises(DataError, match="y must hold one label for each of 300 samples"):
        Answers(GaussianNB(), H).fit(X, Y[:10])
    with pytest.raises(DataError, match="y must hold ids of the hierarchy"):
        Answers(GaussianNB(), H).fit(X, np.where(Y == "eel", "whale", Y))
    flat = Answers(GaussianNB()).fit(X, Y).calibrate(HELD, TRUTH)
    assert flat.predict_node(NEW[:3], accuracy=0.8).shape == (3,)


def test_a_page_of_its_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model = Answers(GaussianNB(), H).fit(X, Y).calibrate(HELD, TRUTH)
    page = hace.write_evaluation(model.evaluate(NEW[:300], NEW_TRUTH[:300], accuracy=0.9), tmp_path / "page")
    assert "guarantee" in page.read_text()


def test_options_that_would_be_ignored_or_fail_late() -> None:
    with pytest.raises(ConfigError, match="classes must be left out where the classifier is trained here"):
        Answers(GaussianNB(), H, classes=["husky"]).fit(X, Y)
    for prior in ("may.csv", [1, 2]):
        with pytest.raises(ConfigError, match="prior must be a mapping from nodes to weights"):
            Answers(GaussianNB(), H, prior=prior).fit(X, Y).predict(X)  # type: ignore[arg-type]
