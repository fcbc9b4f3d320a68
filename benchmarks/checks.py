"""Whether checks of a guarantee raise false alarms at their level, and whether they see what is wrong.

    python evidence/keep.py checks/simulated benchmarks/checks.py simulated --repetitions 500
    python evidence/keep.py checks/frogs benchmarks/checks.py frogs FOLDER --repetitions 60
    python evidence/keep.py checks/birds benchmarks/checks.py birds FOLDER --repetitions 60

`simulated`: new samples, or groups, of the same source as those of the calibration, so every alarm is false; the labels of all
of them arrive one by one and are looked at each time. `frogs`: recordings are new; guarantees are calibrated on random
syllables, and on recordings. `birds`: CUB-200 features; half of the species become eight times as frequent as the others. A
check has level 0.05. Columns are the mean share of false answers, and the shares of repetitions with these states.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hace import Hierarchy, check, fit_temperature, guaranteed_threshold, nearest_similarity, read_hierarchy
from hace.decisions import Scores
from hace.decisions.check import BROKEN, HOLDS
from hace.decisions.frequencies import estimate_frequencies, matching_rows
from hace.decisions.ladders import outcomes_of
from hace.decisions.shift import Profile

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])
Row = tuple[str, str, str, float, float, float, float]


def checked(
    h: Hierarchy, sure: Any, seen: Profile, z: np.ndarray, y: np.ndarray, **new: Any
) -> Iterator[tuple[str, float, float]]:
    """The state of a check without labels and with all of them, the share of false answers and of answers."""
    outcomes = outcomes_of(Scores(z, h), y, rule=sure.rule)
    false, said = outcomes.losses(sure.threshold), outcomes.answered >= sure.threshold
    if "groups" in new:
        place = np.unique(new["groups"], return_inverse=True)[1]
        rate = (np.bincount(place, weights=false) / np.bincount(place)).mean()
    else:
        rate = false.mean()
    for target in (None, y):
        yield check(sure, seen, z, h, target=target, **new).state, float(rate), float(said.mean())


def simulated(args: argparse.Namespace) -> Iterator[Row]:
    def draw(rng: np.random.Generator, groups: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        group = np.repeat(np.arange(groups), rng.integers(1, size + 1, groups))
        y = rng.integers(4, size=groups)[group]
        z = 1.4 * (rng.normal(size=(groups, 4))[group] + rng.normal(size=(len(y), 4)))
        z[np.arange(len(y)), y] += 2.5
        return z, y, group

    for name, groups, size, options in (
        ("100 samples, on average", 100, 1, {}),
        ("500 samples, on average", 500, 1, {}),
        ("500 samples, confidence 0.9", 500, 1, {"confidence": 0.9}),
        ("500 samples, answers, confidence 0.9", 500, 1, {"confidence": 0.9, "of": "answers"}),
        ("40 groups, on average", 40, 10, {}),
        ("40 groups, in 0.8 of them", 40, 10, {"group_share": 0.8}),
    ):
        for i in range(args.repetitions):
            rng = np.random.default_rng([i, groups, size])
            (z, y, g), (z2, y2, g2) = draw(rng, groups, size), draw(rng, 300 if size == 1 else 60, size)
            by = {"groups": g} if size > 1 else {}
            sure = guaranteed_threshold(z, y, TREE, 0.8, **by, **options)
            seen = Profile.of(z, TREE, groups=g)
            new = {"groups": g2} if size > 1 else {}
            for labels, made in zip(("none", "all"), checked(TREE, sure, seen, z2, y2, **new), strict=True):
                yield name, "same source", labels, *made, i


def frog_scores(
    x: np.ndarray, y: np.ndarray, h: Hierarchy, rows: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Scores of other rows by logistic regression on these."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1.0, max_iter=200).fit(x[rows], y[rows])

    def scores(new: np.ndarray) -> np.ndarray:
        z = np.full((len(new), h.num_leaves), -30.0)
        z[:, model.classes_] = model.decision_function(x[new])
        return z

    return scores


def frogs(args: argparse.Namespace) -> Iterator[Row]:
    from frog_calls import read, thirds

    warnings.simplefilter("ignore")
    x, names, group, h = read(args.source)
    y = np.array([h.leaves.index(name) for name in names])

    for i in range(args.repetitions):
        train, held, new = thirds(names, group, i)
        seen = np.random.default_rng(i).permutation(np.concatenate([train, held]))
        half = len(seen) // 2
        for name, fit, cal, by_group in (
            ("random syllables", seen[:half], seen[half:], False),
            ("recordings", train, held, True),
        ):
            scores = frog_scores(x, y, h, fit)
            by = {"groups": group[cal]} if by_group else {}
            sure = guaranteed_threshold(scores(cal), y[cal], h, 0.95 if not by_group else 0.9, **by)
            profile = Profile.of(
                scores(cal), h, similarity=nearest_similarity(x[fit], x[cal]), groups=group[cal]
            )
            new_by = {"groups": group[new]} if by_group else {}
            near = nearest_similarity(x[fit], x[new])
            for labels, made in zip(
                ("none", "all"),
                checked(h, sure, profile, scores(new), y[new], similarity=near, **new_by),
                strict=True,
            ):
                yield (
                    f"guarantee from {name}, {5 if not by_group else 10}%",
                    "new recordings",
                    labels,
                    *made,
                    i,
                )
            if not by_group:  # the same syllables' recordings: no alarm is right
                again = np.random.default_rng([i, 1]).permutation(seen)
                model = frog_scores(x, y, h, again[: len(again) // 3])
                cal, fresh = again[len(again) // 3 : 2 * len(again) // 3], again[2 * len(again) // 3 :]
                sure = guaranteed_threshold(model(cal), y[cal], h, 0.95)
                first = x[again[: len(again) // 3]]
                profile = Profile.of(model(cal), h, similarity=nearest_similarity(first, x[cal]))
                near = nearest_similarity(first, x[fresh])
                for labels, made in zip(
                    ("none", "all"),
                    checked(h, sure, profile, model(fresh), y[fresh], similarity=near),
                    strict=True,
                ):
                    yield "guarantee from random syllables, 5%", "random syllables", labels, *made, i


def scored(folder: Path) -> tuple[np.ndarray, np.ndarray, Hierarchy]:
    """Scores of the test photos of CUB-200 under softmax regression, divided by a temperature, their labels and the tree."""
    import torch
    from torch.nn.functional import cross_entropy, normalize

    h = read_hierarchy(folder / "cub200_hierarchy" / "cub_wikispecies.parent-child.txt")
    data = np.load(folder / "cub200_resnet50" / "cub200_resnet50_224px_pca512_fp16.npz")
    x, x_test = (
        normalize(torch.tensor(data[f"x_{part}"].astype(np.float32)), dim=1) for part in ("train", "test")
    )
    y = torch.tensor(data["y_train"].astype(np.int64))
    torch.manual_seed(0)
    order = torch.randperm(len(y))
    held, rest = order[:600], order[600:]
    head = torch.nn.Linear(x.shape[1], 200)
    steps = torch.optim.Adam(head.parameters(), lr=0.1, weight_decay=1e-5)
    for _ in range(80):
        steps.zero_grad()
        cross_entropy(head(x[rest]), y[rest]).backward()
        steps.step()
    with torch.no_grad():
        temperature = fit_temperature(head(x[held]), y[held], h)
        return (head(x_test) / temperature).numpy(), data["y_test"].astype(np.int64), h


def birds(args: argparse.Namespace) -> Iterator[Row]:
    z, y, h = scored(args.source)
    print(f"accuracy {(z.argmax(1) == y).mean():.3f}\n", flush=True)
    for i in range(args.repetitions):
        rng = np.random.default_rng(i)
        rows = rng.permutation(len(y))
        cal, rest = rows[: len(y) // 2], rows[len(y) // 2 :]
        # Half of the species become frequent: those that the model knows least, which is the worst case.
        right = z[cal].argmax(1) == y[cal]
        known = np.bincount(y[cal], weights=right, minlength=200) / np.maximum(
            np.bincount(y[cal], minlength=200), 1
        )
        weight = np.where(known < np.median(known), 8.0, 1.0)
        shifted = rest[matching_rows(y[rest], weight * np.bincount(y[rest], minlength=200), i)]
        same = rng.permutation(rest)[: len(shifted)]
        for name, new in (("same frequencies", same), ("shifted frequencies", shifted)):
            look, judge = new[::2], new  # estimates see no labels
            sure = guaranteed_threshold(z[cal], y[cal], h, 0.9)
            seen = Profile.of(z[cal], h)
            for labels, made in zip(("none", "all"), checked(h, sure, seen, z[judge], y[judge]), strict=True):
                yield "as calibrated, 10%", name, labels, *made, i
            for method in ("em", "confusion", "known"):
                if method == "known":
                    shares = np.bincount(y[rest], minlength=200) * (
                        weight if name.startswith("shifted") else 1.0
                    )
                else:
                    shares = estimate_frequencies(
                        Scores(z[look], h), Scores(z[cal], h), h.leaf_nodes[y[cal]], method
                    )
                match = cal[matching_rows(y[cal], shares, i)]
                sure = guaranteed_threshold(z[match], y[match], h, 0.9)
                seen = Profile.of(z[match], h)
                for labels, made in zip(
                    ("none", "all"), checked(h, sure, seen, z[judge], y[judge]), strict=True
                ):
                    yield f"matched by {method}, 10%", name, labels, *made, i


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("simulated", "frogs", "birds"))
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--repetitions", type=int, default=100)
    args = parser.parse_args()
    cases: dict[tuple[str, str], dict[str, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for guarantee, new, labels, state, false, _, _ in globals()[args.study](args):
        cases[guarantee, new][labels].append((state, false))
    print(
        "| guarantee | new samples | false | broken without labels | broken with labels | holds with labels |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for case, made in cases.items():
        shares = [
            np.mean([false for _, false in made["all"]]),
            *(np.mean([state == BROKEN for state, _ in made[labels]]) for labels in ("none", "all")),
            np.mean([state == HOLDS for state, _ in made["all"]]),
        ]
        print(f"| {' | '.join([*case, *(f'{share:.1%}' for share in shares)])} |")


if __name__ == "__main__":
    main()
