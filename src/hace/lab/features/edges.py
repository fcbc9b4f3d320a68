"""Edges and colours: a backbone of photos that needs no weights and no network.

Fixed filters find edges of two widths in six directions, in brightness and two colour differences; their strength is averaged
over 4 x 4 parts of the photo. A colour histogram of each quarter follows. On real photos a trained network sees far more; this
is for where none can be downloaded: the demo, the tutorial and tests.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F

NAME = "edges_and_colours"
_SIDE = 64
_FILTER = 9
_WIDTHS = (3.0, 6.0)
_DIRECTIONS = 6
_PARTS = 4
_QUARTERS = 2
_SHADES = 3
_OF_EDGES = 0.5  # beside colours
_OPPONENTS = [[1 / 3, 1 / 3, 1 / 3], [1 / 2, -1 / 2, 0], [1 / 4, 1 / 4, -1 / 2]]

default_cfgs = generate_default_cfgs(
    {
        NAME: {
            "url": "",
            "input_size": (3, _SIDE, _SIDE),
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": (0.0, 0.0, 0.0),
            "std": (1.0, 1.0, 1.0),
        }
    }
)


class EdgesAndColours(nn.Module):
    """(B, 3, side, side) photos from 0 to 1 to (B, 684) features."""

    opponents: Tensor
    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("opponents", torch.tensor(_OPPONENTS)[:, :, None, None])
        self.register_buffer("filters", _filters().repeat(3, 1, 1, 1))
        self.num_features = 3 * len(_WIDTHS) * _DIRECTIONS * _PARTS**2 + _SHADES**3 * _QUARTERS**2

    def forward(self, images: Tensor) -> Tensor:
        """Features of a batch."""
        edges = self._edges(images)
        edges = (edges / edges.mean(dim=1, keepdim=True)).sqrt()  # of the photo's own contrast
        return torch.cat([_OF_EDGES * edges, self._colours(images).sqrt()], dim=1)

    def _edges(self, images: Tensor) -> Tensor:
        contrasts = F.conv2d(images, self.opponents)
        edges = F.conv2d(contrasts, self.filters, stride=2, padding=_FILTER // 2, groups=3)
        even = edges[:, 0::2]
        odd = edges[:, 1::2]
        strength = (even * even + odd * odd + 1e-6).sqrt()
        return F.adaptive_avg_pool2d(strength, _PARTS).flatten(1)

    def _colours(self, images: Tensor) -> Tensor:
        shades = torch.linspace(0, 1, _SHADES, device=images.device, dtype=images.dtype)
        away = (images[:, :, None] - shades[:, None, None]).abs()
        near = (1 - away * (_SHADES - 1)).clamp(min=0)  # (B, 3, shades, side, side)
        red = near[:, 0, :, None, None]
        green = near[:, 1, None, :, None]
        blue = near[:, 2, None, None, :]
        return F.adaptive_avg_pool2d((red * green * blue).flatten(1, 3), _QUARTERS).flatten(1)


def _filters() -> Tensor:
    """(2 x widths x directions, 1, 9, 9): Gabor filters, an even and an odd one of each kind."""
    at = torch.arange(_FILTER) - _FILTER // 2
    y, x = torch.meshgrid(at, at, indexing="ij")
    made = []
    for width in _WIDTHS:
        window = torch.exp(-(x**2 + y**2) / (2 * (0.4 * width) ** 2))
        for direction in range(_DIRECTIONS):
            angle = torch.tensor(torch.pi * direction / _DIRECTIONS)
            wave = 2 * torch.pi * (x * angle.cos() + y * angle.sin()) / width
            for phase in (0.0, torch.pi / 2):
                one = window * torch.cos(wave + phase)
                one = one - one.mean()
                made.append(one / one.abs().sum())
    return torch.stack(made)[:, None].float()


@register_model
def edges_and_colours(pretrained: bool = False, pretrained_cfg: Any = None, **_: Any) -> EdgesAndColours:
    """The model; there is nothing to train or to fetch."""
    model = EdgesAndColours()
    model.pretrained_cfg = pretrained_cfg or default_cfgs[NAME].default.to_dict()  # type: ignore[assignment]
    return model
