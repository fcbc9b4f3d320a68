"""A hierarchy as an object: immutable, comparable, pickled, printed."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from hace import Hierarchy
from tests.hierarchies import ANIMALS, DAG_FOREST, DIAMOND, FOREST, NAMED, TOP_NOT_ROOT, Plain
from tests.reference import structure as oracle

named = pytest.mark.parametrize("plain", NAMED.values(), ids=NAMED)


@named
def test_pickle_copy_and_hash(plain: Plain) -> None:
    h = Hierarchy.from_edges(
        plain.edges,
        nodes=plain.nodes,
        leaves=plain.leaves,
        rooted=plain.rooted,
        names={plain.nodes[-1]: "<shown>"},
        level_names=[f"L{k}" for k in range(1, oracle.max_depth(plain) + 1)],
    )
    for other in (pickle.loads(pickle.dumps(h)), copy.copy(h), copy.deepcopy(h)):
        assert other == h
        assert hash(other) == hash(h)
        assert (other.nodes, other.names, other.leaves) == (h.nodes, h.names, h.leaves)
        assert (other.level_names, other.rooted) == (h.level_names, h.rooted)
        with pytest.raises(ValueError, match="read-only"):
            other.leaf_nodes[0] = 0


def test_what_makes_two_hierarchies_differ() -> None:
    h = ANIMALS.build()
    lines = {"leaves": ANIMALS.leaves}
    named = Hierarchy.from_edges(ANIMALS.edges, names={"dog": "Dog"}, **lines)
    leveled = Hierarchy.from_edges(ANIMALS.edges, level_names=["genus", "breed"], **lines)
    assert h != named
    assert h != leveled
    assert h.fingerprint == named.fingerprint == leveled.fingerprint  # results do not depend on them
    others = [
        Hierarchy.from_edges(ANIMALS.edges),
        Hierarchy.from_edges(ANIMALS.edges, rooted=False, **lines),
        Hierarchy.from_edges([*ANIMALS.edges[:-1], ("dog", "siamese")], **lines),
        Hierarchy.from_edges([*ANIMALS.edges, ("animal", "husky")], **lines),
    ]
    prints = {h.fingerprint, *(other.fingerprint for other in others)}
    assert len(prints) == 5
    assert h != "animal"


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from hace import Hierarchy; print(Hierarchy.from_edges([('a', 'b'), ('a', '\\u00fc')]).fingerprint)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Hierarchy.from_edges([("a", "\u00fc"), ("a", "b")]).fingerprint == out
    # Run ids and caches depend on it: it must not change from one version to the next either.
    assert out == "92aec51538213a5d8a15ede1c8af2512c8af2fb0439ced8e0424387a36ce90bd"


ARRAYS = ("edges", "leaf_nodes", "labels", "depths", "heights", "parent_nodes", "subtree_ends")


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_only(name: str) -> None:
    array = getattr(ANIMALS.build(), name)
    assert array.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 0


@pytest.mark.parametrize("name", [*ARRAYS, "nodes", "leaves", "max_depth", "new"])
def test_attributes_are_fixed(name: str) -> None:
    h = ANIMALS.build()
    before = {key: getattr(h, key) for key in ("leaves", "max_depth")}
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(h, name, None)
    with pytest.raises(AttributeError, match="cannot be changed"):
        delattr(h, name)
    assert before == {key: getattr(h, key) for key in before}


def test_answers_can_be_changed_without_harm() -> None:
    h = ANIMALS.build()
    for answer in (*h.reachability(), h.level_nodes(1), h.distance_matrix()):
        before = answer.copy()
        answer[...] = 0
    assert h.distance_matrix().tolist() == before.tolist()
    assert h.level_nodes(1).tolist() == [h.index(oracle.carried(ANIMALS, v, 1)) for v in h.nodes]


# ------------------------------------------------------------------ how it shows itself


def test_repr_is_one_line() -> None:
    assert repr(ANIMALS.build()) == "<Hierarchy tree: 7 nodes, 4 leaves, depth 2>"
    assert repr(FOREST.build()) == "<Hierarchy forest: 9 nodes, 6 leaves, depth 3>"
    assert repr(DIAMOND.build()) == "<Hierarchy DAG: 6 nodes, 3 leaves, depth 2>"
    assert "1,000 nodes" in repr(Hierarchy.flat(range(1000)))


def test_summary_of_a_tree_with_oddities() -> None:
    edges = [("life", "dog"), ("life", "cat"), ("dog", "d1"), ("dog", "d2"), ("cat", "c1")]
    names = {"d1": "spotted", "c1": "spotted"}
    h = Hierarchy.from_edges(edges, names=names, level_names=["genus", "species"])
    assert h.summary().splitlines() == [
        "Hierarchy tree: 6 nodes, 3 leaves, depth 2",
        "  3 inner nodes, 5 edges, root 'life'",
        "  children of an inner node: 1 to 2, median 2",
        "  unary nodes (one child): 1 ('cat')",
        "  nodes with several parents: 0",
        "  repeated display names: 1 ('spotted')",
        f"  fingerprint: {h.fingerprint[:16]}",
        "",
        "  level    nodes   leaves",
        "      0        1        0  ########",
        "      1        2        0  ################  genus",
        "      2        3        3  ########################  species",
    ]


def test_summary_of_other_kinds() -> None:
    text = DAG_FOREST.build().summary()
    assert "nodes with several parents: 3 ('b', 'c', 'y')" in text
    assert "4 tops, no root" in text
    assert "children of an inner node: none" in Hierarchy.flat(["a", "b"]).summary()
    assert "1 top, no root" in TOP_NOT_ROOT.build().summary()
    deep = Hierarchy.from_parents(np.arange(-1, 99)).summary()
    assert deep.endswith("... and 70 more levels")
