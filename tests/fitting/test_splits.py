"""Splits never cut a group, never take a class's last training sample, and hold out no coarse label."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hace import DataError, Hierarchy
from hace.fitting.splits import FOLDS, MORE_FOLDS, folds_of, split_samples

TREE = Hierarchy.from_paths([("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")])


@settings(max_examples=30, deadline=None)
@given(st.integers(20, 400), st.integers(2, 60), st.integers(0, 5))
def test_groups_are_whole(samples: int, groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = TREE.leaf_nodes[rng.integers(0, 4, samples)]
    together = rng.integers(0, groups, samples).astype(str)
    parts = split_samples(nodes, TREE, None, together, seed)
    homes = [set(together[part].tolist()) for part in (parts.train, parts.calibration, parts.test)]
    assert sum(map(len, homes)) == len(set.union(*homes))
    fold = folds_of(nodes, TREE, together, seed)
    assert all(len(set(fold[together == name].tolist())) == 1 for name in set(together.tolist()))
    assert set(nodes[parts.train].tolist()) == set(nodes.tolist())


def test_what_is_held_out_has_class_labels_and_leaves_each_class_a_sample() -> None:
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, TREE.num_nodes, 600)
    parts = split_samples(nodes, TREE, None, None)
    held = np.concatenate([parts.calibration, parts.test])
    assert len(held) > 100
    assert (TREE.labels[nodes[held]] >= 0).all()
    assert np.isin(TREE.leaf_nodes, nodes[parts.train]).all()
    everything = np.sort(np.concatenate([parts.train, held]))
    np.testing.assert_array_equal(everything, np.arange(600))


def test_own_splits_stay_as_they_are() -> None:
    nodes = TREE.leaf_nodes[np.arange(300) % 4]
    own = np.array(["training", "valid", "test"])[np.arange(300) // 4 % 3]
    parts = split_samples(nodes, TREE, own, None)
    np.testing.assert_array_equal(own[parts.train], "training")
    np.testing.assert_array_equal(own[parts.calibration], "valid")
    assert parts.own == {"val", "test"}
    without = split_samples(nodes, TREE, np.where(own == "valid", "train", own), None)
    np.testing.assert_array_equal(own[without.test], "test")
    assert len(without.calibration) >= 20


def test_few_samples_are_all_for_training() -> None:
    parts = split_samples(TREE.leaf_nodes[np.arange(12) % 4], TREE, None, None)
    assert len(parts.train) == 12
    assert "too few" in parts.notes[0]
    with pytest.raises(DataError, match="must have class labels"):
        split_samples(np.full(12, TREE.index("a")), TREE, None, None)


def test_folds_spread_classes_evenly() -> None:
    rng = np.random.default_rng(0)
    together = rng.integers(0, 90, 900)
    nodes = TREE.leaf_nodes[together % 4]
    fold = folds_of(nodes, TREE, together.astype(str))
    counts = np.array([np.bincount(fold[nodes == v], minlength=MORE_FOLDS) for v in TREE.leaf_nodes])
    assert (counts / counts.sum(axis=1, keepdims=True)).min() > 0.1


def test_folds_of_few_groups_are_of_like_size() -> None:
    """Ten classes with one or two groups each: no fold holds the first group of every class."""
    flat = Hierarchy.flat([str(c) for c in range(10)])
    group = np.repeat(np.arange(15), 30)
    fold = folds_of(flat.leaf_nodes[group % 10], flat, group)
    assert np.bincount(fold).tolist() == [90] * MORE_FOLDS


def test_few_samples_with_a_class_label_have_more_folds() -> None:
    nodes = TREE.leaf_nodes[np.arange(400) % 4]
    assert folds_of(nodes, TREE, None).max() + 1 == FOLDS
    coarse = np.where(np.arange(400) < 100, nodes, TREE.index("a"))
    assert folds_of(coarse, TREE, None).max() + 1 == MORE_FOLDS
