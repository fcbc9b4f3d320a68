"""Checks of a guarantee on new samples: their states, their false alarms, and what they are made of."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import binom, ks_2samp

from hace import Hierarchy, guaranteed_threshold
from hace.decisions import Scores
from hace.decisions.betting import capital_against_at_least, capital_against_at_most
from hace.decisions.bounds import RiskBound
from hace.decisions.check import check, highest_rate, labelled_evidence
from hace.decisions.nearness import nearest_similarity, similarity_alarm
from hace.decisions.shift import Profile, compare_profiles
from hace.errors import ConfigError, DataError

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])


def samples(rng: np.random.Generator, number: int, signal: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(4, size=number)
    z = 2 * rng.normal(size=(number, 4))
    z[np.arange(number), y] += signal
    return z, y


def sites(
    rng: np.random.Generator, number: int, signal: float = 2.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores and labels in sites whose samples are alike."""
    group = np.repeat(np.arange(number), rng.integers(1, 12, number))
    y = rng.integers(4, size=number)[group]
    z = 1.4 * (rng.normal(size=(number, 4))[group] + rng.normal(size=(len(y), 4)))
    z[np.arange(len(y)), y] += signal
    return z, y, group


def product_of_bets(gains: list[float], bets: np.ndarray) -> float:
    return float(np.mean([np.prod([1 + bet * gain for gain in gains]) for bet in bets]))


def test_the_capital_is_the_average_product_of_bets() -> None:
    losses = np.array([0.0, 1.0, 0.25, 0.0])
    bets = np.geomspace(0.01, 0.99, 16)
    above = capital_against_at_most(losses, 0.2)
    below = capital_against_at_least(losses, 0.2)
    for n in range(1, 5):
        assert above[n - 1] == pytest.approx(product_of_bets([(x - 0.2) / 0.2 for x in losses[:n]], bets))
        assert below[n - 1] == pytest.approx(product_of_bets([(0.2 - x) / 0.8 for x in losses[:n]], bets))


def test_a_fair_bet_gains_nothing_on_average() -> None:
    """Over all 2^8 outcomes of a coin at the limit, the mean of the capital is 1: exact, no simulation."""
    outcomes = np.array([[(code >> bit) & 1 for bit in range(8)] for code in range(256)], dtype=float)
    chance = np.prod(np.where(outcomes == 1, 0.3, 0.7), axis=1)
    for capital in (capital_against_at_most, capital_against_at_least):
        assert chance @ [capital(row, 0.3)[-1] for row in outcomes] == pytest.approx(1)


def test_the_highest_rate_of_a_calibration_is_the_binomial_one() -> None:
    bound = RiskBound.of_accuracy(0.9, None, "samples")
    rate = highest_rate(bound, 99, 0.0125)
    assert binom.cdf(9, 99, rate) == pytest.approx(0.0125, rel=1e-6)
    sure = RiskBound.of_accuracy(0.9, 0.9, "samples")
    assert highest_rate(sure, 99, 0.0125) == 0.1


def test_the_distance_of_samples_is_that_of_kolmogorov_and_smirnov() -> None:
    rng = np.random.default_rng(0)
    one, other = Profile.of(samples(rng, 60)[0], TREE), Profile.of(samples(rng, 40, 5.0)[0], TREE)
    made = compare_profiles(one, other, draws=199)
    distance, p_value = np.asarray(ks_2samp(one.confidence, other.confidence))
    assert made.distances["confidence"] == pytest.approx(distance, abs=0.03)  # at 64 points
    assert p_value < 0.01
    assert made.p_values["confidence"] <= 0.02


def test_without_labels_false_alarms_have_their_level() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(200):
        one, other = Profile.of(samples(rng, 40)[0], TREE), Profile.of(samples(rng, 30)[0], TREE)
        alarms += compare_profiles(one, other, draws=39).p_value <= 0.1
    assert 8 <= alarms <= 33  # 20 expected, three standard errors


def test_alike_samples_of_a_group_raise_no_alarm() -> None:
    """As samples they would: groups of one class each differ from any others."""
    rng = np.random.default_rng(2)
    by_group, by_sample = 0, 0
    for _ in range(100):
        (z, _, g), (z2, _, g2) = sites(rng, 20), sites(rng, 20)
        one, other = Profile.of(z, TREE, groups=g), Profile.of(z2, TREE, groups=g2)
        by_group += compare_profiles(one, other, by_group=True, draws=39).p_value <= 0.1
        by_sample += compare_profiles(one, other, draws=39).p_value <= 0.1
    assert by_group <= 19 < by_sample


