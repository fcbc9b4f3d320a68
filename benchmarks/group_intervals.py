"""How often 95% intervals of the difference of two methods over groups of samples hold the truth, 0.

    python evidence/keep.py intervals/groups benchmarks/group_intervals.py     # keeps both tables; an hour on one core

Groups have 20 samples each ("equal"), or sizes from a log-normal law with sigma 1 and median 12. Two methods of one law answer
them; `alike` is the share of a sample's difficulty, and of what tells the methods apart, that its group has in common.

First table: `paired_interval` of one seed. "accuracy" is a mean of right answers; "score" a mean of normal scores; "severity" a
ratio of sums, distance over mistakes. "as G - 1" is the same interval with G - 1 degrees of freedom, "ignored" the one over
samples.

Second table: `compare`, end to end, on scores over four classes of two groups: top-1, severity, and AURC, which is no ratio of
sums. "bootstrap" is the percentile interval of 200 draws of whole groups, of top-1.

Bar: 93 to 97%.
"""

from __future__ import annotations

import argparse

import numpy as np

from hace import Hierarchy, compare, evaluate
from hace.metrics.intervals import Interval, paired_interval

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])
GROUPS, SIZES, ALIKE = (10, 15, 30), ("equal", "log-normal"), (0.0, 0.2, 0.5, 0.9)
FIGURES = ("accuracy", "score", "severity")
DRAWS = 200
Method = tuple[np.ndarray, np.ndarray | None]  # (S,) numerators and denominators


def places_of(rng: np.random.Generator, groups: int, sizes: str) -> np.ndarray:
    """(S,) the group of each sample."""
    each = np.full(groups, 20)
    if sizes == "log-normal":
        each = np.maximum(1, np.round(np.exp(rng.normal(np.log(12), 1.0, groups)))).astype(int)
    return np.repeat(np.arange(groups), each)


def methods(rng: np.random.Generator, place: np.ndarray, alike: float, figure: str) -> list[Method]:
    """Two methods of one law on the same samples."""
    groups, samples = place.max() + 1, len(place)
    own, common = np.sqrt(1 - alike), np.sqrt(alike)
    hard = own * rng.standard_normal(samples) + common * rng.standard_normal(groups)[place]
    result: list[Method] = []
    for _ in range(2):
        skill = common * rng.standard_normal(groups)[place] + own * rng.standard_normal(samples)
        if figure == "score":
            result.append((hard + skill, None))
            continue
        right = hard + 0.5 * skill > -0.4
        if figure == "accuracy":
            result.append((right, None))
            continue
        far = rng.random(samples) < 0.35 + 0.3 * np.tanh(common * rng.standard_normal(groups))[place]
        result.append(((1.0 + far) * ~right, (~right).astype(float)))
    return result


def holds(result: Interval, freedom: float) -> bool:
    """Whether an interval with these degrees of freedom holds 0."""
    from scipy.special import stdtrit

    return abs(result.value) <= result.error * stdtrit(freedom, 0.975)


def paired(repetitions: int) -> None:
    """Print the first table."""
    print("| figure | groups | sizes | alike | covered | as G - 1 | ignored |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for figure in FIGURES:
        for sizes in SIZES:
            for groups in GROUPS:
                for alike in ALIKE:
                    rng = np.random.default_rng([FIGURES.index(figure), groups, int(100 * alike), len(sizes)])
                    covered = []
                    for _ in range(repetitions):
                        place = places_of(rng, groups, sizes)
                        one, two = methods(rng, place, alike, figure)
                        below = None if one[1] is None or two[1] is None else ([one[1]], [two[1]])
                        over = paired_interval([one[0]], [two[0]], below, groups=place)
                        alone = paired_interval([one[0]], [two[0]], below)
                        covered.append(
                            (not over.excludes_zero, holds(over, groups - 1), not alone.excludes_zero)
                        )
                    cells = " | ".join(f"{100 * share:.1f}%" for share in np.mean(covered, axis=0))
                    print(f"| {figure} | {groups} | {sizes} | {alike:g} | {cells} |", flush=True)


def scores(rng: np.random.Generator, place: np.ndarray, y: np.ndarray, hard: np.ndarray) -> np.ndarray:
    """Logits over the four classes of a method; a group's samples are alike to it, too."""
    groups = place.max() + 1
    z = rng.normal(size=(len(y), 4)) + 0.7 * rng.normal(size=(groups, 4))[place]
    z[np.arange(len(y)), y] += 1.5 + hard + 0.4 * rng.normal(size=groups)[place]
    return z


def percentile(rng: np.random.Generator, gap: np.ndarray, place: np.ndarray) -> bool:
    """Whether the percentile interval of a bootstrap over groups holds 0."""
    groups = place.max() + 1
    drawn = rng.multinomial(groups, np.full(groups, 1 / groups), size=DRAWS)
    means = drawn @ np.bincount(place, weights=gap) / (drawn @ np.bincount(place))
    low, high = np.quantile(means, (0.025, 0.975))
    return bool(low <= 0 <= high)


def whole(repetitions: int) -> None:
    """Print the second table."""
    keys = (("leaves", "top-1"), ("leaves", "severity"), ("selection", "AURC"))
    print("\n| groups | sizes | top-1 | severity | AURC | bootstrap |")
    print("| --- | --- | --- | --- | --- | --- |")
    for sizes in SIZES:
        for groups in GROUPS:
            rng = np.random.default_rng([groups, len(sizes)])
            covered = []
            for _ in range(repetitions):
                place = places_of(rng, groups, sizes)
                y = rng.integers(4, size=len(place))
                hard = rng.normal(size=groups)[place]
                one, two = (evaluate(scores(rng, place, y, hard), y, TREE, groups=place) for _ in range(2))
                differences = compare(one, two)
                held = [not differences[key].excludes_zero for key in keys]
                right = [e.samples.answers == e.samples.truth for e in (one, two)]
                covered.append((*held, percentile(rng, right[1] * 1.0 - right[0], place)))
            cells = " | ".join(f"{100 * share:.1f}%" for share in np.mean(covered, axis=0))
            print(f"| {groups} | {sizes} | {cells} |", flush=True)


def main() -> None:
    """Simulate and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5000)
    args = parser.parse_args()
    paired(args.repetitions)
    whole(args.repetitions)


if __name__ == "__main__":
    main()
