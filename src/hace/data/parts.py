"""A part of the samples of each label, by chance: the one rule of every split and of every label that is taken away."""

from __future__ import annotations

import numpy as np


def places_of_each(labels: np.ndarray, seed: list[int], later: np.ndarray | None = None) -> np.ndarray:
    """(M,) the place of each sample among those of its label, from 0, by chance.

    Args:
        labels: (M,) labels.
        seed: Decides the places.
        later: (M,) whether a sample comes after those that are not.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    if later is not None:
        order = order[np.argsort(later[order], kind="stable")]
    order = order[np.argsort(labels[order], kind="stable")]  # label by label, at random within each
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - np.repeat(first, counts)
    return place


def part_of_each(labels: np.ndarray, share: float, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions outside and inside a part: of every label its share, rounded, but never its last sample.

    Args:
        labels: (M,) labels.
        share: Of each label's samples.
        seed: Chooses which.
    """
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.minimum(np.floor(share * counts + 0.5).astype(np.int64), counts - 1)
    inside = places_of_each(labels, seed) < quota[inverse]
    return np.flatnonzero(~inside), np.flatnonzero(inside)
