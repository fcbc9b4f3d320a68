"""The oracles of decisions and metrics against numbers worked out by hand, and against each other."""

from math import exp, fsum, isnan, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hierarchies import ANIMALS, DIAMOND, FOREST, ONE_LEAF, RAGGED, forests, trees
from tests.reference import decisions, losses, metrics, structure

LEAF_P = {"husky": 0.3, "beagle": 0.25, "persian": 0.4, "siamese": 0.05}
LEAF_Z = {c: log(p) for c, p in LEAF_P.items()}
MASS = LEAF_P | {"dog": 0.55, "cat": 0.45, "animal": 1.0}
ORDER = ["animal", "dog", "husky", "beagle", "cat", "persian", "siamese"]
PREDS, TRUTHS = ["husky", "beagle", "husky", "siamese"], ["husky", "husky", "persian", "siamese"]
forest_or_tree = st.one_of(trees(), forests())


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def one_hot(preds, leaves):
    return [{c: float(c == a) - 0.01 * i for i, c in enumerate(leaves)} for a in preds]


def masses(h, shares):
    """Node masses of a leaf head with the given leaf probabilities, up to a factor."""
    total = sum(shares)
    p = {c: share / total for c, share in zip(h.leaves, shares, strict=True)}
    return p, {v: fsum(p[c] for c in structure.leaves_below(h, v)) for v in h.nodes}


# Decisions


def test_top_k_prefers_the_order_given_on_ties():
    assert decisions.top_k(LEAF_P, 3, ANIMALS.leaves) == ["persian", "husky", "beagle"]
    tied = dict.fromkeys(ANIMALS.leaves, 0.25)
    assert decisions.top_k(tied, 2, ANIMALS.leaves) == ["husky", "persian"]
    assert decisions.top_k(tied, 2, ANIMALS.leaves[::-1]) == ["siamese", "beagle"]
    with pytest.raises(ValueError, match="k=5"):
        decisions.top_k(tied, 5, ANIMALS.leaves)


def test_masses_with_and_without_own_mass():
    assert decisions.node_masses(ANIMALS, LEAF_Z) == close(MASS)
    node_head = LEAF_Z | {"dog": log(0.1), "cat": log(0.6), "animal": log(0.3)}  # total 2
    own = decisions.node_masses(ANIMALS, node_head)
    assert (own["dog"], own["cat"], own["husky"]) == close((0.325, 0.525, 0.15))
    assert decisions.node_masses(ANIMALS, node_head, leaves_only=True) == close(MASS)
    assert decisions.node_at_level(ANIMALS, own, 1, ORDER) == "cat"
    assert decisions.node_at_level(ANIMALS, MASS, 1, ORDER) == "dog"
    assert decisions.node_at_level(ANIMALS, MASS, 2, ORDER) == "persian"


def test_a_shallow_leaf_competes_at_every_level():
    p, q = masses(RAGGED, [0.1, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1])  # 0.4 at "near"; x1 has 0.4, y1 0.2
    assert p["near"] == close(0.4)
    assert decisions.node_at_level(RAGGED, q, 4, RAGGED.nodes) == "near"
    assert decisions.node_at_level(RAGGED, q | {"x1": 0.41}, 1, RAGGED.nodes) == "x1"


@pytest.mark.parametrize(
    ("threshold", "walked", "deepest"),
    [
        (0.6, "animal", "animal"),
        (0.55, "dog", "dog"),  # reached is passed
        (0.45, "dog", "dog"),
        (0.4, "dog", "persian"),
        (0.3, "husky", "persian"),
        (0.0, "husky", "persian"),
        ([0.5, 0.35], "dog", "persian"),
        ([0.9, 0.3], "animal", "persian"),
        ([0.5, 0.3], "husky", "persian"),
    ],
)
def test_thresholds(threshold, walked, deepest):
    assert decisions.walk_down(ANIMALS, MASS, threshold, ORDER) == walked
    assert decisions.deepest_above(ANIMALS, MASS, threshold, ORDER) == deepest


def test_no_top_passes():
    _, q = masses(FOREST, [1, 1, 1, 1, 1, 1])
    assert decisions.walk_down(FOREST, q, 0.6, FOREST.nodes) is None
    assert decisions.deepest_above(FOREST, q, 0.6, FOREST.nodes) is None
    assert decisions.walk_down(FOREST, q, 0.5, FOREST.nodes) == "fish"


