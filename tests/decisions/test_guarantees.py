"""Guaranteed thresholds: against exhaustive search, and the guarantee itself over many simulated calibrations."""

from __future__ import annotations

import itertools
import json
import math
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from hace import DataError, Hierarchy, guaranteed_threshold, predict
from hace.decisions import GuaranteedThreshold
from hace.decisions.bounds import RiskBound
from hace.decisions.ladders import NOTHING, Outcomes, greatest_distance, outcomes_of
from hace.decisions.scores import Scores
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy.derived import is_above
from hace.hierarchy.distances import DISTANCES
from tests.hierarchies import ANIMALS, DIAMOND, RAGGED, Plain, random_plain
from tests.reference import structure

FORM: dict[str, Any] = {"labels": "nodes", "kind": "logits", "outputs": "leaves"}


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
    return bool(binom.cdf(false, number, float(alpha)) <= float(1 - Fraction(confidence)))


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
    """Every score, and the next number above it, as a threshold: from the safest down while the guarantee is supported.

    The threshold found is as good as the least of them: the same answers, and away from every score.
    """
    for seed in range(5):
        plain = random_plain(kind, seed, 12)
        h, rng = plain.build(), np.random.default_rng(seed)
        z = torch.from_numpy(rng.normal(size=(40, h.num_leaves)) * 2)
        truth = np.where(rng.random(40) < 0.6, h.leaf_nodes[z.argmax(1)], rng.integers(0, h.num_nodes, 40))
        outcomes = outcomes_of(Scores(z, h, outputs="leaves"), truth, rule=rule, labels="nodes")
        known = outcomes.reached[outcomes.says & (outcomes.reached > -np.inf)]
        scores = np.unique(np.concatenate([known, rng.random(5)]))
        scores = scores[(scores >= 0) & (scores < 1)]
        tried = sorted({0.0, 1.0, *scores, *np.nextafter(scores, 1)}, reverse=True)
        table = [(t, *counts(plain, h, z, truth, rule, t)) for t in tried]
        for t, false, answers in table:
            assert at(outcomes, t) == (false, answers)
        for accuracy, confidence in (("0.8", None), ("0.9", None), ("0.7", "0.8"), ("0.6", "0.95")):
            least = None
            for t, false, _ in table:
                if not supported(false, 40, accuracy, confidence):
                    break
                least = t
            asked = float(accuracy), None if confidence is None else float(confidence)
            sure = guaranteed_threshold(z, truth, h, *asked, rule=rule, **FORM)
            if least is None:
                assert sure.threshold == NOTHING
                assert {h.depths[v] if v >= 0 else 0 for v in sure.predict(z, h, outputs="leaves").nodes} == {
                    0
                }
            else:
                best = predict(z, h, rule, threshold=least, outputs="leaves")
                assert sure.predict(z, h, outputs="leaves").ids == best.ids
                assert least == 0 or np.abs(known - sure.threshold).min() > 1e-7


