"""Which loss: the simplest candidate within one standard error of the best.

Candidates are those of :data:`hace.losses.advice.ADVICE`, from simple to involved, flat cross-entropy first. Cross-validation
over training samples judges each of them at its own best weight decay. The standard error is that of the paired difference from
the best candidate, over samples, or over groups of samples where there are any. Where labels are coarse, each candidate is
judged with them and without them; dropping them is simpler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.fitting.splits import folds_of
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.linear.selection import Candidate, CrossValidation, Judged, standard_error
from hace.losses.advice import ADVICE, Advice
from hace.metrics.intervals import Interval, interval

DROP, USE = "drop", "balanced"
MOST = 20_000  # samples that a choice looks at: more would not change it


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate and how it did."""

    advice: Advice
    judged: Judged

    @property
    def coarse(self) -> str:
        """What became of coarse labels."""
        return self.judged.candidate.coarse


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidate that was chosen, and how all of them did.

    Attributes:
        chosen: the candidate.
        trials: all candidates, from simple to involved.
        weight_decay: of the features as they are.
        temperature: from predictions for samples that were held out.
        gain: accuracy of the best candidate minus flat cross-entropy's, by cross-validation.
        coarse_gain: accuracy with coarse labels minus without them; None where there are none.
        samples: how many samples chose.
    """

    chosen: Trial
    trials: tuple[Trial, ...]
    weight_decay: float
    temperature: float
    gain: Interval
    coarse_gain: Interval | None
    samples: int

    @property
    def is_flat(self) -> bool:
        """Whether plain logistic regression was chosen."""
        return self.chosen.advice is ADVICE[0]


def choose(
    x: Any,
    nodes: IntArray,
    hierarchy: Hierarchy,
    together: np.ndarray | None,
    *,
    seed: int = 0,
    on_fit: Callable[[], object] = lambda: None,
) -> Choice:
    """The loss, its weight decay and what becomes of coarse labels, on training samples (M,)."""
    coarse = bool((hierarchy.labels[nodes] < 0).any())
    flat = hierarchy.num_nodes == hierarchy.num_leaves
    rows = _looked_at(len(nodes), seed)
    x, nodes = (x, nodes) if len(rows) == len(nodes) else (x[rows], nodes[rows])
    groups = None if together is None else together[rows]
    cross = CrossValidation(x, nodes, hierarchy, folds_of(nodes, groups, seed), on_fit)

    def tried(advice: Advice, how: str) -> Trial:
        return Trial(advice, cross.judge(Candidate(advice.loss, dict(advice.params), how)))

    ways = (DROP, USE) if coarse else (DROP,)
    trials = [tried(advice, how) for how in ways for advice in (ADVICE[:1] if flat else ADVICE)]
    chosen = simplest(trials, groups)
    if coarse and chosen.coarse == USE:
        trials.append(tried(chosen.advice, "cautious"))
        chosen = simplest(trials, groups)
    best = max(trials, key=lambda trial: trial.judged.accuracy)
    with_, without = (_best_of(trials, how) for how in (USE, DROP))
    return Choice(
        chosen,
        tuple(trials),
        10.0**chosen.judged.exponent / cross.scale**2,
        chosen.judged.temperature,
        _difference(best, trials[0], groups),
        _difference(with_, without, groups) if with_ is not None and without is not None else None,
        len(nodes),
    )


def simplest(trials: list[Trial], groups: np.ndarray | None) -> Trial:
    """The first candidate that is within one standard error of the best."""
    best = max(trials, key=lambda trial: trial.judged.accuracy)
    for trial in trials:
        behind = best.judged.right.astype(float) - trial.judged.right
        if behind.mean() <= standard_error(behind, groups):
            return trial
    return best


def _best_of(trials: list[Trial], coarse: str) -> Trial | None:
    found = [trial for trial in trials if trial.coarse == coarse]
    return max(found, key=lambda trial: trial.judged.accuracy, default=None)


def _difference(first: Trial, second: Trial, groups: np.ndarray | None) -> Interval:
    return interval((first.judged.right.astype(float) - second.judged.right)[None], groups=groups)


def _looked_at(samples: int, seed: int) -> IntArray:
    """The samples that choose: all, or of many a random part."""
    if samples <= MOST:
        return np.arange(samples)
    return np.sort(np.random.default_rng([seed, samples]).permutation(samples)[:MOST])
