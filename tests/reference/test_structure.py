"""The oracles of structure and targets against numbers worked out by hand and each other."""

import os
from math import exp
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hierarchies import (
    ANIMALS,
    CHAIN,
    DAG_FOREST,
    DAGS,
    DIAMOND,
    FLAT,
    FOREST,
    KINDS,
    NAMED,
    NAMED_TREES,
    ONE_NODE,
    RAGGED,
    REDUNDANT,
    Plain,
    dags,
    forests,
    hierarchies,
    plain,
    random_plain,
    trees,
)
from tests.reference import structure, targets

forest_or_tree = st.one_of(trees(), forests())
rates = st.floats(0.05, 1.0)


def close(value, abs=1e-12):
    return pytest.approx(value, rel=1e-9, abs=abs)


def nonzero(row):
    return {v: x for v, x in row.items() if x}


# Plain hierarchies


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_generated_hierarchies_keep_their_guarantee(kind, seed):
    h = random_plain(kind, seed, 20)
    assert 10 <= len(h.nodes) <= 20
    assert sorted(h.leaves) == sorted(
        v for v in h.nodes if all(v not in above for above in h.parents.values())
    )
    assert h.rooted == (kind not in ("forest", "dag_forest"))
    assert not h.rooted or len(h.tops) == 1
    assert h.is_tree or kind.startswith("dag")
    assert all(v in structure.depths(h) for v in h.nodes)  # ends, so there is no cycle


def test_generated_hierarchies_show_their_kind():
    seeds = range(20)
    assert all(structure.max_depth(random_plain("star", s)) == 1 for s in seeds)
    assert all(len(random_plain("chain", s).leaves) == 1 for s in seeds)
    spread = [[structure.depths(h)[c] for c in h.leaves] for h in (random_plain("ragged", s) for s in seeds)]
    assert max(max(deep) - min(deep) for deep in spread) >= 5
    unary = [structure.children(random_plain("unary", s)).values() for s in seeds]
    assert all(sum(len(below) == 1 for below in sets) >= 3 for sets in unary)
    assert all(len(random_plain("forest", s).tops) > 1 for s in seeds)
    assert sum(not random_plain("dag", s).is_tree for s in seeds) == 20
    assert sum(not random_plain("dag_forest", s).is_tree for s in seeds) >= 18


@settings(max_examples=30)
@given(hierarchies())
def test_drawn_hierarchies_are_sound(h):
    assert all(parent in h.parents for above in h.parents.values() for parent in above)
    assert sorted(h.leaves) == sorted(v for v in h.nodes if structure.descendants(h, v) == {v})
    assert all(v not in structure.ancestors(h, parent) for v in h.nodes for parent in h.parents[v])


def test_named_shapes_cover_what_they_should():
    assert not any(h.is_tree for h in DAGS.values())
    assert all(h.is_tree for h in NAMED_TREES.values())
    assert {h.rooted for h in NAMED.values()} == {True, False}


# Structure


@pytest.mark.parametrize(
    ("name", "a", "b", "by_height", "by_depth", "edges"),
    [
        ("animals", "husky", "beagle", 1, 1, 2),
        ("animals", "husky", "persian", 2, 2, 4),
        ("animals", "dog", "husky", 1, 1, 1),
        ("animals", "dog", "cat", 2, 2, 2),
        ("ragged", "near", "deep1", 6, 6, 7),
        ("ragged", "deep1", "deep2", 1, 1, 2),
        ("ragged", "y2", "y2b", 1, 5, 2),
        ("ragged", "x2b", "x4b", 5, 5, 4),
        ("unary", "leaf1", "leaf2", 1, 1, 2),
        ("unary", "leaf1", "leaf3", 4, 4, 7),
        ("forest", "wren", "owl", 1, 2, 2),
        ("forest", "wren", "ray", 3, 3, 4),
        ("forest", "amoeba", "mako", 3, 3, 4),
        ("flat", "a", "b2", 1, 1, 2),
        ("top_not_root", "husky", "persian", 2, 2, 4),
        ("diamond", "shared", "l", 1, 1, 2),
        ("diamond", "shared", "r", 1, 1, 2),
        ("diamond", "l", "r", 2, 2, 4),
        ("redundant", "p", "away", 3, 3, 4),  # the short cut root -> far saves an edge
        ("redundant", "p", "near", 2, 2, 3),
        ("dag_forest", "x", "z", 2, 2, 4),
        ("dag_forest", "w", "z", 3, 3, 6),
        ("dag_forest", "alone", "w", 3, 3, 4),
    ],
)
def test_distances_by_hand(name, a, b, by_height, by_depth, edges):
    for x, y in ((a, b), (b, a)):
        assert structure.pair_distance(NAMED[name], x, y, "lca_height") == by_height
        assert structure.pair_distance(NAMED[name], x, y, "lca_depth") == by_depth
        assert structure.pair_distance(NAMED[name], x, y, "edges") == edges


