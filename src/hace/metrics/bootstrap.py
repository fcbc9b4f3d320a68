"""What every bootstrap here shares: how often each sample is drawn, and the ends of a 95 % interval."""

from __future__ import annotations

import numpy as np

LEVEL = 0.95


def draw_counts(rng: np.random.Generator, samples: int, rows: int) -> np.ndarray:
    """(rows, samples) how often each sample is drawn when ``samples`` of them are drawn with replacement, row by row.

    Example:
        >>> draw_counts(np.random.default_rng(0), 4, 2).sum(axis=1)
        array([4, 4])
    """
    drawn = rng.integers(samples, size=(rows, samples)) if samples else np.zeros((rows, 0), dtype=np.int64)
    found = np.empty((rows, samples), dtype=np.int64)
    for row, indices in enumerate(drawn):  # one row of counts stays in the cache
        found[row] = np.bincount(indices, minlength=samples)
    return found


def interval_ends(draws: np.ndarray) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of the draws that have a value; nan if none has.

    Example:
        >>> interval_ends(np.array([np.nan, 1.0, 1.0]))
        (1.0, 1.0)
    """
    there = draws[~np.isnan(draws)]
    if not len(there):
        return np.nan, np.nan
    low, high = np.quantile(there, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
