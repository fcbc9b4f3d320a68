"""How good answers are: plain functions on a batch, streaming classes, and all metrics of a model at once.

The functions need torch and numpy; the streaming classes load on first use and need torchmetrics; :func:`evaluate` and
:func:`compare` load on first use and need scipy. Imports `errors`, `hierarchy`, `losses` and `decisions`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hace.metrics.answer_metric import ID_METRICS, AnswerMetric
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
    PromisedAnswers,
    Severity,
    brier_score,
    distances,
    full_path_accuracy,
    hierarchical_distance_at,
    hierarchical_prf,
    information_prf,
    level_accuracy,
    log_likelihood,
    mistake_severity,
    promised_answers,
    top_k_accuracy,
    tree_inconsistency,
)
from hace.metrics.hierarchical_risk import HierarchicalRiskCoverage, hierarchical_risk_coverage
from hace.metrics.intervals import Interval, interval, paired_interval
from hace.metrics.metric_batch import ScoreForms
from hace.metrics.several import Compared, compared_together

if TYPE_CHECKING:
    from hace.metrics.bands import CurveBand, curve_band
    from hace.metrics.comparison import Difference, compare
    from hace.metrics.evaluation import Evaluation
    from hace.metrics.evaluator import Evaluator, evaluate
    from hace.metrics.streaming import (
        ClassAccuracy,
        FullPathAccuracy,
        HierarchicalDistance,
        HierarchicalPRF,
        InformationPRF,
        LevelAccuracy,
        Mistakes,
        MistakeSeverity,
        TopKAccuracy,
        TreeInconsistency,
    )
    from hace.metrics.streaming_confidence import (
        BrierScore,
        GuaranteedAnswers,
        HierarchicalRiskArea,
        LevelCalibration,
        LogLikelihood,
        OperatingArea,
        RiskCoverageArea,
    )
    from hace.metrics.trainer import trainer_metrics

_LAZY = {
    "bands": ("CurveBand", "curve_band"),
    "comparison": ("Difference", "compare"),
    "evaluation": ("Evaluation",),
    "evaluator": ("Evaluator", "evaluate"),
    "streaming": (
        "ClassAccuracy",
        "FullPathAccuracy",
        "HierarchicalDistance",
        "HierarchicalPRF",
        "InformationPRF",
        "LevelAccuracy",
        "MistakeSeverity",
        "Mistakes",
        "TopKAccuracy",
        "TreeInconsistency",
    ),
    "streaming_confidence": (
        "BrierScore",
        "GuaranteedAnswers",
        "HierarchicalRiskArea",
        "LevelCalibration",
        "LogLikelihood",
        "OperatingArea",
        "RiskCoverageArea",
    ),
    "trainer": ("trainer_metrics",),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "ID_METRICS",
    "PRF",
    "AnswerMetric",
    "BrierScore",
    "ClassAccuracy",
    "ClassTable",
    "Compared",
    "Confusion",
    "CurveBand",
    "Difference",
    "Evaluation",
    "Evaluator",
    "FullPathAccuracy",
    "GuaranteedAnswers",
    "HierarchicalDistance",
    "HierarchicalPRF",
    "HierarchicalRiskArea",
    "HierarchicalRiskCoverage",
    "InformationPRF",
    "Interval",
    "LevelAccuracy",
    "LevelCalibration",
    "LogLikelihood",
    "MistakeSeverity",
    "Mistakes",
    "OperatingArea",
    "OperatingCurve",
    "PromisedAnswers",
    "Reliability",
    "RiskCoverage",
    "RiskCoverageArea",
    "ScoreForms",
    "Severity",
    "TopKAccuracy",
    "TreeInconsistency",
    "brier_score",
    "class_accuracy",
    "compare",
    "compared_together",
    "confusion",
    "curve_band",
    "distances",
    "evaluate",
    "expected_calibration_error",
    "full_path_accuracy",
    "hierarchical_distance_at",
    "hierarchical_prf",
    "hierarchical_risk_coverage",
    "information_prf",
    "interval",
    "level_accuracy",
    "level_calibration",
    "log_likelihood",
    "mistake_severity",
    "operating_curve",
    "paired_interval",
    "promised_answers",
    "reliability",
    "risk_coverage",
    "top_k_accuracy",
    "trainer_metrics",
    "tree_inconsistency",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hace.metrics' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hace.metrics.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # the next use finds it without this function
    return value
