"""Bad input: each error names the argument, the rule, the value and, where there is one, the remedy."""

from __future__ import annotations

import itertools
import re
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch

import hace
from hace import LOSSES, ConfigError, DataError, HaceError, HACELoss, Hierarchy, HierarchyError, build_loss
from hace.losses.registry import loss_parameters
from tests.hierarchies import ANIMALS, DIAMOND, STAR
from tests.loss_cases import CASES, ONE_OF_EACH, Form, each_loss, in_each_form

h = ANIMALS.build()  # 7 nodes, 4 leaves


def says(text: str) -> str:
    return re.escape(text)


# ------------------------------------------------------------------ the head


@each_loss
def test_a_head_of_the_wrong_width(case: str) -> None:
    loss = CASES[case].build(h)
    other = 11 - loss.num_outputs  # 4 leaves, 7 nodes
    mine, theirs = ("nodes", "leaves") if loss.num_outputs == 7 else ("leaves", "nodes")
    message = (
        f"{type(loss).__name__} expects logits over all {loss.num_outputs} {mine}, got {other} columns. "
        f"That is the number of {theirs}. Build the model with num_classes=loss.num_outputs."
    )
    for shape in ((2, other), (other,), (2, other, 3)):
        target = torch.zeros((shape[0], *shape[2:]) if len(shape) > 1 else (), dtype=torch.long)
        with pytest.raises(DataError, match=says(message)):
            loss(torch.zeros(shape), target)
    with pytest.raises(
        DataError, match=says(f"over all {loss.num_outputs} {mine}, got 5 columns. Build the model with")
    ) as caught:
        loss(torch.zeros(2, 5), torch.zeros(2, dtype=torch.long))
    assert "That is the number" not in str(caught.value)
    for helper in (loss.leaf_logits, loss.node_log_probs):
        with pytest.raises(DataError, match=says(f"expects logits over all {loss.num_outputs} {mine}")):
            helper(torch.zeros(2, other))


@pytest.mark.parametrize(
    ("z", "got"),
    [
        (torch.zeros(2, 7, dtype=torch.long), "torch.int64 of shape (2, 7)"),
        (torch.tensor(0.0), "torch.float32 of shape ()"),
        ([[0.0] * 7], "list"),
        (None, "NoneType"),
    ],
)
def test_input_that_is_no_logits(z: Any, got: str) -> None:
    message = f"input must be a tensor of floating-point logits (B, C) or (B, C, d1, ...). Got {got}."
    for name in LOSSES:
        with pytest.raises(DataError, match=says(message)):
            build_loss(name, h)(z, torch.zeros(2, dtype=torch.long))


def test_scores_of_the_wrong_width() -> None:
    message = "scores must have 4 columns (leaves, in label order) or 7 (nodes, in node order). Got 5."
    for function in (hace.leaf_logits, hace.node_log_probs):
        with pytest.raises(DataError, match=says(message)):
            function(torch.zeros(2, 5), h)
        with pytest.raises(DataError, match="expects logits over all 7 nodes, got 4 columns"):
            function(torch.zeros(2, 4), h, "nodes")
        with pytest.raises(
            ConfigError, match=says("outputs must be one of 'nodes', 'leaves', 'paths'. Got 'roots'.")
        ):
            function(torch.zeros(2, 4), h, "roots")
    with pytest.raises(ConfigError, match=says("outputs must be one of 'nodes', 'leaves'. Got 'roots'.")):
        hace.reachability_matrix(h, "roots")


# ------------------------------------------------------------------ targets