@settings(max_examples=40)
@given(forest_or_tree, st.floats(0.5, 1.0, exclude_min=True), st.data())
def test_above_one_half_the_walk_is_global(h, threshold, data):
    _, q = masses(h, data.draw(st.lists(st.floats(0.01, 1), min_size=len(h.leaves), max_size=len(h.leaves))))
    assert decisions.walk_down(h, q, threshold, h.nodes) == decisions.deepest_above(h, q, threshold, h.nodes)


def test_expected_costs_by_hand():
    costs = decisions.expected_costs(ANIMALS, LEAF_P)
    leaves = {"husky": 1.15, "beagle": 1.2, "persian": 1.15, "siamese": 1.5}
    assert costs == close(leaves | {"dog": 1.175, "cat": 1.325, "animal": 1.0})
    assert decisions.least_cost(costs, MASS, ORDER) == "animal"
    over_leaves = decisions.expected_costs(ANIMALS, LEAF_P, candidates=ANIMALS.leaves)
    assert decisions.least_cost(over_leaves, LEAF_P, ANIMALS.leaves) == "persian"  # 1.15 twice: more probable
    edges = decisions.expected_costs(ANIMALS, LEAF_P, distance="edges", price=1.0)
    assert edges["dog"] == close(0.55 + 0.45 * 3)
    assert edges["animal"] == close(2.0)


@settings(max_examples=40)
@given(forest_or_tree, st.data())
def test_the_price_of_vagueness_has_two_ends(h, data):
    p, _ = masses(h, data.draw(st.lists(st.floats(0.01, 1), min_size=len(h.leaves), max_size=len(h.leaves))))
    free = decisions.expected_costs(h, p, price=0.0)
    full = decisions.expected_costs(h, p, price=1.0)
    if h.rooted:
        assert free[h.tops[0]] == 0
    below = structure.children(h)
    for v in h.internal:  # with lca_height and price 1, a child is never dearer than its parent
        assert min(full[child] for child in below[v]) <= full[v] + 1e-12


def test_the_price_is_the_share_at_which_a_leaf_wins():
    for share, price, winner in [
        (0.69, 0.3, "dog"),
        (0.71, 0.3, "husky"),
        (0.49, 0.5, "dog"),
        (0.51, 0.5, "husky"),
    ]:
        p = {"husky": share, "beagle": 1 - share, "persian": 0.0, "siamese": 0.0}
        costs = decisions.expected_costs(ANIMALS, p, price=price)
        assert min(("husky", "dog"), key=costs.__getitem__) == winner


def test_restriction_renormalises():
    assert decisions.restrict(ANIMALS, LEAF_Z, ["beagle", "siamese"]) == close(
        {"beagle": 0.25 / 0.3, "siamese": 0.05 / 0.3, "husky": 0.0, "persian": 0.0}
    )
    node_head = LEAF_Z | {"dog": log(0.1), "cat": log(0.6), "animal": log(0.3)}
    only_dogs = decisions.restrict(ANIMALS, node_head, ["husky"])
    assert nonzero(only_dogs) == close({"husky": 0.3 / 0.7, "dog": 0.1 / 0.7, "animal": 0.3 / 0.7})


def nonzero(row):
    return {v: x for v, x in row.items() if x}


def test_operating_curve_by_hand():
    points = decisions.operating_points(ANIMALS, [MASS, MASS], ["husky", "persian"], [0.6, 0.5, 0.3], ORDER)
    assert points == [(0.0, 1.0), (0.5, 0.5), (1.0, 0.5)]
    assert decisions.operating_area(points) == close(0.625)
    everywhere = decisions.operating_points(
        ANIMALS, [MASS, MASS], ["husky", "persian"], [0.4], ORDER, constrained=False
    )
    assert everywhere == [(1.0, 0.5)]
    assert decisions.operating_area(everywhere) == close(
        0.75
    )  # (0, 1), the root for everybody, is always there
    assert decisions.operating_points(
        ONE_LEAF, [{"root": 1, "only": 1}], ["only"], [0.5], ONE_LEAF.nodes
    ) == [(1, 1)]


def test_risk_coverage_by_hand():
    points = decisions.risk_coverage([0.9, 0.8, 0.1, 0.8], [0, 1, 1, 0])
    assert points == [(0.25, 0.0), (0.75, 1 / 3), (1.0, 0.5)]
    assert decisions.risk_coverage_area(points) == close(0.5 / 3 + 0.125)
    without_ties = decisions.risk_coverage([0.9, 0.8, 0.7], [0, 1, 0])
    assert decisions.risk_coverage_area(without_ties) == close((0 + 1 / 2 + 1 / 3) / 3)


