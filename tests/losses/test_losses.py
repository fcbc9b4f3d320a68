"""One contract for every loss: its value and gradient by the loops, its calls by torch."""

from __future__ import annotations

import copy
import itertools
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hace
from hace import LOSSES, Hierarchy, build_loss
from hace.losses.registry import loss_parameters
from tests.hierarchies import NAMED, hierarchies
from tests.loss_cases import (
    CASES,
    ONE_OF_EACH,
    Form,
    each_loss,
    every_case,
    examples,
    in_each_form,
    logits,
    with_gradient,
)
from tests.reference import losses as oracle
from tests.reference import precise

NAMES = {case: [name for name in NAMED if CASES[case].fits(NAMED[name])] for case in CASES}
REDUCTIONS = ("none", "mean", "sum")


def test_the_cases_cover_every_loss() -> None:
    assert {case.loss for case in CASES.values()} == set(LOSSES)
    h = NAMED["animals"].build()
    share = {type(build_loss(name, h)) for name in LOSSES if "sharing" in loss_parameters(name)}
    assert {type(case.build(h)) for case in CASES.values() if case.outputs == "paths"} == share


# ------------------------------------------------------------------ the oracle


@cache
def expected(case: str, name: str, labels: str) -> tuple[list[str], list[float], list[list[float]]]:
    """(labels, values, gradients of the first three): all labels of a named hierarchy by the loops."""
    plain, h = NAMED[name], NAMED[name].build()
    ids = CASES[case].columns(h)
    result = list(h.leaves if labels == "leaves" else h.nodes)
    rows = logits(len(result), len(ids), seed=len(name))
    values = [CASES[case].value(plain, ids, z, y) for z, y in zip(rows, result, strict=True)]
    few = list(zip(rows, result, strict=True))[:3] if labels == "leaves" else []
    return result, values, [CASES[case].gradient(plain, ids, z, y) for z, y in few]


@every_case
@in_each_form
def test_value_and_gradient_are_the_oracle_s(case: str, form: Form) -> None:
    for name in NAMES[case]:
        h = NAMED[name].build()
        labels, values, gradients = expected(case, name, "leaves")
        loss = CASES[case].build(h, reduction="none")
        z = logits(len(labels), loss.num_outputs, seed=len(name)).to(form.dtype).requires_grad_()
        value = loss(z, torch.arange(len(labels)))
        form.close(value, values, name)
        (gradient,) = torch.autograd.grad(value.sum(), z)
        torch.testing.assert_close(
            gradient[:3].double(), torch.tensor(gradients, dtype=torch.float64), rtol=1e-5, atol=2e-6
        )


@every_case
@in_each_form
def test_labels_at_any_node(case: str, form: Form) -> None:
    for name in NAMES[case]:
        h = NAMED[name].build()
        labels, values, _ = expected(case, name, "nodes")
        loss = CASES[case].build(h, reduction="none", labels="nodes")
        z = logits(len(labels), loss.num_outputs, seed=len(name)).to(form.dtype)
        form.close(loss(z, torch.arange(len(labels))), values, name)
        one_hot = torch.eye(len(labels), dtype=form.dtype)
        form.close(loss(z, one_hot), values, name)


@pytest.mark.slow
@examples(60)
@given(
    plain=hierarchies(), case=st.sampled_from(sorted(CASES)), seed=st.integers(0, 9), weighted=st.booleans()
)
def test_random_hierarchies(form: Form, plain, case: str, seed: int, weighted: bool) -> None:
    if not CASES[case].fits(plain):
        return
    h = plain.build()
    ids = CASES[case].columns(h)
    weight = {c: 0.25 + (3 * i) % 5 for i, c in enumerate(h.leaves)} if weighted else None
    given_weight = None if weight is None else [weight[c] for c in h.leaves]
    loss = CASES[case].build(h, reduction="none", weight=given_weight)
    z = logits(h.num_leaves, len(ids), seed)
    values = [CASES[case].value(plain, ids, row, y, weight) for row, y in zip(z, h.leaves, strict=True)]
    z = z.to(form.dtype).requires_grad_()
    value = loss(z, torch.arange(h.num_leaves))
    form.close(value, values)
    (by_label,) = torch.autograd.grad(value.sum(), z)
    soft = loss(z, torch.eye(h.num_leaves, dtype=form.dtype))
    form.close(soft, values)
    (by_soft,) = torch.autograd.grad(soft.sum(), z)
    form.close(by_soft, by_label.double())


