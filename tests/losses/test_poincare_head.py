"""The hyperbolic head: geoopt's hyperplanes, finite gradients everywhere, a linear layer where space is flat."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hace import CrossEntropyLoss, Hierarchy
from hace.errors import ConfigError, DataError
from hace.losses.poincare_head import PoincareHead


def head_with_offsets(curvature: float, clip: float) -> PoincareHead:
    head = PoincareHead(5, 7, curvature=curvature, clip=clip).double()
    generator = torch.Generator().manual_seed(0)
    for parameter, scale in ((head.normal, 1.0), (head.offset, 0.4)):
        with torch.no_grad():
            parameter.copy_(scale * torch.randn(7, 5, generator=generator))
    return head


def features(rows: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(rows, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("curvature", [0.05, 1.0, 3.0])
def test_logits_are_geoopt_s_distances_to_hyperplanes(curvature: float) -> None:
    geometry = pytest.importorskip("geoopt.manifolds.stereographic.math")
    head, u, k = head_with_offsets(curvature, 1.5), features(6), torch.tensor(-curvature).double()
    x = geometry.expmap0(u * (1.5 / u.norm(dim=1, keepdim=True)).clamp(max=1.0), k=k)
    p = geometry.expmap0(head.offset.detach(), k=k)
    factor = geometry.lambda_x(p, k=k)
    a = geometry.parallel_transport0(p, head.normal.detach(), k=k)
    signed = geometry.dist2plane(x[:, None], p[None], a[None], k=k, signed=True, scaled=True)
    torch.testing.assert_close(head(u).detach(), factor * signed, rtol=1e-8, atol=1e-8)


def test_gradients() -> None:
    head, u = head_with_offsets(1.0, 1.5), features(3).requires_grad_()
    assert torch.autograd.gradcheck(head, u)
    names = [name for name, _ in head.named_parameters()]

    def of_parameters(*values: Tensor) -> Tensor:
        return torch.func.functional_call(head, dict(zip(names, values, strict=True)), (u.detach(),))

    assert torch.autograd.gradcheck(of_parameters, tuple(head.parameters()))


def test_finite_at_zeros_and_far_out() -> None:
    """Features of 0 and 1e4, offsets at the origin and far out, in float32 and in half precision."""
    h = Hierarchy.flat(range(7))
    for dtype in (torch.float32, torch.bfloat16):
        for offset in (0.0, 3.0):
            head = PoincareHead(5, 7, clip=2.0)
            torch.nn.init.constant_(head.offset, offset)
            for scale in (0.0, 1e-20, 1.0, 1e4):
                u = features(7, scale).to(dtype).requires_grad_()
                loss = CrossEntropyLoss(h)(head(u), torch.arange(7))
                gradients = torch.autograd.grad(loss, [u, *head.parameters()])
                assert loss.isfinite()
                assert all(g.isfinite().all() for g in gradients), (dtype, offset, scale)


def test_nearly_flat_space_has_a_linear_layer() -> None:
    head, u = head_with_offsets(1e-8, 1e3), features(6)
    wanted = 4 * (u @ head.normal.t() - (head.offset * head.normal).sum(dim=1))
    torch.testing.assert_close(head(u), wanted, rtol=1e-5, atol=1e-5)


def test_what_is_refused() -> None:
    for argument in ("curvature", "clip"):
        for value in (0.0, -1.0, float("nan"), "1"):
            with pytest.raises(ConfigError, match=f"{argument} must be a number above 0"):
                PoincareHead(2, 3, **{argument: value})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="features must have 2 columns"):
        PoincareHead(2, 3)(torch.zeros(1, 3))
