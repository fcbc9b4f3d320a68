"""How good answers are: plain functions on a batch, and streaming classes (which need torchmetrics)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hace.metrics.calibration import (
    Reliability,
    expected_calibration_error,
    level_calibration,
    reliability,
)
from hace.metrics.confusion import ClassTable, Confusion, class_accuracy, confusion
from hace.metrics.curves import OperatingCurve, RiskCoverage, operating_curve, risk_coverage
from hace.metrics.functional import (
    PRF,
    Severity,
    distances,
    full_path_accuracy,
    hierarchical_distance_at,
    hierarchical_prf,
    information_prf,
    level_accuracy,
    mistake_severity,
    top_k_accuracy,
    tree_inconsistency,
)

if TYPE_CHECKING:
    from hace.metrics.streaming import (
        ClassAccuracy,
        FullPathAccuracy,
        HierarchicalDistance,
        HierarchicalPRF,
        InformationPRF,
        LevelAccuracy,
        LevelCalibration,
        Mistakes,
        MistakeSeverity,
        OperatingArea,
        RiskCoverageArea,
        TopKAccuracy,
        TreeInconsistency,
    )

_STREAMING = (
    "ClassAccuracy",
    "FullPathAccuracy",
    "HierarchicalDistance",
    "HierarchicalPRF",
    "InformationPRF",
    "LevelAccuracy",
    "LevelCalibration",
    "MistakeSeverity",
    "Mistakes",
    "OperatingArea",
    "RiskCoverageArea",
    "TopKAccuracy",
    "TreeInconsistency",
)

__all__ = [
    "PRF",
    "ClassAccuracy",
    "ClassTable",
    "Confusion",
    "FullPathAccuracy",
    "HierarchicalDistance",
    "HierarchicalPRF",
    "InformationPRF",
    "LevelAccuracy",
    "LevelCalibration",
    "MistakeSeverity",
    "Mistakes",
    "OperatingArea",
    "OperatingCurve",
    "Reliability",
    "RiskCoverage",
    "RiskCoverageArea",
    "Severity",
    "TopKAccuracy",
    "TreeInconsistency",
    "class_accuracy",
    "confusion",
    "distances",
    "expected_calibration_error",
    "full_path_accuracy",
    "hierarchical_distance_at",
    "hierarchical_prf",
    "information_prf",
    "level_accuracy",
    "level_calibration",
    "mistake_severity",
    "operating_curve",
    "reliability",
    "risk_coverage",
    "top_k_accuracy",
    "tree_inconsistency",
]


def __getattr__(name: str) -> Any:
    if name not in _STREAMING:
        raise AttributeError(f"module 'hace.metrics' has no attribute {name!r}")
    value = getattr(importlib.import_module("hace.metrics.streaming"), name)
    globals()[name] = value
    return value
