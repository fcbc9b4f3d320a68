"""All metrics of a model in one pass: chunks of scores in, an :class:`Evaluation` out.

Four classes, each one idea: :class:`Evaluator` reads chunks of scores; :class:`SampleStatistics` holds a few numbers for each
sample; :class:`Evaluation` is what follows from them; :class:`Comparison` holds a second model beside the first.
:func:`evaluate` does all that `hace evaluate` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import MOST_BINS, check_choice, check_count, is_number, require
from hace.decisions import Decisions, GuaranteedThreshold
from hace.decisions.bounds import group_places
from hace.decisions.rules import RULES, check_kind, check_rule
from hace.decisions.scores import (
    INDEPENDENT,
    SCORE_KINDS,
    Scores,
    as_nodes,
    as_tensor,
    check_truths,
    inside_subset,
    level_numbers,
    row_blocks,
    subset_mask,
)
from hace.decisions.threshold_rules import level_thresholds
from hace.errors import ConfigError, DataError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import score_columns
from hace.losses.kernels import best_columns
from hace.metrics import curves
from hace.metrics.comparison import compared
from hace.metrics.evaluation import Evaluation, guarantee_title
from hace.metrics.measures import LEAVES, RANKS, answer_measure, set_measure, standard_measures
from hace.metrics.metric_batch import MetricBatch
from hace.metrics.sample_statistics import SampleStatistics


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
        prior: weights of nodes, which apply to all below: how much likelier here than in training.
        distance: the distance of severity and HD@k: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``.
        rules: further decisions to evaluate, by title: the options of :func:`hace.predict`, ``rule`` included.
        bins: number of bins of the calibration.
        thresholds: thresholds of the operating curve.
        metrics: ``"all"``; or ``"leaves"``: top-k, severity and HD@k alone, which need no probabilities and so are much faster.
        temperature: fitted on other samples (:func:`hace.fit_temperature`): the metrics of confidence of scores divided by it
            are given beside the raw ones.
        guarantee: a calibrated threshold (:func:`hace.guaranteed_threshold`) whose answers are evaluated, on the scores divided
            by the temperature if there is one.
    """

    hierarchy: Hierarchy
    kind: str = "logits"
    outputs: str = "auto"
    labels: str = "leaves"
    subset: Sequence[Any] | None = None
    prior: Mapping[str, float] | None = None
    distance: str = "lca_height"
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bins: int = 15
    thresholds: Sequence[float] = curves.THRESHOLDS
    metrics: str = "all"
    temperature: float | None = None
    guarantee: GuaranteedThreshold | None = None

    def __post_init__(self) -> None:
        h = self.hierarchy
        check_choice("metrics", self.metrics, ("all", LEAVES))
        check_choice("kind", self.kind, SCORE_KINDS)
        require("outputs", self.outputs, "'auto', 'leaves' or 'nodes'", isinstance(self.outputs, str))
        is_guarantee = self.guarantee is None or isinstance(self.guarantee, GuaranteedThreshold)
        require("guarantee", self.guarantee, "what hace.guaranteed_threshold returns", is_guarantee)
        if self.guarantee is not None and self.guarantee.groups == "given":
            raise ConfigError(
                "guarantee must have a threshold that does not depend on groups of your own. Got one for each group of by=: "
                "evaluate the samples of each group by themselves."
            )
        self.thresholds = curves.checked_thresholds(self.thresholds)
        check_count("bins", self.bins, MOST_BINS)
        check_rules(self.rules)
        self._check_temperature()
        self._allowed = None if self.subset is None else subset_mask(h, self.subset)
        choices = h.num_leaves if self._allowed is None else int(self._allowed[h.leaf_nodes].sum())
        self._measures = standard_measures(h, self.distance, choices, self.kind in INDEPENDENT)
        if self.metrics == LEAVES:
            self._check_only_leaves()
            self._measures = [(group, measure) for group, measure in self._measures if group == LEAVES]
        # The statistics of the chunks so far: of the scores as they are and, with a temperature, of those divided by it.
        self._raw: list[SampleStatistics] = []
        self._calibrated: list[SampleStatistics] = []
        self._samples = 0

    def _check_temperature(self) -> None:
        """Refuse a temperature that the scores cannot be divided by; independent scores have none."""
        if self.temperature is None:
            return
        fits = is_number(self.temperature) and self.temperature > 0
        require("temperature", self.temperature, "a number above 0", fits)
        if self.kind == "node_log_probs":
            raise ConfigError(
                "temperature needs logits or probabilities: log q* does not divide. Pass scores of kind='logits'."
            )
        if self.kind in INDEPENDENT and self.temperature != 1:
            raise ConfigError("temperature must be left out with kind='sigmoid': nothing sums to 1.")
        if self.kind in INDEPENDENT:
            self.temperature = None

    def _check_only_leaves(self) -> None:
        for name in ("temperature", "guarantee", "rules"):
            if value := getattr(self, name):
                got = ", ".join(value) if name == "rules" else value
                raise ConfigError(
                    f"{name} must be left out with metrics='leaves'. Got {got}. Use metrics='all'."
                )

    def add(self, scores: Any, target: Any) -> None:
        """Add a chunk of scores and truths."""
        truth = as_nodes(target, self.hierarchy, "target", of=self.labels).numpy()
        given = Scores(scores, self.hierarchy, self.kind, self.outputs)
        check_truths(truth.shape, len(given))
        ranking, top = self._ranked(given)
        given = given.checked(self._samples, top)
        self._samples += len(truth)
        width = max(RANKS) if ranking is not None and self.metrics == LEAVES else self.hierarchy.num_nodes
        for rows in row_blocks(len(truth), width):
            best = None if ranking is None else ranking[rows]
            block = given[rows]
            if self.temperature is None:
                self._raw.append(self._statistics(block, truth[rows], best, self.guarantee))
                continue
            self._raw.append(self._statistics(block, truth[rows], best))
            cooled = block.cooled(self.temperature)
            self._calibrated.append(self._statistics(cooled, truth[rows], best, self.guarantee))

    def _ranked(self, scores: Scores) -> tuple[Tensor | None, Tensor | None]:
        """(B, k) the best leaves and (B,) the greatest scores, in one pass where nothing is to be done to the scores first."""
        as_they_are = scores.kind in ("logits", "log_probs") and self._allowed is None and self.prior is None
        if not as_they_are or scores.outputs != "leaves":
            return None, None
        z = as_tensor(scores.data, "scores")
        return best_columns(z, min(max(RANKS), self.hierarchy.num_leaves)) or (None, None)

    def _statistics(
        self,
        scores: Scores,
        truth: np.ndarray,
        ranking: Tensor | None = None,
        guarantee: GuaranteedThreshold | None = None,
    ) -> SampleStatistics:
        """What is known of the samples of a block; ``ranking``: their best leaves, if known."""
        h = self.hierarchy
        scores = scores.restricted(self._allowed).weighted(self.prior)
        batch = MetricBatch(h, truth, scores=scores, labels=ranking)
        batch.ranking(min(max(RANKS), h.num_leaves))  # the longest first: shorter ones are its beginning
        named: list[tuple[str, str, float]] = []
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        for group, measure in self._measures:
            columns.append(measure.columns(batch))
            named += [(group, name, measure.empty) for name in measure.names]
        answers = {}
        for title, decided in self._decided(batch, guarantee):
            answers[title] = decided.nodes.cpu().numpy(), decided.probabilities.double().cpu().numpy()
            measure = answer_measure(h, self.distance) if decided.nodes.dim() == 1 else set_measure(h)
            columns.append(measure.columns(MetricBatch(h, batch.truth, answers=answers[title][0])))
            named += [(title, name, measure.empty) for name in measure.names]
        return SampleStatistics(
            names=tuple(named),
            numerator=np.concatenate([above for above, _ in columns], axis=1),
            denominator=np.concatenate([below for _, below in columns], axis=1),
            truth=batch.truth,
            answers=batch.answers,
            distance=batch.distance(self.distance),
            decided=answers,
            **self._of_confidence(batch),
        )

    def _of_confidence(self, batch: MetricBatch) -> dict[str, Any]:
        """The columns that need probabilities; empty ones with ``metrics="leaves"``, and those of levels on a DAG."""
        none = np.empty((len(batch), 0))
        columns: dict[str, Any] = {
            "confidence": np.full(len(batch), np.nan),
            "level_confidence": none,
            "level_correct": none.astype(bool),
            "specific": none,
            "true": none,
            "answered": none,
            "ladders": (none, none, none),
        }
        if self.metrics == LEAVES:
            return columns
        specific, true, answered = curves.operating_columns(batch, self.thresholds)
        columns["confidence"] = batch.confidence
        columns["specific"] = specific.astype(np.float32)
        columns["true"] = true.astype(np.float32)
        columns["answered"] = answered
        if self.hierarchy.is_tree:
            columns["level_confidence"] = batch.levels.probabilities.float().cpu().numpy()
            columns["level_correct"] = batch.correct_at_levels
            columns["ladders"] = curves.ladder_columns(batch)
        return columns

    def _decided(
        self, batch: MetricBatch, guarantee: GuaranteedThreshold | None
    ) -> Iterator[tuple[str, Decisions]]:
        """The answers of every further rule, and those that keep the guarantee, by title."""
        for title, options in self.rules.items():
            given = dict(options)
            check_kind(given["rule"], batch.scores)
            yield title, RULES[given.pop("rule")][0](batch.log_q, self.hierarchy, **given)
        if guarantee is not None:
            answers = guarantee.predict(batch.log_q, self.hierarchy, kind="node_log_probs")
            yield guarantee_title(guarantee), answers

    def evaluation(self, **about: Any) -> Evaluation:
        """The metrics of all chunks so far.

        Args:
            **about: further attributes of :class:`Evaluation`.
        """
        if not self._samples:
            nobody = Scores(torch.zeros(0, self.hierarchy.num_nodes), self.hierarchy, "logits", "nodes")
            nothing = self._statistics(nobody, np.zeros(0, dtype=np.int64), guarantee=self.guarantee)
            self._raw = [nothing]
            self._calibrated = [nothing]
        calibrated = None
        if self.temperature is not None:
            self._calibrated = [SampleStatistics.joined(self._calibrated)]
            calibrated = self._evaluation_of(self._calibrated[0])
        self._raw = [SampleStatistics.joined(self._raw)]
        evaluation = self._evaluation_of(self._raw[0])
        return replace(evaluation, calibrated=calibrated, temperature=self.temperature, **about)

    def _evaluation_of(self, samples: SampleStatistics) -> Evaluation:
        return Evaluation(
            self.hierarchy,
            samples,
            bins=self.bins,
            thresholds=tuple(self.thresholds),
            distance=self.distance,
            guarantee=self.guarantee,
        )


