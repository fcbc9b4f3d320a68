"""Losses of odd arguments, logits and targets: a HaceError, or the value that plain PyTorch gives in double precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace import LOSSES, Hierarchy, build_loss
from hace.losses import kernels
from hace.losses.registry import loss_parameters
from tests.fuzz.driver import NUMBERS, WORDS, fuzz
from tests.hierarchies import KINDS, random_plain
from tests.loss_cases import CASES

# ------------------------------------------------------------------ constructors

ODD: tuple[Any, ...] = (
    *NUMBERS,
    *WORDS[:8],
    *(None, True, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), 1j, b"x", (), [], {}, [[]], object()),
    *(np.float32(0.3), np.int8(1), np.array(0.5), np.array([1.0, 2.0]), np.ma.masked, torch.tensor(0.5)),
    *(
        torch.ones(2),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, device="meta"),
        Hierarchy,
        Hierarchy.flat(["a"]),
    ),
)
WORTH: tuple[Any, ...] = (
    "leaves",
    "nodes",
    "mean",
    "sum",
    "none",
    "lca_height",
    "edges",
    "depth",
    "tree",
    0.1,
    1,
    None,
)


@cache
def small(kind: str, seed: int) -> Hierarchy:
    return random_plain(kind, seed, max_nodes=14).build()


def odd_arguments(random: Random) -> tuple[str, Hierarchy, dict[str, Any]]:
    name = random.choice(list(LOSSES))
    known = [*loss_parameters(name), "input"]
    chosen = random.sample(known, random.randint(1, 3))
    values = {key: random.choice(ODD if random.random() < 0.7 else WORTH) for key in chosen}
    return name, small(random.choice(KINDS), random.randrange(5)), values


def test_constructors() -> None:
    fuzz(odd_arguments, 1000, lambda made: build_loss(made[0], made[1], **made[2]))


# ------------------------------------------------------------------ calls


class Call(NamedTuple):
    """A loss, and what it is called with."""

    loss: str
    hierarchy: Hierarchy
    params: dict[str, Any]
    z: Tensor
    target: Tensor
    mode: str


def sensible(random: Random, name: str, h: Hierarchy) -> dict[str, Any]:
    """Parameters that the loss takes."""
    labels = random.choice(["leaves", "nodes"])
    size = h.num_leaves if labels == "leaves" else h.num_nodes
    choices: dict[str, list[Any]] = {
        "dilution": [1e-6, 0.3, 1.0],
        "label_smoothing": [0.0, 0.2, 0.99],
        "alpha": [0.0, 0.5, 50.0],
        "decay": ["depth", "height"],
        "normalize": [None, "tree"],
        "beta": [0.01, 10.0, 1e6],
        "distance": ["lca_height", "lca_depth", "edges"],
        "reduction_factor": [0.0, 0.5, 0.999],
        "weight": [None, [random.choice([0.0, 0.5, 3.0]) for _ in range(size)]],
        "ignore_index": [-100, 0, 2**63 - 1],
        "reduction": ["none", "mean", "sum"],
    }
    known = loss_parameters(name)
    return {"labels": labels} | {k: random.choice(v) for k, v in choices.items() if k in known}


def odd_logits(random: Random, shape: tuple[int, ...]) -> Tensor:
    """Logits in an odd size, precision or layout."""
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    z = torch.randn(shape, generator=generator) * random.choice([0.0, 1.0, 30.0, 1e4, 3e38])
    for _ in range(random.choice([0, 0, 1, 2])):
        if z.numel():
            z.view(-1)[random.randrange(z.numel())] = random.choice(
                [torch.inf, -torch.inf, torch.nan, 0.0, -3e38]
            )
    z = z.to(random.choice([torch.float32] * 5 + [torch.float64, torch.float16, torch.bfloat16, torch.int64]))
    layout = random.randrange(6)
    if layout == 0 and z.ndim > 1:
        return z.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == 1:
        return torch.stack([z, z], dim=-1)[..., 1]
    if layout == 2:
        return z[..., :1].expand(z.shape)
    if layout == 3 and z.is_floating_point():
        return (
            torch.complex(torch.zeros_like(z, dtype=torch.float32), -z.float()).conj().imag
        )  # the negative bit
    if layout == 4:
        return torch._efficientzerotensor(z.shape, dtype=z.dtype)  # type: ignore[attr-defined]
    return z


def odd_target(random: Random, shape: tuple[int, ...], labels: int, ignore_index: int) -> Tensor:
    """Labels or soft targets, some of them out of range or of the wrong shape."""
    batch = shape[:1] + shape[2:] if len(shape) > 1 else ()
    if random.random() < 0.3:
        place = (shape[0], labels, *shape[2:]) if len(shape) > 1 else (labels,)
        soft = torch.rand(place) * random.choice([0.0, 1.0, -1.0])
        return soft.to(random.choice([torch.float32, torch.float64, torch.float16]))
    y = (
        torch.tensor([random.randrange(labels) for _ in range(int(np.prod(batch, dtype=int)))])
        .reshape(batch)
        .long()
    )
    for _ in range(random.choice([0, 1, 2])):
        if y.numel():
            y.view(-1)[random.randrange(y.numel())] = random.choice([ignore_index, -1, labels, 2**62, 0])
    y = y.to(random.choice([torch.int64] * 4 + [torch.int32, torch.uint8, torch.int8, torch.bool]))
    return random.choice([y, y, y, y.flatten()[:1], y.unsqueeze(0), torch.stack([y, y], dim=-1)[..., 0]])


def odd_call(random: Random) -> Call:
    name = random.choice(list(LOSSES))
    trees_only = {case.loss for case in CASES.values() if case.trees_only}
    kinds = [kind for kind in KINDS if "dag" not in kind or name not in trees_only]
    h = small(random.choice(kinds), random.randrange(20))
    params = sensible(random, name, h)
    loss = build_loss(name, h, **params)
    columns = random.choice([loss.num_outputs] * 9 + [loss.num_outputs + 1])
    batch = random.choice([0, 1, 2, 5])
    shape = random.choice(
        [(batch, columns), (batch, columns), (columns,), (batch, columns, 3), (batch, columns, 2, 0)]
    )
    target = odd_target(random, shape, loss.num_labels, loss.ignore_index)
    mode = random.choice(["plain", "plain", "gradient", "gradient", "inference", "autocast"])
    return Call(name, h, params, odd_logits(random, shape), target, mode)


def entered(mode: str) -> AbstractContextManager[Any]:
    if mode == "inference":
        return torch.inference_mode()
    return torch.autocast("cpu", dtype=torch.bfloat16) if mode == "autocast" else nullcontext()


def evaluate(call: Call, z: Tensor) -> list[Tensor]:
    """The value, and where asked its gradient."""
    loss = build_loss(call.loss, call.hierarchy, **call.params)
    with entered(call.mode):
        if call.mode != "gradient" or not z.is_floating_point():
            return [loss(z, call.target)]
        z = (
            z.detach().clone().requires_grad_()
            if z.is_neg() or z._is_zerotensor()
            else z.detach().requires_grad_()
        )
        value = loss(z, call.target)
        return [value.detach(), *torch.autograd.grad(value.sum(), z)]


LARGEST = 1e37  # beyond it a sum may leave the range of float32


def check(call: Call) -> None:
    """Both forms refuse the same calls; where the answer is a number, it is the one of double precision."""
    before = call.z.clone()
    evaluation = evaluate(call, call.z)
    torch.testing.assert_close(
        call.z.clone(), before, rtol=0, atol=0, equal_nan=True
    )  # logits are not written to
    with kernels.disabled():
        wanted = evaluate(
            call._replace(mode="gradient" if call.mode == "gradient" else "plain"), call.z.double()
        )
    half = call.z.dtype in (torch.float16, torch.bfloat16)
    # Weights of both signs cancel, and leave the rounding of the largest term.
    largest = call.z.nan_to_num(posinf=0.0, neginf=0.0).abs().max() if call.z.numel() else 0.0
    rounding = 1e-3 * float(largest) if call.loss == "hxe" else 0.0
    if not (evaluation[0].isfinite().all() and (wanted[0].abs() < LARGEST).all()):
        evaluation, wanted = evaluation[:1], wanted[:1]  # a loss out of range has no gradient to speak of
    for ours, theirs in zip(evaluation, wanted, strict=True):
        assert ours.shape == theirs.shape
        ours = ours.double()
        plain = theirs.isfinite() & (theirs.abs() < LARGEST) & ours.isfinite()
        scale = max(1.0, rounding, float(theirs[plain].abs().max()) if plain.any() else 1.0)
        gap = (ours - theirs)[plain].abs().max() if plain.any() else torch.tensor(0.0)
        assert gap <= (1e-2 if half else 2e-4) * scale, (ours, theirs)


def test_calls() -> None:
    fuzz(odd_call, 400, check)