@each_loss
@in_each_form
def test_a_label_out_of_range(case: str, form: Form) -> None:
    for reduction, bad in itertools.product(("mean", "none"), (4, 7, -1, -99)):
        message = f"target must hold labels from 0 to 3 (or ignore_index=-100). Got {bad}."
        loss = CASES[case].build(h, reduction=reduction)
        z = torch.zeros(3, loss.num_outputs, dtype=form.dtype, requires_grad=True)
        with pytest.raises(DataError, match=says(message)):
            loss(z, torch.tensor([0, bad, -100]))
    loss = CASES[case].build(h, labels="nodes", ignore_index=9)
    with pytest.raises(DataError, match=says("labels from 0 to 6 (or ignore_index=9). Got -100.")):
        loss(torch.zeros(2, loss.num_outputs), torch.tensor([6, -100]))


def test_targets_of_the_wrong_kind() -> None:
    for name in LOSSES:
        loss = build_loss(name, h)
        z = torch.zeros(2, loss.num_outputs)
        for dtype in (torch.bool, torch.complex64):
            message = f"target must hold integer labels or floating-point soft targets. Got {dtype}."
            with pytest.raises(DataError, match=says(message)):
                loss(z, torch.zeros(2, dtype=dtype))
        for target in ([0, 1], 0, None):
            message = f"target must be a tensor of labels or soft targets. Got {type(target).__name__}."
            with pytest.raises(DataError, match=says(message)):
                loss(z, target)


def test_targets_of_the_wrong_shape() -> None:
    for case in ONE_OF_EACH:
        loss = CASES[case].build(h)
        z = torch.zeros(2, loss.num_outputs)
        message = "target must have the shape of input without its class dimension, (2,). Got (3,)."
        with pytest.raises(DataError, match=says(message)):
            loss(z, torch.zeros(3, dtype=torch.long))
        message = "Got (2, 4). Soft targets must be floating-point (use target.float())."
        with pytest.raises(DataError, match=says(message)):
            loss(z, torch.zeros(2, 4, dtype=torch.long))
        with pytest.raises(DataError, match=says("Soft target must have shape (2, 4). Got (2, 3).")):
            loss(z, torch.zeros(2, 3))
        with pytest.raises(DataError, match=says("(2, 4). Got (2,). Integer labels must have an integer")):
            loss(z, torch.zeros(2))
        if loss.num_outputs == 7:
            message = "(2, 4). Got (2, 7). Soft targets are over the 4 leaves, not over the head's columns."
            with pytest.raises(DataError, match=says(message)):
                loss(z, torch.zeros(2, 7))
        loss = CASES[case].build(h, labels="nodes")
        with pytest.raises(DataError, match=says("Soft target must have shape (2, 7). Got (2, 4).")):
            loss(z, torch.zeros(2, 4))


def test_targets_with_a_dimension_too_many_or_too_few() -> None:
    rule = "target must have the shape of input without its class dimension, "
    for case in ONE_OF_EACH:
        loss = CASES[case].build(h)
        z = torch.zeros(2, loss.num_outputs)
        with pytest.raises(DataError, match=says(f"{rule}(2,). Got (2, 1). Use target.reshape((2,)).")):
            loss(z, torch.zeros(2, 1, dtype=torch.long))
        with pytest.raises(DataError, match=says(f"{rule}(2,). Got ().")):
            loss(z, torch.tensor(1))
        with pytest.raises(DataError, match=says(f"{rule}(1,). Got (). Use target.reshape((1,)).")):
            loss(z[:1], torch.tensor(1))
        with pytest.raises(DataError, match=says(f"{rule}(). Got (1,). Use target.reshape(()).")):
            loss(z[0], torch.tensor([1]))
        with pytest.raises(DataError, match=says("Soft target must have shape (2, 4). Got ().")):
            loss(z, torch.tensor(1.0))
        with pytest.raises(DataError, match=says("Soft target must have shape (2, 4). Got (2, 1).")):
            loss(z, torch.zeros(2, 1))