@pytest.mark.slow
@every_case
def test_gradcheck(case: str) -> None:
    for name in ("forest", "dag_forest") if "dag_forest" in NAMES[case] else ("forest",):
        h = NAMED[name].build()
        loss = CASES[case].build(h, reduction="none")
        z = logits(h.num_leaves, loss.num_outputs, seed=3).clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda z, f=loss, n=h.num_leaves: f(z, torch.arange(n)), z)
        learnt = torch.eye(h.num_leaves, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda t, f=loss, z=z: f(z.detach(), t), learnt)


# ------------------------------------------------------------------ reductions, weights, ignored samples


@pytest.mark.slow
@every_case
@in_each_form
def test_reduction_with_weights_and_ignored_samples(case: str, form: Form) -> None:
    for reduction, weighted, ignored in itertools.product(REDUCTIONS, [False, True], [[], [1, 4], range(6)]):
        plain = NAMED["forest"]
        h = plain.build()
        ids = CASES[case].columns(h)
        weight = {c: 0.5 + i for i, c in enumerate(h.leaves)} if weighted else None
        z = logits(6, len(ids), seed=5)
        y = torch.tensor([3, 0, 5, 2, 2, 1])
        labels = [h.leaves[i] for i in y.tolist()]
        each = [CASES[case].value(plain, ids, row, c, weight) for row, c in zip(z, labels, strict=True)]
        skip = [i in ignored for i in range(6)]
        wanted = oracle.reduce(each, labels, reduction=reduction, weight=weight, ignored=skip)
        given_weight = None if weight is None else torch.tensor([weight[c] for c in h.leaves])
        loss = CASES[case].build(h, reduction=reduction, weight=given_weight, ignore_index=77)
        y[skip] = 77
        value, gradient = with_gradient(loss, z.to(form.dtype), y)
        form.close(value, wanted, reduction, weighted, ignored)
        assert gradient[~torch.tensor(skip)].isfinite().all()
        assert (gradient[torch.tensor(skip)] == 0).all()


@every_case
@in_each_form
def test_mixtures_are_linear_combinations(case: str, form: Form) -> None:
    for reduction in REDUCTIONS:
        h = NAMED["ragged"].build()
        weight = [0.5, 1.0, 2.0, 1.5, 3.0, 0.25, 1.0]
        loss = CASES[case].build(h, reduction=reduction, weight=weight)
        each = CASES[case].build(h, reduction="none", weight=weight)
        z = logits(5, loss.num_outputs, seed=8).to(form.dtype)
        a, b = torch.tensor([0, 1, 2, 3, 6]), torch.tensor([4, 1, 0, 5, 2])
        share = torch.tensor([0.9, 0.5, 0.25, 0.0, 1.0], dtype=form.dtype)
        one_hot = torch.eye(h.num_leaves, dtype=form.dtype)
        mixed = share[:, None] * one_hot[a] + (1 - share[:, None]) * one_hot[b]
        wanted = (share * each(z, a) + (1 - share) * each(z, b)).double()
        wanted = {"none": wanted, "mean": wanted.sum() / 5, "sum": wanted.sum()}[reduction]
        form.close(loss(z, mixed), wanted)


