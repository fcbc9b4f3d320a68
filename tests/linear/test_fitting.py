"""Linear heads: L-BFGS against scikit-learn, validation and early stop, sample weights, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression

from hace import ConfigError, CrossEntropyLoss, DataError, HACEClassifier, Hierarchy, build_loss
from hace.linear import FittedHead, Optimization, Trial, fit_heads, head_scores, heads, lbfgs
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall, PoincareHead
from tests.linear.test_linear import DAG, TREE, blobs, same_bits

LBFGS = Optimization("lbfgs")
FULL = Optimization("sgd", epochs=5, batch_size=10_000)


def one(x: Any, y: Any, trial: Trial, options: Optimization, **rest: Any) -> FittedHead:
    return fit_heads(x, y, [trial], options, **rest)[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lbfgs"])
def test_heads_with_many_outputs_fit_without_their_logits(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond `LARGE` outputs the same steps are taken, to rounding; a head that diverges is dropped."""
    x, y = blobs()
    weight = 0.5 + np.arange(len(x)) % 3
    loss = build_loss("hace", TREE, weight=np.linspace(1, 2, TREE.num_leaves))
    trials = [Trial(loss, lr, weight_decay=0.01) for lr in (0.05, 1e30, 0.1)]
    trials = trials[:1] if optimizer == "lbfgs" else trials
    options = Optimization(optimizer, epochs=3, batch_size=16)
    # L-BFGS comes by another way, to within tolerance / decay; nothing holds the biases of inner nodes where they end.
    close = {"atol": 2e-4, "rtol": 0.0} if optimizer == "lbfgs" else {"atol": 1e-5, "rtol": 1e-4}
    wanted = fit_heads(x, y, trials, options, sample_weight=weight)
    used = []
    monkeypatch.setattr(
        type(loss), "linear", lambda self, *a: used.append(1) or HierarchicalLoss.linear(self, *a)
    )
    for module in (heads, lbfgs):
        monkeypatch.setattr(module, "LARGE", 4)
    for one, other in zip(fit_heads(x, y, trials, options, sample_weight=weight), wanted, strict=True):
        assert used
        assert one.diverged == other.diverged
        torch.testing.assert_close(one.weight, other.weight, **close)
        if optimizer != "lbfgs":
            assert one.bias is not None
            torch.testing.assert_close(one.bias, other.bias, **close)
        assert [r["loss"] for r in one.history] == pytest.approx([r["loss"] for r in other.history], rel=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_hyperbolic_heads_are_those_of_torch_s_own_optimisers(optimizer: str) -> None:
    """All samples as one batch: each head as PoincareHead trains by hand, and head_scores in the same ball."""
    x, y = blobs()
    ball, loss = PoincareBall(0.5, 2.0), build_loss("hace", TREE)
    options = Optimization(optimizer, "constant", epochs=4, batch_size=10_000, ball=ball)
    trials = [Trial(loss, lr, weight_decay=0.01) for lr in (0.1, 0.4)]
    (begun,) = fit_heads(x, y, [Trial(loss, 1e-30)], options)
    for trial, head in zip(trials, fit_heads(x, y, trials, options), strict=True):
        wanted = PoincareHead(16, loss.num_outputs, curvature=0.5, clip=2.0)
        assert begun.bias is not None
        wanted.load_state_dict({"weight": begun.weight, "bias": begun.bias})
        groups = [
            {"params": [wanted.weight], "weight_decay": 0.01},
            {"params": [wanted.bias], "weight_decay": 0.0},
        ]
        made = (
            torch.optim.SGD(groups, trial.lr, 0.9)
            if optimizer == "sgd"
            else torch.optim.AdamW(groups, trial.lr)
        )
        for _ in range(options.epochs):
            made.zero_grad()
            loss(wanted(x), y).backward()
            made.step()
        torch.testing.assert_close(head.weight, wanted.weight.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(head_scores(x, head), wanted(x).detach(), rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------------- L-BFGS


@pytest.mark.parametrize("data", ["iris", "digits"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strength", [1.0, 0.01])
def test_lbfgs_is_logistic_regression(data: str, bias: bool, strength: float) -> None:
    x, y = {"iris": load_iris, "digits": load_digits}[data](return_X_y=True)
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 0.5)
    h = Hierarchy.flat(range(y.max() + 1))
    loss, decay = build_loss("cross_entropy", h), 1 / (strength * len(x))
    head = one(x, y, Trial(loss, weight_decay=decay), Optimization("lbfgs", bias=bias))
    peer = LogisticRegression(C=strength, fit_intercept=bias, tol=1e-8, max_iter=10_000).fit(x, y)

    def objective(weight: Any, intercept: Any) -> float:
        z = torch.as_tensor(x @ weight.T + intercept)
        return float(loss(z, torch.as_tensor(y)) + decay / 2 * (weight**2).sum())

    own = objective(head.weight.double().numpy(), 0.0 if head.bias is None else head.bias.double().numpy())
    assert own == pytest.approx(objective(peer.coef_, peer.intercept_), abs=1e-5)
    np.testing.assert_array_equal(head_scores(x, head).argmax(dim=1).numpy(), peer.predict(x))
    assert head.converged
    (record,) = head.history
    assert record["converged"]
    assert record["gradient"] <= 1e-6
    assert record["lr"] is None
    z = head_scores(x, head).double()
    assert record["loss"] == pytest.approx(float(loss(z, torch.as_tensor(y))), abs=1e-5)


def test_lbfgs_that_runs_out_of_iterations_says_so() -> None:
    x, y = blobs()
    head = one(x, y, Trial(build_loss("hace", TREE)), Optimization("lbfgs", max_iter=2))
    assert head.converged is False
    assert head.history[0]["converged"] is False
    assert head.epochs == 2


@pytest.mark.parametrize("name", ["hace", "hce", "hxe", "conditional_softmax", "soft_label", "cross_entropy"])
def test_lbfgs_ends_where_the_gradient_is_nothing(name: str) -> None:
    """The gradient is taken anew, by autograd through everything."""
    x, y = blobs()
    loss = build_loss(name, TREE)
    head = one(x, y, Trial(loss, weight_decay=0.01), Optimization("lbfgs", tolerance=1e-7))
    weight, bias = (t.double().requires_grad_() for t in (head.weight, head.bias) if t is not None)
    value = loss(x.double() @ weight.T + bias, y) + 0.005 * weight.square().sum()
    grads = torch.autograd.grad(value, (weight, bias))
    assert head.converged
    assert all(g.abs().max() < 1e-6 for g in grads)


@pytest.mark.parametrize("dense", [True, False], ids=["factorised", "summed"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tree", [TREE, DAG], ids=["ragged", "dag"])
@pytest.mark.parametrize("name", ["cross_entropy_paths", "hace_paths"])
def test_path_sums_end_at_the_minimum_over_their_outputs(
    name: str, tree: Hierarchy, bias: bool, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solved in one column per class, they have the weights that plain L-BFGS finds in one column per node."""
    monkeypatch.setattr(lbfgs, "_DENSE", 2048 if dense else 0)
    x, y = blobs()
    y = y % tree.num_leaves
    loss, decay = build_loss(name, tree, sharing=0.7), 0.01
    shape = (x.shape[1] + 1, tree.num_nodes)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        head = torch.tensor(flat).view(shape).requires_grad_()
        value = loss(x.double() @ head[:-1] + bias * head[-1], y) + decay / 2 * head[:-1].square().sum()
        return float(value.detach()), torch.autograd.grad(value, head)[0].numpy().ravel()

    peer = minimize(
        objective, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "ftol": 0}
    )
    head = one(x, y, Trial(loss, weight_decay=decay), Optimization("lbfgs", bias=bias, tolerance=1e-8))
    assert head.converged
    np.testing.assert_allclose(head.weight.T, peer.x.reshape(shape)[:-1], atol=2e-5)
    if head.bias is not None:
        got = loss.leaf_logits(head.bias[None].double())
        want = loss.leaf_logits(torch.tensor(peer.x.reshape(shape)[-1:]))
        torch.testing.assert_close(got - got.mean(), want - want.mean(), atol=1e-4, rtol=0)
    assert head.history[0]["loss"] == pytest.approx(
        objective(peer.x)[0] - decay / 2 * np.square(peer.x.reshape(shape)[:-1]).sum(), abs=1e-6
    )


@pytest.mark.slow
def test_lbfgs_is_the_same_in_company_and_for_every_seed() -> None:
    x, y = blobs()
    trials = [Trial(build_loss("hace", TREE, dilution=d), weight_decay=0.01) for d in (0.3, 0.7)]
    together = fit_heads(x, y, trials, LBFGS, seed=1)
    for trial, head in zip(trials, together, strict=True):
        assert same_bits(head, one(x, y, trial, LBFGS, seed=2))


def test_lbfgs_measures_validation_once() -> None:
    x, y = blobs(noise=0.1)
    head = one(x, y, Trial(build_loss("hace", TREE), weight_decay=0.01), LBFGS, validation=(x, y))
    assert head.history[0]["val_top1"] == 1.0


# ---------------------------------------------------------------------- validation and early stop


def test_validation_top1_is_that_of_the_weights_after_the_epoch() -> None:
    x, y = blobs(rows=200, noise=2.0)
    trial, held_out = Trial(build_loss("hace", TREE), 0.3), blobs(rows=77, noise=2.0, seed=0)
    whole = Optimization("sgd", "constant", epochs=3, batch_size=32)
    seen: list[Any] = []
    head = one(
        x, y, trial, whole, validation=held_out, on_epoch=lambda e, records: seen.append((e, *records))
    )
    for epochs, record in enumerate(head.history, start=1):
        early = one(x, y, trial, Optimization("sgd", "constant", epochs=epochs, batch_size=32))
        labels = trial.loss.leaf_logits(head_scores(held_out[0], early)).argmax(dim=1)
        assert record["val_top1"] == pytest.approx(float((labels == held_out[1]).double().mean()))
    assert seen == [(i + 1, record) for i, record in enumerate(head.history)]


def test_a_head_without_patience_left_returns_its_best_epoch_and_leaves_the_others_alone() -> None:
    x, y = blobs(rows=60, width=40, noise=6.0)
    held_out = blobs(rows=12, width=40, noise=6.0, seed=0)  # few: the best top-1 comes twice
    loss = build_loss("hace", TREE)
    trials = [Trial(loss, lr) for lr in (0.001, 0.05, 1.0)]
    patient = Optimization("sgd", "constant", epochs=40, batch_size=16, patience=3)
    epochs: list[list[Any]] = []
    stopped = fit_heads(
        x, y, trials, patient, validation=held_out, on_epoch=lambda _, records: epochs.append(records)
    )
    whole = fit_heads(
        x, y, trials, Optimization("sgd", "constant", epochs=40, batch_size=16), validation=held_out
    )
    ends = set()
    for i, (trial, head, full) in enumerate(zip(trials, stopped, whole, strict=True)):
        tops = [record["val_top1"] for record in head.history]
        assert head.history == full.history[: len(tops)]
        best = tops.index(max(tops))
        assert head.epochs == best + 1
        assert len(tops) in (40, best + 1 + 3)
        early = Optimization("sgd", "constant", epochs=head.epochs, batch_size=16)
        assert torch.equal(head.weight, one(x, y, trial, early).weight)
        assert [records[i] for records in epochs] == head.history + [None] * (len(epochs) - len(tops))
        ends.add(len(tops))
    assert len(ends) > 1  # they do not end together
    assert min(ends) < 40


@pytest.mark.parametrize("h", [TREE, DAG], ids=["tree", "DAG"])
def test_a_coarse_label_is_met_by_any_leaf_below_it(h: Hierarchy) -> None:
    loss = build_loss("hace", h, labels="nodes")
    x = torch.eye(h.num_leaves)
    leaves = torch.tensor(h.leaf_nodes)
    nodes = torch.arange(h.num_nodes).repeat_interleave(h.num_leaves)
    trial = Trial(loss, 5.0)
    options = Optimization("sgd", "constant", epochs=60, batch_size=100)
    every = x.repeat(h.num_nodes, 1), nodes
    head = one(x, leaves, trial, options, validation=every)
    assert loss.leaf_logits(head_scores(x, head)).argmax(dim=1).tolist() == list(range(h.num_leaves))
    ancestor, descendant = h.reachability()
    pairs = set(zip(ancestor.tolist(), descendant.tolist(), strict=True))
    met = sum((int(v), int(leaf)) in pairs for v in range(h.num_nodes) for leaf in leaves)
    assert head.history[-1]["val_top1"] == pytest.approx(met / len(nodes))
    assert 0 < met < len(nodes)


def test_coarse_labels_train() -> None:
    """Samples known only as 'dog' pull toward both dogs and away from the rest."""
    x, y = blobs(noise=0.3, rows=300)
    nodes = torch.tensor(TREE.leaf_nodes)[y]
    parents = torch.tensor(TREE.parent_nodes)[nodes]
    coarse = torch.where((torch.arange(300) % 2 == 0) & (parents >= 0), parents, nodes)
    loss = build_loss("hce", TREE, labels="nodes")
    head = one(x, coarse, Trial(loss, 1.0), Optimization(epochs=20, batch_size=64))
    right = loss.leaf_logits(head_scores(x, head)).argmax(dim=1) == y
    assert right.double().mean() > 0.95


# ---------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("options", "class_weight"),
    [
        (FULL, [1.0, 2.0, 0.5, 1.0, 3.0]),
        (Optimization("adamw", epochs=5, batch_size=10_000), None),
        (LBFGS, [1.0, 2.0, 0.5, 1.0, 3.0]),
    ],
    ids=["sgd", "adamw", "lbfgs"],
)
def test_weight_two_is_the_sample_twice(options: Optimization, class_weight: Any) -> None:
    x, y = blobs()
    weight = torch.randint(0, 3, (len(x),), generator=torch.Generator().manual_seed(0))
    trial = Trial(build_loss("hace", TREE, weight=class_weight), 0.1, 0.01)
    weighted = one(x, y, trial, options, sample_weight=weight)
    repeated = one(x.repeat_interleave(weight, 0), y.repeat_interleave(weight), trial, options)
    torch.testing.assert_close(weighted.weight, repeated.weight, rtol=1e-4, atol=1e-5)
    assert weighted.history[-1]["loss"] == pytest.approx(repeated.history[-1]["loss"], rel=1e-4)
    plain = one(x, y, trial, options)
    assert not torch.allclose(weighted.weight, plain.weight, rtol=1e-2)


def test_class_weights_act_as_in_the_loss_itself() -> None:
    x, y = blobs()
    loss = build_loss("hace", TREE, weight=[1.0, 2.0, 0.5, 1.0, 3.0])
    options = Optimization(epochs=1, batch_size=10_000)
    head = one(x, y, Trial(loss, 1e-30), options)
    assert head.history[0]["loss"] == pytest.approx(float(loss(head_scores(x, head), y)), rel=1e-5)


def test_only_the_proportions_of_weights_matter() -> None:
    x, y = blobs()
    trial = Trial(build_loss("hace", TREE), 0.5)
    options = Optimization(epochs=2, batch_size=16)
    equal = one(x, y, trial, options, sample_weight=np.full(len(x), 1e30))
    torch.testing.assert_close(equal.weight, one(x, y, trial, options).weight)


def test_a_batch_that_counts_nothing_moves_nothing() -> None:
    x, y = blobs(rows=8)
    weight = np.zeros(8)
    weight[3] = 1.0
    head = one(x, y, Trial(build_loss("hace", TREE), 0.1), Optimization(batch_size=2), sample_weight=weight)
    assert head.diverged is None
    assert bool(head.weight.isfinite().all())


def test_the_reduction_of_the_loss_does_not_matter_and_stays() -> None:
    x, y = blobs()
    losses = [build_loss("hace", TREE, reduction=r) for r in ("mean", "sum", "none")]
    heads = fit_heads(x, y, [Trial(loss, 0.5) for loss in losses], Optimization(epochs=2, batch_size=32))
    assert all(same_bits(head, heads[0]) for head in heads)
    assert [loss.reduction for loss in losses] == ["mean", "sum", "none"]


# ---------------------------------------------------------------------- going on, and small data


def test_start_is_where_a_head_begins() -> None:
    x, y = blobs()
    trial = Trial(build_loss("hace", TREE), 0.5)
    first = one(x, y, trial, Optimization(epochs=2, batch_size=32))
    still = one(x, y, Trial(trial.loss, 1e-30), Optimization(epochs=1), start=first)
    torch.testing.assert_close(still.weight, first.weight)
    settled = one(x, y, Trial(trial.loss, weight_decay=0.01), LBFGS)
    again = one(x, y, Trial(trial.loss, weight_decay=0.01), LBFGS, start=settled)
    assert again.epochs < settled.epochs


def test_zeros_are_a_start_without_a_seed() -> None:
    x, y = blobs()
    trial = Trial(build_loss("hace", TREE), 0.5)
    zero = FittedHead(torch.zeros(TREE.num_nodes, x.shape[1]), torch.zeros(TREE.num_nodes), [], None, 0)
    named = one(x, y, trial, Optimization(epochs=2, start="zeros"))
    given = one(x, y, trial, Optimization(epochs=2), start=zero)
    drawn = one(x, y, trial, Optimization(epochs=2))
    assert torch.equal(named.weight, given.weight)
    assert not torch.equal(named.weight, drawn.weight)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lbfgs"])
def test_one_sample_one_class_and_unseen_classes_work(optimizer: str) -> None:
    x, _ = blobs(rows=20)
    trial = Trial(build_loss("hace", TREE), 0.5, 0.1)
    options = Optimization(optimizer, epochs=20, batch_size=8)
    for rows in (1, 20):
        head = one(x[:rows], torch.full((rows,), 2), trial, options)
        assert head.diverged is None
        assert (trial.loss.leaf_logits(head_scores(x[:rows], head)).argmax(dim=1) == 2).all()


# ---------------------------------------------------------------------- bad input

X, Y = blobs(rows=10)


def spoilt(row: int, value: float) -> torch.Tensor:
    x = X.clone()
    x[row, 3] = value
    x[9, 0] = value
    return x


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": spoilt(4, torch.nan)},
            "x must be finite. 2 of 10 rows hold NaN or infinite values; the first is row 4",
        ),
        ({"x": spoilt(5, torch.inf)}, "the first is row 5"),
        ({"x": X[:, :0]}, r"x must be \(M, d\) features, with at least one column. Got shape \(10, 0\)"),
        ({"x": X[0]}, r"x must be \(M, d\) features"),
        ({"x": X[:0], "target": Y[:0]}, r"x must have at least one row. Got shape \(0, 16\)"),
        ({"x": X.to(torch.complex64)}, "x must hold real numbers. Got torch.complex64"),
        ({"x": np.full((10, 16), "a")}, "x must hold real numbers. Got <U1"),
        ({"target": Y[:9]}, r"target must have one label for each of the 10 rows. Got shape \(9,\)"),
        ({"target": Y.float()}, "target must hold integer labels. Got torch.float32"),
        (
            {"target": torch.tensor([0, 1, 5, 0, 7, 0, 0, 0, 0, 0])},
            "target must be from 0 to 4, the leaves of the hierarchy. 2 of 10 are not; the first is 5 in row 2",
        ),
        (
            {"target": -Y - 1},
            "target must be from 0 to 4, the leaves of the hierarchy. 10 of 10 are not; the first is -",
        ),
        ({"sample_weight": np.ones(9)}, r"sample_weight must have one weight for each of the 10 rows"),
        ({"sample_weight": -np.ones(10)}, "sample_weight must be finite, not negative"),
        ({"sample_weight": np.zeros(10)}, "and not all zero"),
        ({"validation": (spoilt(2, torch.nan), Y)}, "validation x must be finite. 2 of 10 rows"),
        ({"validation": (X, Y + 9)}, "validation target must be from 0 to 4"),
        ({"validation": (X[:, 1:], Y)}, "validation must have the 16 columns of x. Got 15"),
    ],
)
def test_bad_data(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"x": X, "target": Y, **change}
    with pytest.raises(DataError, match=message):
        fit_heads(
            given.pop("x"), given.pop("target"), [Trial(build_loss("hace", TREE))], Optimization(), **given
        )


def test_scores_refuse_features_of_another_width() -> None:
    head = one(X, Y, Trial(build_loss("hace", TREE)), Optimization(epochs=1))
    with pytest.raises(
        DataError, match=r"x must have the 16 columns that the head was trained on. Got shape \(10, 15\)"
    ):
        head_scores(X[:, 1:], head)
    with pytest.raises(DataError, match="x must be finite"):
        head_scores(spoilt(1, torch.nan), head)
    wide = torch.randn(20_000, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        head_scores(wide.numpy(), head),
        torch.nn.functional.linear(wide.float(), head.weight, head.bias),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "rmsprop"}, "optimizer must be one of 'sgd', 'adamw', 'lbfgs'. Got 'rmsprop'"),
        ({"schedule": "linear"}, "schedule must be one of 'cosine', 'constant'"),
        ({"start": "ones"}, "start must be one of 'random', 'zeros'. Got 'ones'"),
        ({"epochs": 0}, "epochs must be a whole number from 1 to 1,000,000,000. Got 0"),
        ({"epochs": True}, "epochs must be a whole number from 1 to 1,000,000,000. Got True"),
        ({"batch_size": 2.5}, "batch_size must be a whole number from 1 to 1,000,000,000. Got 2.5"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\). Got 1.0"),
        ({"bias": "yes"}, "bias must be one of True, False. Got 'yes'"),
        ({"patience": 0}, "patience must be a whole number from 1 to 1,000,000,000. Got 0"),
        ({"tolerance": 0.0}, "tolerance must be a number above 0"),
        ({"max_iter": -1}, "max_iter must be a whole number from 1 to 1,000,000,000"),
        ({"optimizer": "lbfgs", "patience": 3}, "patience counts epochs, and optimizer='lbfgs' has none"),
        ({"optimizer": "lbfgs", "ball": PoincareBall()}, "ball must come with optimizer='sgd' or 'adamw'"),
        ({"start": "zeros", "ball": PoincareBall()}, "Got optimizer='sgd' and start='zeros'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Optimization(**options)


def test_bad_trials() -> None:
    loss = build_loss("hace", TREE)
    with pytest.raises(ConfigError, match=r"loss must be a loss of hace.*Got CrossEntropyLoss"):
        Trial(torch.nn.CrossEntropyLoss())  # type: ignore[arg-type]
    for lr in (0.0, -1.0, torch.inf, "1"):
        with pytest.raises(ConfigError, match=r"lr must be a number above 0. Got"):
            Trial(loss, lr)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"weight_decay must be a number >= 0. Got -0.1"):
        Trial(loss, 1.0, -0.1)
    with pytest.raises(ConfigError, match="trials must hold at least one Trial"):
        fit_heads(X, Y, [], Optimization())
    both = [Trial(loss), Trial(build_loss("cross_entropy", TREE))]
    with pytest.raises(ConfigError, match=r"the same number of outputs.*5 outputs for 5 leaves; 7 outputs"):
        fit_heads(X, Y, both, Optimization())
    with pytest.raises(ConfigError, match=r"seed must be a whole number from 0 to .* Got -1"):
        fit_heads(X, Y, [Trial(loss)], Optimization(), seed=-1)
    with pytest.raises(ConfigError, match="patience needs validation data"):
        fit_heads(X, Y, [Trial(loss)], Optimization(patience=2))
    head = one(X, Y, Trial(loss), Optimization(epochs=1))
    with pytest.raises(DataError, match=r"start must have weights \(7, 15\). Got \(7, 16\)"):
        fit_heads(X[:, 1:], Y, [Trial(loss)], Optimization(), start=head)


def test_steps_flush_denormals_and_leave_the_thread_as_it_was() -> None:
    def flushes() -> bool:
        return not (torch.tensor(1e-40) * 1).item()

    seen: list[bool] = []

    class Watching(CrossEntropyLoss):
        def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            seen.append(flushes())
            return super().forward(logits, target)

    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush denormal numbers")
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    fit_heads(x, y, [Trial(Watching(Hierarchy.flat(["a", "b"])), 1.0)], Optimization(epochs=1))
    assert seen == [True]
    assert not flushes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_paths", "hace", "hace_paths"])
def test_lbfgs_ends_where_the_gradient_vanishes(name: str, dtype: type) -> None:
    """By a gradient of its own, through all outputs and in double precision."""
    rng = np.random.default_rng(0)
    h = Hierarchy.from_paths([("a", "x", "1"), ("a", "x", "2"), ("a", "3"), ("b", "4"), ("b", "5")])
    x, y = rng.standard_normal((200, 6)).astype(dtype), rng.integers(5, size=200)
    decay, tolerance = 1e-2, 1e-5
    clf = HACEClassifier(h, loss=name, weight_decay=decay, tol=tolerance)
    clf.fit(x, np.array(h.leaves)[y])
    weight = torch.from_numpy(clf.coef_).requires_grad_()
    bias = torch.from_numpy(clf.intercept_).requires_grad_()
    loss = build_loss(name, h)(torch.from_numpy(x).double() @ weight.T + bias, torch.from_numpy(y))
    (loss + decay / 2 * weight.square().sum()).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) < 1.1 * tolerance
    assert clf.history_[0]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


@pytest.mark.timeout(60)
def test_features_too_large_for_lbfgs_end_in_a_message() -> None:
    h = Hierarchy.from_paths([("a", str(i)) for i in range(8)])
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((200, 12)).astype("f4") * np.float32(1e19), rng.integers(8, size=200)
    with pytest.raises(ConfigError, match="scale the features"):
        HACEClassifier(h).fit(x, np.array(h.leaves)[y])
