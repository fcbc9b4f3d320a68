"""The few numbers per sample that every metric follows from, under any weights of the samples.

Point estimates use equal weights, a bootstrap draws them at random; one computation serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy import sparse

from hace.hierarchy.assembly import IntArray
from hace.metrics.calibration_error import bin_of
from hace.metrics.curves import LadderColumns, ladder_curves, operating_area

MetricKey = tuple[str, str]  # heading, name
LEAVES = "leaves"  # the heading of the metrics that follow from the ranking of the classes alone
CALIBRATION_ERRORS = {  # headings by the way bins are made
    "width": "calibration error (ECE) by level",
    "mass": "calibration error (ECE, bins of equal mass) by level",
}


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """One row per sample.

    Attributes:
        names: (M,) heading, name and value of 0 / 0 of each ratio.
        numerator: (S, M) numerators of the ratios.
        denominator: (S, M) denominators of the ratios.
        truth: (S,) node indices.
        answers: (S,) node indices of the best leaves.
        confidence: (S,) probability of the answer; nan where only the metrics of the leaves were computed.
        distance: (S,) distance from the answer to the truth.
        level_confidence: (S, H) probability of the best node of each level; H = 0 on a DAG.
        level_correct: (S, H) whether that node is right.
        specific: (S, T) information of the answer at each threshold, over log2 n.
        true: (S, T) whether that answer is the truth or above it.
        answered: (S, T) whether that answer is below the root.
        ladders: (S, L) of the rungs from the root to the best leaf, see :class:`hace.metrics.curves.LadderColumns`;
            L = 0 on a DAG.
        decided: by title, (S,) nodes and probabilities of each further rule.
    """

    names: tuple[tuple[str, str, float], ...]
    numerator: np.ndarray
    denominator: np.ndarray
    truth: IntArray
    answers: IntArray
    confidence: np.ndarray
    distance: IntArray
    level_confidence: np.ndarray
    level_correct: np.ndarray
    specific: np.ndarray
    true: np.ndarray
    answered: np.ndarray
    ladders: LadderColumns
    decided: dict[str, tuple[IntArray, np.ndarray]]

    def __len__(self) -> int:
        return len(self.truth)

    @classmethod
    def joined(cls, parts: Sequence[SampleStatistics]) -> SampleStatistics:
        """Several chunks, one below the other."""
        if len(parts) == 1:
            return parts[0]
        arrays = {
            f.name: np.concatenate([getattr(part, f.name) for part in parts])
            for f in fields(cls)
            if f.name not in ("names", "decided", "ladders")
        }
        ladders = LadderColumns(*(np.concatenate(c) for c in zip(*(p.ladders for p in parts), strict=True)))
        decided = {
            title: (
                np.concatenate([part.decided[title][0] for part in parts]),
                np.concatenate([part.decided[title][1] for part in parts]),
            )
            for title in parts[0].decided
        }
        return cls(names=parts[0].names, ladders=ladders, decided=decided, **arrays)

    def chosen(self, rows: np.ndarray) -> SampleStatistics:
        """Some of the samples: a mask, or row numbers."""
        arrays = {
            f.name: getattr(self, f.name)[rows]
            for f in fields(self)
            if f.name not in ("names", "decided", "ladders")
        }
        decided = {title: (nodes[rows], p[rows]) for title, (nodes, p) in self.decided.items()}
        ladders = LadderColumns(*(column[rows] for column in self.ladders))
        return SampleStatistics(names=self.names, ladders=ladders, decided=decided, **arrays)

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
        areas += ["hAURC"] if self.ladders.reached.shape[1] else []
        return ratios + calibration + [("selection", name) for name in areas]

    def values(self, weights: np.ndarray | None = None, bins: int = 15) -> np.ndarray:
        """(R, V) all metrics under R weightings (R, S) of the samples; equal weights by default."""
        w = np.ones((1, len(self))) if weights is None else np.asarray(weights, dtype=np.float64)
        total = w.sum(axis=1, keepdims=True)
        empty = np.array([value for _, _, value in self.names])
        with np.errstate(invalid="ignore", divide="ignore"):
            denominator = w @ self.denominator
            ratios = np.where(denominator == 0, empty, (w @ self.numerator) / denominator)
            ratios = np.where(total == 0, np.nan, ratios)
            if self.only_leaves:
                return ratios
            found = [
                ratios,
                *(self._calibration(w, bins, binning) / total for binning in CALIBRATION_ERRORS),
                self._risk_area(w, self.answers != self.truth),
                self._risk_area(w, self.distance),
                operating_area(w @ self.specific / total, w @ self.true / total)[:, None],
                self._ladder_area(w),
            ]
        return np.concatenate(found, axis=1)

    def _calibration(self, w: np.ndarray, bins: int, binning: str) -> np.ndarray:
        """(R, H) sums over bins of |right answers - confidences|."""
        out = np.empty((len(w), self.level_confidence.shape[1]))
        for k in range(out.shape[1]):
            confidence = self.level_confidence[:, k].astype(np.float64)
            gap = self.level_correct[:, k] - confidence
            if binning == "width":
                place = bin_of(confidence, bins)
                shape = (len(self), bins + 1)
                by_bin = sparse.csr_array((gap, (np.arange(len(self)), place)), shape=shape)
                sums = (by_bin.T @ w.T).T
            else:
                sums = _sums_by_mass(confidence, gap, w, bins)
            out[:, k] = np.abs(sums).sum(axis=1)
        return out

    def _ladder_area(self, w: np.ndarray) -> np.ndarray:
        """(R, 1) areas under hierarchical risk-coverage curves; (R, 0) on a DAG."""
        if not self.ladders.reached.shape[1]:
            return np.empty((len(w), 0))
        if not len(self):
            return np.full((len(w), 1), np.nan)
        _, x, y = ladder_curves(self.ladders, w)
        return (np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2).sum(axis=1, keepdims=True)

    def _risk_area(self, w: np.ndarray, risk: np.ndarray) -> np.ndarray:
        """(R, 1) areas under risk-coverage curves; equal confidences enter together."""
        if not len(self):
            return np.full((len(w), 1), np.nan)
        order = np.argsort(-self.confidence, kind="stable")
        last = np.flatnonzero(np.append(np.diff(self.confidence[order]) != 0, True))
        covered = np.cumsum(w[:, order], axis=1)[:, last]
        lost = np.cumsum(w[:, order] * risk[order], axis=1)[:, last]
        step = np.diff(covered, axis=1, prepend=0.0)
        area = np.where(covered > 0, step * lost / covered, 0.0).sum(axis=1, keepdims=True)
        return area / covered[:, -1:]


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
