"""Coarse labels: how much they count, which classes they are compared with, and that they help."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hace import DataError, Hierarchy, build_loss
from hace.data import synthetic_features
from hace.linear.estimator import HACEClassifier
from hace.linear.labels import HiddenClasses, balanced_weights, coarse_loss
from tests.hierarchies import Plain, hierarchies

BIRDS = Hierarchy.from_paths(
    [("bird", "owl", "barn"), ("bird", "owl", "tawny"), ("bird", "wren"), ("bird", "robin")],
    leaves=["barn", "tawny", "wren", "robin"],
)


def nodes_of(h: Hierarchy, *names: str) -> np.ndarray:
    return np.array([h.index(name) for name in names])


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Plain, list[str]]:
    """A hierarchy and labels at any node."""
    plain = draw(hierarchies())
    return plain, draw(st.lists(st.sampled_from(plain.nodes), min_size=1, max_size=30))


def hidden_by_loops(plain: Plain, names: list[str]) -> dict[str, set[str]]:
    """For each coarse label the classes ruled out, from the definition: in fractions, node by node."""

    def above(v: str) -> set[str]:
        return {v}.union(*(above(p) for p in plain.parents[v]))

    below = {v: [c for c in plain.leaves if v in above(c)] for v in plain.nodes}
    share = {v: Fraction(names.count(v), len(below[v])) for v in plain.nodes}
    out: dict[str, set[str]] = {}
    for q in set(names) - set(plain.leaves):
        out[q] = set()
        for c in set(plain.leaves) - set(below[q]):
            hidden = sum((share[u] for u in above(c) & above(q)), Fraction(0))
            explained = sum((share[u] for u in above(c) - above(q)), Fraction(0))
            if hidden > explained:
                out[q].add(c)
    return out


@settings(max_examples=80, deadline=None)
@given(labelled())
def test_hidden_classes_follow_the_definition(case: tuple[Plain, list[str]]) -> None:
    plain, names = case
    h = plain.build()
    hidden = HiddenClasses(nodes_of(h, *names), h, None)
    results = {v: {h.leaves[c] for c in hidden.of(h.index(v))} for v in h.nodes}
    want = hidden_by_loops(plain, names)
    assert results == {v: want.get(v, set()) for v in h.nodes}
    weight = np.full(len(names), 3.0)
    assert (HiddenClasses(nodes_of(h, *names), h, weight).matrix != hidden.matrix).nnz == 0


def test_coarse_labels_never_weigh_more_than_fine_ones() -> None:
    fine, coarse = nodes_of(BIRDS, "wren", "barn"), nodes_of(BIRDS, *["owl"] * 8)
    weight = balanced_weights(np.concatenate([fine, coarse]), BIRDS, None)
    np.testing.assert_allclose(weight, [1, 1, *[0.25] * 8])
    given_weight = np.array([2.0, 1.0, *[0.5] * 8])
    np.testing.assert_allclose(
        balanced_weights(np.concatenate([fine, coarse]), BIRDS, given_weight), [2, 1, *[0.375] * 8]
    )
    assert balanced_weights(np.concatenate([fine, coarse[:1]]), BIRDS, None) is None  # one may count as one
    assert balanced_weights(coarse, BIRDS, None) is None


@pytest.mark.parametrize(
    "name", ["cross_entropy_paths", "hace_paths", "hace", "cross_entropy", "conditional_softmax"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ruled_out_class_takes_no_part(name: str, dtype: torch.dtype) -> None:
    """An owl among barn and tawny owls, wrens ruled out: whatever the wren's own output, loss and gradient are the same."""
    loss = build_loss(name, BIRDS, labels="nodes", reduction="none")
    names = ["barn", "tawny", "wren", *["robin"] * 9, *["bird"] * 9, *["owl"] * 9]
    hidden = HiddenClasses(nodes_of(BIRDS, *names), BIRDS, None)
    assert hidden.of(BIRDS.index("owl")) == [BIRDS.label("wren")]
    limited = coarse_loss(loss, hidden)
    target = torch.from_numpy(nodes_of(BIRDS, "owl", "wren", "bird"))
    wren = BIRDS.label("wren") if loss.head.outputs == "leaves" else BIRDS.index("wren")
    z = torch.randn(3, loss.num_outputs, dtype=dtype, generator=torch.Generator().manual_seed(0))
    low, high = z.clone(), z.clone()
    high[:, wren] += 3.0
    values = []
    for each in (low, high):
        each.requires_grad_()
        values.append(limited(each, target))
        values[-1].sum().backward()
    assert values[0][0] == values[1][0]
    assert torch.isfinite(values[0]).all()
    assert low.grad is not None
    assert low.grad[0, wren] == 0
    assert torch.isfinite(low.grad).all()
    assert values[0][1] > values[1][1]  # a wren is compared with all
    torch.testing.assert_close(limited(z, target)[1:], loss(z, target)[1:])
    assert not torch.isclose(limited(z, target)[0], loss(z, target)[0])
    features, layer = z[:, :3], torch.ones(loss.num_outputs, 3, dtype=dtype).cumsum(0).sin()
    torch.testing.assert_close(
        limited.linear(features, layer, None, target), limited(features @ layer.t(), target)
    )
    assert not loss._forward_pre_hooks


