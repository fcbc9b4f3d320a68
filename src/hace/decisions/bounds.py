"""What a threshold guarantees about new samples or new groups, and the least threshold that calibration supports.

Calibration unit i, a sample or a group, has the loss L_i(t) at the threshold t, from 0 to a known most. With n units, alpha the
guaranteed mean loss as a share of the most, W(t) = sum L_i(t) / most, and delta = 1 - confidence:

    samples, without confidence   (W(t) + 1) / (n + 1) <= alpha                  conformal risk control
    samples, with confidence      P(Bin(n, alpha) <= W(t)) <= delta              Clopper-Pearson, where losses are 0 or 1
                                  a bet against a mean of alpha gains 1 / delta  where they are any numbers up to the most
    answers, with confidence      the same with m(t), the units answered at t, for n

Where no threshold up to 1 is supported, the one above 1, at which nothing is answered, keeps the guarantee. So every
calibration of enough units gives a threshold, and the guarantee is not about the lucky ones among them.

**The bet.** For losses between 0 and 1, one fixed share b of a capital is bet on each: K grows by 1 + b (alpha - L) / (1 -
alpha). Where the mean loss is alpha or more, K ever reaches 1 / delta with probability at most delta (Ville's inequality;
Waudby-Smith and Ramdas 2024). The share is the best for losses with the spread of a coin at alpha, b = (1 - alpha) sqrt(2 log(1
/ delta) / (n alpha (1 - alpha))), at most 1; losses come in an order fixed by a seed. Smaller losses never have less capital,
so if one threshold passes, all above it do. Where each group has one sample its loss is 0 or 1, and the exact binomial test,
which is sharper, takes its place.

**Samples.** The loss of a unit never grows with t, so the expected loss falls as t grows, and the least t that passes, searched
down from the safest, is valid: the search errs only if it passes at the greatest t whose expected loss is above alpha, which
has probability delta.

**Answers.** The share of false answers need not fall. The m(t) units answered at a t fixed in advance are a sample of all units
answered at t, so the test of that t is exact, but a t chosen by looking is not fixed. Hence one fifth of the units, drawn by a
fixed seed, chooses a list of thresholds, from one that it finds safe down to 0, and the other four fifths test them in this
order up to the first failure. Given the first part the list is fixed. To accept a threshold that breaks the guarantee, the
search must first pass the test of the first such threshold in the list, which has probability at most delta. No assumption on
the shape of the curve is needed (fixed-sequence testing; Angelopoulos et al. 2021, "Learn then Test").

**Groups.** Samples of one group, such as a site, a donor or a recording, resemble each other, so they are not exchangeable with
those of a new group; whole groups are. Group g has the loss L_g(t) from 0 to 1:

    on average over groups    the mean loss of its samples, or of its answers
    in a share s of them      1 where that mean is above 1 - accuracy, else 0; alpha = 1 - s

A mean of losses that never grow does not grow, nor does whether it is above a limit. So conformal risk control holds with
groups as units: groups Z_1, ..., Z_G and a new one, each with its size, exchangeable, give E[L_new(t)] <= alpha. It is the
setting of Dunn, Wasserman and Ramdas 2023 ("Distribution-Free Prediction Sets for Two-Layer Hierarchical Models") and Lee,
Barber and Willett 2023 ("Distribution-Free Inference with Hierarchical Data"): groups count the same, whatever their size, and
nothing is assumed about samples within one. A guarantee about answers is about groups that get some: a group without an answer
at t has no share of false ones, and counts in no test of t.

**Steadier or sharper.** On average over groups, mean losses must sum to alpha (G + 1) - 1 or less, so with few groups one false
answer in a large group may cost most of what is allowed. One random sample of each group stands for a whole new group as well:
its loss has the mean loss of its group as its expectation, and G + 1 such samples, one of each group, are exchangeable, so
E[L_new(t)] <= alpha holds for the threshold of these G samples alone (Dunn, Wasserman and Ramdas 2023, who draw one sample per
group). "sharper" does this, with a seed. It answers more where alpha (G + 1) is not far above 1; its threshold depends on the
draw, so single calibrations vary more. "steadier" takes all samples. The test is linear in the losses, so its average over all
draws is that of mean losses: "steadier" is the derandomised form. The median threshold of many draws would be steady too, but
holds only for twice the guaranteed loss: where L_new is lost at the median, it is lost in at least half of the draws.

References: Angelopoulos et al. 2022, "Conformal Risk Control"; Bates et al. 2021, "Distribution-Free, Risk-Controlling
Prediction Sets"; Waudby-Smith and Ramdas 2024, "Estimating Means of Bounded Random Variables by Betting"; Geifman and El-Yaniv
2017, "Selective Classification for Deep Neural Networks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hace.checks import check_choice, is_number
from hace.decisions.betting import capital_against_at_least
from hace.decisions.ladders import NOTHING, Outcomes
from hace.errors import ConfigError, DataError

GUARANTEES = ("samples", "answers")
PREFERENCES = ("steadier", "sharper")
_CHOOSING = 5  # one unit in so many chooses the thresholds that the others test
_MOST_TESTED = 1024  # thresholds in the list that is tested
_WHOLE = 1 << 20  # a group's mean loss is rounded up to so many parts, so that tests are exact


@dataclass(frozen=True)
class RiskBound:
    """What a threshold guarantees."""

    alpha: Fraction  # the mean loss it allows, as a share of the greatest loss
    delta: Fraction | None  # the probability of breaking the guarantee; None for a guarantee on average
    of: str  # `"samples"` or `"answers"`
    most: int = 1  # the greatest loss: 1 for false answers, or a distance
    group_share: Fraction | None = (
        None  # of new groups that keep it; None: on average over samples, or over new groups
    )

    @classmethod
    def of_accuracy(
        cls, accuracy: float, confidence: float | None, of: str, group_share: float | None = None
    ) -> RiskBound:
        """A guarantee about the share of false answers, in exact fractions: 1 - 0.9 is a tenth."""
        check_choice("of", of, GUARANTEES)
        alpha = 1 - share_of("accuracy", accuracy)
        if of == "answers" and confidence is None:
            raise ConfigError(
                "of='answers' needs confidence: its guarantee is a ratio and holds with a probability, not on average. "
                "Give confidence=0.9, or of='samples'."
            )
        return cls(alpha, _delta(confidence), of, group_share=_group_share(group_share))

    @classmethod
    def of_distance(
        cls, at_most: float, confidence: float | None, most: int, group_share: float | None = None
    ) -> RiskBound:
        """A guarantee about the mean distance of false answers, where no distance is above ``most``."""
        if not is_number(at_most) or not 0 < at_most < most:
            raise ConfigError(
                f"at_most must be a distance above 0 and below {most}, the greatest in this hierarchy. Got {at_most!r}."
            )
        alpha = Fraction(str(float(at_most))) / most
        return cls(alpha, _delta(confidence), "samples", most, _group_share(group_share))

    def __str__(self) -> str:
        if self.most > 1:
            return f"a mean distance of at most {float(self.alpha * self.most):.15g}"
        return f"{float(1 - self.alpha):.15g} of the {self.of}"

    def needed(self) -> int:
        """The least number of units that allows a guarantee at all: with no loss in any of them."""
        if self.delta is None:
            return math.ceil(1 / self.alpha) - 1
        log_right = math.log(1 - self.alpha) if self.alpha > 0.5 else math.log1p(-self.alpha)
        number = max(1, math.ceil(math.log(self.delta) / log_right * (1 - 1e-12)))  # (1 - alpha)^n <= delta
        while number < 1 << 20 and not self._passes_without_loss(number):  # rounding, or a bet of less than 1
            number += 1
        # The least n whose n - n // 5 are as many.
        return number if self.of == "samples" else number + (number - 1) // (_CHOOSING - 1)

    def _passes_without_loss(self, number: int) -> bool:
        if self.most == 1:
            return bool(self.supported(np.array([0]), np.array([number]))[0])
        return self._bet_wins(np.zeros(number))

    def allowed(self, number: np.ndarray) -> np.ndarray:
        """The greatest loss in all that a guarantee on average allows so many units; negative where they are too few."""
        sizes, place = np.unique(number, return_inverse=True)
        allowed = [math.floor(self.alpha * self.most * (n + 1)) - self.most for n in sizes.tolist()]
        return np.array(allowed)[place]  # losses are whole numbers, so this is exact

    def supported(self, loss: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Whether so much loss in all, of so many units, supports the guarantee."""
        if self.delta is None:
            return loss <= self.allowed(number)
        from scipy.special import bdtr

        return bdtr(loss, number.astype(np.int64), float(self.alpha)) <= float(self.delta)

    def passes(self, units: Outcomes | GroupOutcomes, threshold: float) -> bool:
        """Whether the losses of units at a threshold support the guarantee."""
        here = np.array([threshold])
        if self.delta is None or self.most == 1:
            number = units.answers_at(here) if self.of == "answers" else np.array([len(units)])
            return bool(self.supported(units.loss_at(here), number)[0])
        losses = units.counted_losses(threshold, self.of) / self.most
        return self._bet_wins(np.random.default_rng(0).permutation(losses))

    def _bet_wins(self, losses: np.ndarray) -> bool:
        """Whether a bet against a mean loss of at least alpha ever gains enough; losses from 0 to 1, in a fixed order."""
        assert self.delta is not None
        alpha = float(self.alpha)
        delta = float(self.delta)
        if not len(losses):
            return False
        spread = math.sqrt(alpha * (1 - alpha) * len(losses))
        share = min(1.0, (1 - alpha) * math.sqrt(-2 * math.log(delta)) / spread)
        return bool(capital_against_at_least(losses, alpha, np.array([share])).max() >= 1 / delta)

    def threshold(self, outcomes: Outcomes, groups: np.ndarray | None = None, unit: str = "groups") -> float:
        """The least threshold that keeps the guarantee; ``NOTHING``, which answers nothing, where no other does.

        Args:
            outcomes: of the calibration samples.
            groups: (S,) the place of each sample's group, counted from 0: the guarantee is about new groups.
            unit: what a group is called in messages.
        """
        if groups is None:
            return self._least(outcomes, self, "samples")
        if len(groups) == int(groups.max(initial=-1)) + 1 and self.group_share is None:
            # Groups of one sample each: their losses are those of samples, exactly.
            return self._least(outcomes, self, unit)
        return self.over_groups()._least(GroupOutcomes(outcomes, groups, self), self, unit)

    def over_groups(self) -> RiskBound:
        """The guarantee about losses of groups that makes this one true."""
        if self.group_share is not None:
            return RiskBound(1 - self.group_share, self.delta, self.of)
        return RiskBound(self.alpha, self.delta, self.of, _WHOLE)

    def _least(self, units: Outcomes | GroupOutcomes, asked: RiskBound, unit: str) -> float:
        """The least threshold whose units support the guarantee; ``asked`` is what it is for, in messages."""
        if len(units) < self.needed():
            raise DataError(self._too_few(len(units), asked, unit))
        return self._least_of_samples(units) if self.of == "samples" else self._least_of_answers(units)

    def _least_of_samples(self, units: Outcomes | GroupOutcomes) -> float:
        """The search among all thresholds that the scores tell apart: if one passes, so do all above it."""
        tried = units.thresholds()  # falling; the first, NOTHING, passes
        low = 0
        high = len(tried)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.passes(units, float(tried[middle])) else (low, middle)
        return float(tried[low])

    def _least_of_answers(self, units: Outcomes | GroupOutcomes) -> float:
        """The test of thresholds that one part chooses, on the other part, up to the first failure."""
        order = np.random.default_rng(0).permutation(len(units))
        cut = len(order) // _CHOOSING
        first = units.take(order[:cut])
        second = units.take(order[cut:])
        tried = first.thresholds()[1:]
        tried = tried[:: -(-len(tried) // _MOST_TESTED)]
        least = NOTHING
        for threshold in tried[self._start(first, tried, len(second)) :].tolist():
            if not self.passes(second, threshold):
                break
            least = threshold
        return least

    def _start(self, first: Outcomes | GroupOutcomes, tried: np.ndarray, number: int) -> int:
        """Where the first part expects the test of the second, of ``number`` units, to pass most surely."""
        if not len(first):
            return len(tried) - 1
        from scipy.stats import betabinom

        answers = first.answers_at(tried)
        false = first.loss_at(tried) / self.most
        expected = np.round(number * answers / len(first)).astype(np.int64)
        allowed = self._allowed_false(expected)
        passes = betabinom.cdf(allowed, expected, false + 0.5, answers - false + 0.5)
        return int(np.argmax(np.where(allowed >= 0, passes, 0.0)))

    def _allowed_false(self, number: np.ndarray) -> np.ndarray:
        """How many of so many units may lose all they can, by the binomial test; -1 where not even none is enough."""
        low = np.full(len(number), -1)
        high = number + 1
        while (high - low > 1).any():
            middle = (low + high) // 2
            passes = self.supported(np.maximum(middle, 0), number) & (middle >= 0)
            low = np.where(passes, middle, low)
            high = np.where(passes, high, middle)
        return low

    def enough(self, units: Outcomes | GroupOutcomes) -> int | None:
        """About how many units like these would support answers, where these support none; None: no number is in sight.

        Of the thresholds at which the share of false answers here is below alpha, the one that needs the fewest for a test to
        pass if that share is one standard error higher, since it is the lowest of many, and the test's own answers another.
        """
        tried = units.thresholds()[1:]
        tried = tried[:: -(-len(tried) // _MOST_TESTED)]
        answers = units.answers_at(tried)
        rate = (units.loss_at(tried) / self.most + 0.5) / (answers + 1)
        rate += np.sqrt(rate * (1 - rate) / (answers + 1))
        hopeful = (rate < float(self.alpha)) & (answers > 0)
        if self.of != "answers" or not hopeful.any():
            return None
        rate = rate[hopeful]
        share = answers[hopeful] / len(units)
        sizes = np.unique(np.geomspace(1, 1 << 20, 300).astype(np.int64))
        expected = sizes * rate[:, None]
        unlucky = np.ceil(expected + np.sqrt(expected * (1 - rate[:, None])))
        passes = self.supported(unlucky, np.broadcast_to(sizes, (len(rate), len(sizes))))
        least = np.where(passes.any(axis=1), sizes[passes.argmax(axis=1)], np.inf)
        number = float((least / share).min()) * _CHOOSING / (_CHOOSING - 1)
        return math.ceil(number) if math.isfinite(number) else None

    def _too_few(self, number: int, asked: RiskBound, unit: str) -> str:
        how = "" if self.delta is None else f" with confidence {float(1 - self.delta):g}"
        where = "" if unit == "samples" else f" on average over new {unit}"
        if asked.group_share is not None:
            where = f" in {float(asked.group_share):g} of new {unit}"
        return (
            f"{unit} must be at least {self.needed():,} to guarantee {asked}{where}{how}. Got {number:,}. Calibrate on more, "
            f"or ask for less: {number:,} {unit} support {self._possible(number, asked, unit)}."
        )

    def _possible(self, number: int, asked: RiskBound, unit: str) -> str:
        """What so many units without any loss support, in words."""
        testing = number if self.of == "samples" else number - number // _CHOOSING
        if self.delta is None:
            alpha = 1 / (number + 1)
        else:
            alpha = 1 - float(self.delta) ** (1 / testing) if testing else 1.0
        share = int(1000 * (1 - alpha)) / 1000
        if asked.group_share is not None:
            return f"a share of {unit} of up to {share:g}"
        if asked.most > 1:
            return f"a mean distance of {math.ceil(1000 * alpha * asked.most) / 1000:g} or more"
        return f"an accuracy of up to {share:g}"


class GroupOutcomes:
    """Groups in the place of samples: the loss of each as the threshold falls, as :class:`Outcomes` have it."""

    def __init__(self, outcomes: Outcomes, places: np.ndarray, bound: RiskBound) -> None:
        self.outcomes = outcomes
        self.places = places  # (S,) of each sample's group, counted from 0
        self.bound = bound  # what is guaranteed inside a group

    def __len__(self) -> int:
        return int(self.places.max(initial=-1)) + 1

    def take(self, groups: np.ndarray) -> GroupOutcomes:
        """The outcomes of some groups."""
        place = np.full(len(self), -1)
        place[groups] = np.arange(len(groups))
        rows = np.flatnonzero(place[self.places] >= 0)
        return GroupOutcomes(self.outcomes.take(rows), place[self.places[rows]], self.bound)

    def thresholds(self) -> np.ndarray:
        """Those of the samples."""
        return self.outcomes.thresholds()

    def losses(self, threshold: float) -> tuple[np.ndarray, np.ndarray]:
        """(G,) the loss of each group at a threshold, and whether it counts there."""
        bound = self.bound
        counted = np.ones(len(self.places))
        if bound.of == "answers":
            counted = (self.outcomes.answered >= threshold).astype(float)
        lost = np.bincount(self.places, weights=self.outcomes.losses(threshold), minlength=len(self))
        most = np.bincount(self.places, weights=counted, minlength=len(self)) * bound.most
        if bound.group_share is not None:  # whole numbers on both sides: exact
            broken = lost * bound.alpha.denominator > most * bound.alpha.numerator
            return broken.astype(np.int64), most > 0
        share = np.divide(lost, most, out=np.zeros(len(lost)), where=most > 0)
        return np.ceil(_WHOLE * share).astype(np.int64), most > 0

    def loss_at(self, thresholds: np.ndarray) -> np.ndarray:
        """The loss of all groups at each threshold."""
        return np.array([self.losses(t)[0].sum() for t in thresholds.tolist()])

    def counted_losses(self, threshold: float, of: str) -> np.ndarray:
        """The losses of the groups that count at a threshold."""
        losses, counts = self.losses(threshold)
        return losses[counts] if of == "answers" else losses

    def answers_at(self, thresholds: np.ndarray) -> np.ndarray:
        """How many groups count at each threshold."""
        return np.array([self.losses(t)[1].sum() for t in thresholds.tolist()])


def one_of_each(places: np.ndarray, seed: int) -> np.ndarray:
    """(G,) the row of one random sample of each group."""
    shuffled = np.random.default_rng(seed).permutation(len(places))
    return shuffled[np.unique(places[shuffled], return_index=True)[1]]


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


def share_of(name: str, value: float) -> Fraction:
    """A share between 0 and 1 as an exact fraction: 0.9 is nine tenths."""
    if not is_number(value) or not 0 < value < 1:
        raise ConfigError(f"{name} must be a number above 0 and below 1. Got {value!r}.")
    return Fraction(str(float(value)))


def _delta(confidence: float | None) -> Fraction | None:
    return None if confidence is None else 1 - share_of("confidence", confidence)


def _group_share(share: float | None) -> Fraction | None:
    return None if share is None else share_of("group_share", share)
