"""Splits and guarantees for the place of use, from unlabelled samples of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hace
from hace import ConfigError, DataError, Hierarchy
from hace.fitting.place_of_use import alike_groups

H = Hierarchy.from_paths([(f"g{i // 3}", f"c{i}") for i in range(9)])


def bursts(rng: np.random.Generator, photos: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of bursts of photos: a photo is far from its class, the shots of a burst are near to each other."""
    y = np.repeat(rng.integers(9, size=photos), size)
    centres = np.random.default_rng(9).normal(size=(9, 24))
    photo = np.repeat(1.8 * rng.normal(size=(photos, 24)), size, axis=0)
    return centres[y] + photo + 0.3 * rng.normal(size=(len(y), 24)), y, np.repeat(np.arange(photos), size)


def false_answers(model: hace.Model, x: np.ndarray, y: np.ndarray, accuracy: float) -> float:
    """The share of new samples with a false answer."""
    answer = model.predict(x, accuracy=accuracy).answer
    return float(
        np.mean([a is not None and a not in (f"c{t}", f"g{t // 3}") for a, t in zip(answer, y, strict=True)])
    )


def test_samples_of_a_burst_are_linked() -> None:
    rng = np.random.default_rng(0)
    x, y, burst = bursts(rng, 60, 4)
    rows = (x - x.mean(axis=0)) / np.linalg.norm(x - x.mean(axis=0), axis=1, keepdims=True)
    groups = alike_groups(rows, y)
    assert all(len(set(y[g == name])) == 1 for g in groups for name in np.unique(g))
    sizes = [len(np.unique(g)) for g in groups]
    assert sizes == sorted(sizes, reverse=True)
    best = min(groups, key=lambda g: abs(len(np.unique(g)) - 60))
    same = (best[:, None] == best[None]) == (burst[:, None] == burst[None])
    assert same.mean() > 0.98


def test_a_fit_for_new_samples_keeps_the_guarantee_that_a_random_split_breaks(tmp_path: Path) -> None:
    rates: dict[str, list[float]] = {"random": [], "for new": []}
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x, y, _ = bursts(rng, 90, 6)
        new, truth, _ = bursts(rng, 1200, 1)
        names = np.array(H.leaves)[y]
        plain = hace.fit(x, names, H, quiet=True, seed=seed)
        there = hace.fit(x, names, H, new=new[:600], quiet=True, seed=seed)
        rates["random"].append(false_answers(plain, new[600:], truth[600:], 0.8))
        rates["for new"].append(false_answers(there, new[600:], truth[600:], 0.8))
        assert any("were kept together" in note for note in there.findings.notes), there.findings.notes
        assert plain.check(new[600:], accuracy=0.8).state == "broken"
        assert (
            there.check(new[600:], accuracy=0.8).comparison.p_values["similarity"]
            > plain.check(new[600:], accuracy=0.8).comparison.p_values["similarity"]
        )
    assert np.mean(rates["random"]) > 0.25
    assert np.mean(rates["for new"]) < 0.23
    there.save(tmp_path / "m.hace")
    again = hace.load(tmp_path / "m.hace")
    assert again.similarity(new[:9]).tolist() == there.similarity(new[:9]).tolist()
    assert again.check(new[600:], accuracy=0.8).to_dict() == there.check(new[600:], accuracy=0.8).to_dict()
    assert 0.3 < np.mean(there.similarity(x)) <= 1.0


def test_own_splits_stay_and_the_distance_is_told() -> None:
    """Of the user's own test samples that are unlike the held-out ones, without a label: random bursts against new photos."""
    rng = np.random.default_rng(5)
    x, y, _ = bursts(rng, 80, 6)
    new, truth, _ = bursts(rng, 300, 1)
    names = np.array(H.leaves)[np.concatenate([y, truth])]
    split = np.array(["train"] * len(y) + ["test"] * len(truth))
    model = hace.fit(np.concatenate([x, new]), names, H, split=split, quiet=True)
    assert "BROKEN" in model.findings.watch.sentence
    with pytest.raises(DataError, match="24 features"):
        hace.fit(x, np.array(H.leaves)[y], H, new=new[:, :5], quiet=True)


def test_calibration_for_new_samples_needs_the_training_samples() -> None:
    rng = np.random.default_rng(6)
    x, y, burst = bursts(rng, 120, 3)
    names = np.array(H.leaves)[y]
    train = burst % 2 == 0
    clf = hace.HACEClassifier(H).fit(x[train], names[train])
    with pytest.raises(ConfigError, match="new must come with training"):
        clf.calibrate(x[~train], names[~train], new=x)
    with pytest.raises(ConfigError, match="new must come without groups"):
        clf.calibrate(x[~train], names[~train], burst[~train], training=x[train], new=x)
    clf.calibrate(x[~train], names[~train], training=x[train], new=x[~train])
    assert "similarity" in clf.check(x[~train], accuracy=0.8).comparison.p_values
