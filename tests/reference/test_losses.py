"""The oracles of losses against numbers worked out by hand, torch, and each other."""

from math import exp, inf, isfinite, isnan, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hierarchies import (
    ANIMALS,
    FLAT,
    NAMED,
    NAMED_TREES,
    forests,
    hierarchies,
    trees,
)
from tests.reference import losses, precise, structure, targets

forest_or_tree = st.one_of(trees(), forests())
rates = st.floats(0.05, 1.0)


def close(value, abs=1e-12):
    return pytest.approx(value, rel=1e-9, abs=abs)


def random_logits(ids, seed, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(len(ids), generator=generator, dtype=torch.float64)
    return dict(zip(sorted(ids), values.tolist(), strict=True))


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
    assert losses.expected_distance(ANIMALS, even, "husky", distance="edges", weight={"husky": 2}) == close(5)
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
        for h in (ANIMALS, ANIMALS.without_root()):
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
@pytest.mark.parametrize("counted", [[0, 2, 3, 1, 1], [0, -100, 3, -100, 1], [-100] * 5, []])
def test_cross_entropy_and_reductions_are_torch_s(reduction, weighted, counted):
    z = torch.randn(len(counted), 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    w = torch.tensor([0.5, 2.0, 3.0, 0.25], dtype=torch.float64) if weighted else None
    weight = dict(zip(ANIMALS.leaves, w.tolist(), strict=True)) if w is not None else None
    labels = [ANIMALS.leaves[max(y, 0)] for y in counted]
    params = {"label_smoothing": 0.3, "weight": weight}
    each = [
        losses.ce(ANIMALS, losses.columns(ANIMALS.leaves, row.tolist()), y, **params)
        for row, y in zip(z, labels, strict=True)
    ]
    ours = losses.reduce(each, labels, reduction=reduction, weight=weight, ignored=[y < 0 for y in counted])
    y = torch.tensor(counted, dtype=torch.long)
    theirs = torch.nn.functional.cross_entropy(z, y, weight=w, label_smoothing=0.3, reduction=reduction)
    assert ours == pytest.approx(theirs.tolist(), rel=1e-9, nan_ok=True)
    assert not (counted == [] and reduction == "mean") or isnan(ours)


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


@pytest.mark.slow
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