SPARSE = [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@each_loss
@in_each_form
def test_sparse_tensors(case: str, form: Form) -> None:
    loss = CASES[case].build(h)
    z = torch.ones(2, loss.num_outputs, dtype=form.dtype)
    for to_sparse in SPARSE:
        sparse = to_sparse(z)
        message = f"input must be a dense tensor. Got layout {sparse.layout}. Use input.to_dense()."
        for call in (lambda z: loss(z, torch.tensor([0, 1])), loss.leaf_logits, loss.node_log_probs):
            with pytest.raises(DataError, match=says(message)):
                call(sparse)
    for target in (torch.tensor([0, 1]).to_sparse(), torch.eye(4)[:2].to_sparse()):
        message = "target must be a dense tensor. Got layout torch.sparse_coo. Use target.to_dense()."
        with pytest.raises(DataError, match=says(message)):
            loss(z, target)


@each_loss
@in_each_form
def test_tensors_on_another_device(case: str, form: Form) -> None:
    loss = CASES[case].build(h)
    z, y = torch.ones(2, loss.num_outputs, dtype=form.dtype), torch.tensor([0, 1])
    message = "input must be on the device of the loss, cpu. Got meta. Use loss.to(input.device)."
    for call in (lambda z: loss(z, y), loss.leaf_logits, loss.node_log_probs):
        with pytest.raises(DataError, match=says(message)):
            call(z.to("meta"))
    for target in (y, torch.eye(4)[:2]):
        message = "target must be on the device of input, cpu. Got meta. Use target.to(input.device)."
        with pytest.raises(DataError, match=says(message)):
            loss(z, target.to("meta"))
    loss.to("meta")
    with pytest.raises(DataError, match=says("input must be on the device of the loss, meta. Got cpu.")):
        loss(z, y)
    for target in (y, torch.eye(4)[:2]):
        assert loss(z.to("meta"), target.to("meta")).shape == ()


def test_a_last_layer_that_does_not_fit() -> None:
    loss = HACELoss(h)
    x, weight, y = torch.ones(2, 3), torch.ones(7, 3), torch.tensor([0, 1])
    for target, message in (
        (None, "target must be a tensor of labels or soft targets. Got NoneType."),
        (torch.tensor(1.0), "Soft target must have shape (2, 4). Got ()."),
        (y[:, None], "Got (2, 1). Use target.reshape((2,))."),
        (y.to_sparse(), "target must be a dense tensor. Got layout torch.sparse_coo."),
        (y.to("meta"), "target must be on the device of features, cpu. Got meta."),
    ):
        with pytest.raises(DataError, match=says(message)):
            loss.linear(x, weight, None, target)  # pyright: ignore[reportArgumentType]
    for name, layer in {
        "features": ("x", weight, None),
        "weight": (x, "w", None),
        "bias": (x, weight, "b"),
    }.items():
        with pytest.raises(DataError, match=says(f"{name} must be a floating-point tensor. Got str.")):
            loss.linear(*layer, y)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        DataError, match=says("features must be a dense tensor. Got layout torch.sparse_coo.")
    ):
        loss.linear(x.to_sparse(), weight, None, y)
    with pytest.raises(DataError, match=says("weight must be on the device of features, meta. Got cpu.")):
        loss.linear(x.to("meta"), weight, None, y)


def test_scores_that_are_no_logits() -> None:
    for function in (hace.leaf_logits, hace.node_log_probs):
        for z, got in (
            ([[0.0] * 7], "list"),
            (torch.tensor(0.0), "torch.float32 of shape ()"),
            (torch.zeros(2, 7, dtype=torch.long), "torch.int64 of shape (2, 7)"),
        ):
            with pytest.raises(DataError, match=says(f"Got {got}.")):
                function(z, h)
        with pytest.raises(
            DataError, match=says("input must be a dense tensor. Got layout torch.sparse_coo.")
        ):
            function(torch.ones(2, 7).to_sparse(), h)
        with pytest.raises(ConfigError, match=says("hierarchy must be a hace.Hierarchy. Got str.")):
            function(torch.zeros(2, 7), "tree.csv")


# ------------------------------------------------------------------ parameters

