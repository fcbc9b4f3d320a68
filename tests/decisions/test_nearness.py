"""Similarity to the nearest training sample, and samples drawn to have that of others."""

from __future__ import annotations

import numpy as np
import pytest

from hace import DataError, Hierarchy, guaranteed_threshold, nearest_similarity
from hace.decisions.ladders import outcomes_of
from hace.decisions.nearness import Nearness, samples_like, similarity_alarm
from hace.decisions.scores import Scores
from hace.errors import FormatError


def slow_similarity(training: np.ndarray, samples: np.ndarray) -> list[float]:
    """By two loops."""
    known, new = training - training.mean(axis=0), samples - training.mean(axis=0)
    return [max(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in known) for a in new]


def test_similarity_is_the_greatest_cosine() -> None:
    rng = np.random.default_rng(0)
    training, samples = rng.normal(size=(40, 6)) + 3, rng.normal(size=(15, 6)) + 3
    assert nearest_similarity(training, samples) == pytest.approx(
        slow_similarity(training, samples), abs=2e-3
    )
    scaled = Nearness.of(training * 10, divisor=np.full(6, 10.0))
    assert scaled.similarity(samples * 10) == pytest.approx(nearest_similarity(training, samples), abs=2e-3)


def test_many_features_are_seen_on_their_principal_axes() -> None:
    rng = np.random.default_rng(1)
    spread = np.geomspace(10, 0.01, 200)
    training, samples = (rng.normal(size=(number, 200)) * spread for number in (300, 30))
    near = Nearness.of(training)
    assert near.rows.shape == (300, 64)
    assert near.similarity(samples) == pytest.approx(slow_similarity(training, samples), abs=0.02)


def test_it_is_stored_and_read() -> None:
    rng = np.random.default_rng(2)
    near, samples = Nearness.of(rng.normal(size=(30, 5))), rng.normal(size=(9, 5))
    again = Nearness.from_arrays(near.arrays("near"), "near")
    assert again is not None
    assert again.similarity(samples).tolist() == near.similarity(samples).tolist()
    assert Nearness.from_arrays({}, "near") is None
    with pytest.raises(FormatError, match="near must hold training samples"):
        Nearness.from_arrays({**near.arrays("near"), "near.rows": np.ones((3, 4))}, "near")


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match="samples must have 3 features"):
        nearest_similarity(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(DataError, match="training must hold at least one"):
        Nearness.of(np.ones((0, 3)))
    with pytest.raises(DataError, match="table of finite features"):
        Nearness.of(np.full((2, 3), np.nan))
    with pytest.raises(DataError, match="at least one"):
        samples_like(np.ones(3), np.empty(0))


@pytest.mark.parametrize("case", ["shifted", "same", "constant", "nothing alike"])
def test_samples_are_drawn_like_others(case: str) -> None:
    rng = np.random.default_rng(3)
    held_out = rng.beta(8, 2, size=4000)
    new = {
        "shifted": rng.beta(4, 3, size=1000),
        "same": rng.beta(8, 2, size=1000),
        "constant": np.full(1000, 0.8),
        "nothing alike": np.full(1000, -1.0),
    }[case]
    drawn = samples_like(held_out, new)
    after = similarity_alarm(held_out[drawn.rows], new)
    if case == "shifted":
        assert drawn.alarm > 0.4
        assert after < 0.12
        assert len(drawn.rows) > 80
    if case == "same":
        assert after < 0.08
        assert len(drawn.rows) > 2500
    if case == "nothing alike":
        assert drawn.beyond == 1.0
        assert len(drawn.rows) == 4000


def test_a_guarantee_on_them_holds_where_the_similarity_decides() -> None:
    """Samples are right the more often, the more similar they are; new ones are less similar than held-out ones."""
    h = Hierarchy.flat(["a", "b", "c"])
    rates: dict[str, list[float]] = {"plain": [], "drawn": []}
    for seed in range(60):
        rng = np.random.default_rng(seed)

        def draw(number: int, a: float, b: float, rng: np.random.Generator = rng) -> tuple[np.ndarray, ...]:
            similarity = rng.beta(a, b, size=number)
            y = rng.integers(3, size=number)
            said = np.where(rng.random(number) < similarity, y, (y + 1) % 3)
            z = np.zeros((number, 3))
            z[np.arange(number), said] = rng.uniform(1, 6, number)  # confidence that knows nothing of it
            return similarity, y, z

        near, y, z = draw(3000, 6, 2)
        near_new, y_new, z_new = draw(1000, 4, 3)
        drawn = samples_like(near, near_new, seed).rows
        for name, rows in (("plain", slice(None)), ("drawn", drawn)):
            sure = guaranteed_threshold(z[rows], y[rows], h, 0.8)
            outcomes = outcomes_of(Scores(z_new, h), h.leaf_nodes[y_new], labels="nodes")
            rates[name].append(float(outcomes.losses(sure.threshold).mean()))
    assert np.mean(rates["plain"]) > 0.27
    assert np.mean(rates["drawn"]) <= 0.21  # a histogram of few bins: not quite 0.2
