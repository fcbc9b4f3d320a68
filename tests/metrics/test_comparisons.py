"""Several comparisons at once, against closed tests, exact variances and repeated experiments."""

from __future__ import annotations

from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from hace.errors import ConfigError
from hace.metrics import Interval, compared_together
from hace.metrics.intervals import detectable_effect, holm, p_value, paired_interval


def by_closed_tests(p: list[float]) -> list[float]:
    """A hypothesis falls when every set of hypotheses that holds it falls by Bonferroni's test: what Holm's steps shorten."""
    every = range(len(p))
    found = []
    for i in every:
        sets = [s for size in range(1, len(p) + 1) for s in combinations(every, size) if i in s]
        found.append(max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_holm_is_the_closed_bonferroni_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = [*(rng.random(5) ** 4), 0.02, 0.02]
    assert holm(p) == pytest.approx(by_closed_tests(p))


def test_holm_refuses_what_is_no_probability() -> None:
    assert holm([]) == []
    with pytest.raises(ConfigError, match=r"between 0 and 1. Got \[0.5, 1.5\]"):
        holm([0.5, 1.5])


def test_the_error_is_that_of_seeds_and_samples_drawn_independently() -> None:
    """Exact: draws W of K seeds and V of S samples have E[W_k W_l] = 1/K² + ([k = l]/K - 1/K²)/K, and V alike."""
    rng = np.random.default_rng(0)
    first, second = (rng.random((4, 30)) < 0.7).astype(float), (rng.random((4, 30)) < 0.6).astype(float)
    d = first - second

    def second_moments(n: int) -> np.ndarray:
        return np.full((n, n), 1 / n**2) + (np.eye(n) / n - 1 / n**2) / n

    together = np.einsum("ks,lt,kl,st->", d, d, second_moments(4), second_moments(30))
    exact = np.sqrt(together - d.mean() ** 2)
    assert paired_interval(first, second, replicates=20_000).error == pytest.approx(exact, rel=0.02)


def test_p_values_are_uniform_where_nothing_differs() -> None:
    rng = np.random.default_rng(1)
    found = []
    for seed in range(150):
        a, b = (rng.random((1, 200)) < 0.5), (rng.random((1, 200)) < 0.5)
        found.append(p_value(paired_interval(a.astype(float), b.astype(float), replicates=200, seed=seed)))
    assert np.mean(found) == pytest.approx(0.5, abs=0.1)
    assert np.mean(np.array(found) < 0.05) < 0.12


def test_the_detectable_effect_is_found_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    for comparisons in (1, 12):
        effect = detectable_effect(1.5, comparisons=comparisons, power=0.8)
        seen = rng.normal(effect, 1.5, size=20_000)
        p = np.array([p_value(Interval(v, 0, 0, 1.5)) for v in seen])
        assert np.mean(p < 0.05 / comparisons) == pytest.approx(0.8, abs=0.015)
    with pytest.raises(ConfigError, match="power must be"):
        detectable_effect(1.0, power=0.2)


def test_errors_from_few_numbers_have_students_tails() -> None:
    gaps = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    error = gaps.std(ddof=1) / 5**0.5
    given = Interval(gaps.mean(), 0, 0, error)
    assert p_value(given, freedom=4) == pytest.approx(ttest_1samp(gaps, 0).pvalue)
    assert p_value(Interval(0.0, 0.0, 0.0, 0.0), freedom=4) == 1
    assert p_value(Interval(1.0, 1.0, 1.0, 0.0), freedom=4) == 0
    assert np.isnan(p_value(Interval(1.0, np.nan, np.nan), freedom=0))
    assert np.isnan(detectable_effect(np.nan, freedom=0))
    both = compared_together({"bootstrap": given, "seeds": given}, freedom={"seeds": 4})
    assert both["bootstrap"].p == p_value(given)
    assert both["seeds"].p == p_value(given, freedom=4)
    assert both["seeds"].detectable_of_all == detectable_effect(error, comparisons=2, freedom=4)
    assert detectable_effect(1.0, freedom=10**6) == pytest.approx(detectable_effect(1.0), abs=1e-4)


def test_the_detectable_effect_allows_for_errors_that_are_estimated() -> None:
    rng = np.random.default_rng(3)
    for comparisons in (1, 45):
        effect = detectable_effect(1 / 5**0.5, comparisons=comparisons, freedom=4)
        seen = ttest_1samp(rng.normal(effect, 1.0, size=(40_000, 5)), 0, axis=1).pvalue
        assert np.mean(seen < 0.05 / comparisons) == pytest.approx(0.8, abs=0.01)


def test_together_they_share_five_percent() -> None:
    given = {
        "clear": Interval(4.0, 2.0, 6.0, 1.0),
        "alone only": Interval(2.1, 0.1, 4.1, 1.0),
        "none": Interval(0.0, -2.0, 2.0, 1.0),
        "identical": Interval(0.0, 0.0, 0.0, 0.0),
        "no predictions kept": Interval(1.0, np.nan, np.nan),
    }
    found = compared_together(given)
    assert {key: one.of for key, one in found.items()} == dict.fromkeys(given, 4)
    assert [key for key, one in found.items() if one.p < 0.05] == ["clear", "alone only"]
    assert [key for key, one in found.items() if one.holds] == ["clear"]
    assert found["clear"].adjusted == pytest.approx(4 * 2 * NormalDist().cdf(-4))
    assert found["identical"].p == 1.0
    assert np.isnan(found["no predictions kept"].adjusted)
    assert found["none"].detectable < found["none"].detectable_of_all
    assert p_value(Interval(1.0, 1.0, 1.0, 0.0)) == 0.0


def test_a_p_value_far_out_is_small_and_not_zero() -> None:
    from scipy.stats import norm

    given = Interval(12.0, 10.0, 14.0, 1.0)
    assert p_value(given) == pytest.approx(2 * norm.sf(12.0), rel=1e-9)
