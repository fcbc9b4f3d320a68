"""Linear heads: side by side as alone, as torch's own optimisers, as scikit-learn's logistic regression; and bad input."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hace
from hace import Hierarchy, build_loss
from hace.linear import FittedHead, Optimization, Trial, fit_heads, head_scores
from hace.losses.base import HierarchicalLoss

TREE = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "persian"), ("cat", "manx"), ("fish",)]
)
DAG = Hierarchy.from_edges([("a", "x"), ("b", "x"), ("a", "y"), ("b", "z"), ("x", "p"), ("x", "q")])


def blobs(
    h: Hierarchy = TREE, rows: int = 103, width: int = 16, noise: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Features around one centre a class, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(h.num_leaves, width, generator=generator)
    target = torch.randint(h.num_leaves, (rows,), generator=generator)
    return centres[target] + noise * torch.randn(rows, width, generator=generator), target


def same_bits(a: FittedHead, b: FittedHead) -> bool:
    """Whether two heads are one: weights, bias, history, all of it. NaN never equals itself, so none can hide."""
    biases = (a.bias is None and b.bias is None) or (
        a.bias is not None and b.bias is not None and torch.equal(a.bias, b.bias)
    )
    story = (a.history, a.diverged, a.epochs) == (b.history, b.diverged, b.epochs)
    return torch.equal(a.weight, b.weight) and biases and story


def check_as_alone(
    x: Tensor, y: Tensor, trials: Sequence[Trial], options: Optimization, **rest: Any
) -> list[FittedHead]:
    together = fit_heads(x, y, trials, options, **rest)
    for trial, head in zip(trials, together, strict=True):
        (alone,) = fit_heads(x, y, [trial], options, **rest)
        assert same_bits(head, alone), trial
    return together


# ---------------------------------------------------------------------- side by side as alone


def node_losses(h: Hierarchy = TREE) -> list[HierarchicalLoss]:
    """Losses over all nodes: one width."""
    return [
        build_loss("hace", h, dilution=0.3),
        build_loss("hace", h, dilution=0.7, label_smoothing=0.1),
        build_loss("hace", h, soft_label_beta=10.0),
        build_loss("hce", h),
        build_loss("ancestral_smoothing", h),
    ]


def leaf_losses(h: Hierarchy = TREE) -> list[HierarchicalLoss]:
    """Losses over the leaves: the other width."""
    names = ("cross_entropy", "soft_label", "hxe", "hace_leaves", "simloss", "expected_distance")
    return [build_loss(name, h) for name in names if name != "hxe" or h.is_tree]


def mixed(losses: Sequence[HierarchicalLoss]) -> list[Trial]:
    """Three heads a loss with other rates and decays, so shuffled that neighbours differ."""
    trials = [
        Trial(loss, lr, decay) for loss in losses for lr, decay in [(0.1, 0.0), (3.0, 0.0), (0.5, 0.01)]
    ]
    random.Random(0).shuffle(trials)
    return trials


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("h", [TREE, DAG], ids=["tree", "DAG"])
@pytest.mark.parametrize("losses", [node_losses, leaf_losses])
def test_side_by_side_is_as_alone(optimizer: str, h: Hierarchy, losses: Any) -> None:
    x, y = blobs(h)
    trials = mixed(losses(h))
    heads = check_as_alone(x, y, trials, Optimization(optimizer, epochs=3, batch_size=32), seed=3)
    assert len({tuple(head.weight.flatten().tolist()) for head in heads}) == len(heads)  # and none is another


def test_more_heads_than_one_product_takes_are_as_alone() -> None:
    x, y = blobs()
    loss, other = node_losses()[:2]
    trials = [Trial(loss if i % 3 else other, 0.05 * (i + 1)) for i in range(35)]
    check_as_alone(x, y, trials, Optimization(epochs=2, batch_size=50))


def test_at_the_shapes_of_a_probe_heads_are_as_alone() -> None:
    h = hace.cifar100_hierarchy()
    x, y = blobs(h, rows=600, width=256)
    loss, other = (build_loss("hace", h, dilution=d) for d in (0.2, 0.5))
    trials = [Trial(loss, 0.5), Trial(loss, 2.0), Trial(loss, 8.0, 1e-4), Trial(other, 1.0)]
    check_as_alone(x, y, trials, Optimization(epochs=2), seed=1)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("batch_size", [8, 32])  # it is lost within an epoch, or found at the end of one
def test_a_diverging_neighbour_disturbs_nobody(optimizer: str, batch_size: int) -> None:
    x, y = blobs()
    loss = node_losses()[0]
    steady = [Trial(loss, 0.1), Trial(loss, 1.0), Trial(node_losses()[3], 1.0)]
    options = Optimization(optimizer, "constant", epochs=6, batch_size=batch_size)
    wild = Trial(loss, 1e9, 1e3)
    together = fit_heads(x, y, [steady[0], wild, *steady[1:]], options)
    calm = fit_heads(x, y, steady, options)
    for a, b in zip([together[0], *together[2:]], calm, strict=True):
        assert same_bits(a, b)
    lost = together[1]
    assert lost.diverged is not None
    assert 1 <= lost.diverged["epoch"] <= 6
    assert (lost.diverged["step"] % math.ceil(103 / batch_size) == 0) == (batch_size == 32)
    assert lost.diverged["lr"] == 1e9
    assert len(lost.history) == lost.diverged["epoch"] - 1
    assert lost.epochs == 0
    assert torch.equal(lost.weight, torch.zeros_like(lost.weight))
    assert all(head.diverged is None and head.epochs == 6 for head in calm)


def test_a_pass_ends_when_all_heads_have_diverged() -> None:
    x, y = blobs()
    epochs: list[int] = []
    options = Optimization("sgd", "constant", epochs=50, batch_size=32)
    heads = fit_heads(
        x, y, [Trial(node_losses()[0], 1e9, 1e3)], options, on_epoch=lambda e, _: epochs.append(e)
    )
    assert heads[0].diverged is not None
    assert epochs[-1] == heads[0].diverged["epoch"] < 50


def test_weights_that_overflow_in_the_very_last_step_are_found() -> None:
    x, y = blobs(rows=8)
    (head,) = fit_heads(x, y, [Trial(node_losses()[0], 1e38, 1e3)], Optimization(epochs=1, batch_size=8))
    assert head.diverged == {"epoch": 1, "step": 1, "lr": 1e38}
    assert head.history == []


# ---------------------------------------------------------------------- as torch's own


def torch_loop(
    x: Tensor, y: Tensor, trial: Trial, options: Optimization, seed: int = 0
) -> tuple[torch.nn.Linear, list[float]]:
    """What a person writes, with nn.Linear, torch.optim and autograd through everything."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = torch.nn.Linear(x.shape[1], trial.loss.num_outputs, bias=options.bias)
    torch.random.set_rng_state(state)
    groups: list[dict[str, Any]] = [{"params": [model.weight], "weight_decay": trial.weight_decay}]
    groups += [{"params": [model.bias], "weight_decay": 0.0}] if options.bias else []
    if options.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, trial.lr, momentum=options.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, trial.lr, betas=(options.momentum, 0.999))
    steps = options.epochs * math.ceil(len(x) / options.batch_size)
    if options.schedule == "cosine":
        schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    else:
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    means = []
    for epoch in range(options.epochs):
        order, total = np.random.default_rng([seed, epoch]).permutation(len(x)), 0.0
        for first in range(0, len(x), options.batch_size):
            rows = order[first : first + options.batch_size]
            optimizer.zero_grad()
            loss = trial.loss(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        means.append(total / len(x))
    return model, means


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize(
    ("optimizer", "lr", "decay", "momentum"),
    [
        ("sgd", 0.5, 0.0, 0.9),
        ("sgd", 0.5, 0.05, 0.9),
        ("sgd", 0.5, 0.05, 0.0),
        ("adamw", 0.02, 0.3, 0.9),
        ("adamw", 0.02, 0.0, 0.5),
    ],
)
def test_as_a_loop_over_torch_optim(
    optimizer: str, lr: float, decay: float, momentum: float, schedule: str, bias: bool
) -> None:
    x, y = blobs()
    trial = Trial(build_loss("hace", TREE), lr, decay)
    options = Optimization(optimizer, schedule, 4, 32, momentum, bias)
    (head,) = fit_heads(x, y, [trial], options, seed=5)
    model, means = torch_loop(x, y, trial, options, seed=5)
    torch.testing.assert_close(head.weight, model.weight.detach(), rtol=1e-6, atol=1e-6)
    if bias:
        assert head.bias is not None
        torch.testing.assert_close(head.bias, model.bias.detach(), rtol=1e-6, atol=1e-6)
    else:
        assert head.bias is None
        assert model.bias is None
    assert [record["loss"] for record in head.history] == pytest.approx(means, rel=1e-5)
    assert [record["epoch"] for record in head.history] == [1, 2, 3, 4]
    assert head.history[0]["lr"] == lr
    assert (head.history[2]["lr"] == pytest.approx(lr / 2)) == (schedule == "cosine")


def test_a_head_starts_from_the_law_of_linear_and_from_the_seed_alone() -> None:
    x, y = blobs()
    options = Optimization(epochs=1, batch_size=1000)
    still = [Trial(loss, 1e-30) for loss in node_losses()]
    heads = fit_heads(x, y, still, options, seed=7)
    assert all(torch.equal(head.weight, heads[0].weight) for head in heads)
    (other,) = fit_heads(x, y, still[:1], options, seed=8)
    assert not torch.equal(other.weight, heads[0].weight)
    bound = 16**-0.5
    assert 0.9 * bound < heads[0].weight.abs().max() <= bound
    state = torch.random.get_rng_state()
    torch.manual_seed(7)
    torch.testing.assert_close(torch.nn.Linear(16, len(TREE.nodes)).weight.detach(), heads[0].weight)
    torch.random.set_rng_state(state)


def test_the_same_call_gives_the_same_bits_and_leaves_other_random_numbers_alone() -> None:
    x, y = blobs()
    trials, options = mixed(node_losses()), Optimization(epochs=2, batch_size=32)
    np.random.seed(0)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    first = fit_heads(x, y, trials, options, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # type: ignore[index]
    torch.rand(3)
    again = fit_heads(x.numpy(), y.tolist(), trials, options, seed=4)
    assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))
    other = fit_heads(x, y, trials, options, seed=5)
    assert not any(torch.equal(a.weight, b.weight) for a, b in zip(first, other, strict=True))


def test_every_sample_counts_the_last_batch_included() -> None:
    x, y = blobs(rows=33)
    loss = build_loss("cross_entropy", TREE)
    options = Optimization(epochs=1, batch_size=32)
    (head,) = fit_heads(x, y, [Trial(loss, 1e-30)], options)
    assert head.history[0]["loss"] == pytest.approx(float(loss(head_scores(x, head), y)), rel=1e-5)
