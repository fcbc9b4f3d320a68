"""New hierarchies from a hierarchy: root on and off, subsets, unary nodes collapsed, classes shuffled."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hace import Hierarchy, HierarchyError
from hace.hierarchy.distances import DISTANCES
from tests.hierarchies import ANIMALS, CHAIN, FOREST, NAMED, ONE_LEAF, UNARY, Plain, hierarchies
from tests.hierarchies import plain as read
from tests.reference import structure as oracle

named = pytest.mark.parametrize("plain", NAMED.values(), ids=NAMED)


def full(plain: Plain) -> Hierarchy:
    """With display names and level names, which must survive."""
    return Hierarchy.from_edges(
        plain.edges,
        nodes=plain.nodes,
        leaves=plain.leaves,
        rooted=plain.rooted,
        names={v: v.upper() for v in plain.nodes},
        level_names=[f"L{k}" for k in range(1, oracle.max_depth(plain) + 1)],
    )


def check_same_places(h: Hierarchy, other: Hierarchy) -> None:
    """What the two have in common has the same depth, height, levels and distances."""
    assert other.leaves == h.leaves
    assert (other.max_depth, other.level_names) == (h.max_depth, h.level_names)
    common = [v for v in h.nodes if v in set(other.nodes)]
    for v in common:
        assert (other.depth(v), other.height(v), other.name(v)) == (h.depth(v), h.height(v), h.name(v))
    # A short cut from the root goes with the root, and only the length of paths can tell.
    has_short_cut = any(
        len(v.parents(u)) > 1 and v.tops[0] in v.parents(u) for v in (h, other) for u in common
    )
    for distance in DISTANCES[:2] if has_short_cut else DISTANCES:
        assert other.max_distance(distance) == h.max_distance(distance)
        assert other.distance_matrix(distance).tolist() == h.distance_matrix(distance).tolist()
        for v in common:
            distances = [(other.distance(v, u, distance), h.distance(v, u, distance)) for u in common]
            assert all(a == b for a, b in distances)
    for k in range(1, h.max_depth + 1):
        assert set(other.level(k)) == set(h.level(k))
        if h.is_tree:
            ours = [h.nodes[i] for i in h.level_nodes(k)]
            theirs = [other.nodes[i] for i in other.level_nodes(k)]
            assert [v for v, u in zip(ours, h.nodes, strict=True) if u in common] == [
                v for v, u in zip(theirs, other.nodes, strict=True) if u in common
            ]


@named
def test_without_root_changes_no_place(plain: Plain) -> None:
    h = full(plain)
    bare = h.without_root()
    if not plain.rooted:
        assert bare is h
        return
    assert bare.nodes == h.nodes[1:]
    assert not bare.rooted
    assert bare.num_edges == h.num_edges - len(h.children(h.nodes[0]))
    check_same_places(h, bare)


@pytest.mark.slow
@given(plain=hierarchies(10))
def test_a_root_on_and_off_again(plain: Plain) -> None:
    h = full(plain)
    bare = h.without_root()
    check_same_places(h, bare)
    rooted = bare.with_root("everything")
    check_same_places(bare, rooted)
    assert rooted.nodes == ("everything", *bare.nodes)
    assert rooted.rooted
    assert rooted.without_root() == bare
    assert rooted.with_root("another") is rooted


def test_a_root_with_a_single_child() -> None:
    bare = UNARY.build().without_root()
    assert (bare.rooted, bare.tops, bare.depth("a")) == (False, ("a",), 1)
    only = ONE_LEAF.build().without_root()
    assert (only.nodes, only.depth("only"), only.with_root().depth("only")) == (("only",), 1, 1)
    assert CHAIN.build().without_root().without_root().nodes == ("b", "c", "d", "e")


def test_with_root_refuses_an_id_that_exists() -> None:
    with pytest.raises(HierarchyError, match="id 'owl' is in the hierarchy already"):
        FOREST.build().with_root("owl")


@given(plain=hierarchies(), data=st.data())
def test_subset(plain: Plain, data: st.DataObject) -> None:
    h = full(plain)
    subset = data.draw(st.permutations(plain.leaves))[: data.draw(st.integers(1, len(plain.leaves)))]
    small = h.subset(subset)
    above = set().union(*(oracle.ancestors(plain, leaf) for leaf in subset))
    assert set(small.nodes) == above
    assert small.leaves == tuple(subset)
    assert small.rooted == h.rooted
    expected = [edge for edge in plain.edges if edge[1] in above]
    assert {(small.nodes[p], small.nodes[c]) for p, c in small.edges} == set(expected)
    assert [small.depth(v) for v in small.nodes] == [h.depth(v) for v in small.nodes]
    assert small.names == tuple(map(h.name, small.nodes))
    assert small.level_names == h.level_names[: small.max_depth]


def test_subset_of_everything_is_the_same() -> None:
    h = full(ANIMALS)
    assert h.subset(h.leaves) == h
    assert h.subset(h.leaves[::-1]) != h


@given(plain=hierarchies())
def test_collapse_unary(plain: Plain) -> None:
    h = full(plain)
    small = h.collapse_unary()
    below = oracle.children(plain)
    assert small.leaves == h.leaves
    assert all(len(small.children(v)) != 1 for v in small.nodes)
    assert small.collapse_unary() == small
    assert not small.rooted or h.rooted
    remaining = set(small.nodes)
    for v in small.nodes:  # ancestors do not change
        assert set(small.ancestors(v)) == (oracle.ancestors(plain, v) - {v}) & remaining
        assert small.name(v) == h.name(v)
    if h.is_tree:
        assert remaining == {v for v in plain.nodes if len(below[v]) != 1}
    if all(len(children) != 1 for children in below.values()):
        assert small.fingerprint == h.fingerprint


def test_collapse_unary_by_hand() -> None:
    h = UNARY.build().collapse_unary()
    assert h.nodes == ("a", "b2", "leaf2", "leaf1", "leaf3")
    assert (h.rooted, h.children("a"), h.level_names) == (True, ("b2", "leaf3"), None)
    chain = CHAIN.build().collapse_unary()
    assert (chain.nodes, chain.rooted, chain.depth("e")) == (("e",), False, 1)


def test_collapse_unary_where_two_ways_become_one() -> None:
    h = read(["root: x y", "x: c", "y: c", "c: p q"]).build().collapse_unary()
    assert h.nodes == ("c", "p", "q")  # root has the single child c once x and y are gone


@given(plain=hierarchies(), seed=st.integers(0, 2**32))
def test_shuffled_keeps_the_shape(plain: Plain, seed: int) -> None:
    h = full(plain)
    other = h.shuffled(seed)
    assert other == h.shuffled(seed)
    assert other.leaves == h.leaves
    inner = {v for v in plain.nodes if v not in plain.leaves}
    inner_edges = {edge for edge in plain.edges if edge[1] in inner}
    assert {(p, c) for p, c in named_edges(other) if c in inner} == inner_edges
    ours, theirs = places(h), places(other)
    assert ours == theirs
    assert {v: other.name(v) for v in other.nodes} == {v: h.name(v) for v in h.nodes}
    assert (other.rooted, other.max_depth, other.level_names) == (h.rooted, h.max_depth, h.level_names)


def named_edges(h: Hierarchy) -> set[tuple[str, str]]:
    return {(h.nodes[p], h.nodes[c]) for p, c in h.edges}


def places(h: Hierarchy) -> Counter[tuple[str, ...]]:
    """How many classes are below each set of parents."""
    return Counter(tuple(sorted(h.parents(leaf))) for leaf in h.leaves)


def test_seeds_shuffle_differently() -> None:
    h = Hierarchy.from_paths([(f"g{i // 5}", f"c{i}") for i in range(50)])
    assert len({h.shuffled(seed).fingerprint for seed in range(20)} | {h.fingerprint}) == 21
    assert h.shuffled(np.int64(3)) == h.shuffled(3)


@pytest.mark.parametrize("seed", [-1, 1.5, None, True, "1"])
def test_a_seed_must_be_a_natural_number(seed: object) -> None:
    with pytest.raises(HierarchyError, match="seed must be an integer from 0 on"):
        ANIMALS.build().shuffled(seed)


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ([], "leaves is empty"),
        (["huskey"], "leaves names ids that are not in the hierarchy: 'huskey'. Did you mean 'husky'?"),
        (["husky", "husky"], "leaves repeats 'husky'"),
        ("husky", "leaves must be a list of ids. Got 'husky'."),
    ],
)
def test_subset_refuses(leaves: object, message: str) -> None:
    with pytest.raises(HierarchyError) as caught:
        ANIMALS.build().subset(leaves)
    assert message in str(caught.value)


def test_subset_reports_all_problems() -> None:
    with pytest.raises(HierarchyError) as caught:
        ANIMALS.build().subset(["husky", "husky", "wolf"])
    assert len(caught.value.problems) == 2
