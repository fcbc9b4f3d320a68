"""A hyperbolic head: the last layer of a model as multinomial regression in the Poincare ball."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hace.checks import is_number, require
from hace.errors import DataError
from hace.losses.numerics import without_autocast

_FARTHEST = 32.0  # twice the distance of a hyperplane from the origin, where squares still fit into float32


@dataclass(frozen=True)
class PoincareBall:
    r"""The Poincare ball of curvature -c, and the logits of hyperplanes in it.

    .. math:: z_k = \frac{\lambda_{p_k} \lVert a_k \rVert}{4 \sqrt c}
        \operatorname{asinh} \frac{2 \sqrt c \langle -p_k \oplus x, a_k \rangle}
        {(1 - c \lVert -p_k \oplus x \rVert^2) \lVert a_k \rVert}, \qquad x = \exp_0(u)

    u are the features, shortened to length ``clip``; exp_0 maps them into the ball. The normal of hyperplane k through the
    origin crosses it at p_k = exp_0(-b_k w_k / |w_k|^2), so a hyperplane has the parameters of a linear layer:

    .. math:: z_k = \frac{\lVert w_k \rVert}{2 \sqrt c} \operatorname{asinh}\big(\sinh(2t) \cosh(s_k) \cos(u, w_k)
        + \cosh(2t) \sinh(s_k)\big), \qquad t = \sqrt c \lVert u \rVert, \quad s_k = 2 \sqrt c\, b_k / \lVert w_k \rVert

    As c falls to 0 this becomes that layer, w_k . u + b_k, which is why the papers' logits are divided by 4.
    """

    curvature: float = 1.0  # c > 0
    # the longest feature vector before it is mapped, at most 5 / sqrt(c); beyond about 2 / sqrt(c) its image is at the rim
    # of the ball, where gradients vanish
    clip: float = 1.0
    # the gradient of the features is scaled by the inverse of the metric, (1 - c |x|^2)^2, as Khrulkov et al. do. It
    # matters where features are trained. Reference: Khrulkov et al., "Hyperbolic Image Embeddings" (2020); Ganea et al.,
    # "Hyperbolic Neural Networks" (2018), eq. 25; one number per offset: Shimizu et al., "Hyperbolic Neural Networks++"
    # (2021), eq. 6; clipped features: Guo et al., "Clipped Hyperbolic Classifiers Are Super-Hyperbolic Classifiers" (2022)
    riemannian: bool = False

    def __post_init__(self) -> None:
        fits = is_number(self.curvature) and self.curvature > 0
        require("curvature", self.curvature, "a number above 0", fits)
        fits = is_number(self.clip) and 0 < self.clip <= 5 / math.sqrt(self.curvature)
        require("clip", self.clip, "above 0 and at most 5 / sqrt(curvature)", fits)

    def logits(self, features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(B, d) features, (C, d) weights and (C,) biases -> (B, C) logits, in float32 or wider."""
        with without_autocast(features):
            wide = features.float() if features.dtype in (torch.float16, torch.bfloat16) else features
            root = math.sqrt(self.curvature)
            longest = wide.norm(dim=-1, keepdim=True).clamp(min=self.clip)
            u = wide * (self.clip / longest)
            if self.riemannian and u.requires_grad:
                scale = torch.cosh(root * _lengths(u.detach())) ** -4  # 1 - c |x|^2 = 1 / cosh(t)^2
                u.register_hook(lambda gradient: gradient * scale)
            t = root * _lengths(u)  # (B, 1)
            w = weight.to(u.dtype)
            length = _lengths(w)[:, 0]  # (C,)
            cosine = (u @ (w / length[:, None]).t()) * (torch.sinh(2 * t) * root / t)  # sinh(2t) cos(u, w)
            if bias is None:
                return length * torch.asinh(cosine) / (2 * root)
            s = (2 * root * bias.to(u.dtype) / length).clamp(-_FARTHEST, _FARTHEST)
            return length * torch.asinh(cosine * s.cosh() + torch.cosh(2 * t) * s.sinh()) / (2 * root)


class PoincareHead(nn.Module):
    r"""Features to the logits of hyperplanes in the Poincare ball: in place of ``torch.nn.Linear`` before any loss.

    It has the parameters of that layer; see :class:`PoincareBall` for what they mean.

    Args:
        in_features: length of the features.
        out_features: how many logits: ``loss.num_outputs``.
        curvature: c > 0.
        clip: the longest feature vector before it is mapped.
        riemannian: scale the gradient of the features by the inverse of the metric, as Khrulkov et al. do.

    Example:
        >>> from hace import HACELoss, Hierarchy
        >>> loss = HACELoss(Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")]))
        >>> head = PoincareHead(8, loss.num_outputs)
        >>> loss(head(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0])).backward()
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        curvature: float = 1.0,
        clip: float = 1.0,
        riemannian: bool = False,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.ball = PoincareBall(curvature, clip, riemannian)
        bound = in_features**-0.5
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) features -> (B, out_features) logits, in float32 or wider."""
        if features.shape[-1] != self.in_features:
            raise DataError(f"features must have {self.in_features} columns. Got {tuple(features.shape)}.")
        return self.ball.logits(features, self.weight, self.bias)

    def extra_repr(self) -> str:
        """What ``print(head)`` shows."""
        return f"{self.in_features}, {self.out_features}, curvature={self.ball.curvature:g}, clip={self.ball.clip:g}"


def _lengths(rows: Tensor) -> Tensor:
    """(B, 1) lengths of rows, in place of 0 a tiny one: its gradient is 0 there, and so is what it multiplies."""
    squares = rows.square().sum(dim=-1, keepdim=True)
    return torch.where(squares > 0, squares, torch.finfo(rows.dtype).tiny).sqrt()
