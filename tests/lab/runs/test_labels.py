"""What is known of the training labels: coarse, few or wrong ones, chosen once for search and final run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hace
from hace.data import Features
from hace.errors import ConfigError, DataError
from hace.lab.runs.config import DataConfig, LabelsConfig, ProbeConfig
from hace.lab.runs.samples import coarse_nodes, known_labels, make_task
from tests.hierarchies import hierarchies


def above(h: hace.Hierarchy, node: str, to: str) -> str:
    """The ancestor that a class is known to, by its definition: first parents upwards, never the root."""
    results = [node]
    while parents := [p for p in h.parents(results[-1]) if h.depth(p) > 0]:
        results.append(min(parents, key=h.index))
    return results[min(1, len(results) - 1)] if to == "parent" else results[-1]


@given(hierarchies(), st.integers(1, 12), st.sampled_from(["parent", "top"]), st.integers(0, 3), st.data())
def test_coarse_labels_are_ancestors_of_a_share_of_each_class(plain, count, to, seed, data) -> None:
    h = plain.build()
    nodes = np.repeat(h.leaf_nodes, count)
    share = data.draw(st.sampled_from([0.2, 0.5, 0.95]))
    known = known_labels(nodes, h, LabelsConfig(coarse=share, to=to), seed)
    quota = min(int(np.floor(share * count + 0.5)), count - 1)
    for leaf in h.leaves:
        ancestor = above(h, leaf, to)
        mine = [h.nodes[v] for v in known[nodes == h.index(leaf)]]
        assert mine.count(ancestor) == (count if ancestor == leaf else quota)
        assert mine.count(leaf) == (count if ancestor == leaf else count - quota)
    fine = known_labels(nodes, h, LabelsConfig(fine=2, to=to), seed)
    more = known_labels(nodes, h, LabelsConfig(fine=3, to=to), seed)
    changed = coarse_nodes(h, to)[nodes] != nodes
    assert ((fine == nodes) <= (more == nodes)).all()  # further labels are added
    assert (fine == nodes).sum() == (~changed).sum() + changed.sum() // count * min(2, count)


@given(hierarchies(), st.integers(2, 9), st.sampled_from(["parent", "anywhere"]), st.integers(0, 3))
def test_wrong_labels_are_other_classes(plain, count, within, seed) -> None:
    h = plain.build()
    nodes = np.repeat(h.leaf_nodes, count)
    known = known_labels(nodes, h, LabelsConfig(wrong=0.4, within=within), seed)
    assert (h.labels[known] >= 0).all()
    parent = coarse_nodes(h, "parent")
    for leaf in h.leaf_nodes:
        others = [
            v for v in h.leaf_nodes if v != leaf and (within == "anywhere" or parent[v] == parent[leaf])
        ]
        mine = known[nodes == leaf]
        assert (mine != leaf).sum() == (min(int(np.floor(0.4 * count + 0.5)), count - 1) if others else 0)
        assert set(mine) <= {leaf, *others}


def test_levels_by_number_and_name() -> None:
    h = hace.Hierarchy.from_paths(
        [("a", "b", "x"), ("a", "c", "y"), ("d", "e", "z")], level_names=["order", "family", "species"]
    )
    for to in (1, "1", "order", "top"):
        assert [h.nodes[v] for v in coarse_nodes(h, to)[h.leaf_nodes]] == ["a", "a", "d"]
    assert [h.nodes[v] for v in coarse_nodes(h, "family")[h.leaf_nodes]] == ["b", "c", "e"]
    for to in ("familiy", 3, 0, -1):
        with pytest.raises(
            ConfigError,
            match=r"labels\.to, --coarse-to\) must be one of parent, top, order, family, or a level",
        ):
            coarse_nodes(h, to)


def split(h: hace.Hierarchy, nodes: np.ndarray, start: int = 0) -> Features:
    x = np.arange(start, start + len(nodes), dtype=np.float32)[:, None]
    return Features(h, nodes, [str(i) for i in range(len(nodes))], x)


@pytest.fixture
def source() -> hace.Dataset[Features]:
    h = hace.Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "manx")])
    train, val = split(h, np.repeat(h.leaf_nodes, 20)), split(h, np.repeat(h.leaf_nodes, 5), 80)
    test = split(h, h.leaf_nodes)
    return hace.Dataset("pets", h, {"train": train, "val": val, "test": test})


def config(labels: LabelsConfig, **settings) -> ProbeConfig:
    return ProbeConfig(data=DataConfig(labels=labels), **settings)


@pytest.mark.parametrize(
    "labels", [LabelsConfig(0.8), LabelsConfig(fine=1), LabelsConfig(wrong=0.4)], ids=str
)
@pytest.mark.parametrize("validation", [0.1, "split"])
def test_a_search_sees_the_final_runs_labels_and_is_judged_by_true_ones(source, labels, validation) -> None:
    h = source.hierarchy
    true = np.concatenate([source["train"].nodes, source["val"].nodes])
    final = make_task(source, config(labels))
    search = make_task(source, config(labels, validation=validation, evaluate="val"))
    known = dict(zip(final.train.x[:, 0], final.train.nodes, strict=True))
    assert [known[i] for i in search.train.x[:, 0]] == search.train.nodes.tolist()
    assert search.val is not None
    assert search.val.nodes.tolist() == true[search.val.x[:, 0].astype(int)].tolist()
    seen = 100 if validation == "split" else 80  # a share leaves the val split alone
    assert sorted([*search.train.x[:, 0], *search.val.x[:, 0]]) == list(range(seen))
    if labels.fine:  # a search keeps the only label of every class
        assert search.unseen == final.unseen == []
        assert np.bincount(h.labels[final.train.nodes] + 1).tolist() == [96, 1, 1, 1, 1]
    assert final.labels == ("leaves" if labels.wrong else "nodes")


def test_dropping_leaves_the_samples_known_to_a_leaf(source) -> None:
    used, dropped = (make_task(source, config(LabelsConfig(0.8, drop=drop))) for drop in (False, True))
    fine = used.train.leaf_only()
    assert dropped.train.x.tolist() == used.train.x[fine].tolist()
    assert dropped.train.nodes.tolist() == used.train.nodes[fine].tolist()
    h = source.hierarchy
    coarse = split(h, np.array([h.index("dog")] * 4))
    alone = hace.Dataset("pets", h, {"train": coarse, "test": coarse})
    with pytest.raises(DataError, match="leaves no sample to train on"):
        make_task(alone, config(LabelsConfig(drop=True)))


def test_a_share_and_a_number_of_known_labels_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="coarse must be 0 where fine is given"):
        LabelsConfig(coarse=0.5, fine=1)