OUT_OF_RANGE = [
    ("hace", "dilution", "in (0, 1]", [0, 0.0, -0.1, 1.01, nan, inf, "0.5", None, True]),
    ("hace", "label_smoothing", "in [0, 1)", [-0.1, 1.0, 2, nan, "0.1", None]),
    (
        "hace",
        "level_weights",
        "'uniform', 'linear', or numbers >= 0 that sum to 1",
        ["flat", [], [0.5, 0.4], [1.5, -0.5], 0.5, [nan, 1.0], np.array(1.0)],
    ),
    ("hace", "soft_label_beta", "a number above 0, or None", [0, -1.0, nan, inf, "10"]),
    ("hace_leaves", "dilution", "in (0, 1]", [0, 2]),
    ("ancestral_smoothing", "dilution", "in (0, 1]", [0, 2]),
    ("cross_entropy", "label_smoothing", "in [0, 1)", [-0.1, 1.0, nan]),
    ("soft_label", "beta", "a number above 0", [0, -1.0, nan, inf, None, "10"]),
    ("hxe", "alpha", "a number >= 0", [-0.1, nan, inf, None, "0.5"]),
    ("simloss", "reduction_factor", "in [0, 1)", [-0.1, 1.0, nan, None]),
    ("hace_paths", "sharing", "a number >= 0", [-0.1, nan, inf, None, "1", True]),
]
CHOICES = [
    ("hxe", "decay", "'depth', 'height'", "width"),
    ("hxe", "normalize", "None, 'tree'", "none"),
    ("hace", "labels", "'leaves', 'nodes'", "classes"),
    ("hxe", "outputs", "'leaves', 'paths'", "nodes"),
    ("cross_entropy", "outputs", "'leaves', 'paths'", "nodes"),
    ("hace", "reduction", "'none', 'mean', 'sum'", "batchmean"),
]


@pytest.mark.parametrize(("name", "argument", "rule", "values"), OUT_OF_RANGE)
def test_a_number_out_of_range(name: str, argument: str, rule: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=says(f"{argument} must be {rule}. Got {value!r}.")):
            build_loss(name, h, **{argument: value})


@pytest.mark.parametrize(("name", "argument", "choices", "value"), CHOICES)
def test_a_word_that_is_no_choice(name: str, argument: str, choices: str, value: str) -> None:
    with pytest.raises(ConfigError, match=says(f"{argument} must be one of {choices}. Got {value!r}.")):
        build_loss(name, h, **{argument: value})


def test_an_array_in_place_of_a_word() -> None:
    for argument in ("outputs", "labels", "reduction"):
        with pytest.raises(ConfigError, match=says(f"{argument} must be one of ")):
            HACELoss(h, aggregate=False, **{argument: np.array([1.0, 2.0])})  # pyright: ignore[reportArgumentType]


def test_a_decay_beyond_any_float_is_one_of_them() -> None:
    for decay, normalize in itertools.product(("depth", "height"), (None, "tree")):
        loss = build_loss("hxe", h, alpha=10**30, decay=decay, normalize=normalize)
        assert not loss(torch.zeros(1, 4), torch.tensor([0])).isnan()


@pytest.mark.parametrize("name", ["hace", "soft_label", "simloss", "expected_distance"])
def test_a_distance_that_is_none(name: str) -> None:
    beta = {"soft_label_beta": 2.0} if name == "hace" else {}
    with pytest.raises(HaceError, match="'miles'") as caught:
        build_loss(name, h, distance="miles", **beta)
    assert "lca_height" in str(caught.value)


def test_a_similarity_that_is_none() -> None:
    odd: list[Any] = [
        [[1.0]],
        [[0.0] * 4] * 4,
        [[-1.0] * 4] * 4,
        [[nan] * 4] * 4,
        "near",
        [[1.0, 2.0], [1.0]],
    ]
    odd += [torch.zeros(4, 4, device="meta"), torch.eye(4).to_sparse()]
    for bad in odd:
        with pytest.raises(ConfigError, match=says("similarity must hold 4 x 4 numbers >= 0")):
            build_loss("simloss", h, similarity=bad)


