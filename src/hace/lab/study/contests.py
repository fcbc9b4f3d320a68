"""Contests: the methods that compete at one seed, each with the same number of candidates.

Where the best candidate of any method has the smallest or the largest rate of its grid, every method of the contest gets one
more rate on that side, so that counts stay equal; at most `Cell.widen` times on each side. Only finished searches decide, so
a study that was killed widens as it would have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hace.lab.study.cells import Cell, CellKey, Record, choose

PENDING = ("not run", "to be retried")


def contests(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells by contest: those that differ in their method alone. One that cannot widen waits for no other."""
    found: dict[CellKey, list[Cell]] = {}
    for cell in cells:
        key = replace(cell.key, method="", dilution=None) if any(cell.widen) else cell.key
        found.setdefault(key, []).append(cell)
    return list(found.values())


def is_pending(searched: Iterable[Sequence[Record]]) -> bool:
    """Whether a contest has searches that are not finished; one that failed for good counts as finished."""
    return any(record.status in PENDING for records in searched for record in records)


def widened(cells: Sequence[Cell], searched: Sequence[Sequence[Record]]) -> list[Cell]:
    """The cells of a contest with another rate on each side where one of them chose the edge; none if they are settled.

    Args:
        cells: Of the contest.
        searched: The finished runs of their searches.
    """
    sides = {_side(cell, records) for cell, records in zip(cells, searched, strict=True) if records}
    below = "smallest" in sides and any(cell.widen[0] for cell in cells)
    above = "largest" in sides and any(cell.widen[1] for cell in cells)
    return [_wider(cell, below, above) for cell in cells] if below or above else []


def _side(cell: Cell, searched: Sequence[Record]) -> str:
    """The edge that a search chose, "smallest" or "largest"; where all its rates diverged, smaller ones may not."""
    if all(record.status == "diverged" for record in searched):
        return "smallest"
    candidate, _ = choose(cell, searched)
    side, _, what = ("" if candidate is None else cell.edge(candidate)).partition(" ")
    return side if what == "rate" else ""


def _wider(cell: Cell, below: bool, above: bool) -> Cell:
    """A cell with one more rate on some sides, in the steps of its grid; settings that go by turns go on doing so."""
    rates = sorted(set(cell.rates))
    if len(rates) < 2:
        return cell
    others = [[{**c, "lr": None} for c in cell.candidates if c["lr"] == rate] for rate in rates]
    turns = next(k for k in range(1, len(rates) + 1) if others[k:] == others[:-k])
    less, more = cell.widen
    new = []
    if below and less:
        new += [{**c, "lr": rates[0] ** 2 / rates[1]} for c in others[turns - 1]]
        less -= 1
    if above and more:
        new += [{**c, "lr": rates[-1] ** 2 / rates[-2]} for c in others[-turns]]
        more -= 1
    return replace(cell, candidates=(*cell.candidates, *new), widen=(less, more))
