"""The kernel reads memory: what has none, or is watched by torch, goes through plain PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import hace
from hace.losses import kernels
from hace.losses.kernels.torch_internals import is_eager
from tests.hierarchies import NAMED
from tests.loss_cases import CASES, KERNEL, ONE_OF_EACH, fitting, logits

RAGGED = NAMED["ragged"].build()
LOSSES = [
    hace.HACELoss(RAGGED, 0.5),  # along the path
    hace.HACELoss(RAGGED, 0.5, 0.1),  # all nodes
    hace.HXELoss(RAGGED, 0.3),  # a head over leaves
    hace.HACELoss(RAGGED, 0.5, outputs="paths"),
    hace.CrossEntropyLoss(RAGGED, outputs="paths"),
]


class Wrapped(Tensor):
    """A subclass that a user might have."""


def negative(z: Tensor) -> Tensor:
    """The same values behind the negative bit."""
    return torch.complex(torch.zeros_like(z), -z).conj().imag


def freed(z: Tensor) -> Tensor:
    z = z.clone()
    z.untyped_storage().resize_(0)
    return z


@pytest.mark.parametrize("loss", LOSSES, ids=["path", "dense", "leaves", "path sums", "sums alone"])
def test_only_plain_memory_reaches_the_kernel(loss: Any) -> None:
    z, y = logits(3, loss.num_outputs).float(), torch.tensor([0, 3, 5])
    wanted = loss(z, y)
    odd: dict[str, Tensor] = {"negative bit": negative(z), "subclass": z.as_subclass(Wrapped)}
    for name, view in odd.items():
        assert not kernels.kernel_supports(view), name
        torch.testing.assert_close(torch.Tensor(loss(view, y)), wanted, msg=name)
    zeros = torch._efficientzerotensor(  # type: ignore[attr-defined]
        z.shape
    )
    torch.testing.assert_close(loss(zeros, y), loss(torch.zeros_like(z), y))
    torch.testing.assert_close(
        loss(
            z,
            torch._efficientzerotensor(  # type: ignore[attr-defined]
                3, dtype=torch.long
            ),
        ),
        loss(z, torch.zeros(3, dtype=torch.long)),
    )
    assert not kernels.kernel_supports(freed(z))
    assert not is_eager(freed(z))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = loss(mode.from_tensor(z), mode.from_tensor(y))
        assert not kernels.kernel_supports(z)
    assert fake.shape == ()
    with FlopCounterMode(display=False):
        assert not kernels.kernel_supports(z)
    assert kernels.kernel_supports(z) == kernels.status().startswith("compiled")


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=["path", "dense", "leaves", "path sums", "sums alone"])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_trace_replays_on_other_logits(loss: Any, mode: Any) -> None:
    z, y = logits(3, loss.num_outputs).float(), torch.tensor([0, 3, 5])
    traced = make_fx(loss, tracing_mode=mode, _allow_non_fake_inputs=True)(z, y)
    other = logits(3, loss.num_outputs, seed=1).float()
    torch.testing.assert_close(traced(other, y.flip(0)), loss(other, y.flip(0)))


@pytest.mark.parametrize("loss", LOSSES, ids=["path", "dense", "leaves", "path sums", "sums alone"])
def test_labels_written_over_between_two_backward_passes(loss: Any) -> None:
    z, y = logits(3, loss.num_outputs).float().requires_grad_(), torch.tensor([0, 3, 5])
    value = loss(z, y)
    (first,) = torch.autograd.grad(value, z, retain_graph=True)
    y.fill_(1)
    (second,) = torch.autograd.grad(value, z, retain_graph=True)
    (third,) = torch.autograd.grad(value, z, create_graph=True)
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    torch.testing.assert_close(third, first)


@pytest.mark.parametrize("largest", [3e38, -3e38])
@pytest.mark.parametrize("form", [kernels.disabled, KERNEL.used], ids=["pure", "kernel"])
def test_equal_logits_of_any_size_are_a_uniform_distribution(largest: float, form: Callable[[], Any]) -> None:
    for loss in LOSSES[:3]:  # equal outputs are not equal path sums
        z = torch.full((3, loss.num_outputs), largest)
        y = torch.tensor([0, 3, 5])
        with form():
            torch.testing.assert_close(loss(z, y), loss(torch.zeros_like(z), y))


@pytest.mark.parametrize(
    ("case", "name"), [p for p in fitting("forest", "dag_forest") if p[0] in ONE_OF_EACH]
)
def test_vmap_over_labels_and_soft_targets(case: str, name: str) -> None:
    h = NAMED[name].build()
    for labels in ("leaves", "nodes"):
        loss = CASES[case].build(h, reduction="sum", labels=labels)
        z = logits(6, loss.num_outputs).float().view(3, 2, -1)
        y = torch.arange(6).view(3, 2) % loss.num_labels
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)
            warnings.filterwarnings(
                "ignore", ".*batching rule for aten::scatter_reduce", UserWarning
            )  # torch 2.4
            for target in (y, torch.eye(loss.num_labels)[y]):
                wanted = torch.stack([loss(a, b) for a, b in zip(z, target, strict=True)])
                torch.testing.assert_close(torch.func.vmap(loss)(z, target), wanted, rtol=1e-5, atol=1e-5)
            each = torch.func.vmap(torch.func.grad(loss))(z, y)
        for a, b, slope in zip(z, y, each, strict=True):
            torch.testing.assert_close(torch.func.grad(loss)(a, b), slope, rtol=1e-4, atol=1e-5)