def check_rules(rules: Any) -> None:
    """Refuse what is no mapping from titles to the options of a rule."""
    if not isinstance(rules, Mapping):
        raise ConfigError(
            f"rules must be a mapping from titles to options, such as {{'sure': {{'rule': 'threshold', 'threshold': 0.9}}}}. "
            f"Got {rules!r}."
        )
    for title, options in rules.items():
        if not isinstance(options, Mapping):
            raise ConfigError(
                f"rules must hold the options of each rule, such as {{'rule': 'leaf'}}. Got {options!r} for {title!r}."
            )
        check_rule(options.get("rule"), (name for name in options if name != "rule"))


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
    groups: Any = None,
    names: Sequence[str] | None = None,
    compare: Any = None,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> Evaluation:
    """All metrics of a model: everything that `hace evaluate` does.

    ``print(result.to_text())`` shows them, ``hace.write_evaluation(result, "results")`` writes a page with tables and pictures.

    Args:
        scores: (S, n) or (S, N), or an iterable of chunks of them.
        target: (S,) truths.
        hierarchy: the hierarchy. On a DAG, metrics by level are omitted.
        name: what to call the model.
        threshold: evaluate the deepest node above a probability, too; one, or one per level.
        level: evaluate the best node of a level, too, by depth or name, and list its classes.
        price: evaluate the answer of least cost at any rank, too, where a vague answer costs this share of its distance.
        only_subset: whether to skip samples whose truth is outside ``subset``.
        groups: (S,) the group of each sample, such as its site: intervals are then over groups, not samples.
        names: (S,) the name of each sample, such as its file, for tables of answers.
        compare: scores of a second model on the same samples, in the same forms; or its evaluation.
        progress: called with the number of samples scored since the last call.
        **options: kind, outputs, labels, subset, prior, distance, rules, bins, thresholds, metrics, temperature and guarantee,
            as of :class:`hace.metrics.Evaluator`.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> evaluation = evaluate(np.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), [0, 1], h)
        >>> evaluation.values["leaves", "top-1"], evaluation.values["leaves", "severity"]
        (0.5, 1.0)
    """
    _check_options(options)
    require("progress", progress, "a function of a number of samples", progress is None or callable(progress))
    truth = as_nodes(target, hierarchy, "target", of=options.get("labels", "leaves"))
    check_rules(options.get("rules", {}))
    check_choice("only_subset", only_subset, (True, False))
    if truth.dim() != 1:
        check_truths(tuple(truth.shape), truth.numel())
    rules = _asked_rules(hierarchy, threshold, level, price, options.get("distance", "lca_height"))
    rules |= options.get("rules", {})
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
    grouped = None
    if groups is not None:
        group_names, places = group_places(groups, len(truth))
        grouped = group_names[places]
    if names is not None and (isinstance(names, str | bytes) or np.ndim(names) != 1):
        raise DataError(f"names must have one entry per sample. Got {names!r:.80}.")
    if names is not None and len(names) != len(truth):
        raise DataError(f"names must have one entry per sample. Got {len(names)} for {len(truth)} samples.")
    named = None if names is None else np.array([str(each) for each in names], dtype=object)
    depth = None if level is None else hierarchy.level_index(level)
    evaluation = evaluator.evaluation(name=name, level=depth, groups=grouped, names=named)
    if inside is not None:
        classes = int(subset_mask(hierarchy, options["subset"])[hierarchy.leaf_nodes].sum())
        evaluation = replace(evaluation, subset=(classes, int((~inside).sum())), only_subset=only_subset)
        evaluation = evaluation.of_samples(inside) if only_subset else evaluation
    if compare is None:
        return evaluation
    if not isinstance(compare, Evaluation):
        compare = evaluate(
            compare,
            target,
            hierarchy,
            name="second",
            threshold=threshold,
            level=level,
            price=price,
            only_subset=only_subset,
            groups=groups,
            **options,
        )
    return compared(evaluation, compare)


