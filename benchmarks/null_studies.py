"""How often the cards of a report claim a difference where there is none: at most in 6% of studies.

    python benchmarks/null_studies.py [--studies 2000]

Every study is made up: its methods are equally good, on samples that some of them find harder than others, and each seed is a
little better or worse than the next. The runs are in memory; everything else is the report's own code. A card claims something
where any of its rows is a gain or a loss, or its headline is not open.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hace import Hierarchy
from hace.lab.report.cards import Card, study_cards
from hace.lab.report.results import Results
from hace.lab.runs.config import DataConfig, LabelsConfig, ProbeConfig
from hace.lab.runs.run import Run
from hace.lab.study.configurations import ConfigurationKey
from hace.lab.study.presets import METHODS
from hace.lab.study.records import Record

COARSE = LabelsConfig(coarse=0.8)
METHOD_SPREAD = 0.5  # of what methods find hard


@dataclass(frozen=True)
class NullStudy:
    """What the studies of one row have in common."""

    title: str
    methods: tuple[str, ...]
    seeds: int
    datasets: int = 1
    labels: tuple[LabelsConfig, ...] = (LabelsConfig(),)
    samples: int = 600
    group_size: int = 1
    seed_spread: float = 0.05  # in standard deviations of a sample's difficulty: about a point of accuracy


PAIR = ("cross_entropy", "hace")
FIVE = ("cross_entropy", "hace", "cross_entropy_paths", "conditional_softmax", "hxe_0.2")
STUDIES = (
    NullStudy("two methods", PAIR, 2),
    NullStudy("two methods", PAIR, 3),
    NullStudy("two methods", PAIR, 5),
    NullStudy("two methods", PAIR, 10),
    NullStudy("two methods, seeds that differ four times as much", PAIR, 3, seed_spread=0.2),
    NullStudy("two methods, seeds that differ four times as much", PAIR, 5, seed_spread=0.2),
    NullStudy("two methods, groups of 10 samples", PAIR, 5, group_size=10),
    NullStudy("five methods", FIVE, 5),
    NullStudy("two methods, four datasets", PAIR, 5, datasets=4),
    NullStudy(
        "all labels and coarse ones",
        ("cross_entropy", "hace", "cross_entropy_paths", "cross_entropy_drop"),
        5,
        labels=(LabelsConfig(), COARSE),
    ),
)


@dataclass(frozen=True, eq=False)
class DrawnRun(Run):
    """A run whose result and predictions are in memory."""

    tree: Hierarchy = field(kw_only=True)
    metrics: Mapping[str, Mapping[str, float]] = field(kw_only=True)
    samples: Mapping[str, np.ndarray] = field(kw_only=True)

    @property
    def result(self) -> dict[str, Any]:  # noqa: D102
        return {"status": "finished", "metrics": self.metrics, "samples": 200, "train": {}}

    @property
    def hierarchy(self) -> Hierarchy:  # noqa: D102
        return self.tree

    def predictions(self) -> dict[str, np.ndarray]:  # noqa: D102
        return dict(self.samples)


@cache
def tree() -> Hierarchy:
    """Five groups of four families of three classes."""
    places = itertools.product(range(5), range(4), range(3))
    return Hierarchy.from_paths([(f"{i}", f"{i}.{j}", f"{i}.{j}.{k}") for i, j, k in places])


@cache
def carried() -> list[np.ndarray]:
    """(N,) for each level the ancestor of a node there."""
    return [tree().level_nodes(level) for level in range(1, tree().max_depth + 1)]


def drawn_samples(rng: np.random.Generator, truth: np.ndarray, margin: np.ndarray) -> dict[str, np.ndarray]:
    """What a run keeps of samples with a margin: right answers where it is above 0."""
    count, leaves = len(truth), tree().leaf_nodes
    # A mistake stays in the family, in the group, or goes anywhere.
    anywhere = rng.choice(leaves, count)
    shift = 1 + rng.integers(2, size=count)
    place = tree().labels[truth]
    in_family = leaves[place // 3 * 3 + (place + shift) % 3]
    in_group = leaves[place // 12 * 12 + rng.integers(12, size=count)]
    wrong = np.choose(rng.choice(3, size=count, p=(0.5, 0.3, 0.2)), [in_family, in_group, anywhere])
    answer = np.where(margin > 0, truth, wrong)
    masses = [1 / (1 + np.exp(-1.3 * (margin + 0.7 * rng.normal(size=count))))]
    for _ in range(2):
        masses.append(masses[-1] + (1 - masses[-1]) * rng.uniform(0.3, 0.9, size=count))
    same = np.stack([level[truth] == level[answer] for level in carried()], axis=1)
    return {
        "truth": truth,
        "answer": answer,
        "top5": (answer == truth) | (rng.random(count) < 0.5),
        "level_correct": same,
        "distance": (tree().max_depth - same.sum(axis=1)).astype(np.float32),
        "path_confidence": np.stack([np.ones(count), *masses[::-1]], axis=1).astype(np.float32),
    }


def drawn_records(study: NullStudy, rng: np.random.Generator) -> Iterator[Record]:
    """The runs of one study: a search and a final run for each dataset, state of the labels, method and seed."""
    groups = np.arange(study.samples) // study.group_size
    for dataset in range(study.datasets):
        truth = rng.choice(tree().leaf_nodes, study.samples)
        # Groups have a difficulty in common.
        difficulty = 0.8 * rng.normal(size=study.samples) + 0.6 * rng.normal(size=groups[-1] + 1)[groups]
        for labels, method in itertools.product(study.labels, study.methods):
            if METHODS[method].drops and labels == LabelsConfig():
                continue
            known = replace(labels, drop=METHODS[method].drops)
            loss = METHODS[method].loss_at(0.5 if METHODS[method].diluted else None)
            own = METHOD_SPREAD * rng.normal(size=study.samples)
            for seed in range(study.seeds):
                margin = (
                    1 + difficulty + own + study.seed_spread * rng.normal() + rng.normal(size=study.samples)
                )
                samples = drawn_samples(rng, truth, margin)
                if study.group_size > 1:
                    samples["group"] = groups
                right = samples["answer"] == samples["truth"]
                off = samples["distance"]
                metrics = {"top-1": right.mean(), "severity": off[~right].mean(), "HD@1": off.mean()}
                config = ProbeConfig(data=DataConfig(labels=known), loss=loss, seed=seed)
                about = {
                    "id": f"{dataset} {labels.text} {method} {seed}",
                    "data": {"hierarchy": "tree", "fingerprint": "none"},
                }
                run = DrawnRun(
                    Path("run"), about, config, tree=tree(), metrics={"leaves": metrics}, samples=samples
                )
                held_out = {"leaves": {"top-1": right.mean() + 0.03 * rng.normal()}}
                key = ConfigurationKey(
                    "fair", f"data {dataset}", "backbone", method, None, None, seed, labels.text
                )
                yield Record(key, "search", 1.0, replace(run, metrics=held_out))
                yield Record(key, "final", 1.0, run, candidates=3)


def null_cards(study: NullStudy, seed: int) -> list[Card]:
    """The cards of one made-up study."""
    rng = np.random.default_rng([study.seeds, len(study.methods), study.datasets, len(study.labels), seed])
    return study_cards(Results(drawn_records(study, rng)))


def claims(cards: Sequence[Card]) -> bool:
    """Whether the cards claim any difference."""
    return any(card.tone != "open" or any(d.outcome != "unclear" for d in card.decisions) for card in cards)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=2000)
    args = parser.parse_args()
    print("| study | seeds | studies | claim a difference, % | say beats, % | say loses, % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for study in STUDIES:
        results = []
        for seed in range(args.studies):
            cards = null_cards(study, seed)
            answers = " ".join(card.answer for card in cards)
            results.append((claims(cards), "beats" in answers, "loses" in answers))
        shares = " | ".join(f"{100 * share:.1f}" for share in np.mean(results, axis=0))
        print(f"| {study.title} | {study.seeds} | {args.studies:,} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
