"""How often 95% intervals of a difference over seeds and samples hold the truth, and how often Holm's correction errs.

    python benchmarks/interval_coverage.py --out benchmarks/interval_coverage.csv

The difference of two methods on K seeds and M samples is simulated with a true mean of 0: a seed's part, a sample's part and a
rest of each pair, normal, with a variance of the mean of 1 in all. `share` of it is the seeds'; of what is left, `rest` is that
of the pairs. `covered` is the share of intervals that hold 0, `if known` the same if the error were known and not estimated.
`errs` is the share of families of 45 independent comparisons without any difference in which Holm's correction finds one.
"Answers" are 0/1: two methods of the same law, each right on a sample with a probability that depends on sample and seed.

`--check` makes the table of an independent check: shares, sample sizes and distributions on which the estimator's constants
were not chosen, and groups of samples (10, 30 and 100 of them, alike inside), with the interval over seeds and groups.

Bars: 93 to 97% covered where at most 0.6 of the samples' part is the pairs' (runs of one method disagree on some samples, never
on all), errs at most 6%.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hace.metrics.intervals import p_value, paired_interval

SEEDS, SHARES, RESTS = (3, 5, 10), (0.0, 0.3, 0.66, 0.8), (0.0, 0.3, 0.6)
FAMILY, SAMPLES = 45, 200
COLUMNS = ("kind", "seeds", "share", "rest", "repetitions", "covered", "if known", "families", "errs")
CHECKED = ("kind", "seeds", "share", "rest", "repetitions", "covered", "if known", "as if no groups")
Draw = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]


def normal(seeds: int, share: float, rest: float) -> Draw:
    """Differences (K, M) of two methods, the second all 0; the variance of their mean is 1."""
    a, b, e = share * seeds, (1 - share) * (1 - rest) * SAMPLES, (1 - share) * rest * seeds * SAMPLES

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        result = np.sqrt(e) * rng.standard_normal((seeds, SAMPLES)) if e else np.zeros((seeds, SAMPLES))
        result += np.sqrt(a) * rng.standard_normal((seeds, 1)) + np.sqrt(b) * rng.standard_normal(SAMPLES)
        return result, np.zeros_like(result)

    return draw


def answers(seeds: int, share: float) -> Draw:
    """Right and wrong answers (K, M) of two methods of one law; ``share`` sets how far seeds differ."""

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        hard = rng.standard_normal(SAMPLES)
        results = []
        for _ in range(2):
            own = hard + 0.4 * rng.standard_normal(SAMPLES) + share * 0.2 * rng.standard_normal((seeds, 1))
            results.append(own + 0.3 * rng.standard_normal((seeds, SAMPLES)) > -0.8)
        return results[0], results[1]

    return draw


def odd(seeds: int, share: float, rest: float, samples: int, law: str) -> Draw:
    """The same with other distributions: heavy tails (Student's t with 5 degrees of freedom), or skewed (exponential)."""

    def noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
        return (
            rng.standard_t(5, shape) / np.sqrt(5 / 3)
            if law == "heavy tails"
            else rng.standard_exponential(shape) - 1
        )

    a, b, e = share * seeds, (1 - share) * (1 - rest) * samples, (1 - share) * rest * seeds * samples

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        result = np.sqrt(e) * noise(rng, seeds, samples)
        result += np.sqrt(a) * noise(rng, seeds, 1) + np.sqrt(b) * noise(rng, 1, samples)
        return result, np.zeros_like(result)

    return draw


def grouped(seeds: int, groups: int, alike: float) -> tuple[Draw, np.ndarray]:
    """Right and wrong answers of two methods of one law on groups of 1 to 40 samples whose difficulty is ``alike`` inside."""
    sizes = np.random.default_rng(groups).integers(1, 41, groups)
    place = np.repeat(np.arange(groups), sizes)
    between = 0.05 if seeds > 1 else 0.0  # of one seed, the interval is over groups alone

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        hard = np.sqrt(1 - alike) * rng.standard_normal(len(place))
        results = []
        for _ in range(2):
            own = hard + np.sqrt(alike) * rng.standard_normal((seeds, groups))[:, place] * 0.5
            own = (
                own
                + np.sqrt(alike) * rng.standard_normal(groups)[place]
                + between * rng.standard_normal((seeds, 1))
            )
            results.append(own + 0.3 * rng.standard_normal((seeds, len(place))) > -0.8)
        return results[0], results[1]

    return draw, place


def check_rows(repetitions: int) -> list[list[str]]:
    """The table of the independent check."""
    cases = [
        (law, k, f"{share:g}", f"{rest:g}", odd(k, share, rest, samples, law), None)
        for law, samples in (("heavy tails", 300), ("skewed", 300))
        for k in (4, 7)
        for share in (0.15, 0.5, 0.72)
        for rest in (0.2, 0.5)
    ]
    for groups in (10, 30, 100):
        for k in (1, 5):
            for alike in (0.2, 0.9):
                draw, place = grouped(k, groups, alike)
                cases.append((f"{groups} groups", k, f"alike {alike:g}", "", draw, place))
    results = []
    for number, (kind, k, share, rest, draw, place) in enumerate(cases):
        covered, known = coverage(draw, repetitions, 1000 + number, place)
        alone = "" if place is None else f"{coverage(draw, repetitions, 1000 + number)[0]:.3f}"
        results.append([kind, str(k), share, rest, str(repetitions), f"{covered:.3f}", f"{known:.3f}", alone])
        print("  ".join(f"{cell:>12}" for cell in results[-1]), file=sys.stderr, flush=True)
    return results


def coverage(
    draw: Draw, repetitions: int, seed: int = 0, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """The share of intervals that hold 0, and of those with the normal quantile."""
    rng, held, known = np.random.default_rng([1, seed]), 0, 0
    for _ in range(repetitions):
        difference = paired_interval(*draw(rng), groups=groups)
        held += not difference.excludes_zero
        known += abs(difference.value) <= 1.959964 * difference.error
    return held / repetitions, known / repetitions


def family_error(draw: Draw, families: int, seed: int = 0) -> float:
    """The share of families in which the smallest of Holm's p-values is below 5%."""
    rng, wrong = np.random.default_rng([2, seed]), 0
    for _ in range(families):
        intervals = [paired_interval(*draw(rng)) for _ in range(FAMILY)]
        least = min(intervals, key=p_value)  # Holm's first step decides
        wrong += p_value(least) * FAMILY < 0.05
    return wrong / families


def rows(repetitions: int, families: int) -> list[list[str]]:
    """The table."""
    cases = [
        ("normal", k, share, f"{rest:g}", normal(k, share, rest))
        for k in SEEDS
        for share in SHARES
        for rest in (RESTS if share < 1 else (0.0,))
    ]
    cases += [("answers", k, share, "", answers(k, share)) for k in SEEDS for share in (0.0, 1.0)]
    results = []
    for number, (kind, k, share, rest, draw) in enumerate(cases):
        covered, known = coverage(draw, repetitions, number)
        errs = family_error(draw, families, number)
        line = [
            kind,
            k,
            f"{share:g}",
            rest,
            repetitions,
            f"{covered:.3f}",
            f"{known:.3f}",
            families,
            f"{errs:.3f}",
        ]
        results.append([str(cell) for cell in line])
        print("  ".join(f"{cell:>9}" for cell in results[-1]), file=sys.stderr, flush=True)
    return results


def main() -> None:
    """Simulate and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5000)
    parser.add_argument("--families", type=int, default=1000)
    parser.add_argument("--check", action="store_true", help="the independent check instead")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    columns = CHECKED if args.check else COLUMNS
    table = check_rows(args.repetitions) if args.check else rows(args.repetitions, args.families)
    with args.out.open("w", newline="", encoding="utf-8") if args.out else sys.stdout as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *table])


if __name__ == "__main__":
    main()
