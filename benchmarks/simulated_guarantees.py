"""Simulations of what guaranteed thresholds guarantee: python benchmarks/simulated_guarantees.py

    python evidence/keep.py guarantees/simulated benchmarks/simulated_guarantees.py  # keeps both tables; some minutes

Calibration samples are drawn independently from a population of 20,000, on which false answers are then counted: that is the
risk a guarantee is about, without the luck of a test set.

First table: ten flat classes, scores of float32 that saturate, so that every answer has mass exactly 1, and wrong labels. No
threshold up to 1 excludes a false answer. "answers" is the share of calibrations whose threshold answers anything. If the
others were refused, only the lucky ones would be left: "false there" is what they get. "false" and "broken" are over all
calibrations, those that answer nothing included: what is guaranteed.

Second table: 60 classes in a tree of three levels, an over-confident model, at most 10% of all samples with a false answer, on
average. "fixed": each of four rules, chosen beforehand. "most detailed rule": of the four, the one whose answers to the
calibration samples carry most information. "most detailed model": the same among eight models of equal quality, with the rule
"threshold". "strictest guarantee": of six guarantees, 80 to 96% of samples, the strictest that answers half of the calibration
samples; 10% plus what its false answers exceed its own guarantee by. In brackets: standard errors.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from hace import Hierarchy
from hace.decisions.bounds import RiskBound
from hace.decisions.ladders import NOTHING, Outcomes, ladder_of, outcomes_of
from hace.decisions.scores import Scores
from hace.hierarchy.derived import leaf_counts

POPULATION = 20_000
SATURATED = (  # accuracy, confidence, of, calibration samples, share of wrong labels
    (0.99, None, "samples", 99, 0.03),
    (0.95, 0.9, "answers", 60, 0.08),
)
RULES = {
    "threshold": ("threshold", True),
    "most informative": ("threshold", False),
    "climb": ("climb", True),
    "hedge": ("hedge", True),
}
REACH = 0.5  # of the samples must be answered
MODELS = 8
ACCURACIES = (0.8, 0.84, 0.88, 0.9, 0.92, 0.96)


def saturated(noise: float, seed: int) -> Outcomes:
    """Ten flat classes, each answer of mass 1."""
    rng = np.random.default_rng(seed)
    said = rng.integers(0, 10, POPULATION)
    wrong = np.arange(POPULATION) < noise * POPULATION
    truth = np.where(wrong, (said + rng.integers(1, 10, POPULATION)) % 10, said)
    scores = 40 * torch.nn.functional.one_hot(torch.from_numpy(said), 10).float()
    return outcomes_of(Scores(scores, Hierarchy.flat([str(i) for i in range(10)])), truth)


def risk(result: Outcomes, threshold: float, of: str) -> float:
    """The share of false answers in the population."""
    at = np.array([threshold])
    number = len(result) if of == "samples" else int(result.answers_at(at)[0])
    return float(result.loss_at(at)[0]) / max(1, number)


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def lucky(draws: int) -> None:
    """Print the first table."""
    print("| guarantee | samples | wrong labels | answers | false there | false | broken |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for accuracy, confidence, of, number, noise in SATURATED:
        result, rng = saturated(noise, 0), np.random.default_rng(1)
        guarantee, risks, saying = RiskBound.of_accuracy(accuracy, confidence, of), [], []
        for _ in range(draws):
            threshold = guarantee.threshold(result.take(rng.integers(0, POPULATION, number)))
            risks.append(risk(result, threshold, of))
            saying.append(threshold != NOTHING)
        values, answered = np.array(risks), np.array(saying)
        sure = "on average" if confidence is None else f"confidence {confidence:g}"
        broken = "" if confidence is None else percent(float((values > 1 - accuracy).mean()))
        print(
            f"| {accuracy:g} of the {of}, {sure} | {number} | {percent(noise, 0)} | {percent(answered.mean())} "
            f"| {percent(values[answered].mean())} | {percent(values.mean(), 2)} | {broken} |",
            flush=True,
        )


def tree() -> tuple[Hierarchy, Scores, np.ndarray]:
    """Sixty classes; truths by softmax(z), scores 1.5 z."""
    h = Hierarchy.from_paths([(f"a{i // 12}", f"b{i // 4}", f"c{i}") for i in range(60)])
    rng = np.random.default_rng(5)
    group = np.repeat(rng.normal(size=(POPULATION, 5)) * 2, 12, axis=1)
    z = (
        group
        + np.repeat(rng.normal(size=(POPULATION, 15)) * 2, 4, axis=1)
        + rng.normal(size=(POPULATION, 60)) * 2
    )
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    truth = (p.cumsum(axis=1) > rng.random((POPULATION, 1))).argmax(axis=1)
    order = [h.label(f"c{i}") for i in range(60)]
    scores = np.empty_like(z)
    scores[:, order] = 1.5 * z
    return h, Scores(scores, h), np.array(order)[truth]


class Candidate:
    """A rule on the scores of a model."""

    def __init__(self, scores: Scores, truth: np.ndarray, form: tuple[str, bool]) -> None:
        h = scores.hierarchy
        self.ladder = ladder_of(scores, *form)
        self.outcomes = self.ladder.outcomes(scores.truths(truth))
        self.detail = np.append(1 - np.log2(leaf_counts(h)) / np.log2(h.num_leaves), 0.0)

    def calibrated(self, rows: np.ndarray, guarantee: RiskBound) -> tuple[float, float]:
        """The information of the answers to the calibration samples, and the share of false ones in the population."""
        threshold = guarantee.threshold(self.outcomes.take(rows))
        detail = self.detail[self.ladder.answers(threshold)][rows].mean()
        return float(detail), risk(self.outcomes, threshold, "samples")


def strictest(result: Outcomes, rows: np.ndarray, guarantees: dict[float, RiskBound]) -> float:
    """What the strictest guarantee that answers enough exceeds its own share of false answers by."""
    part = result.take(rows)
    limits = {accuracy: guarantee.threshold(part) for accuracy, guarantee in guarantees.items()}
    enough = [a for a, t in limits.items() if part.answers_at(np.array([t]))[0] >= REACH * len(rows)]
    best = max(enough, default=ACCURACIES[0])
    return risk(result, limits[best], "samples") - (1 - best)


def chosen(draws: int) -> None:
    """Print the second table."""
    h, scores, truth = tree()
    noise = np.random.default_rng(7).normal(size=(MODELS, *scores.data.shape))
    rules = [Candidate(scores, truth, form) for form in RULES.values()]
    models = [Candidate(Scores(scores.data + own, h), truth, RULES["threshold"]) for own in noise]
    guarantees = {a: RiskBound.of_accuracy(a, None, "samples") for a in ACCURACIES}
    print("\n| samples | fixed | most detailed rule | most detailed model | strictest guarantee |")
    print("| --- | --- | --- | --- | --- |")
    for number in (49, 99, 499):  # which leave no room between a guarantee and what is proven
        rng, fixed, result = np.random.default_rng(2), [], []
        for _ in range(draws):
            rows = rng.integers(0, POPULATION, number)
            each = [rule.calibrated(rows, guarantees[0.9]) for rule in rules]
            other = [model.calibrated(rows, guarantees[0.9]) for model in models]
            fixed.append([false for _, false in each])
            result.append((max(each)[1], max(other)[1], 0.1 + strictest(rules[0].outcomes, rows, guarantees)))
        means, values = np.mean(fixed, axis=0), np.array(result)
        errors = values.std(axis=0) / np.sqrt(draws)
        shown = [f"{percent(v, 2)} ({100 * e:.2f})" for v, e in zip(values.mean(axis=0), errors, strict=True)]
        print(
            f"| {number} | {100 * means.min():.2f} to {percent(means.max(), 2)} | {' | '.join(shown)} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5000, help="calibrations of each case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lucky(options.draws)
    chosen(options.draws)


if __name__ == "__main__":
    main()
