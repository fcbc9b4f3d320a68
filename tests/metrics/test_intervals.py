"""Intervals over seeds and samples: against sums by loops, against Student's, and against simulated truths."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hace.errors import DataError
from hace.metrics.intervals import (
    Spread,
    headline_columns,
    interval,
    p_value,
    paired_interval,
    share_interval,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import group_intervals as group_simulation  # noqa: E402
import interval_coverage as simulation  # noqa: E402


def by_loops(values: np.ndarray) -> Spread:
    """The mean squares of a crossed design without repetition, one sum at a time."""
    seeds, samples = values.shape
    mean = sum(values[k, i] for k in range(seeds) for i in range(samples)) / (seeds * samples)
    rows = [sum(values[k]) / samples for k in range(seeds)]
    columns = [sum(values[:, i]) / seeds for i in range(samples)]
    of_seeds = samples * sum((r - mean) ** 2 for r in rows) / (seeds - 1)
    of_samples = seeds * sum((c - mean) ** 2 for c in columns) / (samples - 1)
    rest = sum(
        (values[k, i] - rows[k] - columns[i] + mean) ** 2 for k in range(seeds) for i in range(samples)
    ) / ((seeds - 1) * (samples - 1))
    all_of_them = seeds * samples
    return Spread(of_seeds / all_of_them, of_samples / all_of_them, rest / all_of_them, seeds, samples - 1)


def test_the_parts_of_the_variance_by_loops() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 9)) + rng.normal(size=(4, 1)) + rng.normal(size=9)
    result, expected = interval(values), by_loops(values)
    assert result.spread == pytest.approx(expected)
    a, b, e = expected[:3]
    assert result.error == pytest.approx(np.sqrt(b + max(a - e, 0)))
    ours, theirs = 3 * max(a - 0.75 * e, 0), b - e
    freedom = (ours + theirs) ** 2 / (ours**2 / 3 + theirs**2 / 8)
    assert result.freedom == pytest.approx(freedom)
    half = stats.t.ppf(0.975, freedom) * result.error
    assert (result.low, result.high) == pytest.approx((values.mean() - half, values.mean() + half))
    assert p_value(result._replace(value=half)) == pytest.approx(0.05)


def test_one_source_of_variance_is_students() -> None:
    rng = np.random.default_rng(1)
    sample = rng.normal(size=30)
    for values in (sample[None], np.stack([sample] * 4)):  # one seed, or seeds that all do the same
        low, high = stats.t.interval(0.95, 29, sample.mean(), sample.std(ddof=1) / np.sqrt(30))
        assert interval(values)[1:3] == pytest.approx((low, high))
    gaps = np.array([0.4, 1.1, -0.2, 0.9])
    seeds = interval(np.repeat(gaps[:, None], 50, axis=1))  # the samples do not differ
    assert seeds[:5] == pytest.approx(interval(gaps[:, None])[:5])
    assert p_value(seeds) == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert interval(gaps[:, None]).spread is None
    assert np.isnan(interval(np.ones((1, 1))).low)
    for k in (2, 3, 10):  # the tail is Student's, too
        alone = Spread(1.0, 0.0, 0.0, k, 99)
        for value in (1.0, 6.0, 40.0):
            assert alone.tail(value) == pytest.approx(2 * stats.t.sf(value, k - 1), rel=1e-5)


def test_the_tail_is_that_of_drawn_variances() -> None:
    rng = np.random.default_rng(2)
    spread = Spread(0.5, 0.7, 0.2, 5, 199)
    seeds = np.maximum(0.5 * 4 / rng.chisquare(4, size=400_000) - 0.2, 0)
    drawn = rng.normal(size=400_000) * np.sqrt(0.7 + seeds)
    assert spread.tail(2.5) == pytest.approx(np.mean(np.abs(drawn) > 2.5), rel=0.03)


def test_a_ratio_of_sums_by_the_jackknife() -> None:
    rng = np.random.default_rng(3)
    wrong = (rng.random((1, 300)) < 0.4).astype(float)
    far = wrong * rng.integers(1, 4, size=wrong.shape)
    interval_of = interval(far, wrong)
    assert interval_of.value == pytest.approx(far.sum() / wrong.sum())
    left_out = [(far.sum() - far[0, i]) / (wrong.sum() - wrong[0, i]) for i in range(300)]
    jackknife = np.sqrt(299 / 300 * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    assert interval_of.error == pytest.approx(jackknife, rel=0.02)


def test_groups_take_the_place_of_samples() -> None:
    rng = np.random.default_rng(4)
    site = np.repeat(np.arange(40), 25)
    values = rng.normal(size=(3, 1000)) + rng.normal(size=40)[site]
    alone, together = interval(values), interval(values, groups=site)
    means = values.reshape(3, 40, 25).mean(2)
    assert together[:5] == pytest.approx(interval(means)[:5])  # groups of one size are their means
    assert together.error > 2 * alone.error
    assert interval(values, groups=np.arange(1000))[:5] == pytest.approx(alone[:5])


def test_what_both_methods_share_cancels() -> None:
    rng = np.random.default_rng(2)
    hard = (rng.random((1, 400)) < 0.5).astype(float).repeat(5, axis=0)
    better = hard.copy()
    better[:, :40] = 1
    apart = interval(better)
    together = paired_interval(better, hard)
    assert together.high - together.low < 0.6 * (apart.high - apart.low)
    assert together.excludes_zero
    same = paired_interval(hard, hard)
    assert same[:4] == (0, 0, 0, 0)
    assert p_value(same) == 1


def test_a_seed_without_mistakes_has_no_severity() -> None:
    above, below = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
    assert interval(above, below).value == 2.0
    nothing = interval(np.zeros((2, 3)), np.zeros((2, 3)))
    assert np.isnan(nothing[:4]).all()


@pytest.mark.parametrize(
    ("seeds", "share", "rest"), [(3, 0.66, 0.3), (3, 0.0, 0.3), (5, 0.8, 0.0), (10, 0.3, 0.6)]
)
def test_it_covers_the_truth_as_often_as_it_says(seeds: int, share: float, rest: float) -> None:
    covered, _ = simulation.coverage(simulation.normal(seeds, share, rest), 1000)
    assert 0.92 < covered < 0.98


@pytest.mark.slow
def test_holm_errs_no_more_often_than_it_says() -> None:
    for seeds in (3, 5):
        assert simulation.family_error(simulation.normal(seeds, 0.7, 0.3), 60) < 0.12


def test_the_committed_table_keeps_its_bars() -> None:
    with (BENCHMARKS / "interval_coverage.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    cases = {(row["seeds"], row["share"], row["rest"]) for row in table if row["kind"] == "normal"}
    wanted = {(k, s, r) for k in simulation.SEEDS for s in simulation.SHARES for r in simulation.RESTS}
    assert cases == {(str(k), f"{s:g}", f"{r:g}") for k, s, r in wanted}
    for row in table:
        assert 0.93 <= float(row["covered"]) <= 0.97, row
        assert float(row["errs"]) <= 0.06, row
        assert int(row["repetitions"]) >= 5000


def test_the_committed_tables_of_groups_keep_their_bars() -> None:
    """All but shares of answers that are nearly one per group, where the interval is too wide."""
    folder = BENCHMARKS.parent / "evidence" / "results" / "intervals"

    def shares(name: str, columns: tuple[str, ...]) -> list[tuple[dict[str, str], float]]:
        with (folder / name).open(encoding="utf-8") as file:
            return [(row, float(row[c].rstrip("%"))) for row in csv.DictReader(file) for c in columns]

    paired = shares("groups.csv", ("covered",))
    assert {(row["groups"], row["sizes"]) for row, _ in paired} == {
        (n, sizes) for n in ("10", "15", "30") for sizes in ("equal", "log-normal")
    }
    for row, covered in paired + shares("groups-2.csv", ("top-1", "severity", "AURC")):
        saturated = row.get("figure") == "accuracy" and row["alike"] == "0.9"
        assert 93 <= covered <= (99 if saturated else 97), row
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    assert (
        about["tables"]["groups.csv"]["command"] == "python benchmarks/group_intervals.py"
    )  # 5,000 repetitions


@pytest.mark.parametrize(
    ("sizes", "figure"), [("equal", "severity"), ("log-normal", "score"), ("log-normal", "severity")]
)
def test_intervals_over_few_groups_cover_the_truth(sizes: str, figure: str) -> None:
    rng, held = np.random.default_rng(7), []
    for _ in range(600):
        place = group_simulation.places_of(rng, 10, sizes)
        one, two = group_simulation.methods(rng, place, 0.5, figure)
        below = None if one[1] is None or two[1] is None else ([one[1]], [two[1]])
        held.append(not paired_interval([one[0]], [two[0]], below, groups=place).excludes_zero)
    assert 0.92 < np.mean(held) < 0.98


def test_columns_of_predictions() -> None:
    run = {
        "truth": np.array([3, 4, 5]),
        "answer": np.array([3, 5, 5]),
        "distance": np.array([0, 2, 0], np.float32),
        "top5": np.array([True, True, False]),
    }
    result = headline_columns(run)
    assert result["top-1"][0].tolist() == [1, 0, 1]
    assert result["top-5"][0].tolist() == [1, 1, 0]
    assert result["HD@1"][0].tolist() == [0, 2, 0]
    above, below = result["severity"]
    assert above.tolist() == [0, 2, 0]
    assert below is not None
    assert below.tolist() == [0, 1, 0]


def test_the_interval_of_a_share_is_no_wider_than_0_to_1() -> None:
    for samples in range(1, 200):
        assert share_interval(0, samples)[0] >= 0
        assert share_interval(samples, samples)[1] <= 1


def test_answers_that_all_agree_have_an_interval_that_knows_how_many_they_are() -> None:
    right, wrong = np.ones((2, 16), dtype=bool), np.zeros((2, 16), dtype=bool)
    low, high = share_interval(16, 16)
    assert 0.7 < low < 0.9
    assert interval(right)[:3] == pytest.approx((1.0, low, high))
    assert interval(wrong)[:3] == pytest.approx((0.0, 1 - high, 1 - low))
    assert paired_interval(right, right)[:3] == pytest.approx((0.0, low - 1, 1 - low))
    assert paired_interval(right, wrong)[:3] == pytest.approx((1.0, low, high))
    assert paired_interval(wrong, right)[:3] == pytest.approx((-1.0, -high, -low))
    groups = np.arange(16) // 4
    assert interval(right, groups=groups)[:3] == pytest.approx((1.0, *share_interval(4, 4)))
    assert interval(np.ones((2, 16)))[:3] == (1.0, 1.0, 1.0)  # a distance, say: of these nothing is known


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(DataError, match=r"\(3,\)"):
        interval(np.ones(3))
    with pytest.raises(DataError, match="some of each"):
        interval(np.ones((0, 3)))
    with pytest.raises(DataError, match="same seeds and samples"):
        paired_interval(np.ones((2, 3)), np.ones((2, 4)))
