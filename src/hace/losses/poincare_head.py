"""A hyperbolic head: the last layer of a model as multinomial regression in the Poincare ball."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hace.errors import DataError
from hace.losses.checks import check_number, is_number


class PoincareHead(nn.Module):
    r"""Features to the logits of hyperplanes in the Poincare ball: in place of ``torch.nn.Linear`` before any loss.

    .. math:: x = \exp_0(u), \qquad z_k = \frac{\lambda_{p_k} \lVert a_k \rVert}{\sqrt c}
        \operatorname{asinh} \frac{2 \sqrt c \langle -p_k \oplus x, a_k \rangle}
        {(1 - c \lVert -p_k \oplus x \rVert^2) \lVert a_k \rVert}

    u are the features, shortened to length ``clip``, exp_0 maps them into the ball of curvature -c, and hyperplane k has the
    offset p_k = exp_0(of its parameter) and the normal a_k, which is its parameter brought from the origin to p_k. As c
    falls to 0 the logits become 4 <u - p_k, a_k>, those of a linear layer.

    Args:
        in_features: length of the features.
        out_features: how many logits: ``loss.num_outputs``.
        curvature: c > 0.
        clip: the largest length of a feature vector before it is mapped; beyond about 2 its image is at the rim of the ball,
            where gradients vanish.

    Example:
        >>> from hace import HACELoss, Hierarchy
        >>> loss = HACELoss(Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")]))
        >>> head = PoincareHead(8, loss.num_outputs)
        >>> loss(head(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0])).backward()

    Reference: Khrulkov et al., "Hyperbolic Image Embeddings" (2020); Ganea et al., "Hyperbolic Neural Networks" (2018), eq. 25;
    clipped features: Guo et al., "Clipped Hyperbolic Classifiers Are Super-Hyperbolic Classifiers" (2022).
    """

    def __init__(
        self, in_features: int, out_features: int, *, curvature: float = 1.0, clip: float = 1.0
    ) -> None:
        super().__init__()
        check_number("curvature", curvature, "a number above 0", is_number(curvature) and curvature > 0)
        check_number("clip", clip, "a number above 0", is_number(clip) and clip > 0)
        self.curvature, self.clip = float(curvature), float(clip)
        bound = in_features**-0.5
        self.normal = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.offset = nn.Parameter(torch.zeros(out_features, in_features))

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) features -> (B, out_features) logits, in float32 or wider."""
        if features.shape[-1] != self.normal.shape[1]:
            raise DataError(
                f"features must have {self.normal.shape[1]} columns. Got {tuple(features.shape)}."
            )
        with torch.autocast(features.device.type, enabled=False):
            wide = features.float() if features.dtype in (torch.float16, torch.bfloat16) else features
            normal, offset = self.normal.to(wide.dtype), self.offset.to(wide.dtype)
            size = wide.norm(dim=-1, keepdim=True)
            short = wide * (self.clip / size.clamp(min=self.clip))
            return self._logits(short, normal, offset)

    def _logits(self, short: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
        """-p + x is a mean of p and x over D, and 1 - c |-p + x|^2 = (1 - c |p|^2)(1 - c |x|^2) / D: D cancels."""
        c, root = self.curvature, math.sqrt(self.curvature)
        x, x_gap = _into_ball(short, root)
        p, p_gap = _into_ball(offset, root)
        length = normal.norm(dim=1).clamp(min=torch.finfo(normal.dtype).tiny)
        x_square = (1.0 - x_gap) / c  # |x|^2
        alpha = 1.0 - 2.0 * c * (x @ p.t()) + c * x_square  # (B, K)
        along = p_gap[:, 0] * (x @ normal.t()) - alpha * (p * normal).sum(dim=1)
        return (2.0 / root) * length * torch.asinh(2.0 * root * along / (p_gap[:, 0] * x_gap * length))

    def extra_repr(self) -> str:
        """What ``print(head)`` shows."""
        outputs, inputs = self.normal.shape
        return f"{inputs}, {outputs}, curvature={self.curvature:g}, clip={self.clip:g}"


def _into_ball(u: Tensor, root: float) -> tuple[Tensor, Tensor]:
    """exp_0(u) of rows u, and 1 - c |exp_0(u)|^2 = 1 / cosh(sqrt(c) |u|)^2."""
    square = u.square().sum(dim=-1, keepdim=True)
    some = square > 0  # the gradient of a length is not defined at 0, that of tanh(t) / t is 0
    t = root * torch.where(some, square, 1.0).sqrt()
    ratio = torch.where(some, torch.tanh(t) / t, 1.0)
    return u * ratio, torch.where(some, torch.cosh(t).pow(-2), 1.0)
