"""How a guarantee turned out on labelled samples: kept, missed within sampling error, or not kept.

What is judged is what was guaranteed: the share of false answers of all samples or of the answers, in new groups or within each
class, or their mean distance. Sampling error has two parts. The samples here are few, hence the 95% interval. And a guarantee
on average over calibrations allows a single one more: up to the rate that a valid calibration exceeds with a probability of
2.5% at most (:func:`hace.decisions.check.highest_rate`). So "not kept" is wrong about a guarantee on average in 5% of cases
at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from hace.decisions import Decisions, GuaranteedThreshold
from hace.decisions.check import highest_rate
from hace.decisions.node_sets import true_answers
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.metrics.intervals import interval, share_interval

_LUCK = 0.025  # of a calibration whose guarantee holds on average


@dataclass(frozen=True)
class Judged:
    """What was measured.

    Attributes:
        what: it, in words.
        value: the share, or the mean distance.
        low: the lower end of its 95% interval.
        high: the upper end.
        once: what the threshold of a single calibration may have, by chance.
        units: what that calibration rests on, in words.
    """

    what: str
    value: float
    low: float
    high: float
    once: float
    units: str


def guarantee_outcome(
    guarantee: GuaranteedThreshold, h: Hierarchy, nodes: IntArray, truth: IntArray, groups: np.ndarray | None
) -> str:
    """Whether a guarantee was kept, in a sentence.

    Args:
        guarantee: the guarantee.
        h: the hierarchy.
        nodes: (S,) or, of sets, (S, K) the answers.
        truth: (S,) the truths.
        groups: (S,) the group of each sample, if there are any.
    """
    losses, counted = losses_of(guarantee, h, nodes, truth)
    if not counted.any():
        return "Nothing was answered here, so nothing was false."
    if guarantee.groups == "new" and groups is None:
        return "These samples name no groups, so they say nothing about new groups."
    if guarantee.groups == "new":
        judged = _over_groups(guarantee, h, losses, counted, np.asarray(groups))
    elif guarantee.pools is not None:
        judged = _within_classes(guarantee, h, losses, h.labels[truth])
    else:
        judged = _over_samples(guarantee, h, losses, counted, groups)
    allowed = guaranteed(guarantee)
    missed = "not kept here" if judged.low > judged.once else "missed here, within sampling error"
    outcome = "kept here" if judged.value <= allowed else missed
    about_distance = guarantee.distance is not None and guarantee.group_share is None
    low, high, most, once = (
        f"{x:.3g}" if about_distance else f"{x:.1%}" for x in (judged.low, judged.high, allowed, judged.once)
    )
    sentence = f"The guarantee was {outcome}: {judged.what}, 95% interval {low} to {high}; guaranteed: at most {most}"
    if allowed < judged.low <= judged.once:
        sentence += f", on average over calibrations; one on {judged.units} may have up to {once}"
    return f"{sentence}."


def losses_of(
    guarantee: GuaranteedThreshold, h: Hierarchy, nodes: IntArray, truth: IntArray
) -> tuple[np.ndarray, np.ndarray]:
    """(S,) what each sample loses, and whether it counts."""
    decided = Decisions(h, torch.from_numpy(nodes), torch.empty(nodes.shape))
    says = np.asarray((np.append(h.depths, 0)[nodes] > 0).reshape(len(nodes), -1).any(axis=1))
    false = says & ~true_answers(decided, truth)
    losses = false.astype(np.float64)
    if guarantee.distance is not None:
        losses[false] = h.distances(nodes[false], truth[false], guarantee.distance, labels="nodes")
    return losses, says if guarantee.of == "answers" else np.ones(len(nodes), dtype=bool)


def guaranteed(guarantee: GuaranteedThreshold) -> float:
    """What is guaranteed at most: a share of false answers or of groups, or a distance."""
    return _in_a_group(guarantee) if guarantee.group_share is None else 1 - guarantee.group_share


def _in_a_group(guarantee: GuaranteedThreshold) -> float:
    """What is guaranteed at most of all samples, or of those of one group."""
    if guarantee.at_most is not None:
        return guarantee.at_most
    assert guarantee.accuracy is not None
    return 1 - guarantee.accuracy


def _once(guarantee: GuaranteedThreshold, h: Hierarchy, units: int, luck: float = _LUCK) -> float:
    """What the threshold of one calibration on so many samples or groups may have, by chance."""
    if guarantee.confidence is not None:
        return guaranteed(guarantee)
    bound = guarantee.bound(h)
    of_mean_losses = guarantee.num_groups is not None and guarantee.prefer != "sharper"
    rate = highest_rate(bound.over_groups() if of_mean_losses else bound, units, luck)
    return rate * (1 if guarantee.group_share is not None else bound.most)


def _measured(guarantee: GuaranteedThreshold, value: float) -> str:
    if guarantee.distance is not None:
        return f"the mean distance of false answers is {value:.3g}"
    return f"{value:.1%} of {guarantee.of} are false"


def _over_samples(
    guarantee: GuaranteedThreshold,
    h: Hierarchy,
    losses: np.ndarray,
    counted: np.ndarray,
    groups: np.ndarray | None,
) -> Judged:
    value = float(losses.sum() / counted.sum())
    if groups is None and guarantee.distance is None:
        low, high = share_interval(losses.sum(), counted.sum())
    else:
        over = interval(losses[None], counted[None].astype(np.float64), groups=groups)
        low = max(over.low, 0.0)
        high = over.high
    together = ", of all groups together" if isinstance(guarantee.threshold, dict) else ""
    once = _once(guarantee, h, guarantee.samples)
    what = f"{_measured(guarantee, value)}{together}"
    return Judged(what, value, low, high, once, f"{guarantee.samples:,} samples")


def _over_groups(
    guarantee: GuaranteedThreshold, h: Hierarchy, losses: np.ndarray, counted: np.ndarray, groups: np.ndarray
) -> Judged:
    """Groups count the same; one without answers has no share of false ones."""
    place = np.unique(groups, return_inverse=True)[1]
    number = np.bincount(place, weights=counted)
    means = np.bincount(place, weights=losses)[number > 0] / number[number > 0]
    named = f"{len(means):,} groups{' that get answers' if guarantee.of == 'answers' else ''}"
    if guarantee.group_share is None:
        over = interval(means[None])
        value = over.value
        low = max(over.low, 0.0)
        high = over.high
        high = high if guarantee.distance is not None else min(high, 1.0)
        what = f"on average over {named} {_measured(guarantee, value)}"
    else:
        value = float((means > _in_a_group(guarantee) + 1e-9).mean())
        low, high = share_interval(value * len(means), len(means))
        what = f"{value:.1%} of {named} break it"
    rests = guarantee.num_groups or 0
    return Judged(what, value, low, high, _once(guarantee, h, rests), f"{rests:,} groups")


def _within_classes(
    guarantee: GuaranteedThreshold, h: Hierarchy, losses: np.ndarray, label: IntArray
) -> Judged:
    """The class, or pool of classes, that speaks most against it; intervals are of all at once (Bonferroni)."""
    assert guarantee.pools is not None
    each = []
    masks = [np.isin(label, [h.leaves.index(name) for name in pool]) for pool in guarantee.pools]
    seen = sum(bool(mask.any()) for mask in masks)
    for pool, mask, rests in zip(guarantee.pools, masks, guarantee.pool_samples or (), strict=True):
        if not mask.any():
            continue
        value = float(losses[mask].mean())
        low, high = share_interval(losses[mask].sum(), int(mask.sum()), comparisons=seen)
        once = _once(guarantee, h, rests, _LUCK / seen)
        named = ", ".join((*pool[:3], *("...",) * (len(pool) > 3)))
        what = f"most in {named}: {_measured(guarantee, value)}"
        each.append(Judged(what, value, low, high, once, f"{rests:,} samples of it"))
    allowed = guaranteed(guarantee)
    worst = max(each, key=lambda one: (one.low > one.once, one.value))
    above = sum(one.value > allowed for one in each)
    kind = "classes" if len(guarantee.pools) == h.num_leaves else "classes or pools of them"
    where = f"more in {above} of {seen} {kind}" if above else f"at most that in each of {seen} {kind}"
    return replace(worst, what=f"{where}, {worst.what}")
