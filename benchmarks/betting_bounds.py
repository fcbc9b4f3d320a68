"""What betting gains over the bound of Hoeffding and Bentkus: guarantees about new groups with a confidence.

    python evidence/keep.py guarantees/betting benchmarks/betting_bounds.py --repetitions 100

Groups of 1 to 10 samples as `group_guarantees.py` draws them. The guarantee: at most 20% of a new group's samples get a false
answer, on average over groups, with probability 0.9. "answered" is the share of new samples with an answer, "false" the mean
share of false ones over 2,000 new groups, "broken" the share of calibrations in which that is above 20%, which must be at most
10%.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass

import group_guarantees
import numpy as np

from hace.decisions.bounds import GroupOutcomes, RiskBound
from hace.decisions.check import chance_of_so_little
from hace.decisions.ladders import Outcomes, outcomes_of
from hace.decisions.scores import Scores

ACCURACY, CONFIDENCE = 0.8, 0.9


@dataclass(frozen=True)
class HoeffdingBentkus(RiskBound):
    """The same guarantee by the bound of Bates et al. 2021."""

    def over_groups(self) -> RiskBound:  # noqa: D102
        over = super().over_groups()
        return HoeffdingBentkus(over.alpha, over.delta, over.of, over.most)

    def passes(self, units: Outcomes | GroupOutcomes, threshold: float) -> bool:  # noqa: D102
        losses = units.counted_losses(threshold, self.of) / self.most
        chance = chance_of_so_little(float(losses.sum()), len(losses), float(self.alpha), whole=False)
        return chance <= float(self.delta or 1)

    def _passes_without_loss(self, number: int) -> bool:
        return chance_of_so_little(0.0, number, float(self.alpha), whole=False) <= float(self.delta or 1)


def outcomes(rng: np.random.Generator, groups: int, alike: float) -> tuple[Outcomes, np.ndarray]:
    """What the rule does to samples of so many groups, and the place of each sample's group."""
    group_guarantees.GROUPS = groups
    z, y, group = group_guarantees.draw(rng, 10, alike)
    tree = group_guarantees.TREE
    return outcomes_of(Scores(z, tree), tree.leaf_nodes[y], labels="nodes"), group


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=100)
    args = parser.parse_args()
    print("| groups | alike | bound | answered | false | broken |")
    print("| --- | --- | --- | --- | --- | --- |")
    for groups in (20, 40, 100):
        for alike in (0.2, 0.5):
            rng = np.random.default_rng([groups, int(10 * alike)])
            new, place = outcomes(rng, 2000, alike)
            rows = defaultdict(list)
            for _ in range(args.repetitions):
                made, group = outcomes(rng, groups, alike)
                for name, kind in (("betting", RiskBound), ("Hoeffding-Bentkus", HoeffdingBentkus)):
                    t = kind.of_accuracy(ACCURACY, CONFIDENCE, "samples").threshold(made, group)
                    false = np.bincount(place, new.losses(t)) / np.bincount(place)
                    rows[name].append(((new.answered >= t).mean(), false.mean(), false.mean() > 1 - ACCURACY))
            for name, made in rows.items():
                answered, false, broken = np.mean(made, axis=0)
                print(
                    f"| {groups} | {alike:g} | {name} | {answered:.1%} | {false:.1%} | {broken:.0%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
