"""The hyperbolic head: geoopt's hyperplanes, finite gradients everywhere, a linear layer where space is flat."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from hace import CrossEntropyLoss, Hierarchy
from hace.errors import ConfigError, DataError
from hace.losses.poincare_head import PoincareHead


def head_with_offsets(curvature: float, clip: float) -> PoincareHead:
    head = PoincareHead(5, 7, curvature=curvature, clip=clip).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        head.weight.copy_(torch.randn(7, 5, generator=generator))
        head.bias.copy_(0.4 * torch.randn(7, generator=generator))
    return head


def features(rows: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(rows, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("curvature", [0.05, 1.0, 3.0])
def test_logits_are_geoopt_s_distances_to_hyperplanes(curvature: float) -> None:
    """A quarter of lambda_p |a| times the signed distance, as Ganea et al. have it, with p on the normal through 0."""
    geometry = pytest.importorskip("geoopt.manifolds.stereographic.math")
    head, u, k = head_with_offsets(curvature, 1.5), features(6), torch.tensor(-curvature).double()
    x = geometry.expmap0(u * (1.5 / u.norm(dim=1, keepdim=True)).clamp(max=1.0), k=k)
    weight, bias = head.weight.detach(), head.bias.detach()
    p = geometry.expmap0(-bias[:, None] * weight / weight.square().sum(dim=1, keepdim=True), k=k)
    a = geometry.parallel_transport0(p, weight, k=k)
    signed = geometry.dist2plane(x[:, None], p[None], a[None], k=k, signed=True, scaled=True)
    wanted = geometry.lambda_x(p, k=k) * signed / 4
    torch.testing.assert_close(head(u).detach(), wanted, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(head.float()(u.float()).double().detach(), wanted, rtol=1e-6, atol=1e-6)


def test_any_point_of_a_hyperplane_may_be_its_offset() -> None:
    """The form with d numbers per offset (Khrulkov et al.) has no hyperplanes that this one lacks."""
    geometry = pytest.importorskip("geoopt.manifolds.stereographic.math")
    generator, k = torch.Generator().manual_seed(2), torch.tensor(-1.0).double()
    p, a = (0.3 * torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(2))
    u = features(200)
    theirs = geometry.dist2plane(geometry.expmap0(u, k=k), p[None], a[None], k=k, signed=True)
    normal = (1 - p.square().sum()) * a + 2 * (p @ a) * p  # and 2 p . a: the hyperplane in Minkowski space
    r = 0.5 * torch.atanh(2 * (p @ a) / normal.norm())
    head = PoincareHead(5, 1, clip=5.0).double()
    with torch.no_grad():
        head.weight.copy_(normal / normal.norm())
        head.bias.copy_(-r)
    torch.testing.assert_close(2 * head(u)[:, 0].detach(), theirs, rtol=1e-6, atol=1e-6)


def test_gradients() -> None:
    head, u = head_with_offsets(1.0, 1.5), features(3).requires_grad_()
    assert torch.autograd.gradcheck(head, u)
    names = [name for name, _ in head.named_parameters()]

    def of_parameters(*values: Tensor) -> Tensor:
        return torch.func.functional_call(head, dict(zip(names, values, strict=True)), (u.detach(),))

    assert torch.autograd.gradcheck(of_parameters, tuple(head.parameters()))


def test_finite_at_zeros_and_far_out() -> None:
    """Features of 0 and 1e4, offsets at the origin and far out, weights of 0, in float32 and in half precision."""
    h = Hierarchy.flat(range(7))
    for dtype, offset, size in itertools.product(
        (torch.float32, torch.bfloat16), (0.0, 3.0, -1e4), (0.0, 1.0, 1e4)
    ):
        head = PoincareHead(5, 7, clip=5.0)
        torch.nn.init.constant_(head.bias, offset)
        torch.nn.init.uniform_(head.weight, -size, size)
        for scale in (0.0, 1e-20, 1.0, 1e4):
            u = features(7, scale).to(dtype).requires_grad_()
            loss = CrossEntropyLoss(h)(head(u), torch.arange(7))
            gradients = torch.autograd.grad(loss, [u, *head.parameters()])
            assert loss.isfinite()
            assert all(g.isfinite().all() for g in gradients), (dtype, offset, size, scale)


def test_a_tiny_feature_still_teaches() -> None:
    """The gradient of a length is not defined at 0; those of the weights and offsets are."""
    head = PoincareHead(5, 7)
    u = features(7, 1e-20).float()
    head(u).sum().backward()
    assert head.bias.grad is not None
    assert head.bias.grad.abs().min() > 0.1


def test_nearly_flat_space_has_a_linear_layer() -> None:
    head, u = head_with_offsets(1e-8, 1e3), features(6)
    wanted = torch.nn.functional.linear(u, head.weight, head.bias)
    torch.testing.assert_close(head(u), wanted, rtol=1e-5, atol=1e-5)


def test_what_is_refused() -> None:
    for argument in ("curvature", "clip"):
        for value in (0.0, -1.0, float("nan"), "1"):
            with pytest.raises(ConfigError, match=f"{argument} must be (a number )?above 0"):
                PoincareHead(2, 3, **{argument: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at most 5 / sqrt"):
        PoincareHead(2, 3, curvature=4.0, clip=2.6)
    with pytest.raises(DataError, match="features must have 2 columns"):
        PoincareHead(2, 3)(torch.zeros(1, 3))


class ByTheMetric(torch.autograd.Function):
    """Khrulkov et al.'s RiemannianGradient: a point of the ball as it is, its gradient by the inverse of the metric."""

    @staticmethod
    def forward(ctx, x: Tensor, c: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.c = c
        return x.clone()

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return outer[0] * (1 - ctx.c * x.square().sum(dim=-1, keepdim=True)) ** 2 / 4, None


def published_logits(u: Tensor, head: PoincareHead, c: float) -> Tensor:
    """The logits of the papers, without our 1/4, step by step: exp_0, the metric, Moebius addition, the distance."""

    def exp0(v: Tensor) -> Tensor:
        t = c**0.5 * v.norm(dim=-1, keepdim=True)
        return v * torch.tanh(t) / t

    def square(v: Tensor) -> Tensor:
        return v.square().sum(dim=-1, keepdim=True)

    x = ByTheMetric.apply(exp0(u), c)[:, None]  # type: ignore[no-untyped-call]
    w, b = head.weight.detach(), head.bias.detach()
    p = exp0(-b[:, None] * w / square(w))[None]
    a, dot = w * (1 - c * square(p)), (-p * x).sum(dim=-1, keepdim=True)
    top = (1 + 2 * c * dot + c * square(x)) * -p + (1 - c * square(p)) * x
    moved = top / (1 + 2 * c * dot + c**2 * square(p) * square(x))
    length = a.norm(dim=-1)
    sine = 2 * c**0.5 * (moved * a).sum(dim=-1) / ((1 - c * square(moved)[..., 0]) * length)
    return 2 / (1 - c * square(p)[..., 0]) * length / c**0.5 * torch.asinh(sine)


@pytest.mark.parametrize("curvature", [0.3, 1.0])
def test_riemannian_gradients_are_those_of_khrulkov_et_al(curvature: float) -> None:
    plain, u = head_with_offsets(curvature, 1.5), features(6, 0.3)
    head = PoincareHead(5, 7, curvature=curvature, clip=1.5, riemannian=True).double()
    head.load_state_dict(plain.state_dict())
    outer = torch.randn(6, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ours, theirs, without = (u.clone().requires_grad_() for _ in range(3))
    result = torch.autograd.grad((head(ours) * outer).sum(), [ours, *head.parameters()])
    unscaled = torch.autograd.grad((plain(without) * outer).sum(), [without, *plain.parameters()])
    logits = published_logits(theirs, head, curvature)
    torch.testing.assert_close(4 * head(u), logits)
    torch.testing.assert_close(result[0], torch.autograd.grad((logits * outer).sum(), theirs)[0])
    assert not torch.allclose(result[0], unscaled[0])
    torch.testing.assert_close(result[1:], unscaled[1:])  # hyperplanes learn as before