# Metrics


def test_leaf_metrics_by_hand():
    scores = one_hot(PREDS, ANIMALS.leaves)
    assert metrics.top_k_accuracy(scores, TRUTHS, 1, ANIMALS.leaves) == 0.5
    assert metrics.top_k_accuracy(scores, TRUTHS, 2, ANIMALS.leaves) == 1.0
    assert metrics.mistake_severity(ANIMALS, PREDS, TRUTHS) == (1.5, 2)
    assert metrics.hierarchical_distance_at(ANIMALS, scores, TRUTHS, 1, ANIMALS.leaves) == 0.75
    # second best: persian, husky, persian, husky (by position in the label order)
    assert (
        metrics.hierarchical_distance_at(ANIMALS, scores, TRUTHS, 2, ANIMALS.leaves)
        == (3 + 2 + 0 + 0 + 2) / 8
    )
    severity, count = metrics.mistake_severity(ANIMALS, TRUTHS, TRUTHS)
    assert isnan(severity)
    assert count == 0
    assert metrics.level_accuracy(ANIMALS, PREDS, TRUTHS, 1) == 0.75
    assert metrics.level_accuracy(ANIMALS, PREDS, TRUTHS, 2) == 0.5
    assert metrics.level_accuracy(ANIMALS, [None, "dog", "cat", "cat"], TRUTHS, 1) == 0.75
    assert metrics.level_accuracy(ANIMALS, [None, "dog", "cat", "cat"], TRUTHS, 2) == 0
    assert metrics.level_accuracy(RAGGED, ["near", "deep2", "near"], ["near", "deep1", "x2b"], 5) == close(
        2 / 3
    )


def test_class_accuracy_by_hand():
    table = metrics.class_accuracy(ANIMALS, PREDS, TRUTHS, 1)
    assert table == {"dog": (1.0, 2), "cat": (0.5, 2)}
    fine = metrics.class_accuracy(ANIMALS, PREDS, TRUTHS, 2)
    assert fine["husky"] == (0.5, 2)
    assert isnan(fine["beagle"][0])
    assert fine["beagle"][1] == 0


@pytest.mark.parametrize(
    ("preds", "truths", "micro", "macro"),
    [
        (PREDS, TRUTHS, (5 / 8, 5 / 8, 5 / 8), (5 / 8, 5 / 8, 5 / 8)),
        (["dog"], ["husky"], (1, 1 / 2, 2 / 3), (1, 1 / 2, 2 / 3)),
        (["animal"], ["husky"], (1, 0, 0), (1, 0, 0)),
        (["animal", "husky"], ["husky", "husky"], (1, 1 / 2, 2 / 3), (1, 1 / 2, 1 / 2)),
        (["cat", "husky"], ["husky", "husky"], (2 / 3, 1 / 2, 4 / 7), (1 / 2, 1 / 2, 1 / 2)),
    ],
)
def test_hierarchical_precision_and_recall_by_hand(preds, truths, micro, macro):
    assert metrics.hierarchical_prf(ANIMALS, preds, truths, "micro") == close(micro)
    assert metrics.hierarchical_prf(ANIMALS, preds, truths, "macro") == close(macro)


def test_hierarchical_sets_on_forests_and_dags():
    assert metrics.hierarchical_prf(FOREST, ["bird"], ["owl"]) == close((1, 1 / 2, 2 / 3))  # tops count
    assert metrics.hierarchical_prf(FOREST, [None], ["owl"]) == close((1, 0, 0))
    assert metrics.hierarchical_prf(DIAMOND, ["l"], ["shared"])[:2] == close((1 / 2, 1 / 3))


def test_information_by_hand():
    assert [decisions.information(ANIMALS, v) for v in ("animal", "dog", "husky", None)] == [0, 1, 2, 0]
    assert metrics.information_prf(ANIMALS, ["dog"], ["husky"]) == close((1, 1 / 2, 2 / 3))
    assert metrics.information_prf(ANIMALS, ["beagle"], ["husky"]) == close((1 / 2, 1 / 2, 1 / 2))
    assert metrics.information_prf(ANIMALS, ["animal"], ["husky"]) == close((1, 0, 0))
    pair = (["dog", "persian"], ["husky", "husky"])
    assert metrics.information_prf(ANIMALS, *pair, average="macro") == close((1 / 2, 1 / 4, 1 / 3))
    assert metrics.information_prf(ANIMALS, *pair, average="micro") == close((1 / 3, 1 / 4, 2 / 7))
    assert metrics.information_prf(FOREST, ["wren"], ["ray"]) == close((0, 0, 0))
    assert metrics.information_prf(ONE_LEAF, ["root"], ["only"]) == close((1, 1, 1))


