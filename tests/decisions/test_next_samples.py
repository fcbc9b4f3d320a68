"""Which samples to label next: unsure ones, unlike each other."""

from __future__ import annotations

import numpy as np
import pytest

from hace.decisions.next_samples import next_samples
from hace.errors import ConfigError, DataError


def test_doubtful_samples_of_different_kinds() -> None:
    """Three kinds of doubt, one of them common, and a crowd of certain samples."""
    rng = np.random.default_rng(1)
    kinds = np.array([[4, 4, 0, 0], [0, 4, 4, 0], [0, 0, 4, 4], [9, 0, 0, 0]])
    kind = np.repeat([0, 1, 2, 3], [60, 10, 10, 300])
    z = kinds[kind] + 0.1 * rng.normal(size=(380, 4))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    chosen = next_samples(p, 3)
    assert sorted(kind[chosen.samples].tolist()) == [0, 1, 2]
    assert (np.diff(chosen.margins) >= 0).all()
    assert next_samples(p, 3).samples.tolist() == chosen.samples.tolist()
    margin_alone = np.argsort(np.diff(np.sort(p, axis=1))[:, -1])[:3]
    assert len(set(kind[margin_alone].tolist())) < 3  # what clusters are for


@pytest.mark.parametrize("samples", [1, 5, 40])
def test_as_many_as_asked_for_and_none_twice(samples: int) -> None:
    """Also where all samples are the same one, and where there is one class."""
    for p in (np.full((samples, 4), 0.25), np.ones((samples, 1))):
        for budget in (1, 4, samples, 100):
            chosen = next_samples(p, budget)
            assert len(set(chosen.samples.tolist())) == len(chosen.samples) == min(budget, samples)


def test_bad_input_is_named() -> None:
    p = np.full((3, 4), 0.25)
    with pytest.raises(DataError, match=r"probabilities must be \(M, n\), both at least 1. Got \(0, 4\)"):
        next_samples(p[:0], 1)
    with pytest.raises(DataError, match="probabilities must be finite, and 0 or more"):
        next_samples(p * np.nan, 1)
    with pytest.raises(ConfigError, match="budget must be"):
        next_samples(p, 0)
    with pytest.raises(ConfigError, match="seed must be a whole number from 0"):
        next_samples(p, 1, seed=-1)
