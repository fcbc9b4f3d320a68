"""Whether a guarantee can be trusted: are new samples like those it rests on?

A guarantee speaks of samples like its calibration samples. Where a model is right much less, or much more, often on other
samples, they are not alike, and the guarantee does not hold for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

SIGNIFICANT = 0.01  # of what speaks against a guarantee
REMEDY = (
    "Calibrate on labelled samples from where the model will be used (a split val, or hace calibrate --samples), or say which "
    "samples belong together (--groups)."
)


class RightShare(NamedTuple):
    """The share of samples whose most probable class is right, and how many independent samples would say as much."""

    value: float
    samples: float


def right_share(right: np.ndarray, groups: np.ndarray | None = None) -> RightShare | None:
    """The share of right answers (M,), where groups resemble each other as of fewer samples; None where there are too few."""
    right = np.asarray(right, dtype=np.float64)
    place = np.arange(len(right)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    units = len(np.unique(place))
    if units < 2:
        return None
    value = float(right.mean())
    count = float(len(right))
    if units < len(right) and 0 < value < 1:
        apart = np.bincount(place, weights=right - value)
        variance = units / (units - 1) * np.square(apart).sum() / len(right) ** 2
        count = min(count, value * (1 - value) / variance) if variance > 0 else count
    elif units < len(right):
        count = float(units)
    return RightShare(value, count)


def differ(first: RightShare | None, second: RightShare | None) -> bool:
    """Whether two shares differ by more than chance."""
    if first is None or second is None:
        return False
    counts = np.array([first.samples, second.samples])
    both = float(counts @ [first.value, second.value] / counts.sum())
    error = np.sqrt(both * (1 - both) * (1 / counts).sum())
    return bool(error > 0 and 2 * stats.norm.sf(abs(first.value - second.value) / error) < SIGNIFICANT)


def why_broken(held_out: RightShare | None, seen: RightShare | None, samples: str = "test samples") -> str:
    """Why a guarantee that rests on held-out samples must not be trusted for others that were seen; "" if it may be."""
    if held_out is None or seen is None or not differ(held_out, seen):
        return ""
    shares = f"{held_out.value:.1%} of the samples it rests on and in {seen.value:.1%} of {samples}"
    return f"right in {shares}, more than chance. {REMEDY}"
