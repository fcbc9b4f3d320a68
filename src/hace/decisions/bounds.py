"""What a threshold guarantees about new samples, and the least threshold that calibration samples support.

Calibration sample i has the loss L_i(t) at the threshold t, from 0 to a known most, and never more at a greater t. With
n samples, alpha the guaranteed mean loss as a share of the most, W(t) = sum L_i(t) / most, and delta = 1 - confidence:

    samples, without confidence   (W(t) + 1) / (n + 1) <= alpha                  conformal risk control
    samples, with confidence      P(Bin(n, alpha) <= W(t)) <= delta              Clopper-Pearson, where losses are 0 or 1
                                  the bound of Hoeffding and Bentkus             where they are distances
    answers, with confidence      P(Bin(m(t), alpha) <= W(t)) <= delta           of the m(t) samples answered at t

Where no threshold up to 1 is supported, the one above 1, at which nothing is answered, keeps the guarantee. So every calibration
of enough samples gives a threshold, and the guarantee is not about the lucky ones among them.

For `samples` the expected loss falls as t grows, so the least t that passes, searched down from the safest, is valid: the
search errs only if it passes at the greatest t whose expected loss is above alpha, which has probability delta.

For `answers` the share of false answers need not fall. The m(t) answers at a t fixed in advance are a sample of all answers
at t, so the binomial test of that t is exact, but a t chosen by looking is not fixed. Hence one fifth of the samples, drawn
by a fixed seed, chooses a list of thresholds, from one that it finds safe down to 0, and the other four fifths test them in
this order up to the first failure. Given the first part the list is fixed. To accept a threshold that breaks the guarantee,
the search must first pass the test of the first such threshold in the list, which has probability at most delta. No
assumption on the shape of the curve is needed (fixed-sequence testing; Angelopoulos et al. 2021, "Learn then Test").

References: Angelopoulos et al. 2022, "Conformal Risk Control"; Bates et al. 2021, "Distribution-Free, Risk-Controlling
Prediction Sets"; Geifman and El-Yaniv 2017, "Selective Classification for Deep Neural Networks".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hace.checks import is_number
from hace.decisions.threshold_rules import NOTHING, Outcomes
from hace.errors import ConfigError, DataError

GUARANTEES = ("samples", "answers")
_CHOOSING = 5  # one sample in so many chooses the thresholds that the others test


@dataclass(frozen=True)
class RiskBound:
    """What a threshold guarantees."""

    alpha: Fraction  # the mean loss it allows, as a share of the greatest loss
    delta: Fraction | None  # the probability of breaking the guarantee; None for a guarantee on average
    of: str  # `"samples"` or `"answers"`
    most: int = 1  # the greatest loss: 1 for false answers, or a distance

    @classmethod
    def of_accuracy(cls, accuracy: float, confidence: float | None, of: str) -> RiskBound:
        """A guarantee about the share of false answers, in exact fractions: 1 - 0.9 is a tenth."""
        if of not in GUARANTEES:
            raise ConfigError(f"of must be 'samples' or 'answers'. Got {of!r}.")
        alpha = 1 - share_of("accuracy", accuracy)
        if of == "answers" and confidence is None:
            raise ConfigError(
                "of='answers' needs confidence: its guarantee is a ratio and holds with a probability, not on average. "
                "Give confidence=0.9, or of='samples'."
            )
        return cls(alpha, _delta(confidence), of)

    @classmethod
    def of_distance(cls, at_most: float, confidence: float | None, most: int) -> RiskBound:
        """A guarantee about the mean distance of false answers, where no distance is above ``most``."""
        if not is_number(at_most) or not 0 < at_most < most:
            raise ConfigError(
                f"at_most must be a distance above 0 and below {most}, the greatest in this hierarchy. Got {at_most!r}."
            )
        return cls(Fraction(str(float(at_most))) / most, _delta(confidence), "samples", most)

    def __str__(self) -> str:
        if self.most > 1:
            return f"a mean distance of at most {float(self.alpha * self.most):.15g}"
        return f"{float(1 - self.alpha):.15g} of the {self.of}"

    def needed(self) -> int:
        """The least number of samples that allows a guarantee at all: with no loss in any of them."""
        if self.delta is None:
            return math.ceil(1 / self.alpha) - 1
        kept = math.log(1 - self.alpha) if self.alpha > 0.5 else math.log1p(-self.alpha)
        number = max(1, math.ceil(math.log(self.delta) / kept * (1 - 1e-12)))  # (1 - alpha)^n <= delta
        while number < 1 << 20 and not self.holds(np.array([0]), np.array([number]))[0]:  # rounding
            number += 1
        # The least n whose n - n // 5 are as many.
        return number if self.of == "samples" else number + (number - 1) // (_CHOOSING - 1)

    def holds(self, loss: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Whether so much loss in all, of so many samples, supports the guarantee."""
        if self.delta is None:
            sizes, place = np.unique(number, return_inverse=True)
            allowed = [math.floor(self.alpha * self.most * (n + 1)) - self.most for n in sizes.tolist()]
            return loss <= np.array(allowed)[place]  # losses are whole numbers, so this is exact
        from scipy.special import bdtr

        alpha, share = float(self.alpha), loss / self.most
        bound = bdtr(np.ceil(share), number.astype(np.int64), alpha)
        if self.most > 1:
            bound = np.minimum(math.e * bound, np.exp(-number * _divergence(share / number, alpha)))
        return bound <= float(self.delta)

    def threshold(self, outcomes: Outcomes) -> float:
        """The least threshold that keeps the guarantee; ``NOTHING``, which answers nothing, where no other does."""
        needed, number = self.needed(), len(outcomes)
        if number < needed:
            how = "" if self.delta is None else f" with confidence {float(1 - self.delta):g}"
            raise DataError(
                f"scores must hold at least {needed:,} samples to guarantee {self}{how}. Got {number}. Calibrate on more "
                "samples, or ask for less."
            )
        return self._of_samples(outcomes) if self.of == "samples" else self._of_answers(outcomes)

    def _of_samples(self, outcomes: Outcomes) -> float:
        """The search over every threshold that the scores tell apart."""
        tried = outcomes.thresholds()
        return _last_kept(tried, self.holds(outcomes.loss_at(tried), np.full(len(tried), len(outcomes))))

    def _of_answers(self, outcomes: Outcomes) -> float:
        """The test of thresholds that one part chooses, on the other part."""
        order = np.random.default_rng(0).permutation(len(outcomes))
        cut = len(order) // _CHOOSING
        first, second = outcomes.take(order[:cut]), outcomes.take(order[cut:])
        tried = first.thresholds()[1:]
        tried = tried[self._start(first, tried, len(second)) :]
        return _last_kept(tried, self.holds(second.loss_at(tried), second.answers_at(tried)))

    def _start(self, first: Outcomes, tried: np.ndarray, number: int) -> int:
        """Where the first part expects the test of the second, of ``number`` samples, to pass most surely."""
        if not len(first):
            return len(tried) - 1
        from scipy.stats import betabinom, binom

        assert self.delta is not None
        alpha, delta = float(self.alpha), float(self.delta)
        answers, false = first.answers_at(tried), first.loss_at(tried)
        expected = np.round(number * answers / len(first))
        allowed = binom.ppf(delta, expected, alpha)
        allowed -= binom.cdf(allowed, expected, alpha) > delta
        passes = betabinom.cdf(allowed, expected, false + 0.5, answers - false + 0.5)
        return int(np.argmax(np.where(allowed >= 0, passes, 0.0)))


def _last_kept(tried: np.ndarray, kept: np.ndarray) -> float:
    """The last threshold before the first that is not kept."""
    last = (len(kept) if kept.all() else int(np.argmin(kept))) - 1
    return NOTHING if last < 0 else float(tried[last])


def _divergence(mean: np.ndarray, alpha: float) -> np.ndarray:
    """KL(Bernoulli(min(mean, alpha)) || Bernoulli(alpha))."""
    from scipy.special import rel_entr

    mean = np.minimum(mean, alpha)
    return rel_entr(mean, alpha) + rel_entr(1 - mean, 1 - alpha)


def share_of(name: str, value: float) -> Fraction:
    """A share between 0 and 1 as an exact fraction: 0.9 is nine tenths."""
    if not is_number(value) or not 0 < value < 1:
        raise ConfigError(f"{name} must be a number above 0 and below 1. Got {value!r}.")
    return Fraction(str(float(value)))


def _delta(confidence: float | None) -> Fraction | None:
    return None if confidence is None else 1 - share_of("confidence", confidence)