def test_the_states_of_a_check() -> None:
    rng = np.random.default_rng(3)
    z, y = samples(rng, 600)
    sure = guaranteed_threshold(z[:300], y[:300], TREE, 0.8)
    seen = Profile.of(z[:300], TREE)
    unlabelled = check(sure, seen, z[300:], TREE)
    assert unlabelled.state == "no evidence against it"
    assert unlabelled.labels is None
    some = np.where(np.arange(300) < 30, y[300:], -1)
    assert check(sure, seen, z[300:], TREE, target=some).state == "no evidence against it"
    wrong = rng.permutation(y[300:])  # the same scores, other truths: only labels show it
    broken = check(sure, seen, z[300:], TREE, target=wrong)
    assert broken.state == "broken"
    assert broken.comparison.p_value > 0.05
    assert broken.labels is not None
    assert broken.labels.threshold is not None
    assert broken.labels.threshold.answered < sure.answered
    unlike = check(sure, seen, 0.1 * z[300:], TREE)
    assert unlike.state == "broken"
    assert unlike.comparison.unlike > 0.5
    json.dumps(broken.to_dict())
    assert "broken" in str(broken)


def test_labels_that_show_that_it_holds_outweigh_unlike_samples() -> None:
    rng = np.random.default_rng(4)
    z, y = samples(rng, 300)
    sure = guaranteed_threshold(z, y, TREE, 0.8)
    easy, truth = samples(rng, 300, 9.0)
    seen = check(sure, Profile.of(z, TREE), easy, TREE, target=truth)
    assert seen.state == "holds"
    assert seen.comparison.p_value <= 0.01


