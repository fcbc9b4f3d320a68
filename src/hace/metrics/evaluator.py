"""All metrics of a model in one pass: chunks of scores in, a few numbers per sample kept, an :class:`Evaluation` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import MOST_BINS, check_choice, check_count, check_number, is_number
from hace.decisions import Decisions, GuaranteedThreshold
from hace.decisions.ladders import level_thresholds
from hace.decisions.rules import RULES, check_rule
from hace.decisions.scores import (
    Scores,
    as_nodes,
    as_tensor,
    level_numbers,
    row_blocks,
    subset_leaves,
    subset_mask,
)
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import score_columns
from hace.losses.kernels.answers import best_columns
from hace.metrics import measures
from hace.metrics.curves import THRESHOLDS, LadderColumns, ladder_columns, operating_columns
from hace.metrics.evaluation import CARRIED_UP, LEAVES, Evaluation, SampleStatistics, promise_title
from hace.metrics.measures import Measure, mean_of
from hace.metrics.metric_batch import MetricBatch

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
        temperature: fitted on other samples (:func:`hace.fit_temperature`): the metrics of confidence of scores divided by it
            are given beside the raw ones.
        promise: a calibrated threshold (:func:`hace.guaranteed_threshold`) whose answers are evaluated, on the scores divided
            by the temperature if there is one.
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
    temperature: float | None = None
    promise: GuaranteedThreshold | None = None

    def __post_init__(self) -> None:
        h = self.hierarchy
        check_choice("metrics", self.metrics, METRICS)
        check_count("bins", self.bins, MOST_BINS)
        for given in self.rules.values():
            check_rule(given.get("rule"), (name for name in given if name != "rule"))
        self._keep = None if self.subset is None else subset_mask(h, self.subset)
        choices = h.num_leaves if self._keep is None else int(self._keep[h.leaf_nodes].sum())
        self._measures = standard_measures(h, self.distance, choices)
        costs = {title: {**cost, "distance": self.distance} for title, cost in CHEAPEST.items()}
        self._rules = {**costs, **self.rules}
        if self.metrics == LEAVES:
            self._only_leaves()
        self._calibrated: Evaluator | None = None
        if self.temperature is not None:
            fits = is_number(self.temperature) and self.temperature > 0
            check_number("temperature", self.temperature, "a number above 0", fits)
            if self.kind == "node_log_probs":
                raise ConfigError(
                    "temperature needs logits or probabilities: log q* does not divide. Pass scores of kind='logits'."
                )
            self._calibrated = replace(self, temperature=None)
            self.promise = None  # it is about the calibrated scores
        self._parts: list[SampleStatistics] = []
        self._seen = 0

    def _only_leaves(self) -> None:
        for name in ("temperature", "promise", "rules"):
            if value := getattr(self, name):
                got = ", ".join(value) if name == "rules" else value
                raise ConfigError(
                    f"{name} must be left out with metrics='leaves'. Got {got}. Use metrics='all'."
                )
        self._measures = [(group, measure) for group, measure in self._measures if group == LEAVES]
        self._rules = {}

    def add(self, scores: Any, target: Any) -> None:
        """Add a chunk of scores and truths."""
        if len(scores) != len(target):
            raise DataError(
                f"scores and target must have one row per sample. Got {len(scores)} and {len(target)} rows."
            )
        self._take(Scores(scores, self.hierarchy, self.kind, self.outputs), target)

    def _take(self, scores: Scores, target: Any) -> None:
        h = self.hierarchy
        labels, top = self._ranked(scores)
        scores = scores.checked(self._seen, top)
        truth = as_nodes(target, h, "target", of=self.labels).numpy()
        self._seen += len(truth)
        width = max(RANKS) if labels is not None and self.metrics == LEAVES else h.num_nodes
        for rows in row_blocks(len(truth), width):
            known = None if labels is None else labels[rows]
            self._parts.append(self._statistics(scores[rows], truth[rows], known))
        if self._calibrated is not None and self.temperature is not None:
            self._calibrated._take(replace(scores, data=scores.data / self.temperature), target)

    def _ranked(self, scores: Scores) -> tuple[Tensor | None, Tensor | None]:
        """(B, k) the best leaves and (B,) the greatest scores, in one pass where nothing is to be done to the scores first."""
        as_they_are = scores.kind in ("logits", "log_probs") and self._keep is None
        if not as_they_are or scores.outputs != "leaves":
            return None, None
        z = as_tensor(scores.data, "scores")
        return best_columns(z, min(max(RANKS), self.hierarchy.num_leaves)) or (None, None)

    def _statistics(
        self, scores: Scores, truth: np.ndarray, labels: Tensor | None = None
    ) -> SampleStatistics:
        h = self.hierarchy
        batch = MetricBatch(h, truth, scores=scores.restricted(self._keep), labels=labels)
        batch.ranking(min(max(RANKS), h.num_leaves))  # the longest first: it serves the shorter ones
        named: list[tuple[str, str, float]] = []
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        for group, measure in self._measures:
            columns.append(measure.columns(batch))
            named += [(group, name, measure.empty) for name in measure.names]
        answers = {}
        for title, decided in self._decided(batch):
            answers[title] = decided.nodes.cpu().numpy(), decided.probabilities.double().cpu().numpy()
            measure = answer_measure(h, self.distance)
            columns.append(measure.columns(MetricBatch(h, batch.truth, answers=answers[title][0])))
            named += [(title, name, measure.empty) for name in measure.names]
        return SampleStatistics(
            names=tuple(named),
            numerator=np.concatenate([c[0] for c in columns], axis=1),
            denominator=np.concatenate([c[1] for c in columns], axis=1),
            truth=batch.truth,
            answers=batch.answers,
            distance=batch.distance(self.distance),
            decided=answers,
            **self._of_confidence(batch),
        )

    def _of_confidence(self, batch: MetricBatch) -> dict[str, Any]:
        """The columns that need probabilities; empty ones with ``metrics="leaves"``, and those of levels on a DAG."""
        none = np.empty((len(batch), 0))
        found: dict[str, Any] = dict.fromkeys(("level_confidence", "specific", "true", "answered"), none)
        found |= {"level_correct": none.astype(bool), "ladders": LadderColumns(none, none, none)}
        found["confidence"] = np.full(len(batch), np.nan)
        if self.metrics == LEAVES:
            return found
        operating = operating_columns(batch, self.thresholds)
        found |= {"confidence": batch.confidence, "answered": operating.answered}
        found |= {name: getattr(operating, name).astype(np.float32) for name in ("specific", "true")}
        if self.hierarchy.is_tree:
            found["level_confidence"] = batch.levels.probabilities.float().cpu().numpy()
            found |= {"level_correct": batch.correct_at_levels, "ladders": ladder_columns(batch)}
        return found

    def _decided(self, batch: MetricBatch) -> Iterator[tuple[str, Decisions]]:
        """The answers of every further rule, and those that keep the promise, by title."""
        for title, options in self._rules.items():
            given = dict(options)
            yield title, RULES[given.pop("rule")][0](batch.log_q, self.hierarchy, **given)
        if self.promise is not None:
            answers = self.promise.predict(batch.log_q, self.hierarchy, kind="node_log_probs")
            yield promise_title(self.promise), answers

    def evaluation(self, **about: Any) -> Evaluation:
        """The metrics of all chunks so far.

        Args:
            **about: further attributes of :class:`Evaluation`.
        """
        h = self.hierarchy
        if not self._parts:
            nothing = Scores(torch.zeros(0, h.num_nodes), h, "logits", "nodes")
            self._parts.append(self._statistics(nothing, np.zeros(0, dtype=np.int64)))
        self._parts = [SampleStatistics.joined(self._parts)]
        warm = None if self._calibrated is None else self._calibrated.evaluation()
        return Evaluation(
            h,
            self._parts[0],
            bins=self.bins,
            thresholds=tuple(self.thresholds),
            distance=self.distance,
            calibrated=warm,
            temperature=self.temperature,
            promise=self.promise if warm is None else warm.promise,
            **about,
        )


def evaluate(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    name: str = "scores",
    threshold: float | Sequence[float] | None = None,
    level: int | str | None = None,
    price: float | None = None,
    only_subset: bool = False,
    compare: Any = None,
    replicates: int = 1000,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> Evaluation:
    """All metrics of a model: everything that `hace evaluate` does.

    ``print(found.to_text())`` shows them, ``found.write("results")`` writes a page with tables and pictures.

    Args:
        scores: (S, n) or (S, N), or an iterable of chunks of them.
        target: (S,) truths.
        hierarchy: the hierarchy. On a DAG, metrics by level are omitted.
        name: what to call the model.
        threshold: evaluate the deepest node above a probability, too; one, or one per level.
        level: evaluate the best node of a level, too, by depth or name, and list its classes.
        price: evaluate the answer of least cost at any rank, too, where a vague answer costs this share of its distance.
        only_subset: whether to skip samples whose truth is outside ``subset``.
        compare: scores of a second model on the same samples, in the same forms; or its evaluation.
        replicates: number of bootstrap draws of the comparison.
        seed: seed of these draws.
        progress: called with the number of samples scored since the last call.
        **options: kind, outputs, labels, subset, distance, rules, bins, thresholds, metrics, temperature and promise, as of
            :class:`hace.metrics.Evaluator`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> evaluation = evaluate(np.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), [0, 1], h)
        >>> evaluation.values["leaves", "top-1"], evaluation.values["leaves", "severity"]
        (0.5, 1.0)
    """
    truth = as_nodes(target, hierarchy, "target", of=options.get("labels", "leaves"))
    rules = {
        **_asked_rules(hierarchy, threshold, level, price, options.get("distance", "lca_height")),
        **(options.get("rules") or {}),
    }
    inside = _inside(hierarchy, options.get("subset"), truth.numpy(), only_subset)
    evaluator = Evaluator(hierarchy, **{**options, "labels": "nodes", "rules": rules})
    start = 0
    for chunk in _chunks(scores, hierarchy, evaluator):
        evaluator.add(chunk, truth[start : start + len(chunk)])
        start += len(chunk)
        if progress is not None:
            progress(len(chunk))
    if start != len(truth):
        raise DataError(f"scores and target must have one row per sample. Got {start} and {len(truth)} rows.")
    found = evaluator.evaluation(name=name, level=None if level is None else hierarchy.level_index(level))
    if inside is not None:
        classes = int(subset_mask(hierarchy, options["subset"] or ())[hierarchy.leaf_nodes].sum())
        found = replace(found, subset=(classes, int((~inside).sum())), only_subset=only_subset)
        found = found.of_samples(inside) if only_subset else found
    if compare is None:
        return found
    if not isinstance(compare, Evaluation):
        same = {"threshold": threshold, "level": level, "price": price, "only_subset": only_subset}
        compare = evaluate(compare, target, hierarchy, name="second", **same, **options)  # type: ignore[arg-type]
    return found.compared_with(compare, replicates=replicates, seed=seed)


def _chunks(scores: Any, h: Hierarchy, evaluator: Evaluator) -> Iterable[Any]:
    """Scores in pieces that bound the memory of work on them."""
    if not hasattr(scores, "shape"):
        return scores
    over = "nodes" if evaluator.kind == "node_log_probs" else evaluator.outputs
    score_columns(tuple(scores.shape), h, over)
    return (scores[rows] for rows in row_blocks(len(scores), h.num_nodes))


def _asked_rules(
    h: Hierarchy,
    threshold: float | Sequence[float] | None,
    level: int | str | None,
    price: float | None,
    distance: str,
) -> dict[str, dict[str, Any]]:
    """The decisions that arguments of :func:`evaluate` ask for, by title."""
    rules: dict[str, dict[str, Any]] = {}
    if price is not None:
        check_number("price", price, "a number from 0 to 1", is_number(price) and 0 <= price <= 1)
        cost = {"rule": "cost", "candidates": "nodes", "price": price, "distance": distance}
        rules[f"least cost, any rank, price {price:g}"] = cost
    if threshold is not None:
        level_thresholds(threshold, h)  # refuses what is not a probability
        words = [threshold] if isinstance(threshold, (int, float)) else threshold
        title = f"threshold {','.join(f'{t:g}' for t in words)}"
        rules[title] = {"rule": "threshold", "threshold": threshold}
    if level is not None:
        level_numbers(h)
        rules[f"best node of level {level}"] = {"rule": "level", "level": h.level_index(level)}
    return rules


def _inside(h: Hierarchy, subset: Sequence[Any] | None, truth: np.ndarray, only: bool) -> np.ndarray | None:
    """(S,) whether each truth is a class of the subset, or an inner node with no class outside it; None without a subset."""
    if subset is None:
        if only:
            raise ConfigError("only_subset must come with a subset. Got none.")
        return None
    kept = set(subset_leaves(h, subset))
    others = [leaf for leaf in h.leaves if leaf not in kept]
    inside = ~subset_mask(h, others)[truth] if others else np.ones(len(truth), dtype=bool)
    if only and not inside.any():
        raise ConfigError(
            "only_subset must come with a subset that some samples belong to. No truth is inside it."
        )
    return inside


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