def test_structure_by_hand():
    assert structure.depths(FOREST)["mako"] == 3
    assert structure.depths(ONE_NODE) == {"only": 1}
    assert structure.heights(FOREST)[None] == 3
    assert structure.depths(REDUNDANT)["far"] == 2  # the longest way
    assert structure.ancestors(DIAMOND, "shared") == {"shared", "left", "right", "root"}
    assert structure.lca_candidates(FOREST, "wren", "ray") == {None}
    twice = plain(["r: p q", "p: a b", "q: a b"])
    assert structure.lca_candidates(twice, "a", "b") == {"p", "q"}
    deeper = plain(["r: p s", "s: q", "p: a b", "q: a b"])
    assert structure.lca_candidates(deeper, "a", "b") == {"q"}  # as low as p, and deeper
    assert structure.pair_distance(deeper, "a", "b", "lca_depth") == 1
    assert structure.carried(RAGGED, "near", 4) == "near"
    assert structure.carried(RAGGED, "deep1", 4) == "x4"
    assert structure.level_choices(RAGGED, 3) == {"near", "x2b", "y2", "y2b", "x3"}
    assert [structure.max_distance(h) for h in (ONE_NODE, CHAIN, FLAT, RAGGED)] == [0, 0, 1, 6]


def test_a_detour_through_the_virtual_root_can_be_shorter():
    # a and b meet in m, four edges up for each; both are also direct children of tops of their own.
    h = plain(["m: a1 b1", "a1: a2", "a2: a3", "a3: a", "b1: b2", "b2: b3", "b3: b", "s: a", "t: b"])
    assert structure.pair_distance(h, "a", "b", "edges") == 4
    assert structure.pair_distance(h, "a", "b", "lca_height") == 4
    assert structure.heights(h)[None] == 5


@settings(max_examples=40)
@given(st.one_of(trees(), dags().filter(lambda h: h.rooted)), st.data())
def test_removing_the_root_changes_no_depth_and_no_distance(h, data):
    bare = h.without_root()
    a, b = (data.draw(st.sampled_from(bare.nodes)) for _ in range(2))
    assert structure.depths(bare)[a] == structure.depths(h)[a]
    # An edge from the root past other nodes is a short cut that goes with the root, so on DAGs edges may grow.
    for distance in ("lca_height", "lca_depth", "edges") if h.is_tree else ("lca_height", "lca_depth"):
        assert structure.pair_distance(bare, a, b, distance) == structure.pair_distance(h, a, b, distance)


@settings(max_examples=40)
@given(forest_or_tree, st.data())
def test_tree_distance_is_depths_minus_twice_the_lca(h, data):
    a, b = (data.draw(st.sampled_from(h.nodes)) for _ in range(2))
    (meeting,) = structure.lca_candidates(h, a, b)
    depth = structure.depths(h)
    top = 0 if meeting is None else depth[meeting]
    assert structure.pair_distance(h, a, b, "edges") == depth[a] + depth[b] - 2 * top


# Targets


def test_the_paper_s_figure():
    assert targets.ancestral_path(ANIMALS, "husky", 0.6) == close({"husky": 0.6, "dog": 0.24, "animal": 0.16})
    assert nonzero(targets.hace_row(ANIMALS, "husky", 0.6)) == close(
        {"husky": 0.6, "dog": 0.24, "animal": 0.16}
    )


