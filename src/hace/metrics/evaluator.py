"""All metrics of a model in one pass: chunks of scores in, a few numbers per sample kept, an :class:`Evaluation` out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import MOST_BINS, check_choice, check_count
from hace.decisions.rules import RULES, check_rule
from hace.decisions.scores import as_nodes, check_scores, restricted, row_blocks, score_tensor, subset_mask
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import score_columns
from hace.losses.kernels.answers import best_columns
from hace.metrics import measures
from hace.metrics.curves import THRESHOLDS, LadderColumns, ladder_columns, operating_columns
from hace.metrics.evaluation import CARRIED_UP, Evaluation
from hace.metrics.measures import Measure, mean_of
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.sample_statistics import LEAVES, SampleStatistics

RANKS = (1, 5, 20)
METRICS = ("all", LEAVES)
CHEAPEST = {"least cost": {"rule": "cost"}, "least cost, any rank": {"rule": "cost", "candidates": "nodes"}}


@dataclass
class Evaluator:
    """Takes scores chunk by chunk; :meth:`evaluation` gives all metrics of what it has seen.

    Attributes:
        hierarchy: the hierarchy. On a DAG, metrics by level are omitted.
        kind: what the scores are; see :class:`hace.metrics.ScoreForms`.
        outputs: what their columns are; see :class:`hace.metrics.ScoreForms`.
        labels: what the truths are; see :class:`hace.metrics.ScoreForms`.
        subset: ids of leaves, or of inner nodes for all below, to restrict scores to. A truth outside the subset stays in
            and counts as a mistake.
        distance: the distance of severity, HD@k and least cost: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        rules: further decisions to evaluate, by title: the options of :func:`hace.predict`, ``rule`` included.
        bins: number of bins of the calibration.
        thresholds: thresholds of the operating curve.
        metrics: ``"all"``; or ``"leaves"``: top-k, severity and HD@k alone, which need no probabilities and so are much faster.
    """

    hierarchy: Hierarchy
    kind: str = "logits"
    outputs: str = "auto"
    labels: str = "leaves"
    subset: Sequence[Any] | None = None
    distance: str = "lca_height"
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bins: int = 15
    thresholds: Sequence[float] = THRESHOLDS
    metrics: str = "all"

    def __post_init__(self) -> None:
        check_choice("metrics", self.metrics, METRICS)
        check_count("bins", self.bins, MOST_BINS)
        for options in self.rules.values():
            check_rule(options.get("rule"), (name for name in options if name != "rule"))
        h = self.hierarchy
        self._keep = None if self.subset is None else subset_mask(h, self.subset)
        choices = h.num_leaves if self._keep is None else int(self._keep[h.leaf_nodes].sum())
        self._measures = standard_measures(h, self.distance, choices)
        costs = {title: {**options, "distance": self.distance} for title, options in CHEAPEST.items()}
        self._rules = {**costs, **self.rules}
        if self.metrics == LEAVES:
            if self.rules:
                raise ConfigError(
                    f"rules must be empty with metrics='leaves'. Got {', '.join(self.rules)}. Use metrics='all'."
                )
            self._measures = [(group, measure) for group, measure in self._measures if group == LEAVES]
            self._rules = {}
        self._parts: list[SampleStatistics] = []
        self._seen = 0

    def add(self, scores: Any, target: Any) -> None:
        """Add a chunk of scores and truths."""
        if len(scores) != len(target):
            raise DataError(
                f"scores and target must have one row per sample. Got {len(scores)} and {len(target)} rows."
            )
        h = self.hierarchy
        z = score_tensor(scores, h, self.kind, self.outputs)
        labels, top = self._ranked(z)
        z = check_scores(z, self.kind, self._seen, top)
        truth = as_nodes(target, h, "target", of=self.labels)
        self._seen += len(truth)
        width = max(RANKS) if labels is not None and self.metrics == LEAVES else h.num_nodes
        for rows in row_blocks(len(truth), width):
            known = None if labels is None else labels[rows]
            self._parts.append(self._statistics(z[rows], truth[rows], known))

    def _ranked(self, z: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """(B, k) the best leaves and (B,) the greatest scores, in one pass where nothing is to be done to the scores first."""
        h = self.hierarchy
        as_they_are = self.kind in ("logits", "log_probs") and self._keep is None
        if not as_they_are or score_columns(tuple(z.shape), h, self.outputs) != "leaves":
            return None, None
        return best_columns(z, min(max(RANKS), h.num_leaves)) or (None, None)

    def _statistics(self, scores: Tensor, truth: Tensor, labels: Tensor | None = None) -> SampleStatistics:
        h = self.hierarchy
        kind = "node_log_probs" if self.kind == "node_log_probs" else "logits"
        z = restricted(scores, h, kind, self.outputs, self._keep)
        batch = MetricBatch(h, truth.numpy(), scores=z, kind=kind, outputs=self.outputs, labels=labels)
        batch.ranking(min(max(RANKS), h.num_leaves))  # the longest first: it serves the shorter ones
        named: list[tuple[str, str, float]] = []
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        for group, measure in self._measures:
            columns.append(measure.columns(batch))
            named += [(group, name, measure.empty) for name in measure.names]
        answers = {}
        for title, options in self._rules.items():
            given = dict(options)
            decided = RULES[given.pop("rule")][0](batch.log_q, h, **given)
            answers[title] = decided.nodes.cpu().numpy(), decided.probabilities.double().cpu().numpy()
            measure = answer_measure(h, self.distance)
            columns.append(measure.columns(MetricBatch(h, batch.truth, answers=answers[title][0])))
            named += [(title, name, measure.empty) for name in measure.names]
        none = np.empty((len(batch), 0))
        found = SampleStatistics(
            names=tuple(named),
            numerator=np.concatenate([c[0] for c in columns], axis=1),
            denominator=np.concatenate([c[1] for c in columns], axis=1),
            truth=batch.truth,
            answers=batch.answers,
            confidence=np.full(len(batch), np.nan),
            distance=batch.distance(self.distance),
            level_confidence=none,
            level_correct=none.astype(bool),
            specific=none,
            true=none,
            answered=none,
            ladders=LadderColumns(none, none, none),
            decided=answers,
        )
        if self.metrics == LEAVES:
            return found
        operating = operating_columns(batch, self.thresholds)
        found = replace(
            found,
            confidence=batch.confidence,
            specific=operating.specific.astype(np.float32),
            true=operating.true.astype(np.float32),
            answered=operating.answered,
        )
        if not h.is_tree:
            return found
        return replace(
            found,
            level_confidence=batch.levels.probabilities.float().cpu().numpy(),
            level_correct=batch.correct_at_levels,
            ladders=ladder_columns(batch),
        )

    def evaluation(self) -> Evaluation:
        """The metrics of all chunks so far."""
        if not self._parts:
            empty = torch.zeros(0, self.hierarchy.num_nodes)
            nothing = torch.zeros(0, dtype=torch.long)
            self._parts.append(replace(self, outputs="nodes")._statistics(empty, nothing))
        self._parts = [SampleStatistics.joined(self._parts)]
        return Evaluation(
            self.hierarchy,
            self._parts[0],
            bins=self.bins,
            thresholds=tuple(self.thresholds),
            distance=self.distance,
        )


def evaluate(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    kind: str = "logits",
    outputs: str = "auto",
    labels: str = "leaves",
    subset: Sequence[Any] | None = None,
    distance: str = "lca_height",
    rules: Mapping[str, Mapping[str, Any]] | None = None,
    bins: int = 15,
    thresholds: Sequence[float] = THRESHOLDS,
    metrics: str = "all",
) -> Evaluation:
    """All metrics of a model.

    Args:
        scores: (S, n) or (S, N), or an iterable of chunks of them.
        target: (S,) truths.
        hierarchy: the hierarchy. On a DAG, metrics by level are omitted.
        kind: what the scores are; see :class:`hace.metrics.ScoreForms`.
        outputs: what their columns are; see :class:`hace.metrics.ScoreForms`.
        labels: what the truths are; see :class:`hace.metrics.ScoreForms`.
        subset: ids of leaves, or of inner nodes for all below, to restrict scores to. A truth outside the subset stays in
            and counts as a mistake.
        distance: the distance of severity, HD@k and least cost: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        rules: further decisions to evaluate, by title: the options of :func:`hace.predict`, ``rule`` included.
        bins: number of bins of the calibration.
        thresholds: thresholds of the operating curve.
        metrics: ``"all"``; or ``"leaves"``: top-k, severity and HD@k alone, which need no probabilities and so are much faster.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> evaluation = evaluate(np.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), [0, 1], h)
        >>> evaluation.values["leaves", "top-1"], evaluation.values["leaves", "severity"]
        (0.5, 1.0)
    """
    truth = as_nodes(target, hierarchy, "target", of=labels)
    evaluator = Evaluator(
        hierarchy, kind, outputs, "nodes", subset, distance, rules or {}, bins, thresholds, metrics
    )
    start = 0
    chunks: Iterable[Any] = scores
    if hasattr(scores, "shape"):
        score_columns(tuple(scores.shape), hierarchy, outputs if kind != "node_log_probs" else "nodes")
        chunks = (scores[rows] for rows in row_blocks(len(scores), hierarchy.num_nodes))
    for chunk in chunks:
        evaluator.add(chunk, truth[start : start + len(chunk)])
        start += len(chunk)
    if start != len(truth):
        raise DataError(f"scores and target must have one row per sample. Got {start} and {len(truth)} rows.")
    return evaluator.evaluation()


def standard_measures(h: Hierarchy, distance: str, choices: int) -> list[tuple[str, Measure]]:
    """The measures of the best leaf and the levels, each with its heading."""
    ranks = [k for k in RANKS if k <= choices]
    found = [(LEAVES, measures.top_k_measure(h, k)) for k in ranks if k != 20]
    found.append((LEAVES, measures.severity_measure(h, distance)))
    found += [(LEAVES, measures.distance_measure(h, k, distance)) for k in ranks]
    if h.is_tree:
        found += [
            (CARRIED_UP, measures.level_accuracy_measure(h)),
            ("accuracy by level, best node of the level", measures.level_choice_measure(h)),
        ]
    for average in measures.AVERAGES:
        found.append(("ancestors and information", measures.hierarchical_prf_measure(h, average)))
    for average in measures.AVERAGES:
        found.append(("ancestors and information", measures.information_prf_measure(h, average)))
    if h.is_tree:
        found += [
            ("levels together", measures.full_path_measure(h)),
            ("levels together", measures.inconsistency_measure(h)),
            ("Brier score by level", measures.brier_measure(h)),
            ("log-likelihood by level", measures.log_likelihood_measure(h)),
        ]
    return found


def answer_measure(h: Hierarchy, distance: str) -> Measure:
    """The measures of any rule's answers, which may be inner nodes or none."""

    def columns(batch: MetricBatch) -> tuple[np.ndarray, np.ndarray]:
        relations, answers, truth = batch.relations, batch.answers, batch.truth
        most = np.log2(h.num_leaves)
        below = np.append(h.depths, 0)[answers] > 0  # -1 is the virtual root
        specific = relations.information[answers] / most if most else np.ones(len(answers))
        means = mean_of(
            np.stack(
                [
                    answers == truth,
                    relations.is_above(answers, truth),
                    below,
                    specific,
                    batch.distance(distance),
                ],
                axis=1,
            )
        )
        f1 = measures.hierarchical_prf_measure(h, "micro").columns(batch)
        return np.concatenate([means[0], f1[0]], axis=1), np.concatenate([means[1], f1[1]], axis=1)

    names = (
        "exactly right",
        "true (right or above)",
        "answered below the root",
        "specificity",
        "distance",
        "hPrecision",
        "hRecall",
        "hF1",
    )
    return Measure(names, columns, empty=1.0)