def at(result: Outcomes, t: float) -> tuple[int, int]:
    """Loss and answers of all samples at a threshold."""
    return int(result.loss_at(np.array([t]))[0]), int(result.answers_at(np.array([t]))[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ragged", "forest", "unary", "dag"])
@pytest.mark.parametrize("distance", [None, *DISTANCES])
def test_losses_are_those_of_the_answers(kind: str, distance: str | None) -> None:
    """A sample loses what its worst answer at the threshold, or at a greater one, loses."""
    for seed, constrained in itertools.product(range(3), (True, False)):
        plain = random_plain(kind, seed, 12)
        h, rng = plain.build(), np.random.default_rng(seed)
        z = torch.from_numpy(rng.normal(size=(12, h.num_leaves)) * 2)
        truth = rng.integers(0, h.num_nodes, 12)
        form: dict[str, Any] = {"constrained": constrained, "distance": distance, "labels": "nodes"}
        outcomes = outcomes_of(Scores(z, h, outputs="leaves"), truth, **form)
        tried = np.unique(np.concatenate([outcomes.reached.ravel(), outcomes.answered, [0.0, 0.5, 1.0]]))
        worst = np.zeros(12)
        for t in tried[(tried >= 0) & (tried <= 1)][::-1].tolist():
            answers = predict(z, h, "threshold", threshold=t, constrained=constrained, outputs="leaves")
            for i, (answer, v) in enumerate(zip(answers.ids, truth.tolist(), strict=True)):
                y = h.nodes[v]
                if answer is None or answer in {
                    *structure.ancestors(plain, y),
                    *(plain.tops if plain.rooted else ()),
                }:
                    continue
                lost = 1 if distance is None else structure.pair_distance(plain, answer, y, distance)
                worst[i] = max(worst[i], lost)
            assert at(outcomes, t)[0] == worst.sum()
        assert worst.max() <= (1 if distance is None else greatest_distance(h, distance))


@pytest.fixture(scope="module")
def population() -> tuple[Hierarchy, torch.Tensor, np.ndarray]:
    """An over-confident model on a ragged tree: truths by softmax(z), scores 1.5 z."""
    h, rng = RAGGED.build(), np.random.default_rng(5)
    z = rng.normal(size=(8000, h.num_leaves)) * 3
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return h, torch.from_numpy(1.5 * z), (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["threshold", "climb"])
@pytest.mark.parametrize(
    ("accuracy", "confidence", "of", "number"),
    [
        (0.95, None, "samples", 99),
        (0.9, 0.9, "samples", 200),
        (0.8, 0.8, "answers", 300),
        (0.9, 0.9, "answers", 600),
    ],
)
def test_the_guarantee_is_kept(
    population: tuple, rule: str, accuracy: float, confidence: float | None, of: str, number: int
) -> None:
    """400 calibrations, each judged on all samples."""
    h, z, y = population
    outcomes = outcomes_of(Scores(z, h, outputs="leaves"), y, rule=rule)
    guarantee = RiskBound.of_accuracy(accuracy, confidence, of)
    risks, silent = simulated(guarantee, outcomes, number)
    assert silent <= 60
    alpha = 1 - accuracy
    if confidence is None:  # on average at the level, and not far below it
        error = risks.std() / math.sqrt(len(risks))
        assert alpha - 0.01 < risks.mean() <= alpha + 2 * error
    else:
        delta = 1 - confidence
        assert (risks > alpha).mean() <= delta + 2 * math.sqrt(delta * (1 - delta) / len(risks))
        assert (risks > alpha / 2).mean() > 0.5  # and it is not idle


def simulated(
    guarantee: RiskBound, result: Outcomes, number: int, draws: int = 400
) -> tuple[np.ndarray, int]:
    """The risk of many calibrations on all samples, 0 where nothing is answered; and how many answer nothing."""
    rng, risks, silent = np.random.default_rng(0), [], 0
    for _ in range(draws):
        t = guarantee.threshold(result.take(rng.choice(len(result), number, replace=False)))
        silent += t == NOTHING
        loss, answers = at(result, t)
        risks.append(loss / guarantee.most / (len(result) if guarantee.of == "samples" else max(1, answers)))
    return np.array(risks), silent


@pytest.mark.slow
@pytest.mark.parametrize(("distance", "at_most"), [("lca_height", 0.25), ("edges", 0.5)])
def test_a_guaranteed_distance_is_kept(population: tuple, distance: str, at_most: float) -> None:
    h, z, y = population
    outcomes = outcomes_of(Scores(z, h, outputs="leaves"), y, distance=distance)
    most = greatest_distance(h, distance)
    risks, _ = simulated(RiskBound.of_distance(at_most, None, most), outcomes, 99)
    assert 0.8 * at_most < risks.mean() * most <= at_most + 2 * most * risks.std() / 20
    risks, _ = simulated(RiskBound.of_distance(at_most, 0.9, most), outcomes, 300)
    assert (risks * most > at_most).mean() <= 0.1
    assert risks.mean() * most > at_most / 3


@pytest.mark.slow
def test_thresholds_are_not_tested_on_the_samples_that_chose_them() -> None:
    """Every threshold has 22% false answers where 20% are guaranteed, so each one accepted breaks the guarantee.

    The luckiest of many thresholds passes its test in far more than a tenth of the calibrations.
    """
    rng = np.random.default_rng(1)
    score = rng.random(20_000)
    false = rng.random(len(score)) < 0.22
    result = Outcomes(score[:, None], false[:, None].astype(int), np.ones((len(score), 1), dtype=bool))
    _, silent = simulated(RiskBound.of_accuracy(0.8, 0.9, "answers"), result, 300, draws=200)
    assert silent >= 180


@pytest.mark.slow
def test_the_finite_sample_correction_is_needed() -> None:
    """With continuous scores the mean risk is known: floor(alpha (n + 1)) / (n + 1). Without the + 1 it is 4/31."""
    guarantee, rng = RiskBound.of_accuracy(0.9, None, "samples"), np.random.default_rng(0)
    draws = []
    for row in rng.random((1000, 30)):
        true = rng.random((30, 300))  # so that midpoints are close to the least thresholds
        reached = -np.sort(-np.column_stack([row, true]), axis=1)
        loss = (reached <= row[:, None]).astype(int)
        draws.append(Outcomes(reached, loss, np.ones(reached.shape, dtype=bool)))
    risk = np.array([1 - guarantee.threshold(row) for row in draws])
    assert risk.mean() == pytest.approx(3 / 31, abs=0.006)
    strict = RiskBound.of_accuracy(
        0.9, 0.9, "samples"
    )  # no more than a tenth of calibrations break the guarantee
    broken = np.mean([1 - strict.threshold(row) > 0.1 for row in draws])
    assert 0.02 < broken <= 0.1
    assert broken == pytest.approx(binom.cdf(0, 30, 0.1), abs=0.015)


def test_groups_have_thresholds_of_their_own(population: tuple) -> None:
    h, z, y = population[0], population[1][:2000], population[2][:2000]
    named = np.where(np.arange(2000) % 2, "odd", "even")
    guarantee = guaranteed_threshold(z, y, h, 0.9, by=named)
    tops = guaranteed_threshold(z, y, h, 0.9, by="top")
    under = np.array(predict(z, h, "level", level=1).ids)
    assert set(tops.threshold) == {"near", "x1", "y1"}  # type: ignore[arg-type]
    for record, groups, given in ((guarantee, named, named), (tops, under, None)):
        answers = record.predict(z, h, by=given)
        for name, t in record.threshold.items():  # type: ignore[union-attr]
            rows = groups == name
            assert t == guaranteed_threshold(z[rows], y[rows], h, 0.9).threshold
            alone = predict(z[rows], h, "threshold", threshold=t)
            assert answers.nodes[rows].tolist() == alone.nodes.tolist()
            assert answers.probabilities[rows].tolist() == alone.probabilities.tolist()
    with pytest.raises(DataError, match=r"name groups of the calibration\. Got 'new'"):
        guarantee.predict(z[:1], h, by=["new"])
    with pytest.raises(ConfigError, match="by must name the group of each sample"):
        guarantee.predict(z[:1], h)
    with pytest.raises(ConfigError, match="by must be None"):
        tops.predict(z[:1], h, by=["x1"])
    with pytest.raises(DataError) as caught:
        guaranteed_threshold(z[:30], y[:30], h, 0.95, by=["a"] * 29 + ["b"])
    assert "Group 'b': samples must be at least 19" in str(caught.value)
    only = torch.tensor(under == "x1").nonzero()[:60, 0]
    with pytest.raises(DataError) as caught:  # an empty group: no sample is answered under two of the tops
        guaranteed_threshold(z[only], y[only.numpy()], h, 0.9, by="top")
    assert [problem[:12] for problem in caught.value.problems] == ["Group 'near'", "Group 'y1': "]
    assert "Got 0." in str(caught.value)


@pytest.mark.parametrize(
    ("accuracy", "confidence", "of", "needed"),
    [
        (0.95, None, "samples", 19),
        (0.9, None, "samples", 9),
        (0.99, None, "samples", 99),
        (0.95, 0.95, "samples", 59),
        (0.95, 0.9, "answers", 56),
        (0.5, 0.5, "answers", 1),
    ],
)
def test_how_many_samples_a_guarantee_takes(
    accuracy: float, confidence: float | None, of: str, needed: int
) -> None:
    h = Hierarchy.flat(["a", "b"])
    right = np.array([[0.9, 0.1]] * needed)
    y = np.zeros(needed, dtype=int)
    assert guaranteed_threshold(right, y, h, accuracy, confidence, of, kind="probs").threshold == 0.0
    with pytest.raises(DataError, match=f"samples must be at least {needed} "):
        guaranteed_threshold(right[1:], y[1:], h, accuracy, confidence, of, kind="probs")


def test_constant_scores_and_certain_mistakes() -> None:
    h = ANIMALS.build()
    y = np.zeros(100, dtype=int)
    t = guaranteed_threshold(torch.zeros(100, 4), (y + np.arange(100)) % 4, h, 0.9)
    assert set(t.predict(torch.zeros(9, 4), h).ids) == {"animal"}  # says nothing
    certain = torch.zeros(100, 4)
    certain[:, 1] = 1e4
    for scores, truth, of in ((certain, y, "samples"), (torch.zeros(100, 4), y + 1, "answers")):
        sure = guaranteed_threshold(scores, truth, h, 0.9, 0.9, of)
        assert (sure.threshold, sure.answered) == (NOTHING, 0)
        assert "It answers nothing" in sure.cost
        assert sure.guarantee.endswith("It answers nothing.")
        assert set(sure.predict(scores, h).ids) == {"animal"}


def test_what_is_refused() -> None:
    h, z, y = ANIMALS.build(), torch.randn(100, 4), np.zeros(100, dtype=int)
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"accuracy": 1.0}, "accuracy must be a number above 0 and below 1. Got 1.0"),
        ({"accuracy": 0}, "accuracy must be a number above 0"),
        ({"confidence": 1}, "confidence must be a number above 0 and below 1"),
        ({"of": "all"}, "of must be one of 'samples', 'answers'"),
        ({"of": "answers"}, "Give confidence=0.9"),
        ({"rule": "cost"}, "rule must be one with a threshold: 'threshold', 'climb', 'hedge', 'own'"),
        ({"rule": "climb", "constrained": False}, "constrained=False belongs to the first"),
        ({"constrained": False, "by": "top"}, "by='top' needs answers under one child"),
        ({"at_most": 0.5}, "Give distance='lca_height'"),
        ({"distance": "edges"}, "must have at_most"),
        ({"distance": "edges", "at_most": 0.5, "accuracy": 0.9}, "no accuracy"),
        ({"distance": "edges", "at_most": 0.5, "of": "answers", "confidence": 0.9}, "of='samples'"),
        ({"distance": "edges", "at_most": 4}, "above 0 and below 4"),
        ({"by": "level"}, "by must be None, 'top'"),
    )
    for options, words in bad:
        with pytest.raises(ConfigError) as caught:
            guaranteed_threshold(z, y, h, **options)
        assert words in str(caught.value)
    for arguments, words in (
        ((z * torch.nan, y), "must not hold NaN"),
        ((z, y + 4), "from 0 to 3"),
        ((z, y[:5]), "one truth for each of the 100"),
        ((z[:0], y[:0]), "samples must be at least 19"),
    ):
        with pytest.raises(DataError) as refused:
            guaranteed_threshold(*arguments, h)
        assert words in str(refused.value)
    with pytest.raises(DataError, match="one group for each of the 100"):
        guaranteed_threshold(z, y, h, by=[1, 2])
    with pytest.raises(DataError, match=r"texts or integers\. Got nan"):
        guaranteed_threshold(z, y, h, by=[math.nan] * 100)
    with pytest.raises(
        DataError, match=r"samples must be at least 19 to guarantee a mean distance of at most 0\.2"
    ):
        guaranteed_threshold(z[:18], y[:18], h, distance="edges", at_most=0.2)
    with pytest.raises(HierarchyError, match="several ways up"):
        guaranteed_threshold(torch.zeros(30, 3), np.zeros(30, dtype=int), DIAMOND.build(), rule="climb")


