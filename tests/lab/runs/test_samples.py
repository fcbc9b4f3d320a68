"""What a run sees: held-out samples, joined splits, the shuffled control, labels above the leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hace
from hace.data import Features
from hace.errors import ConfigError, DataError
from hace.lab.runs.config import DataConfig, ProbeConfig
from hace.lab.runs.samples import data_of, held_out, make_task, own_split_note, with_own_split


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=80),
    st.floats(0, 0.99),
    st.integers(0, 3),
)
def test_held_out_samples_are_a_stratified_share(labels: list[int], share: float, seed: int) -> None:
    nodes = np.array(labels)
    rest, held = held_out(nodes, share, seed)
    assert sorted([*rest, *held]) == list(range(len(nodes)))
    for label in set(labels):
        count, out = labels.count(label), int((nodes[held] == label).sum())
        assert out == min(int(np.floor(share * count + 0.5)), count - 1)
    again = held_out(nodes, share, seed)
    assert np.array_equal(again[0], rest)


def test_another_seed_holds_out_other_samples() -> None:
    nodes = np.repeat(np.arange(10), 20)
    first, second = held_out(nodes, 0.1, 0)[1], held_out(nodes, 0.1, 1)[1]
    assert len(first) == len(second) == 20
    assert not np.array_equal(first, second)


def features(h: hace.Hierarchy, labels: list[str], start: int = 0) -> Features:
    nodes = np.array([h.index(label) for label in labels])
    names = [f"s{start + i}" for i in range(len(labels))]
    x = np.arange(start, start + len(labels), dtype=np.float32)[:, None]
    return Features(h, nodes, names, x)


@pytest.fixture
def source() -> hace.Dataset[Features]:
    h = hace.Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "manx")])
    train = features(h, ["husky", "beagle", "tabby", "manx"] * 5)
    val = features(h, ["husky"] * 2, start=20)
    test = features(h, ["manx", "tabby"], start=30)
    return hace.Dataset("pets", h, {"train": train, "val": val, "test": test})


def test_training_samples_are_those_of_train_and_val(source: hace.Dataset[Features]) -> None:
    task = make_task(source, ProbeConfig())
    assert task.train.x[:, 0].tolist() == list(range(22))
    assert task.train.names[-1] == "s21"
    assert task.val is None
    assert task.evaluated is source["test"]
    assert task.unseen == []
    assert task.labels == "leaves"


def test_a_share_is_of_the_training_samples_and_leaves_the_val_split_alone(
    source: hace.Dataset[Features],
) -> None:
    """It was pooled into training, and the share held out of everything."""
    task = make_task(source, ProbeConfig(validation=0.2, evaluate="val"))
    assert task.val is not None
    assert task.evaluated is task.val
    assert len(task.val) == 4
    assert sorted([*task.train.x[:, 0], *task.val.x[:, 0]]) == list(range(20))
    assert task.targets(task.train).tolist() == task.train.labels.tolist()


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ("split", r"the val split, 2 samples, is held out"),
        (
            0.2,
            r"20% of the 20 training samples are held out; the val split, 2 samples, is neither trained on",
        ),
        (0.0, r"the val split, 2 samples, is trained on too"),
    ],
)
def test_what_becomes_of_the_val_split_is_said(
    source: hace.Dataset[Features], validation: Any, words: str
) -> None:
    assert own_split_note(source, validation).startswith(words)
    without = hace.Dataset("pets", source.hierarchy, {"train": source["train"], "test": source["test"]})
    assert own_split_note(without, validation) == ""


def test_the_val_split_is_held_out_where_nothing_else_is(source: hace.Dataset[Features]) -> None:
    assert with_own_split(source, ProbeConfig()).validation == "split"
    assert with_own_split(source, ProbeConfig(validation=0.1)).validation == 0.1
    without = hace.Dataset("pets", source.hierarchy, {"train": source["train"], "test": source["test"]})
    assert with_own_split(without, ProbeConfig()).validation == 0


def test_the_control_trains_on_another_tree_and_is_judged_by_the_true_one(
    source: hace.Dataset[Features],
) -> None:
    h = source.hierarchy
    trees = [make_task(source, ProbeConfig(data=DataConfig(shuffle=s))).tree for s in range(8)]
    assert {t.leaves for t in trees} == {h.leaves}  # labels stay what they are
    assert any(t.parents("husky") != h.parents("husky") for t in trees)
    assert make_task(source, ProbeConfig(data=DataConfig(shuffle=1))).hierarchy is h


def test_labels_above_the_leaves_are_trained_as_nodes() -> None:
    config = DataConfig("synthetic-features", options={"classes": 6, "train": 10, "coarse": 0.5})
    source = data_of(config)
    task = make_task(source, ProbeConfig(data=config))
    assert task.labels == "nodes"
    assert task.targets(task.train).tolist() == task.train.nodes.tolist()
    with pytest.raises(DataError, match=r"data\.shuffle makes another tree over the leaves"):
        make_task(source, ProbeConfig(data=DataConfig(shuffle=1)))


def test_held_out_samples_are_known_to_a_leaf() -> None:
    """Whether the best class is right cannot be told from a coarse label, which trains instead."""
    config = DataConfig("synthetic-features", options={"classes": 6, "train": 10, "coarse": 0.5})
    source = data_of(config)
    task = make_task(source, ProbeConfig(data=config, validation=0.4))
    assert task.val is not None
    assert 0 < len(task.val) == len(task.val.leaf_only())
    whole = source["train"]
    assert len(task.train) + len(task.val) == len(whole)
    labels = source.hierarchy.labels
    assert (labels[task.train.nodes] < 0).sum() == (labels[whole.nodes] < 0).sum() > 0


def test_a_val_split_counts_where_it_is_known_to_a_leaf(source: hace.Dataset[Features]) -> None:
    data = source
    mixed = features(data.hierarchy, ["husky", "dog"], start=20)
    given = hace.Dataset("pets", data.hierarchy, {**{s: data[s] for s in data.splits}, "val": mixed})
    task = make_task(given, ProbeConfig(validation="split"))
    assert task.val is not None
    assert task.val.names == ["s20"]
    coarse = features(data.hierarchy, ["dog"], start=20)
    given = hace.Dataset("pets", data.hierarchy, {**{s: data[s] for s in data.splits}, "val": coarse})
    with pytest.raises(DataError, match=r"known to a leaf\. Got none"):
        make_task(given, ProbeConfig(validation="split"))


def test_nothing_to_hold_out(source: hace.Dataset[Features]) -> None:
    with pytest.raises(DataError, match="holds out none"):
        make_task(source, ProbeConfig(validation=0.01))


def test_a_folder_of_features_brings_its_own_hierarchy(tmp_path) -> None:
    with pytest.raises(ConfigError, match="has its own hierarchy"):
        data_of(DataConfig("features", root=str(tmp_path), hierarchy="h.csv"))


def test_joined_images_keep_boxes_and_refuse_a_mixture() -> None:
    import torch

    h = hace.Hierarchy.flat(["a", "b"])
    pixels = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    boxes = np.array([[0, 0, 2, 2], [1, 1, 2, 2]])
    one = hace.Samples(h, np.array([0, 1]), ["a", "b"], pixels, boxes=boxes)
    both = one.joined([one, one.select([1])])
    assert both.names == ["a", "b", "b"]
    assert torch.equal(both.pixels, pixels[[0, 1, 1]])
    assert both.boxes.tolist() == boxes[[0, 1, 1]].tolist()
    with pytest.raises(DataError, match="must be cropped alike"):
        one.joined([one, hace.Samples(h, np.array([0]), ["c"], pixels[:1])])
