"""Guarantees within each class: kept where one on average is not, and pooled upward."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hace import Hierarchy, calibrate_scores, guaranteed_threshold
from hace.decisions import GuaranteedThreshold
from hace.decisions.calibration import read_calibration
from hace.errors import ConfigError, DataError, HierarchyError
from hace.hierarchy.derived import is_above

H = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])

RANKED = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")],
    level_names=["family", "species"],
)


def samples(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Class 1 is hard."""
    y = rng.integers(4, size=number)
    z = 2 * rng.normal(size=(number, 4))
    z[np.arange(number), y] += np.array([5.0, 1.0, 5.0, 5.0])[y]
    return z, y


def false_by_class(answers: np.ndarray, y: np.ndarray) -> np.ndarray:
    false = (np.append(H.depths, 0)[answers] > 0) & ~is_above(H, answers, H.leaf_nodes[y])
    return np.bincount(y, false) / np.bincount(y)


def test_the_guarantee_holds_within_each_class() -> None:
    rng = np.random.default_rng(0)
    own, average = [], []
    for _ in range(60):
        (z, y), (new, truth) = samples(rng, 400), samples(rng, 400)
        own.append(
            false_by_class(
                guaranteed_threshold(z, y, H, 0.9, by="class").predict(new, H).nodes.numpy(), truth
            )
        )
        average.append(
            false_by_class(guaranteed_threshold(z, y, H, 0.9).predict(new, H).nodes.numpy(), truth)
        )
    mean, error = np.mean(own, axis=0), np.std(own, axis=0) / np.sqrt(60)
    assert (mean < 0.1 + 3 * error).all()
    assert np.mean(average, axis=0)[1] > 0.15


def test_classes_with_too_few_samples_are_pooled_upward() -> None:
    rng = np.random.default_rng(1)
    z, y = samples(rng, 400)
    few = np.flatnonzero((y != 1) | (np.cumsum(y == 1) <= 5))
    made = guaranteed_threshold(z[few], y[few], H, 0.9, by="class")
    assert made.pools is not None
    assert sorted(map(len, made.pools)) == [1, 1, 2]
    assert any(H.leaves[1] in pool and len(pool) == 2 for pool in made.pools)
    assert "in each class or pool of classes (2 of the classes share 1 pool)" in made.guarantee
    assert made.assumptions[-1] == (
        "Classes that share one guarantee: beagle and husky. It holds on average over them, if they are as frequent as in the "
        "calibration."
    )
    surely = guaranteed_threshold(z[few], y[few], H, 0.9, 0.9, by="class")
    assert (
        "Each class or pool keeps it with that probability, all 3 at once with probability 0.7 or more."
        in surely.assumptions
    )
    again = GuaranteedThreshold.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made
    assert again.predict(z, H).ids == made.predict(z, H).ids
    by_rank = guaranteed_threshold(z, y, RANKED, 0.9, by="family")
    assert by_rank.pools == (("beagle", "husky"), ("siamese", "tabby"))
    assert "get a false answer, in each of 2 pools of classes" in by_rank.guarantee


def test_it_is_calibrated_stored_and_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    (z, y), (new, truth) = samples(rng, 900), samples(rng, 400)
    made = calibrate_scores(z, H.leaf_nodes[y], H, [0.8, 0.9], by="class")
    made.write(tmp_path / "c.json")
    sure = read_calibration(tmp_path / "c.json").threshold_for(0.9)
    assert sure.groups == "class"
    rates = false_by_class(sure.predict(new / made.temperature, H).nodes.numpy(), truth)
    assert rates.max() < 0.2


def test_what_it_refuses() -> None:
    z, y = samples(np.random.default_rng(2), 5)
    with pytest.raises(DataError, match="at least 9"):
        guaranteed_threshold(z, y, H, 0.9, by="class")
    with pytest.raises(ConfigError, match="'species' or one group for each sample"):
        guaranteed_threshold(z, y, RANKED, 0.9, by="genus")
    with pytest.raises(ConfigError, match="must come with rule='threshold'"):
        guaranteed_threshold(z, y, H, 0.9, by="class", rule="climb")
    with pytest.raises(DataError, match="labels of classes"):
        guaranteed_threshold(z, np.full(5, H.index("dog")), H, 0.9, by="class", labels="nodes")
    dag = Hierarchy.from_edges([("a", "x"), ("b", "x"), ("b", "y")])
    with pytest.raises(HierarchyError, match="tree or forest"):
        guaranteed_threshold(np.zeros((30, 2)), np.zeros(30, dtype=int), dag, 0.9, by="class")
