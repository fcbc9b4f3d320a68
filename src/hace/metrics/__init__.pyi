# The public names of hace.metrics, each listed once: type checkers read this file, and so does __init__.py.

from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from hace.decisions import GuaranteedThreshold
from hace.hierarchy import Hierarchy
from hace.metrics.adapters import ID_METRICS as ID_METRICS
from hace.metrics.adapters import AnswerMetric as AnswerMetric
from hace.metrics.adapters import trainer_metrics as trainer_metrics
from hace.metrics.answers import AnswerReport as AnswerReport
from hace.metrics.answers import ClassTable as ClassTable
from hace.metrics.answers import Confusion as Confusion
from hace.metrics.answers import balanced_accuracy as balanced_accuracy
from hace.metrics.answers import class_accuracy as class_accuracy
from hace.metrics.answers import confusion as confusion
from hace.metrics.answers import evaluate_answers as evaluate_answers
from hace.metrics.answers import macro_f1 as macro_f1
from hace.metrics.comparison import CurveBand as CurveBand
from hace.metrics.comparison import Difference as Difference
from hace.metrics.comparison import compare as compare
from hace.metrics.comparison import curve_band as curve_band
from hace.metrics.curves import HierarchicalRiskCoverage as HierarchicalRiskCoverage
from hace.metrics.curves import OperatingCurve as OperatingCurve
from hace.metrics.curves import Reliability as Reliability
from hace.metrics.curves import RiskCoverage as RiskCoverage
from hace.metrics.curves import expected_calibration_error as expected_calibration_error
from hace.metrics.curves import hierarchical_risk_coverage as hierarchical_risk_coverage
from hace.metrics.curves import level_calibration as level_calibration
from hace.metrics.curves import operating_curve as operating_curve
from hace.metrics.curves import reliability as reliability
from hace.metrics.curves import risk_coverage as risk_coverage
from hace.metrics.evaluation import Evaluation as Evaluation
from hace.metrics.evaluator import Evaluator as Evaluator
from hace.metrics.evaluator import evaluate as evaluate
from hace.metrics.functional import Severity as Severity
from hace.metrics.functional import distances as distances
from hace.metrics.functional import mistake_severity as mistake_severity
from hace.metrics.intervals import Compared as Compared
from hace.metrics.intervals import Interval as Interval
from hace.metrics.intervals import compared_together as compared_together
from hace.metrics.intervals import interval as interval
from hace.metrics.intervals import paired_interval as paired_interval
from hace.metrics.measures import PRF as PRF
from hace.metrics.measures import GuaranteedShares as GuaranteedShares
from hace.metrics.metric_batch import ScoreForms as ScoreForms
from hace.metrics.streaming import BalancedAccuracy as BalancedAccuracy
from hace.metrics.streaming import ClassAccuracy as ClassAccuracy
from hace.metrics.streaming import HierarchicalRiskArea as HierarchicalRiskArea
from hace.metrics.streaming import LevelCalibration as LevelCalibration
from hace.metrics.streaming import MacroF1 as MacroF1
from hace.metrics.streaming import Mistakes as Mistakes
from hace.metrics.streaming import MistakeSeverity as MistakeSeverity
from hace.metrics.streaming import OperatingArea as OperatingArea
from hace.metrics.streaming import RatioMetric
from hace.metrics.streaming import RiskCoverageArea as RiskCoverageArea

# From here on written by tools/metrics_stub.py, from the rows of hace.metrics.measures.

