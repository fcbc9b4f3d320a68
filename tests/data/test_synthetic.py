"""The synthetic dataset: seeded, ragged, learnable as far as `signal` says, and alike where the tree is."""

from __future__ import annotations

import numpy as np
import pytest

import hace
from hace.data import Features, synthetic_features, synthetic_hierarchy, synthetic_images
from hace.data.synthetic import diffuse, patterns
from hace.errors import ConfigError


def nearest_mean(train: Features, test: Features) -> np.ndarray:
    """Labels of the nearest class mean: a classifier of three lines."""
    means = np.stack([train.x[train.labels == c].mean(axis=0) for c in range(train.hierarchy.num_leaves)])
    return ((test.x[:, None] - means) ** 2).sum(-1).argmin(axis=1)


@pytest.mark.parametrize("classes", [2, 3, 40, 300])
def test_the_tree_is_ragged_and_seeded(classes: int) -> None:
    h = synthetic_hierarchy(classes, seed=1)
    assert (h.num_leaves, h.rooted, h.is_tree) == (classes, True, True)
    assert h == synthetic_hierarchy(classes, seed=1)
    if classes > 3:
        assert len(set(h.depths[h.leaf_nodes].tolist())) > 2
        assert h != synthetic_hierarchy(classes, seed=2)
        children = np.bincount(h.edges[:, 0])
        assert set(children[children > 0].tolist()) <= {2, 3, 4, 5}


def test_features_are_seeded_and_signal_decides() -> None:
    first, again, other = (synthetic_features(classes=15, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    accuracy = []
    for signal in (0.0, 0.5, 2.0):
        data = synthetic_features(classes=15, signal=signal)
        accuracy.append(float((nearest_mean(data["train"], data["test"]) == data["test"].labels).mean()))
    assert accuracy[0] < 0.15
    assert accuracy[0] + 0.1 < accuracy[1] < accuracy[2] - 0.1
    assert accuracy[2] > 0.95


def test_a_nuisance_adds_variance_in_a_quarter_of_the_directions() -> None:
    plain, varied = (synthetic_features(classes=5, dim=8, train=400, nuisance=n) for n in (0.0, 6.0))
    residuals = []
    for data in (plain, varied):
        x = data["train"].x.reshape(5, 400, 8)
        residuals.append(np.linalg.eigvalsh(np.cov((x - x.mean(axis=1, keepdims=True)).reshape(-1, 8).T)) * 8)
    assert np.allclose(residuals[0], 1, atol=0.2)
    assert np.allclose(residuals[1][:6], 1, atol=0.2)
    assert np.allclose(residuals[1][6:], 37, rtol=0.2)
    with pytest.raises(ConfigError, match=r"nuisance must be 0 or more\. Got -1\."):
        synthetic_features(nuisance=-1)


def test_neighbours_in_the_tree_are_neighbours_in_space() -> None:
    data = synthetic_features(classes=60, dim=256, train=5, test=1)
    h = data.hierarchy
    means = np.stack([data["train"].x[data["train"].labels == c].mean(axis=0) for c in range(60)])
    a, b = np.triu_indices(60, 1)
    space = np.linalg.norm(means[a] - means[b], axis=1)
    assert np.corrcoef(space, h.distances(a, b, "edges"))[0, 1] > 0.5


def test_diffusion_on_a_dag_starts_at_the_mean_of_parents() -> None:
    h = hace.Hierarchy.from_edges([("a", "c"), ("b", "c"), ("b", "d")])
    steps = np.zeros(4)
    steps[[h.index("a"), h.index("b"), h.index("c")]] = 1.0, 3.0, 10.0
    values = diffuse(h, steps)
    assert values[h.index("c")] == 12.0
    assert values[h.index("d")] == 3.0


def test_images_show_their_class() -> None:
    data = synthetic_images(classes=12, train=20, test=10)
    train, test = (
        {"x": s.pixels.flatten(1).numpy().astype(np.float32), "s": s} for s in data.splits.values()
    )
    splits = [Features(data.hierarchy, part["s"].nodes, part["s"].names, part["x"]) for part in (train, test)]
    assert (nearest_mean(*splits) == splits[1].labels).mean() > 0.8
    assert data.fingerprint == synthetic_images(classes=12, train=20, test=10).fingerprint
    assert data.fingerprint != synthetic_images(classes=12, train=20, test=10, signal=0.5).fingerprint


def test_patterns_get_finer_with_depth() -> None:
    h = hace.Hierarchy.from_parents([-1, *range(7)])  # one path
    rough = np.zeros(8)
    for seed in range(20):
        fields = patterns(h, np.random.default_rng(seed))
        rough += np.abs(np.diff(fields, axis=-1)).mean((1, 2, 3)) / fields.std((1, 2, 3))
    assert rough[0] < rough[3] < rough[7]


def test_coarse_labels_are_parents_in_training_only() -> None:
    data = synthetic_features(classes=20, coarse=0.3)
    fine = synthetic_features(classes=20)
    h, nodes, leaves = data.hierarchy, data["train"].nodes, fine["train"].nodes
    assert np.array_equal(data["train"].x, fine["train"].x)
    moved = nodes != leaves
    assert 0.2 < moved.mean() < 0.4
    assert np.array_equal(nodes[moved], h.parent_nodes[leaves[moved]])
    assert len(data["test"].labels) == 400


def test_your_own_hierarchy() -> None:
    h = hace.cifar100_hierarchy()
    data = synthetic_images(h, root_node=True, train=2, test=1)
    assert data.hierarchy.num_nodes == 121
    assert len(data["train"]) == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": 1}, "classes must be from 2 to 100,000. Got 1"),
        ({"signal": -1.0}, "signal must be 0 or more. Got -1.0"),
        ({"signal": float("nan")}, "signal must be 0 or more. Got nan"),
        ({"coarse": 1.5}, "coarse must be from 0 to 1. Got 1.5"),
        ({"dim": 0}, "dim must be at least 1. Got 0"),
        ({"train": 0}, "train must be at least 1. Got 0"),
        ({"seed": -1}, "seed must be 0 or more. Got -1"),
    ],
)
def test_options_that_do_not_fit(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        hace.load_dataset("synthetic-features", **options)


def test_a_dataset_is_shown_in_one_line() -> None:
    data = synthetic_features("animals", train=2, test=1)
    assert repr(data) == "<Dataset synthetic-features: 61 classes, samples: train 122, test 61>"
    assert repr(data["test"]) == "<Features: 61 samples of 61 classes>"
