"""What is known of each sample of an evaluation, and the metrics that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy import sparse

from hace.hierarchy.assembly import IntArray
from hace.metrics import curves
from hace.metrics.measures import LEAVES

MetricKey = tuple[str, str]  # heading, name
CALIBRATION_ERRORS = {  # headings by the way bins are made
    "width": "calibration error (ECE) by level",
    "mass": "calibration error (ECE, bins of equal mass) by level",
}


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """What is known of each sample, a row each: every metric follows from these numbers, under any weights of the samples.

    H = 0 levels and L = 0 rungs from the root to the best leaf on a DAG.
    """

    names: tuple[tuple[str, str, float], ...]  # (M,) heading, name and value of 0 / 0 of each ratio
    numerator: np.ndarray  # (S, M)
    denominator: np.ndarray  # (S, M)
    truth: IntArray
    answers: IntArray  # the best leaves
    confidence: np.ndarray  # of the answers; nan where only the metrics of the leaves were computed
    distance: IntArray
    level_confidence: np.ndarray  # (S, H) of the best node of each level
    level_correct: np.ndarray  # (S, H)
    specific: np.ndarray  # (S, T) information of the answer at each threshold, over log2 n
    true: np.ndarray  # (S, T) whether that answer is the truth or above it
    answered: np.ndarray  # (S, T) whether that answer is below the root
    ladders: curves.Ladders  # (S, L)
    decided: dict[str, tuple[IntArray, np.ndarray]]  # nodes and probabilities of each further rule

    def __len__(self) -> int:
        return len(self.truth)

    @classmethod
    def joined(cls, parts: Sequence[SampleStatistics]) -> SampleStatistics:
        """Several chunks, one below the other."""
        return parts[0] if len(parts) == 1 else cls._mapped(parts, np.concatenate)

    def chosen(self, rows: np.ndarray) -> SampleStatistics:
        """Some of the samples: a mask, or row numbers."""
        return self._mapped([self], lambda columns: columns[0][rows])

    @classmethod
    def _mapped(cls, parts: Sequence[SampleStatistics], do: Callable[[list], np.ndarray]) -> SampleStatistics:
        """Statistics with each column made of the same column of some parts."""

        def made(columns: list) -> Any:
            first = columns[0]
            if isinstance(first, np.ndarray):
                return do(columns)
            if isinstance(first, dict):
                return {key: made([column[key] for column in columns]) for key in first}
            return tuple(made(list(each)) for each in zip(*columns, strict=True))

        names = [f.name for f in fields(cls) if f.name != "names"]
        return cls(names=parts[0].names, **{n: made([getattr(part, n) for part in parts]) for n in names})

    @property
    def only_leaves(self) -> bool:
        """Whether only the metrics under "leaves" were computed: nothing is known of probabilities."""
        return all(heading == LEAVES for heading, _, _ in self.names)

    def keys(self, titles: Sequence[str]) -> list[MetricKey]:
        """Heading and name of every value of :meth:`values`, in its order; ``titles`` name the levels."""
        ratios = [(heading, name) for heading, name, _ in self.names]
        if self.only_leaves:
            return ratios
        calibration = [(heading, title) for heading in CALIBRATION_ERRORS.values() for title in titles]
        areas = ["AURC", "AURC of the distance", "area under the operating curve"]
        areas += ["hAURC"] if self.ladders[0].shape[1] else []
        return ratios + calibration + [("selection", name) for name in areas]

    def values(self, weights: np.ndarray | None = None, bins: int = 15) -> np.ndarray:
        """(R, V) all metrics under R weightings (R, S) of the samples; equal weights by default."""
        w = np.ones((1, len(self))) if weights is None else np.asarray(weights, dtype=np.float64)
        return np.concatenate([self.ratios(w), self.others(w, bins)], axis=1)

    def ratios(self, w: np.ndarray) -> np.ndarray:
        """(R, M) the ratios of sums under R weightings (R, S)."""
        empty = np.array([value for _, _, value in self.names])
        with np.errstate(invalid="ignore", divide="ignore"):
            denominator = w @ self.denominator
            ratios = np.where(denominator == 0, empty, (w @ self.numerator) / denominator)
        return np.where(w.sum(axis=1, keepdims=True) == 0, np.nan, ratios)

    def others(self, w: np.ndarray, bins: int = 15) -> np.ndarray:
        """(R, V - M) the metrics that are no ratios of sums: calibration errors and areas of curves."""
        if self.only_leaves:
            return np.empty((len(w), 0))
        total = w.sum(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = [self._calibration(w, bins, binning) / total for binning in CALIBRATION_ERRORS]
            values += [
                self._risk_area(w, self.answers != self.truth),
                self._risk_area(w, self.distance),
                curves.operating_area(w @ self.specific / total, w @ self.true / total)[:, None],
                self._ladder_area(w),
            ]
        return np.concatenate(values, axis=1)

    def _calibration(self, w: np.ndarray, bins: int, binning: str) -> np.ndarray:
        """(R, H) sums over bins of |right answers - confidences|."""
        out = np.empty((len(w), self.level_confidence.shape[1]))
        for k in range(out.shape[1]):
            confidence = self.level_confidence[:, k].astype(np.float64)
            gap = self.level_correct[:, k] - confidence
            if binning == "width":
                place = curves.bin_of(confidence, bins)
                shape = (len(self), bins + 1)
                by_bin = sparse.csr_array((gap, (np.arange(len(self)), place)), shape=shape)
                sums = (by_bin.T @ w.T).T
            else:
                sums = _sums_by_mass(confidence, gap, w, bins)
            out[:, k] = np.abs(sums).sum(axis=1)
        return out

    def _ladder_area(self, w: np.ndarray) -> np.ndarray:
        """(R, 1) areas under hierarchical risk-coverage curves; (R, 0) on a DAG."""
        if not self.ladders[0].shape[1]:
            return np.empty((len(w), 0))
        if not len(self):
            return np.full((len(w), 1), np.nan)
        _, x, y = curves.ladder_curves(self.ladders, w)
        return (np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2).sum(axis=1, keepdims=True)

    def _risk_area(self, w: np.ndarray, risk: np.ndarray) -> np.ndarray:
        """(R, 1) areas under risk-coverage curves; equal confidences enter together."""
        if not len(self):
            return np.full((len(w), 1), np.nan)
        _, coverage, mean = curves.risk_curves(self.confidence, risk, w)
        return (np.diff(coverage, axis=1, prepend=0.0) * mean).sum(axis=1, keepdims=True)


def _sums_by_mass(confidence: np.ndarray, gap: np.ndarray, w: np.ndarray, bins: int) -> np.ndarray:
    """(R, M) sums of gaps in the bins that split the weight of the samples evenly; equal confidences together."""
    order = np.argsort(confidence, kind="stable")
    first = np.searchsorted(confidence[order], confidence[order])  # the first that is equal
    sorted_w = w[:, order]
    before = (np.cumsum(sorted_w, axis=1) - sorted_w)[:, first]
    with np.errstate(invalid="ignore"):
        place = np.minimum(before * bins // w.sum(axis=1, keepdims=True), bins - 1)
    rows = np.arange(len(w))[:, None] * bins
    flat = np.nan_to_num(rows + place).astype(np.int64).ravel()
    sums = np.bincount(flat, weights=(sorted_w * gap[order]).ravel(), minlength=len(w) * bins)
    return sums.reshape(len(w), bins)
