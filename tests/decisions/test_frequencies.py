"""Class frequencies that changed: estimates, and calibration samples drawn to match."""

from __future__ import annotations

import numpy as np
import pytest

from hace import Hierarchy, calibrate_scores
from hace.decisions import Scores
from hace.decisions.frequencies import estimate_frequencies, matching_rows
from hace.decisions.ladders import outcomes_of
from hace.errors import ConfigError, DataError

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])
SHIFTED = np.array([0.1, 0.7, 0.1, 0.1])


def samples(rng: np.random.Generator, number: int, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated log-odds under equal frequencies; beagles are the hardest."""
    y = rng.choice(4, size=number, p=shares)
    signal = np.array([2.5, 0.8, 2.5, 2.5])
    x = rng.normal(size=(number, 4))
    x[np.arange(number), y] += signal[y]
    return signal * x - signal**2 / 2, y


@pytest.mark.parametrize("method", ["em", "confusion"])
def test_frequencies_are_estimated_without_labels(method: str) -> None:
    rng = np.random.default_rng(0)
    z, y = samples(rng, 4000, np.full(4, 0.25))
    new, _ = samples(rng, 4000, SHIFTED)
    made = estimate_frequencies(Scores(new, TREE), Scores(z, TREE), TREE.leaf_nodes[y], method)
    assert made == pytest.approx(SHIFTED, abs=0.04)
    assert made.sum() == pytest.approx(1)


def test_scores_that_favour_a_class_do_not_mislead_the_estimate() -> None:
    """A model that names huskies too often on the calibration samples does so on new ones, too."""
    rng = np.random.default_rng(5)
    favour = np.array([1.5, 0.0, -1.0, 0.0])
    z, y = samples(rng, 4000, np.full(4, 0.25))
    new, _ = samples(rng, 4000, SHIFTED)
    made = estimate_frequencies(Scores(new + favour, TREE), Scores(z + favour, TREE), TREE.leaf_nodes[y])
    assert made == pytest.approx(SHIFTED, abs=0.04)


def test_matching_samples_have_the_frequencies() -> None:
    rng = np.random.default_rng(1)
    label = np.append(rng.integers(4, size=20000), -1)
    rows = matching_rows(label, SHIFTED, 2)
    assert np.bincount(label[rows]) / len(rows) == pytest.approx(SHIFTED, abs=0.02)
    assert len(np.unique(rows)) == len(rows)
    with pytest.raises(DataError, match="at least 0 for each class"):
        matching_rows(label, np.array([1.0, -1.0, 0.0, 0.0]))


def test_a_guarantee_holds_at_the_place_of_use() -> None:
    """Calibrated as it is, it is broken there; with scores of new samples, none of which has a label, it is kept."""
    rng = np.random.default_rng(3)
    false = {"as it is": [], "matched": []}
    for _ in range(20):
        z, y = samples(rng, 2000, np.full(4, 0.25))
        new, truth = samples(rng, 2000, SHIFTED)
        for name, frequencies in (("as it is", None), ("matched", new)):
            made = calibrate_scores(
                z, TREE.leaf_nodes[y], TREE, 0.9, of="samples", temperature=1.0, frequencies=frequencies
            )
            t = made.thresholds[0].threshold
            false[name].append(outcomes_of(Scores(new, TREE), truth).losses(t).mean())
    assert np.mean(false["as it is"]) > 0.12
    assert np.mean(false["matched"]) == pytest.approx(0.1, abs=0.01)
    assert "drawn to have the class frequencies" in made.notes[0]


def test_what_matching_refuses() -> None:
    z, y = samples(np.random.default_rng(4), 300, np.full(4, 0.25))
    truth = TREE.leaf_nodes[y]
    with pytest.raises(ConfigError, match="without groups"):
        calibrate_scores(z, truth, TREE, frequencies=SHIFTED, groups=np.arange(300) % 60)
    with pytest.raises(DataError, match="4 shares"):
        calibrate_scores(z, truth, TREE, frequencies=[0.5, 0.5])
