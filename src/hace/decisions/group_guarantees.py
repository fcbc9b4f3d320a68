"""Guarantees about new groups: a site, a donor or a recording that was not calibrated on.

Samples of one group resemble each other, so they are not exchangeable with those of a new group; whole groups are. Let group g
have the loss L_g(t) from 0 to 1 at the threshold t:

    on average        the share of its samples with a false answer, or of its answers that are false
    in a share s      1 where that share is above 1 - accuracy, else 0

No sample loses more at a greater t, so neither does the mean over a group's samples, nor whether it is above a limit: for
guarantees about samples, L_g never grows with t. Groups Z_1, ..., Z_G and a new one, each with its size, exchangeable, and t the
least threshold with

    (sum_g L_g(t) + 1) / (G + 1) <= alpha          alpha = 1 - accuracy, or 1 - s

give E[L_new(t)] <= alpha: conformal risk control with groups as samples. It is the setting of Dunn, Wasserman and Ramdas 2023
("Distribution-Free Prediction Sets for Two-Layer Hierarchical Models") and Lee, Barber and Willett 2023 ("Distribution-Free
Inference with Hierarchical Data"): groups weigh the same, whatever their size, and nothing is assumed about samples within one.
With a confidence, the same tests as for samples hold over independent groups (:mod:`hace.decisions.bounds`).

The share of false answers among a group's answers may grow with t. These guarantees need a confidence, and test a list of
thresholds that is fixed beforehand, from the safest down to the first that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hace.decisions.bounds import RiskBound
from hace.decisions.threshold_rules import NOTHING, Outcomes
from hace.errors import DataError

_WHOLE = 1 << 20  # a group's mean loss is rounded up to so many parts, so that tests are exact
# The thresholds of guarantees about answers: even steps of log odds, which no score is likely to hit exactly.
_FIXED = 1 / (1 + np.exp(-np.linspace(9.037, -5.013, 142)))


@dataclass(frozen=True)
class GroupGuarantee:
    """A guarantee about the samples or the answers of a new group: on average, or in a share of new groups."""

    inside: RiskBound
    share: Fraction | None = None

    @property
    def over_groups(self) -> RiskBound:
        """The guarantee about losses of groups that makes this one true."""
        if self.share is not None:
            return RiskBound(1 - self.share, self.inside.delta, "samples")
        return RiskBound(self.inside.alpha, self.inside.delta, "samples", _WHOLE)

    def losses(self, outcomes: Outcomes, place: np.ndarray, threshold: float) -> np.ndarray:
        """(G,) the loss of each group, in parts of the greatest; ``place`` (S,) counts the groups from 0."""
        lost = np.bincount(place, weights=outcomes.losses(threshold))
        counted = np.ones(len(place)) if self.inside.of == "samples" else outcomes.answered >= threshold
        most = np.bincount(place, weights=counted) * self.inside.most
        if self.share is not None:
            alpha = self.inside.alpha  # whole numbers on both sides: exact
            return (lost * alpha.denominator > most * alpha.numerator).astype(np.int64)
        share = np.divide(lost, most, out=np.zeros(len(lost)), where=most > 0)
        return np.ceil(_WHOLE * share).astype(np.int64)

    def threshold(self, outcomes: Outcomes, place: np.ndarray) -> float:
        """The least threshold that keeps the guarantee; ``NOTHING`` where no other does."""
        guarantee, groups = self.over_groups, int(place.max(initial=-1)) + 1
        needed = guarantee.needed()
        if groups < needed:
            what, word = "on average over new groups", "an accuracy"
            if self.share is not None:
                what, word = f"in {float(self.share):g} of new groups", "a share of groups"
            possible = 1 / (groups + 1)
            if guarantee.delta is not None:
                possible = 1 - float(guarantee.delta) ** (1 / max(groups, 1))
            raise DataError(
                f"groups must be at least {needed:,} to guarantee {self.inside} {what}. Got {groups:,}. Calibrate on more, "
                f"or ask for less: {groups:,} groups support {word} of up to {int(1000 * (1 - possible)) / 1000:g}."
            )

        def kept(threshold: float) -> bool:
            loss = self.losses(outcomes, place, threshold).sum()
            return bool(guarantee.holds(np.array([loss]), np.array([groups]))[0])

        if self.inside.of == "answers":  # fixed-sequence testing
            found = NOTHING
            for threshold in _FIXED.tolist():
                if not kept(threshold):
                    return found
                found = threshold
            return 0.0 if kept(0.0) else found
        tried = outcomes.thresholds()  # falling; the first, NOTHING, is kept
        low, high = 0, len(tried)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if kept(tried[middle]) else (low, middle)
        return float(tried[low])


def group_places(groups: Sequence[Any] | np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """(G,) the names of groups, as text, and (S,) the place of each sample's group among them."""
    named = np.asarray(groups)
    if named.shape != (samples,):
        raise DataError(
            f"groups must name one group for each of the {samples} samples. Got shape {named.shape}."
        )
    missing = [i for i, name in enumerate(named.tolist()) if name is None or name != name or name == ""]
    if missing:
        raise DataError(
            f"groups must name the group of every sample. {len(missing):,} have none; the first is {missing[0]}."
        )
    names, place = np.unique(named.astype(str), return_inverse=True)
    return names, place
