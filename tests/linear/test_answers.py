"""Answers of the estimator: restricted to a subset, calibrated, and with a guarantee."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import hace
from hace import ConfigError, DataError, Hierarchy
from hace.data import synthetic_features
from hace.linear.estimator import HACEClassifier, say_once

DATA = synthetic_features(classes=12, dim=12, signal=0.5, train=20, test=100)
H = DATA.hierarchy
X, Y = np.asarray(DATA["train"].x), np.array(H.leaves)[DATA["train"].labels]
NEW, TRUTH = np.asarray(DATA["test"].x), np.array(H.leaves)[DATA["test"].labels]
HELD = np.random.default_rng(0).permutation(len(NEW)) < 600
INNER = max((v for v in H.nodes if H.children(v) and H.parents(v)), key=lambda v: len(H.descendants(v)))
LOSSES = ["cross_entropy_paths", "hace", "hace_leaves", "conditional_softmax"]


def below(node: str) -> set[str]:
    return set(H.descendants(node, include_self=True)) & set(H.leaves)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_subset_restricts_every_answer(loss: str) -> None:
    clf = HACEClassifier(H, loss=loss).fit(X, Y)
    free = clf.predict_proba(NEW)
    other = next(c for c in H.leaves if c not in below(INNER))
    inside = np.isin(clf.classes_, [*below(INNER), other])
    clf.set_params(subset=[INNER, other])
    assert set(clf.predict(NEW)) <= set(clf.classes_[inside])
    want = np.where(inside, free, 0.0)
    np.testing.assert_allclose(clf.predict_proba(NEW), want / want.sum(axis=1, keepdims=True), atol=1e-12)
    log_q = clf.predict_node_log_proba(NEW)
    outside = [H.index(c) for c in clf.classes_[~inside]]
    assert (log_q[:, outside] == -np.inf).all()
    answers = set(clf.predict_node(NEW, 0.9))
    reach = below(INNER) | {other}
    assert all(below(v) & reach for v in answers)
    assert clone(clf).subset == [INNER, other]
    clf.set_params(subset=None)
    np.testing.assert_array_equal(clf.predict_proba(NEW), free)
    with pytest.raises(DataError, match=r"subset must name nodes of the hierarchy\. Got 'blackbird'"):
        clf.set_params(subset=["blackbird"]).predict(NEW)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_calibration_is_the_temperature_of_half_the_samples(loss: str) -> None:
    clf = HACEClassifier(H, loss=loss).fit(X, Y)
    assert clf.temperature_ == 1
    raw, classes = clf.predict_log_proba(NEW), clf.predict(NEW)
    assert clf.calibrate(NEW[HELD], TRUTH[HELD]) is clf
    order = np.random.default_rng(0).permutation(HELD.sum())
    half = np.sort(order[: HELD.sum() // 2])
    z = torch.as_tensor(NEW[HELD][half] @ clf.coef_.T + clf.intercept_)
    leaves = clf.loss_.head.outputs != "nodes" or loss == "conditional_softmax"
    scores = clf.loss_.leaf_logits(z) if leaves else z
    target = [H.label(c) for c in TRUTH[HELD][half]]
    want = hace.fit_temperature(scores, target, H, outputs="leaves" if leaves else "nodes")
    assert clf.temperature_ == pytest.approx(want)
    np.testing.assert_array_equal(clf.predict(NEW), classes)
    columns = [clf.classes_.tolist().index(c) for c in TRUTH[~HELD]]
    rows = np.flatnonzero(~HELD)
    assert clf.predict_log_proba(NEW)[rows, columns].mean() > raw[rows, columns].mean()
    q = np.exp(clf.predict_node_log_proba(NEW))
    for node in H.nodes:
        assert (q[:, H.index(node)] >= sum(q[:, H.index(c)] for c in below(node)) - 1e-9).all()
    assert HACEClassifier(H, loss=loss).fit(X, Y).temperature_ == clf.fit(X, Y).temperature_ == 1


def test_a_guarantee_is_kept_on_new_samples() -> None:
    clf = HACEClassifier(H).fit(X, Y)
    with pytest.raises(ConfigError, match=r"accuracy needs a calibrated classifier. Call calibrate\(X, y\)"):
        clf.predict_node(NEW, accuracy=0.9)
    clf.calibrate(NEW[HELD], TRUTH[HELD])
    sure = clf.guarantee(0.9)
    assert sure.samples == 300
    answers = clf.predict_node(NEW[~HELD], accuracy=0.9)
    assert answers.tolist() == clf.predict_node(NEW[~HELD], sure.threshold).tolist()
    false = np.mean([a is not None and t not in below(a) for a, t in zip(answers, TRUTH[~HELD], strict=True)])
    assert 0.02 < false < 0.1 + 3 * np.sqrt(0.09 / 300)
    assert (
        clf.predict(NEW[~HELD]) != TRUTH[~HELD]
    ).mean() > 0.2  # the classes themselves keep no such guarantee
    assert clf.guarantee(0.9, confidence=0.9).threshold > sure.threshold
    with pytest.raises(ConfigError, match="level and accuracy must not be given together"):
        clf.predict_node(NEW, level=1, accuracy=0.9)
    with pytest.raises(ConfigError, match="needs a calibrated classifier"):
        clf.fit(X, Y).guarantee()


def test_calibration_refuses_what_it_cannot_use() -> None:
    clf = HACEClassifier(H).fit(X, Y)
    with pytest.raises(DataError, match=r"at least two samples to calibrate with\. Got 1"):
        clf.calibrate(NEW[:1], TRUTH[:1])
    assert clf.temperature_ == 1
    assert (
        clf.calibrate(NEW, clf.predict(NEW)).temperature_ == 1
    )  # every smaller one is better: none is fitted
    flat = HACEClassifier().fit(X, Y).calibrate(NEW, TRUTH)
    assert flat.temperature_ != 1
    assert isinstance(flat.hierarchy_, Hierarchy)


def test_guarantees_and_answers_for_groups() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(200), 6)
    y = (np.arange(200) % 3)[group]
    x = np.eye(3)[y] * 2 + rng.normal(size=(200, 3))[group] * 0.7 + rng.normal(size=(len(y), 3))
    train, held, new = group < 60, (group >= 60) & (group < 130), group >= 130
    clf = HACEClassifier(Hierarchy.from_paths([("a", "0"), ("a", "1"), ("b", "2")]), labels="ids").fit(
        x[train], y[train]
    )
    clf.calibrate(x[held], y[held], group[held])
    sure = clf.guarantee(0.8)
    assert (sure.groups, sure.num_groups) == ("new", 35)  # the others fitted the temperature
    assert clf.guarantee(0.8, group_share=0.7).group_share == 0.7
    clf.calibrate(x[held], y[held], group[held], temperature=1.0)
    assert clf.guarantee(0.8).num_groups == 70
    single = np.mean(clf.predict(x[new]).astype(int) == y[new])
    answers = clf.predict_node(x[new], level=2, groups=group[new])
    truth = y[new][np.unique(group[new], return_index=True)[1]]
    assert np.mean(answers.astype(int) == truth) > single
    pooled = clf.predict_node(x[new], accuracy=0.8, groups=group[new], pool="mean")
    assert len(pooled) == 70
    by_name = (
        clone(clf)
        .fit(x[train], y[train])
        .calibrate(x[held], y[held], group[held], pool="mean", temperature=1.0)
    )
    assert by_name.guarantee(0.8).samples == 70
    assert by_name.predict_node(x[new], accuracy=0.8, groups=group[new]).tolist() == pooled.tolist()
    with pytest.raises(ConfigError, match="accuracy for groups needs a calibration with groups"):
        clone(clf).fit(x[train], y[train]).calibrate(x[held], y[held]).predict_node(
            x[new], accuracy=0.8, groups=group[new]
        )
    with pytest.raises(DataError, match="A group must have one truth to be pooled"):
        clf.calibrate(x[held], y[held], group[held] // 2, pool="log")


def test_a_guarantee_within_a_subset() -> None:
    rng = np.random.default_rng(1)
    y = np.arange(900) % 3
    x = np.eye(3)[y] + rng.normal(size=(900, 3)) * 0.6
    h = Hierarchy.from_paths([("a", "0"), ("a", "1"), ("b", "2")])
    clf = HACEClassifier(h, labels="ids", subset=["0", "1"]).fit(x[:300], y[:300]).calibrate(x[300:], y[300:])
    assert 150 < clf.guarantee(0.8).samples < 250  # half of the samples of the two classes
    assert set(clf.predict_node(x[:50], accuracy=0.8)) <= {"0", "1", "a", None}


def test_a_region_list_has_its_own_guarantee_without_another_calibration(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    h = Hierarchy.from_paths([("a", "0"), ("a", "1"), ("b", "2"), ("b", "3")])
    y = np.repeat(np.arange(4), 1500)
    x = np.eye(4)[y] + rng.normal(size=(6000, 4)) * 0.8
    order = rng.permutation(6000)
    train, held, new = order[:600], order[600:3000], order[3000:]
    clf = HACEClassifier(h, labels="ids").fit(x[train], y[train]).calibrate(x[held], y[held])
    everywhere, temperature = clf.guarantee(0.9), clf.temperature_
    clf.set_params(subset=["0", "1", "2"], prior={"b": 0.25})
    here = clf.guarantee(0.9)
    assert clf.temperature_ == temperature
    assert 800 < here.samples < 1000 < everywhere.samples == 1200  # the held-out samples of the three classes
    inside = new[(y[new] < 3)]
    answers = clf.predict_node(x[inside], accuracy=0.9)
    assert set(answers) <= {"0", "1", "2", "a", None}  # class 2 is the only one below b
    true = [a is None or str(t) == a or (a == "a" and t < 2) for a, t in zip(answers, y[inside], strict=True)]
    assert 0.9 - 3 * np.sqrt(0.09 / 900) < np.mean(true) < 0.96
    z = clf.decision_function(x[inside])[:, :3]
    clf.set_params(prior=None)
    moved = z - clf.decision_function(x[inside])[:, :3]
    np.testing.assert_allclose(
        moved[:, :3], [[0, 0, np.log(0.25)]] * len(inside), atol=1e-9
    )  # after the temperature
    clf.set_params(prior={"b": 0.25}).save(tmp_path / "here.safetensors")
    back = HACEClassifier.load(tmp_path / "here.safetensors")
    assert back.predict_node(x[inside], accuracy=0.9).tolist() == answers.tolist()
    with pytest.raises(ConfigError, match="accuracy must be for a use that the file holds"):
        back.set_params(subset=None).predict_node(x[inside], accuracy=0.9)
    assert clf.set_params(subset=None, prior=None).guarantee(0.9) == everywhere


@pytest.mark.parametrize("dag", [False, True], ids=["tree", "dag"])
def test_answers_stop_where_training_labels_do(dag: bool) -> None:
    """The classes below one inner node are known to it only: no answer is below it, unless asked for."""
    edges = [(p, c) for c in H.nodes for p in H.parents(c)]
    h = Hierarchy.from_edges([*edges, (INNER, H.leaves[-1])] if dag else edges, leaves=list(H.leaves))
    coarse = Y.astype(object)
    inside = set(h.descendants(INNER)) & set(h.leaves)
    coarse[np.isin(Y, sorted(inside))] = INNER
    clf = HACEClassifier(h).fit(X, coarse)
    stopped, allowed = clf.predict_node(NEW, 0.1), clf.set_params(unlabelled="allow").predict_node(NEW, 0.1)
    labelled = set(coarse) | {v for label in set(coarse) for v in h.ancestors(label)}
    assert set(allowed) & inside
    assert set(stopped) <= labelled
    for got, free in zip(stopped, allowed, strict=True):
        want = [v for v in (free, *h.ancestors(free)) if v in labelled]
        assert h.depth(got) == max(map(h.depth, want))
        assert got in want
    with pytest.raises(ConfigError, match=r"unlabelled must be one of 'stop', 'allow'. Got 'maybe'"):
        clf.set_params(unlabelled="maybe").predict_node(NEW)


def test_a_guarantee_is_computed_once_and_anew_after_calibration() -> None:
    clf = HACEClassifier(H).fit(X, Y).calibrate(NEW[HELD], TRUTH[HELD])
    first = clf.guarantee(0.9)
    assert clf.guarantee(0.9) is first
    assert clf.guarantee(0.8) is not first
    clf.calibrate(NEW[HELD][:100], TRUTH[HELD][:100])
    assert clf.guarantee(0.9).samples == 50


def test_another_hierarchy_needs_another_fit() -> None:
    clf = HACEClassifier(H).fit(X, Y)
    same = Hierarchy.from_edges([(p, c) for c in H.nodes for p in H.parents(c)], leaves=list(H.leaves))
    assert len(clf.set_params(hierarchy=same).predict(NEW[:2])) == 2
    clf.set_params(hierarchy=Hierarchy.flat(H.leaves))
    for answer in (clf.predict, clf.predict_node, clf.predict_proba):
        with pytest.raises(NotFittedError, match="hierarchy was changed after fit"):
            answer(NEW[:2])
    assert set(clf.fit(X, Y).predict_node(NEW[:20], 0.0)) <= set(H.leaves)


def test_labels_are_ids_names_or_paths(caplog: pytest.LogCaptureFixture) -> None:
    """Names and paths mean their nodes wherever ids do; answers are ids, and one line says what has no sample."""
    h = Hierarchy.from_edges(
        [("10", "11"), ("10", "12"), ("20", "21")],
        names={"10": "Home", "11": "Pots", "12": "Lamps", "20": "Toys", "21": "Pots"},
    )
    say_once.cache_clear()
    x = np.repeat(np.eye(3), 4, axis=0)
    y = np.repeat(["Home > Pots", "Lamps", "Toys"], 4)
    clf = HACEClassifier(h, class_weight={"Lamps": 2.0}).fit(x, y)
    same = HACEClassifier(h, class_weight={"12": 2.0}).fit(x, np.repeat(["11", "12", "20"], 4))
    np.testing.assert_array_equal(clf.coef_, same.coef_)
    assert clf.predict(x[::4]).tolist() == ["11", "12", "21"]
    assert clf.unseen_classes_.tolist() == ["21"]
    assert clf.predict_node(x[::4]).tolist() == ["11", "12", "20"]
    assert clf.score(x, y) == 1
    clf.set_params(subset=["Home"])
    assert set(clf.predict(x)) == {"11", "12"}
    message = "HACEClassifier: 1 of 3 classes have no training sample (unseen_classes_); predict_node stops above them."
    assert caplog.messages.count(message) == 1  # of two fits
    for wrong, hint in (("Pots", "Several nodes have that name: use ids"), ("Lamp", "Did you mean 'Lamps'")):
        with pytest.raises(DataError, match=hint):
            HACEClassifier(h).fit(x, np.repeat(["Home", "Toys", wrong], 4))
