"""Several comparisons at once, against closed tests, exact variances and repeated experiments."""

from __future__ import annotations

from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from hace.errors import ConfigError
from hace.metrics import Interval, compared_together
from hace.metrics.intervals import detectable_effect, holm, interval, p_value, paired_interval


def by_closed_tests(p: list[float]) -> list[float]:
    """A hypothesis falls when every set of hypotheses that holds it falls by Bonferroni's test: what Holm's steps shorten."""
    every = range(len(p))
    results = []
    for i in every:
        sets = [s for size in range(1, len(p) + 1) for s in combinations(every, size) if i in s]
        results.append(max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets))
    return results


@pytest.mark.parametrize("seed", range(4))
def test_holm_is_the_closed_bonferroni_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = [*(rng.random(5) ** 4), 0.02, 0.02]
    assert holm(p) == pytest.approx(by_closed_tests(p))


def test_holm_refuses_what_is_no_probability() -> None:
    assert holm([]) == []
    with pytest.raises(ConfigError, match=r"between 0 and 1. Got \[0.5, 1.5\]"):
        holm([0.5, 1.5])


def test_p_values_are_uniform_where_nothing_differs() -> None:
    rng = np.random.default_rng(1)
    results = []
    for _ in range(400):
        a, b = (rng.random((1, 200)) < 0.5), (rng.random((1, 200)) < 0.5)
        results.append(p_value(paired_interval(a, b)))
    assert np.mean(results) == pytest.approx(0.5, abs=0.06)
    assert np.mean(np.array(results) < 0.05) < 0.09


def test_a_p_value_is_below_five_percent_where_the_interval_excludes_zero() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        values = rng.normal(size=(3, 40)) + rng.normal(size=(3, 1)) + rng.normal(size=40) + 1
        interval_of = interval(values)
        assert interval_of.excludes_zero == (p_value(interval_of) < 0.05)
        assert interval_of.spread is not None
        assert p_value(interval_of) >= min(0.0499, interval_of.spread.tail(interval_of.value))


def test_the_detectable_effect_is_found_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    known = Interval(0.0, 0.0, 0.0, 1.5)
    for comparisons in (1, 12):
        effect = detectable_effect(known, comparisons=comparisons, power=0.8)
        seen = rng.normal(effect, 1.5, size=20_000)
        p = np.array([p_value(Interval(v, 0, 0, 1.5)) for v in seen])
        assert np.mean(p < 0.05 / comparisons) == pytest.approx(0.8, abs=0.015)
    with pytest.raises(ConfigError, match="power must be"):
        detectable_effect(known, power=0.2)


def test_errors_from_few_numbers_have_students_tails() -> None:
    gaps = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    error = gaps.std(ddof=1) / 5**0.5
    known, given = Interval(gaps.mean(), 0, 0, error), Interval(gaps.mean(), 0, 0, error, 4)
    assert p_value(given) == pytest.approx(ttest_1samp(gaps, 0).pvalue)
    assert p_value(Interval(0.0, 0.0, 0.0, 0.0, 4)) == 1
    assert p_value(Interval(1.0, 1.0, 1.0, 0.0, 4)) == 0
    assert np.isnan(p_value(Interval(1.0, np.nan, np.nan)))
    assert np.isnan(detectable_effect(Interval(1.0, np.nan, np.nan)))
    both = compared_together({"known": known, "seeds": given})
    assert both["known"].p < both["seeds"].p
    assert both["seeds"].detectable_of_all == detectable_effect(given, comparisons=2)
    many = known._replace(freedom=10**6)
    assert detectable_effect(many) == pytest.approx(detectable_effect(known), abs=1e-4)


def test_the_detectable_effect_allows_for_errors_that_are_estimated() -> None:
    rng = np.random.default_rng(3)
    for comparisons in (1, 45):
        given = Interval(0.0, 0.0, 0.0, 1 / 5**0.5, 4)
        effect = detectable_effect(given, comparisons=comparisons)
        seen = ttest_1samp(rng.normal(effect, 1.0, size=(40_000, 5)), 0, axis=1).pvalue
        assert np.mean(seen < 0.05 / comparisons) == pytest.approx(0.8, abs=0.01)


def test_the_detectable_effect_of_many_comparisons_is_at_the_stricter_tail() -> None:
    values = (
        np.random.default_rng(6).normal(size=(5, 60)) + np.random.default_rng(7).normal(size=(5, 1)) * 0.3
    )
    interval_of = interval(values)
    least = detectable_effect(interval_of, comparisons=45, power=0.5)
    assert p_value(interval_of._replace(value=least)) == pytest.approx(
        0.05 / 45, rel=0.35
    )  # found in half of the cases
    assert least < detectable_effect(interval_of, comparisons=45)


def test_together_they_share_five_percent() -> None:
    given = {
        "clear": Interval(4.0, 2.0, 6.0, 1.0),
        "alone only": Interval(2.1, 0.1, 4.1, 1.0),
        "none": Interval(0.0, -2.0, 2.0, 1.0),
        "identical": Interval(0.0, 0.0, 0.0, 0.0),
        "no predictions kept": Interval(1.0, np.nan, np.nan),
    }
    comparisons = compared_together(given)
    assert {key: one.of for key, one in comparisons.items()} == dict.fromkeys(given, 4)
    assert [key for key, one in comparisons.items() if one.p < 0.05] == ["clear", "alone only"]
    assert [key for key, one in comparisons.items() if one.holds] == ["clear"]
    assert comparisons["clear"].adjusted == pytest.approx(4 * 2 * NormalDist().cdf(-4))
    assert comparisons["identical"].p == 1.0
    assert np.isnan(comparisons["no predictions kept"].adjusted)
    assert comparisons["none"].detectable < comparisons["none"].detectable_of_all
    assert p_value(Interval(1.0, 1.0, 1.0, 0.0)) == 0.0


def test_a_p_value_far_out_is_small_and_not_zero() -> None:
    from scipy.stats import norm

    given = Interval(12.0, 10.0, 14.0, 1.0)
    assert p_value(given) == pytest.approx(2 * norm.sf(12.0), rel=1e-9)
