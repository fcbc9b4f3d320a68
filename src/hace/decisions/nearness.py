"""How near a sample is to the training samples, and what that says about the place where a model will be used.

The similarity of a sample is the cosine of its features and those of the training sample nearest to it, both less the mean of
the training. It needs no labels, and it sees what makes a random hold-out lie: held-out photos of a burst have a twin among the
training samples, new photos have none. :func:`similarity_alarm` is the distance of the two distributions (Kolmogorov and
Smirnov), and :func:`samples_like` draws calibration samples whose similarity is distributed as that of new ones:

    accept a calibration sample of similarity s with probability w(s) / max w,    w = density among new samples / among these

The accepted samples are a sample of the new distribution (rejection sampling), so every guarantee holds on them as on any: on
average, with a confidence, of samples or of answers. It is conformal prediction under covariate shift with the similarity as
the covariate (Tibshirani, Barber, Candes and Ramdas 2019). **Assumption**: among samples of equal similarity, calibration
samples are as often right as new ones. w is a histogram, so it is estimated, and errors of w move the guarantee. No sample can
stand for new ones that are less similar than all of them: :func:`samples_like` says how many those are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.errors import DataError, FormatError

ALARM = 0.2  # a greater distance is one that guarantees did not survive
_AXES = 64  # principal axes, on which similarity is measured
_MOST = 20_000  # training samples that are remembered
_BLOCK = 1 << 22  # entries worked on at once
_BINS = 12  # of the histogram of similarity
_FULL = 20  # calibration samples in a bin, at least
_PARTS = ("mean", "axes", "rows")


@dataclass(frozen=True, eq=False)
class Nearness:
    """Training samples, as far as the similarity to the nearest one needs them.

    Attributes:
        mean: (F,) of the training features.
        axes: (F, K) their leading principal axes.
        rows: (M, K) the training samples on these axes, of length 1, in half precision.
    """

    mean: np.ndarray
    axes: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, training: np.ndarray, divisor: np.ndarray | None = None, seed: int = 0) -> Nearness:
        """From features of training samples.

        Args:
            training: (M, F); of more than 20,000, so many are drawn.
            divisor: (F,) what each feature is divided by.
            seed: of the draw.

        Example:
            >>> near = Nearness.of(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
            >>> near.similarity(np.array([[2.0, 0.0], [1.0, 1.0]])).round(2).tolist()
            [1.0, 0.71]
        """
        x = _checked("training", training)
        if not len(x):
            raise DataError("training must hold at least one sample. Got none.")
        if len(x) > _MOST:
            x = x[np.sort(np.random.default_rng(seed).choice(len(x), _MOST, replace=False))]
        scale = np.ones(x.shape[1]) if divisor is None else np.asarray(divisor, dtype=np.float64)
        mean = x.mean(axis=0, dtype=np.float64)
        axes = np.diag(1 / scale)
        if x.shape[1] > _AXES:
            centred = ((x - mean) / scale).astype(np.float32)
            axes = np.linalg.eigh((centred.T @ centred).astype(np.float64))[1][:, -_AXES:] / scale[:, None]
        made = cls(mean.astype(np.float32), axes.astype(np.float32), np.empty((0, axes.shape[1]), np.float16))
        return cls(made.mean, made.axes, made.on_axes(x).astype(np.float16))

    def on_axes(self, samples: np.ndarray) -> np.ndarray:
        """(S, K) samples on the axes, of length 1."""
        x = _checked("samples", samples)
        if x.shape[1] != len(self.mean):
            raise DataError(f"samples must have {len(self.mean)} features, as in training. Got {x.shape[1]}.")
        step = max(1, _BLOCK // x.shape[1])
        parts = [(x[i : i + step] - self.mean) @ self.axes for i in range(0, len(x), step)]
        rows = np.concatenate(parts) if parts else np.empty((0, self.axes.shape[1]), np.float32)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    def similarity(self, samples: np.ndarray) -> np.ndarray:
        """(S,) the cosine of each sample (S, F) and the training sample nearest to it."""
        known = self.rows.astype(np.float32)
        rows = self.on_axes(samples)
        step = max(1, _BLOCK // len(known))
        parts = [(rows[i : i + step] @ known.T).max(axis=1) for i in range(0, len(rows), step)]
        return np.concatenate(parts).astype(np.float64) if parts else np.empty(0)

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """Its arrays, named for a file."""
        return {f"{prefix}.{name}": getattr(self, name) for name in _PARTS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], prefix: str) -> Nearness | None:
        """What :meth:`arrays` gave; None where a file has none."""
        if f"{prefix}.rows" not in arrays:
            return None
        mean, axes, rows = (np.array(arrays[f"{prefix}.{name}"]) for name in _PARTS)
        fits = mean.ndim == 1 and axes.ndim == rows.ndim == 2 and len(axes) == len(mean) and len(rows)
        if (
            not fits
            or axes.shape[1] != rows.shape[1]
            or not all(np.isfinite(a).all() for a in (mean, axes, rows))
        ):
            raise FormatError(f"{prefix} must hold training samples on axes of the features.")
        return cls(mean.astype(np.float32), axes.astype(np.float32), rows.astype(np.float16))


def nearest_similarity(training: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """(S,) the cosine of each sample and the training sample nearest to it, both less the mean of the training.

    Args:
        training: (M, F) features of the training samples.
        samples: (S, F) features of the new ones.
    """
    return Nearness.of(training).similarity(samples)


def _checked(name: str, features: np.ndarray) -> np.ndarray:
    rows = np.asarray(features, dtype=np.float32)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise DataError(
            f"{name} must be a table of finite features, one row per sample. Got shape {rows.shape}."
        )
    return rows


def similarity_alarm(held_out: np.ndarray, new: np.ndarray) -> float:
    """How far held-out samples are from standing for new ones, from 0 to 1: the distance between the distributions of their
    similarity to the nearest training sample (Kolmogorov and Smirnov).

    Near 0, a guarantee calibrated on the held-out samples can be expected to hold on the new ones. A random hold-out of
    photos in bursts had 0.4, and broke its guarantee fivefold.
    """
    from scipy.stats import ks_2samp

    return float(np.asarray(ks_2samp(held_out, new, method="asymp"))[0])


def nearer_by(held_out: np.ndarray, new: np.ndarray) -> float:
    """How much nearer held-out samples are than new ones, from 0 to 1: the greatest excess of new ones below a similarity."""
    from scipy.stats import ks_2samp

    return float(np.asarray(ks_2samp(held_out, new, alternative="less", method="asymp"))[0])


@dataclass(frozen=True, eq=False)
class Likeness:
    """Calibration samples drawn to be as similar to the training samples as new ones are.

    Attributes:
        rows: the places of those drawn.
        alarm: the distance of the two distributions before, from 0 to 1.
        beyond: the share of new samples that are less similar than 99% of the held-out samples: hardly anything stands for
            them.
    """

    rows: np.ndarray
    alarm: float
    beyond: float

    @property
    def note(self) -> str:
        """What was done and what it assumes, in one sentence."""
        return (
            f"{len(self.rows):,} calibration samples were drawn to be as similar to the training samples as new ones are "
            f"(before, their distributions differed by {self.alarm:.2f}): guarantees hold if, among samples of equal "
            f"similarity, calibration samples are as often right as new ones; {self.beyond:.0%} of new samples are less "
            "similar than nearly all of them."
        )


def samples_like(held_out: np.ndarray, new: np.ndarray, seed: int = 0) -> Likeness:
    """Draw held-out samples (S,) whose similarity is distributed as that of new samples (M,).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> held_out, new = rng.uniform(0, 1, 2000), rng.uniform(0, 0.5, 1000)
        >>> drawn = samples_like(held_out, new)
        >>> bool(similarity_alarm(held_out[drawn.rows], new) < 0.06), round(drawn.alarm, 1)
        (True, 0.5)
    """
    if not len(held_out) or not len(new):
        raise DataError("There must be at least one held-out sample and one new sample. Got none.")
    edges = _edges(held_out, new)
    ours = np.histogram(held_out, edges)[0]
    theirs = np.histogram(new, edges)[0]
    weight = (theirs / len(new)) / np.maximum(ours / len(held_out), 1e-12)
    weight = np.concatenate([[0.0], weight, [0.0]])  # no new sample is outside the bins
    chance = weight[np.digitize(held_out, edges)] / weight.max()
    rows = np.flatnonzero(np.random.default_rng(seed).random(len(held_out)) < chance)
    least = float(np.quantile(held_out, 0.01))
    return Likeness(rows, similarity_alarm(held_out, new), float((new < least).mean()))


def _edges(held_out: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Bins with equally many new samples, joined where too few calibration samples are in one."""
    edges = np.unique(np.quantile(new, np.linspace(0, 1, _BINS + 1))).tolist()
    edges[-1] = np.nextafter(edges[-1], np.inf)
    if len(edges) == 1:
        return np.array([-np.inf, np.inf])
    while len(edges) > 2:
        counts = np.histogram(held_out, edges)[0]
        least = int(counts.argmin())
        if counts[least] >= _FULL:
            break
        # The edge to the next bin, or before the last.
        del edges[least + 1 if least + 2 < len(edges) else least]
    if not ((held_out >= edges[0]) & (held_out < edges[-1])).any():
        return np.array([-np.inf, np.inf])  # nothing is alike
    return np.array(edges)
