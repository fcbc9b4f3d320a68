"""Large data: features stay on disk, whole branches choose, and mini-batches arrive where L-BFGS does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hace
from hace import HACEClassifier, Hierarchy
from hace.errors import ConfigError, DataError
from hace.fitting import large
from hace.fitting.inputs import Given, read
from hace.fitting.splits import split_samples
from hace.linear.features import RowsOnDisk

CLASSES, WIDTH = 40, 32
TREE = Hierarchy.from_paths([(f"order {c // 20}", f"genus {c // 4}", f"species {c}") for c in range(CLASSES)])


def blobs(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features (M, 32) and ids of classes, of which about a tenth cannot be told apart."""
    fixed = np.random.default_rng(1)
    centres = 0.6 * np.repeat(fixed.standard_normal((CLASSES // 4, WIDTH)), 4, axis=0)
    centres += 0.5 * fixed.standard_normal((CLASSES, WIDTH))
    label = np.random.default_rng(seed).permutation(np.arange(samples) % CLASSES)
    x = centres[label] + np.random.default_rng(seed + 1).standard_normal((samples, WIDTH))
    return x.astype(np.float32), np.array([f"species {c}" for c in label])


def given_of(samples: int, coarse: bool = False) -> Given:
    x, ids = blobs(samples)
    if coarse:
        ids[::3] = [f"order {int(name.split()[1]) // 20}" for name in ids[::3]]
    return read(x, ids, TREE)


def test_mini_batches_arrive_where_l_bfgs_does() -> None:
    x, ids = blobs(3_000)
    label = np.array([TREE.leaves.index(name) for name in ids])
    decay = 1e-4
    exact = HACEClassifier(TREE, loss="cross_entropy", weight_decay=decay).fit(x, ids)
    rate = large.rate_of(x, label, hace.CrossEntropyLoss(TREE), decay, 0)
    how = {"lr": rate, "epochs": large.epochs_of(len(x)), "batch_size": large.BATCH, "random_state": 0}
    rows = RowsOnDisk([x])
    other = HACEClassifier(TREE, loss="cross_entropy", weight_decay=decay, optimizer="sgd", **how).fit(
        rows, ids
    )

    def objective(clf: HACEClassifier) -> float:
        return (
            -clf.predict_log_proba(x)[np.arange(len(x)), label].mean()
            + decay / 2 * np.square(clf.coef_).sum()
        )

    # predict_log_proba has the order of classes_, which is sorted.
    label = np.searchsorted(exact.classes_, ids)
    assert objective(other) == pytest.approx(objective(exact), rel=0.03)
    assert (other.predict(x) == exact.predict(x)).mean() > 0.97


def test_features_on_disk_are_fitted_within_the_memory_and_the_model_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, ids = blobs(2_000)
    np.save(tmp_path / "x.npy", x)
    whole = hace.fit(x, ids, TREE, quiet=True)
    monkeypatch.setenv("HACE_MAX_MEMORY", "200K")
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(read(rows, ids, TREE).x, RowsOnDisk)
    streamed = hace.fit(rows, ids, TREE, quiet=True)
    said = " ".join(streamed.findings.notes)
    assert "chose the loss" in said
    assert "in mini-batches" in said
    assert "HACE_MAX_MEMORY" in said
    assert not any("mini-batches" in note for note in whole.findings.notes)
    assert streamed.findings.accuracy[0] == pytest.approx(whole.findings.accuracy[0], abs=0.03)
    assert (
        streamed.predict(x[:5], accuracy=None).answer.tolist()
        == streamed.predict(rows[:5], None).answer.tolist()
    )


def test_small_data_choose_as_a_whole() -> None:
    given = given_of(1_000)
    parts = split_samples(given.nodes, TREE, None, None)
    sample = large.sample_of(given, parts, None, 0)
    assert sample.given is given
    assert sample.parts is parts
    assert sample.share == 1
    assert not sample.note


@pytest.mark.parametrize("coarse", [False, True])
def test_many_classes_choose_by_whole_branches(monkeypatch: pytest.MonkeyPatch, coarse: bool) -> None:
    monkeypatch.setattr(large, "LOGITS", 20_000)
    given = given_of(2_000, coarse)
    parts = split_samples(given.nodes, TREE, None, None)
    sample = large.sample_of(given, parts, None, 0)
    part, own = sample.given.hierarchy, sample.given
    assert 4 <= part.num_leaves < CLASSES
    assert len(sample.parts.train) * part.num_leaves <= large.LOGITS
    assert sample.share == len(sample.parts.train) / len(parts.train)
    for leaf in part.leaves:  # with all its relatives
        genus = TREE.parents(leaf)[0]
        assert set(TREE.descendants(genus)) <= set(part.leaves)
    # Every label is what it was, and every training sample of the classes is there.
    place = {str(name): i for i, name in enumerate(given.names)}
    rows = [place[str(name)] for name in own.names]
    assert [TREE.nodes[v] for v in given.nodes[rows]] == [part.nodes[v] for v in own.nodes]
    inside = np.isin([TREE.nodes[v] for v in given.nodes[parts.train]], part.leaves)
    assert len(sample.parts.train) == inside.sum()
    assert f"{part.num_leaves} of {CLASSES} classes" in sample.note


def test_many_samples_choose_by_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "MOST", 500)
    given = given_of(2_000)
    parts = split_samples(given.nodes, TREE, None, None)
    groups = np.arange(2_000).astype(str)
    sample = large.sample_of(given, parts, groups, 0)
    assert sample.given.hierarchy is TREE
    assert len(sample.parts.train) == 500
    assert sample.groups is not None
    assert [f"row {name}" for name in sample.groups] == sample.given.names[:500]
    assert len(sample.parts.test) == len(parts.test)


def test_a_row_on_disk_that_is_not_finite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, ids = blobs(6_000)
    x[5_000, 3] = np.nan
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setenv("HACE_MAX_MEMORY", "600K")
    with pytest.raises(DataError, match="row 5000, in column 3"):
        read(np.load(tmp_path / "x.npy", mmap_mode="r"), ids, TREE)


def test_l_bfgs_refuses_features_on_disk() -> None:
    x, ids = blobs(100)
    with pytest.raises(ConfigError, match="optimizer must be 'sgd' or 'adamw' for features on disk"):
        HACEClassifier(TREE).fit(RowsOnDisk([x]), ids)


def test_no_more_samples_are_evaluated_than_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    given = given_of(6_000)
    parts = split_samples(given.nodes, TREE, np.array(["train", "test"] * 3_000), None)
    assert len(large.bounded(parts, TREE, 0).test) == 3_000
    monkeypatch.setattr(large, "_SCORED", 8 * TREE.num_nodes * 1_500)
    fewer = large.bounded(parts, TREE, 0)
    assert len(fewer.test) == 1_500
    assert set(fewer.test) <= set(parts.test)
    assert "1,500 of 3,000 test samples" in fewer.notes[-1]
