"""Losses built with odd parameters and called with odd tensors: a HaceError or a number, never anything else."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from hace import Hierarchy, build_loss
from hace.losses.registry import LOSSES, loss_parameters
from tests.fuzz.driver import NUMBERS, fuzz, odd_value

TREE = Hierarchy.from_paths([("a", "x"), ("a", "y"), ("b", "z"), ("c",)])
DAG = Hierarchy.from_edges([("r", "p"), ("r", "q"), ("p", "u"), ("q", "u"), ("q", "v")])
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.complex64,
)
SCALES = (0.0, 1.0, 1e4, 1e30, 3e38, float("inf"), float("nan"))


def logits(random: Random, columns: int) -> Tensor:
    """Logits that are mostly usable, with an odd shape, type, size or layout now and then."""
    batch = random.choice((1, 2, 5, 5, 5, 0))
    shape = random.choice(
        ((batch, columns),) * 20 + ((columns,), (), (batch, columns, 2), (batch, columns + 1), (0, 0))
    )
    torch.manual_seed(random.randrange(1 << 30))
    z = torch.randn(shape) * (random.choice(SCALES) if random.random() < 0.4 else 1.0)
    z = z.to(random.choice(DTYPES)) if random.random() < 0.3 else z
    kind = random.randrange(8)
    if kind == 0:
        return torch._efficientzerotensor(shape)
    if kind == 1:
        return torch._neg_view(z) if z.is_floating_point() else z
    if kind == 2 and z.ndim == 2:
        return z.t().contiguous().t()
    return z.expand(3, *shape)[1] if kind == 3 else z


def targets(random: Random, z: Tensor, labels: int) -> Tensor:
    """Labels or soft targets, mostly of the right shape."""
    batch = z.shape[0] if z.ndim > 1 else 1
    if random.random() < 0.3:
        soft = torch.rand(batch, random.choice((labels, labels, labels, 1)))
        return soft * random.choice((1.0, 0.0, -1.0, 1e38, float("nan")))
    shape = () if z.ndim < 2 else (batch, *z.shape[2:])
    y = torch.randint(0, labels, shape)
    if random.random() < 0.3:
        y = y.clone().fill_(random.choice([n for n in NUMBERS if -(2**63) <= n < 2**63] + [-100]))
    return y.to(random.choice(DTYPES)) if random.random() < 0.2 else y


def call(random: Random) -> dict[str, Any]:
    """A loss and what it is called with."""
    name = random.choice(list(LOSSES))
    known = list(loss_parameters(name))
    params: dict[str, Any] = {}
    if random.random() < 0.25:
        params[random.choice(known)] = odd_value(random)
    return {"loss": name, "params": params, "dag": random.random() < 0.2, "seed": random.randrange(1 << 30)}


def run(made: dict[str, Any]) -> None:
    loss = build_loss(made["loss"], DAG if made["dag"] else TREE, **made["params"])
    random = Random(made["seed"])
    z = logits(random, loss.num_outputs)
    y = targets(random, z, loss.num_labels)
    z = z.detach().requires_grad_() if z.is_floating_point() else z
    value = loss(z, y)
    assert value.is_floating_point()
    if z.requires_grad:
        value.sum().backward()
        assert z.grad is not None
        assert z.grad.shape == z.shape
    tame = z.numel() and z.isfinite().all() and z.abs().max() <= 1e4
    if tame and (not y.is_floating_point() or y.isfinite().all()) and (y != loss.ignore_index).any():
        assert not value.isnan().any()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_losses() -> None:
    fuzz(call, 1000, run)