@each_loss
@in_each_form
def test_soft_targets_are_weights(case: str, form: Form) -> None:
    """As with torch's cross-entropy they need not be a distribution: the loss is linear in them."""
    h = NAMED["ragged"].build()
    loss = CASES[case].build(h, reduction="none")
    z = logits(4, loss.num_outputs, seed=8).to(form.dtype)
    a, b = torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5, 0, 6])
    one_hot = torch.eye(h.num_leaves, dtype=form.dtype)
    wanted = 2.0 * loss(z, a) - 0.5 * loss(z, b)
    form.close(loss(z, 2.0 * one_hot[a] - 0.5 * one_hot[b]), wanted.double())


@each_loss
@in_each_form
def test_soft_targets_of_another_precision(case: str, form: Form) -> None:
    h = NAMED["animals"].build()
    loss = CASES[case].build(h, reduction="none")
    z = logits(4, loss.num_outputs, seed=2).to(form.dtype).requires_grad_()
    wanted = loss(z, torch.arange(4)).detach().double()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        value = loss(z, torch.eye(4, dtype=dtype))
        form.close(value, wanted)
        (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True)
        assert gradient.dtype == form.dtype


@in_each_form
def test_integer_labels_of_any_width(form: Form) -> None:
    dtypes = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    for case, dtype in itertools.product(ONE_OF_EACH, dtypes):
        h = NAMED["animals"].build()
        loss = CASES[case].build(h, reduction="none", ignore_index=100)
        z = logits(4, loss.num_outputs).to(form.dtype)
        y = torch.tensor([0, 3, 100, 1])
        form.close(loss(z, y.to(dtype)), loss(z, y).double())


# ------------------------------------------------------------------ shapes


@each_loss
@in_each_form
def test_extra_dimensions(case: str, form: Form) -> None:
    for reduction in REDUCTIONS:
        h = NAMED["animals"].build()
        loss = CASES[case].build(h, reduction=reduction, weight=[1.0, 2.0, 3.0, 4.0])
        rows = logits(12, loss.num_outputs, seed=4).to(form.dtype)
        y = torch.tensor([0, 1, 2, 3, -100, 2, 1, 0, 3, 3, 2, 0])
        z = rows.reshape(2, 3, 2, -1).permute(0, 3, 1, 2)
        value, gradient = with_gradient(loss, rows, y)
        spread, spread_gradient = with_gradient(loss, z, y.reshape(2, 3, 2))
        form.close(spread, value.double().reshape(2, 3, 2) if reduction == "none" else value.double())
        form.close(spread_gradient.permute(0, 2, 3, 1).reshape(12, -1), gradient.double())
        t = logits(12, 4, seed=9).softmax(dim=1).to(form.dtype)
        value = loss(rows, t).double()
        spread = loss(z, t.reshape(2, 3, 2, 4).permute(0, 3, 1, 2))
        form.close(spread, value.reshape(2, 3, 2) if reduction == "none" else value)


@each_loss
@in_each_form
def test_one_sample_without_a_batch(case: str, form: Form) -> None:
    for reduction in REDUCTIONS:
        h = NAMED["animals"].build()
        loss = CASES[case].build(h, reduction=reduction, weight=[1.0, 2.0, 3.0, 4.0])
        z = logits(1, loss.num_outputs, seed=4).to(form.dtype)
        value, gradient = with_gradient(loss, z, torch.tensor([2]))
        alone, alone_gradient = with_gradient(loss, z[0], torch.tensor(2))
        assert alone.shape == ()
        form.close(alone, value.double().reshape(()))
        form.close(alone_gradient, gradient[0].double())
        form.close(
            loss(z[0], torch.eye(4, dtype=form.dtype)[2]), loss(z, torch.eye(4)[2:3]).double().reshape(())
        )


@pytest.mark.slow
@in_each_form
def test_an_empty_batch(form: Form) -> None:
    shapes = [(0,), (0, 3), (2, 0)]
    for case, reduction, shape, soft in itertools.product(ONE_OF_EACH, REDUCTIONS, shapes, [False, True]):
        h = NAMED["animals"].build()
        loss = CASES[case].build(h, reduction=reduction)
        z = torch.zeros(shape[0], loss.num_outputs, *shape[1:], dtype=form.dtype)
        target = torch.zeros(shape[0], 4, *shape[1:]) if soft else torch.zeros(shape, dtype=torch.long)
        value, gradient = with_gradient(loss, z, target)
        form.close(value, {"none": np.zeros(shape), "mean": np.nan, "sum": 0.0}[reduction])
        assert gradient.shape == z.shape


