"""Guaranteed thresholds: against exhaustive search, and the promise itself over many simulated calibrations."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from hace import DataError, Hierarchy, guaranteed_threshold, predict
from hace.decisions.guarantees import Promise, answer_scores
from hace.errors import ConfigError, HierarchyError
from tests.hierarchies import ANIMALS, DIAMOND, RAGGED, Plain, random_plain
from tests.reference import structure

FORM = {"labels": "nodes", "kind": "logits", "outputs": "leaves"}


def counts(
    plain: Plain, h: Hierarchy, z: torch.Tensor, truth: np.ndarray, rule: str, t: float
) -> tuple[int, int]:
    """How many samples are answered falsely, and at all, at a threshold, from the answers themselves."""
    depth, false, answers = structure.depths(plain), 0, 0
    for answer, v in zip(predict(z, h, rule, threshold=t, outputs="leaves").ids, truth.tolist(), strict=True):
        if answer is not None and depth[answer] > 0:
            answers += 1
            false += answer not in structure.ancestors(plain, h.nodes[v])
    return false, answers


def supported(false: int, number: int, accuracy: str, confidence: str | None) -> bool:
    alpha = 1 - Fraction(accuracy)
    if confidence is None:
        return Fraction(false + 1, number + 1) <= alpha
    return binom.cdf(false, number, float(alpha)) <= float(1 - Fraction(confidence))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("ragged", "threshold"),
        ("forest", "threshold"),
        ("dag", "threshold"),
        ("ragged", "climb"),
        ("forest", "climb"),
    ],
)
def test_thresholds_are_those_of_an_exhaustive_search(kind: str, rule: str) -> None:
    """Every score, and the next number above it, as a threshold: from the safest down while the promise is supported."""
    for seed in range(5):
        plain = random_plain(kind, seed, 12)
        h, rng = plain.build(), np.random.default_rng(seed)
        z = torch.from_numpy(rng.normal(size=(40, h.num_leaves)) * 2)
        truth = np.where(rng.random(40) < 0.6, h.leaf_nodes[z.argmax(1)], rng.integers(0, h.num_nodes, 40))
        wrong, answered, _ = answer_scores(z, truth, h, rule=rule, **FORM)
        scores = np.unique(np.concatenate([wrong, answered, rng.random(5)]))
        scores = scores[(scores >= 0) & (scores < 1)]
        tried = sorted({0.0, 1.0, *scores, *np.nextafter(scores, 1)}, reverse=True)
        table = [(t, *counts(plain, h, z, truth, rule, t)) for t in tried]
        for t, false, answers in table:
            assert (false, answers) == ((wrong >= t).sum(), (answered >= t).sum())
        for accuracy, confidence in (("0.8", None), ("0.9", None), ("0.7", "0.8"), ("0.6", "0.95")):
            least = None
            for t, false, _ in table:
                if not supported(false, 40, accuracy, confidence):
                    break
                least = t
            asked = float(accuracy), None if confidence is None else float(confidence)
            if least is None:
                with pytest.raises(DataError, match="however sure the model is"):
                    guaranteed_threshold(z, truth, h, *asked, rule=rule, **FORM)
            else:
                assert guaranteed_threshold(z, truth, h, *asked, rule=rule, **FORM) == least
        promise, least = Promise.of_arguments(0.6, 0.8, "answers"), None
        for t, false, answers in table:
            if answers < promise.first_test(40):
                continue
            if not supported(false, answers, "0.6", "0.8"):
                break
            least = t
        if least is None:
            with pytest.raises(DataError, match="however sure the model is"):
                promise.threshold(wrong, answered)
        else:
            assert promise.threshold(wrong, answered) == least


@pytest.fixture(scope="module")
def population() -> tuple[Hierarchy, torch.Tensor, np.ndarray]:
    """An over-confident model on a ragged tree: truths by softmax(z), scores 1.5 z."""
    h, rng = RAGGED.build(), np.random.default_rng(5)
    z = rng.normal(size=(20_000, h.num_leaves)) * 3
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return h, torch.from_numpy(1.5 * z), (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)


@pytest.mark.parametrize("rule", ["threshold", "climb"])
@pytest.mark.parametrize(
    ("accuracy", "confidence", "of"),
    [(0.95, None, "samples"), (0.9, 0.9, "samples"), (0.8, 0.8, "answers"), (0.9, 0.9, "answers")],
)
def test_the_promise_is_kept(
    population: tuple, rule: str, accuracy: float, confidence: float | None, of: str
) -> None:
    """400 calibrations of 99 or 200 samples, each judged on the other samples."""
    h, z, y = population
    wrong, answered, _ = answer_scores(z, y, h, rule=rule, labels="leaves", kind="logits", outputs="leaves")
    promise, rng = Promise.of_arguments(accuracy, confidence, of), np.random.default_rng(0)
    risks, refused = [], 0
    for _ in range(400):
        chosen = rng.permutation(len(y))[: 99 if confidence is None else 200]
        try:
            t = promise.threshold(wrong[chosen], answered[chosen])
        except DataError:
            refused += 1
            continue
        false, answers = (wrong >= t).sum(), (answered >= t).sum()
        risks.append(false / (len(y) if of == "samples" else answers))
    assert refused <= 120
    risks = np.array(risks)
    alpha = 1 - accuracy
    if confidence is None:  # on average at the level, and not far below it
        error = risks.std() / math.sqrt(len(risks))
        assert alpha - 0.01 < risks.mean() <= alpha + 2 * error
    else:
        delta = 1 - confidence
        assert (risks > alpha).mean() <= delta + 2 * math.sqrt(delta * (1 - delta) / len(risks))
        assert (risks > alpha / 2).mean() > 0.5  # and it is not idle


def test_the_finite_sample_correction_is_needed() -> None:
    """With continuous scores the mean risk is known: floor(alpha (n + 1)) / (n + 1). Without the + 1 it is 4/31."""
    promise, rng = Promise.of_arguments(0.9, None, "samples"), np.random.default_rng(0)
    draws = rng.random((4000, 30))
    risk = np.array([1 - promise.threshold(row, np.ones(30)) for row in draws])
    assert risk.mean() == pytest.approx(3 / 31, abs=0.003)
    strict = Promise.of_arguments(
        0.9, 0.9, "samples"
    )  # no more than a tenth of calibrations break the promise
    broken = np.mean([1 - strict.threshold(row, np.ones(30)) > 0.1 for row in draws])
    assert 0.02 < broken <= 0.1
    assert broken == pytest.approx(binom.cdf(0, 30, 0.1), abs=0.015)


def test_groups_have_thresholds_of_their_own(population: tuple) -> None:
    h, z, y = population[0], population[1][:2000], population[2][:2000]
    named = np.where(np.arange(2000) % 2, "odd", "even")
    found = guaranteed_threshold(z, y, h, 0.9, groups=named)
    for name in ("odd", "even"):
        assert found[name] == guaranteed_threshold(z[named == name], y[named == name], h, 0.9)
    tops = guaranteed_threshold(z, y, h, 0.9, groups="top")
    under = np.array(predict(z, h, "level", level=1).ids)
    assert set(tops) == {"near", "x1", "y1"}
    for name, t in tops.items():
        assert t == guaranteed_threshold(z[under == name], y[under == name], h, 0.9)
    with pytest.raises(DataError) as caught:
        guaranteed_threshold(z[:30], y[:30], h, 0.95, groups=["a"] * 29 + ["b"])
    assert "Group 'b': scores must hold at least 19 samples" in str(caught.value)
    only = torch.tensor(under == "x1").nonzero()[:60, 0]
    with pytest.raises(DataError) as caught:  # an empty group: no sample is answered under two of the tops
        guaranteed_threshold(z[only], y[only.numpy()], h, 0.9, groups="top")
    assert [problem[:12] for problem in caught.value.problems] == ["Group 'near'", "Group 'y1': "]
    assert "Got 0." in str(caught.value)


@pytest.mark.parametrize(
    ("accuracy", "confidence", "of", "needed"),
    [
        (0.95, None, "samples", 19),
        (0.9, None, "samples", 9),
        (0.99, None, "samples", 99),
        (0.95, 0.95, "samples", 59),
        (0.95, 0.9, "answers", 45),
        (0.5, 0.5, "answers", 1),
    ],
)
def test_how_many_samples_a_promise_takes(
    accuracy: float, confidence: float | None, of: str, needed: int
) -> None:
    h = Hierarchy.flat(["a", "b"])
    right = np.array([[0.9, 0.1]] * needed)
    y = np.zeros(needed, dtype=int)
    assert guaranteed_threshold(right, y, h, accuracy, confidence, of, kind="probs") == 0.0
    with pytest.raises(DataError, match=f"at least {needed} samples"):
        guaranteed_threshold(right[1:], y[1:], h, accuracy, confidence, of, kind="probs")


def test_constant_scores_and_certain_mistakes() -> None:
    h = ANIMALS.build()
    y = np.zeros(100, dtype=int)
    t = guaranteed_threshold(torch.zeros(100, 4), (y + np.arange(100)) % 4, h, 0.9)
    assert set(predict(torch.zeros(9, 4), h, "threshold", threshold=t).ids) == {"animal"}  # says nothing
    certain = torch.zeros(100, 4)
    certain[:, 1] = 1e4
    with pytest.raises(DataError, match=r"No threshold from 0 to 1 promises 0\.9 of the samples"):
        guaranteed_threshold(certain, y, h, 0.9)
    with pytest.raises(DataError, match=r"No threshold from 0 to 1 promises 0\.9 of the answers"):
        guaranteed_threshold(torch.zeros(100, 4), y + 1, h, 0.9, 0.9, "answers")


def test_what_is_refused() -> None:
    h, z, y = ANIMALS.build(), torch.randn(100, 4), np.zeros(100, dtype=int)
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"accuracy": 1.0}, "accuracy must be a number above 0 and below 1. Got 1.0"),
        ({"accuracy": 0}, "accuracy must be a number above 0"),
        ({"confidence": 1}, "confidence must be a number above 0 and below 1"),
        ({"of": "all"}, "of must be 'samples' or 'answers'"),
        ({"of": "answers"}, "Give confidence=0.9"),
        ({"rule": "cost"}, "rule must be one of threshold, climb"),
        ({"groups": "level"}, "groups must be None, 'top'"),
    )
    for options, words in bad:
        with pytest.raises(ConfigError) as caught:
            guaranteed_threshold(z, y, h, **options)
        assert words in str(caught.value)
    for arguments, words in (
        ((z * torch.nan, y), "must not hold NaN"),
        ((z, y + 4), "from 0 to 3"),
        ((z, y[:5]), "one truth for each of the 100"),
        ((z[:0], y[:0]), "at least 19 samples"),
    ):
        with pytest.raises(DataError) as refused:
            guaranteed_threshold(*arguments, h)
        assert words in str(refused.value)
    with pytest.raises(DataError, match="one group for each of the 100"):
        guaranteed_threshold(z, y, h, groups=[1, 2])
    with pytest.raises(HierarchyError, match="several ways up"):
        guaranteed_threshold(torch.zeros(30, 3), np.zeros(30, dtype=int), DIAMOND.build(), rule="climb")
