"""The short table of README and docs/when-it-helps.md: before and after, on three datasets: python evidence/summary.py

A row is a situation, a change of method in it, and top-1 before and after on every dataset of the confirmation. All numbers
come from the effects.csv of its three studies.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"
DATASETS = {  # column: study
    "birds": "confirm-cub200-resnet50-labels",
    "cars": "confirm-cars-labels",
    "chat intents": "confirm-hwu64-labels",
}


class Situation(NamedTuple):
    """A row: what the labels are, and the change whose effect is shown."""

    labels: str  # in effects.csv
    before: str
    after: str
    decimals: int
    title: str
    change: str


SITUATIONS = (
    Situation(
        "5 a class + parent",
        "cross-entropy, 5 a class alone",
        "path sums",
        0,
        "five fine per class, the rest coarse",
        "drop the coarse ones → learn from them (path sums)",
    ),
    Situation(
        "40% wrong within parent",
        "cross-entropy",
        "HACE, tuned d",
        0,
        "many wrong, but in the right group",
        "cross-entropy → HACE, tuned dilution",
    ),
    Situation(
        "5 a class",
        "cross-entropy",
        "path sums",
        0,
        "five per class, none coarse",
        "cross-entropy → path sums",
    ),
    Situation(
        "all labels",
        "cross-entropy",
        "soft margin τ=1",
        1,
        "all fine and correct",
        "cross-entropy → soft margin",
    ),
)


class Change(NamedTuple):
    """Top-1 before and after, and the 95% interval of the difference."""

    before: float
    after: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def main() -> None:
    """Write the table."""
    target = RESULTS / "confirmation" / "summary.csv"
    rows = list(table())
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    about = target.parent / "about.json"
    known = json.loads(about.read_text(encoding="utf-8"))
    known["tables"][target.name] = {"command": "python evidence/summary.py"}
    about.write_text(f"{json.dumps(known, indent=2)}\n", encoding="utf-8")


def table() -> Iterator[dict[str, str]]:
    """The rows as they are shown, bold where the interval of the difference excludes zero."""
    for situation in SITUATIONS:
        row = {"your labels": situation.title, "change": situation.change}
        for title, study in DATASETS.items():
            change = measured(study, situation)
            after = f"{change.after:.{situation.decimals}f}"
            before = f"{change.before:.{situation.decimals}f}"
            row[title] = f"{before} → **{after}**" if change.sure else f"{before} → {after}"
        yield row


def measured(study: str, situation: Situation) -> Change:
    """What a study found about the change of a situation."""
    with (RESULTS / study / "effects.csv").open(encoding="utf-8", newline="") as file:
        (row,) = (
            row
            for row in csv.DictReader(file)
            if (row["labels"], row["method"], row["minus"], row["metric"])
            == (situation.labels, situation.after, situation.before, "top-1")
        )
    return Change(*(float(row[column]) for column in ("second", "first", "low", "high")))


if __name__ == "__main__":
    main()