# ------------------------------------------------------------------ torch itself, where the hierarchy is flat

FLAT_EQUALS = [  # losses that are cross-entropy when no class is nearer than another
    ("cross_entropy", {}),
    ("hce", {}),
    ("hace", {"dilution": 0.3}),
    ("ancestral_smoothing", {"dilution": 0.3}),
    ("hace_leaves", {"dilution": 0.3}),
    ("hace_paths", {"dilution": 0.3, "sharing": 0.5}),
    ("cross_entropy_paths", {}),
    ("hxe", {"alpha": 0.7}),
    ("conditional_softmax", {}),
    ("simloss", {"reduction_factor": 0.0}),
]
SMOOTHED = ("cross_entropy", "hace", "ancestral_smoothing", "hace_leaves")
FLAT_CASES = [(name, params, 0.0) for name, params in FLAT_EQUALS] + [
    (name, params, 0.2) for name, params in FLAT_EQUALS if name in SMOOTHED
]
TARGETS = {
    "labels": torch.tensor([0, 4, 2, 2]),
    "ignored": torch.tensor([0, 3, 1, 3]),
    "all_ignored": torch.tensor([3, 3, 3, 3]),
    "empty": torch.zeros(0, dtype=torch.long),
    "grid": torch.tensor([[0, 1, 2], [3, 4, 0]]),
    "scalar": torch.tensor(1),
    "soft": logits(4, 5, seed=1).softmax(dim=1),
    "soft_empty": torch.zeros(0, 5),
    "soft_grid": logits(2, 15, seed=1).reshape(2, 5, 3).softmax(dim=1),
    "soft_alone": logits(1, 5, seed=1)[0].softmax(dim=0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params", "smoothing"), FLAT_CASES)
@in_each_form
def test_on_a_flat_hierarchy_it_is_torch_s(name: str, params: dict, smoothing: float, form: Form) -> None:
    """Value, shape and gradient for all reductions, with and without weights; class 3 is ignored."""
    for kind in TARGETS:
        compare_with_torch(name, params, smoothing, TARGETS[kind], form)


def compare_with_torch(name: str, params: dict, smoothing: float, target: Tensor, form: Form) -> None:
    soft = target.is_floating_point()
    target = target.to(form.dtype) if soft else target
    shape = target.shape if soft else torch.Size((*target.shape[:1], 5, *target.shape[1:]))
    z = logits(1, 40, seed=6).flatten()[: shape.numel()].reshape(shape).to(form.dtype)
    if smoothing:
        params = {**params, "label_smoothing": smoothing}
    for reduction, weight in itertools.product(REDUCTIONS, [None, [0.5, 2.0, 1.0, 3.0, 0.25]]):
        weight = None if weight is None else torch.tensor(weight, dtype=form.dtype)
        shared = {"reduction": reduction, "ignore_index": -100 if soft else 3, "weight": weight}
        ours = build_loss(name, Hierarchy.flat(list("abcde")), **params, **shared)
        theirs = nn.CrossEntropyLoss(label_smoothing=smoothing, **shared)
        value, gradient = with_gradient(ours, z, target)
        wanted, wanted_gradient = with_gradient(theirs, z, target)  # type: ignore[arg-type]
        assert value.shape == wanted.shape
        form.close(value, wanted.double(), reduction, weight)
        # Where all is ignored torch's smoothing divides 0 by 0 in the gradient too; ours is 0.
        form.close(gradient, torch.nan_to_num(wanted_gradient.double()), reduction, weight)


# ------------------------------------------------------------------ a module among modules


def test_state_stays_empty_and_tables_exact() -> None:
    for case in ONE_OF_EACH:
        loss = CASES[case].build(NAMED["ragged"].build(), weight=[0.1] * 7)
        before = {name: buffer.clone() for name, buffer in loss.named_buffers()}
        assert before
        assert loss.state_dict() == {}
        assert list(loss.parameters()) == []
        model = nn.Sequential(nn.Linear(3, 4), loss).to(torch.bfloat16).half().to("cpu", torch.float32)
        assert set(model.state_dict()) == {"0.weight", "0.bias"}
        for name, buffer in loss.named_buffers():
            assert buffer.dtype == before[name].dtype, name
            assert torch.equal(buffer, before[name]), name


def test_copies_compute_the_same() -> None:
    for case in ONE_OF_EACH:
        loss = CASES[case].build(NAMED["ragged"].build(), weight=[0.1, 1, 1, 2, 1, 1, 1], ignore_index=2)
        z, y = logits(7, loss.num_outputs).float(), torch.arange(7)
        for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
            assert torch.equal(twin(z, y), loss(z, y))
            assert repr(twin) == repr(loss)
            assert twin.hierarchy == loss.hierarchy


def test_a_copy_with_another_reduction_moves_alone() -> None:
    for case in ONE_OF_EACH:
        loss = CASES[case].build(NAMED["ragged"].build(), weight=[0.1, 1, 1, 2, 1, 1, 1])
        z, y = logits(7, loss.num_outputs).float(), torch.arange(7)
        before = loss(z, y)
        twin = loss.reduced_by("none")
        assert [b.data_ptr() for b in twin.buffers()] == [b.data_ptr() for b in loss.buffers()], "shared"
        twin(z, y)
        twin.to("meta")
        assert {buffer.device.type for buffer in loss.buffers()} == {"cpu"}, case
        assert {buffer.device.type for buffer in twin.buffers()} == {"meta"}, case
        assert torch.equal(loss(z, y), before)
        other = loss.reduced_by("none")
        loss.to("meta")
        assert other(z, y).shape == (7,)


@in_each_form
def test_constants_are_set_when_the_loss_is_built(form: Form) -> None:
    """The table holds the class weights, so assigning them later would be half a change."""
    h = NAMED["animals"].build()
    for case in ONE_OF_EACH:
        loss = CASES[case].build(h, weight=[0.25, 1.0, 1.0, 4.0])
        z, y = logits(4, loss.num_outputs).to(form.dtype), torch.arange(4)
        before = loss(z, y)
        weight = torch.tensor([4.0, 1.0, 1.0, 0.25]).double()
        with pytest.raises(hace.ConfigError, match=r"label_weight must be set when the loss is built\. Got"):
            loss.label_weight = weight
        loss.load_state_dict({"label_weight": weight}, strict=False)
        assert torch.equal(loss(z, y), before), case


def test_repr_shows_the_parameters() -> None:
    for case in CASES.values():
        loss = case.build(NAMED["animals"].build(), reduction="sum", labels="nodes")
        shown = repr(loss)
        assert type(loss).__name__ in shown
        assert repr(loss.hierarchy) in shown
        assert "labels='nodes', reduction='sum'" in shown
        for name, value in case.params.items():
            assert f"{name}={value!r}" in shown, (case, name)


# ------------------------------------------------------------------ what a head says about nodes and classes


@pytest.mark.slow
@each_loss
@in_each_form
def test_log_probs_of_nodes_and_logits_of_leaves(case: str, form: Form) -> None:
    for name in NAMES[case]:
        plain, h = NAMED[name], NAMED[name].build()
        loss = CASES[case].build(h)
        ids = CASES[case].columns(h)
        z = logits(3, len(ids), seed=7).to(form.dtype)
        rows = [CASES[case].classes(plain, ids, row) for row in z]
        if (scored := CASES[case].scores) is not None:
            rows = [scored(plain, row) for row in rows]
        conditional = case == "conditional_softmax"
        by_loop = oracle.conditional_log_probs if conditional else oracle.node_log_probs
        wanted = torch.tensor(
            [[by_loop(plain, row)[v] for v in h.nodes] for row in rows], dtype=torch.float64
        )
        for scores in (z, z.clone().requires_grad_()):
            form.close(loss.node_log_probs(scores), wanted, name)
        leaf = loss.leaf_logits(z)
        if conditional:
            form.close(leaf, wanted[:, h.leaf_nodes.tolist()])
        elif scored is not None:
            form.close(leaf, [[row[c] for c in h.leaves] for row in rows])
        elif CASES[case].outputs == "paths":
            form.close(leaf, [[row[c] for c in h.leaves] for row in rows])
            free = {"outputs": "paths", "sharing": CASES[case].sharing}
            assert torch.equal(hace.leaf_logits(z, h, **free), leaf)
            assert torch.equal(hace.node_log_probs(z, h, **free), loss.node_log_probs(z))
        else:
            assert torch.equal(leaf, z[:, [ids.index(c) for c in h.leaves]])
            free = {"outputs": CASES[case].outputs}
            form.close(hace.node_log_probs(z, h, **free), wanted)
            assert torch.equal(hace.leaf_logits(z, h, **free), leaf)
            assert torch.equal(hace.leaf_logits(z, h), leaf)
            assert torch.equal(hace.node_log_probs(z, h), hace.node_log_probs(z, h, **free))
        wide = z.t().reshape(1, len(ids), 3)  # (B, C, d1)
        form.close(loss.node_log_probs(wide), wanted.t().reshape(1, h.num_nodes, 3))
        assert torch.equal(loss.leaf_logits(wide), leaf.t().reshape(1, h.num_leaves, 3))
        form.close(loss.node_log_probs(z[0]), wanted[0])
        assert torch.equal(loss.leaf_logits(z[0]), leaf[0])
        assert loss.node_log_probs(z[:0]).shape == (0, h.num_nodes)


@examples(40)
@given(plain=hierarchies(), outputs=st.sampled_from(["nodes", "leaves"]))
def test_log_probs_on_random_hierarchies(form: Form, plain, outputs: str) -> None:
    h = plain.build()
    ids = h.nodes if outputs == "nodes" else h.leaves
    z = logits(2, len(ids), seed=7)
    rows = [oracle.node_log_probs(plain, oracle.columns(ids, row.tolist())) for row in z]
    wanted = torch.tensor([[row[v] for v in h.nodes] for row in rows], dtype=torch.float64)
    form.close(hace.node_log_probs(z.to(form.dtype), h, outputs), wanted)
    given_z = z.to(form.dtype).requires_grad_()
    form.close(hace.node_log_probs(given_z, h, outputs), wanted)


def gradient_of_log_probs(z: Tensor, h: Hierarchy) -> Tensor:
    z = z.clone().requires_grad_()
    mixture = torch.linspace(-1.0, 1.0, h.num_nodes, dtype=z.dtype)
    (gradient,) = torch.autograd.grad((hace.node_log_probs(z, h, "nodes") * mixture).sum(), z)
    return gradient


@pytest.mark.parametrize("name", NAMED)
@in_each_form
def test_gradient_of_log_probs(name: str, form: Form) -> None:
    plain, h = NAMED[name], NAMED[name].build()
    z = logits(1, h.num_nodes, seed=7)
    mixture = torch.linspace(-1.0, 1.0, h.num_nodes, dtype=torch.float64).tolist()

    def value(row: dict[str, float]) -> float:
        result = oracle.node_log_probs(plain, row)
        return sum(m * result[v] for v, m in zip(h.nodes, mixture, strict=True))

    slopes = precise.numeric_gradient(value, oracle.columns(h.nodes, z[0].tolist()))
    wanted = torch.tensor([[slopes[v] for v in h.nodes]], dtype=torch.float64)
    result = gradient_of_log_probs(z.to(form.dtype), h).double()
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)
