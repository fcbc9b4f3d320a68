"""Orders, shape, ancestors, levels and reachability, against the slow oracles."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hace import Hierarchy
from hace.hierarchy.assembly import natural_key
from tests.hierarchies import KINDS, NAMED, NAMED_TREES, Plain, forests, hierarchies, random_plain, trees
from tests.reference import structure as oracle

named = pytest.mark.parametrize("plain", NAMED.values(), ids=NAMED)
named_trees = pytest.mark.parametrize("plain", NAMED_TREES.values(), ids=NAMED_TREES)
SEEDED = [random_plain(kind, seed, max_nodes=60) for kind in KINDS for seed in range(2)]
seeded = pytest.mark.parametrize(
    "plain", SEEDED, ids=[f"{kind}-{seed}" for kind in KINDS for seed in range(2)]
)


def check_orders(h: Hierarchy, plain: Plain) -> None:
    assert sorted(h.nodes) == sorted(plain.nodes)
    assert h.leaves == tuple(plain.leaves)
    assert (h.num_nodes, h.num_leaves, h.num_edges) == (
        len(plain.nodes),
        len(plain.leaves),
        len(plain.edges),
    )
    assert [h.nodes[i] for i in h.leaf_nodes] == plain.leaves
    position = {label: i for i, label in enumerate(plain.leaves)}
    assert h.labels.tolist() == [position.get(v, -1) for v in h.nodes]
    assert [h.index(v) for v in h.nodes] == list(range(h.num_nodes))
    assert [h.label(v) for v in h.leaves] == list(range(h.num_leaves))
    assert h.names == h.nodes
    assert (h.rooted, h.is_tree, sorted(h.tops)) == (plain.rooted, plain.is_tree, sorted(plain.tops))
    assert h.kind == ("DAG" if not plain.is_tree else "tree" if plain.rooted else "forest")
    pairs = [(h.nodes[p], h.nodes[c]) for p, c in h.edges]
    assert sorted(pairs) == sorted(plain.edges)
    assert h.edges.tolist() == sorted(h.edges.tolist(), key=lambda edge: (edge[1], edge[0]))
    assert all(p < c for p, c in h.edges.tolist()), "a child comes before its parent"


def check_sibling_order(h: Hierarchy, plain: Plain) -> None:
    """The node order by its definition; on a tree that is the preorder with siblings by their smallest label."""
    below = oracle.children(plain)
    smallest = {v: min(map(plain.leaves.index, oracle.leaves_below(plain, v))) for v in plain.nodes}
    postorder: list[str] = []

    def visit(siblings: list[str]) -> None:
        for v in sorted(siblings, key=lambda v: (smallest[v], natural_key(v)), reverse=True):
            if v not in postorder:
                visit(below[v])
                postorder.append(v)

    visit(plain.tops)
    assert h.nodes == tuple(reversed(postorder))
    if plain.is_tree:
        for siblings in (h.tops, *map(h.children, h.nodes)):
            assert list(siblings) == sorted(siblings, key=smallest.__getitem__)


def check_questions(h: Hierarchy, plain: Plain) -> None:
    depths, heights = oracle.depths(plain), oracle.heights(plain)
    below = oracle.children(plain)
    assert dict(zip(h.nodes, h.depths.tolist(), strict=True)) == depths
    assert dict(zip(h.nodes, h.heights.tolist(), strict=True)) == {
        v: k for v, k in heights.items() if v is not None
    }
    assert h.max_depth == max(depths.values())

    def in_node_order(ids: set[str]) -> tuple[str, ...]:
        return tuple(v for v in h.nodes if v in ids)

    for v in h.nodes:
        assert h.parents(v) == in_node_order(set(plain.parents[v]))
        assert h.children(v) == in_node_order(set(below[v]))
        assert h.ancestors(v, include_self=True) == in_node_order(oracle.ancestors(plain, v))
        assert h.ancestors(v) == in_node_order(oracle.ancestors(plain, v) - {v})
        assert h.descendants(v, include_self=True) == in_node_order(oracle.descendants(plain, v))
        assert h.descendants(v) == in_node_order(oracle.descendants(plain, v) - {v})
        assert (h.depth(v), h.height(v), h.name(v)) == (depths[v], heights[v], v)
        if plain.is_tree:
            assert h.path(v) == tuple(oracle.path(plain, v))
        else:
            check_deepest_path(h, plain, v)
    for k in range(0 if h.rooted else 1, h.max_depth + 1):
        assert h.level(k) == in_node_order({v for v in plain.nodes if depths[v] == k})


def check_deepest_path(h: Hierarchy, plain: Plain, v: str) -> None:
    path = h.path(v)
    assert path[0] == v
    assert not plain.parents[path[-1]]
    depths = oracle.depths(plain)
    for child, parent in pairwise(path):
        candidates = sorted(plain.parents[child], key=h.index)
        assert parent == max(candidates, key=lambda p: depths[p])  # max takes the first of equals


def check_reachability(h: Hierarchy, plain: Plain) -> None:
    pairs = list(zip(*(part.tolist() for part in h.reachability()), strict=True))
    expected = [(h.index(a), h.index(v)) for v in plain.nodes for a in oracle.ancestors(plain, v)]
    assert pairs == sorted(expected)


def check_trees_only(h: Hierarchy, plain: Plain) -> None:
    depths = oracle.depths(plain)
    assert h.parent_nodes.tolist() == [
        h.index(plain.parents[v][0]) if plain.parents[v] else -1 for v in h.nodes
    ]
    for i, v in enumerate(h.nodes):
        assert set(h.nodes[i : h.subtree_ends[i]]) == oracle.descendants(plain, v)
    for k in range(0 if h.rooted else 1, h.max_depth + 1):
        assert [h.nodes[i] for i in h.level_nodes(k)] == [oracle.carried(plain, v, k) for v in h.nodes]
    assert max(depths.values()) == h.max_depth


ALL_CHECKS = (check_orders, check_sibling_order, check_questions, check_reachability)


@named
@pytest.mark.parametrize("check", ALL_CHECKS)
def test_named_hierarchies(plain: Plain, check) -> None:
    check(plain.build(), plain)


@seeded
def test_larger_hierarchies(plain: Plain) -> None:
    h = plain.build()
    for check in ALL_CHECKS:
        check(h, plain)


@pytest.mark.slow
@pytest.mark.parametrize("check", ALL_CHECKS)
@given(plain=hierarchies())
def test_random_hierarchies(plain: Plain, check) -> None:
    check(plain.build(), plain)


@named_trees
def test_named_trees(plain: Plain) -> None:
    check_trees_only(plain.build(), plain)


@given(plain=st.one_of(trees(), forests()))
def test_random_trees(plain: Plain) -> None:
    check_trees_only(plain.build(), plain)


@given(plain=hierarchies(), seed=st.integers(0, 2**32))
def test_the_order_of_lines_never_matters(plain: Plain, seed: int) -> None:
    h = plain.build()
    rng = random.Random(seed)
    lines = rng.sample(list(plain.parents.items()), len(plain.parents))
    turned = {v: rng.sample(above, len(above)) or None for v, above in lines}
    again = Hierarchy.from_parents(turned, leaves=plain.leaves, rooted=plain.rooted)
    edges = rng.sample(plain.edges, len(plain.edges))
    nodes = rng.sample(plain.nodes, len(plain.nodes))
    by_edges = Hierarchy.from_edges(edges, nodes=nodes, leaves=plain.leaves, rooted=plain.rooted)
    for other in (again, by_edges):
        assert other == h
        assert other.fingerprint == h.fingerprint
        assert other.nodes == h.nodes
        assert np.array_equal(other.edges, h.edges)


def test_siblings_with_the_same_smallest_label_stand_in_natural_order() -> None:
    edges = [(p, "x") for p in ("p10", "p9", "p")]
    assert Hierarchy.from_edges(edges).nodes == ("p", "p9", "p10", "x")


# ------------------------------------------------------------------ large and deep


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], [("0", "5000")]], ids=["chain", "chain with a short cut"])
def test_no_recursion_limit(extra: list[tuple[str, str]]) -> None:
    size = 20_000 if not extra else 5_001
    h = Hierarchy.from_edges([(str(i), str(i + 1)) for i in range(size - 1)] + extra)
    assert h.nodes == tuple(map(str, range(size)))
    assert (h.max_depth, h.height("0"), len(h.path(str(size - 1)))) == (size - 1, size - 1, size)
    assert len(h.descendants("0")) == size - 1
    assert h.subset([str(size - 1)]) == h
    assert pickle.loads(pickle.dumps(h)) == h


def test_trees_are_measured_without_a_matrix() -> None:
    rng = np.random.default_rng(0)
    size = 50_000
    parents = np.concatenate([[-1], (rng.random(size - 1) * np.arange(1, size)).astype(np.int64)])
    h = Hierarchy.from_parents(parents)
    a, b = rng.integers(0, h.num_leaves, (2, 200))
    for i, j in zip(a[:50].tolist(), b[:50].tolist(), strict=True):
        first, second = h.path(h.leaves[i]), h.path(h.leaves[j])
        shared = next(v for v in first if v in set(second))
        assert h.lca(h.leaves[i], h.leaves[j]) == shared
    climbs = h.depths[h.leaf_nodes[a]] + h.depths[h.leaf_nodes[b]]
    assert (h.distances(a, b, "edges") <= climbs).all()
