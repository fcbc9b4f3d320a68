"""Guarantees about new groups: against a slow definition, by simulation, and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from hace import Hierarchy, evaluate, guaranteed_threshold
from hace.decisions import GuaranteedThreshold, Scores
from hace.decisions.bounds import one_of_each
from hace.decisions.ladders import outcomes_of
from hace.errors import ConfigError, DataError
from hace.hierarchy.derived import is_above

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])


def calls(
    rng: np.random.Generator, groups: int, size: int, correlation: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and groups: a group has one label, and its difficulty varies as much as the correlation says."""
    sizes = rng.integers(1, size + 1, groups) if size > 1 else np.ones(groups, dtype=int)
    group = np.repeat(np.arange(groups), sizes)
    y = rng.integers(4, size=groups)[group]
    shared = rng.normal(size=(groups, 4))[group] * np.sqrt(correlation)
    z = 2 * (shared + rng.normal(size=(len(y), 4)) * np.sqrt(1 - correlation))
    z[np.arange(len(y)), y] += 2.5
    return z, y, group


def shares(
    result: GuaranteedThreshold, z: np.ndarray, y: np.ndarray, group: np.ndarray, of: str
) -> np.ndarray:
    """(G,) of each group, the share of false answers: of its samples, or of its answers."""
    answers = result.predict(z, TREE).nodes.numpy()
    said = np.append(TREE.depths, 0)[answers] > 0
    false = said & ~is_above(TREE, answers, TREE.leaf_nodes[y])
    below = np.bincount(group, weights=said if of == "answers" else None)
    return np.bincount(group, weights=false) / np.maximum(below, 1)