def top_k_accuracy(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    k: int = 1,
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """Share of samples whose truth is among the k most probable leaves. Equal scores rank in label order.

    Args:
        k: how many leaves count; for k = 1 ``preds`` may also be answers.
    """

class TopKAccuracy(RatioMetric):
    """:func:`hace.metrics.top_k_accuracy`, streaming."""

def hierarchical_distance_at(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    k: int = 1,
    distance: str = "lca_height",
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """HD@k: mean distance from the truth to each of the k best leaves, over all samples and all k.

    HD@1 is severity times error rate.

    Args:
        k: how many leaves count; for k = 1 ``preds`` may also be answers.
        distance: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
    """

class HierarchicalDistance(RatioMetric):
    """:func:`hace.metrics.hierarchical_distance_at`, streaming."""

def level_accuracy(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """(H,) for each level 1 to the deepest, the share of samples whose answer and truth have the same node there.

    A leaf above a level represents itself there. The ranks of ``hierarchy.rank_names`` follow, each over the truths that have
    one. Trees and forests only.
    """

class LevelAccuracy(RatioMetric):
    """:func:`hace.metrics.level_accuracy`, streaming.

    A dict by level; with ``level``, a depth or name, its value, as Lightning's ``log_dict`` needs it.
    """

def hierarchical_prf(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    average: str = "micro",
    **forms: Unpack[ScoreForms],
) -> PRF:
    """Precision, recall and F1 of ancestor sets A (answer) and B (truth), including the nodes and excluding the root.

    P = |A and B| / |A|, R = |A and B| / |B|. An answer at the root, or none: precision 1, recall 0.

    Args:
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples, of F1 too.

    Example:
        >>> from hace import metrics
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> metrics.hierarchical_prf([1], [0], h).precision.item()
        0.5
    """

class HierarchicalPRF(RatioMetric):
    """:func:`hace.metrics.hierarchical_prf`, streaming.

    A dict of precision, recall, f1; with ``value``, one of these names, that value alone.
    """

def information_prf(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    average: str = "macro",
    **forms: Unpack[ScoreForms],
) -> PRF:
    """Precision, recall and F1 in bits, with I(v) = -log2(share of the leaves under v).

    P = I(best common ancestor) / I(answer), R = the same over I(truth); 0 / 0 counts as 1.

    Args:
        average: ``"micro"`` divides sums over samples; ``"macro"`` takes the mean over samples, of F1 too.
    """

class InformationPRF(RatioMetric):
    """:func:`hace.metrics.information_prf`, streaming.

    A dict of precision, recall, f1; with ``value``, one of these names, that value alone.
    """

def full_path_accuracy(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """Share of samples whose answers match the truth at every level.

    ``preds`` are scores, which answer with the most probable node of each level, or (B, H) answers, one per level.
    """

class FullPathAccuracy(RatioMetric):
    """:func:`hace.metrics.full_path_accuracy`, streaming."""

def tree_inconsistency(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """Share of samples whose answers at the levels are not on one path; ``preds`` as of :func:`full_path_accuracy`.

    The truths do not affect the value; every metric takes them.
    """

class TreeInconsistency(RatioMetric):
    """:func:`hace.metrics.tree_inconsistency`, streaming."""

def brier_score(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """(H,) for each level 1 to the deepest, the mean over samples of the sum over its nodes v of (q*[v] - 1[v is true])^2.

    From 0, certain and right, to 2, certain and wrong. Samples whose truth is an inner node above the level do not count
    there. Trees and forests only.

    Example:
        >>> from hace import metrics
        >>> h = Hierarchy.flat(["cat", "dog"])
        >>> round(metrics.brier_score(np.array([[0.8, 0.2]]), [0], h, kind="probs").item(), 4)
        0.08
    """

class BrierScore(RatioMetric):
    """:func:`hace.metrics.brier_score`, streaming.

    A dict by level; with ``level``, a depth or name, its value, as Lightning's ``log_dict`` needs it.
    """

def log_likelihood(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    **forms: Unpack[ScoreForms],
) -> Tensor:
    """(H,) for each level 1 to the deepest, the mean of log q*[the truth's node]; at most 0, and better when higher.

    Samples whose truth is an inner node above the level do not count there. Trees and forests only.
    """

class LogLikelihood(RatioMetric):
    """:func:`hace.metrics.log_likelihood`, streaming.

    A dict by level; with ``level``, a depth or name, its value, as Lightning's ``log_dict`` needs it.
    """

def guaranteed_answers(
    preds: Any,
    target: Any,
    hierarchy: Hierarchy,
    guarantee: GuaranteedThreshold,
    **forms: Unpack[ScoreForms],
) -> GuaranteedShares:
    """Specificity at a guaranteed accuracy: the answers that a calibrated threshold gives on other samples.

    ``preds`` are scores, prepared as in the calibration: divided by the same temperature.

    Args:
        guarantee: what :func:`hace.guaranteed_threshold` returned for calibration samples.

    Example:
        >>> from hace import guaranteed_threshold, metrics
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> p = np.array([[0.5, 0.3, 0.2]] * 10 + [[0.1, 0.1, 0.8]] * 29)
        >>> sure = guaranteed_threshold(p, [1] * 10 + [2] * 29, h, accuracy=0.9, kind="probs")
        >>> measured = metrics.guaranteed_answers(p[9:11], [1, 2], h, sure, kind="probs")  # dog, cat
        >>> round(measured.specificity.item(), 3), measured.false.item()
        (0.685, 0.0)
    """

class GuaranteedAnswers(RatioMetric):
    """:func:`hace.metrics.guaranteed_answers`, streaming.

    A dict of specificity, false, answered, true_answers; with ``value``, one of these names, that value alone.
    """