def test_parameters_that_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=says("level_weights must come without a dilution")):
        HACELoss(h, 0.3, level_weights="uniform")
    with pytest.raises(ConfigError, match=says("aggregate=False must come with outputs='nodes'")):
        HACELoss(h, aggregate=False, outputs="leaves")
    with pytest.raises(ConfigError, match=says("Got outputs='paths'")):
        HACELoss(h, aggregate=False, outputs="paths")
    with pytest.raises(
        ConfigError, match=says("sharing must come with outputs='paths'. Got outputs='nodes'")
    ):
        HACELoss(h, sharing=0.5)


def test_a_layer_that_does_not_collapse() -> None:
    with pytest.raises(
        ConfigError, match=says("outputs must be 'paths' for a head that collapses. Got 'nodes'.")
    ):
        HACELoss(h).collapse(torch.zeros(7, 2))
    loss = HACELoss(h, outputs="paths")
    with pytest.raises(DataError, match=says("expects logits over all 7 nodes, got 4 columns")):
        loss.collapse(torch.zeros(4, 2))
    with pytest.raises(DataError, match=says("weight must be (N, d), and bias (N,) or None. Got (7,)")):
        loss.collapse(torch.zeros(7))


def test_a_weight_that_does_not_fit() -> None:
    for case in ONE_OF_EACH:
        for weight, shape in (
            ([1.0] * 7, (7,)),
            (torch.ones(3), (3,)),
            (torch.ones(4, 1), (4, 1)),
            (2.0, ()),
        ):
            message = f"weight must have one entry for each of the 4 leaves. Got shape {shape}."
            with pytest.raises(ConfigError, match=says(message)):
                CASES[case].build(h, weight=weight)
        with pytest.raises(ConfigError, match=says("each of the 7 nodes. Got shape (4,).")):
            CASES[case].build(h, weight=[1.0] * 4, labels="nodes")
        for bad in (nan, inf, -1.0):
            with pytest.raises(ConfigError, match="weight must be finite and not negative"):
                CASES[case].build(h, weight=[1.0, bad, 1.0, 1.0])


@pytest.mark.parametrize("name", ["hxe", "conditional_softmax"])
def test_a_dag_where_a_tree_is_required(name: str) -> None:
    with pytest.raises(
        HierarchyError, match="must be a tree or forest, with at most one parent per node"
    ) as caught:
        build_loss(name, DIAMOND.build())
    assert "HACELoss and HCELoss take DAGs." in str(caught.value)


def test_something_else_than_a_hierarchy() -> None:
    for name in LOSSES:
        for value in (None, "tree.csv", STAR):
            message = f"hierarchy must be a hace.Hierarchy. Got {type(value).__name__}."
            with pytest.raises(ConfigError, match=says(message)):
                build_loss(name, value)  # type: ignore[arg-type]


def test_a_reduction_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"reduction must be one of 'none', 'mean', 'sum'\. Got 'avg'"):
        build_loss("hace", h).reduced_by("avg")  # type: ignore[arg-type]


# ------------------------------------------------------------------ the registry


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=says("loss must be one of 'cross_entropy', ")) as caught:
        build_loss("hxee", h)
    assert "Did you mean 'hxe'" in str(caught.value)
    with pytest.raises(
        ConfigError, match=says("Parameters of loss 'hace' must be among dilution, ")
    ) as caught:
        build_loss("hace", h, dilutoin=0.5)
    assert "Did you mean 'dilution'" in str(caught.value)
    assert "ignore_index" in str(caught.value)


def test_every_parameter_is_known_by_name() -> None:
    for case in CASES.values():
        known = loss_parameters(case.loss)
        assert {*case.params, "labels", "weight", "ignore_index", "reduction"} <= set(known)
        assert "hierarchy" not in known
        assert isinstance(case.build(Hierarchy.flat(["a", "b"])), torch.nn.Module)
