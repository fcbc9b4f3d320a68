"""The Triton kernels by Triton's interpreter, on tensors of the CPU: `test_on_cuda` runs this in a process of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hace import HACELoss, HCELoss, HXELoss
from hace.losses import kernels
from hace.losses.kernels import on_cuda
from tests.hierarchies import NAMED, random_plain
from tests.loss_cases import CASES, PURE, examples, logits, with_gradient
from tests.losses.test_extremes import HARD, OUT, PATTERNS, expected

# numpy computes both branches of a choice, and says so
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid|divide by zero) .*:RuntimeWarning:triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All losses along a path go through Triton."""
    launched, launch = [], on_cuda._launched
    monkeypatch.setattr(on_cuda, "_failed", False)
    monkeypatch.setattr(on_cuda, "triton_supports", lambda z: z.dtype is torch.float32)
    monkeypatch.setattr(on_cuda, "_launched", lambda *given: launched.append(launch(*given)) or launched[-1])
    with kernels.disabled():
        yield
    assert launched
    assert not on_cuda._failed


@pytest.mark.parametrize(
    "case", ["hace", "hace_leaves", *(pytest.param(case, marks=pytest.mark.long) for case in ("hce", "hxe"))]
)
def test_extreme_logits(case: str) -> None:
    for name in ("ragged", "forest"):
        loss = CASES[case].build(HARD[name].build(), reduction="none")
        for pattern in PATTERNS + OUT:
            z, y, values, gradients = expected(case, name, pattern, torch.float32)
            z = z.float().requires_grad_()
            value = loss(z, y)
            PURE.close(value, values, name, pattern)
            PURE.close(torch.autograd.grad(value.sum(), z)[0], gradients, name, pattern)


@examples(8)
@given(st.sampled_from(["star", "chain", "ragged", "unary", "forest"]), st.integers(0, 10_000))
def test_random_trees(kind: str, seed: int) -> None:
    """Labels at every level, class weights, ignored samples, heads over nodes and over leaves in any order."""
    h = random_plain(kind, seed, max_nodes=16).build()
    y = torch.randint(h.num_nodes, (3,), generator=torch.Generator().manual_seed(seed))
    y[1] = -100
    for outputs in ("nodes", "leaves"):
        loss = HACELoss(h, 0.3, outputs=outputs, labels="nodes", weight=1.0 + torch.arange(h.num_nodes) % 3)
        z = logits(3, loss.num_outputs, seed)
        for result, wanted in zip(with_gradient(loss, z.float(), y), with_gradient(loss, z, y), strict=True):
            PURE.close(result, wanted, kind, seed, outputs)


def test_rows_longer_than_a_block() -> None:
    h = random_plain("ragged", 0, max_nodes=9000).build()
    loss = HACELoss(h, 0.1, reduction="none")
    z, y = logits(2, h.num_nodes), torch.tensor([0, h.num_leaves - 1])
    for result, wanted in zip(with_gradient(loss, z.float(), y), with_gradient(loss, z, y), strict=True):
        PURE.close(result, wanted)


def test_strides_repeats_and_second_derivatives() -> None:
    loss = HXELoss(NAMED["ragged"].build(), reduction="none")
    z, y = logits(7, loss.num_outputs).float(), torch.arange(7)
    wanted = with_gradient(loss, z, y)
    wide = torch.zeros(7, 2 * loss.num_outputs)
    wide[:, ::2] = z
    for view in (wide[:, ::2], z.t().contiguous().t(), z):
        assert all(torch.equal(a, b) for a, b in zip(with_gradient(loss, view, y), wanted, strict=True))
    slopes = []
    for dtype in (torch.float32, torch.float64):
        x = z.to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x, y).sum(), x, create_graph=True)
        slopes.append(torch.autograd.grad(gradient.square().sum(), x)[0].double())
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)
    assert loss(z[:, :].masked_fill(z == z[2, 1], torch.nan), y).isnan().tolist() == [
        i == 2 for i in range(7)
    ]


@pytest.mark.parametrize("broken", ["path_forward", "path_backward"])
def test_a_failure_falls_back_with_one_warning(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = HCELoss(NAMED["animals"].build())
    z, y = logits(4, 7).float(), torch.arange(4)
    wanted = with_gradient(loss, z, y)
    monkeypatch.setattr(f"hace.losses.kernels._triton_kernels.{broken}", None)
    with pytest.warns(
        RuntimeWarning, match=r"Triton failed, so plain PyTorch serves\. TypeError: 'NoneType'"
    ):
        result = with_gradient(loss, z, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = with_gradient(loss, z, y)
    monkeypatch.setattr(on_cuda, "_failed", False)
    for values in (result, again):
        for one, other in zip(values, wanted, strict=True):
            torch.testing.assert_close(one, other)