def test_paths_by_hand():
    per_level = [["dog", "husky"], ["dog", "persian"], ["cat", "persian"]]
    assert metrics.full_path_accuracy(ANIMALS, per_level, ["husky", "persian", "siamese"]) == close(1 / 3)
    assert metrics.tree_inconsistency(ANIMALS, per_level) == close(1 / 3)
    assert metrics.full_path_accuracy(RAGGED, [["near"] * 6], ["near"]) == 1
    assert metrics.tree_inconsistency(RAGGED, [["near"] * 6, ["near"] * 5 + ["deep1"]]) == 0.5


def test_calibration_by_hand():
    assert metrics.ece([0.95, 0.95, 0.55], [True, False, True], bins=10) == close(2 / 3 * 0.45 + 1 / 3 * 0.45)
    assert metrics.ece([0.95, 1.0], [True, False], bins=10) == close(0.525)  # 1.0 has a bin of its own
    assert metrics.ece([0.5, 0.45], [False, True], bins=2) == close(
        (0.5 + 0.55) / 2
    )  # 0.5 opens the upper bin


@settings(max_examples=40)
@given(forest_or_tree, st.data())
def test_metrics_hang_together(h, data):
    some = st.lists(st.sampled_from(h.leaves), min_size=4, max_size=4)
    preds, truths = data.draw(some), data.draw(some)
    scores = one_hot(preds, h.leaves)
    severity, mistakes = metrics.mistake_severity(h, preds, truths)
    at_one = metrics.hierarchical_distance_at(h, scores, truths, 1, h.leaves)
    assert at_one == close(severity * mistakes / 4 if mistakes else 0.0)
    levels = range(1, structure.max_depth(h) + 1)
    accuracies = [metrics.level_accuracy(h, preds, truths, k) for k in levels]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[-1] == metrics.top_k_accuracy(scores, truths, 1, h.leaves)
    per_level = [[structure.carried(h, a, k) for k in levels] for a in preds]
    assert metrics.tree_inconsistency(h, per_level) == 0
    assert metrics.full_path_accuracy(h, per_level, truths) == accuracies[-1]
    for average in ("micro", "macro"):
        assert all(0 <= x <= 1 for x in metrics.hierarchical_prf(h, preds, truths, average))
        assert metrics.hierarchical_prf(h, truths, truths, average) == close((1, 1, 1))
        assert metrics.information_prf(h, truths, truths, average) == close((1, 1, 1))


@settings(max_examples=30)
@given(forest_or_tree, st.data())
def test_the_walk_s_curve_ends_at_its_leaf_and_only_falls(h, data):
    draws = [
        data.draw(st.lists(st.floats(0.01, 1), min_size=len(h.leaves), max_size=len(h.leaves))) for _ in "abc"
    ]
    q = [masses(h, shares)[1] for shares in draws]
    truths = data.draw(st.lists(st.sampled_from(h.leaves), min_size=3, max_size=3))
    points = decisions.operating_points(h, q, truths, [1.01, 0.75, 0.5, 0.25, 0.0], h.nodes)
    specificity, precision = zip(*points, strict=True)
    assert list(specificity) == close(sorted(specificity))
    assert list(precision) == sorted(precision, reverse=True)
    assert specificity[-1] == close(1.0)
    assert 0 <= decisions.operating_area(points) <= 1 + 1e-12


def test_empty_input_is_nan():
    assert isnan(metrics.level_accuracy(ANIMALS, [], [], 1))
    assert isnan(metrics.top_k_accuracy([], [], 1, ANIMALS.leaves))
    assert isnan(metrics.ece([], []))
    assert all(isnan(x) for x in metrics.hierarchical_prf(ANIMALS, [], []))


def test_leaf_head_masses_are_the_aggregated_softmax():
    log_q = losses.node_log_probs(ANIMALS, LEAF_Z)
    assert {v: exp(x) for v, x in log_q.items()} == close(MASS)
