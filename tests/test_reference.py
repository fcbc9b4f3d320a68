"""The oracles of structure, targets and losses against numbers worked out by hand, torch, and each other."""

import os
from math import exp, inf, isfinite, isnan, log
from pathlib import Path

import pytest
import torch
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
from tests.reference import losses, precise, structure, targets

forest_or_tree = st.one_of(trees(), forests())
rates = st.floats(0.05, 1.0)


def close(value, abs=1e-12):
    return pytest.approx(value, rel=1e-9, abs=abs)


def nonzero(row):
    return {v: x for v, x in row.items() if x}


def random_logits(ids, seed, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(len(ids), generator=generator, dtype=torch.float64)
    return dict(zip(sorted(ids), values.tolist(), strict=True))


def without_root(h: Plain) -> Plain:
    (root,) = h.tops
    parents = {v: [u for u in above if u != root] for v, above in h.parents.items() if v != root}
    return Plain(parents, h.leaves, rooted=False)


# Plain hierarchies


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_generated_hierarchies_keep_their_promise(kind, seed):
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
        assert structure.distance(NAMED[name], x, y, "lca_height") == by_height
        assert structure.distance(NAMED[name], x, y, "lca_depth") == by_depth
        assert structure.distance(NAMED[name], x, y, "edges") == edges


def test_structure_by_hand():
    assert structure.depths(FOREST)["mako"] == 3
    assert structure.depths(ONE_NODE) == {"only": 1}
    assert structure.heights(FOREST)[None] == 3
    assert structure.depths(REDUNDANT)["far"] == 2  # the longest way
    assert structure.ancestors(DIAMOND, "shared") == {"shared", "left", "right", "root"}
    assert structure.lca_candidates(FOREST, "wren", "ray") == {None}
    twice = plain(["r: p q", "p: a b", "q: a b"])
    assert structure.lca_candidates(twice, "a", "b") == {"p", "q"}
    assert structure.carried(RAGGED, "near", 4) == "near"
    assert structure.carried(RAGGED, "deep1", 4) == "x4"
    assert structure.level_choices(RAGGED, 3) == {"near", "x2b", "y2", "y2b", "x3"}
    assert [structure.max_distance(h) for h in (ONE_NODE, CHAIN, FLAT, RAGGED)] == [0, 0, 1, 6]


def test_a_detour_through_the_virtual_root_can_be_shorter():
    # a and b meet in m, four edges up for each; both are also direct children of tops of their own.
    h = plain(["m: a1 b1", "a1: a2", "a2: a3", "a3: a", "b1: b2", "b2: b3", "b3: b", "s: a", "t: b"])
    assert structure.distance(h, "a", "b", "edges") == 4
    assert structure.distance(h, "a", "b", "lca_height") == 4
    assert structure.heights(h)[None] == 5


@settings(max_examples=40)
@given(st.one_of(trees(), dags().filter(lambda h: h.rooted)), st.data())
def test_removing_the_root_changes_no_depth_and_no_distance(h, data):
    bare = without_root(h)
    a, b = (data.draw(st.sampled_from(bare.nodes)) for _ in range(2))
    assert structure.depths(bare)[a] == structure.depths(h)[a]
    for convention in ("lca_height", "lca_depth", "edges"):
        assert structure.distance(bare, a, b, convention) == structure.distance(h, a, b, convention)


@settings(max_examples=40)
@given(forest_or_tree, st.data())
def test_tree_distance_is_depths_minus_twice_the_lca(h, data):
    a, b = (data.draw(st.sampled_from(h.nodes)) for _ in range(2))
    (meeting,) = structure.lca_candidates(h, a, b)
    depth = structure.depths(h)
    top = 0 if meeting is None else depth[meeting]
    assert structure.distance(h, a, b, "edges") == depth[a] + depth[b] - 2 * top


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
        assert row == close(targets.ancestral_path(h, label, d), abs=1e-12)


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


# Losses


def test_losses_by_hand():
    flat, even = dict.fromkeys(ANIMALS.nodes, 0.0), dict.fromkeys(ANIMALS.leaves, 0.0)
    assert losses.hce(ANIMALS, flat, "husky") == close(log(7))
    assert losses.hce(ANIMALS, flat, "dog") == close(log(7 / 3))
    assert losses.hace(ANIMALS, flat, "husky", d=0.6) == close(0.6 * log(7) + 0.24 * log(7 / 3))
    assert losses.hace(ANIMALS, flat, "husky", d=0.6, aggregate=False) == close(log(7))
    leaf_head = losses.hace(ANIMALS, even, "husky", d=0.6, outputs="leaves")
    assert leaf_head == close(0.6 * log(4) + 0.24 * log(2))
    assert losses.ce(ANIMALS, even, "husky", label_smoothing=0.3) == close(log(4))
    assert losses.ce(ANIMALS, even, "dog") == close(log(2))
    assert losses.simloss(ANIMALS, even, "husky", r=0.5) == close(log(2))
    assert losses.expected_distance(ANIMALS, even, "husky") == close(1.25)
    assert losses.expected_distance(ANIMALS, even, "husky", convention="edges", weight={"husky": 2}) == close(
        5
    )
    assert losses.conditional_softmax(ANIMALS, flat | {"animal": 7.0}, "husky") == close(log(4))
    assert losses.conditional_softmax(FLAT, {"a": 0.0, "b2": 0.0, "b10": log(2)}, "a") == close(log(4))


def test_hxe_by_hand():
    logits = dict.fromkeys(ANIMALS.leaves, 0.0) | {"husky": log(3)}  # p = 3/6, 4/6 for dog
    for alpha in (0.0, 0.2, 1.0):
        by_depth = exp(-alpha) * log(4 / 3) + log(3 / 2)
        by_height = log(4 / 3) + exp(-alpha) * log(3 / 2)
        assert losses.hxe(ANIMALS, logits, "husky", alpha=alpha) == close(by_depth)
        assert losses.hxe(ANIMALS, logits, "husky", alpha=alpha, decay="height") == close(by_height)
        depth_sum = exp(alpha) + 2 + 4 * exp(-alpha)
        height_sum = 4 + 2 * exp(-alpha) + exp(-2 * alpha)
        tree = {"alpha": alpha, "normalize": "tree"}
        for h in (ANIMALS, without_root(ANIMALS)):
            assert losses.hxe(h, logits, "husky", **tree) == close(by_depth / depth_sum)
            assert losses.hxe(h, logits, "husky", decay="height", **tree) == close(by_height / height_sum)
    assert losses.hxe(ANIMALS, logits, "animal", alpha=0.5) == 0


@settings(max_examples=40)
@given(forest_or_tree, rates, st.data())
def test_identities_on_trees_and_forests(h, d, data):
    label = data.draw(st.sampled_from(h.leaves))
    over_nodes, over_leaves = random_logits(h.nodes, 1), random_logits(h.leaves, 2)
    plain_ce = losses.ce(h, over_leaves, label)
    assert losses.hxe(h, over_leaves, label, alpha=0.0) == close(plain_ce)
    assert losses.hxe(h, over_leaves, label, alpha=0.0, decay="height") == close(plain_ce)
    for decay in ("depth", "height"):
        row = targets.hxe_row(h, label, 0.7, decay=decay)
        by_table = losses.cross_entropy_with(row, losses.node_log_probs(h, over_leaves))
        assert losses.hxe(h, over_leaves, label, alpha=0.7, decay=decay) == close(by_table)
    terms = losses.conditionals(h, over_nodes, label)
    weights = [1 - (1 - d) ** (i + 1) for i in range(len(terms))]
    if not h.rooted:
        weights[-1] = 1.0
    as_hxe = -sum(w * log_p for w, (_, log_p) in zip(weights, terms, strict=True))
    assert losses.hace(h, over_nodes, label, d=d) == close(as_hxe)


@settings(max_examples=40)
@given(hierarchies(), st.data())
def test_identities_on_all_hierarchies(h, data):
    label = data.draw(st.sampled_from(h.leaves))
    over_nodes, over_leaves = random_logits(h.nodes, 3), random_logits(h.leaves, 4)
    flat_ce = losses.log_sum_exp(list(over_nodes.values())) - over_nodes[label]
    assert losses.hace(h, over_nodes, label, d=1.0) == close(flat_ce)
    assert losses.hce(h, over_nodes, label) == close(flat_ce)
    plain_ce = losses.ce(h, over_leaves, label)
    assert losses.soft_labels(h, over_leaves, label, beta=1e4) == close(plain_ce)
    assert losses.simloss(h, over_leaves, label, r=0.0) == close(plain_ce)
    log_q = losses.node_log_probs(h, over_nodes)
    assert all(log_q[parent] >= log_q[v] - 1e-12 for v in h.nodes for parent in h.parents[v])
    mixture = dict.fromkeys(h.leaves, 1 / len(h.leaves))
    smoothed = targets.hace_row(h, label, 0.4, label_smoothing=1.0)
    by_row = losses.cross_entropy_with(smoothed, log_q)
    assert losses.soft_target(losses.hace, h, over_nodes, mixture, d=0.4) == close(by_row)


@settings(max_examples=30)
@given(forest_or_tree)
def test_conditional_softmax_is_a_distribution_over_leaves(h):
    log_p = losses.conditional_log_probs(h, random_logits(h.nodes, 5))
    assert sum(exp(log_p[c]) for c in h.leaves) == close(1.0)
    for v in h.internal:
        assert exp(log_p[v]) == close(sum(exp(log_p[c]) for c in structure.leaves_below(h, v)))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kept", [[0, 2, 3, 1, 1], [0, -100, 3, -100, 1], [-100] * 5, []])
def test_cross_entropy_and_reductions_are_torch_s(reduction, weighted, kept):
    z = torch.randn(len(kept), 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    w = torch.tensor([0.5, 2.0, 3.0, 0.25], dtype=torch.float64) if weighted else None
    weight = dict(zip(ANIMALS.leaves, w.tolist(), strict=True)) if w is not None else None
    labels = [ANIMALS.leaves[max(y, 0)] for y in kept]
    params = {"label_smoothing": 0.3, "weight": weight}
    each = [
        losses.ce(ANIMALS, losses.columns(ANIMALS.leaves, row.tolist()), y, **params)
        for row, y in zip(z, labels, strict=True)
    ]
    ours = losses.reduce(each, labels, reduction=reduction, weight=weight, ignored=[y < 0 for y in kept])
    y = torch.tensor(kept, dtype=torch.long)
    theirs = torch.nn.functional.cross_entropy(z, y, weight=w, label_smoothing=0.3, reduction=reduction)
    assert ours == pytest.approx(theirs.tolist(), rel=1e-9, nan_ok=True)
    assert not (kept == [] and reduction == "mean") or isnan(ours)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_soft_targets_are_torch_s(reduction):
    generator = torch.Generator().manual_seed(7)
    z = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    t = torch.rand(3, 4, generator=generator, dtype=torch.float64).softmax(1)
    w = [0.5, 2.0, 3.0, 0.25]
    weight = dict(zip(ANIMALS.leaves, w, strict=True))
    each = [
        losses.soft_target(
            losses.ce,
            ANIMALS,
            losses.columns(ANIMALS.leaves, row.tolist()),
            dict(zip(ANIMALS.leaves, mix.tolist(), strict=True)),
            label_smoothing=0.3,
            weight=weight,
        )
        for row, mix in zip(z, t, strict=True)
    ]
    theirs = torch.nn.functional.cross_entropy(
        z, t, weight=torch.tensor(w).double(), label_smoothing=0.3, reduction=reduction
    )
    assert losses.reduce(each, reduction=reduction) == close(theirs.item())


# High precision


@pytest.mark.parametrize("name", NAMED)
def test_precise_value_and_gradient_agree_with_the_loops(name):
    h = NAMED[name]
    over_nodes, over_leaves = random_logits(h.nodes, 8), random_logits(h.leaves, 9)
    cases = [
        (precise.hce, losses.hce, over_nodes, {}),
        (precise.hace, losses.hace, over_nodes, {"d": 0.3}),
        (precise.hace, losses.hace, over_nodes, {"d": 0.3, "label_smoothing": 0.2}),
        (precise.hace, losses.hace, over_nodes, {"d": 0.3, "aggregate": False}),
        (precise.ce, losses.ce, over_leaves, {"label_smoothing": 0.2}),
        (precise.soft_labels, losses.soft_labels, over_leaves, {"beta": 5.0}),
    ]
    if name in NAMED_TREES:
        cases += [(precise.hxe, losses.hxe, over_leaves, {"alpha": 0.5, "decay": "height"})]
        cases += [(precise.hxe, losses.hxe, over_leaves, {"alpha": 0.5, "normalize": "tree"})]
    for label in h.nodes:
        for exact, loop, logits, params in cases:
            value, gradient = exact(h, logits, label, **params)
            assert value == close(loop(h, logits, label, **params))

            def of(z, loop=loop, label=label, params=params):
                return loop(h, z, label, **params)

            assert gradient == pytest.approx(precise.numeric_gradient(of, logits), abs=1e-8)


@pytest.mark.parametrize("name", NAMED_TREES)
def test_precise_hxe_is_its_signed_table(name):
    h = NAMED_TREES[name]
    logits = random_logits(h.leaves, 10, scale=1e3)
    for label in h.leaves:
        value, gradient = precise.hxe(h, logits, label, alpha=0.5)
        by_table, table_gradient = precise.table_loss(h, logits, targets.hxe_row(h, label, 0.5))
        assert value == close(by_table)
        assert gradient == close(table_gradient)


def test_extremes_by_hand():
    logits = dict.fromkeys(ANIMALS.nodes, 1e4) | {"husky": -1e4}
    value, gradient = precise.hce(ANIMALS, logits, "husky")
    assert value == close(2e4 + log(6))
    assert gradient == close(dict.fromkeys(ANIMALS.nodes, 1 / 6) | {"husky": -1.0})
    value, gradient = precise.hace(ANIMALS, logits, "husky", d=0.5)
    assert value == close(0.5 * (2e4 + log(6)) + 0.25 * log(3))
    assert gradient["husky"] == close(-0.5)
    assert gradient["beagle"] == close(0.5 / 6 + 0.25 * (1 / 6 - 1 / 2))
    assert gradient["persian"] == close(0.75 / 6)
    alone = dict.fromkeys(ANIMALS.leaves, -inf) | {"husky": -1e4, "beagle": 1e4}
    value, gradient = precise.hxe(ANIMALS, alone, "husky", alpha=0.5)
    assert value == close(exp(-0.5) * 2e4)  # dog has all the mass: its conditional costs nothing
    assert gradient == close({"husky": -exp(-0.5), "beagle": exp(-0.5), "persian": 0.0, "siamese": 0.0})
    assert losses.hce(ANIMALS, logits | {"husky": -inf}, "husky") == inf


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_extremes_are_finite_and_gradients_balance(name, gap):
    h = NAMED[name]
    for label in h.leaves:
        path = structure.ancestors(h, label)
        logits = {v: gap if v in path else -gap for v in h.nodes}
        value, gradient = precise.hace(h, logits, label, d=0.5, label_smoothing=0.1)
        assert isfinite(value)
        assert value >= 0
        assert sum(gradient.values()) == close(0.0)
        assert value == close(losses.hace(h, logits, label, d=0.5, label_smoothing=0.1))


def test_named_shapes_cover_what_they_should():
    assert not any(h.is_tree for h in DAGS.values())
    assert all(h.is_tree for h in NAMED_TREES.values())
    assert {h.rooted for h in NAMED.values()} == {True, False}
