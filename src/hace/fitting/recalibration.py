"""The findings of a fit after its model was calibrated again: what they said about the old guarantee goes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hace.decisions.calibration import Calibration
from hace.decisions.guarantees import GuaranteedThreshold
from hace.decisions.scores import Scores
from hace.fitting.evaluation import ACCURACIES, accuracy_of, judge_guarantee
from hace.fitting.findings import Findings
from hace.hierarchy.assembly import IntArray
from hace.metrics.intervals import Interval


def after_calibration(
    findings: Findings,
    calibration: Calibration,
    scores: Scores,
    nodes: IntArray,
    right: np.ndarray,
    groups: np.ndarray | None,
) -> Findings:
    """The findings with the guarantees of a calibration, as they turned out on the samples that it rests on.

    Args:
        findings: of the fit.
        calibration: the new one.
        scores: of its samples, before any temperature.
        nodes: (S,) node indices of their labels.
        right: (S,) whether their best class is right.
        groups: (S,) their groups; None: there are none.
    """
    cooled = scores.checked().cooled(calibration.temperature)
    records = sorted(
        (
            t
            for t in calibration.thresholds
            if t.of == "samples" and t.accuracy is not None and t.groups in (None, "new")
        ),
        key=lambda t: t.accuracy or 0,
    )
    curve = tuple(asdict(_judged(record, cooled, nodes, groups)) for record in records)
    by_accuracy = {point["accuracy"]: point for point in curve}
    best = next((by_accuracy[accuracy] for accuracy in ACCURACIES if accuracy in by_accuracy), None)
    best = best or (curve[-1] if curve else None)
    return replace(
        findings,
        samples=findings.samples | {"calibration": calibration.samples + calibration.temperature_samples},
        held_out=_bounds(accuracy_of(right, groups)),
        guarantee=best,
        curve=curve,
        no_guarantee="" if best is not None else "The new calibration has none about samples.",
        broken=calibration.broken,
        examples=(),  # their answers were those of the old guarantee
        calibrated_on=f"{len(nodes):,} samples of {calibration.split}",
    )


def _judged(record: GuaranteedThreshold, scores: Scores, nodes: IntArray, groups: np.ndarray | None) -> Any:
    decided = record.predict(scores.data, scores.hierarchy, kind=scores.kind, outputs=scores.outputs)
    return judge_guarantee(decided, nodes, record, groups)


def _bounds(share: Interval) -> tuple[float, ...]:
    return tuple(
        float(v) if np.isfinite(v) else float(share.value) for v in (share.value, share.low, share.high)
    )
