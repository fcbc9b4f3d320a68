"""Whether a guarantee can be trusted on new samples: without labels, with some, in one of three states.

    "holds"                    labels show it: the share of false answers here is at most what was guaranteed
    "no evidence against it"   nothing speaks against it, and too few labels for it
    "broken"                   labels show more false answers than a valid calibration allows; or the new samples are unlike the
                               calibration samples, so that the guarantee says nothing about them

**Without labels** new units, samples or groups, are tested for being exchangeable with those of the calibration
(:mod:`hace.decisions.shift`). That is what a guarantee assumes, not what it says: unlike samples may still be answered truly.

**With labels**, in the order of arrival, bets on the losses (:mod:`hace.decisions.betting`) test both directions, so one may
look after every label. "holds" rejects "the mean loss here is at least alpha", the guaranteed one. "broken" rejects "the mean
loss here is at most m". With a confidence m is alpha, which was guaranteed for this very threshold. A guarantee on average over
calibrations allows a single threshold more: m is the least rate at which the calibration would have passed with probability at
most a quarter of the level (:func:`highest_rate`).

A random part of a group's labels has the mean loss of the group as its expectation, so groups may be labelled in part where
that mean is guaranteed. Whether a group is above a limit, or its share of false answers, cannot be told from a part: with three
labels a single false one is a third. There a group counts once all of its samples are labelled.

**False alarms.** If new and calibration units are exchangeable, the state is "broken" with probability at most the level.
Without labels the test of likeness has all of it; with labels, half, while the bets and the luck of the calibration have a
quarter each. With a confidence 1 - delta, add delta: so often the guarantee itself fails. "holds" is wrong with probability at
most the level, whatever the new samples are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.checks import is_number, require
from hace.decisions.betting import capital_against_at_least, capital_against_at_most
from hace.decisions.bounds import GroupOutcomes, RiskBound, group_places
from hace.decisions.guarantees import GuaranteedThreshold, guaranteed_threshold
from hace.decisions.scores import Scores
from hace.decisions.shift import Comparison, Profile, compare_profiles
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy

HOLDS = "holds"
NO_EVIDENCE = "no evidence against it"
BROKEN = "broken"


@dataclass(frozen=True, eq=False)
class LabelledEvidence:
    """What labels say about a guarantee.

    Attributes:
        units: how many samples, or groups of them, count.
        loss: their mean loss: the share of false answers, or the mean distance.
        allowed: the mean loss that is guaranteed.
        limit: the mean loss above which one calibration breaks the guarantee.
        against: the greatest capital of bets against the guarantee; 4 / level breaks it.
        favour: the greatest capital of bets against its opposite; 1 / level shows that it holds.
        threshold: the least threshold that these labels support for the same guarantee; None: too few.
        too_few: how many it takes, where there is none.
    """

    units: int
    loss: float
    allowed: float
    limit: float
    against: float
    favour: float
    threshold: GuaranteedThreshold | None
    too_few: str | None


@dataclass(frozen=True, eq=False)
class Check:
    """A guarantee against new samples.

    Attributes:
        state: "holds", "no evidence against it" or "broken".
        reasons: why, one sentence each.
        guarantee: what was checked, in one sentence.
        level: the probability of a false alarm.
        samples: how many new samples.
        comparison: the test without labels.
        labels: what labels say; None: there are none.
    """

    state: str
    reasons: tuple[str, ...]
    guarantee: str
    level: float
    samples: int
    comparison: Comparison
    labels: LabelledEvidence | None = None

    def __str__(self) -> str:
        return "\n".join([f"{self.state}: {self.guarantee}", *(f"  {reason}" for reason in self.reasons)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {name: getattr(self, name) for name in ("state", "reasons", "guarantee", "level", "samples")}
        plain["reasons"] = list(self.reasons)
        plain["comparison"] = {**vars(self.comparison), "p_value": self.comparison.p_value}
        plain["labels"] = None
        if self.labels is not None:
            threshold = self.labels.threshold
            made = None if threshold is None else threshold.to_dict()
            plain["labels"] = {**vars(self.labels), "threshold": made}
        return plain


def check(
    guarantee: GuaranteedThreshold,
    calibration: Profile,
    scores: Any,
    hierarchy: Hierarchy,
    *,
    target: Any = None,
    similarity: np.ndarray | None = None,
    groups: Sequence[Any] | np.ndarray | None = None,
    labels: str = "leaves",
    level: float = 0.05,
    kind: str = "logits",
    outputs: str = "auto",
    seed: int = 0,
) -> Check:
    """Check a guarantee on new samples, with or without labels.

    Args:
        guarantee: The threshold, from :func:`hace.guaranteed_threshold`.
        calibration: What was seen of the calibration samples: ``Profile.of(scores, hierarchy, ...)``.
        scores: (S, n) or (S, N), of the new samples, prepared as in the calibration.
        hierarchy: The hierarchy.
        target: (S,) truths in the order of arrival, -1 where unknown; None: all unknown. Of a guarantee about a share of
            groups, or about their answers, a group counts once all of its samples have a truth.
        similarity: (S,) of the new samples to the nearest training sample, from :func:`hace.nearest_similarity`.
        groups: (S,) the group of each new sample; needed where the guarantee is about new groups.
        labels: What targets are: "leaves" or "nodes".
        level: The probability of a false alarm.
        kind: See :func:`hace.predict`.
        outputs: See :func:`hace.predict`.
        seed: Of the draws of the test without labels.

    Example:
        >>> from hace import guaranteed_threshold
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> z = np.random.default_rng(0).normal(size=(400, 3)) * 3
        >>> y = z.argmax(1)
        >>> sure = guaranteed_threshold(z[:200], y[:200], h, accuracy=0.9)
        >>> check(sure, Profile.of(z[:200], h), z[200:], h).state
        'no evidence against it'
        >>> check(sure, Profile.of(z[:200], h), z[200:], h, target=y[200:]).state
        'holds'
        >>> check(sure, Profile.of(z[:200], h), 0.1 * z[200:], h).state
        'broken'
    """
    is_guarantee = isinstance(guarantee, GuaranteedThreshold)
    require("guarantee", guarantee, "what hace.guaranteed_threshold returns", is_guarantee)
    require("calibration", calibration, "what hace.Profile.of returns", isinstance(calibration, Profile))
    require("level", level, "a number above 0 and below 1", is_number(level) and 0 < level < 1)
    if isinstance(guarantee.threshold, dict):
        remedy = "check each group by itself"
        if guarantee.pools is not None:
            remedy = "with labels, evaluate judges each class"
        raise ConfigError(
            f"guarantee must have one threshold. Got {len(guarantee.threshold)}, one for each class or group: {remedy}."
        )
    by_group = guarantee.groups == "new"
    if by_group and groups is None:
        raise ConfigError(
            "groups must name the group of every new sample: the guarantee is about new groups. Got none "
            "(--labels FILE --groups COLUMN; labels may be missing)."
        )
    given = Scores(scores, hierarchy, kind, outputs)
    new = Profile.of(given.data, hierarchy, similarity=similarity, groups=groups, kind=kind, outputs=outputs)
    comparison = compare_profiles(calibration, new, by_group=by_group, seed=seed)
    rows = _labelled(target, len(given))
    partly_labelled = 0
    if by_group and (guarantee.group_share is not None or guarantee.of == "answers"):
        rows, partly_labelled = _of_whole_groups(rows, group_places(groups, len(given))[1])  # type: ignore[arg-type]
    evidence = None
    if len(rows):
        truth = given[rows].truths(np.asarray(target)[rows], labels)
        named = None if groups is None or not by_group else np.asarray(groups)[rows]
        evidence = labelled_evidence(guarantee, given[rows], truth, named, level)
    state, reasons = _verdict(comparison, evidence, level)
    if partly_labelled:
        reasons += (
            f"{partly_labelled:,} groups are labelled in part and do not count: label all samples of a group.",
        )
    return Check(state, reasons, guarantee.guarantee, float(level), len(given), comparison, evidence)


def _labelled(target: Any, samples: int) -> np.ndarray:
    """The rows that have a label."""
    if target is None:
        return np.empty(0, dtype=np.int64)
    truths = np.asarray(target)
    if truths.shape != (samples,):
        raise DataError(
            f"target must hold one truth for each of the {samples} samples, -1 where unknown. Got shape {truths.shape}."
        )
    return np.flatnonzero(truths != -1)


def _of_whole_groups(rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, int]:
    """Of labelled rows those in groups, at (S,) places, without any other row, and how many groups are labelled in part."""
    labelled = np.bincount(places[rows], minlength=int(places.max()) + 1)
    is_whole = labelled == np.bincount(places)
    return rows[is_whole[places[rows]]], int((~is_whole & (labelled > 0)).sum())


def labelled_evidence(
    guarantee: GuaranteedThreshold, scores: Scores, truth: np.ndarray, groups: np.ndarray | None, level: float
) -> LabelledEvidence:
    """What the labels (S,) of samples, or of groups of them, say about a guarantee, whatever the number of looks."""
    bound = guarantee.bound(scores.hierarchy)
    unit_bound = bound if groups is None else bound.over_groups()
    # Bets take losses between 0 and 1.
    losses = _losses(guarantee, bound, scores, truth, groups) / unit_bound.most
    # A "sharper" threshold rests on one sample of each group, so its calibration was as lucky as samples are, not groups.
    calibrated = bound if guarantee.prefer == "sharper" else unit_bound
    units = guarantee.samples if guarantee.num_groups is None else guarantee.num_groups
    limit = highest_rate(calibrated, units, level / 4)
    alpha = float(unit_bound.alpha)
    against = capital_against_at_most(losses, limit)
    favour = capital_against_at_least(losses, alpha)
    threshold = None
    too_few = None
    try:
        threshold = _threshold_here(guarantee, scores, truth, groups)
    except DataError as error:
        too_few = str(error)
    # Shown in the guarantee's own unit: a share, or a distance of at most `most`.
    scale = 1 if bound.group_share is not None else bound.most
    return LabelledEvidence(
        units=len(losses),
        loss=float(losses.mean()) * scale if len(losses) else float("nan"),
        allowed=alpha * scale,
        limit=limit * scale,
        against=float(against.max(initial=1.0)),
        favour=float(favour.max(initial=1.0)),
        threshold=threshold,
        too_few=too_few,
    )


def _losses(
    guarantee: GuaranteedThreshold,
    bound: RiskBound,
    scores: Scores,
    truth: np.ndarray,
    groups: np.ndarray | None,
) -> np.ndarray:
    """(U,) the loss of each unit in the order of arrival; of groups, in that of their last samples, when they are complete."""
    t = float(guarantee.threshold)  # type: ignore[arg-type]
    outcomes = guarantee.outcomes(scores, truth)
    if groups is None:
        return outcomes.counted_losses(t, bound.of)
    _, places = group_places(groups, len(truth))
    losses, counts = GroupOutcomes(outcomes, places, bound).losses(t)
    arrival = np.argsort(np.unique(places[::-1], return_index=True)[1])[::-1]
    return losses[arrival][counts[arrival]]


def highest_rate(bound: RiskBound, units: int, delta: float) -> float:
    """The mean loss, as a share of the greatest, that new units exceed at a valid threshold with probability at most ``delta``.

    A guarantee with a confidence names it: alpha. One on average over calibrations does not: a threshold of mean loss m passes
    only if the calibration units lost as little at it as was allowed.
    """
    if bound.delta is not None:
        return float(bound.alpha)
    allowed = max(0, int(bound.allowed(np.array([units]))[0])) / bound.most
    low = float(bound.alpha)
    high = 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if chance_of_so_little(allowed, units, middle, bound.most == 1) <= delta
            else (middle, high)
        )
    return min(high, 1 - 1e-9)


def chance_of_so_little(total: float, units: int, mean: float, whole: bool) -> float:
    """At most this is the probability that independent losses from 0 to 1 of this mean sum to the total or less.

    Exact where losses are 0 or 1, else the bound of Hoeffding and Bentkus (Bates et al. 2021).
    """
    from scipy.special import bdtr, rel_entr

    exact = float(bdtr(math.ceil(total - 1e-9), units, mean))
    if whole:
        return exact
    share = min(total / units, mean)
    divergence = rel_entr(share, mean) + rel_entr(1 - share, 1 - mean)
    return min(math.e * exact, math.exp(-units * divergence))


def _threshold_here(
    guarantee: GuaranteedThreshold, scores: Scores, truth: np.ndarray, groups: np.ndarray | None
) -> GuaranteedThreshold:
    """The same guarantee, calibrated on the new samples."""
    return guaranteed_threshold(
        scores.data,
        truth,
        scores.hierarchy,
        guarantee.accuracy,
        guarantee.confidence,
        guarantee.of,
        distance=guarantee.distance,
        at_most=guarantee.at_most,
        rule=guarantee.rule,
        constrained=guarantee.constrained,
        nodes=guarantee.nodes,
        groups=groups,
        group_share=guarantee.group_share,
        prefer=guarantee.prefer or "steadier",
        seed=guarantee.seed or 0,
        labels="nodes",
        kind=scores.kind,
        outputs=scores.outputs,
    )


def _verdict(
    comparison: Comparison, evidence: LabelledEvidence | None, level: float
) -> tuple[str, tuple[str, ...]]:
    """The state, and a sentence for each reason."""
    if evidence is None:
        is_unlike = comparison.p_value <= level
        return BROKEN if is_unlike else NO_EVIDENCE, (_likeness(comparison, is_unlike),)
    # Labels come with more chances of a false alarm, which share the level: likeness has half of it.
    is_unlike = comparison.p_value <= level / 2
    state, bets = _outcome_of_bets(comparison, evidence, level)
    if state == NO_EVIDENCE and is_unlike:
        state = BROKEN
    return state, (_likeness(comparison, is_unlike), bets, *_supported_threshold(evidence))


def _outcome_of_bets(comparison: Comparison, evidence: LabelledEvidence, level: float) -> tuple[str, str]:
    """The state that labels alone show, and why.

    A capital of 1 / p is reached by chance with probability at most p. Against the guarantee p is a quarter of the level: the
    test of likeness has half, and the luck of the calibration, which `limit` allows for, the other quarter.
    """
    means = f"{evidence.units:,} labelled {comparison.units} have a mean loss of {evidence.loss:.4g}"
    means += f"; {evidence.allowed:.4g} is guaranteed"
    if evidence.against >= 4 / level:
        return BROKEN, f"{means}, and less than this would be luck."
    if evidence.favour >= 1 / level:
        return HOLDS, f"{means}, and with probability {1 - level:g} it holds here."
    return NO_EVIDENCE, f"{means}: too few to tell."


def _supported_threshold(evidence: LabelledEvidence) -> list[str]:
    """A sentence on the threshold that the new labels would give."""
    threshold = evidence.threshold
    if threshold is None:
        return [f"No threshold from these labels: {evidence.too_few}"]
    if threshold.is_silent:
        return ["The threshold that these labels support answers nothing."]
    return [
        f"The threshold that these labels support is {threshold.threshold:.4f} and answers {threshold.answered:.1%}."
    ]


def _likeness(comparison: Comparison, unlike: bool) -> str:
    least = min(comparison.p_values, key=lambda name: comparison.p_values[name])
    share = f"{comparison.unlike:.1%} of them look unlike the calibration samples, where 5.0% are expected"
    if unlike:
        return f"The new {comparison.units} differ in {least} (p = {comparison.p_value:.2g}): {share}."
    return f"The new {comparison.units} look like the calibration {comparison.units} (p = {comparison.p_value:.2g}): {share}."
