"""Mixup and CutMix: pairs of images made one, and their labels in the same shares.

    mixup    x = lam x_i + (1 - lam) x_j                        lam ~ Beta(alpha, alpha)
    cutmix   x = x_i with a box of x_j in it                    lam = the share of x_i's pixels that are left
    target   lam onehot(y_i) + (1 - lam) onehot(y_j)

One share is drawn for a batch, and the j are a permutation of it. The targets are soft labels over the classes, which
every loss here takes; HACE spreads each of their parts up its own path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hace.errors import ConfigError, DataError


@dataclass(frozen=True)
class Mixing:
    """How batches are mixed.

    Attributes:
        mixup_alpha: Of mixup's Beta distribution; 0 for no mixup.
        cutmix_alpha: Of CutMix's Beta distribution; 0 for no CutMix.
        probability: Of a batch to be mixed at all.
        switch: The probability of CutMix where both are on.

    Example:
        >>> Mixing(mixup_alpha=0.8, cutmix_alpha=1.0).active, Mixing().active
        (True, False)
    """

    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    probability: float = 1.0
    switch: float = 0.5

    def __post_init__(self) -> None:
        for option in ("mixup_alpha", "cutmix_alpha"):
            if not 0 <= getattr(self, option) < math.inf:
                raise ConfigError(f"{option} must be a number of at least 0. Got {getattr(self, option)!r}.")
        for option in ("probability", "switch"):
            if not 0 <= getattr(self, option) <= 1:
                raise ConfigError(f"{option} must be between 0 and 1. Got {getattr(self, option)!r}.")

    @property
    def active(self) -> bool:
        """Whether any batch is ever mixed. Where not, a loop can leave labels as they are."""
        return self.probability > 0 and (self.mixup_alpha > 0 or self.cutmix_alpha > 0)


def mix(
    images: Tensor, labels: Tensor, num_labels: int, mixing: Mixing, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mix a batch. The arguments are not changed.

    One number is drawn from the generator, whatever is done with the batch; everything else follows from it.

    Args:
        images: Floating point (B, C, H, W).
        labels: int64 (B,), from 0 to `num_labels` - 1: leaf labels, or node indices.
        num_labels: The number of leaves, or of nodes.
        mixing: How.
        generator: Decides share, partners and box.

    Returns:
        Images (B, C, H, W), and float32 targets (B, num_labels) whose rows sum to 1. Not mixed, they are one-hot.

    Raises:
        DataError: Images or labels of another shape or type, or labels out of range.

    Example:
        >>> images, labels = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 2])
        >>> x, target = mix(images, labels, 3, Mixing(mixup_alpha=1.0), torch.Generator().manual_seed(0))
        >>> x.shape, target.shape, target.sum(1)
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 3]), tensor([1., 1., 1., 1.]))
    """
    _check(images, labels, num_labels)
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    targets = F.one_hot(labels, num_labels).float()
    if not mixing.active or len(images) < 2:
        return images, targets
    rng = np.random.default_rng(int(seed))
    if rng.random() >= mixing.probability:
        return images, targets
    both = mixing.mixup_alpha > 0 and mixing.cutmix_alpha > 0
    cut = rng.random() < mixing.switch if both else mixing.cutmix_alpha > 0
    alpha = mixing.cutmix_alpha if cut else mixing.mixup_alpha
    share = float(rng.beta(alpha, alpha))
    partner = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    if cut:
        images, share = _cut(images, partner, share, rng)
    else:
        images = images.lerp(images[partner], 1 - share)
    return images, targets.lerp(targets[partner.to(targets.device)], 1 - share)


def _cut(images: Tensor, partner: Tensor, share: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Images with a box of their partners', and the share of pixels that are still their own.

    The box has 1 - share of the area and the image's proportions; its centre is anywhere, and what sticks out is cut off.
    """
    height, width = images.shape[-2:]
    (top, bottom), (left, right) = (_interval(side, math.sqrt(1 - share), rng) for side in (height, width))
    images = images.clone()
    images[..., top:bottom, left:right] = images[partner][..., top:bottom, left:right]
    return images, 1 - (bottom - top) * (right - left) / (height * width)


def _interval(side: int, part: float, rng: np.random.Generator) -> tuple[int, int]:
    length, centre = round(side * part), int(rng.integers(side))
    start = centre - length // 2
    return max(start, 0), min(start + length, side)


def _check(images: Tensor, labels: Tensor, num_labels: int) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise DataError(
            f"mix needs floating point images (B, C, H, W). Got {images.dtype} of shape {tuple(images.shape)}."
        )
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise DataError(
            f"mix needs one int64 label for each of {len(images)} images. Got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    # On a GPU the look at the values would wait for it at every step.
    if labels.device.type == "cpu" and len(labels) and not 0 <= labels.min() <= labels.max() < num_labels:
        raise DataError(
            f"mix needs labels from 0 to {num_labels - 1}. Got {int(labels.min())} to {int(labels.max())}."
        )
