"""Lowest common ancestors and the three distances, against the slow oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hace import Hierarchy
from hace.hierarchy.distances import DISTANCES
from tests.hierarchies import ANIMALS, DAG_FOREST, DIAMOND, NAMED, RAGGED, REDUNDANT, Plain, dags, hierarchies
from tests.hierarchies import plain as read
from tests.reference import structure as oracle


def check_distances(h: Hierarchy, plain: Plain) -> None:
    every = np.arange(h.num_nodes)
    for distance in DISTANCES:
        expected = [[oracle.pair_distance(plain, a, b, distance) for b in h.nodes] for a in h.nodes]
        assert h.distance_matrix(distance, labels="nodes").tolist() == expected
        assert h.distances(every, every[::-1], distance, labels="nodes").tolist() == [
            expected[i][-1 - i] for i in every
        ]
        by_label = [[oracle.pair_distance(plain, a, b, distance) for b in h.leaves] for a in h.leaves]
        assert h.distance_matrix(distance).tolist() == by_label
        assert h.max_distance(distance) == max(map(max, by_label))
        assert h.distance(h.nodes[-1], h.leaves[0], distance) == expected[-1][h.index(h.leaves[0])]
    for a in h.nodes:
        for b in h.nodes:
            candidates = oracle.lca_candidates(plain, a, b)
            first = None if candidates == {None} else min(candidates, key=lambda v: h.index(v))
            assert h.lca(a, b) == first


@pytest.mark.parametrize("plain", NAMED.values(), ids=NAMED)
def test_named_hierarchies(plain: Plain) -> None:
    check_distances(plain.build(), plain)


@pytest.mark.slow
@given(plain=hierarchies(10))
def test_random_hierarchies(plain: Plain) -> None:
    check_distances(plain.build(), plain)


def test_the_three_conventions_by_hand() -> None:
    h = RAGGED.build()  # near has depth 1, deep1 depth 6
    assert [h.distance("deep1", "deep2", c) for c in DISTANCES] == [1, 1, 2]
    assert [h.distance("y2", "y2b", c) for c in DISTANCES] == [1, 5, 2]
    assert [h.distance("near", "deep1", c) for c in DISTANCES] == [6, 6, 7]
    assert [h.distance("near", "near", c) for c in DISTANCES] == [0, 0, 0]
    assert [h.max_distance(c) for c in DISTANCES] == [6, 6, 8]


def test_conventions_agree_when_all_leaves_have_one_depth() -> None:
    h = ANIMALS.build()
    assert np.array_equal(h.distance_matrix("lca_height"), h.distance_matrix("lca_depth"))
    assert np.array_equal(2 * h.distance_matrix("lca_height"), h.distance_matrix("edges"))


def test_a_redundant_edge_is_a_short_cut() -> None:
    h = REDUNDANT.build()
    assert h.depth("far") == 2
    assert h.distance("p", "away", "edges") == 4  # p - far - root - other - away


def test_distances_broadcast_and_keep_their_shape() -> None:
    h = ANIMALS.build()
    assert h.distances(0, 1).shape == ()
    assert h.distances([[0], [1]], [0, 1, 2]).shape == (2, 3)
    assert h.distances([], []).shape == (0,)
    for plain in (DIAMOND, DAG_FOREST):
        for distance in DISTANCES:
            assert plain.build().distances([], [], distance).shape == (0,)


@pytest.mark.slow
@given(plain=dags(), pairs=st.integers(2, 30))
def test_distances_on_a_dag_do_not_depend_on_the_chunk(plain: Plain, pairs: int) -> None:
    import hace.hierarchy.distances as module

    h = plain.build()
    a, b = np.random.default_rng(pairs).integers(0, h.num_nodes, (2, pairs))
    whole = [h.distances(a, b, c, labels="nodes").tolist() for c in DISTANCES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", 3)
        assert [h.distances(a, b, c, labels="nodes").tolist() for c in DISTANCES] == whole


def test_of_two_lowest_common_ancestors_the_deeper_one_counts() -> None:
    h = read(["root: a b", "b: c", "a: x y", "c: x y"]).build()
    assert h.nodes.index("a") < h.nodes.index("c")
    assert (h.height("a"), h.height("c"), h.lca("x", "y")) == (1, 1, "c")
    assert [h.distance("x", "y", c) for c in DISTANCES] == [1, 1, 2]