def test_caution_rules_out_what_could_be_hidden() -> None:
    """Nine birds could all be wrens, of which four are known; with nine known, spread evenly or not, wrens stay."""
    names = [*["barn"] * 2, *["tawny"] * 2, *["wren"] * 4, *["robin"] * 9, *["bird"] * 9, *["owl"] * 9]
    owl, wren = BIRDS.index("owl"), BIRDS.label("wren")
    assert HiddenClasses(nodes_of(BIRDS, *names), BIRDS, None).of(owl) == []
    assert HiddenClasses(nodes_of(BIRDS, *names), BIRDS, None, cautious=True).of(owl) == [wren]
    names += ["wren"] * 5
    assert HiddenClasses(nodes_of(BIRDS, *names), BIRDS, None, cautious=True).of(owl) == []


def test_fit_says_how_coarse_labels_were_taken() -> None:
    x, y, _, _ = mixed(3, 0)
    h = synthetic_features(classes=20, dim=24, train=30).hierarchy
    chosen = HACEClassifier(h).fit(x, y).coarse_labels_
    assert chosen in ("balanced", "cautious")
    same, auto = HACEClassifier(h, coarse_labels=chosen).fit(x, y), HACEClassifier(h).fit(x, y)
    np.testing.assert_array_equal(auto.coef_, same.coef_)
    batches = HACEClassifier(h, optimizer="sgd", epochs=1, random_state=0).fit(x, y)
    assert batches.coarse_labels_ == "cautious"


def test_losses_that_ask_for_all_classes_keep_them() -> None:
    smooth = build_loss("hace_paths", BIRDS, labels="nodes", label_smoothing=0.1)
    names = ["barn", "tawny", "wren", "robin", *["bird"] * 9, *["owl"] * 9]
    assert coarse_loss(smooth, HiddenClasses(nodes_of(BIRDS, *names), BIRDS, None)) is smooth


def mixed(fine: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Synthetic features on a ragged tree: some samples a class have its label, the others that of the parent."""
    data = synthetic_features(classes=20, dim=24, train=30)
    h, train, test = data.hierarchy, data["train"], data["test"]
    rng = np.random.default_rng(seed)
    known = np.concatenate([rng.permutation(np.flatnonzero(train.labels == c))[:fine] for c in range(20)])
    nodes = h.parent_nodes[train.nodes]
    nodes[known] = train.nodes[known]
    return np.asarray(train.x), np.array(h.nodes)[nodes], np.asarray(test.x), np.array(h.leaves)[test.labels]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lbfgs", "sgd"])
def test_coarse_labels_help_at_the_defaults(optimizer: str) -> None:
    h = synthetic_features(classes=20, dim=24, train=30).hierarchy
    gains, harms = [], []
    for seed in range(3):
        x, y, x_test, truth = mixed(3, seed)
        right = {
            how: (
                HACEClassifier(h, coarse_labels=how, optimizer=optimizer, random_state=0)
                .fit(x, y)
                .predict(x_test)
                == truth
            )
            for how in ("balanced", "drop", "plain")
        }
        gains.append(right["balanced"].mean() - right["drop"].mean())
        harms.append(right["plain"].mean() - right["drop"].mean())
    assert np.mean(gains) > {"lbfgs": 0.02, "sgd": -0.01}[optimizer]
    assert np.mean(harms) < np.mean(gains) - 0.02


def test_dropping_is_training_without_them() -> None:
    x, y, x_test, _ = mixed(3, 0)
    h = synthetic_features(classes=20, dim=24, train=30).hierarchy
    fine, weight = np.isin(y, h.leaves), np.linspace(1, 2, len(y))
    dropped = HACEClassifier(h, coarse_labels="drop").fit(x, y, weight)
    alone = HACEClassifier(h).fit(x[fine], y[fine], weight[fine])
    np.testing.assert_allclose(dropped.predict_proba(x_test), alone.predict_proba(x_test))
    with pytest.raises(DataError, match="y must hold labels of leaves if coarse_labels is 'drop'"):
        dropped.fit(x[~fine], y[~fine])


@pytest.mark.slow
def test_weights_count_as_repetitions_with_coarse_labels() -> None:
    x, y, x_test, _ = mixed(2, 1)
    h = synthetic_features(classes=20, dim=24, train=30).hierarchy
    twice = np.arange(len(y)) % 3 == 0
    weighted = HACEClassifier(h, tol=1e-7).fit(x, y, np.where(twice, 2.0, 1.0))
    repeated = HACEClassifier(h, tol=1e-7).fit(np.concatenate([x, x[twice]]), np.concatenate([y, y[twice]]))
    np.testing.assert_allclose(weighted.predict_proba(x_test), repeated.predict_proba(x_test), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("ancestor", ["parent", "any"])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_the_default_is_never_worse_than_dropping(share: float, ancestor: str) -> None:
    """On synthetic trees of several shapes; within noise, over all of them."""
    gains = []
    for seed in range(4):
        data = synthetic_features(classes=12 + 4 * seed, dim=16, train=30, test=30, seed=seed)
        h, train, test = data.hierarchy, data["train"], data["test"]
        rng = np.random.default_rng(seed)
        y = np.array(h.nodes, dtype=object)[train.nodes]
        for i in np.flatnonzero(rng.random(len(y)) < share):
            above = h.parents(y[i]) if ancestor == "parent" else h.ancestors(y[i])
            y[i] = above[rng.integers(len(above))] if above else y[i]
        x, truth = np.asarray(train.x), np.array(h.leaves)[test.labels]
        right = [
            HACEClassifier(h, coarse_labels=way).fit(x, y).predict(np.asarray(test.x)) == truth
            for way in ("auto", "drop")
        ]
        gains.append(right[0].mean() - right[1].mean())
    assert np.mean(gains) > -2 * np.std(gains, ddof=1) / len(gains) ** 0.5 - 0.005
