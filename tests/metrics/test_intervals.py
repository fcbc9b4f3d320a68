"""Intervals over seeds and samples, against draws by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hace.errors import DataError
from hace.metrics.intervals import headline_columns, interval, paired_interval, stacked


def by_hand(above: np.ndarray, below: np.ndarray, replicates: int, seed: int) -> np.ndarray:
    """Each draw spelled out: which seeds, which samples, the mean over the seeds of ratios of sums."""
    seeds, samples = above.shape
    which_seeds = np.random.default_rng([seed, 1]).multinomial(seeds, [1 / seeds] * seeds, size=replicates)
    which_samples = np.random.default_rng([seed, 2, 0]).integers(0, samples, size=(replicates, samples))
    out = []
    for r in range(replicates):
        values = []
        for k in range(seeds):
            top = sum(above[k, s] for s in which_samples[r])
            bottom = sum(below[k, s] for s in which_samples[r])
            values += [top / bottom] * which_seeds[r][k] if bottom else []
        out.append(np.mean(values) if values else np.nan)
    return np.array(out)


@pytest.fixture
def columns() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    wrong = (rng.random((3, 12)) < 0.4).astype(float)
    return wrong * rng.integers(1, 4, size=wrong.shape), wrong


def test_against_draws_by_hand(columns: tuple[np.ndarray, np.ndarray]) -> None:
    above, below = columns
    found = interval(above, below, replicates=50, seed=4)
    drawn = by_hand(above, below, 50, 4)
    assert found.value == pytest.approx(np.mean(above.sum(1) / below.sum(1)))
    assert (found.low, found.high) == pytest.approx(tuple(np.nanquantile(drawn, [0.025, 0.975])), rel=1e-5)


def test_pairs_against_draws_by_hand(columns: tuple[np.ndarray, np.ndarray]) -> None:
    above, below = columns
    other, under = above[:, ::-1].copy(), below[:, ::-1].copy()
    found = paired_interval(above, other, (below, under), replicates=50, seed=1)
    drawn = by_hand(above, below, 50, 1) - by_hand(other, under, 50, 1)
    assert (found.low, found.high) == pytest.approx(
        tuple(np.nanquantile(drawn, [0.025, 0.975])), rel=1e-5, abs=1e-6
    )


def test_it_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(100):
        sample = (rng.random((1, 300)) < 0.7).astype(float)
        low, high = interval(sample, replicates=300, seed=seed)[1:3]
        hits += low <= 0.7 <= high
    assert 88 <= hits <= 100


def test_what_both_methods_share_cancels() -> None:
    rng = np.random.default_rng(2)
    hard = (rng.random((1, 400)) < 0.5).astype(float).repeat(5, axis=0)
    better = hard.copy()
    better[:, :40] = 1
    apart = interval(better)
    together = paired_interval(better, hard)
    assert together.high - together.low < 0.6 * (apart.high - apart.low)
    assert together.excludes_zero
    assert not paired_interval(hard, hard).excludes_zero
    assert paired_interval(hard, hard) == (0, 0, 0, 0)


def test_the_seeds_vary_too() -> None:
    same = np.ones((4, 50)) * np.array([1, 0, 1, 0] * 1)[:, None]  # seeds differ, samples do not
    found = interval(same)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_a_seed_without_mistakes_has_no_severity() -> None:
    above, below = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
    assert interval(above, below).value == 2.0
    nothing = interval(np.zeros((2, 3)), np.zeros((2, 3)))
    assert np.isnan(nothing).all()


def test_many_samples_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    sample = (rng.random((2, 100)) < 0.5).astype(float)
    whole = interval(sample, replicates=400)
    monkeypatch.setattr("hace.metrics.intervals._BLOCK", 1000)
    parts = interval(sample, replicates=400)
    assert parts.value == whole.value
    assert parts.low == pytest.approx(whole.low, abs=0.03)
    assert parts.high == pytest.approx(whole.high, abs=0.03)


def test_columns_of_predictions() -> None:
    run = {
        "truth": np.array([3, 4, 5]),
        "answer": np.array([3, 5, 5]),
        "distance": np.array([0, 2, 0], np.float32),
        "top5": np.array([True, True, False]),
    }
    found = headline_columns(run)
    assert found["top-1"][0].tolist() == [1, 0, 1]
    assert found["top-5"][0].tolist() == [1, 1, 0]
    assert found["HD@1"][0].tolist() == [0, 2, 0]
    above, below = stacked([run, run], "severity")
    assert (above / np.maximum(below, 1)).tolist() == [[0, 2, 0]] * 2
    assert below is not None
    assert below.sum() == 2


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(DataError, match=r"\(3,\)"):
        interval(np.ones(3))
    with pytest.raises(DataError, match="some of each"):
        interval(np.ones((0, 3)))
    with pytest.raises(DataError, match="same seeds and samples"):
        paired_interval(np.ones((2, 3)), np.ones((2, 4)))