def test_guarantees_of_groups_are_checked_by_group() -> None:
    rng = np.random.default_rng(5)
    z, y, g = sites(rng, 60)
    z2, y2, g2 = sites(rng, 60)
    seen = Profile.of(z, TREE, groups=g)
    for share, of in ((None, "samples"), (0.7, "samples"), (None, "answers")):
        sure = guaranteed_threshold(
            z, y, TREE, 0.7, 0.8 if of == "answers" else None, of, groups=g, group_share=share
        )
        made = check(sure, seen, z2, TREE, target=y2, groups=g2)
        assert made.labels is not None
        assert made.labels.units <= 60
        assert made.state != "broken"
        assert set(made.comparison.unlike_groups) == {str(k) for k in range(60)}
    sure = guaranteed_threshold(z, y, TREE, 0.7, groups=g)
    assert check(sure, seen, z2, TREE, target=np.roll(y2, len(y2) // 2), groups=g2).state == "broken"
    with pytest.raises(ConfigError, match="groups must name"):
        check(sure, seen, z2, TREE)


def test_a_few_labels_of_each_group_do_not_break_a_guarantee_about_most_groups() -> None:
    """With three labels of fifty a single false answer is a third: more than the fifth that most groups are below."""
    alarms = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(40), 50)
        z, y = samples(rng, 4000)
        sure = guaranteed_threshold(z[:2000], y[:2000], TREE, 0.8, 0.9, groups=group, group_share=0.8)
        seen = Profile.of(z[:2000], TREE, groups=group)
        some = np.where(np.arange(2000) % 50 < 3, y[2000:], -1)  # samples of a group are in random order
        made = check(sure, seen, z[2000:], TREE, target=some, groups=group)
        assert made.labels is None
        assert "40 groups are labelled in part" in made.reasons[-1]
        alarms += made.state == "broken"
        if seed == 0:
            some[:500] = y[2000:2500]
            made = check(sure, seen, z[2000:], TREE, target=some, groups=group)
            assert made.labels is not None
            assert made.labels.units == 10
            assert "30 groups" in made.reasons[-1]
    assert alarms <= 4


def test_groups_count_in_the_order_in_which_they_are_complete() -> None:
    z = 9.0 * np.eye(4)[[0, 0, 0, 0, 2]]
    y = np.array([1, 1, 1, 1, 2])
    sure = guaranteed_threshold(np.tile(z[:1], (40, 1)), np.zeros(40, int), TREE, 0.7, groups=np.arange(40))
    named = np.array(["a", "b", "a", "c", "b"])  # complete: a, c, b
    made = labelled_evidence(sure, Scores(z, TREE), TREE.leaf_nodes[y], named, 0.05)
    in_order = capital_against_at_most(np.array([1.0, 1.0, 0.5]), made.limit)
    assert made.against == pytest.approx(in_order.max(), rel=1e-5)


def test_false_answers_by_distance_are_checked() -> None:
    rng = np.random.default_rng(6)
    z, y = samples(rng, 600)
    sure = guaranteed_threshold(z[:300], y[:300], TREE, distance="edges", at_most=0.5)
    seen = Profile.of(z[:300], TREE)
    holds = check(sure, seen, z[300:], TREE, target=y[300:])
    assert holds.labels is not None
    assert holds.labels.allowed == 0.5
    assert holds.state != "broken"
    assert check(sure, seen, z[300:], TREE, target=rng.permutation(y[300:])).state == "broken"


def test_twins_among_the_training_samples_raise_the_alarm() -> None:
    rng = np.random.default_rng(7)
    photos = rng.normal(size=(200, 8))
    bursts = np.repeat(photos, 3, axis=0) + 0.1 * rng.normal(size=(600, 8))
    training, held_out = bursts[::3], bursts[1::3]  # random: a burst is in both
    new = rng.normal(size=(200, 8))
    near = nearest_similarity(training, held_out)
    assert similarity_alarm(near, nearest_similarity(training, new)) > 0.9
    z = rng.normal(size=(200, 4))
    seen = Profile.of(z, TREE, similarity=near)
    made = compare_profiles(seen, Profile.of(z, TREE, similarity=nearest_similarity(training, new)))
    assert made.p_values["similarity"] <= 0.01 < made.p_values["confidence"]
    assert made.unlike > 0.9


def test_a_profile_is_stored_and_read() -> None:
    rng = np.random.default_rng(8)
    z, _, g = sites(rng, 5)
    made = Profile.of(z, TREE, similarity=rng.random(len(z)), groups=g)
    again = Profile.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.to_dict() == made.to_dict()
    with pytest.raises(DataError, match="one length"):
        Profile.from_dict({**made.to_dict(), "best": [1]})
    with pytest.raises(DataError, match="confidence and best"):
        Profile.from_dict({})


def test_a_stored_profile_of_saturated_scores_raises_no_alarm() -> None:
    """Where most answers have the same probability, the digits that a file leaves out must not tell old from new."""
    rng = np.random.default_rng(0)
    z = np.zeros((400, 4))
    z[np.arange(400), rng.integers(4, size=400)] = rng.choice([16.5, 17.0, 18.0, 1.0], 400)
    seen = Profile.from_dict(json.loads(json.dumps(Profile.of(z[:200], TREE).to_dict())))
    made = compare_profiles(seen, Profile.of(z[200:], TREE))
    assert made.p_value > 0.05
    assert made.unlike < 0.1
    near = np.full(200, 0.999999955)
    twins = Profile.of(z[:200], TREE, similarity=near)
    again = Profile.from_dict(json.loads(json.dumps(twins.to_dict())))
    made = compare_profiles(again, Profile.of(z[200:], TREE, similarity=near))
    assert (made.p_values["similarity"], made.unlike) == (1.0, 0.0)


def test_what_a_check_refuses() -> None:
    rng = np.random.default_rng(9)
    z, y = samples(rng, 100)
    seen = Profile.of(z, TREE)
    sure = guaranteed_threshold(z, y, TREE, 0.8)
    with pytest.raises(DataError, match="target must hold one truth"):
        check(sure, seen, z, TREE, target=y[:3])
    with pytest.raises(ConfigError, match="level must be"):
        check(sure, seen, z, TREE, level=1.0)
    with pytest.raises(ConfigError, match="one threshold"):
        check(guaranteed_threshold(z, y, TREE, 0.6, by="top"), seen, z, TREE)
    with pytest.raises(
        ConfigError, match="Got 4, one for each class or group: with labels, evaluate judges each class"
    ):
        check(guaranteed_threshold(z, y, TREE, 0.6, by="class"), seen, z, TREE)
    with pytest.raises(DataError, match="similarity must hold"):
        check(sure, seen, z, TREE, similarity=np.ones(3))