@pytest.mark.parametrize("share", [None, 0.75])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_the_threshold_is_the_least_that_the_definition_allows(share: float | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, y, group = calls(rng, 40, 12, 0.5)
    guarantee = guaranteed_threshold(z, y, TREE, 0.8, groups=group, group_share=share)
    outcomes = outcomes_of(Scores(z, TREE), y)
    alpha = Fraction(1, 5) if share is None else Fraction(1, 4)

    def total(t: float) -> Fraction:
        lost = Fraction(0)
        for g in range(40):
            rows = np.flatnonzero(group == g)
            false = sum(bool((outcomes.reached[i][outcomes.loss[i] > 0] >= t).any()) for i in rows)
            mean = Fraction(false, len(rows))
            lost += mean if share is None else Fraction(int(mean > Fraction(1, 5)))
        return lost

    least = min(t for t in outcomes.thresholds() if (total(t) + 1) / 41 <= alpha)
    assert guarantee.threshold == least
    assert (guarantee.groups, guarantee.num_groups, guarantee.group_share) == ("new", 40, share)


def test_a_loss_never_grows_with_the_threshold() -> None:
    from hace.decisions.bounds import GroupOutcomes, RiskBound, group_places

    z, y, group = calls(np.random.default_rng(3), 30, 20, 0.7)
    outcomes, place = outcomes_of(Scores(z, TREE), y), group_places(group, len(y))[1]
    for share in (None, 0.9):
        groups = GroupOutcomes(outcomes, place, RiskBound.of_accuracy(0.9, None, "samples", share))
        each = np.stack([groups.losses(t)[0] for t in groups.thresholds()])  # t falls
        assert (np.diff(each, axis=0) >= 0).all()


def test_groups_of_one_sample_are_samples() -> None:
    z, y, _ = calls(np.random.default_rng(0), 500, 1, 0.0)
    alone = guaranteed_threshold(z, y, TREE, 0.9)
    assert guaranteed_threshold(z, y, TREE, 0.9, groups=np.arange(500)).threshold == alone.threshold
    sure = guaranteed_threshold(z, y, TREE, 0.9, 0.9)
    # A mean loss takes the bound for numbers from 0 to 1, which is a little wider than that for 0 and 1.
    assert guaranteed_threshold(z, y, TREE, 0.9, 0.9, groups=np.arange(500)).threshold >= sure.threshold


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("of", ["samples", "answers"])
def test_guarantees_hold_for_new_groups(correlation: float, of: str) -> None:
    """Over calibrations and new groups; the guarantee for samples breaks where groups are alike inside."""
    rng = np.random.default_rng(17)
    confidence = None if of == "samples" else 0.9
    mean, holding, plain = [], [], []
    for _ in range(60):
        z, y, group = calls(rng, 60, 30, correlation)
        new = calls(rng, 60, 30, correlation)
        on_average = guaranteed_threshold(z, y, TREE, 0.8, confidence, of, groups=group)
        in_most = guaranteed_threshold(z, y, TREE, 0.8, confidence, of, groups=group, group_share=0.8)
        mean.append(shares(on_average, *new, of).mean())
        holding.append((shares(in_most, *new, of) <= 0.2).mean())
        plain.append(shares(guaranteed_threshold(z, y, TREE, 0.8), *new, "samples").mean())
    noise = 2 * np.std(mean) / np.sqrt(60)
    if of == "samples":
        assert np.mean(mean) <= 0.2 + noise
        assert np.mean(holding) >= 0.8 - 2 * np.std(holding) / np.sqrt(60)
    else:  # with probability 0.9; the new groups add noise of their own
        assert np.mean(np.array(mean) > 0.2 + 0.05) <= 0.2
        assert np.mean(np.array(holding) < 0.8 - 0.1) <= 0.2


def test_a_record_of_new_groups_survives_json_and_says_what_it_is() -> None:
    z, y, group = calls(np.random.default_rng(5), 30, 20, 0.5)
    for share, words in (
        (None, "In a new group at most 10% of its samples"),
        (0.9, "In at least 90% of new groups at most 10%"),
    ):
        guarantee = guaranteed_threshold(
            z, y, TREE, 0.9, groups=[f"site {g}" for g in group], group_share=share
        )
        assert guarantee.guarantee.startswith(words)
        assert f"(30 groups, {len(y):,} samples)" in guarantee.guarantee
        assert any("exchangeable" in text and "New groups" in text for text in guarantee.assumptions)
        assert GuaranteedThreshold.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee
    plain = guaranteed_threshold(z, y, TREE, 0.9).to_dict()
    assert "num_groups" not in plain  # records without groups are as they were
    with pytest.raises(DataError, match="num_groups"):
        GuaranteedThreshold.from_dict({**guarantee.to_dict(), "num_groups": "many"})


def test_too_few_groups_say_how_many_it_takes_and_what_is_possible() -> None:
    z, y, group = calls(np.random.default_rng(5), 12, 20, 0.5)
    with pytest.raises(DataError) as caught:
        guaranteed_threshold(z, y, TREE, 0.95, groups=group)
    assert "at least 19" in str(caught.value)
    assert "Got 12" in str(caught.value)
    assert "an accuracy of up to 0.923" in str(caught.value)
    assert guaranteed_threshold(z, y, TREE, 0.92, groups=group).num_groups == 12
    with pytest.raises(
        DataError, match=r"at least 22 to guarantee .* in 0\.9 of new groups.*share of groups of up to 0\.825"
    ):
        guaranteed_threshold(z, y, TREE, 0.95, 0.9, groups=group, group_share=0.9)


def test_what_is_refused() -> None:
    z, y, group = calls(np.random.default_rng(5), 30, 5, 0.5)
    with pytest.raises(ConfigError, match="groups and by must not come together"):
        guaranteed_threshold(z, y, TREE, groups=group, by="top")
    with pytest.raises(ConfigError, match="group_share must come with groups"):
        guaranteed_threshold(z, y, TREE, group_share=0.9)
    with pytest.raises(ConfigError, match="group_share must be a number above 0 and below 1"):
        guaranteed_threshold(z, y, TREE, groups=group, group_share=1.0)
    with pytest.raises(DataError, match="one group for each"):
        guaranteed_threshold(z, y, TREE, groups=group[:-1])
    with pytest.raises(DataError, match=r"name the group of every sample\. 1 have none; the first is 2"):
        guaranteed_threshold(z, y, TREE, groups=[*map(str, group[:2]), None, *map(str, group[3:])])


def test_the_outcome_of_a_guarantee_is_over_groups_that_weigh_the_same() -> None:
    z, y, group = calls(np.random.default_rng(0), 60, 10, 0.5)
    on_average = guaranteed_threshold(z, y, TREE, 0.8, groups=group)
    in_most = guaranteed_threshold(z, y, TREE, 0.8, groups=group, group_share=0.8)
    z, y, group = calls(np.random.default_rng(1), 30, 10, 0.5)
    z[group < 3], y[group < 3] = (
        np.eye(4)[0] * 20,
        0,
    )  # long recordings that are all right hide the others from samples
    big = np.concatenate([np.arange(len(y)), np.repeat(np.flatnonzero(group < 3), 50)])
    z, y, group = z[big], y[big], group[big]
    for guarantee in (on_average, in_most):
        each = shares(guarantee, z, y, group, "samples")
        evaluation = evaluate(z, y, TREE, groups=group, guarantee=guarantee)
        said = evaluation.guarantee_outcome()
        assert evaluation.guarantee_measured()["false"] < 0.5 * each.mean()
        if guarantee.group_share is None:
            assert f"on average over 30 groups {each.mean():.1%} of samples are false" in said
            assert said.endswith("guaranteed: at most 20.0%.")
        else:
            assert f": {(each > 0.2 + 1e-9).mean():.1%} of 30 groups break it" in said


def sites(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and groups: a tenth of the sites get sure answers, of which 60% are false; the others unsure ones."""
    group = np.repeat(np.arange(groups), 20)
    sure = (rng.random(groups) < 0.1)[group]
    y = rng.integers(4, size=len(group))
    wrong = rng.random(len(y)) < np.where(sure, 0.6, 0.65)
    said = np.where(wrong, (y + rng.integers(1, 4, len(y))) % 4, y)
    mass = np.where(sure, 0.97, 0.35)
    p = np.tile(((1 - mass) / 3)[:, None], 4)
    p[np.arange(len(y)), said] = mass
    return p, y, group


FLAT = Hierarchy.flat(["husky", "beagle", "tabby", "siamese"])


@pytest.mark.parametrize("share", [None, 0.8])
def test_a_group_without_answers_proves_nothing_about_answers(share: float | None) -> None:
    """No threshold gives answers of which 0.9 are true, so a guarantee about answers answers nothing."""
    rng = np.random.default_rng(4)
    issued = 0
    for _ in range(20):
        p, y, group = sites(rng, 60)
        guarantee = guaranteed_threshold(
            p, y, FLAT, 0.9, 0.9, "answers", groups=group, group_share=share, kind="probs"
        )
        issued += not guarantee.is_silent
    assert issued <= 2


def test_groups_without_answers_do_not_judge_a_guarantee_about_answers() -> None:
    """Sure sites are right in calibration, and wrong afterwards: the evaluation counts the sites that get answers."""
    rng = np.random.default_rng(5)
    p, _, group = sites(rng, 200)
    said = p.argmax(axis=1)
    sure = p.max(axis=1) > 0.9
    unsure = np.where(rng.random(len(said)) < 0.65, (said + 1) % 4, said)
    y = np.where(sure, said, unsure)
    for share in (None, 0.8):
        guarantee = guaranteed_threshold(
            p, y, FLAT, 0.8, 0.5, "answers", groups=group, group_share=share, kind="probs"
        )
        assert guarantee.threshold > 0.35
        assert (
            "a new group that gets answers" in guarantee.guarantee
            or "new groups that get answers" in guarantee.guarantee
        )
        later = np.where(sure & (rng.random(len(said)) < 0.6), (said + 1) % 4, y)
        outcome = evaluate(
            p, later, FLAT, groups=group, guarantee=guarantee, kind="probs"
        ).guarantee_outcome()
        answered = len(np.unique(group[sure]))
        assert f"{answered} groups" in outcome
        assert "not kept" in outcome


def test_one_sample_of_each_group_gives_the_threshold_of_these_samples() -> None:
    rng = np.random.default_rng(11)
    z, y, group = calls(rng, 40, 12, 0.5)
    guarantee = guaranteed_threshold(z, y, TREE, 0.9, groups=group, prefer="sharper", seed=3)
    rows = one_of_each(group, 3)
    assert group[rows].tolist() == list(range(40))
    assert guarantee.threshold == guaranteed_threshold(z[rows], y[rows], TREE, 0.9).threshold
    assert "40 groups, one sample of each, drawn by seed 3" in guarantee.guarantee
    assert GuaranteedThreshold.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee


def test_every_sample_of_a_group_is_drawn_as_often() -> None:
    places = np.array([0, 0, 0, 1])
    drawn = np.bincount([one_of_each(places, seed)[0] for seed in range(600)], minlength=3)
    assert drawn.min() > 150
    assert drawn.sum() == 600


def test_one_sample_of_each_group_keeps_the_guarantee_and_answers_more_where_groups_are_few() -> None:
    rng = np.random.default_rng(12)
    false = {"steadier": [], "sharper": []}
    answered = {"steadier": [], "sharper": []}
    for seed in range(150):
        (z, y, group), new = calls(rng, 20, 20, 0.5), calls(rng, 20, 20, 0.5)
        for prefer, each in false.items():
            guarantee = guaranteed_threshold(z, y, TREE, 0.95, groups=group, prefer=prefer, seed=seed)
            each.append(shares(guarantee, *new, "samples").mean())
            answered[prefer].append(guarantee.answered)
    for each in false.values():
        assert np.mean(each) < 0.05 + 3 * np.std(each) / np.sqrt(150)
    assert np.mean(answered["sharper"]) > np.mean(answered["steadier"]) + 0.02


def test_one_sample_of_each_group_speaks_of_samples_on_average() -> None:
    z, y, group = calls(np.random.default_rng(13), 40, 12, 0.5)
    for options in ({"group_share": 0.8}, {"of": "answers", "confidence": 0.8}):
        with pytest.raises(ConfigError, match="prefer='sharper' must come with groups"):
            guaranteed_threshold(z, y, TREE, 0.8, groups=group, prefer="sharper", **options)
    with pytest.raises(ConfigError, match="prefer='sharper' must come with groups"):
        guaranteed_threshold(z, y, TREE, 0.8, prefer="sharper")


def test_bets_on_groups_keep_the_guarantee_with_its_confidence() -> None:
    """Groups of many samples: at most 0.2 false on average over groups, in at least 0.8 of calibrations."""
    rng = np.random.default_rng(14)
    z, y, group = calls(rng, 4000, 10, 0.5)
    truth = outcomes_of(Scores(z, TREE), y)
    broken = 0
    for _ in range(100):
        some, y_some, g = calls(rng, 40, 10, 0.5)
        t = guaranteed_threshold(some, y_some, TREE, 0.8, 0.8, groups=g).threshold
        broken += (np.bincount(group, truth.losses(t)) / np.bincount(group)).mean() > 0.2
    assert broken <= 32  # 20 and three standard errors
