"""The project of docs/tutorials/project.md: answers about next year's photos, by rank, from what `hace evaluate --out` writes.

    python benchmarks/groceries.py "as fitted=page/decisions.csv" "calibrated anew=later/decisions.csv"

Each row is one evaluation: the share whose best class is right, the ranks of the answers that keep the guarantee, and
the share of false ones. A product without a kind of its own stands directly below its department.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter

RANKS = ("product", "kind", "department", "nothing")


def main() -> None:
    """Print the table."""
    print("| model | photos | best class right | " + " | ".join(RANKS) + " | false |")
    print("| --- " * (len(RANKS) + 4) + "|")
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        print(f"| {name} | {len(rows)} | " + " | ".join(f"{share:.1%}" for share in shares(rows)) + " |")


def shares(rows: list[dict[str, str]]) -> list[float]:
    """The best class right, the answers at each rank, and the false answers, as shares of the photos."""
    (answer,) = {name.removesuffix(": id") for name in rows[0] if name.endswith(": id")}
    classes = {row[column] for row in rows for column in ("truth", "leaf")}
    path_of = {row[f"{answer}: id"]: row[f"{answer}: path"].split(" > ") for row in rows}
    ranks, right, false = Counter(), 0, 0
    for row in rows:
        node, sample = row[f"{answer}: id"], row["sample"]
        right += row["leaf"] == row["truth"]
        if not node:
            ranks["nothing"] += 1
            continue
        ranks["product" if node in classes else RANKS[3 - len(path_of[node])]] += 1
        false += node not in (*sample.split("/")[:-1], row["truth"])
    return [n / len(rows) for n in (right, *(ranks[rank] for rank in RANKS), false)]


if __name__ == "__main__":
    main()