def test_targets_by_hand():
    smooth = targets.hace_row(ANIMALS, "husky", 0.5, label_smoothing=0.1)
    by_hand = {"husky": 0.4625, "beagle": 0.0125, "persian": 0.0125, "siamese": 0.0125}
    assert smooth == close(by_hand | {"dog": 0.2375, "cat": 0.0125, "animal": 0.25})
    total = 1 + exp(-1) + 2 * exp(-2)
    soft = {
        "husky": 1 / total,
        "beagle": exp(-1) / total,
        "persian": exp(-2) / total,
        "siamese": exp(-2) / total,
    }
    assert targets.lca_soft_labels(ANIMALS, "husky", 2.0) == close(soft)
    with_label = targets.lca_soft_labels(ANIMALS, "dog", 2.0)
    assert with_label["dog"] / with_label["husky"] == close(exp(1))
    shared = {"shared": 0.5, "left": 0.125, "right": 0.125, "root": 0.25}
    assert targets.ancestral(DIAMOND, "shared", 0.5) == close(shared)
    assert targets.ancestral(REDUNDANT, "q", 0.5) == close(
        {"q": 0.5, "far": 0.25, "mid": 0.0625, "root": 0.1875}
    )
    lonely = {"y": 0.5, "b": 0.125, "c": 0.125, "one": 0.0625, "two": 0.125, "three": 0.0625}
    assert targets.ancestral(DAG_FOREST, "y", 0.5) == close(lonely)
    weighted = targets.hace_row(
        ANIMALS, "husky", 1.0, label_smoothing=0.4, weight={"husky": 2.0, "persian": 5.0}
    )
    assert weighted == close({"husky": 1.4, "persian": 0.5, "beagle": 0.1, "siamese": 0.1})


@settings(max_examples=60)
@given(hierarchies(), rates, st.floats(0, 0.9), st.data())
def test_hace_rows_sum_to_one_for_any_label(h, d, eps, data):
    label = data.draw(st.sampled_from(h.nodes))
    for params in ({"label_smoothing": eps}, {"soft_label_beta": 10 * eps}):
        row = targets.hace_row(h, label, d, **params)
        assert sum(row.values()) == close(1.0)
        assert min(row.values()) >= 0


@settings(max_examples=60)
@given(hierarchies(), rates, st.data())
def test_recursion_equals_sum_over_ways_up_and_eq_4(h, d, data):
    label = data.draw(st.sampled_from(h.nodes))
    row = targets.ancestral(h, label, d)
    assert nonzero(row) == close(nonzero(targets.ancestral_by_paths(h, label, d)))
    if h.is_tree:
        path = targets.ancestral_path(h, label, d)  # at d = 1 with zeros at the ancestors
        assert nonzero(row) == close(nonzero(path), abs=1e-12)


@settings(max_examples=40)
@given(hierarchies(), rates, st.floats(0, 0.9), st.data())
def test_uniform_smoothing_is_a_mixture_with_the_mean_row(h, d, eps, data):
    label = data.draw(st.sampled_from(h.nodes))
    own = targets.ancestral(h, label, d)
    rows = [targets.ancestral(h, c, d) for c in h.leaves]
    row = targets.hace_row(h, label, d, label_smoothing=eps)
    for v in h.nodes:
        mean = sum(other.get(v, 0.0) for other in rows) / len(rows)
        assert row.get(v, 0.0) == close((1 - eps) * own.get(v, 0.0) + eps * mean)


@pytest.mark.parametrize(("alpha", "total"), [(0.2, 687), (0.5, 403)])
def test_the_published_hxe_code_divides_by_this_on_nabirds(alpha, total):
    folder = os.environ.get("HACE_TEST_DATA")
    if not folder or not (Path(folder) / "nabirds").is_dir():
        pytest.skip("HACE_TEST_DATA names no folder with nabirds in it")
    lines = [line.split() for line in (Path(folder) / "nabirds" / "hierarchy.txt").read_text().splitlines()]
    parents = {child: [parent] for child, parent in lines} | {"0": []}
    leaves = sorted(set(parents) - {parent for _, parent in lines})
    birds = Plain(parents, leaves, rooted=True)
    assert (len(birds.nodes), len(leaves)) == (1011, 555)
    plain_weight = targets.hxe_lambdas(birds, alpha)["1"]
    assert plain_weight / targets.hxe_lambdas(birds, alpha, normalize="tree")["1"] == pytest.approx(
        total, abs=0.5
    )