def _check_options(options: Collection[str]) -> None:
    """Refuse names that are no options of :class:`Evaluator`."""
    known = [option.name for option in fields(Evaluator) if option.name != "hierarchy"]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"{name} is not an option of evaluate. Options are {', '.join(known)}.{nearest(name, known)}"
            )


def _chunks(scores: Any, h: Hierarchy, evaluator: Evaluator) -> Iterator[Any]:
    """Scores in pieces that bound the memory of work on them."""
    rows_of_numbers = isinstance(scores, list | tuple) and len(scores) > 0 and np.ndim(scores[0]) == 1
    table: Any = as_tensor(scores, "scores") if rows_of_numbers or isinstance(scores, Tensor) else scores
    if hasattr(table, "toarray"):  # of SciPy
        raise DataError("scores must be dense. Got a sparse table; pass scores.toarray().")
    if hasattr(table, "shape"):
        over = "nodes" if evaluator.kind == "node_log_probs" else evaluator.outputs
        score_columns(tuple(table.shape), h, over)
        for rows in row_blocks(len(table), h.num_nodes):
            yield table[rows]
        return
    if not isinstance(scores, Iterable) or isinstance(scores, str | bytes | Mapping):
        raise DataError(f"scores must be a table of numbers, or chunks of one. Got {scores!r}.")
    for chunk in scores:
        if np.ndim(chunk) != 2:
            raise DataError(f"scores must come in chunks with two dimensions. Got {chunk!r:.80}.")
        yield chunk


def _asked_rules(
    h: Hierarchy, threshold: Any, level: Any, price: Any, distance: str
) -> dict[str, Mapping[str, Any]]:
    """The decisions that arguments of :func:`evaluate` ask for, by title."""
    rules: dict[str, Mapping[str, Any]] = {}
    if price is not None:
        require("price", price, "a number from 0 to 1", is_number(price) and 0 <= price <= 1)
        cost = {"rule": "cost", "candidates": "nodes", "price": price, "distance": distance}
        rules[f"least cost, any rank, price {price:g}"] = cost
    if threshold is not None:
        limits = level_thresholds(threshold, h)[1:].tolist()
        words = limits[:1] if np.ndim(threshold) == 0 else limits
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
    inside = inside_subset(h, subset, truth)
    if only and not inside.any():
        raise ConfigError(
            "only_subset must come with a subset that some samples belong to. No truth is inside it."
        )
    return inside