def test_a_record_survives_json(population: tuple) -> None:
    h, z, y = population[0], population[1][:900], population[2][:900]
    third = (np.arange(900) % 3).tolist()
    guarantees: tuple[dict[str, Any], ...] = (
        {"accuracy": 0.8},
        {"by": "top"},
        {"by": third},
        {"distance": "edges", "at_most": 1, "confidence": 0.9},
    )
    for options in guarantees:
        record = guaranteed_threshold(z, y, h, rule="climb", **options)
        again = GuaranteedThreshold.from_dict(json.loads(json.dumps(record.to_dict())))
        assert again == record
        given = options.get("by") if options.get("by") is third else None
        assert again.predict(z, h, by=given).ids == record.predict(z, h, by=given).ids
        assert "900 samples" in record.guarantee
        assert ("independent" in record.assumptions[0]) == (record.confidence is not None)
    with pytest.raises(DataError, match="Calibrate again with this hierarchy"):
        guaranteed_threshold(z, y, h).predict(torch.zeros(1, 4), ANIMALS.build())
    with pytest.raises(DataError, match=r"must have format 'hace\.threshold\.3'"):
        GuaranteedThreshold.from_dict({"format": "other"})
    values = guaranteed_threshold(z, y, h).to_dict()
    for change in (
        {"threshold": 1.5},
        {"answered": 2},
        {"threshold": [["x1", math.nan]], "groups": "top"},
        {"rule": "cost"},
        {"rule": []},
        {"accuracy": "x"},
        {"accuracy": None},
        {"confidence": 1},
        {"of": "all"},
        {"groups": "top"},
        {"distance": "edges"},
        {"distance": None, "at_most": 1},
        {"samples": 1.5},
        {"hierarchy": 7},
    ):
        with pytest.raises(
            DataError, match=rf"thresholds from 0 to 1, or 2, a rule with .* Got .*{next(iter(change))}"
        ):
            GuaranteedThreshold.from_dict(values | change)


