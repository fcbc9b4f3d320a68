"""Whether guarantees about new groups hold, whatever the groups are like.

    python evidence/keep.py groups/simulated benchmarks/group_guarantees.py     keeps both tables; some minutes on one core

First table: guarantees about samples. Each repetition calibrates on 40 groups and sees 40 new ones. A group has one of four
classes and 1 to `size` samples; their scores share a part of the variance, `alike`. "on average": mean share of false answers
in a new group, guaranteed at most 10%. "share of groups": new groups in which at most 20% of the samples get a false answer,
guaranteed at least 80%. "groups ignored": the first if groups are taken for samples: right over samples, but not over groups.
In brackets: standard errors.

Second table: guarantees about answers, with confidence 0.9, from 40 and 100 sites of 20 samples each, judged on 4,000 new
sites. Some sites get sure answers (p = 0.97), of which `false` are false; the others get unsure ones (p = 0.35), of which 65%
are. Where 60% of the sure ones are false no threshold keeps the guarantee; where 1% are, one does. "issued" is the share of
calibrations that answer anything; "false" what new sites that get answers then see, on average over these sites and
calibrations; "broken" the share of calibrations that break their guarantee: more than 10% false on average, or more than 10% in
over 20% of the sites that get answers. It must be at most 10%.
"""

from __future__ import annotations

import argparse

import numpy as np

from hace import Hierarchy, guaranteed_threshold
from hace.decisions import GuaranteedThreshold
from hace.hierarchy.derived import is_above

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])
FLAT = Hierarchy.flat(["husky", "beagle", "tabby", "siamese"])
GROUPS = 40
SITES = (
    (0.1, 0.6),
    (0.5, 0.6),
    (0.5, 0.01),
    (0.9, 0.01),
)  # share of sites with sure answers, false ones of these
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]


def draw(rng: np.random.Generator, size: int, alike: float) -> Drawn:
    """Scores, labels and groups."""
    group = np.repeat(np.arange(GROUPS), rng.integers(1, size + 1, GROUPS))
    y = rng.integers(4, size=GROUPS)[group]
    shared = np.sqrt(alike) * rng.normal(size=(GROUPS, 4))[group]
    z = 2 * (shared + np.sqrt(1 - alike) * rng.normal(size=(len(y), 4)))
    z[np.arange(len(y)), y] += 2.5
    return z, y, group


def shares(result: GuaranteedThreshold, z: np.ndarray, y: np.ndarray, group: np.ndarray) -> np.ndarray:
    """(G,) the share of each group's samples with a false answer."""
    answers = result.predict(z, TREE).nodes.numpy()
    false = (np.append(TREE.depths, 0)[answers] > 0) & ~is_above(TREE, answers, TREE.leaf_nodes[y])
    return np.bincount(group, weights=false) / np.bincount(group)


def about_samples(repetitions: int) -> None:
    """Print the first table."""
    print(
        "| group size | alike | on average (at most 10%) | share of groups (at least 80%) | groups ignored |"
    )
    print("| --- | --- | --- | --- | --- |")
    for size in (1, 10, 100, 1000):
        for alike in (0.0, 0.5, 0.95):
            rng = np.random.default_rng([size, int(100 * alike)])
            number = max(20, repetitions // (10 if size == 1000 else 1))
            each = []
            for _ in range(number):
                (z, y, group), new = draw(rng, size, alike), draw(rng, size, alike)
                mean = shares(guaranteed_threshold(z, y, TREE, 0.9, groups=group), *new).mean()
                most = shares(guaranteed_threshold(z, y, TREE, 0.8, groups=group, group_share=0.8), *new)
                alone = shares(guaranteed_threshold(z, y, TREE, 0.9), *new).mean()
                each.append((mean, (most <= 0.2).mean(), alone))
            values, errors = np.mean(each, axis=0), np.std(each, axis=0) / np.sqrt(number)
            cells = [f"{100 * values[i]:.1f}% ({100 * errors[i]:.1f})" for i in (0, 1)]
            print(f"| 1 to {size} | {alike:g} | {' | '.join(cells)} | {100 * values[2]:.1f}% |", flush=True)


def sites(rng: np.random.Generator, number: int, sure: float, false: float) -> Drawn:
    """Probabilities, labels and sites."""
    group = np.repeat(np.arange(number), 20)
    is_sure = (rng.random(number) < sure)[group]
    y = rng.integers(4, size=len(group))
    wrong = rng.random(len(y)) < np.where(is_sure, false, 0.65)
    named = np.where(wrong, (y + rng.integers(1, 4, len(y))) % 4, y)
    mass = np.where(is_sure, 0.97, 0.35)
    p = np.tile(((1 - mass) / 3)[:, None], 4)
    p[np.arange(len(y)), named] = mass
    return p, y, group


def answer_shares(result: GuaranteedThreshold, p: np.ndarray, y: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The share of false answers of each site that gets any."""
    labels = result.predict(p, FLAT, kind="probs").labels.numpy()
    answered = np.bincount(group, weights=labels >= 0)
    false = np.bincount(group, weights=(labels >= 0) & (labels != y))
    return false[answered > 0] / answered[answered > 0]


def about_answers(repetitions: int) -> None:
    """Print the second table."""
    print("\n| guarantee | sites | sure sites | false there | issued | false | broken |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for group_share, title in ((None, "90% true, on average"), (0.8, "90% true, in 80% of sites")):
        for number in (40, 100):
            for sure, false in SITES:
                rng = np.random.default_rng([number, int(100 * sure), int(100 * false)])
                new = sites(rng, 4000, sure, false)
                means, broken = [], 0
                for _ in range(repetitions):
                    p, y, group = sites(rng, number, sure, false)
                    guarantee = guaranteed_threshold(
                        p, y, FLAT, 0.9, 0.9, "answers", groups=group, group_share=group_share, kind="probs"
                    )
                    if guarantee.is_silent:
                        continue
                    each = answer_shares(guarantee, *new)
                    means.append(each.mean())
                    broken += each.mean() > 0.1 if group_share is None else (each > 0.1 + 1e-9).mean() > 0.2
                seen = f"{100 * np.mean(means):.1f}%" if means else ""
                print(
                    f"| {title} | {number} | {100 * sure:.0f}% | {100 * false:.0f}% | {100 * len(means) / repetitions:.0f}% "
                    f"| {seen} | {100 * broken / repetitions:.1f}% |",
                    flush=True,
                )


def main() -> None:
    """Simulate and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=200)
    args = parser.parse_args()
    about_samples(args.repetitions)
    about_answers(args.repetitions)


if __name__ == "__main__":
    main()