def saturated(number: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Ten flat classes, scores of float32 that saturate at 1, and 3% of the labels wrong."""
    rng = np.random.default_rng(seed)
    said = rng.integers(0, 10, number)
    wrong = rng.random(number) < 0.03
    truth = np.where(wrong, (said + rng.integers(1, 10, number)) % 10, said)
    return 40 * torch.nn.functional.one_hot(torch.from_numpy(said), 10).float(), truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accuracy", "confidence", "of", "number"), [(0.99, None, "samples", 99), (0.95, 0.9, "answers", 60)]
)
def test_a_guarantee_is_issued_by_every_calibration(
    accuracy: float, confidence: float | None, of: str, number: int
) -> None:
    """Only lucky calibrations could exclude a false answer of mass 1 if there were no threshold above 1."""
    h, risks = Hierarchy.flat([str(i) for i in range(10)]), []
    for seed in range(300):
        z, y = saturated(number, seed)
        sure = guaranteed_threshold(z, y, h, accuracy, confidence, of)
        new, truth = saturated(2000, 10_000 + seed)
        answers = sure.predict(new, h)
        said = answers.labels.numpy() >= 0
        risks.append(
            (said & (answers.labels.numpy() != truth)).sum()
            / (2000 if of == "samples" else max(1, said.sum()))
        )
        assert sure.answered == said.mean()  # all or none
        assert ("It answers nothing" in sure.cost) == (sure.threshold > 1)
    if confidence is None:
        assert np.mean(risks) <= 1 - accuracy
    else:
        assert np.mean(np.array(risks) > 1 - accuracy) <= 1 - confidence


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["threshold", "climb", "hedge"])
def test_tied_scores_keep_the_guarantee_in_another_precision(rule: str) -> None:
    """Calibrated in double precision, used in single precision, and the reverse: rounding moves no tied sample across."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        h = random_plain("ragged", seed, 12).build()
        kinds = rng.normal(size=(4, h.num_leaves)) * rng.choice(
            [1, 3, 30]
        )  # four sorts of samples, a hundred of each
        z = torch.from_numpy(np.repeat(kinds, 100, axis=0))
        truth = np.where(rng.random(400) < 0.9, z.argmax(1).numpy(), rng.integers(0, h.num_leaves, 400))
        for one, other in ((z, z.float()), (z.float(), z)):
            sure = guaranteed_threshold(one, truth, h, 0.95, rule=rule, outputs="leaves")
            assert sure.predict(other, h, outputs="leaves").ids == sure.predict(one, h, outputs="leaves").ids
            false = ~is_above(h, sure.predict(other, h, outputs="leaves").nodes.numpy(), h.leaf_nodes[truth])
            assert false.sum() <= 0.05 * 401 - 1


def test_thresholds_keep_away_from_scores() -> None:
    """Midpoints: no score is closer to a threshold than to its neighbour on the other side."""
    scores = np.array([0.2, 0.2 + 1e-9, 0.5, 0.9, 1 - 1e-9, 1.0])
    result = Outcomes(scores[:, None], np.ones((6, 1), dtype=int), np.ones((6, 1), dtype=bool))
    assert result.thresholds() == pytest.approx([2.0, 0.95, 0.7, 0.35, 0.0])
    assert result.loss_at(result.thresholds()).tolist() == [0, 2, 3, 4, 6]
    assert result.answers_at(result.thresholds()).tolist() == [0, 2, 3, 4, 6]


def test_groups_say_whether_they_hold_together(population: tuple) -> None:
    h, z, y = population[0], population[1][:900], population[2][:900]
    each = guaranteed_threshold(z, y, h, 0.8, by="top").assumptions[-1]
    assert each == "Each group keeps the guarantee on average, and so do all of them together."
    joint = guaranteed_threshold(z, y, h, 0.8, 0.95, by="top").assumptions[-1]
    assert "all 3 at once with probability 0.85 or more" in joint
    with pytest.raises(ConfigError, match="threshold must be a probability"):
        predict(z, h, "threshold", threshold=2.0)


@pytest.mark.parametrize(
    ("accuracy", "confidence", "of", "needed"),
    [
        (0.999999999, 0.9, "answers", 2_878_231_366),
        (0.999999999, None, "samples", 999_999_999),
        (1e-320, 0.9, "answers", 1),
        (1e-320, None, "samples", 1),
        (1 - 2**-53, 0.9, "samples", None),
    ],
)
def test_extreme_guarantees_end(
    accuracy: float, confidence: float | None, of: str, needed: int | None
) -> None:
    """Neither a scan over billions of sizes nor the logarithm of 0."""
    began = time.process_time()
    result = RiskBound.of_accuracy(accuracy, confidence, of).needed()
    assert time.process_time() - began < 1
    assert needed is None or result == pytest.approx(needed, rel=1e-8)
    h = Hierarchy.flat(["a", "b"])
    if result == 1:
        z, y = torch.tensor([[3.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), [0, 0, 1]
        assert guaranteed_threshold(z, y, h, accuracy, confidence, of).threshold == 0.0


def test_a_silent_guarantee_about_answers_says_how_many_samples_would_speak() -> None:
    """Half of the samples are sure and 1% of these are wrong: too few here to show 95%, and enough where it says so."""
    h = Hierarchy.flat(["a", "b", "c"])

    def draw(number: int, seed: int, wrong: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        y, sure = rng.integers(3, size=number), rng.random(number) < 0.5
        said = np.where(rng.random(number) < np.where(sure, wrong, 0.6), (y + 1) % 3, y)
        z = rng.uniform(0, 0.1, (number, 3))
        z[np.arange(number), said] += np.where(sure, 6, 1)
        return z, y

    small = guaranteed_threshold(*draw(100, 4), h, 0.95, 0.9, of="answers")
    assert small.is_silent
    assert small.enough is not None
    assert f"about {small.enough:,} like these would give answers" in small.cost
    assert GuaranteedThreshold.from_dict(small.to_dict()) == small
    speaking = [
        not guaranteed_threshold(*draw(small.enough, s), h, 0.95, 0.9, of="answers").is_silent
        for s in range(20)
    ]
    assert sum(speaking) >= 14
    hopeless = guaranteed_threshold(*draw(150, 5, wrong=0.4), h, 0.95, 0.9, of="answers")
    assert hopeless.is_silent
    assert hopeless.enough is None


def test_a_number_of_samples_that_would_speak_is_one_with_which_most_calibrations_do() -> None:
    h = Hierarchy.flat(["a", "b", "c", "d"])

    def draw(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        y = rng.integers(4, size=number)
        z = 2 * rng.normal(size=(number, 4))
        z[np.arange(number), y] += 3.5
        return z, y

    speaking = []
    for seed in range(30):
        small = guaranteed_threshold(*draw(80, seed), h, 0.95, 0.9, of="answers")
        assert small.is_silent
        if small.enough is not None:
            more = draw(small.enough, 1000 + seed)
            speaking.append(not guaranteed_threshold(*more, h, 0.95, 0.9, of="answers").is_silent)
    assert len(speaking) >= 10
    assert np.mean(speaking) >= 0.7
